"""Runs one sink: take, intercept, write, make durable, commit the channel."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from agent.runner.deadletters import DeadLetter, DeadLetters, letters_of, letters_of_records, of_notes, to_note
from agent.runner.rejections import Rejections
from agent.runner.sources import ChannelRunner
from agent.runner.supervise import Worker
from agent.topology import SinkSpec
from plugins import (
    Claim,
    CommittingSink,
    Conflict,
    FlafkaError,
    Interceptor,
    Reader,
    Rejected,
    Retry,
    Sink,
    Taken,
)
from plugins.audit import Sum, add, tally

TAKE_SECONDS = 0.1
FEW = 100
"""So many events are offered first while a sink is paused."""
QUIET_SECONDS = 3.0
"""An idle sink forgets its latest failure after so long without another."""
EMPTY_RANGE_SECONDS = 30.0
"""A committing sink's record passes over records without a deliverable event after so long."""


@dataclass
class _Range:
    """What was taken of one partition and not committed: records `start` up to, not including, `end`."""

    claim: Claim
    start: int | None
    end: int | None = None
    events: int = 0
    since: float = 0.0
    taken: list[Taken] = field(default_factory=list)
    """The events as the channel held them, for dead letters; kept only where a flush may still reject some."""
    minutes: dict[int, Sum] = field(default_factory=dict)
    """For the audit."""

    def add(self, taken: Taken) -> None:
        if self.end is None:
            self.since = time.monotonic()
        if self.start is None:
            self.start = taken.start
        self.end = taken.end

    def committed(self) -> None:
        self.start, self.end, self.events = self.end, None, 0
        self.taken.clear()
        self.minutes.clear()


class SinkRunner(Worker):
    """A sink and its interceptors, draining one channel. It is the `Owner` of its reader's partitions."""

    def __init__(self, spec: SinkSpec, channel: ChannelRunner, dead_letters: DeadLetters, member: str) -> None:
        sink: Sink = spec.make()  # type: ignore[type-arg]
        super().__init__(spec.path, sink)
        self.sink, self.spec, self.channel, self.member = sink, spec, channel, member
        self.rejections = Rejections(dead_letters, spec.tolerance)
        self.committing = sink if isinstance(sink, CommittingSink) else None
        self.interceptors: list[Interceptor] = [i.make() for i in spec.interceptors]  # type: ignore[type-arg]
        self.members = (self,)
        """What a sink group has several of."""
        self.reader: Reader | None = None
        self.ranges: dict[int, _Range] = {}
        self.notes: dict[int, tuple[Claim, list[DeadLetter]]] = {}
        """By partition: dead letters that a committing sink's record has, to be kept where an operator finds them."""
        self.draining = threading.Event()
        """Set when no more events are to come: whatever is taken then is delivered without waiting for more."""
        self.untold: dict[Claim, int] = {}
        """Delivered, and the channel was not told yet."""
        self._lag_shown = 0.0

    # --- supervised life

    def work(self) -> None:
        """Drain the channel until stopping is set, then deliver what was taken."""
        while not self.channel.ready.wait(0.2):
            if self.stopping.is_set():
                return
        self.open()
        self.reader = self.channel.channel.reader(self, group=self.spec.group, member=self.member)
        while not self.stopping.is_set():
            try:
                self.step()
            except Exception as e:
                if isinstance(e, ReaderFailed):
                    raise
                self.failed(e)
                self.start_over()
                self.backoff.wait(self.stopping, getattr(e, "after", None))
        self.flush(set(self.ranges))

    def open(self) -> None:
        """Open the interceptors and the sink."""
        for interceptor in self.interceptors:
            interceptor.open()
        self.sink.open()

    def close(self) -> None:
        """Release the reader, the sink and its interceptors."""
        if self.reader is not None:
            self.reader.close()
            self.reader = None
        self.ranges.clear()
        self.notes.clear()
        self.untold.clear()
        self.rejections.start_over()
        self.metrics.forget("Lag")
        self.release()

    def release(self) -> None:
        """Close what `open` opened."""
        super().close()
        for interceptor in self.interceptors:
            interceptor.close()

    def step(self) -> None:
        """Take once, write it, and flush what is due."""
        taken = self.take()
        if taken is None:
            self.tell()  # where that failed after the latest commit, and nothing came since
            self.forget_failure()
        else:
            self.write(taken)
        self.flush_due(idle=taken is None)

    def failing(self) -> bool:
        """Whether something could not be delivered, up to now."""
        return bool(self.metrics.last_error)

    # --- events

    def take(self) -> Taken | None:
        """The next records, or None after a while without any. Raises ReaderFailed."""
        assert self.reader is not None
        try:
            taken = self.reader.take(TAKE_SECONDS)
        except FlafkaError as e:
            raise ReaderFailed(str(e), getattr(e, "after", None)) from e
        if taken is None:
            self.metrics.add("BatchEmptyCount")
            self.show_lag()
        return taken

    def write(self, taken: Taken) -> None:
        """Hand the sink one take; what it rejects becomes dead letters."""
        pending = self.ranges.get(taken.partition)
        if pending is None:  # a straggler of a partition that has gone
            return
        pending.add(taken)
        if taken.undecodable:
            self.rejections.offered(len(taken.undecodable))
            self.rejections.add(letters_of_records(self.path, pending.claim, taken))
        if self.channel.audit is not None:
            add(pending.minutes, tally(taken.fresh()))
        batch = taken.batch
        for interceptor in self.interceptors:
            if not len(batch):
                break
            batch = interceptor.intercept(batch)
        self.metrics.add("EventFilteredCount", len(taken.batch) - len(batch))
        if not len(batch):
            return
        self.metrics.add("EventDrainAttemptCount", len(batch))
        pending.events += len(batch)
        if self.committing is None:
            pending.taken.append(taken)
        few = FEW if self.rejections.paused else 0  # whether it takes events again is tried with them
        for part in filter(len, (batch.slice(0, few), batch.slice(few))):
            self.rejections.offered(len(part))
            try:
                self.sink.write(part)
            except Rejected as e:
                pending.events -= len(e.reasons)
                self.rejections.add(letters_of(self.path, pending.claim, e.reasons, [taken]))
            if self.rejections.paused and self.committing is None:
                self.flush_sink()

    def flush_sink(self) -> None:
        """Have a simple sink make durable what was written; what it rejects now becomes dead letters."""
        try:
            self.sink.flush()
        except Rejected as e:
            for pending in self.ranges.values():
                letters = letters_of(self.path, pending.claim, e.reasons, pending.taken)
                pending.events -= len(letters)
                self.rejections.add(letters)

    def keep_notes(self) -> None:
        """Make dead letters durable that belong to what a committing sink has committed."""
        assert self.committing is not None
        for partition, (claim, letters) in list(self.notes.items()):
            if letters:
                self.rejections.letters.put(letters)
                self.metrics.add("EventRejectedCount", len(letters))
                self.committing.noted(claim)
            del self.notes[partition]

    def waiting(self) -> bool:
        """Whether something was taken and is not committed."""
        return any(r.end is not None for r in self.ranges.values())

    def flush_due(self, *, idle: bool) -> None:
        """Flush what is due; all, where nothing more is to come."""
        if due := set(self.ranges) if idle and self.draining.is_set() else self.due():
            self.flush(due)

    def due(self) -> set[int]:
        """Partitions to make durable now."""
        now = time.monotonic()
        waiting = {p: r for p, r in self.ranges.items() if r.end is not None}
        if self.committing is not None:
            empty = {p for p, r in waiting.items() if not r.events and now - r.since > EMPTY_RANGE_SECONDS}
            full = self.rejections.partitions() if self.rejections.full else set()
            return (self.committing.due() | full) & waiting.keys() | empty
        events = sum(r.events for r in waiting.values())
        oldest = min((r.since for r in waiting.values()), default=now)
        enough = self.rejections.paused or self.rejections.full or events >= self.sink.batch_size
        if enough or now - oldest >= self.sink.flush_interval:
            return set(waiting)
        return set()

    def flush(self, partitions: set[int]) -> None:
        """Make what was written of these partitions durable, and commit the channel."""
        assert self.reader is not None
        ranges = {p: r for p in partitions if (r := self.ranges.get(p)) is not None and r.end is not None}
        if not ranges:
            return
        if self.committing is not None:
            self.keep_notes()
            committed: dict[int, _Range] = {}
            try:
                for partition, pending in ranges.items():
                    if self.commit(partition, pending):
                        committed[partition] = pending
            finally:
                self.delivered(committed)  # when one of them fails, those before it are not taken again
        else:
            self.flush_sink()
            self.metrics.add("EventRejectedCount", self.rejections.keep())
            covered = {p: r for p, r in self.ranges.items() if r.end is not None}  # a flush covers all of them
            self.report(covered.values())
            self.delivered(covered)
        self.show_lag()
        self.recovered()

    def report(self, ranges: Iterable[_Range]) -> None:
        """Tell the audit what is about to be committed."""
        if self.channel.audit is not None:
            self.channel.audit.taken(
                (r.claim, r.start, r.end, r.minutes) for r in ranges if r.start is not None and r.end is not None
            )

    def delivered(self, ranges: Mapping[int, _Range]) -> None:
        """Commit the channel: what was taken of these partitions is durable."""
        assert self.reader is not None
        ends = {r.claim: r.end for r in ranges.values() if r.end is not None}
        if not ends:
            return
        self.metrics.add("EventDrainSuccessCount", sum(r.events for r in ranges.values()))
        self.metrics.add("BatchCompleteCount")
        for pending in ranges.values():
            pending.committed()
        self.rejections.committed()
        self.untold.update(ends)
        self.tell()

    def tell(self) -> None:
        """Tell the channel what is delivered, once dead letters are where an operator finds them."""
        assert self.reader is not None
        if self.committing is not None:
            self.keep_notes()
        if self.untold:
            self.reader.commit(self.untold)
            self.untold.clear()

    def forget_untold(self, partitions: Collection[int]) -> None:
        """They are others', or have another claim."""
        self.untold = {claim: end for claim, end in self.untold.items() if claim.partition not in partitions}

    def show_lag(self) -> None:
        """Update the gauge `Lag`, at most once a second: it asks the consumer."""
        assert self.reader is not None
        now = time.monotonic()
        if self.ranges and now - self._lag_shown >= 1.0:
            self._lag_shown = now
            if (lag := self.reader.lag()) is not None:
                waiting = sum(
                    r.end - r.start for r in self.ranges.values() if r.end is not None and r.start is not None
                )
                self.metrics.set("Lag", lag + waiting)

    def forget_failure(self) -> None:
        """A failure is over, too, when nothing is left to be delivered and nothing failed since, for a while."""
        if self.ranges and not self.waiting() and time.time() - self.metrics.last_error_time > QUIET_SECONDS:
            self.recovered()

    def commit(self, partition: int, pending: _Range) -> bool:
        """Stage and commit one partition; on Conflict go on where the other owner left off, and answer False."""
        assert self.committing is not None
        assert self.reader is not None
        assert pending.start is not None
        assert pending.end is not None
        letters = self.rejections.of(partition)
        try:
            receipt = self.committing.stage(pending.claim, pending.start, pending.end, to_note(letters))
            self.report([pending])
            self.committing.commit(receipt)
        except Conflict as e:
            self.log.warning("%s", e)
            claim, position = self.resume(pending.claim, pending.start)
            if position is not None:
                self.reader.rewind({partition: position})
                self.reader.commit({claim: position})
            self.keep_notes()
            return False
        self.rejections.lost({partition})
        self.notes[partition] = (pending.claim, letters)
        return True

    def resume(self, claim: Claim, position: int | None) -> tuple[Claim, int | None]:
        """Go on where the sink's own record says; with the dead letters that its newest commit has."""
        assert self.committing is not None
        partition = claim.partition
        self.forget_untold({partition})
        self.committing.reset(partition)
        self.rejections.lost({partition})
        found = self.committing.resume(claim, position)
        self.ranges[partition] = _Range(found.claim, found.position)
        self.notes[partition] = (found.claim, of_notes(found.notes))
        return found.claim, found.position

    def start_over(self) -> None:
        """Drop everything not committed and take it again."""
        assert self.reader is not None
        rewind: dict[int, int] = {}
        for partition, pending in self.ranges.items():
            if pending.start is not None:
                rewind[partition] = pending.start
            self.ranges[partition] = _Range(pending.claim, pending.start)
        self.rejections.start_over()
        self.reader.rewind(rewind)
        self.sink.reset()

    # --- Owner

    def assigned(self, committed: Mapping[Claim, int | None]) -> Mapping[Claim, int | None]:
        """Take partitions over, from the sink's own record where it keeps one."""
        starts: dict[Claim, int | None] = {}
        for claim, position in committed.items():
            if self.committing is not None:
                claim, position = self.resume(claim, position)
            else:
                claim = claim._replace(record="")
                self.ranges[claim.partition] = _Range(claim, position)
            starts[claim] = position
        if self.committing is not None:
            self.keep_notes()
        self.log.info("has partitions %s", sorted(self.ranges))
        return starts

    def revoked(self, partitions: set[int]) -> None:
        """Deliver what was taken of them while they are still ours."""
        try:
            self.flush(partitions)
        except Exception as e:  # noqa: BLE001  # the next owner takes it again from the last commit
            self.failed(e)
        self.lost(partitions)

    def lost(self, partitions: set[int]) -> None:
        """Forget them."""
        self.rejections.lost(partitions)
        self.forget_untold(partitions)
        for partition in partitions & self.ranges.keys():
            self.notes.pop(partition, None)
            if self.committing is not None:
                self.committing.reset(partition)
            del self.ranges[partition]


class ReaderFailed(Retry):
    """The channel's consumer cannot go on and is made anew."""
