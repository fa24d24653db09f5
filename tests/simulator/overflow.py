"""Schedules of a Kafka channel with disk overflow: outages of brokers, and kills of the agent.

The agent, its Kafka channel and its overflow are the real code; brokers and disk are modelled.
"""

from __future__ import annotations

import itertools
import logging
import random
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Any

from flafka.plugins import Assignment, Batch, Channel, Event, OffsetRange, Origin, PolledBatch, Reader, Retry
from tests.fixtures.partitions import assignment
from tests.simulator import steps
from tests.simulator.agent_steps import carry_out
from tests.simulator.faults import Chances, Kind
from tests.simulator.kafka import Brokers
from tests.simulator.outcomes import Failure, Feed
from tests.simulator.plans import Plan
from tests.simulator.processes import Signal
from tests.simulator.program import AgentProcess, configured, logged, seeded
from tests.simulator.world import World, simulation, world

TOPIC, HOST = "t", "h1"
PATIENCE_SECONDS = 5
CONFIGURATION = f"""
a.sources = s
a.channels = c disk
a.sources.s.type = seq
a.sources.s.channels = c
a.channels.c.type = kafka
a.channels.c.kafka.bootstrap.servers = sim:9092
a.channels.c.kafka.topic = {TOPIC}
a.channels.c.partitions = 1
a.channels.c.replication = 1
a.channels.c.overflow = disk
a.channels.c.overflowTimeout = {PATIENCE_SECONDS}
a.channels.disk.type = file
"""
KINDS = {
    "put": 6,
    "stream": 5,
    "outage": 6,
    "away": 4,
    "flap": 2,
    "kill": 3,
    "start": 4,
    "stop": 2,
    "pause": 2,
    "full": 1,
    "caught": 3,
}
"""Weights of the kinds of steps."""
CALLS = ("disk.put", "disk.commit", "kafka.produce")
"""Amid which an agent is killed or falls asleep."""
LENGTHS = (1, 2, 3, 3, 4, 5, 8, 12)


def plan_of(seed: int) -> OverflowPlan:
    """The one of that seed."""
    chance = random.Random(seed)
    plan = []
    if chance.random() < 0.3:
        plan.append(steps.in_flight(4))
    if chance.random() < 0.3:
        plan.append(steps.away("kafka", seconds=chance.choice([3.0, 40.0])))
    plan += [steps.start(), steps.put(good=chance.randint(1, 4), after=2.0)]
    for kind in chance.choices(list(KINDS), list(KINDS.values()), k=chance.choice(LENGTHS)):
        drawn = {
            "put": steps.put(good=chance.randint(1, 6)),
            "stream": steps.stream(chance.randint(4, 30), every=chance.choice([0.05, 0.3, 2.0])),
            "outage": steps.outage(chance.choice([20.0, 60.0, 120.0])),
            "away": steps.away("kafka", seconds=chance.choice([1.0, 4.0, 8.0, 40.0])),
            "flap": steps.flap(
                chance.randint(2, 4), away=chance.choice([3.0, 7.0]), there=chance.choice([0.1, 2.0, 6.0])
            ),
            "pause": steps.pause(seconds=chance.choice([1.0, 10.0, 60.0])),
            "full": steps.full(chance.choice([3.0, 30.0])),
            "caught": steps.caught_amid(chance.choice(CALLS), how=chance.choice(["asleep", "gone", "gone"])),
            "start": steps.start(),
            "stop": steps.stop(),
            "kill": steps.kill(),
        }
        plan.append(drawn[kind]._replace(after=chance.choice([0.0, 0.5, 2.0, 6.0, 20.0])))
    return OverflowPlan(seed, "overflow", plan, share=chance.choice([0.0, 0.005, 0.02]))


@dataclass
class Disk:
    """Contents of a channel `file`, which survive its agent."""

    entries: list[Batch] = field(default_factory=list)
    committed: int = 0
    full_until: float = 0.0
    joined: int = 1
    """At most so many entries are taken together."""
    changed: Any = None


class DiskChannel(Channel[Any]):
    """The model of the channel `file`."""

    type_name = "file"
    durable = True

    @property
    def disk(self) -> Disk:
        disk: Disk = world().models["disk"]
        return disk

    def open(self) -> None:
        self.show()

    def put(self, batch: Batch) -> None:
        disk, here = self.disk, world()
        while disk.full_until > here.now:
            if self.stopping.is_set():
                raise Retry("there is no room and the agent is stopping")
            here.sleep(min(0.5, disk.full_until - here.now))
        fault = here.call("disk.put", seconds=0.002)
        disk.entries.append(Batch.from_ipc(batch.to_ipc()))
        self.show()
        disk.changed.fire()
        here.answered(fault)

    def show(self) -> None:
        disk = self.disk
        self.metrics.set("ChannelSize", sum(map(len, disk.entries[disk.committed :])))

    def reader(self, owner: Any, *, group: str | None, member: str) -> Reader:
        return DiskReader(self, owner)


class DiskReader(Reader):
    """Joins entries as that of the channel `file` does: what is taken again comes with all that it was taken with."""

    def __init__(self, channel: DiskChannel, owner: Any) -> None:
        self._channel, self._owner = channel, owner
        self._assignment = assignment("file", "disk", "the-id", "disk", 0, 0)
        self._offset: int | None = None

    def take(self, timeout: float) -> PolledBatch | None:
        disk = self._channel.disk
        if self._offset is None:
            self._owner.assigned([self._assignment.with_offset(disk.committed or None)])
            self._offset = disk.committed
        if self._offset >= len(disk.entries) and timeout:
            disk.changed.idle(timeout, 5.0)
        start = self._offset
        entries = disk.entries[start : start + disk.joined]
        if not entries:
            return None
        self._offset = start + len(entries)
        parts = [
            Batch(batch.records, Origin.of_record("disk", 0, start + index, 0, len(batch)))
            for index, batch in enumerate(entries)
        ]
        return PolledBatch(self._assignment, OffsetRange(start, self._offset), Batch.concat(parts))

    def commit(self, delivered: Collection[Assignment]) -> None:
        here = world()
        fault = here.call("disk.commit", seconds=0.002)
        (self._channel.disk.committed,) = (end.next_offset or 0 for end in delivered)
        self._channel.show()
        here.answered(fault)

    def rewind(self, starts: Collection[Assignment]) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """Do nothing."""


@dataclass
class OverflowPlan(Plan):
    """Plan for one agent with an overflow."""

    def run(self, *, verbose: bool = False) -> OverflowRun:
        """Not yet begun."""
        return OverflowRun(self, verbose=verbose)


class OverflowRun:
    """One plan carried out."""

    def __init__(self, plan: OverflowPlan, *, verbose: bool = False) -> None:
        self.plan = plan
        kinds = frozenset(Kind) - {Kind.REFUSED}  # of a put that fails, the source repeats all
        chances = Chances(plan.share, {"disk.put": 3.0, "disk.commit": 5.0}, kinds, {HOST})
        self.world = World(plan.seed, chances=chances, given=plan.faults, verbose=verbose)
        self.agent: AgentProcess | None = None
        self.agents: list[AgentProcess] = []
        self.numbers = itertools.count()
        self.held_up = 0.0
        """Until when the disk, or a sleeping agent, may keep sources from going on."""

    def go(self) -> None:
        """Raises Failure, or what else went wrong."""
        seeded(self.plan.seed)
        with simulation(self.world), logged(logging.INFO if self.world.verbose else logging.WARNING):
            self.brokers = self.world.models["kafka"] = Brokers(self.world)
            joined = self.world.random.choice([1, 2, 5, 100])
            self.disk = self.world.models["disk"] = Disk(joined=joined, changed=Signal(self.world))
            self.feed = self.world.models["feed"] = Feed(changed=Signal(self.world))
            self.world.run(self._main)

    def _main(self) -> None:
        carry_out(self)
        self._end()
        self._check()

    # --- what happens

    def do_start(self, host: str = HOST) -> None:
        if self.agent is None or not self.agent.running:
            spec = configured(CONFIGURATION)
            channels = tuple(replace(c, cls=DiskChannel) if c.name == "disk" else c for c in spec.channels)
            self.agent = AgentProcess(self.world, host, replace(spec, channels=channels), feeding=True)
            self.agents.append(self.agent)

    def do_put(self, good: int) -> None:
        self.feed.waiting.append([Event(b"%d" % next(self.numbers)) for _ in range(good)])
        self.feed.changed.fire()

    def do_stream(self, batches: int, every: float) -> None:
        def put() -> None:
            for _ in range(batches):
                self.do_put(self.world.random.randint(1, 3))
                self.world.sleep(every)

        self.world.spawn(put, "stream", self.world.outside)

    def do_away(self, server: str, seconds: float) -> None:
        assert server == "kafka"
        self.brokers.away(seconds)

    def do_flap(self, times: int, away: float, there: float) -> None:
        for _ in range(times):
            self.do_away("kafka", away)
            self.do_put(2)
            self.world.sleep(away + there)

    def do_outage(self, seconds: float) -> None:
        """Sources go on, unless something else happens to the agent."""
        self.do_start()
        agent = self.agent
        assert agent is not None
        self.brokers.away(seconds)
        faults, last = len(self.world.faults), next(self.numbers)
        self.feed.waiting.append([Event(b"%d" % last)])
        self.feed.changed.fire()
        patience = 3 * PATIENCE_SECONDS + 2 * len(self.feed.waiting)
        self.world.sleep(patience)
        disturbed = (
            len(self.world.faults) > faults
            or max(self.held_up, agent.process.paused_until) > self.world.now - patience
        )
        if agent.running and not agent.stop_requested and not disturbed and b"%d" % last not in self.feed.stored:
            raise Failure(f"a source waits for {patience:.0f} s for brokers that are away")

    def do_kill(self, host: str) -> None:
        if self.agent is not None:
            self.agent.process.kill()

    def do_stop(self, host: str) -> None:
        if self.agent is not None and self.agent.running:
            self.agent.stop()

    def do_pause(self, host: str, seconds: float) -> None:
        if self.agent is not None and self.agent.running:
            self._hold_up(seconds)
            self.agent.process.pause(seconds)

    def do_full(self, seconds: float) -> None:
        self._hold_up(seconds)
        self.disk.full_until = self.world.now + seconds

    def _hold_up(self, seconds: float) -> None:
        self.held_up = max(self.held_up, self.world.now + seconds)

    def do_in_flight(self, most: int) -> None:
        self.feed.in_flight = most

    def do_caught_amid(self, call: str, how: str) -> None:
        """Pause or kill the agent at its next call of that name, during short outages of the brokers."""
        self.do_start()
        kinds = (Kind.PAUSED, Kind.PAUSED_AFTER) if how == "asleep" else (Kind.KILLED, Kind.KILLED_AFTER)
        self.do_away("kafka", 8.0)
        self.do_stream(8, 1.0)
        self.world.sleep(self.world.random.choice([0.5, 7.0]))
        kind = self.world.random.choice(kinds)
        if self.world.given is None:  # else the fault is one of those
            self.world.arm(HOST, call, kind, 20.0)
        self.world.sleep(10)
        self.world.disarm(HOST, call)

    # --- the end

    def _end(self) -> None:
        """Wait without faults until the overflow must be empty."""
        self.world.quiet = True
        self.world.sleep(70)
        self.do_start()
        assert self.agent is not None
        while self.agent.stop_requested and self.agent.running:
            self.world.sleep(1)
        while True:  # a call that began before may still kill it
            self.do_start()
            quiet = max(self.brokers.away_until, self.disk.full_until, self.agent.process.paused_until)
            self.world.sleep(max(0.0, quiet - self.world.now) + 60)
            if self.agent.running:
                break
        deadline = self.world.now + 120
        while self.feed.waiting and self.world.now < deadline:
            self.world.sleep(1)
        self.world.sleep(4 * PATIENCE_SECONDS)

    def _check(self) -> None:
        from flafka.channels.kafka.records import FORMAT, decode_batch

        assert self.agent is not None
        metrics = self.agent.agent.channels["c"].metrics
        if self.feed.waiting or metrics.get("Overflowing") or self.disk.committed < len(self.disk.entries):
            raise Failure(
                f"it overflows though all is well: {len(self.feed.waiting)} batches wait, the disk holds entries "
                f"from {self.disk.committed} to {len(self.disk.entries)}"
            )
        entries = len(self.disk.entries)
        self.do_put(2)
        self.world.sleep(3)
        if len(self.disk.entries) > entries or self.feed.waiting:
            raise Failure("an event goes to the disk though all is well")
        records = [(dict(entry.headers or ()), entry.value) for entry in self.brokers.records(TOPIC, 0)]
        arrived_events = [event for headers, value in records for event in decode_batch(headers[FORMAT], value)]
        arrived = [event.body for event in arrived_events]
        if lost := set(self.feed.stored) - set(arrived):
            raise Failure(f"{len(lost)} events were stored and are lost, such as {min(lost, key=int)!r}")
        reported = sum(
            agent.agent.channels["c"].metrics.get("OverflowRepeatedCount")
            for agent in self.agents
            if agent.agent is not None
        )
        first = [int(body) for body in dict.fromkeys(arrived)]
        # Batches in flight at the start of an outage may be sent again behind later ones.
        if first != sorted(first) and (self.feed.in_flight == 1 or not reported):
            raise Failure(f"events are not in their order: {first}")
        if any(event.headers for event in arrived_events):
            raise Failure("an event has a header that no source has set")
        twice = sum(Counter(arrived).values()) - len(set(arrived))
        if twice > reported:
            raise Failure(f"{twice} events came twice, and {reported:.0f} were told of")
