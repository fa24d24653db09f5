"""Exceptions that a component raises, and the reaction of the runner to each."""

from collections.abc import Mapping

from flafka.plugins.event import EventId

ANY_FAILURE = (Exception, SystemExit)
"""Exceptions to catch around code of plugins and libraries. A library may raise SystemExit, but only the user may end
the agent: the caller reports the exception as a failure of that code."""


CONTRACT_VIOLATION_SECONDS = 60.0
"""Least time between two attempts after a mistake of a component's author."""


class FlafkaError(Exception):
    """An error whose text alone explains the problem and the remedy to a user. Shown without a traceback."""


class MissingExtra(FlafkaError):
    """Lack of an optional library. The text names the extra that installs it."""


class Retry(FlafkaError):
    """A transient failure, such as an unavailable server or a timeout.

    The runner backs off, rewinds to the last commit and redelivers. `after` is the least time to wait, in seconds;
    None leaves it to the runner's back-off.
    """

    def __init__(self, message: str, after: float | None = None) -> None:
        super().__init__(message)
        self.after = after


class NotCommitted(Retry):
    """Failure of a commit that certainly had no effect: the runner withdraws the audit's report of its events."""


class Unreachable(Retry):
    """Lack of an answer: servers are down, or too few of them are up. A server that refuses is no such failure."""


class Unwritable(Retry):
    """Failure of a disk of this host. A stopping agent does not wait for it, as a person has to repair the disk."""


class ContractViolation(Retry, TypeError):
    """A mistake of a component's author. The text says what to write; the runner adds the component.

    Another attempt fails as well, and a source may repeat events: the runner retries after
    `CONTRACT_VIOLATION_SECONDS`.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message, CONTRACT_VIOLATION_SECONDS)


class Rejected(FlafkaError):
    """Events that can never be delivered. They become dead letters, durable before their offsets are committed.

    Raised by `write` or `flush` after every *other* event was accepted. `reasons` maps each rejected event's id
    (`batch.id(row)`) to a sentence about that event. The constructor raises ContractViolation for any other mapping.
    """

    def __init__(self, reasons: Mapping[EventId, str]) -> None:
        for id, reason in reasons.items() if isinstance(reasons, Mapping) else [(None, reasons)]:
            if not (isinstance(id, EventId) and isinstance(reason, str)):
                raise ContractViolation("Rejected takes {batch.id(row): a sentence, …} of the rejected events")
        first = next(iter(reasons.values()), "")
        super().__init__(f"{len(reasons)} events can never be delivered, the first because: {first}")
        self.reasons = dict(reasons)


class CommitLogMoved(Retry):
    """A sink's commit log is not where its configuration says: another agent has moved it."""


class Conflict(FlafkaError):
    """Commit of another owner past this offset. The runner drops uncommitted events and resumes from there."""


class OutcomeUnknown(Conflict):
    """Failure of a commit whose effect is unknown, such as a timeout. The sink's `resume` finds it out."""
