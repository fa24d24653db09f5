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
"""What a replay's process is called."""
MOST_TRIES = 5
"""So often it is run once nothing goes wrong any more."""
GONE = re.compile(
    r"records (?P<first>\d+) to (?P<last>\d+) of \S+-(?P<partition>\d+) were removed by retention before"
)
BEGINS = re.compile(r"partition (?P<partition>\d+) begins with record (?P<end>\d+): what came before was removed")
PASSED = re.compile(
    r"partition (?P<partition>\d+): this replay has come to record (?P<first>\d+), .* (?P<end>\d+) now:"
)


@dataclass
class Span:
    """What one replay is to deliver."""

    start: int
    end: int
    """In milliseconds since the epoch."""
    ranges: dict[str, dict[int, tuple[int, int]]] = field(default_factory=dict, compare=False)
    """By topic id and partition: records first up to, not including, end."""
    anew: int = field(default=0, compare=False)
    """How often it was begun anew."""
    emptied: set[str] = field(default_factory=set, compare=False)
    """The ids of topics whose events were deleted from the store."""
    missing: set[bytes] = field(default_factory=set, compare=False)
    """What was deleted for it and is not there again for certain: another replay may have brought it back before."""
    told: bool = field(default=False, compare=False)
    """Whether it has said last that it may have to be begun anew."""
    advised: bool = field(default=False, compare=False)
    """Whether it has said that it is to be begun anew."""
    complete: str = field(default="", compare=False)
    """The id of the topic of which it said it was."""

    def of(self, topic: str, places: dict[tuple[int, int], None]) -> list[tuple[int, int]]:
        """Those of the places that are in it."""
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
            again, life = advised or bool(anew and span.complete), self.world.lives[PROCESS] + 1
            if again:
                anew, span.anew = anew and advised, span.anew + 1
            if kill_after is not None:
                self.world.later(kill_after, lambda life=life: self._kill_replay(life))
                kill_after = None
            if self._replay_once(span, again=again):
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
        """Its group is deleted, or its offsets expire. What was left in an old place cannot be found then."""
        if self.moved:
            return
        self.forgotten = True
        for name in sorted({group for group, _ in self.groups} & self.brokers.groups.keys()):
            with contextlib.suppress(Exception):  # it has members
                self.brokers.delete_group(name)

    def _calm(self) -> bool:
        """Whether all is well from now on."""
        here = self.world
        return here.quiet and here.now > max(here.delayed_until, self.brokers.away_until)

    def _kill_replay(self, life: int) -> None:
        process = self.world.models.get(PROCESS)
        if process is not None and process.life == life:
            process.kill()

    def _replay_once(self, span: Span, *, again: bool = False) -> bool:
        """Run it; whether it came to its end."""
        try:
            topic = in_process(self.world, PROCESS, lambda: self._replayed(span, again))
        except FlafkaError as e:
            self.world.told(f"{PROCESS}: {e}")
            told, span.told = span.told, "--again delivers all" in str(e)
            span.advised = told and span.told
            return False
        span.complete = topic or span.complete
        if topic:
            span.missing -= self._of(span, topic)
        return bool(topic)

    def _replayed(self, span: Span, again: bool) -> str:
        """As `agent replay` does; answers the topic's id."""
        from flafka.agent.runner.replaying import replay_of

        self.world.models[PROCESS] = self.world.process
        with replay_of(self.spec("h1"), "k", span.start, span.end) as planned:
            planned = planned.again() if again else planned
            topic = planned.parts[0].start.topic_partition.topic_id
            ranges = span.ranges.setdefault(topic, {})
            for part in planned.parts:
                if (whole := part.span).size:
                    first, end = ranges.get(part.partition, (whole.start, whole.end))
                    ranges[part.partition] = min(first, whole.start), max(end, whole.end)
            self.groups |= {(part.start.group, part.start.generation.epoch) for part in planned.parts}
            self._lose_documents(span, topic)
            for lost in filter(None, (part.lost() for part in planned.parts)):
                self.world.told(f"{PROCESS} says: {lost}")
            if planned.records:
                planned.run()
        return topic

    def _of(self, span: Span, topic: str) -> set[bytes]:
        return {body for body, places in self.logs.get(topic, {}).items() if span.of(topic, places)}

    def _lose_documents(self, span: Span, topic: str) -> None:
        """Why it is run: what it is to deliver was deleted from the store."""
        if self.sink not in SIMPLE or topic in span.emptied:
            return
        span.emptied.add(topic)
        self._read_log()
        lost = self._of(span, topic) & self._stored().keys()
        span.missing |= lost
        self.deleted |= lost
        if self.sink == "solr":
            documents = self.solr.collections["events"]
            for name in [name for name, one in documents.items() if str(one["body_s"]).encode() in lost]:
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
        self._letters()
        self._stored()
        return self.again_delivered + self.again_letters

    def _check_replays(self) -> None:
        """Given the letters and what was delivered, as they were found."""
        group = self.brokers.groups.get(GROUP)
        if group is not None and PROCESS in group.writers:
            raise Failure("a replay has changed the position of the agents' group")
        had = self.again_delivered + self.again_letters
        most, least = Counter[bytes](), Counter[bytes]()
        for span in self.spans:
            for topic in span.ranges:
                for body, places in self.logs.get(topic, {}).items():
                    within = span.of(topic, places)
                    most[body] += len(within) * (1 + span.anew)
                    if topic == span.complete:
                        gone = [at for at in within if (topic, *at) in self.removed | self._cut]
                        least[body] += len(within) - len(gone)
                        self._check_told(body, topic, gone, len(within) - had[body])
        for body, times in had.items():
            if times > most[body]:
                raise Failure(f"{body!r} was replayed {times} times, not {most[body]}")
        if self.sink in SIMPLE:
            had = self.delivered + self.letters + had
            least = Counter({body: min(1, times) for body, times in least.items()})
        for body, times in least.items():
            if had[body] < times:
                raise Failure(f"{body!r} was to be replayed {times} times, and was {had[body]} times")

    def _check_told(self, body: bytes, topic: str, gone: list[tuple[int, int]], short: int) -> None:
        if self.sink in SIMPLE:
            short = 0 if short <= 0 or self.delivered[body] + self.letters[body] else 1
        for partition, offset in gone if short > 0 else ():
            if (topic, partition, offset) not in self._cut and not self._replay_told(partition, offset):
                raise Failure(f"{body!r} was removed before it was replayed, and nobody says so")

    def _replay_told(self, partition: int, offset: int) -> bool:
        for line in self.world.story:
            found = GONE.search(line) or PASSED.search(line) or BEGINS.search(line)
            if found is not None and int(found["partition"]) == partition:
                said = found.groupdict()
                end = int(said["last"]) + 1 if "last" in said else int(said["end"])
                if int(said.get("first", 0)) <= offset < end:
                    return True
        return False
