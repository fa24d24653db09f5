"""Records, messages and errors between clients and brokers.

Classes of confluent_kafka that need no broker are the real ones: KafkaError, KafkaException, TopicPartition,
NewTopic.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from confluent_kafka import TIMESTAMP_CREATE_TIME, KafkaError, KafkaException
from confluent_kafka import TopicPartition as RealTopicPartition

Headers = list[tuple[str, bytes | None]]


class Transaction:
    """One transaction of a producer, from its first record or offset to its markers."""

    __slots__ = ("groups", "name", "parts", "state")

    def __init__(self, name: str) -> None:
        self.name = name
        self.state = "open"
        """State that the markers have: open, committed or aborted."""
        self.parts: dict[Any, None] = {}
        """The partitions with its records, in the order of the first."""
        self.groups: dict[Any, None] = {}


class Entry(NamedTuple):
    """A record of a log, or a marker that ends a transaction."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers | None
    transaction: Transaction | None
    control: bool = False
    leader_epoch: int = 0


class Message:
    """`confluent_kafka.Message`."""

    __slots__ = ("_entry", "_error", "_offset", "_partition", "_topic")

    def __init__(
        self,
        topic: str | None,
        partition: int,
        offset: int | None = None,
        entry: Entry | None = None,
        error: KafkaError | None = None,
    ) -> None:
        self._topic, self._partition, self._offset = topic, partition, offset
        self._entry, self._error = entry, error

    def error(self) -> KafkaError | None:
        return self._error

    def topic(self) -> str | None:
        return self._topic

    def partition(self) -> int:
        return self._partition

    def offset(self) -> int | None:
        return self._offset

    def key(self) -> bytes | None:
        return self._entry.key if self._entry is not None else None

    def value(self) -> Any:
        if self._entry is not None:
            return self._entry.value
        return self._error.str().encode() if self._error is not None else None

    def headers(self) -> Headers | None:
        return self._entry.headers if self._entry is not None else None

    def timestamp(self) -> tuple[int, int]:
        return (TIMESTAMP_CREATE_TIME, self._entry.timestamp) if self._entry is not None else (0, 0)

    def leader_epoch(self) -> int | None:
        return self._entry.leader_epoch if self._entry is not None else None

    def latency(self) -> float | None:
        return None

    def __len__(self) -> int:
        return len(self.value() or b"")


class TopicPartition(RealTopicPartition):
    """The real one with an error, which that one lets nobody set."""

    error: KafkaError | None = None  # type: ignore[assignment]


def answer(
    topic: str,
    partition: int,
    offset: int,
    metadata: str | None = None,
    error: KafkaError | None = None,
    leader_epoch: int = -1,
) -> RealTopicPartition:
    """A partition as a client hands it out. Metadata is read up to a NUL, and past its end where there is none."""
    if metadata and not metadata.endswith("\0"):
        metadata += "\x7fwhatever lies there\0"
    metadata = metadata and metadata.removesuffix("\0")
    if error is None:
        if metadata is None:
            return RealTopicPartition(topic, partition, offset)
        return RealTopicPartition(topic, partition, offset, metadata=metadata, leader_epoch=leader_epoch)
    tp = TopicPartition(topic, partition, offset)
    tp.error = error
    return tp


class ByTheClient(KafkaException):
    """An error that the client's own code raises."""


class Uncatchable(BaseException):
    """Turn a `ByTheClient` that leaves a callback into the error that `poll`, `consume` or `close` raises.

    The client raises the bare KafkaError, which is no exception to Python: `except BaseException` does not catch it.
    It is harmless only if the callback caught it. Here, unlike there, a caught one that a mere `raise` repeats counts
    as not caught.
    """


def exception(code: int, text: str | None = None, **flags: bool) -> KafkaException:
    """Return the exception that the client raises."""
    return ByTheClient(KafkaError(code, text, **flags) if text is not None else KafkaError(code))


def to_commit(partitions: Iterable[RealTopicPartition]) -> list[tuple[str, int, int, str | None]]:
    """Topics, partitions, offsets and metadata as the client sends them: that with a NUL behind it."""
    return [(tp.topic, tp.partition, tp.offset, _ended(tp.metadata)) for tp in partitions]


def _ended(metadata: str | None) -> str | None:
    return None if metadata is None else f"{metadata}\0"
