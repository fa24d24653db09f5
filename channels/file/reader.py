"""Reader of a file channel, which passes entries to a sink."""

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
    UndecodableRecord,
)

MERGE_EVENTS, MERGE_BYTES = 10_000, 16 << 20
"""Small puts are merged into one batch, up to so many events or bytes."""


class GroupCoordinator(Protocol):
    """Coordinator of the readers of one channel: partitions and committed offsets. Any thread may call."""

    metrics: Metrics

    def partitions(self, reader: FileReader) -> set[int]:
        """Return the partitions of this reader, and reserve each of them that no other reader has reserved."""

    def leave(self, reader: FileReader) -> None:
        """Remove a reader."""

    def committed(self, partition: int) -> Assignment:
        """Return the committed offset of a partition, as an assignment; it is 0 if the partition has none."""

    def commit(self, delivered: Collection[Assignment]) -> None:
        """Commit offsets, and delete the files without undelivered events. Raises Retry."""

    def count_taken(self, reader: FileReader, partition: int, end: int, events: int) -> None:
        """Add events that a reader has taken to the count, and set its cursor of the partition to entry `end`."""

    def recount_taken(self) -> None:
        """Count the taken events again after a reader has moved its cursor."""

    def count_lost(self, path: Path, first: int, end: int) -> None:
        """Remove the entries from `first` to `end`, exclusive, and report their events as lost."""

    def topic_id(self, partition: int) -> str:
        """Return `TopicPartition.topic_id` of a partition."""

    def is_of_this_run(self, partition: int) -> bool:
        """Return True if no other process can have put or taken entries of this partition."""

    def rename_run(self) -> None:
        """Give the events of this run new ids. Raises Retry."""

    def needs_commit(self) -> bool:
        """Return True if sources wait for space on a disk, and a reader has taken events that are not committed."""


class FileReader(Reader):
    """Reader of the entries of its partitions, in order. For one thread."""

    def __init__(self, coordinator: GroupCoordinator, log: Log, listener: RebalanceListener, member: str) -> None:
        self.member = member
        self.cursors: dict[int, int] = {}
        """Number of the next entry, by assigned partition."""
        self.reserved: set[int] = set()
        """Partitions that no other reader may have: the assigned ones, and those to be assigned next."""
        self._coordinator, self._log, self._listener = coordinator, log, listener
        self._assignments: dict[int, Assignment] = {}
        self._batch_bounds: dict[int, set[int]] = {}
        """Start and end offsets of the batches taken since the committed offset, by partition."""
        self._cursor = log.cursor(0)
        self._pushed_back: tuple[Entry, memoryview] | None = None
        """Entry that was read, and does not fit into the previous batch."""

    def take(self, timeout: float) -> PolledBatch | None:
        """Return the next entries of one partition, or None after `timeout` seconds without any.

        Entries are merged up to `MERGE_EVENTS` or `MERGE_BYTES`. Raises Retry if events have got new ids, and the
        exceptions of the listener.
        """
        self._check_ids(self._assignments.values())
        self._rebalance()
        entries: list[tuple[Entry, memoryview]] = []
        events = size = 0
        while events < MERGE_EVENTS and size < MERGE_BYTES and (entry := self._next()) is not None:
            header = entry[0]
            if entries and header.partition != entries[0][0].partition:
                self._pushed_back = entry
                break
            entries.append(entry)
            events, size = events + header.events, size + header.size
        if not entries:
            self._log.wait(self._cursor, timeout)
            return None
        self._coordinator.metrics.add("EventTakeAttemptCount", events)
        return self._decode(entries)

    def _next(self) -> tuple[Entry, memoryview] | None:
        """Return the next untaken entry of the assigned partitions; None if there is none.

        Lost entries are reported.
        """
        if (entry := self._pushed_back) is not None:
            self._pushed_back = None
            return entry
        while self.cursors:
            expected, path = self._cursor.number, self._cursor.segment.path
            entry = self._log.read(self._cursor)
            number = self._cursor.number if entry is None else entry[0].number
            if number > expected:
                self._coordinator.count_lost(path, expected, number)
            if entry is None or entry[0].number >= self.cursors.get(entry[0].partition, sys.maxsize):
                return entry
        return None

    def _check_ids(self, assignments: Collection[Assignment]) -> None:
        """Raise Retry if the events of one of these partitions have got new ids since its assignment.

        The sink then restarts from the committed offset. Events get new ids if a copy of this process, as after
        cloning a virtual machine, has delivered events under the former ones.
        """
        if any(a.topic_partition.topic_id != self._coordinator.topic_id(a.partition) for a in assignments):
            raise Retry("events of the channel have got new ids: the sink restarts from the committed offset")

    def _decode(self, entries: list[tuple[Entry, memoryview]]) -> PolledBatch:
        """Return the entries of one partition as a batch, and count them as taken.

        Undecodable ones are listed in it.
        """
        partition, start, end = entries[0][0].partition, entries[0][0].number, entries[-1][0].number + 1
        assignment = self._assignments[partition]
        topic, prefix = assignment.topic, assignment.id_prefix
        batches: list[Batch] = []
        undecodable: list[UndecodableRecord] = []
        for entry, payload in entries:
            try:
                batch = Batch.from_ipc(payload)
            except ValueError as e:
                record = Record(entry.number, entry.arrival, None, bytes(payload), [])
                undecodable.append(UndecodableRecord(EventId(prefix, partition, entry.number, 0), record, str(e)))
                continue
            origin = Origin.of_record(topic, partition, entry.number, entry.arrival, len(batch), prefix)
            batches.append(batch.with_origin(origin))
        self._batch_bounds.setdefault(partition, set()).update((start, end))
        self._coordinator.count_taken(self, partition, end, sum(entry.events for entry, _ in entries))
        if not batches:
            batches.append(Batch.of([], Origin.of_records(topic, partition, [], [], prefix)))
        return PolledBatch(assignment, OffsetRange(start, end), Batch.concat(batches), tuple(undecodable))

    def _rebalance(self) -> None:
        """Give up revoked partitions, and begin with newly assigned ones. Raises Retry, and as the listener."""
        own = self._coordinator.partitions(self)
        if revoked := self.cursors.keys() - own:
            self._listener.revoked(set(revoked))
            for partition in revoked:
                del self.cursors[partition], self._assignments[partition]
            self.rewind(())
        self.reserved &= own
        if new := self.reserved - self.cursors.keys():
            committed = map(self._coordinator.committed, new)
            starts = self._listener.assigned([c.with_offset(c.next_offset or None) for c in committed])
            if any(self._is_foreign(start, (start.next_offset or 0) > self._log.end) for start in starts):
                self._rename_run()
            self._coordinator.commit(starts)
            self.rewind(starts)

    def commit(self, delivered: Collection[Assignment]) -> None:
        """Commit offsets of assigned partitions, and ignore any other partition.

        Raises Retry if the checkpoint cannot be written, or if events have got new ids meanwhile.
        """
        own = [assignment for assignment in delivered if assignment.partition in self.cursors]
        self._check_ids(own)
        self._assignments.update({assignment.partition: assignment for assignment in own})
        self._coordinator.commit(own)
        for assignment in own:
            partition, end = assignment.partition, assignment.next_offset or 0
            self._batch_bounds[partition] = {b for b in self._batch_bounds.get(partition, ()) if b >= end}

    def rewind(self, starts: Collection[Assignment]) -> None:
        """Take from the next offset of each of these assignments on, and store them as the assignments.

        Raises Retry if an offset shows that another copy of this process wrote to the sink's commit log.
        """
        for start in starts:
            offset, committed = start.next_offset or 0, self._coordinator.committed(start.partition)
            # The end of a commit log is the end of a taken batch, unless another process has committed to it.
            is_expected = (
                offset in self._batch_bounds.get(start.partition, {offset}) or offset == committed.next_offset
            )
            if self._is_foreign(start, not is_expected):
                self._rename_run()
        self._assignments.update({start.partition: start for start in starts})
        self.cursors.update({start.partition: start.next_offset or 0 for start in starts})
        self._pushed_back = None
        self._cursor = self._log.cursor(min(self.cursors.values(), default=0))
        self._coordinator.recount_taken()

    def _is_foreign(self, start: Assignment, is_unexpected: bool) -> bool:
        """Return True if another copy of this process must have delivered entries of this run.

        That is so for an unexpected offset of a partition of this run, unless the offset is 0.
        """
        return is_unexpected and self._coordinator.is_of_this_run(start.partition) and bool(start.next_offset)

    def _rename_run(self) -> None:
        """Give the events new ids. Always raise Retry, so that the sink restarts with the new ids."""
        self._coordinator.rename_run()
        raise Retry("events of the channel have got new ids: the sink restarts from the committed offset")

    def needs_commit(self) -> bool:
        """Return True if sources wait for space on a disk that taken events occupy."""
        return self._coordinator.needs_commit()

    def close(self) -> None:
        """Leave the channel, without a commit: other readers get the uncommitted events."""
        self._coordinator.leave(self)
        self.cursors.clear()
