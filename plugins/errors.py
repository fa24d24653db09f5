"""What a component raises, and what the runner does about it."""

from collections.abc import Mapping

from flafka.plugins.event import EventId

ANY_FAILURE = (Exception, SystemExit)
"""What code that is not the caller's may raise: a library that cannot go on may end the program, which only the user
may. Whoever catches it tells it as a failure of that code, and keeps the rest running."""


CONTRACT_VIOLATION_SECONDS = 60.0
"""How long it takes until what its author got wrong is tried again, at least."""


class FlafkaError(Exception):
    """An error whose text alone tells a user what is wrong and what to do; it is shown without a traceback."""


class MissingExtra(FlafkaError):
    """A library is not installed; the text names the extra that brings it."""


class Retry(FlafkaError):
    """A passing failure (a server away, a timeout): back off, rewind to the last commit, offer again.

    `after` is the least time to wait, in seconds; None leaves it to the runner's back-off.
    """

    def __init__(self, message: str, after: float | None = None) -> None:
        super().__init__(message)
        self.after = after


class NotCommitted(Retry):
    """Failure of a commit that certainly did not come about: the audit's report of its events is withdrawn."""


class Unreachable(Retry):
    """Nobody answers: servers are away, or too few of them. Whoever answers that it will not is no such failure."""


class Unwritable(Retry):
    """A disk of this host fails. A stopping agent does not wait for it, as a person has to mend the disk first."""


class ContractViolation(Retry, TypeError):
    """What a component's author wrote cannot work; the text says what to write, and who catches it says where.

    It works no better the next time, and a source may repeat what it brought before: it is tried again rarely.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message, CONTRACT_VIOLATION_SECONDS)


class Rejected(FlafkaError):
    """Some events can never be delivered: they become dead letters, durable before their positions are committed.

    Raised by `write` or `flush` after every *other* event was accepted. `reasons` maps each rejected event's id
    (`batch.id(row)`) to a sentence about that event.
    """

    def __init__(self, reasons: Mapping[EventId, str]) -> None:
        for id, reason in reasons.items() if isinstance(reasons, Mapping) else [(None, reasons)]:
            if not (isinstance(id, EventId) and isinstance(reason, str)):
                raise ContractViolation("Rejected takes {batch.id(row): a sentence, …} of the rejected events")
        first = next(iter(reasons.values()), "")
        super().__init__(f"{len(reasons)} events can never be delivered, the first because: {first}")
        self.reasons = dict(reasons)


class CommitLogMoved(Retry):
    """A sink's commit log is in another place than its configuration names: another agent has moved it there."""


class Conflict(FlafkaError):
    """Another owner has committed past this offset: drop what is not committed and resume where it left off."""


class OutcomeUnknown(Conflict):
    """Failure of a commit of which the store did not say whether it came about: the sink's `resume` finds out."""
