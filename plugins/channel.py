"""Interfaces of channels, and of the readers that take their events."""

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
    """Directories of one file channel of Flume."""

    checkpoint: Path
    backup: Path | None
    """Directory of the second checkpoint."""
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
class Undecodable:
    """A record that is not in the channel's format."""

    id: EventId
    record: Record
    reason: str


@dataclass(frozen=True)
class PolledBatch:
    """The records of one partition in a range of offsets, decoded."""

    assignment: Assignment
    offsets: OffsetRange
    batch: Batch
    undecodable: tuple[Undecodable, ...] = ()
    replays: Mapping[EventId, int] = field(default_factory=dict)
    """The offset of the record that replays it, of each event in it that is replayed."""
    last_record: LastRecord = UNKNOWN_RECORD
    """The last record of the range; unknown in a channel that loses none by itself."""

    def fresh(self) -> Batch:
        """Return the events without the replayed ones, whose ids have offsets before the range."""
        origin = self.batch.origin
        if origin is None or not len(self.batch) or origin.offsets.min() >= self.offsets.start:
            return self.batch
        return self.batch.where(pa.array(origin.offsets >= self.offsets.start))


@dataclass(frozen=True)
class EventLocation:
    """State of one event in a channel, for `agent trace`."""

    place: Mapping[str, str | int]
    """By word, such as `topic`, `partition` and `offset`: where it lies, or lay."""
    polled: PolledBatch | None
    """Decoded record of the event, with ids of the same prefix as the requested id; None if the channel has no such
    record."""
    missing: str
    """Reason why the event is missing, as a sentence; empty if it is present or its record is undecodable."""
    committed: Mapping[str | None, Assignment]
    """By consumer group, as it was asked for: its committed offset in the event's partition."""


class RebalanceListener(Protocol):
    """Callbacks of a `Reader` to the runner for partitions assigned, revoked or lost; only within `Reader.take`."""

    def assigned(self, committed: Sequence[Assignment]) -> Sequence[Assignment]:
        """Take these partitions over, given the group's committed offsets; return where to start each.

        What is returned has the owner's own generation. It is committed before anything is taken, so that whoever has
        a partition next knows of that commit log.
        """

    def revoked(self, partitions: set[int]) -> None:
        """Flush and commit these partitions: last chance before another member gets them."""

    def lost(self, partitions: set[int]) -> None:
        """Drop uncommitted events of these partitions, which are lost already; commit nothing."""


class Reader(ABC):
    """One consumer of a channel. Used by one thread."""

    @abstractmethod
    def take(self, timeout: float) -> PolledBatch | None:
        """The next records, or None after `timeout` seconds without any. Calls the owner when partitions change."""

    @abstractmethod
    def commit(self, delivered: Collection[Assignment]) -> None:
        """Commit the next offsets to deliver; only of partitions owned now."""

    @abstractmethod
    def rewind(self, starts: Collection[Assignment]) -> None:
        """Go on taking from the next offsets of these."""

    def needs_commit(self) -> bool:
        """Return True if uncommitted events of this reader occupy room that the channel needs.

        A committing sink then commits all its events at once, whatever its batching options are.
        """
        return False

    def membership(self) -> Any:
        """Return the client's `consumer_group_metadata`, for a transaction; None if there is no consumer group.

        With this metadata, Kafka accepts offsets in a transaction only while the consumer is a member of its group.
        Raises Retry if the consumer is no longer a member.
        """
        return None

    def stop_at(self, ends: Mapping[int, int]) -> None:
        """Hand out, by partition, nothing from that offset on, and nothing of partitions that are not named. To be
        called before the first `take`."""
        raise FlafkaError(f"{type(self).__name__} cannot stop at an offset")

    @abstractmethod
    def close(self) -> None:
        """Leave the group. Commits nothing."""


class Channel(Component[C]):
    """Holds events between sources and sinks."""

    durable: ClassVar[bool] = False
    """True if stored events survive the agent. An agent that stops drains its other channels.

    A channel that does not lie in Kafka has the gauge `ChannelSize`: the events that it holds, those that are taken
    and not committed included. A drain waits until it is 0, and it is the lag of the channel's sinks.
    """

    @abstractmethod
    def put(self, batch: Batch) -> None:
        """Return when the whole batch is stored, to the channel's guarantee. Threads may call it at once.

        Blocks while the channel is full or unreachable. Raises Retry when `stopping` is set before it is stored:
        the batch may or may not be in the channel then.
        """

    def put_in_order(self, batch: Batch, enqueued: Callable[[], None]) -> None:
        """Put one of several concurrent batches of a source, which are to be read in the source's order.

        The source puts the next batch once `enqueued` is called or this call has ended. A channel that fixes the
        place of a batch and then waits long, as for a disk, calls `enqueued` before it waits, on any thread.
        """
        self.put(batch)

    @abstractmethod
    def reader(self, owner: RebalanceListener, *, group: str | None, member: str) -> Reader:
        """A consumer. Readers of one `group` share the events; each group sees all. None is the channel's own group.

        `member` names this consumer across restarts (host, agent and sink).
        """

    def flume_directories(self) -> FlumeDirectories | None:
        """Return where Flume's file channel with the same options keeps its files; None for other channels."""
        return None

    def load(self, batches: Callable[[], Iterator[Batch]] | None, finished: Callable[[int], None]) -> bool:
        """Store batches from elsewhere, exactly once, while no agent uses the channel; return False if none were due.

        Without `batches`, only end a load that was killed. `finished` is called, with a number that no other load of
        the channel has, once all batches are durable; what it does must be idempotent. A load that was killed before
        that stores nothing until it is called again with the same batches. Raises Retry if the channel is in use or
        has no room, and FlafkaError if this kind of channel cannot be loaded.
        """
        raise FlafkaError(f"channel {self.name} cannot be loaded")

    def find(self, id: EventId, groups: Collection[str | None]) -> EventLocation | None:
        """For `agent trace`: what it has of that event, and how far these groups are. None where the id is not of
        this channel. Needs no `open`, and changes nothing; the agent may run. Raises Retry.
        """
        return None


class OverflowConfig(Config):
    """Options of a channel whose events another channel of the agent may hold while its brokers are away."""

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
