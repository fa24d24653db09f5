"""Loss of records by brokers, found by the leader epoch or the time of the record before an offset."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from flafka.plugins.errors import FlafkaError, Retry
from flafka.plugins.kafka.admin import watermarks
from flafka.plugins.kafka.clients import REQUEST_SECONDS, Role, new_consumer
from flafka.plugins.kafka.offsets import RecordsLost, truncated
from flafka.plugins.partitions import UNKNOWN_RECORD, Assignment

ONE_RECORD = {"isolation.level": "read_uncommitted", "fetch.message.max.bytes": 4096, "fetch.wait.max.ms": 10}
"""For a look at single records: the brokers send at least one, whatever its size."""


class PartitionLog:
    """One partition as the brokers have it now, seen by a consumer that is nobody's otherwise."""

    def __init__(self, consumer: Consumer, assignment: Assignment) -> None:
        self._consumer, self._topic, self._partition = consumer, assignment.topic, assignment.partition

    def truncated(self, end: int, leader_epoch: int) -> int | None:
        """Return the first offset of the records before offset `end` that the brokers have lost; None if none is.

        The latest record that was read there had that leader epoch. A replica that was behind and became leader
        opens a later epoch at its own end. So records of a later epoch before offset `end` are not those that
        were read. Raises Retry, and KafkaException.
        """
        at = TopicPartition(self._topic, self._partition)
        low, high = watermarks(self._consumer, at, REQUEST_SECONDS)
        after, before, step = end, end - 1, 1  # usually the record just before is the one
        while before >= low and self._is_later(before, end, leader_epoch):
            after, before, step = before, before - step, step * 2
        before = max(before, low - 1)
        while after - before > 1:
            middle = (before + after) // 2
            if self._is_later(middle, end, leader_epoch):
                after = middle
            else:
                before = middle
        found = self._first(after) if after < end <= high else None
        lost = high < end or (found is not None and found.offset() < end)
        return after if lost else None

    def is_other(self, offset: int, timestamp: int) -> bool:
        """Return True if a record with another timestamp has that offset now. Raises as `truncated`."""
        found = self._first(offset)
        return found is not None and found.offset() == offset and found.timestamp()[1] != timestamp

    def leader_epoch(self, offset: int) -> int:
        """Return the leader epoch of the record at that offset; -1 where there is none. Raises as `truncated`."""
        found = self._first(offset)
        return found.leader_epoch() if found is not None and found.offset() == offset else -1

    def low(self) -> int:
        """Return the offset of the oldest record. Raises as `truncated`."""
        return watermarks(self._consumer, TopicPartition(self._topic, self._partition), REQUEST_SECONDS)[0]

    def _is_later(self, offset: int, end: int, leader_epoch: int) -> bool:
        """Return True if the next record from that offset on is of a later epoch, or not before offset `end`."""
        found = self._first(offset)
        return found is None or found.offset() >= end or found.leader_epoch() > leader_epoch

    def _first(self, offset: int) -> Any:
        """The first record from there on; None where there is none."""
        self._consumer.assign([TopicPartition(self._topic, self._partition, offset)])
        message = self._consumer.poll(REQUEST_SECONDS)
        if message is None:
            raise Retry(f"{self._topic}-{self._partition} does not answer")
        error = message.error()
        if error is None:
            return message
        if error.code() in (KafkaError._PARTITION_EOF, KafkaError._AUTO_OFFSET_RESET):
            return None
        raise KafkaException(error)


def truncations(
    role: Role, properties: Mapping[str, Any], starts: Iterable[Assignment], committed: Mapping[int, Assignment]
) -> Iterator[FlafkaError]:
    """Yield an error for each partition before whose next offset brokers have lost a record.

    Another record may have its offset now. `committed`, by partition, are the group's committed offsets, which are
    set back with the brokers. Raises as `PartitionLog.truncated` does.
    """
    known = [one for one in starts if one.next_offset and one.last_record != UNKNOWN_RECORD]
    if not known:
        return
    with contextlib.closing(new_consumer(role, {**properties, **ONE_RECORD})) as consumer:
        for one in known:
            log, offset, last, start = PartitionLog(consumer, one), one.next_offset or 0, one.last_record, None
            if last.leader_epoch >= 0:
                start = log.truncated(offset, last.leader_epoch)
            if start is not None:
                yield truncated(one, start)
            elif last.timestamp >= 0 and not one.replay and log.is_other(offset - 1, last.timestamp):
                # Brokers that were stopped for a backup begin the same leader epoch twice.
                low, left = log.low(), committed[one.partition].next_offset
                yield RecordsLost(one, f"{left if left is not None and left < offset else low}+", low)


def with_leader_epochs(
    role: Role, properties: Mapping[str, Any], starts: Collection[Assignment]
) -> dict[int, Assignment]:
    """Return these, by partition, with the leader epoch that brokers have for the record before each next offset.

    Partitions of which brokers do not tell it now are left out.
    """
    found: dict[int, Assignment] = {}
    if not starts:
        return found
    with (
        contextlib.closing(new_consumer(role, {**properties, **ONE_RECORD})) as consumer,
        contextlib.suppress(KafkaException, Retry),  # not worth a failure: the partition is read without it
    ):
        for start in starts:
            epoch = PartitionLog(consumer, start).leader_epoch((start.next_offset or 0) - 1)
            if epoch >= 0:
                last = start.last_record._replace(leader_epoch=epoch)
                found[start.partition] = start.at(start.next_offset, last)
    return found
