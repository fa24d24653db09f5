"""What a consumer of the Kafka channel has received and not handed out yet."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from typing import cast

from confluent_kafka import Message

from flafka.plugins import PartitionClaim, Record
from flafka.plugins.kafka.consumer import weight


class Fetched:
    """The records of the partitions that one consumer has, in order, and where it stands in each.

    A record is kept, waits until the topic's id is confirmed, and waits then to be handed out. All of it is guarded
    by `changed`, which is notified when there is more to hand out.
    """

    def __init__(self, changed: threading.Condition) -> None:
        self._changed = changed
        self.bytes = 0
        """What all of it takes: see `weight`."""
        self.claims: dict[int, PartitionClaim] = {}
        """By partition, of those that the consumer has."""
        self._confirmed: dict[int, deque[Message]] = {}
        """By partition; who hands them out takes them without the lock."""
        self._asked: list[Message] = []
        """Received before the topic's id was asked for, which is not answered yet."""
        self._unasked: list[Message] = []
        self._next: dict[int, int] = {}
        """The offset to be received next of each partition."""
        self._leaders: dict[int, list[tuple[int, int]]] = {}
        """By partition: from which offset on what was received had which leader epoch, in order."""
        self._seeks: dict[int, int] = {}
        """By partition: where it is read from once the client was told."""
        self._until: Mapping[int, int] | None = None

    # --- which partitions there are, and where they begin and end

    def add(self, starts: Mapping[PartitionClaim, int], leader_epochs: Mapping[PartitionClaim, int]) -> None:
        """Partitions that the consumer has from now on, and the leader epochs of the records before, where known."""
        with self._changed:
            for claim, offset in starts.items():
                partition = claim.partition
                self.claims[partition], self._confirmed[partition] = claim, deque()
                self._next[partition] = offset
                self._leaders[partition] = [(offset - 1, leader_epochs[claim])] if claim in leader_epochs else []

    def remove(self, partitions: Collection[int]) -> None:
        """Partitions that the consumer does not have any more, with all that waits of them."""
        with self._changed:
            for partition in partitions:
                self._forget(partition)
                for known in (self.claims, self._confirmed, self._next, self._leaders, self._seeks):
                    known.pop(partition, None)

    def rewind(self, positions: Mapping[int, int]) -> None:
        """Drop what waits of these partitions; they are received from there on once the client was told."""
        with self._changed:
            for partition in positions:
                self._forget(partition)
            seeks = {p: offset for p, offset in positions.items() if p in self.claims}
            self._seeks.update(seeks)
            self._next.update(seeks)

    def seeks(self) -> Mapping[int, int]:
        """What the client is to be told since this was asked last."""
        with self._changed:
            seeks, self._seeks = self._seeks, {}
        return seeks

    def stop_at(self, ends: Mapping[int, int]) -> None:
        """From there on nothing is kept, and nothing of partitions that are not among them."""
        self._until = dict(ends)

    def bounded(self, partitions: Collection[int]) -> Collection[int]:
        """Those of which something is kept although not all is."""
        return partitions & (self._until or {}).keys()

    # --- records come, are confirmed, and go

    def keep(self, message: Message) -> bool:
        """Keep a record, or learn where a partition ends, where that is the message. False for what is not wanted, as
        `stop_at` says."""
        partition, offset = cast("int", message.partition()), cast("int", message.offset())
        with self._changed:
            # What was fetched before a pending seek lies past it: handing it out would skip events.
            if partition not in self.claims or partition in self._seeks:
                return True
            if self._until is not None and offset >= self._until.get(partition, 0):
                return False
            if message.error() is not None:
                self._next[partition] = offset  # behind the last record, where that is the end of a transaction
                return True
            self._next[partition] = offset + 1
            leader_epoch, known = message.leader_epoch(), self._leaders[partition]
            if leader_epoch is not None and (not known or known[-1][1] < leader_epoch):
                known.append((offset, leader_epoch))
            self._unasked.append(message)
            self.bytes += weight(message)
        return True

    @property
    def unasked(self) -> bool:
        """Whether something waits for the topic's id to be asked for."""
        return bool(self._unasked)

    def asked(self) -> None:
        """The topic's id is asked for now. The answer to the question before has come."""
        with self._changed:
            self._asked, self._unasked = self._unasked, []

    def answered(self, *, confirmed: bool) -> None:
        """The topic is the one that the claims have; or there was no answer, and what waits waits for the next."""
        with self._changed:
            if confirmed:
                for message in self._asked:
                    self._confirmed[cast("int", message.partition())].append(message)
                self._changed.notify_all()
            else:
                self._unasked = self._asked + self._unasked
            self._asked = []

    @property
    def ready(self) -> bool:
        """Whether something can be handed out."""
        return any(self._confirmed.values())

    def hand_out(self) -> tuple[PartitionClaim, Iterator[Record]] | None:
        """The records of the partition whose turn it is, which are handed out one by one as they are asked for."""
        with self._changed:
            partition = next((p for p, queue in self._confirmed.items() if queue), None)
            if partition is None:
                return None
            # Round robin: the partition served goes to the end.
            queue = self._confirmed[partition] = self._confirmed.pop(partition)
            return self.claims[partition], self._records(queue)

    def _records(self, queue: deque[Message]) -> Iterator[Record]:
        size = 0
        try:
            for message in _emptied(queue):
                size += weight(message)
                yield Record(
                    cast("int", message.offset()),
                    message.timestamp()[1],
                    message.key(),
                    message.value(),
                    cast("list[tuple[str, bytes | None]]", message.headers() or ()),
                )
        finally:
            with self._changed:
                self.bytes -= size

    def _forget(self, partition: int) -> None:
        self.bytes -= sum(map(weight, _emptied(self._confirmed.get(partition, deque()))))
        for waiting in (self._asked, self._unasked):
            dropped = [message for message in waiting if message.partition() == partition]
            if dropped:
                self.bytes -= sum(map(weight, dropped))
                waiting[:] = [message for message in waiting if message.partition() != partition]

    # --- where each partition stands

    def positions(self) -> Mapping[int, int]:
        """The offset to be received next of each partition."""
        with self._changed:
            return dict(self._next)

    def firsts(self) -> Mapping[int, int]:
        """The first record of each partition that was not handed out, which may not have been received yet."""
        with self._changed:
            firsts = dict(self._next)
            for message in (*self._unasked, *self._asked, *itertools.chain(*self._confirmed.values())):
                partition, offset = cast("int", message.partition()), cast("int", message.offset())
                firsts[partition] = min(firsts[partition], offset)
            return firsts

    def leader_epoch(self, partition: int, end: int) -> int:
        """That of the latest record before `end`; negative where it is not known."""
        with self._changed:
            return max((epoch for first, epoch in self._leaders.get(partition, ()) if first < end), default=-1)


def _emptied(queue: deque[Message]) -> Iterator[Message]:
    """Its messages, each taken out. Should two threads empty it, each message is one thread's."""
    with suppress(IndexError):
        while True:
            yield queue.popleft()
