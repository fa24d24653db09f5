"""Offsets of a Kafka topic: what brokers say of them, and the records up to one."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from typing import Any, TypeVar, cast

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient

from flafka.plugins.errors import Retry

T = TypeVar("T")
_MOVES = frozenset(
    {KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.COORDINATOR_LOAD_IN_PROGRESS}
)
_BEGINS = frozenset(
    {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.LEADER_NOT_AVAILABLE, KafkaError.NOT_LEADER_FOR_PARTITION}
)


def read_up_to(
    consumer: Consumer, at: TopicPartition, end: int, seconds: float, *, wait: bool = False
) -> Iterator[Message]:
    """The records of one partition from `at` up to, not including, offset `end`; the consumer tells of its end.

    What cannot be read yet, as a transaction is open, is left out, or waited for. Raises Retry where nothing comes
    for so many seconds, and KafkaException.
    """
    consumer.assign([at])
    position, deadline = max(at.offset, 0), time.monotonic() + seconds
    while position < end:
        message = consumer.poll(0.1)
        if message is None:
            if time.monotonic() > deadline:
                why = "; a transaction may be open in it" if wait else ""
                raise Retry(f"topic {at.topic} does not come to its end within {seconds:.0f} s{why}")
            continue
        error, offset = message.error(), cast("int", message.offset())
        if error is None:
            position, deadline = offset + 1, time.monotonic() + seconds
            yield message
        elif error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
            continue  # said by the coordinator, whom an assigned partition with an offset does not need
        elif error.code() != KafkaError._PARTITION_EOF:
            raise KafkaException(error)
        elif not wait:
            return
        else:
            position = offset


def committed(consumer: Consumer, partitions: list[TopicPartition], seconds: float) -> list[TopicPartition]:
    """The group's positions, below 0 where it has none. KafkaException where that of one cannot be told.

    The client hands out a partition's error beside an offset that looks as if there were none: taken for one, it
    would begin anew. While the group's coordinator moves or begins, which the client does not wait for here, it is
    asked again, for as long as `seconds` say.
    """
    return _asked_again(lambda: _without_errors(consumer.committed(partitions, timeout=seconds)), _MOVES, seconds)


def members_of(admin: AdminClient, group: str, seconds: float) -> list[Any]:
    """Return the members of a group. Raises KafkaException if the brokers do not tell them within so many seconds."""

    def members() -> list[Any]:
        groups = admin.list_groups(group, timeout=seconds)
        for one in groups:
            if one.error is not None:
                raise KafkaException(one.error)
        return [member for one in groups for member in one.members]

    return _asked_again(members, _MOVES, seconds)


def watermarks(consumer: Consumer, partition: TopicPartition, seconds: float) -> tuple[int, int]:
    """Where a partition of a topic that there is begins, and where it ends. KafkaException where that cannot be told.

    A broker may not have heard yet of a topic that another one has just made, or that it leads the partition: it is
    asked again, for as long as `seconds` say.
    """
    return _asked_again(lambda: consumer.get_watermark_offsets(partition, timeout=seconds), _BEGINS, seconds)


def _asked_again(ask: Callable[[], T], codes: Collection[int], seconds: float) -> T:
    """The answer; while it is one of these errors, the question is asked again for so long."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return ask()
        except KafkaException as e:
            if e.args[0].code() not in codes or time.monotonic() >= deadline:
                raise
        time.sleep(0.1)


def offsets_at(consumer: Consumer, times: list[TopicPartition], seconds: float) -> list[TopicPartition]:
    """The first offsets at or after the times (ms since the epoch) that are given as offsets, below 0 where there is
    nothing so new. KafkaException where that of one cannot be told, for the reason that `committed` has.

    A broker that has not heard yet of its partition is asked again, as for `watermarks`.
    """
    return _asked_again(lambda: _without_errors(consumer.offsets_for_times(times, timeout=seconds)), _BEGINS, seconds)


def _without_errors(found: list[TopicPartition]) -> list[TopicPartition]:
    for at in found:
        if at.error is not None:
            raise KafkaException(at.error)
    return found


def metadata_of(at: TopicPartition) -> str:
    """What was committed with that offset, and perhaps something behind it.

    The client reads up to a NUL, which not every program writes: past the end there may be anything, no UTF-8 too.
    """
    try:
        return at.metadata or ""
    except UnicodeDecodeError as e:
        return bytes(e.object).decode(errors="replace")
