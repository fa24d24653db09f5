"""Positions in the partitions of a topic: the earliest or the latest offset, an offset, or a time."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from kafka import TopicPartition

Position = int | datetime | str
"""An offset, a time, or a word such as `earliest`."""


def parse_position(text: str, option: str, words: Iterable[str] = ("earliest", "latest")) -> Position:
    """Return the position in a text of an option: one of `words`, an offset, or a time. Raises BadParameter."""
    if text in words:
        return text
    if text.isdecimal():
        return int(text)
    try:
        return datetime.fromisoformat(text).astimezone()  # without a zone: local time
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is not {', '.join(words)}, an offset or an ISO time", param_hint=option
        ) from None


def find_offsets(
    admin: Any,
    keys: "Iterable[TopicPartition]",
    position: "Position | Mapping[TopicPartition, int]",
    isolation_level: str = "read_uncommitted",
) -> "dict[TopicPartition, int]":
    """Return the offset of a position in each of these partitions.

    After the last record, a time selects the end. A mapping has the offset of each partition. `latest` is the end
    that consumers of that isolation level see. Raises ClickException for an offset outside of a partition.
    """
    from kafka.admin import OffsetSpec

    keys = list(keys)

    def offsets(spec: Any, isolation_level: str = "read_uncommitted") -> dict[Any, int]:
        result = admin.list_partition_offsets(dict.fromkeys(keys, spec), isolation_level=isolation_level)
        return {key: partition.offset for key, partition in result.items()}

    if position == "latest":
        return offsets(OffsetSpec.LATEST, isolation_level)
    first = offsets(OffsetSpec.EARLIEST)
    if position == "earliest":
        return first
    end = offsets(OffsetSpec.LATEST)
    if isinstance(position, datetime):
        by_time = offsets(int(position.timestamp() * 1000))
        return {key: offset if offset >= 0 else end[key] for key, offset in by_time.items()}  # -1: no later record
    chosen: dict[TopicPartition, int] = (
        {**position} if isinstance(position, Mapping) else dict.fromkeys(keys, int(position))
    )
    for key, offset in chosen.items():
        if not first[key] <= offset <= end[key]:
            raise click.ClickException(
                f"{key.topic}-{key.partition} holds offsets {first[key]} to {end[key]}, not {offset}"
            )
    return chosen
