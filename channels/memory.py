"""Memory channel: fast, but its events are lost with the process."""

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

UNLIMITED_BYTES = 2**63 - 1
MAX_UNCOMMITTED_BYTES = 256 << 20
"""Size of taken events at which a sink must commit, such as `hdfs` with a large open file."""


class MemoryConfig(BoundedConfig):
    """Options of the memory channel."""

    options_without_effect = MappingProxyType(
        {
            "keep-alive": "a put waits until there is space",
            "byteCapacityBufferPercentage": "byteCapacity counts headers as well",
        }
    )
    byte_capacity: int = option(
        64 << 20,
        name="byteCapacity",
        unit="bytes",
        description="Maximum size of the untaken events in the channel, including headers. Sources wait while it is "
        "full. 0 or less sets no limit.",
    )

    @pydantic.field_validator("byte_capacity")
    @classmethod
    def _unlimited(cls, value: int) -> int:
        return value if value > 0 else UNLIMITED_BYTES


class MemoryChannel(Channel[MemoryConfig]):
    """Stores events in the memory of the agent: no event is lost while the agent runs, but all are if it is killed.

    A full channel blocks its sources instead of failing them. Its sinks compete for the events. Events that `hdfs`
    has taken for an open file do not count for the capacity; the sink commits when they reach 256 MiB.
    """

    type_name = "memory"
    aliases = ("org.apache.flume.channel.MemoryChannel", "org.apache.flume.channel.PseudoTxnMemoryChannel")
    compatibility_notes = (
        CompatibilityNote(
            flume="capacity 100 by default",
            here="10,000; the limit applies to untaken events only",
        ),
        CompatibilityNote(
            flume="text that is not a number becomes 100",
            here="an error; 0 or less is the default, as in Flume",
        ),
    )

    def __init__(self, config: MemoryConfig, name: str = "") -> None:
        super().__init__(config, name)
        self.run = uuid.uuid4().hex
        """Random id of this process. Part of the topic id, since offsets of two runs are not comparable."""
        self._changed = threading.Condition()
        self._queue: deque[tuple[int, Batch]] = deque()
        """Untaken batches with their arrival time in ms since the epoch."""
        self._events = self._bytes = 0
        """Number and size of the events in the channel, including taken but uncommitted ones."""
        self._taken: dict[int, tuple[int, int]] = {}
        """Number and size of the taken events, by partition."""
        self._readers = 0
        self.metrics.set("ChannelSize", 0)

    def put(self, batch: Batch) -> None:
        """Put events into memory, in parts of at most transactionCapacity. Block while the channel is full.

        A channel without untaken events accepts a part of any size. Raises Retry if the agent stops while it is full;
        earlier parts are stored then.
        """
        config = self.config
        self.metrics.add("EventPutAttemptCount", len(batch))
        for part in batch.split(min(config.transaction_capacity, config.capacity), config.byte_capacity):
            with self._changed:
                while not self._has_room(part):
                    if self.stopping.is_set():
                        raise Retry(f"channel {self.name} is full and the agent is stopping")
                    self._changed.wait(0.1)
                self._queue.append((int(time.time() * 1000), part))
                self._count(len(part), part.nbytes)
            self.metrics.add("EventPutSuccessCount", len(part))

    def reader(self, owner: RebalanceListener, *, group: str | None, member: str) -> Reader:
        """Return a new reader with its own partition. All readers compete for the events; `group` has no effect."""
        with self._changed:
            self._readers += 1
            partition = self._readers
        return _MemoryReader(self, owner, partition, member)

    def _has_room(self, part: Batch) -> bool:
        """Return True if the untaken events leave room for this part, or if there are none."""
        config, (events, size) = self.config, self._untaken()
        fits = events + len(part) <= config.capacity and size + part.nbytes <= config.byte_capacity
        return fits or not events

    def _untaken(self) -> tuple[int, int]:
        """Return the number and the size in bytes of the untaken events."""
        taken = self._taken.values()
        return self._events - sum(events for events, _ in taken), self._bytes - sum(size for _, size in taken)

    def needs_commit(self) -> bool:
        """Return True if the events that readers have taken have at least `MAX_UNCOMMITTED_BYTES`."""
        return sum(size for _, size in self._taken.values()) >= MAX_UNCOMMITTED_BYTES

    def _count(self, events: int, size: int, taken: Mapping[int, tuple[int, int]] = MappingProxyType({})) -> None:
        """Add to the number and the size of the events in the channel, which may be negative, and set the metrics.

        `taken` replaces number and size of the taken events of its partitions.
        """
        self._events += events
        self._bytes += size
        self._taken.update(taken)
        self.metrics.set("ChannelCapacity", self.config.capacity)
        self.metrics.set("ChannelSize", self._events)
        self.metrics.set("ChannelFillPercentage", 100 * self._untaken()[0] / self.config.capacity)
        self._changed.notify_all()


class _MemoryReader(Reader):
    """Reader of a memory channel, where each taken batch has the next offset of the reader's partition."""

    def __init__(self, channel: MemoryChannel, listener: RebalanceListener, partition: int, member: str) -> None:
        self._channel, self._listener, self._partition = channel, listener, partition
        self._assignment = Assignment(
            TopicPartition("memory", channel.name, channel.run, partition), member, Generation()
        )
        self._assigned = False
        self._offset = 0
        self._uncommitted: deque[tuple[int, int, Batch]] = deque()
        """Taken but uncommitted batches, with offset and arrival time."""
        self._redeliveries: deque[tuple[int, int, Batch]] = deque()
        """Uncommitted batches to take again after a rewind."""
        self._events = self._bytes = 0
        """Number and size of the uncommitted events, without those in `_redeliveries`."""

    def take(self, timeout: float) -> PolledBatch | None:
        if not self._assigned:
            self._assigned = True
            (self._assignment,) = self._listener.assigned([self._assignment])
        offset, arrival, batch = self._redeliveries.popleft() if self._redeliveries else self._next(timeout)
        if batch is None:
            return None
        self._count(len(batch), batch.nbytes)
        self._channel.metrics.add("EventTakeAttemptCount", len(batch))
        # With the run, so that a later run does not overwrite documents that a store keeps by event id.
        topic = f"{self._channel.name}.{self._channel.run}"
        origin = Origin.of_record(topic, self._partition, offset, arrival, len(batch))
        return PolledBatch(self._assignment, OffsetRange(offset, offset + 1), batch.with_origin(origin))

    def _next(self, timeout: float) -> tuple[int, int, Batch | None]:
        """Return offset, arrival time and batch of the next untaken batch; no batch after `timeout` seconds."""
        channel = self._channel
        with channel._changed:
            if not channel._queue:
                channel._changed.wait(timeout)
            if not channel._queue:
                return 0, 0, None
            arrival, batch = channel._queue.popleft()
        taken = (self._offset, arrival, batch)
        self._offset += 1
        self._uncommitted.append(taken)
        return taken

    def commit(self, delivered: Collection[Assignment]) -> None:
        end = max((a.next_offset or 0 for a in delivered if a.partition == self._partition), default=0)
        while self._redeliveries and self._redeliveries[0][0] < end:
            _, _, batch = self._redeliveries.popleft()
            self._count(len(batch), batch.nbytes)
        events = size = 0
        while self._uncommitted and self._uncommitted[0][0] < end:
            _, _, batch = self._uncommitted.popleft()
            events, size = events + len(batch), size + batch.nbytes
        self._count(-events, -size, is_committed=True)
        self._channel.metrics.add("EventTakeSuccessCount", events)

    def rewind(self, starts: Collection[Assignment]) -> None:
        for assignment in starts:
            if assignment.partition == self._partition:
                self._assignment, start = assignment, assignment.next_offset or 0
                self._redeliveries = deque(taken for taken in self._uncommitted if taken[0] >= start)
                remaining = [batch for offset, _, batch in self._uncommitted if offset < start]
                self._events, self._bytes = sum(map(len, remaining)), sum(batch.nbytes for batch in remaining)
                self._count(0, 0)

    def _count(self, events: int, size: int, *, is_committed: bool = False) -> None:
        """Add to the number and size of the reader's taken events, which may be negative, and update the channel.

        With `is_committed`, they are also added to the events in the channel.
        """
        self._events, self._bytes = self._events + events, self._bytes + size
        with self._channel._changed:
            taken = {self._partition: (self._events, self._bytes)}
            self._channel._count(events if is_committed else 0, size if is_committed else 0, taken)

    def needs_commit(self) -> bool:
        return bool(self._events) and self._channel.needs_commit()

    def close(self) -> None:
        """Return the uncommitted events to the head of the channel's queue, for other readers."""
        with self._channel._changed:
            self._channel._queue.extendleft((arrival, batch) for _, arrival, batch in reversed(self._uncommitted))
            self._uncommitted.clear()
            self._redeliveries.clear()
            self._channel._taken.pop(self._partition, None)
            self._channel._changed.notify_all()
