"""One sink at work on what is taken of its channel: intercept, write, reject, count, and flush or stage.

Whoever holds a `Delivery` takes the events, says when they are to be durable, and commits the channel: a thread of
the agent (`agent/runner/local/sinks.py`), for one sink or a group, or a task on Spark (`agent/runner/spark/job.py`).
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
from flafka.agent.monitoring.latency import took
from flafka.agent.monitoring.taps import Taps, TapSubscriber
from flafka.agent.runner.committer import StagedRange
from flafka.agent.runner.deadletters.letters import DeadLetter, DeadLetters, letters_of, letters_of_records
from flafka.agent.runner.deadletters.rejections import Rejections
from flafka.agent.runner.supervise import close
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
from flafka.plugins.installed import described_method
from flafka.plugins.partitions import UNKNOWN_RECORD

FEW = 100
"""Number of events that are offered first while a sink is paused."""
HELD_BYTES = 32 << 20
"""A simple sink is flushed after so much, even if it wants more events before: until then all of it is in memory."""
EMPTY_RANGE_SECONDS = 30.0
"""A committing sink's record passes over records without a deliverable event after so long."""
REJECTED_RANGE_SECONDS = 1.0
"""Seconds after which a commit log passes over records without a deliverable event of which some were rejected.

The time is short because a person who tries a configuration waits for the dead letters.
"""


@dataclass
class Range:
    """Records of one partition that were taken and are not committed."""

    assignment: Assignment
    """Assignment whose `next_offset` begins the range; None before the first take from the earliest offset."""
    end: int | None = None
    """Offset after the last of them; None where nothing was taken."""
    events: int = 0
    """Number of events that the sink is to deliver."""
    since: float = 0.0
    """Time at which the first record was taken, of `time.monotonic`."""
    last_record: LastRecord = UNKNOWN_RECORD

    def extend(self, polled: PolledBatch) -> None:
        """Some more were taken."""
        if self.end is None:
            self.since = time.monotonic()
        if self.assignment.next_offset is None:
            self.assignment = self.assignment.at(polled.offsets.start)
        self.end, self.last_record = polled.offsets.end, polled.last_record

    @property
    def offsets(self) -> OffsetRange:
        """Offsets of the records."""
        assert self.assignment.next_offset is not None
        assert self.end is not None
        return OffsetRange(self.assignment.next_offset, self.end)

    def committed(self) -> None:
        """Begin where it ends."""
        self.assignment, self.end, self.events = self.assignment.at(self.end, self.last_record), None, 0


class Ranges(dict[int, Range]):
    """By partition, for every partition that is ours."""

    def waiting(self) -> dict[int, Range]:
        """Return the ranges of which something was taken, by partition."""
        return {partition: pending for partition, pending in self.items() if pending.end is not None}

    def start_over(self) -> list[Assignment]:
        """Forget what was taken, and return from where on it is to be taken again."""
        for pending in self.values():
            pending.end, pending.events = None, 0
        return [pending.assignment for pending in self.values() if pending.assignment.next_offset is not None]


class Delivery:
    """One sink with its interceptors and what it rejects. Used by one thread."""

    def __init__(
        self,
        spec: SinkSpec,
        letters: DeadLetters,
        ranges: Ranges,
        stopping: threading.Event,
        tallies: Tallies | None = None,
    ) -> None:
        """`ranges` is what was taken, shared by the sinks of a group; `stopping` is what the components look at.

        `tallies`, if the channel is audited, get what is taken and not committed.
        """
        self.spec, self.path, self.ranges, self._tallies = spec, spec.path, ranges, tallies
        self.log = logging.getLogger(self.path)
        self.sink: Sink = spec.make()
        self.sink.member = self.path
        self.metrics = self.sink.metrics
        self.committing = self.sink if isinstance(self.sink, CommittingSink) else None
        self.interceptors: list[Interceptor[Any]] = [one.make() for one in spec.interceptors]
        for component in (self.sink, *self.interceptors):
            component.stopping = stopping
        self.rejections = Rejections(letters, spec.tolerance)
        self.taps = Taps()
        self.is_open = False
        self._unflushed: list[PolledBatch] = []
        """Unflushed batches as the channel held them, for dead letters; kept only if a flush may reject events."""
        self._written = 0
        """Events that a simple sink has got since it was last flushed."""
        self._written_bytes = 0
        self._strayed = False
        """True if a simple sink may hold events of partitions that were lost since its latest flush."""

    def open(self) -> None:
        """Open the interceptors and the sink, if they are not; all are closed where one of them fails."""
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
        """Release the sink and its interceptors. What is not committed will be taken again."""
        self.is_open = False
        self._drop_all()
        for component in (self.sink, *self.interceptors):
            close(component, self.log)

    def write(self, polled: PolledBatch) -> None:
        """Hand on one batch; what the sink rejects becomes dead letters. Raises Retry where they are too many."""
        pending = self.ranges.get(polled.assignment.partition)
        if pending is None:  # a straggler of a partition that has gone
            return
        pending.extend(polled)
        if self._tallies is not None:
            self._tallies.taken(polled)
        if polled.undecodable:
            self.rejections.offered(len(polled.undecodable))
            self.rejections.add(letters_of_records(self.path, polled))
        rejected: dict[EventId, str] = {}
        batch = intercepted(polled.batch, self.interceptors, self.taps.listeners, by_id(rejected))
        self.metrics.add("EventFilteredCount", len(polled.batch) - len(batch) - len(rejected))
        if rejected:
            self.rejections.offered(len(rejected))
            self.rejections.add(letters_of(self.path, rejected, polled))
        if not len(batch):
            return
        self.metrics.add("EventDrainAttemptCount", len(batch))
        pending.events += len(batch)
        few = FEW if self.rejections.paused else 0  # whether it takes events again is tried with them
        for part in filter(len, (batch.slice(0, few), batch.slice(few))):
            self._write(part, polled)

    def _write(self, part: Batch, polled: PolledBatch) -> None:
        self.rejections.offered(len(part))
        if self.committing is None:
            self._unflushed.append(polled)
            self._written += len(part)
            self._written_bytes += part.nbytes
        try:
            self.sink.write(part)
        except Rejected as e:
            held = {id(one): one for one in (*self._unflushed, polled)}
            unknown = e.reasons.keys() - self._reject(e, [*held.values()])
            if unknown and not self._strayed:
                who = described_method(type(self.sink), "write")
                raise FlafkaError(
                    f"{who} rejects events that it did not get: {min(map(str, unknown))}; their ids are batch.id(row)"
                ) from e
        if self.rejections.paused and self.committing is None:
            self.flush()

    def _reject(self, rejected: Rejected, held: Sequence[PolledBatch]) -> set[EventId | None]:
        """Make dead letters of those that are among what is held, and answer which these are."""
        found: set[EventId | None] = set()
        parts: list[list[DeadLetter]] = []
        for polled in reversed(held):  # they are most often among the latest, and much may be held
            if found >= rejected.reasons.keys():
                break
            parts.append(letters_of(self.path, rejected.reasons, polled))
            if (pending := self.ranges.get(polled.assignment.partition)) is not None:
                pending.events -= len(parts[-1])
            found |= {letter.id for letter in parts[-1]}
        for letters in reversed(parts):
            self.rejections.add(letters)
        return found

    @property
    def full(self) -> bool:
        """True if a simple sink has as many events as it wants to flush together, or as many bytes as it may hold."""
        return self._written >= self.sink.batch_size or self._written_bytes >= HELD_BYTES

    def due(self) -> set[int]:
        """Partitions to make durable now."""
        now = time.monotonic()
        waiting = self.ranges.waiting()
        if self.committing is not None:
            ages = {p: now - r.since for p, r in waiting.items() if not r.events}
            idle = {p: age for p, age in ages.items() if age > REJECTED_RANGE_SECONDS}
            rejected = self.rejections.partitions() if idle or self.rejections.full else set()
            empty = {p for p, age in idle.items() if age > EMPTY_RANGE_SECONDS or p in rejected}
            full = rejected if self.rejections.full else set()
            return (self.committing.due() | full) & waiting.keys() | empty
        oldest = min((r.since for r in waiting.values()), default=now)
        enough = self.full or self.rejections.paused or self.rejections.full
        return set(waiting) if enough or now - oldest >= self.sink.flush_interval else set()

    def flush(self) -> None:
        """Have a simple sink make durable all that was written; what it rejects only now becomes dead letters."""
        try:
            self.sink.flush()
        except Rejected as e:
            self._reject(e, self._unflushed)
        self._forget_written()

    def stage(self, pending: Range) -> StagedRange:
        """Have a committing sink make one partition's events durable, invisible yet; a simple sink has flushed."""
        assignment, offsets = pending.assignment, pending.offsets
        if self.committing is not None:
            receipt = self.committing.stage(assignment, offsets)
        else:
            receipt = Receipt(assignment, offsets, pending.events, None)
        minutes = self._tallies.of(assignment.partition) if self._tallies is not None else {}
        return StagedRange(replace(receipt, last_record=pending.last_record), minutes)

    def store_dead_letters(self, partition: int | None = None) -> None:
        """Make durable what was rejected of this partition, or of all, before the rest of it is committed."""
        self.metrics.add("EventRejectedCount", self.rejections.store(partition))

    def committed(self, ranges: Iterable[Range]) -> None:
        """Record that these ranges are durable and visible."""
        delivered = list(ranges)
        self.metrics.add("EventDrainSuccessCount", sum(one.events for one in delivered))
        if begun := [one.since for one in delivered if one.events]:
            took(self.metrics, min(begun))
        self.metrics.add("BatchCompleteCount")
        for one in delivered:
            one.committed()
        partitions = {one.assignment.partition for one in delivered}
        self.rejections.committed(partitions)
        self._tell_dropped(partitions)

    def start_over(self) -> list[Assignment]:
        """Drop everything that is not committed, and return where to go on. The caller resets the sink."""
        self._drop_all()
        return self.ranges.start_over()

    def lost(self, partitions: Collection[int]) -> None:
        """Drop what is not committed of these partitions."""
        self.rejections.lost(partitions)
        kept = [polled for polled in self._unflushed if polled.assignment.partition not in partitions]
        self._strayed |= len(kept) < len(self._unflushed)
        self._unflushed = kept
        if self.committing is not None:
            for partition in partitions:
                self.committing.reset(partition)
        self._tell_dropped(partitions)

    def _drop_all(self) -> None:
        self.rejections.start_over()
        self._forget_written()
        self._tell_dropped(self.ranges)

    def _forget_written(self) -> None:
        self._unflushed.clear()
        self._written, self._written_bytes, self._strayed = 0, 0, False

    def _tell_dropped(self, partitions: Collection[int]) -> None:
        if self._tallies is not None:
            self._tallies.dropped(partitions)


@contextlib.contextmanager
def opened(specs: Iterable[ComponentSpec]) -> Iterator[list[Interceptor[Any]]]:
    """New interceptors of these, open within the block."""
    with contextlib.ExitStack() as closing:
        interceptors: list[Interceptor[Any]] = []
        for interceptor in (spec.make() for spec in specs):
            closing.callback(interceptor.close)
            interceptor.open()
            interceptors.append(interceptor)
        yield interceptors


def intercepted(
    batch: Batch,
    interceptors: Iterable[Interceptor[Any]],
    listeners: Sequence[TapSubscriber] = (),
    rejected: Callable[[Batch, Sequence[str]], object] = lambda batch, reasons: None,
) -> Batch:
    """Return the events that the interceptors leave. Each interceptor counts received, dropped and rejected events.

    `rejected` gets the events that an interceptor has rejected, as that interceptor got them, with the reasons.
    """
    for number, interceptor in enumerate(interceptors):
        if not (events := len(batch)):
            break
        interceptor.take_rejected()  # of a try that failed
        since = time.monotonic()
        before, batch = batch, interceptor.intercept(batch)
        _check_intercepted(interceptor, before, batch)
        took(interceptor.metrics, since)
        refused = 0
        for rows, reasons in interceptor.take_rejected():
            refused += len(rows)
            rejected(rows, reasons)
        interceptor.metrics.add("EventReceivedCount", events)
        if refused:
            interceptor.metrics.add("EventRejectedCount", refused)
        if dropped := events - len(batch) - refused:
            interceptor.metrics.add("EventFilteredCount", dropped)
        for listener in listeners:
            listener.intercepted(number, before, batch)
    for listener in listeners:
        listener.passed(batch)
    return batch


def by_id(found: dict[EventId, str]) -> Callable[[Batch, Sequence[str]], None]:
    """For `intercepted` behind a channel: has the reasons put into `found`."""

    def add(rows: Batch, reasons: Sequence[str]) -> None:
        found.update(zip(rows.ids(), reasons, strict=True))

    return add


def _check_intercepted(interceptor: Interceptor[Any], before: Batch, after: object) -> None:
    """Raises FlafkaError where it has returned what an interceptor may not return."""
    if not isinstance(after, Batch):
        wrong = f"return a Batch, not {after!r:.60}"
    elif len(after) > len(before):
        wrong = f"return the events that it gets, changed or fewer of them, and makes {len(after)} of {len(before)}"
    elif before.origin is not None and (after.origin is None or len(after.origin.offsets) != len(after)):
        wrong = "keep the ids of events: make its batch with where(), map() or with_…() of the one that it gets"
    else:
        return
    raise FlafkaError(f"intercept() of {described_method(type(interceptor), 'intercept')} must {wrong}")
