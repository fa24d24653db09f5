"""Interfaces of sinks: the simple kind writes and flushes, the committing kind has its own commit log."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from flafka.plugins.batch import Batch
from flafka.plugins.component import C, Component
from flafka.plugins.event import EventId
from flafka.plugins.partitions import UNKNOWN_RECORD, Assignment, LastRecord, OffsetRange


class Sink(Component[C]):
    """Takes events out: the simple kind.

    `write` may buffer; when `flush` returns, all that was written is durable, and the runner commits the channel.
    Any exception makes the runner call `reset`, rewind to the last commit and offer the events again.
    """

    batch_size: int = 10_000
    """The runner flushes after at least so many events, if not before."""
    flush_interval: float = 1.0
    """The runner flushes at the latest so many seconds after the first unflushed write."""
    read_back: bool = False
    """True in a replay, set before `open`. The sink then reads back what it wrote from a store that may accept old
    events and hide them. `write` or `flush` raises Retry, with the way out, for events that the store does not
    return."""
    remote: ClassVar[bool] = True
    """True if the sink may run on another host than the agent's, as Spark's executors; False with local files."""

    @abstractmethod
    def write(self, batch: Batch) -> None:
        """Take these events (of one partition, in order, never empty)."""

    def flush(self) -> None:
        """Return when everything written is durable."""

    def reset(self) -> None:
        """Drop everything written since the last flush."""

    def uses_headers(self) -> Mapping[str, Collection[str]]:
        """By option: the headers that its text names, as in `%{host}`. `check` warns of those that nothing sets."""
        return {}

    def destinations(self, batch: Batch) -> Sequence[Mapping[str, Any]] | None:
        """Return the destination of each event, for `agent test`; needs neither a server nor `open`.

        Each is a mapping with keys such as `path`, `topic` or `document`, and values that JSON can hold. `rejected`
        is the reason why the event can never be delivered. None if the destinations cannot be known beforehand.
        """
        return None

    def trace(self, assignment: Assignment, id: EventId, batch: Batch | None) -> Sequence[Mapping[str, Any]]:
        """Return the locations of this event in the store, as the store itself reports them, for `agent trace`.

        Needs no `open`, changes nothing, and may run beside the agent's own sink. Raises Retry.

        `batch` holds the event as the sink's interceptors leave it; None if the channel no longer has the event.
        Each location is a mapping with keys such as `path`, `row` or `document`. `missing` is a sentence about where
        the event is not; `unknown` is the reason why its location cannot be known. A location that has a range of
        the channel's records, rather than the event by its id, has their offsets `first` and `last`, both inclusive.
        Rejected records lie in such a range, too.
        """
        return [{"unknown": f"what a sink of type {self.type_name} writes has no event ids to be found by"}]

    def duplicate_risk(self, assignment: Assignment) -> str:
        """Return the reason why a redelivered event, as after a kill, may be duplicated or do harm.

        For `agent replay`. Empty if neither can happen. Needs no `open`. Raises Retry.
        """
        return "after a kill it writes what it had not committed once more, under no id by which that could be told"


@dataclass(frozen=True)
class Receipt:
    """Staged data of one partition, ready to be committed. Picklable, as executors send receipts to the driver."""

    assignment: Assignment
    offsets: OffsetRange
    """Records that are in it, or were dropped on purpose."""
    events: int
    staged: Any
    """The sink's own: what to make visible."""
    last_record: LastRecord = UNKNOWN_RECORD
    """The last record of the range. The runner sets it, and a sink may keep it in its commit log, for the assignment
    that `resume` returns."""


class CommittingSink(Sink[C]):
    """A sink with its own commit log, which makes it exactly once.

    The runner calls `resume` for each partition it gets, `write` with that partition's events in order, and, when
    `due` names the partition, `stage` and `commit`. It commits the channel only afterwards, so that the sink's
    commit log is the truth and the channel's offset a copy. Stages run in the agent or on Spark executors. `resume`
    and `commit` of one partition run in one place only: the agent, or the Spark driver. Between `stage` and `commit`
    the runner stores the dead letters of the same records.
    """

    at_least_once: ClassVar[type[AtLeastOnceSink[Any]] | None] = None
    """Plain form of the sink, for sink groups and, if `remote` is False, for Spark; None if there is none."""
    membership: Callable[[], Any] = staticmethod(lambda: None)
    """`Reader.membership` of the channel's reader, set by the runner, for a sink that commits the channel itself."""

    def duplicate_risk(self, assignment: Assignment) -> str:
        """Return an empty text: the commit log prevents duplicates."""
        return ""

    def commit_log_moved(self, committed: Assignment) -> bool:
        """Return True if the group's committed offset names a commit log of this kind in another place."""
        kind, _, place = committed.generation.commit_log.partition(":")
        own, _, here = self.commit_log.partition(":")
        return kind == own and bool(place) and place != here

    def has_commit_log(self, committed: Assignment) -> bool:
        """Return True if the commit log is here, whatever place the group's offset names. Raises Retry."""
        return not self.commit_log_moved(committed)

    def move_commit_log(self, committed: Assignment) -> Assignment | None:
        """Have a commit log of another place go on in this one; None if it is here already.

        The runner calls it at its start, before `resume`, while nobody else works in the group. If it is killed in
        between, the next call finishes the move. Raises Retry.
        """
        return None

    def commit_condition(self) -> str:
        """For `check`: until when events are left to the channel, in words; empty where that is a moment."""
        return ""

    @property
    def commit_log(self) -> str:
        """Location of its commit log, as in `Generation.commit_log`; empty where it is fixed by the type of sink."""
        return ""

    @abstractmethod
    def resume(self, committed: Assignment) -> Assignment:
        """Finish what a crash left of the last commit and return where to go on by the sink's own commit log.

        The generation returned has the epoch and the place of that log. Without a log: from the committed offset.
        Whoever had the partition before, in an earlier epoch or with a log in another place, can commit no more once
        this returns.
        """

    @abstractmethod
    def due(self) -> set[int]:
        """Partitions whose written events should be committed now: by size, count, age or idleness."""

    @abstractmethod
    def stage(self, assignment: Assignment, offsets: OffsetRange) -> Receipt:
        """Make all that was written of this partition durable but invisible.

        May raise Conflict and OutcomeUnknown, as `commit`.
        """

    @abstractmethod
    def commit(self, receipt: Receipt) -> None:
        """Make it visible, atomically, exactly once.

        Raises Conflict when another owner has committed past it, and OutcomeUnknown when it cannot be known whether
        it came about: the runner calls `reset` and `resume` then. Raises NotCommitted when it certainly did not come
        about.
        """

    @abstractmethod
    def reset(self, partition: int | None = None) -> None:
        """Drop everything not committed of this partition, or of all."""


class AtLeastOnceSink(Sink[C]):
    """The form of a committing sink that only writes and flushes, at least once: it runs where that one cannot."""

    @abstractmethod
    def recover(self, committed: Assignment) -> None:
        """End what the committing form may have left under way of that partition when it was killed.

        Called on Spark's driver for each partition before the first event. Needs no `open`.
        """
