"""What a channel is, and how its events are taken out again."""

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
        """Its events without those that are replayed, whose ids say that they lay before it."""
        origin = self.batch.origin
        if origin is None or not len(self.batch) or origin.offsets.min() >= self.offsets.start:
            return self.batch
        return self.batch.where(pa.array(origin.offsets >= self.offsets.start))


@dataclass(frozen=True)
class Whereabouts:
    """What a channel has of one event, for `agent trace`."""

    place: Mapping[str, str | int]
    """By word, such as `topic`, `partition` and `offset`: where it lies, or lay."""
    polled: PolledBatch | None
    """Its record, decoded, with the ids that begin as the one asked for; None where the channel does not have it."""
    missing: str
    """Why the event is not there, in a sentence; empty where it is, or its record is undecodable."""
    committed: Mapping[str | None, Assignment]
    """By consumer group, as it was asked for: its committed offset in the event's partition."""


class RebalanceListener(Protocol):
    """The runner, as a `Reader` calls it when partitions come and go; always within `Reader.take`."""

    def assigned(self, committed: Sequence[Assignment]) -> Sequence[Assignment]:
        """Take these partitions over, given the group's committed offsets; return where to start each.

        What is returned has the owner's own generation. It is committed before anything is taken, so that whoever has
        a partition next knows of that commit log.
        """

    def revoked(self, partitions: set[int]) -> None:
        """These partitions go to another member now: last chance to flush and commit them."""

    def lost(self, partitions: set[int]) -> None:
        """These partitions are gone already: drop what is not committed, commit nothing."""


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

    def pressed(self) -> bool:
        """Whether what was taken here and not committed takes room that the channel needs: a committing sink then
        commits all that it has, whatever its own options would have it wait for.
        """
        return False

    def membership(self) -> Any:
        """What has Kafka take offsets into a transaction only while this is a member of its group, as the client's
        `consumer_group_metadata` does; None where there is no such group.

        Raises Retry where it is no member any more.
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
    """Whether what it holds survives the agent. The stop of an agent drains the others.

    A channel that does not lie in Kafka has the gauge `ChannelSize`: the events that it holds, those that are taken
    and not committed included. A drain waits until it is 0, and it is the lag of the channel's sinks.
    """

    @abstractmethod
    def put(self, batch: Batch) -> None:
        """Return when the whole batch is stored, to the channel's guarantee. Threads may call it at once.

        Blocks while the channel is full or unreachable. Raises Retry when `stopping` is set before it is stored:
        the batch may or may not be in the channel then.
        """

    def put_in_turn(self, batch: Batch, placed: Callable[[], None]) -> None:
        """`put`, of one of several batches that a source has on their way at once, and in whose order they are to be
        read. The next one is put when `placed` is called, or this one has ended: a channel that waits long after it
        has given a batch its place, such as for a disk, calls it before it waits, on any thread.
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

    def find(self, id: EventId, groups: Collection[str | None]) -> Whereabouts | None:
        """For `agent trace`: what it has of that event, and how far these groups are. None where the id is not of
        this channel. Needs no `open`, and changes nothing; the agent may run. Raises Retry.
        """
        return None
