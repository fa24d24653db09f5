"""Interfaces of sinks: a simple sink writes and flushes, a committing sink has its own commit log."""

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
    """A component that delivers events, at least once.

    `write` may buffer. Once `flush` returns, all written events are durable, and the runner commits the channel.
    After any exception the runner calls `reset`, rewinds to the last commit and redelivers the events. One thread
    calls all methods of an open sink.
    """

    batch_size: int = 10_000
    """Number of unflushed events after which the runner flushes."""
    flush_interval: float = 1.0
    """Longest time between the first unflushed write and the flush, in seconds."""
    verify_writes: bool = False
    """True in a replay, set before `open`. A store may accept old events and hide them: the sink reads back its
    writes, and `write` or `flush` raises Retry, with the remedy, for events that the store does not return."""
    remote: ClassVar[bool] = True
    """True if the sink may run on another host than the agent's, as Spark's executors do; False with local files."""

    @abstractmethod
    def write(self, batch: Batch) -> None:
        """Accept events of one partition, in order; the batch is never empty.

        Raises Retry for a transient failure, and Rejected for events that can never be delivered.
        """

    def flush(self) -> None:
        """Return once all written events are durable. Raises as `write`."""

    def reset(self) -> None:
        """Drop all events written since the last flush; the runner redelivers them."""

    def uses_headers(self) -> Mapping[str, Collection[str]]:
        """Return, by option, the names of the headers in its value, as in `%{host}`.

        `agent check` warns of headers that nothing sets.
        """
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
        return "after a kill it writes uncommitted events once more, without ids that would identify duplicates"


@dataclass(frozen=True)
class Receipt:
    """Staged data of one partition, ready to be committed. Picklable, as executors send receipts to the driver."""

    assignment: Assignment
    offsets: OffsetRange
    """Offsets of the staged records, and of records that were dropped deliberately."""
    events: int
    staged: Any
    """Description of the staged data, for the sink alone. Picklable."""
    last_record: LastRecord = UNKNOWN_RECORD
    """The last record of the range, set by the runner. A sink may store it in its commit log, for the assignment that
    `resume` returns."""


class CommittingSink(Sink[C]):
    """A sink with its own commit log, which delivers exactly once.

    For each assigned partition the runner calls:

    1. `resume`, which returns the offset to continue from;
    2. `write` with the events of the partition, in order;
    3. `stage` and `commit`, once `due_partitions` has the partition. Between the two the runner stores the dead
       letters of the same records.

    The runner commits the channel last: the sink's commit log is authoritative, and the channel's offset is a copy.
    `stage` runs in the agent or on Spark executors, `resume` and `commit` in the agent or the Spark driver only.
    """

    at_least_once: ClassVar[type[AtLeastOnceSink[Any]] | None] = None
    """At-least-once form, for sink groups and, if `remote` is False, for Spark; None if the sink has none."""
    membership: Callable[[], Any] = staticmethod(lambda: None)
    """`Reader.membership` of the channel's reader, set by the runner, for a sink that commits the channel itself."""

    def duplicate_risk(self, assignment: Assignment) -> str:
        """Return an empty text: the commit log prevents duplicates."""
        return ""

    def commit_log_moved(self, committed: Assignment) -> bool:
        """Return True if the group's committed offset names a commit log of this kind at another location."""
        kind, _, location = committed.generation.commit_log.partition(":")
        own_kind, _, own_location = self.commit_log.partition(":")
        return kind == own_kind and bool(location) and location != own_location

    def has_commit_log(self, committed: Assignment) -> bool:
        """Return True if the commit log is at `commit_log`, whatever the group's offset names. Raises Retry."""
        return not self.commit_log_moved(committed)

    def move_commit_log(self, committed: Assignment) -> Assignment | None:
        """Move the commit log from another location to `commit_log`; return the assignment with the new generation.

        Returns None if it is there already. The runner calls this at its start, before `resume`, while the group has
        no other members. After a kill, the next call finishes the move. Raises Retry.
        """
        return None

    def commit_condition(self) -> str:
        """Return the condition for a commit, for `agent check`; empty if the sink commits within moments.

        Until then, events occupy space in the channel.
        """
        return ""

    @property
    def commit_log(self) -> str:
        """Location of the commit log, as in `Generation.commit_log`; empty if the type of sink determines it."""
        return ""

    @abstractmethod
    def resume(self, committed: Assignment) -> Assignment:
        """Finish the last commit after a crash, fence earlier owners, and return the offset to continue from.

        The sink's commit log determines the offset, the epoch and the location. Without a log, the offset is the
        committed one. Once this returns, an earlier owner of the partition can no longer commit,
        whether it has an earlier epoch or a log at another location. Raises Retry.
        """

    @abstractmethod
    def due_partitions(self) -> set[int]:
        """Return the partitions whose written events should be committed now: by size, count, age or idle time."""

    @abstractmethod
    def stage(self, assignment: Assignment, offsets: OffsetRange) -> Receipt:
        """Make all written events of this partition durable but invisible, and return their receipt.

        Raises Retry, and Conflict or OutcomeUnknown as `commit`.
        """

    @abstractmethod
    def commit(self, receipt: Receipt) -> None:
        """Make the staged events visible, atomically and exactly once.

        Raises Conflict if another owner has committed past them, and OutcomeUnknown if the outcome is unknown: the
        runner then calls `reset` and `resume`. Raises NotCommitted if the commit certainly had no effect.
        """

    @abstractmethod
    def reset(self, partition: int | None = None) -> None:
        """Drop all uncommitted events of this partition, or of all partitions if None."""


class AtLeastOnceSink(Sink[C]):
    """At-least-once form of a committing sink, which writes and flushes, for sink groups and Spark."""

    @abstractmethod
    def recover(self, committed: Assignment) -> None:
        """Finish or abort what a killed committing form has left in progress for that partition. Raises Retry.

        Called on Spark's driver for each partition before the first event. Needs no `open`.
        """
