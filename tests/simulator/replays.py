"""`agent replay` in a simulation: a span of the channel sent to the sink once more, and what must be true of that."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from flafka.plugins import FlafkaError
from tests.simulator.outcomes import Failure, Outcomes
from tests.simulator.plans import GROUP, SIMPLE, TOPIC
from tests.simulator.program import in_process

PROCESS = "again"
"""Name of the process of a replay."""
MOST_TRIES = 5
"""Number of runs of a replay once there are no more faults."""
GONE = re.compile(
    r"records (?P<first>\d+) to (?P<last>\d+) of \S+-(?P<partition>\d+) were removed by retention before"
)
BEGINS = re.compile(r"partition (?P<partition>\d+) begins with record (?P<end>\d+): earlier records were removed")
PASSED = re.compile(
    r"partition (?P<partition>\d+): this replay has committed offset (?P<first>\d+), .* (?P<end>\d+) now:"
)


@dataclass
class Span:
    """Time span of one replay."""

    start: int
    end: int
    """In milliseconds since the epoch."""
    ranges: dict[str, dict[int, tuple[int, int]]] = field(default_factory=dict, compare=False)
    """By topic id and partition: records first up to, not including, end."""
    anew: int = field(default=0, compare=False)
    """Number of runs with `--again`."""
    emptied: set[str] = field(default_factory=set, compare=False)
    """The ids of topics whose events were deleted from the store."""
    missing: set[bytes] = field(default_factory=set, compare=False)
    """Events that were deleted for this replay and may be missing: another replay may have restored some."""
    warned: bool = field(default=False, compare=False)
    """True if its latest run reported that `--again` may be necessary."""
    advised: bool = field(default=False, compare=False)
    """True if it reported that `--again` is necessary."""
    root: str = field(default="", compare=False)
    """Name of the directory of `hdfs.path` in the latest run."""
    moved: int = field(default=0, compare=False)
    """Number of runs, after one that did not complete, with another `hdfs.path`."""
    complete: str = field(default="", compare=False)
    """The id of the topic of which it said it was."""

    def of(self, topic: str, places: dict[tuple[int, int], None]) -> list[tuple[int, int]]:
        """Return the places within the span."""
        ranges = self.ranges.get(topic, {})
        return [(p, o) for p, o in places if p in ranges and ranges[p][0] <= o < ranges[p][1]]


class Replays(Outcomes):
    """Replays that are run beside agents, and again where they were killed."""

    spans: list[Span]
    replaying: int
    _later: list[tuple[Any, ...]]

    def do_replay_span(self, seconds: int, kill_after: float | None, anew: bool, when: str) -> None:
        """An operator has what came into the channel in so many seconds, or all, sent to the sink again."""
        if not self.brokers.count(TOPIC):
            return
        now = int(self.world.wall() * 1000)
        span = Span(now - seconds * 1000 if seconds else 0, now)
        if span in self.spans:  # the same replay
            return
        self.spans.append(span)
        if when == "late":
            self._later.append((span, kill_after, anew))
        else:
            self._replay_beside(span, kill_after, anew)

    def _replay_beside(self, span: Span, kill_after: float | None, anew: bool) -> None:
        self.replaying += 1

        def drive() -> None:
            self._replay_to_the_end(span, kill_after, anew)
            self.replaying -= 1

        self.world.spawn(drive, "operator", self.world.outside)

    def _replay_to_the_end(self, span: Span, kill_after: float | None, anew: bool) -> None:
        tries = 0
        while True:
            quiet = self._calm()
            advised, span.advised = span.advised, False
            from_start, life = advised or bool(anew and span.complete), self.world.lives[PROCESS] + 1
            if from_start:
                anew, span.anew = anew and advised, span.anew + 1
            if kill_after is not None:
                self.world.later(kill_after, lambda life=life: self._kill_replay(life))
                kill_after = None
            if self._replay_once(span, from_start=from_start):
                if not anew:
                    break
                continue
            if not quiet and self.world.random.random() < 0.1:
                self._forget()
            tries += quiet
            if tries > MOST_TRIES:
                raise Failure(f"a replay does not come to its end: {self.world.story[-1]}")
            self.world.sleep(20.0 if quiet else self.world.random.choice([0.5, 20.0]))

    def _forget(self) -> None:
        """Delete the group of a replay, unless a move of its commit log would be lost."""
        if self.moved:
            return
        self.forgotten = True
        for name in sorted({group for group, _ in self.groups} & self.brokers.groups.keys()):
            with contextlib.suppress(Exception):  # it has members
                self.brokers.delete_group(name)

    def _calm(self) -> bool:
        """Return True once there are no more faults."""
        here = self.world
        return here.quiet and here.now > max(here.delayed_until, self.brokers.away_until)

    def _kill_replay(self, life: int) -> None:
        process = self.world.models.get(PROCESS)
        if process is not None and process.life == life:
            process.kill()

    def _replay_once(self, span: Span, *, from_start: bool = False) -> bool:
        """Run it; whether it came to its end."""
        try:
            topic = in_process(self.world, PROCESS, lambda: self._replayed(span, from_start))
        except FlafkaError as e:
            self.world.log(f"{PROCESS}: {e}")
            warned, span.warned = span.warned, "--again delivers all" in str(e)
            span.advised = warned and span.warned
            return False
        span.complete = topic or span.complete
        if topic:
            span.missing -= self._of(span, topic)
        return bool(topic)

    def _replayed(self, span: Span, from_start: bool) -> str:
        """Replay the span as `agent replay` does, and return the topic's id."""
        from flafka.agent.runner.replaying import open_replay

        self.world.models[PROCESS] = self.world.process
        span.moved += not span.complete and span.root not in ("", self.roots["h1"])
        span.root = self.roots["h1"]
        with open_replay(self.spec("h1"), "k", span.start, span.end) as planned:
            planned = planned.from_beginning() if from_start else planned
            topic = planned.parts[0].start.topic_partition.topic_id
            ranges = span.ranges.setdefault(topic, {})
            for part in planned.parts:
                if (planned_span := part.span).size:
                    first, end = ranges.get(part.partition, (planned_span.start, planned_span.end))
                    ranges[part.partition] = min(first, planned_span.start), max(end, planned_span.end)
            self.groups |= {(part.start.group, part.start.generation.epoch) for part in planned.parts}
            self._lose_documents(span, topic)
            for lost in filter(None, (part.describe_loss() for part in planned.parts)):
                self.world.log(f"{PROCESS} says: {lost}")
            if planned.records:
                planned.run()
        return topic

    def _of(self, span: Span, topic: str) -> set[bytes]:
        return {body for body, places in self.logs.get(topic, {}).items() if span.of(topic, places)}

    def _lose_documents(self, span: Span, topic: str) -> None:
        """Delete the events of the span from the store, which is the reason for a replay."""
        if self.sink not in SIMPLE or topic in span.emptied:
            return
        span.emptied.add(topic)
        self._read_log()
        lost = self._of(span, topic) & self._stored().keys()
        span.missing |= lost
        self.deleted |= lost
        if self.sink == "solr":
            documents = self.solr.collections["events"]
            for name in [name for name, document in documents.items() if str(document["body_s"]).encode() in lost]:
                del documents[name]
        else:
            table = self.hbase.tables[b"events"]
            for row in [row for row, cells in table.rows().items() if cells[b"f:pCol"] in lost]:
                del table.cells[row]

    # --- the end

    def _replay_late(self) -> None:
        """Once all agents have ended: those that an operator has put off, and all of them once more."""
        for span, kill_after, anew in self._later:
            self._replay_to_the_end(span, kill_after, anew)
        for span in self.spans:
            before = deepcopy(span.ranges), self._by_replays()
            self._replay_to_the_end(span, None, anew=False)
            # What was on its way into the channel when its time was over is found now.
            if span.ranges == before[0] and (after := self._by_replays()) != before[1]:
                raise Failure(f"a replay was complete, and has delivered more then: {after - before[1]}")

    def _by_replays(self) -> Counter[bytes]:
        self._dead_letters()
        self._stored()
        return self.replay_deliveries + self.replay_dead_letters

    def _check_replays(self) -> None:
        """Check deliveries and dead letters of replays."""
        group = self.brokers.groups.get(GROUP)
        if group is not None and PROCESS in group.writers:
            raise Failure("a replay has changed the position of the agents' group")
        counts = self.replay_deliveries + self.replay_dead_letters
        most, least = Counter[bytes](), Counter[bytes]()
        for span in self.spans:
            for topic in span.ranges:
                for body, places in self.logs.get(topic, {}).items():
                    within = span.of(topic, places)
                    most[body] += len(within) * (1 + span.anew)
                    if not self.bodies[body]:  # with another path, a killed replay rejects it once more
                        most[body] += min(self.replay_dead_letters[body], len(within) * span.moved)
                    if topic == span.complete:
                        removed = [location for location in within if (topic, *location) in self.removed | self._cut]
                        least[body] += len(within) - len(removed)
                        self._check_reported(body, topic, removed, len(within) - counts[body])
        for body, times in counts.items():
            if times > most[body]:
                raise Failure(f"{body!r} was replayed {times} times, not {most[body]}")
        if self.sink in SIMPLE:
            counts = self.delivered + self.dead_letters + counts
            least = Counter({body: min(1, times) for body, times in least.items()})
        for body, times in least.items():
            if counts[body] < times:
                raise Failure(f"{body!r} was to be replayed {times} times, and was {counts[body]} times")

    def _check_reported(self, body: bytes, topic: str, removed: list[tuple[int, int]], short: int) -> None:
        if self.sink in SIMPLE:
            short = 0 if short <= 0 or self.delivered[body] + self.dead_letters[body] else 1
        for partition, offset in removed if short > 0 else ():
            if (topic, partition, offset) not in self._cut and not self._is_replay_loss_reported(partition, offset):
                raise Failure(f"{body!r} was removed before it was replayed, and no log line reports it")

    def _is_replay_loss_reported(self, partition: int, offset: int) -> bool:
        for line in self.world.story:
            match = GONE.search(line) or PASSED.search(line) or BEGINS.search(line)
            if match is not None and int(match["partition"]) == partition:
                numbers = match.groupdict()
                end = int(numbers["last"]) + 1 if "last" in numbers else int(numbers["end"])
                if int(numbers.get("first", 0)) <= offset < end:
                    return True
        return False
