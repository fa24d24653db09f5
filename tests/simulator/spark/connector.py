"""Spark's connector to Kafka: what it asks of the brokers, and the rows that tasks get."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Protocol

import pyarrow as pa

EARLIEST = -2
SCHEMA = pa.schema(
    [
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
)


class Record(Protocol):
    """Record as a consumer sees it."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]


class Brokers(Protocol):
    """Requests of Spark to Kafka, by the topic's name, with `read_committed`."""

    def partitions(self, topic: str) -> Sequence[int]:
        """Return the partitions; None for a missing topic."""

    def low_watermark(self, topic: str, partition: int) -> int:
        """The first offset there is; 0 where there is no such partition."""

    def end_offset(self, topic: str, partition: int) -> int | None:
        """The last stable offset; None where there is no such partition."""

    def read(self, topic: str, partition: int, start: int, end: int) -> Sequence[Record]:
        """Return the records from `start` up to, not including, `end`."""


class Topics:
    """`Brokers`, of the model of Kafka; without markers and what was aborted."""

    def __init__(self, cluster: Any) -> None:
        self.cluster = cluster

    def partitions(self, topic: str) -> Sequence[int]:
        return range(self.cluster.count(topic))

    def low_watermark(self, topic: str, partition: int) -> int:
        log = self.cluster.partition(topic, partition)
        return log.low if log is not None else 0

    def end_offset(self, topic: str, partition: int) -> int | None:
        log = self.cluster.partition(topic, partition)
        return log.stable if log is not None else None

    def read(self, topic: str, partition: int, start: int, end: int) -> Sequence[Record]:
        entries = self.cluster.partition(topic, partition).visible(start, read_committed=True)
        return list(itertools.takewhile(lambda entry: entry.offset < end, entries))


def batch_of(partition: int, records: Sequence[Record]) -> pa.RecordBatch:
    """Row that the connector makes of a record."""
    columns: list[Any] = [
        [partition] * len(records),
        [record.offset for record in records],
        [record.timestamp for record in records],
        [record.key for record in records],
        [record.value for record in records],
        [[{"key": name, "value": value} for name, value in record.headers or ()] or None for record in records],
    ]
    arrays = [pa.array(column, kind.type) for column, kind in zip(columns, SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
