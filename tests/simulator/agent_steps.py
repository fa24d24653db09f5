"""Steps that concern agents, operators and servers: a method `do_NAME` for each kind."""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

from tests.simulator.faults import Kind
from tests.simulator.kafka_steps import BAD, KafkaSteps
from tests.simulator.outcomes import Failure
from tests.simulator.plans import GROUP, MENDED, TOPIC, step_of
from tests.simulator.program import AgentProcess, in_process
from tests.simulator.steps import Step

ASLEEP_SECONDS = 70.0
"""Length of the pause of an agent in `caught`: its session times out."""


def carry_out(run: Any) -> None:
    """Do what the plan of that run says, step by step, each by a method `do_…` of the run."""
    for step in run.plan.steps:
        run.world.sleep(step.after)
        run.world.log(f"--- {step}")
        perform(run, step)


def perform(run: Any, step: Step) -> None:
    """Have the run do it, by its method `do_NAME`."""
    getattr(run, f"do_{step.name}")(**step.arguments)


class AgentSteps(KafkaSteps):
    """Runs with the steps that concern agents, operators and servers."""

    def do_start(self, host: str) -> None:
        there = self.agents.get(host)
        if there is None or not there.running:
            self.agents[host] = AgentProcess(self.world, host, self.spec(host), feeding=True)

    def do_kill(self, host: str) -> None:
        if host in self.agents:
            self.agents[host].process.kill()

    def do_stop(self, host: str) -> None:
        if host in self.agents and self.agents[host].running:
            self.agents[host].stop()

    def do_pause(self, host: str, seconds: float) -> None:
        if host in self.agents and self.agents[host].running:
            self.agents[host].process.pause(seconds)

    def do_exhaust(self, host: str, seconds: float) -> None:
        if host in self.agents and self.agents[host].running:
            self.agents[host].process.exhaust(seconds)

    def do_caught(self, host: str, call: str, how: str, meanwhile: str) -> None:
        """An agent falls asleep, or is killed, at its next call of that kind; something happens until it is back."""
        self.do_start(host)
        then = self.world.random
        process = self._delivering(host)
        kinds = (Kind.PAUSED, Kind.PAUSED_AFTER) if how == "asleep" else (Kind.KILLED, Kind.KILLED_AFTER)
        kind = then.choice(kinds)
        if self.world.given is None:  # else the fault is one of those
            self.world.arm(process, call, kind, ASLEEP_SECONDS)
        self.do_put(2)
        self.do_put(bad=1)
        self.world.sleep(8)
        if meanwhile in ("reset", "delete-group", "foreign"):
            self._ended(self._other(host))
        self.world.sleep(16)  # its session is over
        self.world.disarm(process, call)
        if meanwhile != "start":
            self.world.log(f"--- {(step := step_of(meanwhile, self.sink, then)._replace(after=0.0))}")
            perform(self, step)
        if meanwhile == "start" or then.random() < 0.5:  # else the one that was caught finds what it left
            self.do_start(self._other(host))

    def do_fail_next(self, process: str, call: str, kind: Kind, on: str = "", seconds: float = 0.0) -> None:
        self.world.arm(process, call, kind, seconds, on)

    def _delivering(self, host: str) -> str:
        """The process that commits for that host's agent."""
        return host

    def do_mend(self) -> None:
        """The operator changes all configurations so that what was rejected can be delivered, or back again."""
        if self.sink not in MENDED or self.plan.sink == "spark-kafka":
            return
        self.mended, self.was_mended = not self.mended, True
        for name, agent in self.agents.items():
            if agent.running:
                self._ended(name)
                self.do_start(name)

    def do_stream(self, batches: int, every: float) -> None:
        """Events keep coming while something else happens."""

        def put() -> None:
            for _ in range(batches):
                self.do_put(1)
                self.world.sleep(every)

        self.world.spawn(put, "stream", self.world.outside)

    def do_clock(self, seconds: float) -> None:
        self.world.skew += seconds

    def do_in_flight(self, most: int) -> None:
        self.feed.in_flight = most

    def do_swap(self, host: str, seconds: float) -> None:
        """One agent begins, and the other dies while the group is about to share its partitions anew."""
        self.do_start(host)
        self.world.sleep(seconds)
        self.do_kill(self._other(host))

    def do_away(self, server: str, seconds: float) -> None:
        """Servers are unreachable for a while."""
        if server == "kafka":
            self.brokers.away(seconds)
            return
        store: Any = {"hdfs": self.hdfs}.get(self.plan.sink) or getattr(self, self.plan.sink, None)
        if store is not None and not store.away:
            self.world.log(f"{self.plan.sink} is away for {seconds:.0f} s")
            store.away = True
            self.world.late(seconds, lambda: setattr(store, "away", False))

    def do_root(self, host: str) -> None:
        """The operator writes another hdfs.path, and starts the agent anew if it runs."""
        # What was left in the old place cannot be found then; nor may it be changed soon after an upgrade.
        if self.lost_metadata or self.forgotten or self.inherited or self.sink != "hdfs":
            return
        self.moved += 1
        self.roots[host] = "data" if self.roots[host] != "data" else f"data-{host}"
        if host in self.agents and self.agents[host].running:
            self._ended(host)
            self.do_start(host)

    @staticmethod
    def _other(host: str) -> str:
        return "h2" if host == "h1" else "h1"

    def _ended(self, *hosts: str) -> None:
        """Stop these agents, in the end by force."""
        for host in hosts:
            self.do_stop(host)
        deadline = self.world.now + 200
        while any(self.agents[host].running for host in hosts if host in self.agents):
            if self.world.now > deadline:
                for host in hosts:
                    self.do_kill(host)
            self.world.sleep(1)

    def do_drain(self, host: str, other: str, events: int) -> None:
        """A host is to be given up: its agent is stopped, and what the channel holds is delivered."""
        self._ended(host)
        if not self.brokers.count(TOPIC):
            return
        if other == "stops":
            self._ended(self._other(host))
        self._produce(events)
        if other == "dies":
            self.do_kill(self._other(host))
        self._drain(host)

    def _drain(self, host: str) -> AgentProcess:
        self._read_log()
        topic, began = self._topic_id(), self.world.now
        wanted = {
            body: [location for location in locations if not self._excused(topic, body, location)]
            for body, locations in self.logs[topic].items()
            if body not in self.foreign
        }
        agent = self.agents[host] = AgentProcess(self.world, host, self.spec(host), feeding=False, drain=True)

        def watch() -> None:
            while agent.running:
                agent.main.finished.wait(5)
            self.watching -= 1
            self.world.log(f"the drain on {host} ended with {agent.code}: {agent.complaint or 'no complaint'}")
            if agent.code == 1 and agent.complaint:
                if self.world.now - began < 60:
                    raise Failure(f"a drain was given up after {self.world.now - began:.0f} s: {agent.complaint}")
                if not re.search("assigned to|cannot be checked", agent.complaint):
                    raise Failure(f"a drain does not say what holds it up: {agent.complaint}")
            if agent.code == 0 and not agent.stop_requested and TOPIC in self.brokers.topics:
                self._check_drained(topic, wanted)

        self.watching += 1
        self.world.spawn(watch, f"drain on {host}", self.world.outside)
        return agent

    def _check_drained(self, topic: str, wanted: dict[bytes, list[tuple[int, int]]]) -> None:
        while self._hidden():
            self.world.sleep(5)
        if TOPIC not in self.brokers.topics or topic != self._topic_id():
            return
        counts = self._outcome() + self._dead_letters()
        for body, locations in wanted.items():
            kept = [location for location in locations if not self._excused(topic, body, location)]
            # The dead letter of a rejected event may be stored with a later commit, if its assignee sleeps.
            if kept and self.bodies[body] and body not in self.foreign and counts[body] < len(kept):
                raise Failure(f"a drain ended with 0, and {body!r}, at {kept} since it began, was not delivered")

    def do_retention(self, partition: int, left: int, readers: str = "") -> None:
        """Remove all but the last records of a partition, read or unread."""
        if partition >= self.brokers.count(TOPIC):
            return
        if readers == "stopped":
            self._ended(*self.agents)
        elif readers == "asleep":
            for host in self.agents:
                self.do_pause(host, 30.0)
        elif readers == "slow":
            self.do_away("store", 60.0)
        if readers:
            self._produce(2 * self.brokers.count(TOPIC))
            self.world.sleep(2)
        if partition >= self.brokers.count(TOPIC):
            return
        self._read_log(hidden=True)
        low = max(0, self.brokers.end_offset(TOPIC, partition) - left)
        self.brokers.advance_low_watermark(TOPIC, partition, low)
        self._mark_removed(self.removed, partition, 0, low)

    def do_abandon(self, how: str, left: int, overtaken: bool) -> None:
        """Nobody reads for long: the group's offsets expire, or somebody deletes it; retention may take records."""
        if self.moved or not self.brokers.count(TOPIC):
            return
        self._ended(*self.agents)
        self.world.sleep(60)
        if self.brokers.groups.get(GROUP) is None:
            return
        if how == "expire":
            self.brokers.expire_offsets(GROUP)
        else:
            self.do_delete_group()
        if GROUP not in self.brokers.groups:
            self.world.log("the group's offsets are gone")
            self.lost_metadata = True
            self.epochs.clear()
        if overtaken:
            for partition in range(self.brokers.count(TOPIC)):
                self.do_retention(partition, left)

    def do_put(self, good: int = 0, bad: int = 0) -> None:
        self._put(*[b""] * good, *[BAD] * bad)

    def do_obstacle(self, seconds: float) -> None:
        """HDFS refuses renames into the directory of the events, for a while."""
        for root in {*self.roots.values()}:
            self.hdfs.fill(f"/{root}/x", seconds)

    def do_vanish(self, what: str) -> None:
        """Remove directories of files that are not delivered yet, or empty them: on HDFS, or on the agents' disks."""
        from flafka.sinks.hdfs.staging import PREFIX

        if self.sink != "hdfs":
            return
        if what in ("uploads", "directory"):
            for root in sorted({*self.roots.values()}):
                directory = f"/{root}/.flafka/tmp"
                if self.hdfs.remove(directory):
                    self.uploads_removed = True
                    if what == "uploads":
                        self.hdfs.tree.make_directories(directory)
            return
        self.world.log("somebody removes " + ("staging directories" if what == "staging" else "staged files"))
        for directory in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
            if what == "staging":
                shutil.rmtree(directory)
            else:
                for file in directory.iterdir():
                    file.unlink()

    def do_replay(self) -> None:
        """`agent dlq replay` of all that was not replayed yet."""
        try:
            in_process(self.world, "replay", self._replay)
        except Exception as e:
            if not type(e).__module__.startswith("flafka.plugins"):
                raise
            self.world.log(f"replay: {e}")

    def _replay(self) -> None:
        from flafka.agent.runner.deadletterreplay import replay, replayer_of
        from flafka.agent.runner.deadletters.reading import read_dead_letters

        spec = self.spec("h1")
        replayer = replayer_of(spec, spec.channels[0])
        read = read_dead_letters(replayer.store)
        chosen = {kept.name: kept.event.body for kept in read if not kept.replayed and replayer.destination(kept)}
        names = {*chosen}
        self._read_log()
        for name, body in chosen.items():
            if not self._is_committed(body, self._group_end):
                self.early_replays[name] = body
            elif not self._is_committed(body, self._log_end):
                self.unlogged_replays[name] = body
        if names:
            replay(replayer, names, again=False)
            self.replayed |= names
