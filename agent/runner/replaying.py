"""Replay of a time span of a channel's topic to one sink, in a consumer group of the replay's own.

The sink runs in this process, on a reader that ends with the span. Its consumer group and, where it keeps one, its
commit log are the replay's own, so that the sink's live group is not touched. The same span of the same sink has the
same group: a replay that was killed resumes at its committed offsets when it is run again.
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
from flafka.agent.runner.deadletters.letters import dead_letters_of
from flafka.agent.runner.drain import Goal
from flafka.agent.runner.local import alone
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
from flafka.plugins.kafka.topic import KafkaBackedChannel

REPLAY_CHECK_SECONDS = 0.5
"""Interval at which a replay checks whether it has reached the end of its span."""
LOST_SECONDS = 5.0
"""The brokers are asked after so long whether they still have all of the span."""
SESSION_SECONDS = 60.0
"""More than the session of a consumer that was killed, or of a static member that has ended, unless it was set so."""
LEFT = "What it has delivered is noted: run it again, and it goes on there"


class Part(NamedTuple):
    """The span in one partition."""

    span: OffsetRange
    start: Assignment
    """Assignment with the next offset of the replay; the end of the span where nothing is left."""
    oldest: int
    """Offset of the first record that retention has left in the topic."""
    committed: int | None
    """The committed offset of the replay's group."""

    @property
    def partition(self) -> int:
        """Number of the partition."""
        return self.start.partition

    @property
    def left(self) -> OffsetRange:
        """Offsets of the span that are left to deliver."""
        return OffsetRange(self.start.next_offset or 0, self.span.end)

    @property
    def reached_end(self) -> int:
        """Next offset of a complete replay; a larger one is committed only if brokers have lost records."""
        return max(self.span.end, self.oldest)

    def lost(self) -> str:
        """Return a description of the records that retention removed or brokers lost, as far as known, or nothing."""
        if self.committed is not None and (end := self.reached_end) < self.committed:
            return (
                f"partition {self.partition}: this replay has come to record {self.committed}, and what is left of "
                f"the span ends before record {end} now: the brokers have lost records, as when a replica that was "
                "behind becomes leader"
            )
        if self.committed is not None and self.committed < self.oldest:
            return (
                f"partition {self.partition}: this replay has come to record {self.committed}, and the topic begins "
                f"with record {self.oldest} now: what of the span lay between was removed by retention"
            )
        if self.span.start == self.oldest > 0:
            return (
                f"partition {self.partition} begins with record {self.oldest}: what came before was removed by "
                "retention"
            )
        return ""


class Outcome(NamedTuple):
    """Result of a run: number of events by outcome, and of records removed."""

    delivered: int
    filtered: int
    """Dropped by the sink's interceptors."""
    rejected: int
    """Dead letters now."""
    removed: int
    """Records that retention removed before the replay came to them."""


@dataclass(frozen=True)
class Replay:
    """A span of time, of one sink's channel. Times are in milliseconds since the epoch; `end` is not in it."""

    spec: AgentSpec
    sink: SinkSpec
    channel: KafkaBackedChannel[Any]
    """Open."""
    parts: tuple[Part, ...]

    @property
    def group(self) -> str:
        """The consumer group of the replay."""
        return self.parts[0].start.group

    @property
    def begun(self) -> bool:
        """True if an earlier run has delivered some of the span."""
        return any(
            part.committed is not None and (part.left != part.span or part.committed != part.span.start)
            for part in self.parts
        )

    @property
    def records(self) -> int:
        """Records that are left, those that hold no events included."""
        return sum(part.left.size for part in self.parts)

    def events(self) -> dict[int, int]:
        """Events that are left, by partition: all of them are read for that."""
        return {
            part.partition: sum(len(polled.fresh()) for polled in self.channel.kafka.read(part.start, part.left))
            for part in self.parts
            if part.left.size
        }

    def repeats(self) -> str:
        """Return the reason why the sink cannot guarantee exactly-once delivery; empty if it can."""
        made: Sink[Any] = self.sink.make()
        return made.duplicate_risk(self.parts[0].start)

    def again(self) -> Replay:
        """Return this replay from the beginning of the span, in a later generation, to redeliver all events."""
        epoch = next_epoch(max(part.start.generation.epoch for part in self.parts))
        parts = tuple(
            part._replace(start=part.start.of(epoch=epoch).at(part.span.start), committed=None) for part in self.parts
        )
        return replace(self, parts=parts)

    def _await_nobody(self) -> None:
        """A position can be set only while nobody is in the group: a run that is over is in it for its session."""
        deadline = time.monotonic() + SESSION_SECONDS
        while members := self.channel.kafka.members(self.group):
            if time.monotonic() > deadline:
                raise Retry(f"this replay is run by {', '.join(sorted(members))}")
            time.sleep(REPLAY_CHECK_SECONDS)

    def run(self, tell: Callable[[int], None] = lambda delivered: None) -> Outcome:
        """Deliver what is left, and return when it is delivered. Raises Retry where the sink cannot deliver: what it
        has delivered until then is noted. Raises FlafkaError where the topic is another one by now. `tell` is called
        now and then, with the events that are delivered."""
        if begin := [part.start.at(part.span.start) for part in self.parts if part.committed is None]:
            self._await_nobody()
            self.channel.kafka.commit_offsets(begin)
        described = self.spec.channel(self.sink.channel)
        ends = {part.partition: part.span.end for part in self.parts}
        channel = _Span(described.path, described.name, self)
        channel.ready.set()
        letters = dead_letters_of(self.spec.name, described, self.channel, self.spec.options)
        runner = alone.started(
            self.sink, channel, letters, member_id(self.spec.name, f"{self.sink.name}.replay"), LEFT
        )
        counted = runner.members[0].metrics
        try:
            goal = Goal(channel, self.sink.group, [runner.members[0].delivery], [], ends)

            def over() -> bool:
                tell(int(counted.get("EventDrainSuccessCount")))
                if channel.over is not None:
                    raise channel.over
                if goal.reached() and channel.taken:
                    return True
                channel.look_now_and_then()
                return False

            alone.wait(runner, over, LEFT, REPLAY_CHECK_SECONDS)
        finally:
            alone.stop(runner)
            letters.close()
        names = ("EventDrainSuccessCount", "EventFilteredCount", "EventRejectedCount")
        delivered, filtered, rejected = (int(counted.get(name)) for name in names)
        return Outcome(delivered, filtered, rejected, sum(channel.removed.values()))


class _Span(ChannelRunner):
    """The span of the channel, without its audit: what is delivered again is no difference."""

    def __init__(self, path: str, name: str, replay: Replay) -> None:
        super().__init__(path, name, replay.channel)
        self.replay = replay
        self.parts = {part.partition: part for part in replay.parts}
        self.over: FlafkaError | None = None
        """Error that makes the rest of the span unavailable; None without one."""
        self.taken = False
        """True once partitions were assigned to the sink: by then an unfinished earlier commit is completed."""
        self._look_due = 0.0
        self.removed: dict[int, int] = {}
        """By partition: records that retention removed before they were taken."""

    def look_now_and_then(self) -> None:
        """Look, but where the brokers do not answer."""
        if time.monotonic() < self._look_due:
            return
        self._look_due = time.monotonic() + LOST_SECONDS
        with contextlib.suppress(Retry):
            self.look()

    def look(self) -> None:
        """Raise FlafkaError where brokers have lost records of the span: others would take their places, which came
        later, and it would not end before they do."""
        ends = self.replay.channel.kafka.ends()
        for part in self.replay.parts:
            if (end := ends.get(part.partition, part.span.end)) < part.span.end:
                for committed in self.replay.channel.kafka.committed(self.replay.group):
                    self.refuse_another(committed)
                self.over = FlafkaError(
                    f"partition {part.partition}: the brokers have lost records from {end} on, as when a replica "
                    "that was behind becomes leader. Run the replay again, and it goes on with what is left"
                )
                raise self.over

    def refuse_another(self, committed: Assignment) -> None:
        """Raise FlafkaError where that is in another topic than the span's, of the same name."""
        part, found = self.parts.get(committed.partition), committed.topic_partition
        if part is not None and found.topic_id != part.start.topic_partition.topic_id:
            self.over = FlafkaError(
                f"topic {found.topic} was deleted and created again: what this replay had still to deliver is lost. "
                "Run again, it delivers what the new topic has of that time"
            )
            raise self.over

    def reader(self, owner: RebalanceListener, *, group: str | None, member: str) -> Reader:
        """One that begins and ends with it."""
        reader = super().reader(_Within(owner, self), group=group, member=member)
        reader.stop_at({part.partition: part.span.end for part in self.replay.parts})
        return reader


class _Within:
    """Has a sink take partitions over within the span, whatever became of the topic and of the replay's group."""

    def __init__(self, owner: RebalanceListener, span: _Span) -> None:
        self._owner, self._span = owner, span
        self.revoked, self.lost = owner.revoked, owner.lost

    def assigned(self, committed: Sequence[Assignment]) -> Sequence[Assignment]:
        """Return the assignments, with next offsets within the span.

        Skip records that retention has removed, with a warning. Start at the end of what is left where brokers have
        lost records, and at the beginning of the span where the group was deleted.
        """
        begun = []
        for one in committed:
            part = self._span.parts.get(one.partition)
            self._span.refuse_another(one)
            begun.append(one if part is None or one.next_offset is not None else part.start.at(part.span.start))
        self._span.look()
        oldest = self._span.replay.channel.kafka.starts()
        starts = [self._within(start, oldest.get(start.partition, 0)) for start in self._owner.assigned(begun)]
        self._span.taken = True
        return starts

    def _within(self, start: Assignment, oldest: int) -> Assignment:
        part, offset = self._span.parts.get(start.partition), start.next_offset
        if part is None or offset is None:  # added since: nothing of it is in the span
            return start
        span = part.span
        if part.reached_end < offset:  # other records may be there by now, and none of them is in the span
            return start.at(max(span.end, oldest))
        first = max(offset, span.start)
        if (end := min(oldest, span.end)) > first:
            text = "records %d to %d of %s were removed by retention before this replay came to them"
            logging.getLogger(self._span.path).warning(text, first, end - 1, start.topic_partition)
            self._span.removed[start.partition] = self._span.removed.get(start.partition, 0) + end - first
        if (first := max(first, oldest)) == offset:
            return start
        return start.at(first)


@contextmanager
def replay_of(spec: AgentSpec, name: str, start: int, end: int) -> Iterator[Replay]:
    """The replay to that sink of what came from `start` up to, not including, `end`, with its channel open.

    Raises FlafkaError, in a sentence, where there is none to be had, and Retry where brokers do not answer.
    """
    live = _sink(spec, name)
    described = spec.channel(live.channel)
    channel = described.make()
    if not isinstance(channel, KafkaBackedChannel):
        raise FlafkaError(
            f"{described.path} is a channel of type {described.cls.type_name}, which forgets what is delivered: "
            "nothing can be replayed. A channel in Kafka keeps it as long as its topic does"
        )
    known = channel.kafka.committed(
        live.group
    )  # before the channel is opened, which would make a topic that is missing
    channel.open()
    try:
        yield _planned(spec, live, channel, known, start, end)
    finally:
        channel.close()


def _sink(spec: AgentSpec, name: str) -> SinkSpec:
    found = next((sink for sink in spec.sinks if name in (sink.name, sink.path)), None)
    if found is None:
        raise FlafkaError(f"no sink {name}: there are {', '.join(sink.name for sink in spec.sinks)}")
    if not issubclass(found.cls, Sink):
        raise FlafkaError(
            f"{found.path} is a sink of type {found.cls.type_name}: its queries have a state that a replay would "
            "change. agent process runs its processor on stored events and keeps nothing"
        )
    return found


def _planned(
    spec: AgentSpec,
    live: SinkSpec,
    channel: KafkaBackedChannel[Any],
    known: Sequence[Assignment],
    start: int,
    end: int,
) -> Replay:
    group = replay_group(channel.kafka.stream(live.group).group, live.path, start, end)
    cls = Components().get("sink", live.cls.type_name) if issubclass(live.cls, AtLeastOnceSink) else live.cls
    sink = replace(live, cls=cls, group=group, runner="local")
    schemes = {one.partition: one.generation.id_scheme for one in known}
    firsts, ends, oldest = channel.kafka.at(start), channel.kafka.at(end), channel.kafka.starts()
    parts = []
    for committed in channel.kafka.committed(group):
        partition, offset = committed.partition, committed.next_offset
        if not all(partition in found for found in (schemes, firsts, ends, oldest)):
            continue  # it has just been added
        first = max(firsts[partition], oldest[partition])
        last = max(first, ends[partition])
        at = first if offset is None else max(first, offset)
        if at >= last or channel.kafka.is_vacant(partition, at, last):
            at = last
        # Events have the ids that they have for the live group: a store that has them by id is not doubled.
        own = committed if offset is not None else committed.of(id_scheme=schemes[partition])
        parts.append(Part(OffsetRange(first, last), own.at(at), oldest[partition], offset))
    if {one.topic_partition.topic_id for one in known} != {part.start.topic_partition.topic_id for part in parts}:
        raise Retry(f"the topic of {live.channel} was deleted and created again just now: run it again")
    if not parts:
        raise Retry(f"the topic of {live.channel} has no partitions yet")
    return Replay(spec, sink, channel, tuple(sorted(parts, key=lambda part: part.partition)))
