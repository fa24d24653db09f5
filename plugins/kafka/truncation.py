"""Detection of records that brokers have lost, by leader epoch or timestamp of the record before an offset."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from flafka.plugins.errors import FlafkaError, Retry
from flafka.plugins.kafka.admin import watermarks
from flafka.plugins.kafka.clients import REQUEST_SECONDS, new_consumer
from flafka.plugins.kafka.offsets import RecordsLost, truncation_error
from flafka.plugins.kafka.rights import Role
from flafka.plugins.partitions import UNKNOWN_RECORD, Assignment

SINGLE_RECORD_FETCH = {
    "isolation.level": "read_uncommitted",
    "fetch.message.max.bytes": 4096,
    "fetch.wait.max.ms": 10,
}
"""Properties of a consumer that fetches single records: brokers send at least one record, whatever its size."""


class PartitionLog:
    """Present records of one partition, read by a consumer without other uses. Not thread-safe."""

    def __init__(self, consumer: Consumer, assignment: Assignment) -> None:
        self._consumer, self._topic, self._partition = consumer, assignment.topic, assignment.partition

    def truncated(self, end: int, leader_epoch: int) -> int | None:
        """Return the offset of the first lost record before offset `end`; None if no record is lost.

        `leader_epoch` is that of the record read before `end`. A replica that was behind starts a later epoch at its
        own end when it becomes leader. So records of a later epoch before `end` are not the records that were read.
        Raises Retry, and KafkaException.
        """
        partition = TopicPartition(self._topic, self._partition)
        low, high = watermarks(self._consumer, partition, REQUEST_SECONDS)
        after, before, step = end, end - 1, 1  # first the record just before, which usually decides
        while before >= low and self._is_later(before, end, leader_epoch):
            after, before, step = before, before - step, step * 2
        before = max(before, low - 1)
        while after - before > 1:
            middle = (before + after) // 2
            if self._is_later(middle, end, leader_epoch):
                after = middle
            else:
                before = middle
        message = self._first(after) if after < end <= high else None
        is_lost = high < end or (message is not None and message.offset() < end)
        return after if is_lost else None

    def is_other(self, offset: int, timestamp: int) -> bool:
        """Return True if there is a record at that offset with another timestamp. Raises as `truncated`."""
        message = self._first(offset)
        return message is not None and message.offset() == offset and message.timestamp()[1] != timestamp

    def leader_epoch(self, offset: int) -> int:
        """Return the leader epoch of the record at that offset; -1 without a record. Raises as `truncated`."""
        message = self._first(offset)
        return message.leader_epoch() if message is not None and message.offset() == offset else -1

    def low(self) -> int:
        """Return the offset of the oldest record. Raises as `truncated`."""
        return watermarks(self._consumer, TopicPartition(self._topic, self._partition), REQUEST_SECONDS)[0]

    def _is_later(self, offset: int, end: int, leader_epoch: int) -> bool:
        """Return True if the first record from that offset on is of a later epoch, or is not before offset `end`."""
        message = self._first(offset)
        return message is None or message.offset() >= end or message.leader_epoch() > leader_epoch

    def _first(self, offset: int) -> Any:
        """Return the first record from that offset on; None if there is none. Raises as `truncated`."""
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


def find_truncations(
    role: Role, properties: Mapping[str, Any], starts: Iterable[Assignment], committed: Mapping[int, Assignment]
) -> Iterator[FlafkaError]:
    """Yield an error for each partition whose record before the next offset is lost, even if another has its offset.

    `committed` are the group's committed offsets by partition, which a backup of the brokers may have set back.
    Raises as `PartitionLog.truncated`.
    """
    verifiable = [
        assignment for assignment in starts if assignment.next_offset and assignment.last_record != UNKNOWN_RECORD
    ]
    if not verifiable:
        return
    with contextlib.closing(new_consumer(role, {**properties, **SINGLE_RECORD_FETCH})) as consumer:
        for assignment in verifiable:
            log, offset, last, start = (
                PartitionLog(consumer, assignment),
                assignment.next_offset or 0,
                assignment.last_record,
                None,
            )
            if last.leader_epoch >= 0:
                start = log.truncated(offset, last.leader_epoch)
            if start is not None:
                yield truncation_error(assignment, start)
            elif last.timestamp >= 0 and not assignment.replay and log.is_other(offset - 1, last.timestamp):
                # Brokers that are restored from a backup use the same leader epoch twice.
                low, stored = log.low(), committed[assignment.partition].next_offset
                yield RecordsLost(assignment, f"{stored if stored is not None and stored < offset else low}+", low)


def with_leader_epochs(
    role: Role, properties: Mapping[str, Any], starts: Collection[Assignment]
) -> dict[int, Assignment]:
    """Return these assignments, by partition, with the leader epoch of the record before each next offset.

    Partitions whose leader epoch the brokers do not return now are omitted.
    """
    by_partition: dict[int, Assignment] = {}
    if not starts:
        return by_partition
    with (
        contextlib.closing(new_consumer(role, {**properties, **SINGLE_RECORD_FETCH})) as consumer,
        contextlib.suppress(KafkaException, Retry),  # the partition can be read without leader epoch
    ):
        for start in starts:
            epoch = PartitionLog(consumer, start).leader_epoch((start.next_offset or 0) - 1)
            if epoch >= 0:
                last = start.last_record._replace(leader_epoch=epoch)
                by_partition[start.partition] = start.with_offset(start.next_offset, last)
    return by_partition
