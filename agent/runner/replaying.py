"""Replay of a time span of a channel's topic to one sink, in a consumer group of the replay's own.

The sink runs in this process, on a reader that ends with the span. Its consumer group, and its commit log if it has
one, are the replay's own, so the sink's live group stays untouched. The same span of the same sink has the same
group. A replay that was killed therefore resumes at its committed offsets when it is run again.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from flafka.agent.runner.agent import member_id
from flafka.agent.runner.deadletters.store import dead_letter_store
from flafka.agent.runner.drain import GroupDrain
from flafka.agent.runner.local import standalone
from flafka.agent.runner.local.channels import ChannelRunner
from flafka.agent.topology import AgentSpec, SinkSpec
from flafka.plugins import (
    Assignment,
    AtLeastOnceSink,
    Components,
    FlafkaError,
    OffsetRange,
    Reader,
    RebalanceListener,
    Retry,
    Sink,
    next_epoch,
    replay_group,
)
from flafka.plugins.kafka.rights import Access, Role
from flafka.plugins.kafka.topic import KafkaBackedChannel

REPLAY = Role(
    "`agent replay`", (Access("group", "the consumer groups that begin with `<group>.replay.`", ("Read",)),)
)

REPLAY_CHECK_SECONDS = 0.5
"""Interval at which a replay checks whether it has reached the end of its span."""
TRUNCATION_CHECK_SECONDS = 5.0
"""Interval of the checks whether the brokers still have all records of the span."""
SESSION_SECONDS = 60.0
"""Longest wait for the members of an earlier run to leave the group: more than the default session timeout."""
RESUME_HINT = "What it has delivered is committed: run it again, and it resumes there"


class PartitionSpan(NamedTuple):
    """Span of records in one partition, and the progress of the replay."""

    span: OffsetRange
    start: Assignment
    """Assignment with the next offset of the replay; the end of the span if the replay is complete."""
    oldest: int
    """Offset of the oldest record that retention has left in the topic."""
    committed: int | None
    """Committed offset of the replay's group; None before the first run."""

    @property
    def partition(self) -> int:
        """Number of the partition."""
        return self.start.partition

    @property
    def remaining(self) -> OffsetRange:
        """Offsets of the span that are not delivered yet; of size 0 if the replay of the partition is complete."""
        return OffsetRange(self.start.next_offset or 0, self.span.end)

    @property
    def final_offset(self) -> int:
        """Committed offset of a complete replay: end of the span, or oldest record if retention has removed the span.

        A larger offset is committed only if brokers have lost records.
        """
        return max(self.span.end, self.oldest)

    def describe_loss(self) -> str:
        """Return a sentence about records that brokers lost or retention removed; empty if no such loss is known."""
        if self.committed is not None and (end := self.final_offset) < self.committed:
            return (
                f"partition {self.partition}: this replay has committed offset {self.committed}, and the span ends "
                f"before record {end} now: the brokers have lost records, as when a replica that was behind becomes "
                "leader"
            )
        if self.committed is not None and self.committed < self.oldest:
            return (
                f"partition {self.partition}: this replay has committed offset {self.committed}, and the topic "
                f"begins with record {self.oldest} now: the records between were removed by retention"
            )
        if self.span.start == self.oldest > 0:
            return (
                f"partition {self.partition} begins with record {self.oldest}: earlier records were removed by "
                "retention"
            )
        return ""


class Outcome(NamedTuple):
    """Numbers of events of one run of a replay, by outcome, and of records that were removed."""

    delivered: int
    filtered: int
    """Number of events that the sink's interceptors dropped."""
    rejected: int
    """Number of events that became dead letters."""
    removed: int
    """Number of records that retention removed before the replay read them."""


@dataclass(frozen=True)
class Replay:
    """Replay of a span of one sink's channel."""

    spec: AgentSpec
    sink: SinkSpec
    channel: KafkaBackedChannel[Any]
    """The channel, open."""
    parts: tuple[PartitionSpan, ...]

    @property
    def group(self) -> str:
        """Consumer group of the replay."""
        return self.parts[0].start.group

    @property
    def is_begun(self) -> bool:
        """True if an earlier run has delivered at least one record of the span.

        A group that has only its start is not begun.
        """
        return any(
            part.committed is not None and (part.remaining != part.span or part.committed != part.span.start)
            for part in self.parts
        )

    @property
    def records(self) -> int:
        """Number of offsets that are not delivered yet, including records without events."""
        return sum(part.remaining.size for part in self.parts)

    def events(self) -> dict[int, int]:
        """Return the number of undelivered events by partition, without copies that `agent dlq replay` added.

        Reads all remaining records. Partitions with nothing left are missing. Raises Retry if brokers do not answer.
        """
        read = self.channel.kafka.read
        return {
            part.partition: sum(len(polled.without_replayed()) for polled in read(part.start, part.remaining))
            for part in self.parts
            if part.remaining.size
        }

    def duplicate_risk(self) -> str:
        """Return the reason why the sink may store duplicates after a kill; empty if it cannot. Raises Retry."""
        sink: Sink[Any] = self.sink.make()
        return sink.duplicate_risk(self.parts[0].start)

    def from_beginning(self) -> Replay:
        """Return a copy of this replay that begins with the first record of the span again, in a later generation.

        The run of the copy redelivers all events. The original and the group's offsets do not change.
        """
        epoch = next_epoch(max(part.start.generation.epoch for part in self.parts))
        parts = tuple(
            part._replace(start=part.start.replace(epoch=epoch).with_offset(part.span.start), committed=None)
            for part in self.parts
        )
        return replace(self, parts=parts)

    def _await_empty_group(self) -> None:
        """Block until the replay's group has no members: only then can offsets be committed without membership.

        A killed run stays a member until its session times out. Raises Retry after `SESSION_SECONDS`.
        """
        deadline = time.monotonic() + SESSION_SECONDS
        while members := self.channel.kafka.members(self.group):
            if time.monotonic() > deadline:
                raise Retry(f"this replay is already run by {', '.join(sorted(members))}")
            time.sleep(REPLAY_CHECK_SECONDS)

    def run(self, on_progress: Callable[[int], None] = lambda delivered: None) -> Outcome:
        """Deliver the rest of the span to the sink, block until it is delivered, and return the numbers of events.

        `on_progress` is called about twice a second with the number of events that this run has delivered. At the
        first run, the start offsets are committed for the group before.

        Raises Retry if the sink cannot deliver, after which another run resumes. Raises Hangs if the sink neither
        delivers nor fails. Raises FlafkaError if the topic was recreated or brokers have lost records of the span.
        """
        if begin := [part.start.with_offset(part.span.start) for part in self.parts if part.committed is None]:
            self._await_empty_group()
            self.channel.kafka.commit_offsets(begin)
        spec = self.spec.channel(self.sink.channel)
        ends = {part.partition: part.span.end for part in self.parts}
        channel = _SpanChannel(spec.path, spec.name, self)
        channel.ready.set()
        store = dead_letter_store(self.spec.name, spec, self.channel, self.spec.options)
        member = member_id(self.spec.name, f"{self.sink.name}.replay")
        runner = standalone.start(self.sink, channel, store, member, RESUME_HINT)
        metrics = runner.members[0].metrics
        try:
            drain = GroupDrain(channel, self.sink.group, [runner.members[0].delivery], [], ends)

            def is_complete() -> bool:
                on_progress(int(metrics.get("EventDrainSuccessCount")))
                if channel.error is not None:
                    raise channel.error
                if drain.is_complete() and channel.taken:
                    return True
                channel.check_truncation_periodically()
                return False

            standalone.wait(runner, is_complete, RESUME_HINT, REPLAY_CHECK_SECONDS)
        finally:
            standalone.stop(runner)
            store.close()
        names = ("EventDrainSuccessCount", "EventFilteredCount", "EventRejectedCount")
        delivered, filtered, rejected = (int(metrics.get(name)) for name in names)
        return Outcome(delivered, filtered, rejected, sum(channel.removed.values()))


class _SpanChannel(ChannelRunner):
    """Channel limited to a span. It has no audit, in which redelivered events would be discrepancies."""

    def __init__(self, path: str, name: str, replay: Replay) -> None:
        super().__init__(path, name, replay.channel)
        self.replay = replay
        self.parts = {part.partition: part for part in replay.parts}
        self.error: FlafkaError | None = None
        """Error that makes the rest of the span unavailable; None without one."""
        self.taken = False
        """True once partitions were assigned to the sink: by then an unfinished earlier commit is completed."""
        self._next_check = 0.0
        self.removed: dict[int, int] = {}
        """Number of records that retention removed before they were taken, by partition."""

    def check_truncation_periodically(self) -> None:
        """Call `check_truncation` at most once in `TRUNCATION_CHECK_SECONDS`, ignoring brokers that do not answer.

        Raises FlafkaError as `check_truncation` does.
        """
        if time.monotonic() < self._next_check:
            return
        self._next_check = time.monotonic() + TRUNCATION_CHECK_SECONDS
        with contextlib.suppress(Retry):
            self.check_truncation()

    def check_truncation(self) -> None:
        """Raise FlafkaError if a partition ends before the end of its span, as brokers have lost records of the span.

        The replay would otherwise wait for new records at the lost offsets, and deliver them as a part of the span.
        Raises Retry if brokers do not answer.
        """
        ends = self.replay.channel.kafka.end_offsets()
        for part in self.replay.parts:
            if (end := ends.get(part.partition, part.span.end)) < part.span.end:
                for committed in self.replay.channel.kafka.committed(self.replay.group):
                    self.check_topic(committed)
                self.error = FlafkaError(
                    f"partition {part.partition}: the brokers have lost records from {end} on, as when a replica "
                    "that was behind becomes leader. Run the replay again to deliver the rest of the span"
                )
                raise self.error

    def check_topic(self, committed: Assignment) -> None:
        """Raise FlafkaError if this assignment has another topic ID than the plan, as the topic was recreated."""
        part, topic = self.parts.get(committed.partition), committed.topic_partition
        if part is not None and topic.topic_id != part.start.topic_partition.topic_id:
            self.error = FlafkaError(
                f"topic {topic.topic} was deleted and recreated: the records that this replay had still to deliver "
                "are lost. Run it again to deliver the records that the new topic has of that time"
            )
            raise self.error

    def reader(self, owner: RebalanceListener, *, group: str | None, member: str) -> Reader:
        """Return a reader of the channel for the replay's group, which takes only records of the span."""
        reader = super().reader(_SpanListener(owner, self), group=group, member=member)
        reader.stop_at({part.partition: part.span.end for part in self.replay.parts})
        return reader


class _SpanListener:
    """Rebalance listener that keeps the starts of assigned partitions within the span."""

    def __init__(self, owner: RebalanceListener, span: _SpanChannel) -> None:
        self._owner, self._span = owner, span
        self.revoked, self.lost = owner.revoked, owner.lost

    def assigned(self, committed: Sequence[Assignment]) -> Sequence[Assignment]:
        """Return the sink's assignments with their offsets moved into the span.

        Records that retention has removed are skipped with a warning, and counted. Where brokers have lost records,
        delivery starts at the end of the span. Where the group was deleted, it starts at the beginning of the span.
        Raises the errors of `check_topic` and `check_truncation`.
        """
        begun = []
        for assignment in committed:
            part = self._span.parts.get(assignment.partition)
            self._span.check_topic(assignment)
            if part is not None and assignment.next_offset is None:
                assignment = part.start.with_offset(part.span.start)
            begun.append(assignment)
        self._span.check_truncation()
        oldest = self._span.replay.channel.kafka.beginning_offsets()
        starts = [self._within(start, oldest.get(start.partition, 0)) for start in self._owner.assigned(begun)]
        self._span.taken = True
        return starts

    def _within(self, start: Assignment, oldest: int) -> Assignment:
        """Return `start` with its offset moved into the span.

        `oldest` is the offset of the oldest record in the topic.
        """
        part, offset = self._span.parts.get(start.partition), start.next_offset
        if part is None or offset is None:  # a partition that was added later has no records of the span
            return start
        span = part.span
        if part.final_offset < offset:  # brokers have lost records, and newer ones at these offsets are no replay
            return start.with_offset(max(span.end, oldest))
        first = max(offset, span.start)
        if (end := min(oldest, span.end)) > first:
            text = "records %d to %d of %s were removed by retention before this replay read them"
            logging.getLogger(self._span.path).warning(text, first, end - 1, start.topic_partition)
            self._span.removed[start.partition] = self._span.removed.get(start.partition, 0) + end - first
        if (first := max(first, oldest)) == offset:
            return start
        return start.with_offset(first)


@contextmanager
def open_replay(spec: AgentSpec, name: str, start: int, end: int) -> Iterator[Replay]:
    """Open a sink's channel for the block, and yield the planned replay of a span of time to that sink.

    `name` is the name or path of the sink. `start` (inclusive) and `end` (exclusive) are milliseconds since the
    epoch. Nothing is delivered before `Replay.run`. Raises FlafkaError if the sink is not configured or cannot be
    replayed to, and Retry if brokers do not answer.
    """
    live = _sink(spec, name)
    channel_spec = spec.channel(live.channel)
    channel = channel_spec.make()
    if not isinstance(channel, KafkaBackedChannel):
        raise FlafkaError(
            f"{channel_spec.path} is a channel of type {channel_spec.cls.type_name}, which drops delivered events: "
            "nothing can be replayed. A channel in Kafka keeps events for the retention time of its topic"
        )
    # Before `open`, which creates a missing topic.
    known = channel.kafka.committed(live.group)
    channel.open()
    try:
        yield _plan(spec, live, channel, known, start, end)
    finally:
        channel.close()


def _sink(spec: AgentSpec, name: str) -> SinkSpec:
    """Return the sink with this name or path. Raises FlafkaError if there is none, or if it is a query on Spark."""
    sink = next((sink for sink in spec.sinks if name in (sink.name, sink.path)), None)
    if sink is None:
        raise FlafkaError(f"no sink {name}: there are {', '.join(sink.name for sink in spec.sinks)}")
    if not issubclass(sink.cls, Sink):
        raise FlafkaError(
            f"{sink.path} is a sink of type {sink.cls.type_name}: a replay would change the state of its queries. "
            "agent process runs its processor on stored events without any state"
        )
    return sink


def _plan(
    spec: AgentSpec,
    live: SinkSpec,
    channel: KafkaBackedChannel[Any],
    known: Sequence[Assignment],
    start: int,
    end: int,
) -> Replay:
    """Return the replay, with the span of each partition and the offset at which an earlier run stopped.

    `known` are the live group's assignments before the channel was opened. Raises Retry if the topic was just
    recreated or has no partitions.
    """
    group = replay_group(channel.kafka.stream(live.group).group, live.path, start, end)
    cls = Components().get("sink", live.cls.type_name) if issubclass(live.cls, AtLeastOnceSink) else live.cls
    sink = replace(live, cls=cls, group=group, runner="local")
    schemes = {one.partition: one.generation.id_scheme for one in known}
    starts, ends = channel.kafka.offsets_for_time(start), channel.kafka.offsets_for_time(end)
    oldest = channel.kafka.beginning_offsets()
    parts = []
    for committed in channel.kafka.committed(group):
        partition, offset = committed.partition, committed.next_offset
        if not all(partition in by_partition for by_partition in (schemes, starts, ends, oldest)):
            continue  # the partition was added just now, and has no records of the span
        span_start = max(starts[partition], oldest[partition])
        span_end = max(span_start, ends[partition])
        next_offset = span_start if offset is None else max(span_start, offset)
        if next_offset >= span_end or channel.kafka.is_empty_range(partition, next_offset, span_end):
            next_offset = span_end
        # With the event IDs of the live group, a store that identifies events by ID has no duplicates.
        own = committed if offset is not None else committed.replace(id_scheme=schemes[partition])
        resumed = own.with_offset(next_offset)
        parts.append(PartitionSpan(OffsetRange(span_start, span_end), resumed, oldest[partition], offset))
    if {one.topic_partition.topic_id for one in known} != {part.start.topic_partition.topic_id for part in parts}:
        raise Retry(f"the topic of {live.channel} was deleted and recreated just now: run it again")
    if not parts:
        raise Retry(f"the topic of {live.channel} has no partitions yet")
    return Replay(spec, sink, channel, tuple(sorted(parts, key=lambda part: part.partition)))
