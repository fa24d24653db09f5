"""Interfaces of channels and of their readers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

import pyarrow as pa

from flafka.plugins.batch import Batch
from flafka.plugins.component import C, Component
from flafka.plugins.errors import FlafkaError
from flafka.plugins.event import EventId
from flafka.plugins.options import Config, option
from flafka.plugins.partitions import UNKNOWN_RECORD, Assignment, LastRecord, OffsetRange


class FlumeDirectories(NamedTuple):
    """Directories of a file channel of Flume."""

    checkpoint: Path
    backup: Path | None
    """Directory of the backup checkpoint."""
    data: tuple[Path, ...]


class Record(NamedTuple):
    """One Kafka record of a channel's topic."""

    offset: int
    timestamp: int
    """Milliseconds since the epoch."""
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]


@dataclass(frozen=True)
class UndecodableRecord:
    """A record that is not in the channel's format. It becomes a dead letter."""

    id: EventId
    record: Record
    reason: str


@dataclass(frozen=True)
class PolledBatch:
    """Decoded records of one partition, in a range of offsets."""

    assignment: Assignment
    offsets: OffsetRange
    batch: Batch
    undecodable: tuple[UndecodableRecord, ...] = ()
    replays: Mapping[EventId, int] = field(default_factory=dict)
    """Offset of the record with the replayed event, by the id of each replayed event of `batch`."""
    last_record: LastRecord = UNKNOWN_RECORD
    """The last record of the range; unknown in a channel whose storage cannot lose records."""

    def without_replayed(self) -> Batch:
        """Return the events without replayed ones, whose ids have offsets before the range."""
        origin = self.batch.origin
        if origin is None or not len(self.batch) or origin.offsets.min() >= self.offsets.start:
            return self.batch
        return self.batch.where(pa.array(origin.offsets >= self.offsets.start))


@dataclass(frozen=True)
class EventLocation:
    """State of one event in a channel, for `agent trace`."""

    coordinates: Mapping[str, str | int]
    """Location of the event by keys such as `topic`, `partition` and `offset`, even if it is no longer there."""
    polled: PolledBatch | None
    """Decoded record of the event, with ids of the same prefix as the requested id; None if the channel has no such
    record."""
    missing: str
    """Reason why the event is missing, as a sentence; empty if it is present or its record is undecodable."""
    committed: Mapping[str | None, Assignment]
    """Committed offset of each requested consumer group in the event's partition."""


class RebalanceListener(Protocol):
    """Callbacks of a `Reader` for partitions assigned, revoked or lost; called only within `Reader.take`."""

    def assigned(self, committed: Sequence[Assignment]) -> Sequence[Assignment]:
        """Take over these partitions, given the group's committed offsets. Return where each one starts.

        The returned assignments have the owner's generation. The reader commits them before it hands out any event,
        so that the next owner of a partition finds the commit log.
        """

    def revoked(self, partitions: set[int]) -> None:
        """Flush and commit these partitions, before another member gets them."""

    def lost(self, partitions: set[int]) -> None:
        """Drop uncommitted events of these partitions, without a commit: another member may have them already."""


class Reader(ABC):
    """A consumer of a channel. Not thread-safe: one thread uses it."""

    @abstractmethod
    def take(self, timeout: float) -> PolledBatch | None:
        """Return the next records, or None after `timeout` seconds without any.

        Calls the `RebalanceListener` when partitions change, and raises its exceptions. Raises Retry for a transient
        failure, and FlafkaError if a person must decide, as after a loss of records.
        """

    @abstractmethod
    def commit(self, delivered: Collection[Assignment]) -> None:
        """Commit the next offsets of these assignments, except of partitions that are no longer assigned.

        Raises Retry for a transient failure.
        """

    @abstractmethod
    def rewind(self, starts: Collection[Assignment]) -> None:
        """Take from the next offset of each of these assignments on, to redeliver events."""

    def needs_commit(self) -> bool:
        """Return True if uncommitted events of this reader occupy space that the channel needs.

        A committing sink then commits all its events at once, whatever its batching options are.
        """
        return False

    def membership(self) -> Any:
        """Return the client's `consumer_group_metadata`, for a transaction; None without a consumer group.

        With this metadata, Kafka accepts offsets in a transaction only while the consumer is a member of its group.
        Raises Retry if the consumer is no longer a member.
        """
        return None

    def stop_at(self, ends: Mapping[int, int]) -> None:
        """Hand out only events before the given offset of each partition, and none of other partitions.

        Called before the first `take`. Raises FlafkaError if this kind of reader cannot stop at an offset.
        """
        raise FlafkaError(f"{type(self).__name__} cannot stop at an offset")

    @abstractmethod
    def close(self) -> None:
        """Leave the group, without a commit."""


class Channel(Component[C]):
    """A component that stores events between sources and sinks."""

    durable: ClassVar[bool] = False
    """True if stored events survive the end of the agent. A stopping agent drains its other channels.

    A channel outside Kafka has the gauge `ChannelSize`: the number of its events, including events that are taken but
    not committed. It is the lag of the channel's sinks, and a drain ends when it is 0.
    """

    @abstractmethod
    def put(self, batch: Batch) -> None:
        """Store a batch, and return once the whole batch is stored with the channel's guarantee. Thread-safe.

        Blocks while the channel is full or unreachable. Raises Retry for a transient failure, and if `stopping` is
        set meanwhile; the put is in doubt then. Raises Rejected for events that no record can hold, with the ids
        `EventId("", -1, -1, row)`, once all others are stored.
        """

    def put_in_order(self, batch: Batch, enqueued: Callable[[], None]) -> None:
        """Store one of several concurrent batches of a source, in the source's order. Raises as `put`.

        The source puts the next batch once `enqueued` is called or this call has ended. A channel that enqueues a
        batch and then waits long, as for a disk, calls `enqueued` before it waits, on any thread.
        """
        self.put(batch)

    @abstractmethod
    def reader(self, owner: RebalanceListener, *, group: str | None, member: str) -> Reader:
        """Return a consumer that calls `owner` back. None as `group` is the channel's own group.

        Each consumer group gets all events; its readers share the partitions. `member` names this consumer across
        restarts: host, agent and sink.
        """

    def flume_directories(self) -> FlumeDirectories | None:
        """Return the directories of Flume's file channel with the same options; None for other channels."""
        return None

    def load(self, batches: Callable[[], Iterator[Batch]] | None, finished: Callable[[int], None]) -> bool:
        """Import batches exactly once, while no agent uses the channel. Return False if nothing was left to import.

        If `batches` is None, only finish an import that was killed. `finished` must be idempotent. It is called once
        all batches are durable, with a number unique among the imports of the channel. An import that was killed
        before has stored nothing visible: repeat it with the same batches. Raises Retry if the channel is in use or
        has no space, and FlafkaError if this kind of channel cannot import.
        """
        raise FlafkaError(f"channel {self.name} cannot be loaded")

    def find_event(self, id: EventId, groups: Collection[str | None]) -> EventLocation | None:
        """Return the state of that event and the committed offsets of these groups, for `agent trace`.

        None if the id is not of this channel. Needs no `open` and has no side effects; the agent may run. Raises
        Retry for a transient failure.
        """
        return None


class OverflowConfig(Config):
    """Options of a channel that overflows to a file channel of the agent while its brokers are away."""

    section = "While brokers are away"
    overflow: str | None = option(
        None,
        name="overflow",
        description="Name of a channel `file` of this agent that nothing else uses. While brokers are away, events "
        "wait there, on one disk of this host; once the brokers are back, they go into this channel in their order. "
        "If unset, sources wait for the brokers.",
    )
    overflow_timeout: int = option(
        5,
        name="overflowTimeout",
        unit="s",
        gt=0,
        description="With `overflow`: time that a put may wait for brokers before the overflow begins, and time for "
        "which brokers must have acknowledged everything before it ends.",
    )
