"""Values that name partitions and offsets: what a consumer group reads, from where on, and on whose behalf.

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
    """One partition of one topic, other than that of a later topic of the same name."""

    cluster: str
    topic: str
    topic_id: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class Generation(NamedTuple):
    """Generation of a consumer group: a reset begins a new one, and fences whoever worked in the one before."""

    epoch: int = 0
    """Fencing token: that of the latest deliberate reset of the group, or of the latest move of its commit log. A new
    epoch starts a new commit log."""
    id_scheme: int = 2
    """Event-ID scheme of the group: 2, or the epoch of its latest `agent group reset --new-ids`. Another scheme gives
    other event ids, as brokers that have lost records give the lost offsets to new records."""
    commit_log: str = ""
    """Location of the commit log of the sink that committed the group's offset; empty where it has none."""


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets from `start` up to, not including, `end`. Raises ValueError where it ends before it starts."""

    start: int
    end: int

    def __post_init__(self) -> None:
        if self.end < self.start:
            raise ValueError(f"offsets {self.start} to {self.end}: the end is before the start")

    @property
    def size(self) -> int:
        """Number of offsets, of which not all have records."""
        return self.end - self.start


class LastRecord(NamedTuple):
    """Marks of the record before an offset: another record there has others. -1 stands for unknown."""

    timestamp: int = -1
    """Milliseconds since the epoch."""
    leader_epoch: int = -1


UNKNOWN_RECORD = LastRecord()


@dataclass(frozen=True, slots=True)
class Assignment:
    """One partition as one consumer group reads it. Compare generations, never whole assignments."""

    topic_partition: TopicPartition
    group: str
    generation: Generation
    next_offset: int | None = None
    """Offset of the next record to deliver; None: the earliest."""
    last_record: LastRecord = UNKNOWN_RECORD
    """The record before `next_offset` as it was read, as far as it is known. By it the runner notices that brokers
    have lost that record, although another one has taken its offset."""

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
        """Name of the replay whose group this is (`agent replay`); empty where it is none's."""
        found = _REPLAY.search(self.group)
        return found[1] if found is not None else ""

    @property
    def id_prefix(self) -> str:
        """Prefix of the ids of its events: another one for each topic, also of the same name."""
        at, scheme = self.topic_partition, self.generation.id_scheme
        since = f" {scheme}" if scheme > 2 else ""
        return f"{at.topic}~{hashlib.sha256(f'{at.cluster} {at.topic_id}{since}'.encode()).hexdigest()[:10]}"

    def at(self, next_offset: int | None, last_record: LastRecord = UNKNOWN_RECORD) -> Assignment:
        """Return the assignment with that next offset."""
        return replace(self, next_offset=next_offset, last_record=last_record)

    def of(
        self,
        *,
        partition: int | None = None,
        topic_id: str | None = None,
        group: str | None = None,
        epoch: int | None = None,
        id_scheme: int | None = None,
        commit_log: str | None = None,
    ) -> Assignment:
        """Return the assignment of another partition, topic, group or generation, with the same offset."""
        at: dict[str, Any] = {"partition": partition, "topic_id": topic_id}
        generation: dict[str, Any] = {"epoch": epoch, "id_scheme": id_scheme, "commit_log": commit_log}
        return replace(
            self,
            topic_partition=self.topic_partition._replace(**{n: v for n, v in at.items() if v is not None}),
            group=self.group if group is None else group,
            generation=self.generation._replace(**{n: v for n, v in generation.items() if v is not None}),
        )


def next_epoch(epoch: int) -> int:
    """Return an epoch after this one that was never used before, also if the group was deleted since."""
    return max(epoch + 1, int(time.time() * 1000))


def replay_group(group: str, sink: str, start: int, end: int) -> str:
    """Return the consumer group in which a span of time is replayed to the sink of that path.

    `start` and `end` are in milliseconds since the epoch, the end exclusive; `group` is that of the sink.
    `Assignment.replay` returns the last part of the name.
    """
    return f"{group}.replay.{sink}.{start}-{end}"
