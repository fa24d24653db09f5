"""Fetcher of one partition, after librdkafka's: offsets, end of the partition, resets.

Records are read from the log when they are polled. Before a topic is deleted or its records are removed, a random
part of them is put aside as fetched. Limits of fetch sizes are not modelled.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from confluent_kafka import OFFSET_BEGINNING, OFFSET_INVALID, OFFSET_STORED, KafkaError

from tests.simulator.kafka.brokers import in_background
from tests.simulator.kafka.messages import Entry, Message
from tests.simulator.kafka.topics import Partition

if TYPE_CHECKING:
    from tests.simulator.kafka.positions import Positions

LOOK_AGAIN_SECONDS = 0.6
"""A topic that was deleted and is there again is read within so long."""


class Fetch:
    """Fetcher of one partition."""

    __slots__ = (
        "consumer",
        "eof",
        "eof_due",
        "given",
        "number",
        "partition",
        "paused",
        "position",
        "prefetched",
        "queued",
        "reached",
        "stuck",
        "topic",
        "turn",
        "used",
    )

    def __init__(self, consumer: Positions, topic: str, number: int, offset: int) -> None:
        self.consumer, self.topic, self.number, self.given = consumer, topic, number, offset
        self.position = offset
        """Offset of the next record; a negative one is a logical offset of librdkafka."""
        self.used = OFFSET_INVALID
        """Offset that `Consumer.position` returns: behind the last message that was polled."""
        self.partition: Partition | None = None
        self.paused = self.stuck = self.queued = self.eof_due = False
        self.eof = -1
        """Offset at which the end of the partition was reported."""
        self.reached = -1
        self.turn = 0
        """Number of seeks: the timer of an earlier one is void."""
        self.prefetched: deque[Entry] = deque()
        self.attach()

    def attach(self) -> None:
        """Find the partition, or wait for the topic."""
        cluster = self.consumer.cluster
        partition = cluster.partition(self.topic, self.number)
        if partition is None:
            cluster.waiting.setdefault(self.topic, []).append(self)
            return
        self.partition = partition
        partition.watchers.append(self)
        self.arrived()

    def detach(self) -> None:
        """Stop fetching."""
        self.turn += 1
        self.stuck = True
        if self.partition is not None and self in self.partition.watchers:
            self.partition.watchers.remove(self)
        waiting = self.consumer.cluster.waiting.get(self.topic)
        if waiting and self in waiting:
            waiting.remove(self)

    def arrived(self) -> None:
        """There may be something to read."""
        if not self.queued and not self.stuck and not self.paused:
            self.queued = True
            self.consumer.ready.append(self)
        if self.queued:
            self.consumer.signal.fire()

    def prefetch(self) -> None:
        """Put aside the part of the log that was fetched, before its records are removed."""
        if self.partition is None or self.stuck or self.paused or self.position < 0:
            return
        if self.partition.low <= self.position <= self.partition.high:
            entries = list(self.partition.visible(self.position, read_committed=self.consumer.read_committed))
            entries = entries[: self.consumer.world.random.randint(0, len(entries))]
            if entries:
                self.prefetched.extend(entries)
                self.position = entries[-1].offset + 1
                self.arrived()

    def orphaned(self) -> None:
        """The topic is deleted."""
        self.prefetch()
        self.partition = None
        self.consumer.cluster.waiting.setdefault(self.topic, []).append(self)

    def found_again(self) -> None:
        """There is a topic of this name again: it is taken for the same."""
        turn = self.turn

        def look() -> None:
            if self.turn == turn and self.partition is None:
                self.attach()

        delay = 0.05 + LOOK_AGAIN_SECONDS * self.consumer.world.random.random()
        in_background(self.consumer.process, delay, look)

    def seek(self, offset: int) -> None:
        self.turn += 1
        self.prefetched.clear()
        self.position, self.eof, self.eof_due, self.reached = offset, -1, False, -1
        self.arrived()

    def pause(self, *, paused: bool) -> None:
        self.paused = paused
        if paused:
            if self.prefetched:
                self.position = self.prefetched[0].offset
                self.prefetched.clear()
        else:
            self.arrived()

    def next(self) -> Message | None:
        """Return the next message or error of this partition."""
        if self.prefetched:
            return self._record(self.prefetched.popleft())
        partition = self.partition
        cluster = self.consumer.cluster
        if partition is None or self.stuck or self.paused or cluster.away_until > cluster.world.now:
            return None
        if self.position < 0 and (message := self._begin(partition)) is not None:
            return message
        position = self.position
        entries = partition.entries
        if not partition.low <= position <= len(entries):
            text = "fetch failed due to requested offset not available on the broker: Broker: Offset out of range"
            message = self._reset(text)
            return message if message is not None else self.next()
        if self.consumer.read_committed:
            end = partition.stable
            while position < end:
                entry = entries[position]
                position += 1
                if entry is None or entry.control:
                    continue
                if entry.transaction is not None and entry.transaction.state == "aborted":
                    continue
                self.position = position
                return self._record(entry)
        else:
            end = len(entries)
            while position < end:
                entry = entries[position]
                position += 1
                if entry is not None and not entry.control:
                    self.position = position
                    return self._record(entry)
        self.position = max(position, self.position)
        return self._at_end()

    def _record(self, entry: Entry) -> Message:
        self.used = entry.offset + 1
        self.eof, self.eof_due, self.reached = -1, False, -1
        return Message(self.topic, self.number, entry.offset, entry)

    def _at_end(self) -> Message | None:
        consumer = self.consumer
        if not consumer.tells_end or self.eof == self.position:
            return None
        if self.eof_due and self.reached == self.position:
            self.eof, self.eof_due = self.position, False
            self.used = self.position
            text = f"Fetch from broker 1 reached end of partition at offset {self.position}"
            return Message(self.topic, self.number, self.position, None, KafkaError(KafkaError._PARTITION_EOF, text))
        if self.reached != self.position:
            self.reached, self.eof_due = self.position, False
            turn, position = self.turn, self.position

            def due() -> None:
                if self.turn == turn and self.position == position and not self.stuck:
                    self.eof_due = True
                    self.arrived()

            consumer.world.later(consumer.fetch_wait, due)
        return None

    def _begin(self, partition: Partition) -> Message | None:
        """From a word for an offset to an offset."""
        position = self.position
        if position in (OFFSET_STORED, OFFSET_INVALID):
            consumer = self.consumer
            group = consumer.cluster.groups.get(consumer.group_name)
            known = group.offsets.get((self.topic, self.number)) if group is not None else None
            if known is None:
                return self._reset("no previously committed offset available: Local: No offset stored", None)
            self.position = known.offset
        elif position == OFFSET_BEGINNING:
            self.position = partition.low
        else:
            self.position = self._end(partition)
        return None

    def _end(self, partition: Partition) -> int:
        return partition.stable if self.consumer.read_committed else partition.high

    def _reset(self, why: str, offset: int | None = -1) -> Message | None:
        """The position is not in the log: what `auto.offset.reset` says."""
        partition = self.partition
        assert partition is not None
        policy = self.consumer.reset
        if policy in ("earliest", "smallest", "beginning"):
            self.seek(partition.low)
            return None
        if policy in ("latest", "largest", "end"):
            self.seek(self._end(partition))
            return None
        self.stuck = True
        error = KafkaError(KafkaError._AUTO_OFFSET_RESET, why)
        return Message(self.topic, self.number, self.position if offset == -1 else None, None, error)
