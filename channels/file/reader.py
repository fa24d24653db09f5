"""The reader of a file channel: hands its entries to a sink."""

from __future__ import annotations

import sys
from collections.abc import Collection
from pathlib import Path
from typing import Protocol

from flafka.channels.file.log import Entry, Log
from flafka.plugins import (
    Assignment,
    Batch,
    EventId,
    Metrics,
    OffsetRange,
    Origin,
    PolledBatch,
    Reader,
    RebalanceListener,
    Record,
    Retry,
    Undecodable,
)

MERGE_EVENTS, MERGE_BYTES = 10_000, 16 << 20
"""Small puts are handed out together, up to so many events or bytes."""


class GroupCoordinator(Protocol):
    """Partitions and committed offsets of the readers of one channel. Its methods may be called on any thread."""

    metrics: Metrics

    def partitions(self, reader: FileReader) -> set[int]:
        """Return the partitions that are to be this reader's, and assign it those that no reader has."""

    def leave(self, reader: FileReader) -> None:
        """Remove a reader."""

    def committed(self, partition: int) -> Assignment:
        """Return the committed offset of a partition; 0 if it has none."""

    def commit(self, delivered: Collection[Assignment]) -> None:
        """Commit offsets. Raises Retry."""

    def taken(self, reader: FileReader, partition: int, end: int, events: int) -> None:
        """Count events that a reader has taken, up to the number `end`, exclusive."""

    def moved(self) -> None:
        """Count the taken events again, after a reader moved its cursor."""

    def lost(self, path: Path, first: int, end: int) -> None:
        """Count the entries from `first` to `end`, exclusive, as lost."""

    def topic_id(self, partition: int) -> str:
        """Return `TopicPartition.topic_id` of a partition."""

    def is_of_this_run(self, partition: int) -> bool:
        """Return True if no other process can have put or taken entries of this partition."""

    def rename_run(self) -> None:
        """Give the events of this run new ids. Raises Retry."""

    def needs_commit(self) -> bool:
        """Return True if sources wait for room that taken events occupy."""


class FileReader(Reader):
    """Takes the entries of the partitions that are its own, in their order. Used by one thread."""

    def __init__(self, coordinator: GroupCoordinator, log: Log, owner: RebalanceListener, member: str) -> None:
        self.member = member
        self.positions: dict[int, int] = {}
        """By partition of its own: the entry to be taken next."""
        self.held: set[int] = set()
        """Partitions that no other reader may have now: its own ones, and those that it is about to begin with."""
        self._coordinator, self._log, self._owner = coordinator, log, owner
        self._assignments: dict[int, Assignment] = {}
        self._bounds: dict[int, set[int]] = {}
        """By partition: begins and ends of the batches that were taken, from the committed offset on."""
        self._place = log.place(0)
        self._pushed: tuple[Entry, memoryview] | None = None
        """Read already, and to be taken next."""

    def take(self, timeout: float) -> PolledBatch | None:
        """Return the next entries of one partition; see `Reader`. Raises Retry if events have got new ids."""
        self._check_ids(self._assignments.values())
        self._rebalance()
        gathered: list[tuple[Entry, memoryview]] = []
        events = size = 0
        while events < MERGE_EVENTS and size < MERGE_BYTES and (found := self._next()) is not None:
            entry = found[0]
            if gathered and entry.partition != gathered[0][0].partition:
                self._pushed = found
                break
            gathered.append(found)
            events, size = events + entry.events, size + entry.size
        if not gathered:
            self._log.wait(self._place, timeout)
            return None
        self._coordinator.metrics.add("EventTakeAttemptCount", events)
        return self._decoded(gathered)

    def _next(self) -> tuple[Entry, memoryview] | None:
        """Return the next entry of its partitions that it has not taken."""
        if (pushed := self._pushed) is not None:
            self._pushed = None
            return pushed
        while self.positions:
            expected, path = self._place.number, self._place.segment.path
            found = self._log.read(self._place)
            read = self._place.number if found is None else found[0].number
            if read > expected:
                self._coordinator.lost(path, expected, read)
            if found is None or found[0].number >= self.positions.get(found[0].partition, sys.maxsize):
                return found
        return None

    def _check_ids(self, assignments: Collection[Assignment]) -> None:
        """Raise Retry if events of these partitions have got new ids."""
        if any(one.topic_partition.topic_id != self._coordinator.topic_id(one.partition) for one in assignments):
            raise Retry("events of the channel have got new ids: beginning again")

    def _decoded(self, gathered: list[tuple[Entry, memoryview]]) -> PolledBatch:
        partition, start, end = gathered[0][0].partition, gathered[0][0].number, gathered[-1][0].number + 1
        assignment = self._assignments[partition]
        topic, prefix = assignment.topic, assignment.id_prefix
        parts: list[Batch] = []
        undecodable: list[Undecodable] = []
        for entry, payload in gathered:
            try:
                batch = Batch.from_ipc(payload)
            except ValueError as e:
                record = Record(entry.number, entry.arrival, None, bytes(payload), [])
                undecodable.append(Undecodable(EventId(prefix, partition, entry.number, 0), record, str(e)))
                continue
            origin = Origin.of_record(topic, partition, entry.number, entry.arrival, len(batch), prefix)
            parts.append(Batch(batch.records, origin))
        self._bounds.setdefault(partition, set()).update((start, end))
        self._coordinator.taken(self, partition, end, sum(entry.events for entry, _ in gathered))
        if not parts:
            parts.append(Batch.of([], Origin.of_records(topic, partition, [], [], prefix)))
        return PolledBatch(assignment, OffsetRange(start, end), Batch.concat(parts), tuple(undecodable))

    def _rebalance(self) -> None:
        """Take the partitions that are this reader's now, and give up the others."""
        own = self._coordinator.partitions(self)
        if gone := self.positions.keys() - own:
            self._owner.revoked(set(gone))
            for partition in gone:
                del self.positions[partition], self._assignments[partition]
            self.rewind(())
        self.held &= own
        if new := self.held - self.positions.keys():
            committed = map(self._coordinator.committed, new)
            starts = self._owner.assigned([one.at(one.next_offset or None) for one in committed])
            if any(self._is_foreign(one, (one.next_offset or 0) > self._log.end) for one in starts):
                self._rename_run()
            self._coordinator.commit(starts)
            self.rewind(starts)

    def commit(self, delivered: Collection[Assignment]) -> None:
        """Commit offsets; see `Reader`. Raises Retry if events have got new ids meanwhile."""
        own = [one for one in delivered if one.partition in self.positions]
        self._check_ids(own)
        self._assignments.update({one.partition: one for one in own})
        self._coordinator.commit(own)
        for one in own:
            end = one.next_offset or 0
            self._bounds[one.partition] = {at for at in self._bounds.get(one.partition, ()) if at >= end}

    def rewind(self, starts: Collection[Assignment]) -> None:
        """Move the cursor; see `Reader`. Raises Retry if another copy of this process has moved the commit log."""
        for one in starts:
            start, committed = one.next_offset or 0, self._coordinator.committed(one.partition)
            # A commit log ends where something that was taken ends; else another process has committed to it.
            expected = start in self._bounds.get(one.partition, {start}) or start == committed.next_offset
            if self._is_foreign(one, not expected):
                self._rename_run()
        self._assignments.update({one.partition: one for one in starts})
        self.positions.update({one.partition: one.next_offset or 0 for one in starts})
        self._pushed = None
        self._place = self._log.place(min(self.positions.values(), default=0))
        self._coordinator.moved()

    def _is_foreign(self, start: Assignment, unexpected: bool) -> bool:
        return unexpected and self._coordinator.is_of_this_run(start.partition) and bool(start.next_offset)

    def _rename_run(self) -> None:
        """Give the events new ids. Raises Retry always, as the sink has to begin again with these."""
        self._coordinator.rename_run()
        raise Retry("events of the channel have got new ids: beginning again")

    def needs_commit(self) -> bool:
        """Return True if taken events occupy room that sources wait for."""
        return self._coordinator.needs_commit()

    def close(self) -> None:
        """Leave the channel; commits nothing."""
        self._coordinator.leave(self)
        self.positions.clear()
