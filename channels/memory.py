"""The memory channel: fast, and gone with the process."""

from __future__ import annotations

import threading
import time
import uuid
from collections import deque
from collections.abc import Collection, Mapping
from types import MappingProxyType

import pydantic

from flafka.channels.bounded import BoundedConfig
from flafka.plugins import (
    Assignment,
    Batch,
    Channel,
    CompatibilityNote,
    Generation,
    OffsetRange,
    Origin,
    PolledBatch,
    Reader,
    RebalanceListener,
    Retry,
    TopicPartition,
    option,
)

NO_LIMIT = 2**63 - 1
"""Bytes; more than there are."""
MOST_TAKEN = 256 << 20
"""Bytes. A sink that has taken so much and not committed it, such as `hdfs` for a large file, is to commit."""


class MemoryConfig(BoundedConfig):
    """Options of the memory channel."""

    options_without_effect = MappingProxyType(
        {
            "keep-alive": "a put waits until there is room",
            "byteCapacityBufferPercentage": "byteCapacity counts headers as well",
        }
    )
    byte_capacity: int = option(
        64 << 20,
        name="byteCapacity",
        unit="bytes",
        description="Maximum size of the events that wait in the channel, headers included. Sources wait while it is "
        "full. 0 or less sets no limit.",
    )

    @pydantic.field_validator("byte_capacity")
    @classmethod
    def _without_limit(cls, value: int) -> int:
        return value if value > 0 else NO_LIMIT


class MemoryChannel(Channel[MemoryConfig]):
    """Holds events in the memory of the agent: nothing is lost while the agent lives, and all of them when it dies.

    A full channel blocks its sources instead of failing them. Sinks on it compete for its events. What a sink has
    taken and not committed, such as `hdfs` for a large file, takes none of its room, but is committed at 256 MiB.
    """

    type_name = "memory"
    aliases = ("org.apache.flume.channel.MemoryChannel", "org.apache.flume.channel.PseudoTxnMemoryChannel")
    compatibility_notes = (
        CompatibilityNote(
            flume="capacity 100 by default",
            here="10,000; it only limits how many events wait",
        ),
        CompatibilityNote(
            flume="text that is not a number becomes 100",
            here="an error; 0 or less is the default, as in Flume",
        ),
    )

    def __init__(self, config: MemoryConfig, name: str = "") -> None:
        super().__init__(config, name)
        self.run = uuid.uuid4().hex
        """Makes offsets of one run incomparable to those of another."""
        self._changed = threading.Condition()
        self._waiting: deque[tuple[int, Batch]] = deque()  # (time of arrival in ms, events)
        self._events = self._bytes = 0  # held, taken but uncommitted ones included
        self._taken: dict[int, tuple[int, int]] = {}  # of them, by partition: events and bytes that are taken
        self._readers = 0
        self.metrics.set("ChannelSize", 0)

    def put(self, batch: Batch) -> None:
        """Hold these events; waits while there is no room."""
        config = self.config
        self.metrics.add("EventPutAttemptCount", len(batch))
        for piece in batch.split(min(config.transaction_capacity, config.capacity), config.byte_capacity):
            with self._changed:
                while not self._has_room(piece):
                    if self.stopping.is_set():
                        raise Retry(f"channel {self.name} is full and the agent is stopping")
                    self._changed.wait(0.1)
                self._waiting.append((int(time.time() * 1000), piece))
                self._count(len(piece), piece.nbytes)
            self.metrics.add("EventPutSuccessCount", len(piece))

    def reader(self, owner: RebalanceListener, *, group: str | None, member: str) -> Reader:
        """A consumer; each has a partition of its own, and all compete."""
        with self._changed:
            self._readers += 1
            partition = self._readers
        return _MemoryReader(self, owner, partition, member)

    def _has_room(self, piece: Batch) -> bool:
        config, (events, size) = self.config, self._wait_to_be_taken()
        fits = events + len(piece) <= config.capacity and size + piece.nbytes <= config.byte_capacity
        return fits or not events

    def _wait_to_be_taken(self) -> tuple[int, int]:
        """Events and bytes."""
        taken = self._taken.values()
        return self._events - sum(events for events, _ in taken), self._bytes - sum(size for _, size in taken)

    def needs_commit(self) -> bool:
        """Whether what is taken is too much to be held."""
        return sum(size for _, size in self._taken.values()) >= MOST_TAKEN

    def _count(self, events: int, size: int, taken: Mapping[int, tuple[int, int]] = MappingProxyType({})) -> None:
        """So much more is held; `taken` is what is new of it."""
        self._events += events
        self._bytes += size
        self._taken.update(taken)
        self.metrics.set("ChannelCapacity", self.config.capacity)
        self.metrics.set("ChannelSize", self._events)
        self.metrics.set("ChannelFillPercentage", 100 * self._wait_to_be_taken()[0] / self.config.capacity)
        self._changed.notify_all()


class _MemoryReader(Reader):
    def __init__(self, channel: MemoryChannel, owner: RebalanceListener, partition: int, member: str) -> None:
        self._channel, self._owner, self._partition = channel, owner, partition
        self._assignment = Assignment(
            TopicPartition("memory", channel.name, channel.run, partition), member, Generation()
        )
        self._assigned = False
        self._offset = 0
        self._held: deque[tuple[int, int, Batch]] = deque()  # taken, not committed: (offset, arrival, events)
        self._again: deque[tuple[int, int, Batch]] = deque()  # the part of them to offer again
        self._events = self._bytes = 0  # of what is held, without that part

    def take(self, timeout: float) -> PolledBatch | None:
        if not self._assigned:
            self._assigned = True
            (self._assignment,) = self._owner.assigned([self._assignment])
        offset, arrival, batch = self._again.popleft() if self._again else self._next(timeout)
        if batch is None:
            return None
        self._count(len(batch), batch.nbytes)
        self._channel.metrics.add("EventTakeAttemptCount", len(batch))
        topic = f"{self._channel.name}.{self._channel.run}"  # what a store keeps by id must not be overwritten later
        origin = Origin.of_record(topic, self._partition, offset, arrival, len(batch))
        return PolledBatch(self._assignment, OffsetRange(offset, offset + 1), Batch(batch.records, origin))

    def _next(self, timeout: float) -> tuple[int, int, Batch | None]:
        channel = self._channel
        with channel._changed:
            if not channel._waiting:
                channel._changed.wait(timeout)
            if not channel._waiting:
                return 0, 0, None
            arrival, batch = channel._waiting.popleft()
        held = (self._offset, arrival, batch)
        self._offset += 1
        self._held.append(held)
        return held

    def commit(self, delivered: Collection[Assignment]) -> None:
        end = max((one.next_offset or 0 for one in delivered if one.partition == self._partition), default=0)
        while self._again and self._again[0][0] < end:
            _, _, batch = self._again.popleft()
            self._count(len(batch), batch.nbytes)
        events = size = 0
        while self._held and self._held[0][0] < end:
            _, _, batch = self._held.popleft()
            events, size = events + len(batch), size + batch.nbytes
        self._count(-events, -size, gone=True)
        self._channel.metrics.add("EventTakeSuccessCount", events)

    def rewind(self, starts: Collection[Assignment]) -> None:
        for one in starts:
            if one.partition == self._partition:
                self._assignment, start = one, one.next_offset or 0
                self._again = deque(held for held in self._held if held[0] >= start)
                kept = [batch for offset, _, batch in self._held if offset < start]
                self._events, self._bytes = sum(map(len, kept)), sum(batch.nbytes for batch in kept)
                self._count(0, 0)

    def _count(self, events: int, size: int, *, gone: bool = False) -> None:
        """So much more is taken; less, and `gone` from the channel, where it is committed."""
        self._events, self._bytes = self._events + events, self._bytes + size
        with self._channel._changed:
            taken = {self._partition: (self._events, self._bytes)}
            self._channel._count(events if gone else 0, size if gone else 0, taken)

    def needs_commit(self) -> bool:
        return bool(self._events) and self._channel.needs_commit()

    def close(self) -> None:
        """Give back what is not committed, for the next reader."""
        with self._channel._changed:
            self._channel._waiting.extendleft((arrival, batch) for _, arrival, batch in reversed(self._held))
            self._held.clear()
            self._again.clear()
            self._channel._taken.pop(self._partition, None)
            self._channel._changed.notify_all()
