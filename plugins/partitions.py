"""Partitions, offsets, and their assignments to consumer groups.

All of them are frozen and picklable, do no I/O, and may be used on any thread.
"""

from __future__ import annotations

import hashlib
import re
import time
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

_REPLAY = re.compile(r"\.replay\.(.+\.\d+-\d+)$", re.ASCII)


class TopicPartition(NamedTuple):
    """One partition of one topic. A recreated topic has another `topic_id`."""

    cluster: str
    topic: str
    topic_id: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class Generation(NamedTuple):
    """Generation of a consumer group. A reset starts a new one, and fences owners of the former one."""

    epoch: int = 0
    """Fencing epoch: set by the latest deliberate reset of the group, or by the latest move of its commit log.

    A new epoch starts a new commit log.
    """
    id_scheme: int = 2
    """Event-ID scheme of the group: 2, or the epoch of its latest `agent group reset --new-ids`.

    Another scheme gives other event ids. Brokers that have lost records assign the lost offsets to new records.
    """
    commit_log: str = ""
    """Location of the commit log of the sink that committed the group's offset; empty if it has none."""


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Range of offsets from `start`, inclusive, to `end`, exclusive. Raises ValueError if `end` is before `start`."""

    start: int
    end: int

    def __post_init__(self) -> None:
        if self.end < self.start:
            raise ValueError(f"offsets {self.start} to {self.end}: the end is before the start")

    @property
    def size(self) -> int:
        """Number of offsets. Fewer records may exist, as ends of transactions occupy offsets."""
        return self.end - self.start


class LastRecord(NamedTuple):
    """Properties of the record before an offset, which reveal its replacement by another record. -1 if unknown."""

    timestamp: int = -1
    """Milliseconds since the epoch."""
    leader_epoch: int = -1


UNKNOWN_RECORD = LastRecord()


@dataclass(frozen=True, slots=True)
class Assignment:
    """One partition, assigned to one consumer group. Compare generations, never whole assignments."""

    topic_partition: TopicPartition
    group: str
    generation: Generation
    next_offset: int | None = None
    """Offset of the next record to deliver; None for the earliest."""
    last_record: LastRecord = UNKNOWN_RECORD
    """The record before `next_offset`, as it was read. With it the runner detects that brokers have lost that record,
    even if another record has the offset now."""

    @property
    def topic(self) -> str:
        """Name of the topic."""
        return self.topic_partition.topic

    @property
    def partition(self) -> int:
        """Number of the partition."""
        return self.topic_partition.partition

    @property
    def replay(self) -> str:
        """Name of the replay (`agent replay`) that has this group; empty for other groups."""
        match = _REPLAY.search(self.group)
        return match[1] if match is not None else ""

    @property
    def id_prefix(self) -> str:
        """Prefix of the ids of its events. A recreated topic has another prefix."""
        topic, scheme = self.topic_partition, self.generation.id_scheme
        suffix = f" {scheme}" if scheme > 2 else ""
        identity = f"{topic.cluster} {topic.topic_id}{suffix}"
        return f"{topic.topic}~{hashlib.sha256(identity.encode()).hexdigest()[:10]}"

    def with_offset(self, next_offset: int | None, last_record: LastRecord = UNKNOWN_RECORD) -> Assignment:
        """Return the assignment with another next offset and last record."""
        return replace(self, next_offset=next_offset, last_record=last_record)

    def replace(
        self,
        *,
        partition: int | None = None,
        topic_id: str | None = None,
        group: str | None = None,
        epoch: int | None = None,
        id_scheme: int | None = None,
        commit_log: str | None = None,
    ) -> Assignment:
        """Return the assignment with another partition, topic, group or generation; None leaves a field unchanged."""
        topic: dict[str, Any] = {"partition": partition, "topic_id": topic_id}
        generation: dict[str, Any] = {"epoch": epoch, "id_scheme": id_scheme, "commit_log": commit_log}
        return replace(
            self,
            topic_partition=self.topic_partition._replace(**{n: v for n, v in topic.items() if v is not None}),
            group=self.group if group is None else group,
            generation=self.generation._replace(**{n: v for n, v in generation.items() if v is not None}),
        )


def next_epoch(epoch: int) -> int:
    """Return an epoch after this one that was never used, even if the group was deleted meanwhile.

    The epoch is the present time in milliseconds, if that is later.
    """
    return max(epoch + 1, int(time.time() * 1000))


def replay_group(group: str, sink: str, start: int, end: int) -> str:
    """Return the consumer group of a replay to the sink of that path.

    `start` (inclusive) and `end` (exclusive) are in milliseconds since the epoch; `group` is the sink's own group.
    `Assignment.replay` is the last part of the returned name.
    """
    return f"{group}.replay.{sink}.{start}-{end}"
