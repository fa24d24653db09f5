"""Delivery of events to one sink: intercept, write, reject, count, and flush or stage.

The caller takes events from the channel, decides when they become durable, and commits the channel. Callers are
threads of the agent (`agent/runner/local/sinks.py`), for one sink or a sink group, and tasks on Spark
(`agent/runner/spark/job.py`).
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from flafka.agent.audit.publishing import Tallies
from flafka.agent.monitoring.definitions import TAKEN_BYTES
from flafka.agent.monitoring.latency import LatencyWindow, record_batch_duration
from flafka.agent.monitoring.taps import Taps, TapSubscriber
from flafka.agent.runner.committer import StagedRange
from flafka.agent.runner.deadletters.rejections import Rejections
from flafka.agent.runner.deadletters.store import (
    DeadLetter,
    DeadLetterStore,
    rejected_dead_letters,
    undecodable_dead_letters,
)
from flafka.agent.runner.worker import close_component
from flafka.agent.topology import ComponentSpec, SinkSpec
from flafka.plugins import (
    Assignment,
    Batch,
    CommittingSink,
    EventId,
    FlafkaError,
    Interceptor,
    LastRecord,
    OffsetRange,
    PolledBatch,
    Receipt,
    Rejected,
    Sink,
)
from flafka.plugins.installed import describe_method
from flafka.plugins.partitions import UNKNOWN_RECORD

TRIAL_EVENTS = 100
"""Number of events that a paused sink gets first, to test whether it accepts events again."""
MAX_UNFLUSHED_BYTES = 32 << 20
"""Size at which a sink without a commit log is flushed before its batch size: unflushed events are in memory."""
EMPTY_RANGE_SECONDS = 30.0
"""Age at which a range without deliverable events is committed to a commit log."""
REJECTED_RANGE_SECONDS = 1.0
"""Age at which a range without deliverable events is committed if some of its events were rejected.

The time is short because a person who tries a configuration waits for the dead letters.
"""


@dataclass
class Range:
    """Range of records of one partition that are taken and not committed."""

    assignment: Assignment
    """Assignment whose `next_offset` begins the range; None before the first take from the earliest offset."""
    end: int | None = None
    """Offset after the last record; None for an empty range."""
    events: int = 0
    """Number of events that the sink is to deliver."""
    since: float = 0.0
    """Time of `time.monotonic` at which the first record was taken."""
    arrival: int | None = None
    """Time of arrival of the first event in the channel, in milliseconds since the epoch; None if it is not known."""
    last_record: LastRecord = UNKNOWN_RECORD

    def extend(self, polled: PolledBatch) -> None:
        """Append the records of a polled batch: its end offset becomes the end of the range.

        The first batch also sets `since`, and the start offset if that is not known. `events` stays as it is.
        """
        if self.end is None:
            self.since, self.arrival = time.monotonic(), None
        if self.arrival is None and len(polled.batch) and polled.batch.origin is not None:
            self.arrival = int(polled.batch.origin.timestamps[0])
        if self.assignment.next_offset is None:
            self.assignment = self.assignment.with_offset(polled.offsets.start)
        self.end, self.last_record = polled.offsets.end, polled.last_record

    @property
    def offsets(self) -> OffsetRange:
        """Offsets from the first record up to the end, which is exclusive. Asserts that the range is not empty."""
        assert self.assignment.next_offset is not None
        assert self.end is not None
        return OffsetRange(self.assignment.next_offset, self.end)

    def advance(self) -> None:
        """Make the range empty, with its former end as its start, after its commit."""
        self.assignment, self.end, self.events = self.assignment.with_offset(self.end, self.last_record), None, 0


class Ranges(dict[int, Range]):
    """Ranges of all assigned partitions, by partition."""

    def uncommitted(self) -> dict[int, Range]:
        """Return the ranges that are not empty, by partition."""
        return {partition: pending for partition, pending in self.items() if pending.end is not None}

    def start_over(self) -> list[Assignment]:
        """Empty all ranges, and return the assignments at whose offsets the reader has to take records again.

        Assignments without a known offset, before any take from the earliest offset, are left out.
        """
        for pending in self.values():
            pending.end, pending.events = None, 0
        return [pending.assignment for pending in self.values() if pending.assignment.next_offset is not None]


class Delivery:
    """One sink with its interceptors and its rejections. Not thread-safe."""

    def __init__(
        self,
        spec: SinkSpec,
        store: DeadLetterStore,
        ranges: Ranges,
        stopping: threading.Event,
        tallies: Tallies | None = None,
    ) -> None:
        """Make the sink and its interceptors, which stay closed until `open`.

        `store` is for dead letters. `ranges` are shared by the sinks of a group. `stopping` becomes the event of that
        name of the sink and the interceptors. `tallies`, for an audited channel, sum up the events that are taken and
        not committed; None without an audit.
        """
        self.spec, self.path, self.ranges, self._tallies = spec, spec.path, ranges, tallies
        self.log = logging.getLogger(self.path)
        self.sink: Sink = spec.make()
        self.sink.member = self.path
        self.metrics = self.sink.metrics
        self._latency = LatencyWindow(self.metrics)
        self.committing = self.sink if isinstance(self.sink, CommittingSink) else None
        self.interceptors: list[Interceptor[Any]] = [interceptor.make() for interceptor in spec.interceptors]
        for component in (self.sink, *self.interceptors):
            component.stopping = stopping
        self.rejections = Rejections(store, spec.tolerance)
        self.taps = Taps()
        self.is_open = False
        self._unflushed: list[PolledBatch] = []
        """Unflushed batches as the channel held them, for dead letters of a flush; only without a commit log."""
        self._written = 0
        """Number of events written since the latest flush; only without a commit log."""
        self._written_bytes = 0
        self._may_hold_lost = False
        """True if the sink may hold events of partitions that were lost since its latest flush."""

    def open(self) -> None:
        """Open the interceptors, then the sink.

        Idempotent. If one of them raises, all are closed and the error is passed on.
        """
        if self.is_open:
            return
        try:
            for component in (*self.interceptors, self.sink):
                component.open()
        except BaseException:
            self.close()
            raise
        self.is_open = True

    def close(self) -> None:
        """Close the sink and its interceptors, and drop all uncommitted events, which the channel redelivers.

        Never raises.
        """
        self.is_open = False
        self._drop_all()
        for component in (self.sink, *self.interceptors):
            close_component(component, self.log)

    def write(self, polled: PolledBatch) -> None:
        """Intercept a polled batch, write the rest to the sink, and add the records to the range of their partition.

        Rejected events and undecodable records become pending dead letters. A batch of a partition that is not
        assigned any more is ignored. A paused sink gets `TRIAL_EVENTS` events first, and then the rest.

        Raises Retry if the share of rejected events exceeds the sink's tolerance. Raises FlafkaError if the sink
        rejects events that it did not get. Other errors of the interceptors and the sink are passed on.
        """
        pending = self.ranges.get(polled.assignment.partition)
        if pending is None:  # a batch of a partition that was revoked after the batch was polled
            return
        pending.extend(polled)
        if self._tallies is not None:
            self._tallies.taken(polled)
        if polled.undecodable:
            self.rejections.add_offered(len(polled.undecodable))
            self.rejections.add(undecodable_dead_letters(self.path, polled))
        rejected: dict[EventId, str] = {}
        batch = intercept(polled.batch, self.interceptors, self.taps.subscribers, collect_reasons(rejected))
        self.metrics.add("EventFilteredCount", len(polled.batch) - len(batch) - len(rejected))
        if rejected:
            self.rejections.add_offered(len(rejected))
            self.rejections.add(rejected_dead_letters(self.path, rejected, polled))
        if not len(batch):
            return
        self.metrics.add("EventDrainAttemptCount", len(batch))
        self.metrics.add(TAKEN_BYTES.name, batch.nbytes)
        pending.events += len(batch)
        trial_events = TRIAL_EVENTS if self.rejections.paused else 0
        for part in filter(len, (batch.slice(0, trial_events), batch.slice(trial_events))):
            self._write(part, polled)

    def _write(self, part: Batch, polled: PolledBatch) -> None:
        """Write a part of `polled` to the sink, and make rejected events dead letters; flush it if it is paused.

        Raises FlafkaError if the sink rejects an event that it did not get.
        """
        self.rejections.add_offered(len(part))
        if self.committing is None:
            self._unflushed.append(polled)
            self._written += len(part)
            self._written_bytes += part.nbytes
        try:
            self.sink.write(part)
        except Rejected as e:
            candidates = {id(batch): batch for batch in (*self._unflushed, polled)}
            unknown = e.reasons.keys() - self._reject(e, [*candidates.values()])
            if unknown and not self._may_hold_lost:
                who = describe_method(type(self.sink), "write")
                raise FlafkaError(
                    f"{who} rejects events that it did not get: {min(map(str, unknown))}; their ids are batch.id(row)"
                ) from e
        if self.rejections.paused and self.committing is None:
            self.flush()

    def _reject(self, rejected: Rejected, candidates: Sequence[PolledBatch]) -> set[EventId | None]:
        """Make pending dead letters of rejected events that are in `candidates`, and return the IDs of these events.

        The latest candidate is searched first. Rejected events no longer count as events of their range.
        """
        found: set[EventId | None] = set()
        parts: list[list[DeadLetter]] = []
        for polled in reversed(candidates):  # rejected events are mostly in the latest of many batches
            if found >= rejected.reasons.keys():
                break
            parts.append(rejected_dead_letters(self.path, rejected.reasons, polled))
            if (pending := self.ranges.get(polled.assignment.partition)) is not None:
                pending.events -= len(parts[-1])
            found |= {dead_letter.id for dead_letter in parts[-1]}
        for dead_letters in reversed(parts):
            self.rejections.add(dead_letters)
        return found

    @property
    def is_full(self) -> bool:
        """True if events written since the latest flush reach the sink's batch size, or `MAX_UNFLUSHED_BYTES`.

        Always False for a sink with a commit log.
        """
        return self._written >= self.sink.batch_size or self._written_bytes >= MAX_UNFLUSHED_BYTES

    def due_partitions(self) -> set[int]:
        """Return the partitions with uncommitted records that should be flushed and committed now.

        A sink with a commit log names its due partitions itself. Ranges without deliverable events are due after
        `EMPTY_RANGE_SECONDS`, or after `REJECTED_RANGE_SECONDS` with dead letters. For other sinks all partitions are
        due together: if the sink is full or paused, or after `flush_interval` seconds. Many pending dead letters are
        due at once.
        """
        now = time.monotonic()
        uncommitted = self.ranges.uncommitted()
        if self.committing is not None:
            ages = {p: now - r.since for p, r in uncommitted.items() if not r.events}
            idle = {p: age for p, age in ages.items() if age > REJECTED_RANGE_SECONDS}
            rejected = self.rejections.partitions() if idle or self.rejections.is_full else set()
            empty = {p for p, age in idle.items() if age > EMPTY_RANGE_SECONDS or p in rejected}
            full = rejected if self.rejections.is_full else set()
            return (self.committing.due_partitions() | full) & uncommitted.keys() | empty
        oldest = min((r.since for r in uncommitted.values()), default=now)
        enough = self.is_full or self.rejections.paused or self.rejections.is_full
        return set(uncommitted) if enough or now - oldest >= self.sink.flush_interval else set()

    def flush(self) -> None:
        """Flush a sink without a commit log, which makes its events durable and visible.

        Events that the flush rejects become pending dead letters. Raises the other errors of the sink.
        """
        try:
            self.sink.flush()
        except Rejected as e:
            self._reject(e, self._unflushed)
        self._forget_written()

    def stage(self, pending: Range) -> StagedRange:
        """Stage the events of one partition, and return the staged range with its sums for the audit.

        A sink with a commit log makes them durable, and not visible yet. For a sink without one nothing is written:
        the caller has called `flush`. Raises the errors of the sink.
        """
        assignment, offsets = pending.assignment, pending.offsets
        if self.committing is not None:
            receipt = self.committing.stage(assignment, offsets)
        else:
            receipt = Receipt(assignment, offsets, pending.events, None)
        minutes = self._tallies.of(assignment.partition) if self._tallies is not None else {}
        return StagedRange(replace(receipt, last_record=pending.last_record), minutes)

    def store_dead_letters(self, partition: int | None = None) -> None:
        """Write pending dead letters of one partition, or of all for None, to the dead letter store, and count them.

        The caller does this before it commits the range of these events.
        """
        self.metrics.add("EventRejectedCount", self.rejections.store(partition))

    def committed(self, ranges: Iterable[Range]) -> None:
        """Record that these ranges are durable and visible: count their events, and empty the ranges."""
        delivered = list(ranges)
        self.metrics.add("EventDrainSuccessCount", sum(committed.events for committed in delivered))
        if begun := [committed.since for committed in delivered if committed.events]:
            record_batch_duration(self.metrics, min(begun))
        self.metrics.add("BatchCompleteCount")
        for committed in delivered:
            if committed.events and committed.arrival is not None:
                self._latency.add(time.time() - committed.arrival / 1000)
            committed.advance()
        partitions = {committed.assignment.partition for committed in delivered}
        self.rejections.committed(partitions)
        self._drop_tallies(partitions)

    def start_over(self) -> list[Assignment]:
        """Drop everything uncommitted of all partitions, and return the assignments to rewind to.

        The caller rewinds the reader to them, and resets the sink.
        """
        self._drop_all()
        return self.ranges.start_over()

    def lost(self, partitions: Collection[int]) -> None:
        """Drop everything uncommitted of these partitions: dead letters, audit sums, and staged or buffered events.

        Only a sink without a commit log still holds unflushed events of these partitions, and writes them at its next
        flush.
        """
        self.rejections.lost(partitions)
        unflushed = [polled for polled in self._unflushed if polled.assignment.partition not in partitions]
        self._may_hold_lost |= len(unflushed) < len(self._unflushed)
        self._unflushed = unflushed
        if self.committing is not None:
            for partition in partitions:
                self.committing.reset(partition)
        self._drop_tallies(partitions)

    def _drop_all(self) -> None:
        """Drop pending dead letters, audit sums, and the record of unflushed batches, of all partitions."""
        self.rejections.start_over()
        self._forget_written()
        self._drop_tallies(self.ranges)

    def _forget_written(self) -> None:
        self._unflushed.clear()
        self._written, self._written_bytes, self._may_hold_lost = 0, 0, False

    def _drop_tallies(self, partitions: Collection[int]) -> None:
        if self._tallies is not None:
            self._tallies.dropped(partitions)


@contextlib.contextmanager
def open_interceptors(specs: Iterable[ComponentSpec]) -> Iterator[list[Interceptor[Any]]]:
    """Make the interceptors of `specs`, open them in order, and close all of them at the end of the block.

    Raises the error of an interceptor that cannot be made or opened, after the earlier ones are closed.
    """
    with contextlib.ExitStack() as closing:
        interceptors: list[Interceptor[Any]] = []
        for interceptor in (spec.make() for spec in specs):
            closing.callback(interceptor.close)
            interceptor.open()
            interceptors.append(interceptor)
        yield interceptors


def intercept(
    batch: Batch,
    interceptors: Iterable[Interceptor[Any]],
    listeners: Sequence[TapSubscriber] = (),
    rejected: Callable[[Batch, Sequence[str]], object] = lambda batch, reasons: None,
) -> Batch:
    """Return the batch that is left after all interceptors, in order, have changed it, dropped or rejected events.

    Each interceptor counts received, rejected and dropped events in its metrics. Once no event is left, the remaining
    interceptors are not called. `listeners` see the batch after each interceptor and at the end.

    `rejected` is called with the events that an interceptor has rejected, as that interceptor got them, and a reason
    for each. Raises the errors of interceptors, and FlafkaError for a result that violates their contract.
    """
    for number, interceptor in enumerate(interceptors):
        if not (events := len(batch)):
            break
        interceptor.take_rejected()  # drops the rejected events of a failed attempt
        since = time.monotonic()
        before, batch = batch, interceptor.intercept(batch)
        _check_intercepted(interceptor, before, batch)
        record_batch_duration(interceptor.metrics, since)
        rejected_events = 0
        for rows, reasons in interceptor.take_rejected():
            rejected_events += len(rows)
            rejected(rows, reasons)
        interceptor.metrics.add("EventReceivedCount", events)
        if rejected_events:
            interceptor.metrics.add("EventRejectedCount", rejected_events)
        if dropped := events - len(batch) - rejected_events:
            interceptor.metrics.add("EventFilteredCount", dropped)
        for listener in listeners:
            listener.on_intercepted(number, before, batch)
    for listener in listeners:
        listener.on_batch(batch)
    return batch


def collect_reasons(reasons_by_id: dict[EventId, str]) -> Callable[[Batch, Sequence[str]], None]:
    """Return a callback `rejected` for `intercept`, which adds event ID → reason to `reasons_by_id`."""

    def add(rows: Batch, reasons: Sequence[str]) -> None:
        reasons_by_id.update(zip(rows.ids(), reasons, strict=True))

    return add


def _check_intercepted(interceptor: Interceptor[Any], before: Batch, after: object) -> None:
    """Raise FlafkaError if `after` is no Batch, has more events than `before`, or lacks the event IDs of `before`."""
    if not isinstance(after, Batch):
        wrong = f"return a Batch, not {after!r:.60}"
    elif len(after) > len(before):
        wrong = f"return the events that it gets, changed or fewer of them, and makes {len(after)} of {len(before)}"
    elif before.origin is not None and (after.origin is None or len(after.origin.offsets) != len(after)):
        wrong = "keep the ids of events: make its batch with where(), map() or with_…() of the one that it gets"
    else:
        return
    raise FlafkaError(f"intercept() of {describe_method(type(interceptor), 'intercept')} must {wrong}")
