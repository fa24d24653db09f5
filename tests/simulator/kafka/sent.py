"""A record on its way to the simulated brokers: what it holds, how large it is, and the partition of its key."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from confluent_kafka import KafkaError

from tests.simulator.kafka.messages import Entry, Headers, Message

Report = Callable[[KafkaError | None, Message], Any]


class Sent:
    """A record on its way."""

    __slots__ = ("deadline", "headers", "key", "partition", "report", "since", "timestamp", "topic", "value")

    def __init__(
        self,
        topic: str,
        partition: int,
        value: bytes | None,
        key: bytes | None,
        headers: Headers | None,
        timestamp: int,
        report: Report | None,
        since: float,
        deadline: float,
    ) -> None:
        self.topic, self.partition, self.value, self.key, self.headers = topic, partition, value, key, headers
        self.timestamp, self.report, self.since, self.deadline = timestamp, report, since, deadline

    def message(self, offset: int | None = None, error: KafkaError | None = None) -> Message:
        entry = Entry(-1 if offset is None else offset, self.timestamp, self.key, self.value, self.headers, None)
        return Message(self.topic, self.partition, offset, entry, error)


def as_bytes(data: Any) -> bytes | None:
    return data.encode() if isinstance(data, str) else data


def as_headers(headers: Any) -> Headers | None:
    if not headers:
        return None
    pairs: Iterable[tuple[str, Any]] = headers.items() if isinstance(headers, Mapping) else headers
    return [(name, as_bytes(value)) for name, value in pairs]


def size_of(value: bytes | None, key: bytes | None, headers: Headers | None) -> int:
    size = len(value or b"") + len(key or b"")
    for name, text in headers or ():
        size += len(name) + len(text or b"")
    return size


def murmur2(data: bytes) -> int:
    """The hash by which a key has its partition, in Java's client and here."""
    length, mask, m = len(data), 0xFFFFFFFF, 0x5BD1E995
    h = (0x9747B28C ^ length) & mask
    aligned = length - length % 4
    for start in range(0, aligned, 4):
        k = int.from_bytes(data[start : start + 4], "little") * m & mask
        k = (k ^ (k >> 24)) * m & mask
        h = (h * m & mask) ^ k
    if tail := data[aligned:]:
        h = (h ^ int.from_bytes(tail, "little")) * m & mask
    h = (h ^ (h >> 13)) * m & mask
    return h ^ (h >> 15)
