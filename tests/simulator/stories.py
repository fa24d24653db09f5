"""Stories: what users, operators and accidents do to agents in a simulation, and what must be true afterwards."""

from __future__ import annotations

import gc
import itertools
import json
import logging
import random
import re
import shutil
import tempfile
from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import confluent_kafka

from plugins.shared.offsets import OffsetMetadata
from tests.simulator.kafka import Brokers
from tests.simulator.program import AgentProcess, command, configured, in_process, logged, seeded
from tests.simulator.webhdfs import Hdfs
from tests.simulator.world import Chances, Fault, Kind, Process, Signal, World, simulation

COLLECTED = 20
"""After so many runs the garbage is collected."""
TOPIC, OUT, GROUP = "t", "out", "g"
CHANNEL = f"""
a.channels = c
a.sinks = k
a.channels.c.type = kafka
a.channels.c.kafka.bootstrap.servers = sim:9092
a.channels.c.kafka.topic = {TOPIC}
a.channels.c.kafka.consumer.group.id = {GROUP}
a.channels.c.partitions = 2
a.channels.c.replication = 1
a.sinks.k.channel = c
a.sinks.k.errors.tolerance = all
"""
SINKS = {
    "hdfs": """
a.sinks.k.type = hdfs
a.sinks.k.hdfs.path = /data/%{place}
a.sinks.k.hdfs.webhdfs = nn:9870
a.sinks.k.hdfs.fileType = DataStream
a.sinks.k.hdfs.rollInterval = 5
a.sinks.k.hdfs.callTimeout = 10000
""",
    "kafka": f"""
a.sinks.k.type = kafka
a.sinks.k.kafka.bootstrap.servers = sim:9092
a.sinks.k.kafka.topic = {OUT}
a.sinks.k.partitionIdHeader = to
a.sinks.k.flushInterval = 2000
""",
    "solr": """
a.sinks.k.type = solr
a.sinks.k.url = http://solr:8983/solr/events
a.sinks.k.bodyField = body_s
a.sinks.k.field.number_i = %{number}
""",
    "hbase": """
a.sinks.k.type = hbase
a.sinks.k.thrift = hbase:9090
a.sinks.k.table = events
a.sinks.k.columnFamily = f
a.sinks.k.rowKey = %{row}-%[id]
a.sinks.k.timeout = 10000
""",
}
MENDED = {"hdfs": ("%{place}", "%{to}"), "kafka": ("a.sinks.k.partitionIdHeader = to\n", "")}
"""What an operator changes so that all events can be delivered, for sinks whose commits hold their letters."""
SIMPLE = ("solr", "hbase")
"""Sinks without a record of their own: they know what the group's offsets say."""
KINDS = {
    "put": 8,
    "bad": 3,
    "kill": 2,
    "pause": 3,
    "stop": 1,
    "start": 4,
    "swap": 2,
    "drain": 2,
    "reset": 2,
    "delete-group": 1,
    "abandon": 2,
    "recreate": 2,
    "retention": 2,
    "truncate": 0,
    "foreign": 1,
    "replay": 2,
    "obstacle": 2,
    "away": 1,
    "clock": 1,
    "root": 2,
    "partitions": 1,
    "caught": 3,
    "mend": 1,
    "stream": 2,
}
"""What happens, by how often."""
THEMES = (
    ("bad", "kill", "start"),
    ("bad", "delete-group", "kill"),
    ("put", "pause", "reset"),
    ("bad", "pause", "reset", "start"),
    ("put", "pause", "root", "put"),
    ("root", "pause", "root", "put"),
    ("reset", "put", "delete-group", "reset"),
    ("bad", "reset", "put", "reset"),
    ("pause", "recreate", "put"),
    ("bad", "replay", "kill"),
)
"""What goes wrong most easily when it follows closely upon one another."""
CALLS = {
    "hdfs": ("kafka.commit", "hdfs.rename", "hdfs.upload", "hdfs.list"),
    "kafka": (
        "kafka.commit",
        "kafka.commit_transaction",
        "kafka.send_offsets_to_transaction",
        "kafka.init_transactions",
    ),
    "solr": ("kafka.commit", "solr.update"),
    "hbase": ("kafka.commit", "hbase.put"),
}
"""At which calls agents are caught: those around a commit, by sink."""
MEANWHILE = ("start", "start", "reset", "reset", "root", "delete-group", "foreign", "recreate", "mend", "replay")
"""What happens while an agent that was caught sleeps, or is gone, and its session is over."""
LENGTHS = (0, 1, 1, 1, 1, 2, 2, 2, 3, 3, 5, 8)
"""How many steps a plan has besides its beginning and its theme: most of what goes wrong takes few."""
LOCAL = {"swap", "drain", "abandon", "retention", "truncate", "away"}
"""What does not happen to agents on Spark."""
OLD_METADATA = ("", "epoch=0", "epoch=3", "epoch=", "epoch=x&topic", '{"a": 1}', "%%&&==;\u2028", "x" * 4000)
"""With offsets that were committed before the first agent starts: by Flume, by version 0.1, by whoever."""
ADVICE = re.compile(r"To accept the loss: agent (group reset \S+ --topic (\S+):(\d+) --to (\S+))")
REMOVED = re.compile(r"stands at offset \d+ of \S+-(\d+), .* records (\d+) to (\d+), .* were removed")
UNKNOWN = re.compile(r"has no position in \S+-(\d+), and begins with record (\d+), the first that is left")
UNDONE = "if agent group reset moved the group in that time, this was undone"
"""Said by a driver that slept between a look at the group and a commit, which nothing but its own clock shows."""
LAST_DRAIN_SECONDS = 300
ASLEEP_SECONDS = 70.0
"""So long an agent sleeps that was caught."""
SETTLE_SECONDS = 30
"""What had been asleep, or late, has its effects within so long."""
GOOD = {"place": "x", "to": "0", "row": "r", "number": "1"}
"""Headers of an event that can be delivered."""

SINKS |= {f"spark-{name}": text + "a.runner = spark\na.spark.triggerInterval = 2\n" for name, text in SINKS.items()}
"""Those on Spark: one driver for each agent."""
PROCESSES = frozenset(
    ("h1", "h2", "h3", "replay", *(f"{what}-{number}" for what in ("driver", "executor") for number in range(1, 200)))
)
"""Those whose calls go wrong by chance."""


DELICATE = dict.fromkeys(
    (
        "hdfs.rename", "hdfs.upload", "hdfs.delete", "kafka.produce", "kafka.flush", "kafka.commit",
        "kafka.committed",
        "kafka.commit_transaction", "kafka.send_offsets_to_transaction", "kafka.init_transactions", "solr.update",
    ),
    6.0,
)  # fmt: skip
"""Calls that change something, or decide where to go on: they go wrong so many times more often than others."""


class Step(NamedTuple):
    """One thing that happens, so many seconds after the one before."""

    after: float
    what: str
    arguments: tuple[Any, ...] = ()

    def __str__(self) -> str:
        return " ".join([self.what, *map(str, self.arguments)])


@dataclass
class Plan:
    """What a run does, but for what goes wrong by chance."""

    seed: int
    sink: str
    steps: list[Step]
    faults: list[Fault] | None = None
    """Those that come about; None: by chance."""
    share: float = 0.01

    def run(self, *, verbose: bool = False) -> Any:
        """Not yet begun."""
        if self.sink.startswith("spark-"):
            from tests.simulator.spark_stories import SparkRun

            return SparkRun(self, verbose=verbose)
        return Run(self, verbose=verbose)


@dataclass
class Feed:
    """Events on their way in."""

    waiting: deque[list[Any]] = field(default_factory=deque)
    sending: dict[Process, Counter[bytes]] = field(default_factory=lambda: defaultdict(Counter))
    """What each agent has taken from it and not yet stored."""
    stored: list[bytes] = field(default_factory=list)
    changed: Any = None
    in_flight: int = 1


class Failure(AssertionError):
    """Something was lost, came twice, or was not told."""


def plan_of(seed: int, sinks: tuple[str, ...] = tuple(SINKS), also: tuple[str, ...] = ()) -> Plan:
    """The one of that seed; with a step of each of the kinds in `also`."""
    chance = random.Random(seed)
    sink = chance.choice(sinks)
    spark = sink.startswith("spark-")
    steps = []
    if chance.random() < 0.3:
        steps.append(Step(0, "topic", (chance.choice([1, 3, 4]),)))
    if not spark and chance.random() < 0.15:
        steps.append(Step(0, "inherit", (OLD_METADATA.index(chance.choice(OLD_METADATA)), chance.randint(0, 3))))
    if chance.random() < 0.1:
        steps.append(Step(0, "root", ("h2",)))
    if not spark and chance.random() < 0.2:
        steps.append(Step(0, "in-flight", (4,)))
    steps += [Step(0, "start", ("h1",)), Step(2, "put", (chance.randint(1, 6), 0))]
    if chance.random() < 0.4:
        steps.append(Step(chance.choice([0, 3, 8]), "start", ("h2",)))
    if not spark and chance.random() < 0.1:
        steps.append(Step(chance.choice([0, 3, 8]), "start", ("h3",)))
    kinds = KINDS
    if spark:
        from tests.simulator import spark_stories

        kinds = {what: often for what, often in KINDS.items() if what not in LOCAL} | spark_stories.KINDS
    whats = [*chance.choices(list(kinds), list(kinds.values()), k=chance.choice(LENGTHS)), *also]
    if also:
        chance.shuffle(whats)
    steps += [_step(what, chance) for what in whats]
    if chance.random() < (0.5 if len(whats) < 3 else 0.1):
        place = chance.randint(2, len(steps))
        steps[place:place] = [
            _step(what, chance)._replace(after=chance.choice([0.0, 0.5, 2.0])) for what in chance.choice(THEMES)
        ]
    return Plan(seed, sink, steps, share=chance.choice([0.002, 0.01, 0.03]))


def _step(what: str, chance: random.Random) -> Step:
    host = chance.choice(["h1", "h2"])
    after = chance.choice([0.0, 0.5, 2.0, 6.0, 20.0])
    arguments: tuple[Any, ...] = {
        "put": (chance.randint(1, 6), 0),
        "bad": (chance.randint(1, 3), 1),
        "pause": (host, chance.choice([5.0, 30.0, 80.0])),
        "swap": (host, chance.choice([0.0, 0.05, 0.3, 1.5, 5.0])),
        "drain": (host, chance.choice(["runs", "dies", "stops"]), chance.randint(0, 4)),
        "reset": (chance.choice(["earliest", "same", "middle"]),),
        "abandon": (chance.choice(["expire", "delete"]), chance.choice([0, 0, 2]), chance.random() < 0.3),
        "foreign": (chance.randint(0, 1), chance.choice([-2, 0, 2])),
        "recreate": (chance.choice([0, 1]), chance.randint(0, 8)),
        "retention": (
            chance.randint(0, 1),
            chance.choice([0, 1, 2, 3]),
            chance.choice(["", "stopped", "asleep", "slow"]),
        ),
        "truncate": (chance.randint(0, 1), chance.choice([1, 2, 4])),
        "clock": (chance.choice([-18_000.0, -3600.0, 3600.0, 18_000.0]),),
        "obstacle": (chance.choice([4.0, 25.0]),),
        "away": (chance.choice(["kafka", "kafka", "store"]), chance.choice([20.0, 60.0, 120.0])),
        "root": (host,),
        "partitions": (chance.choice([3, 3, 5]),),
        "caught": (host, chance.randint(0, 3), chance.choice(["asleep", "asleep", "gone"]), chance.choice(MEANWHILE)),
        "stream": (chance.randint(4, 10), chance.choice([0.2, 0.7, 2.0])),
    }.get(what, (host,))
    if what.startswith("pause-"):
        arguments = (host, chance.choice([5.0, 30.0, 80.0]))
    return Step(after, "put" if what == "bad" else what, arguments)


def carry_out(run: Any) -> None:
    """Do what the plan of that run says, step by step, each by a method `do_…` of the run."""
    for step in run.plan.steps:
        run.world.sleep(step.after)
        run.world.told(f"--- {step}")
        getattr(run, f"do_{step.what.replace('-', '_')}")(*step.arguments)


class Run:
    """One plan carried out."""

    def __init__(self, plan: Plan, *, verbose: bool = False) -> None:
        self.plan = plan
        self.sink = plan.sink.removeprefix("spark-")
        chances = Chances(plan.share, DELICATE, processes=PROCESSES)
        self.world = World(plan.seed, chances=chances, given=plan.faults, verbose=verbose)
        self.agents: dict[str, AgentProcess] = {}
        self.number = 0
        self.bodies: dict[bytes, bool] = {}
        """All that was ever put; whether it can be delivered."""
        self.resets: list[tuple[str, dict[int, int]]] = []
        """Incarnation of the topic, and position by partition."""
        self.logs: dict[str, dict[bytes, dict[tuple[int, int], None]]] = {}
        """By topic id: the places (partition, offset) of each body that was in it."""
        self.replays: dict[str, dict[bytes, dict[tuple[int, int], None]]] = {}
        """The same of records that replay a dead letter: a reset to before them has them delivered again, too."""
        self.removed: set[tuple[str, int, int]] = set()
        """Topic id, partition and offset of what retention took, delivered or not."""
        self.unclean: set[tuple[str, int, int]] = set()
        """The same of what a leader lacked that took over."""
        self.watching = 0
        """Drains that are under way."""
        self.foreign: set[bytes] = set()
        """Events that another program says it has delivered."""
        self.roots = {"h1": "data", "h2": "data", "h3": "data"}
        self.moved = self.lost_metadata = self.inherited = False
        self.was_reset_before = False
        """Whether the positions that the group has inherited are those of a reset."""
        self.mended = self.was_mended = False
        """Whether all events can be delivered now, or could at some time."""
        self.replayed: set[str] = set()
        """Letters whose replay has ended well."""
        self.epochs: dict[str, dict[int, int]] = {}
        """After the latest reset, by topic id and partition."""
        self.letters: Counter[bytes] = Counter()
        """In the end, but for those that were replayed."""
        self.delivered: Counter[bytes] = Counter()
        """In the end."""
        self.accepted: dict[int, int] = {}
        """By partition: up to where the operator, who was told of some, has accepted that records are lost."""
        self.advised = 0
        """Lines of the story that were searched for advice."""

    def go(self) -> None:
        """Raises Failure, or what else went wrong."""
        seeded(self.plan.seed)
        with simulation(self.world), logged(logging.INFO if self.world.verbose else logging.WARNING):
            self.brokers = self.world.models["kafka"] = Brokers(self.world)
            self.hdfs = Hdfs(self.world)
            if self.sink == "solr":
                from tests.simulator.stores import Solr

                self.solr = Solr(self.world, "events")
            elif self.sink == "hbase":
                from tests.simulator.stores import HBase

                self.hbase = HBase(self.world)
                self.hbase.create("events", "f")
            self.feed = self.world.models["feed"] = Feed(changed=Signal(self.world))
            self.world.run(self._main)

    def _main(self) -> None:
        self.brokers.create_topic(OUT, 1)
        self.renames: list[tuple[float, str]] = []
        tree, rename = self.hdfs.tree, self.hdfs.tree.rename

        def renamed(source: str, target: str) -> bool:
            done = rename(source, target)
            if done:
                self.renames.append((self.world.now, target))
            return done

        tree.rename = renamed
        carry_out(self)
        self._end()
        self._check()

    # --- what happens

    def text(self, host: str) -> str:
        """What its configuration says of the sink."""
        return SINKS[self.plan.sink]

    def spec(self, host: str) -> Any:
        text = self.text(host)
        if self.mended:
            text = text.replace(*MENDED[self.sink])
        return configured(CHANNEL + text.replace("/data/", f"/{self.roots[host]}/"))

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

    def do_caught(self, host: str, call: int, how: str, meanwhile: str) -> None:
        """An agent falls asleep, or is killed, at its next call of that kind; something happens until it is back."""
        self.do_start(host)
        what, then = CALLS[self.sink][call % len(CALLS[self.sink])], self.world.random
        process = self._delivering(host)
        kinds = (Kind.PAUSED, Kind.PAUSED_AFTER) if how == "asleep" else (Kind.KILLED, Kind.KILLED_AFTER)
        self.world.armed[process, what] = (then.choice(kinds), ASLEEP_SECONDS)
        self.do_put(2, 0)
        self.do_put(1, 1)
        self.world.sleep(8)
        if meanwhile in ("reset", "delete-group", "foreign"):
            self._ended(self._other(host))
        self.world.sleep(16)  # its session is over
        self.world.armed.pop((process, what), None)
        if meanwhile != "start":
            self.world.told(f"--- {(step := _step(meanwhile, then))}")
            getattr(self, f"do_{meanwhile.replace('-', '_')}")(*step.arguments)
        if meanwhile == "start" or then.random() < 0.5:  # else the one that was caught finds what it left
            self.do_start(self._other(host))

    def _delivering(self, host: str) -> str:
        """The process that commits for that host's agent."""
        return host

    def do_mend(self, host: str) -> None:
        """The operator changes all configurations so that what was rejected can be delivered, or back again."""
        if self.sink not in MENDED or self.plan.sink == "spark-kafka":
            return
        self.mended, self.was_mended = not self.mended, True
        for name, agent in self.agents.items():
            if agent.running:
                self._ended(name)
                self.do_start(name)

    def do_stream(self, events: int, seconds: float) -> None:
        """Events keep coming while something else happens."""

        def put() -> None:
            for _ in range(events):
                self.do_put(1, 0)
                self.world.sleep(seconds)

        self.world.spawn(put, "stream", self.world.outside)

    def do_clock(self, seconds: float) -> None:
        self.world.skew += seconds

    def do_topic(self, partitions: int) -> None:
        self.brokers.create_topic(TOPIC, partitions)

    def do_in_flight(self, most: int) -> None:
        self.feed.in_flight = most

    def do_inherit(self, metadata: int, position: int) -> None:
        """The group has positions from before the first agent starts."""
        if TOPIC not in self.brokers.topics:
            self.brokers.create_topic(TOPIC, 2)
        self.inherited = True
        self.was_reset_before = OffsetMetadata.parse(OLD_METADATA[metadata]).epoch > 0
        self._produced(4 * self.brokers.count(TOPIC))
        self._read_log()
        for partition in range(self.brokers.count(TOPIC)):
            at = min(position, self.brokers.end_offset(TOPIC, partition))
            self.brokers.commit_as_foreigner(GROUP, TOPIC, partition, at, OLD_METADATA[metadata])
            self._delivered_by_others(partition, at)

    def do_swap(self, host: str, after: float) -> None:
        """One agent begins, and the other dies while the group is about to share its partitions anew."""
        self.do_start(host)
        self.world.sleep(after)
        self.do_kill(self._other(host))

    def do_away(self, what: str, seconds: float) -> None:
        """Servers are unreachable for a while."""
        if what == "kafka":
            self.brokers.away(seconds)
            return
        store: Any = {"hdfs": self.hdfs}.get(self.plan.sink) or getattr(self, self.plan.sink, None)
        if store is not None and not store.away:
            self.world.told(f"{self.plan.sink} is away for {seconds:.0f} s")
            store.away = True
            self.world.late(seconds, lambda: setattr(store, "away", False))

    def do_root(self, host: str) -> None:
        """The operator writes another hdfs.path, and starts the agent anew if it runs."""
        # What was left in the old place cannot be found then; nor may it be changed soon after an upgrade.
        if self.lost_metadata or self.inherited or self.sink != "hdfs":
            return
        self.moved = True
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
        self._produced(events)
        if other == "dies":
            self.do_kill(self._other(host))
        self._drain(host)

    def _drain(self, host: str) -> AgentProcess:
        self._read_log()
        topic, began = self._topic_id(), self.world.now
        wanted = {
            body: [place for place in places if (topic, *place) not in self.removed | self.unclean]
            for body, places in self.logs[topic].items()
            if body not in self.foreign
        }
        agent = self.agents[host] = AgentProcess(self.world, host, self.spec(host), feeding=False, drain=True)

        def watch() -> None:
            while agent.running:
                agent.main.finished.wait(5)
            self.watching -= 1
            self.world.told(f"the drain on {host} ended with {agent.code}: {agent.complaint or 'no complaint'}")
            if agent.code == 1 and agent.complaint:
                if self.world.now - began < 60:
                    raise Failure(f"a drain was given up after {self.world.now - began:.0f} s: {agent.complaint}")
                if not re.search("held by|cannot be looked at", agent.complaint):
                    raise Failure(f"a drain does not say what holds it up: {agent.complaint}")
            if agent.code == 0 and not agent.told_to_stop and TOPIC in self.brokers.topics:
                self._check_drained(topic, wanted)

        self.watching += 1
        self.world.spawn(watch, f"drain on {host}", self.world.outside)
        return agent

    def _check_drained(self, topic: str, wanted: dict[bytes, list[tuple[int, int]]]) -> None:
        while self._hidden():
            self.world.sleep(5)
        if TOPIC not in self.brokers.topics or topic != self._topic_id():
            return
        had = self._outcome() + self._letters()
        for body, places in wanted.items():
            kept = [place for place in places if (topic, *place) not in self.removed | self.unclean]
            # The letter of a bad one may still be with its commit, and its owner asleep.
            if kept and self.bodies[body] and body not in self.foreign and had[body] < len(kept):
                raise Failure(f"a drain ended with 0, and {body!r}, at {kept} since it began, was not delivered")

    def do_partitions(self, total: int) -> None:
        if self.brokers.count(TOPIC):
            self.brokers.add_partitions(TOPIC, max(total, self.brokers.count(TOPIC)))

    def do_retention(self, partition: int, kept: int, readers: str) -> None:
        """All but the last records of a partition are removed, whoever has not read them."""
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
            self._produced(2 * self.brokers.count(TOPIC))
            self.world.sleep(2)
        if partition >= self.brokers.count(TOPIC):
            return
        self._read_log()
        low = max(0, self.brokers.end_offset(TOPIC, partition) - kept)
        self.brokers.advance_low_watermark(TOPIC, partition, low)
        self._gone(self.removed, partition, 0, low)

    def do_truncate(self, partition: int, lost: int) -> None:
        """A replica that lacks the last records becomes leader."""
        if partition >= self.brokers.count(TOPIC):
            return
        self._read_log()
        end = self.brokers.end_offset(TOPIC, partition)
        self.brokers.truncate(TOPIC, partition, max(0, end - lost))
        self._gone(self.unclean, partition, max(0, end - lost), end)

    def _gone(self, which: set[tuple[str, int, int]], partition: int, start: int, end: int) -> None:
        topic = self._topic_id()
        which |= {(topic, partition, offset) for offset in range(start, end)}

    def do_abandon(self, how: str, kept: int, overtaken: bool) -> None:
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
            self.do_delete_group("")
        if GROUP not in self.brokers.groups:
            self.world.told("the group's offsets are gone")
            self.lost_metadata = True
            self.epochs.clear()
        if overtaken:
            for partition in range(self.brokers.count(TOPIC)):
                self.do_retention(partition, kept, "")

    def do_put(self, events: int, bad: int) -> None:
        from plugins import Event

        batch = []
        for _ in range(events):
            self.number += 1
            body = b"event %d%s" % (self.number, b" bad" * bad)
            self.bodies[body] = not bad
            # No directory on HDFS, no partition of the topic, no number for Solr, no key of a row.
            headers = {"place": "a:b", "to": "77", "number": "large"} if bad else GOOD
            batch.append(Event(body, headers))
        self.feed.waiting.append(batch)
        self.feed.changed.fire()

    def do_reset(self, to: str) -> None:
        committed = {p: self.brokers.committed(GROUP, TOPIC, p) for p in range(self.brokers.count(TOPIC))}
        positions = {  # as `agent group describe` shows them
            p: at.offset
            for p, at in committed.items()
            if at is not None
            and at.offset >= 0
            and OffsetMetadata.parse(at.metadata).topic_id in ("", self._topic_id())
        }
        if not positions:
            return
        self._read_log()
        where = {p: {"earliest": 0, "same": at, "middle": at // 2}[to] for p, at in positions.items()}
        for partition, position in where.items():
            try:
                arguments = ("--topic", f"{TOPIC}:{partition}", "--to", str(position), "--yes")
                in_process(
                    self.world,
                    "operator",
                    lambda a=arguments: command("group", "reset", GROUP, *a, "--bootstrap-server", "sim:9092"),
                )
            except RuntimeError as e:
                self.world.told(str(e.__cause__ or e).splitlines()[0])
                return
            self.resets.append((self._topic_id(), {partition: position}))
        self.epochs = {self._topic_id(): self._epochs()}

    def _epochs(self) -> dict[int, int]:
        committed = {p: self.brokers.committed(GROUP, TOPIC, p) for p in range(self.brokers.count(TOPIC))}
        return {p: OffsetMetadata.parse(at.metadata).epoch for p, at in committed.items() if at is not None}

    def do_delete_group(self, host: str) -> None:
        if self.moved:
            return
        try:
            self.brokers.delete_group(GROUP)
            self.lost_metadata = True
            self.epochs.clear()  # nobody knows of a reset any more
        except Exception as e:
            self.world.told(f"the group stays: {e}")

    def do_foreign(self, partition: int, ahead: int) -> None:
        """Another program, such as a Flume, commits for the group."""
        if partition >= self.brokers.count(TOPIC) or self.moved:
            return
        self.lost_metadata = True
        at, end = self.brokers.committed(GROUP, TOPIC, partition), self.brokers.end_offset(TOPIC, partition)
        position = max(0, min(end, (at.offset if at is not None and at.offset >= 0 else 0) + ahead))
        self._read_log()
        try:
            self.brokers.commit_as_foreigner(GROUP, TOPIC, partition, position)
        except Exception as e:
            self.world.told(f"another program may not commit: {e}")
            return
        self.epochs.clear()  # its commit says nothing of a reset
        self._delivered_by_others(partition, position)

    def _delivered_by_others(self, partition: int, position: int) -> None:
        log = self.logs[self._topic_id()]
        self.foreign |= {
            body for body, places in log.items() if any(p == partition and o < position for p, o in places)
        }

    def do_recreate(self, first: int, events: int) -> None:
        """The topic is deleted and made again, and written to by another program's agent."""
        if not self.brokers.count(TOPIC):
            return
        self._read_log()
        partitions = self.brokers.count(TOPIC)
        self.brokers.delete_topic(TOPIC)
        self.world.sleep(1.0)
        if TOPIC in self.brokers.topics:  # an agent that was just starting has made it
            return
        self.brokers.create_topic(TOPIC, partitions)
        self._produced(events)

    def _produced(self, events: int) -> None:
        """Agents elsewhere write so many records into the topic."""
        from channels.kafka.records import ARROW, FORMAT, encode
        from plugins import Batch, Event

        if self.brokers.away_until > self.world.now:
            return
        values = []
        for _ in range(events):
            self.number += 1
            body = b"event %d" % self.number
            self.bodies[body] = True
            values.append((self.number % self.brokers.count(TOPIC), encode(Batch.of([Event(body, GOOD)]))))

        def produce() -> None:
            producer = confluent_kafka.Producer({"bootstrap.servers": "sim:9092"})
            for partition, value in values:
                producer.produce(TOPIC, value, None, partition, headers=[(FORMAT, ARROW)])
            producer.flush(10)

        if values:
            in_process(self.world, "another agent", produce)

    def do_obstacle(self, seconds: float) -> None:
        """A file lies where a directory belongs, for a while."""
        for root in {*self.roots.values()}:
            path = f"/{root}/x"
            if path not in self.hdfs.tree.directories:
                self.hdfs.put(path, b"in the way")
                self.world.later(seconds, lambda p=path: self.hdfs.remove(p) if p in self.hdfs.tree.files else None)

    def do_replay(self, host: str) -> None:
        """`agent dlq replay` of all that was not replayed yet."""
        try:
            in_process(self.world, "replay", self._replay)
        except Exception as e:
            if not type(e).__module__.startswith("plugins"):
                raise
            self.world.told(f"replay: {e}")

    def _replay(self) -> None:
        from agent.runner.deadletters.replay import replay, replayer_of
        from agent.runner.deadletters.stored import read

        spec = self.spec("h1")
        replayer = replayer_of(spec, spec.channels[0])
        names = {kept.letter for kept in read(replayer.letters) if not kept.replayed and replayer.destination(kept)}
        if names:
            replay(replayer, names, again=False)
            self.replayed |= names

    # --- the end

    def _topic_id(self) -> str:
        return str(self.brokers.topics[TOPIC].id)

    def _read_log(self) -> None:
        """What the topic holds now: it may be gone later."""
        from channels.kafka.records import REPLAYED, format_of
        from plugins import Batch, Record

        if TOPIC not in self.brokers.topics:
            return
        log = self.logs.setdefault(self._topic_id(), defaultdict(dict))
        replays = self.replays.setdefault(self._topic_id(), defaultdict(dict))
        for partition in range(self.brokers.count(TOPIC)):
            for entry in self.brokers.records(TOPIC, partition):
                record = Record(entry.offset, 0, entry.key, entry.value, entry.headers or ())
                into = replays if (format_of(record) or b"").endswith(REPLAYED) else log
                for body in Batch.from_ipc(entry.value).bodies.to_pylist():
                    into[body][partition, entry.offset] = None

    def _end(self) -> None:
        """Nothing goes wrong any more; wait until all is delivered."""
        self.world.told("--- nothing goes wrong any more")
        self.world.quiet = True
        self.world.given = self.world.given and {}
        for root in {*self.roots.values()}:
            if f"/{root}/x" in self.hdfs.tree.files:
                self.hdfs.remove(f"/{root}/x")
        self.world.sleep(max(self._longest_pause() + SETTLE_SECONDS, self.brokers.away_until - self.world.now))
        deadline = self.world.now + 900
        while True:
            if self._advice_followed():
                deadline = self.world.now + 900
            if not self.watching:
                for host in {"h1": None} | self.agents:
                    self.do_start(host)
                if self._delivered():
                    self.world.sleep(10)  # what was on its way in comes into the channel
                    if self._delivered() and not self._advised():
                        break
            if self.world.now > deadline:
                raise Failure(f"not all is delivered after 15 minutes: {self._position()}")
            self.world.sleep(5)
        if any(step.what == "drain" for step in self.plan.steps):
            self._last_drain()
        for agent in self.agents.values():
            agent.stop()
        while any(agent.running for agent in self.agents.values()):
            if self.world.now > deadline + 300:
                raise Failure("an agent does not stop")
            self.world.sleep(2)

    def _longest_pause(self) -> float:
        """Until the last of those that sleep goes on, in seconds, or what is late comes."""
        return max(0.0, self.world.delayed_until - self.world.now)

    def _advised(self) -> set[tuple[str, ...]]:
        """What the log has said must be done, and nobody has looked at yet."""
        return {advice.groups() for line in self.world.story[self.advised :] if (advice := ADVICE.search(line))}

    def _advice_followed(self) -> bool:
        """Whether the operator did what the log had said must be done."""
        found = self._advised()
        self.advised = len(self.world.story)
        if not found:
            return False
        self._ended(*self.agents)
        self.world.sleep(60)
        self.advised = len(self.world.story)
        self._read_log()
        for arguments, _, partition, to in sorted(found):
            self.world.told(f"the operator: agent {arguments}")
            low, high = self._watermarks(int(partition))
            try:
                in_process(
                    self.world,
                    "operator",
                    lambda a=arguments: command(*a.split(), "--yes", "--bootstrap-server", "sim:9092"),
                )
            except RuntimeError as e:  # more was lost since: the agent says what is to be done now
                self.world.told(str(e).splitlines()[0])
                continue
            self.accepted[int(partition)] = low
            self.resets.append((self._topic_id(), {int(partition): low if to == "earliest" else min(int(to), high)}))
        return True

    def _watermarks(self, partition: int) -> tuple[int, int]:
        found = self.brokers.partition(TOPIC, partition)
        return (found.low, found.high) if found is not None else (0, 0)

    def _last_drain(self) -> None:
        """With all servers well, a drain ends, and well: whoever was a member of the group."""
        self._ended("h1")
        self.do_kill("h2")
        self._produced(3)
        agent, deadline = self._drain("h1"), self.world.now + LAST_DRAIN_SECONDS
        while agent.running:
            if self.world.now > deadline:
                raise Failure(f"a drain does not end: {self._position()}")
            self.world.sleep(2)
        if agent.code:
            raise Failure(f"a drain ended with {agent.code}: {agent.complaint}")

    def _position(self) -> str:
        parts = range(self.brokers.count(TOPIC))
        return ", ".join(
            f"{p}: {self.brokers.committed(GROUP, TOPIC, p)} of {self.brokers.end_offset(TOPIC, p)}" for p in parts
        )

    def _hidden(self) -> bool:
        """Whether a transaction that a killed agent left open hides those after it, until it times out."""
        return self.brokers.end_offset(OUT, 0, read_committed=True) < self.brokers.end_offset(OUT, 0)

    def _delivered(self) -> bool:
        if self.feed.waiting or any(+self.feed.sending[one.process] for one in self.agents.values() if one.running):
            return False
        if self._hidden():
            return False
        for partition in range(self.brokers.count(TOPIC)):
            records = self.brokers.records(TOPIC, partition)
            at = self.brokers.committed(GROUP, TOPIC, partition)
            said = OffsetMetadata.parse(at.metadata).topic_id if at is not None else ""
            if records and (at is None or at.offset <= records[-1].offset or said not in ("", self._topic_id())):
                break
        else:
            return True
        # The group may lag behind a sink's own record, or behind what was delivered, where a commit comes late.
        self._read_log()
        topic, had, gone = self._topic_id(), self._outcome() + self._letters(), self.removed | self.unclean
        return all(
            had[body]
            for body, places in self.logs[topic].items()
            if body not in self.foreign and any((topic, *place) not in gone for place in places)
        )

    # --- what must be true

    def _check(self) -> None:
        self._read_log()
        stored = Counter(self.feed.stored)
        logged_: Counter[bytes] = Counter()
        for log in self.logs.values():
            logged_.update({body: len(places) for body, places in log.items()})
        letters = self.letters = self._letters()
        delivered = self.delivered = self._outcome()
        if lost := [body for body in stored if not logged_[body]]:
            # What was in a topic when it was deleted was seen then.
            raise Failure(f"acknowledged, and never in the channel: {lost[:3]}")
        now = self._topic_id()
        for topic, log in self.logs.items():
            for body, places in log.items():
                had = delivered[body] + letters[body]
                most = sum(1 + self._again(topic, *place) for place in places)
                others = sum(len(other.get(body, ())) for t, other in self.logs.items() if t != topic)
                again = sum(self._again(t, *at) for t, some in self.replays.items() for at in some.get(body, ()))
                if had > most + others + again:
                    what = "letters" if letters[body] else "deliveries"
                    raise Failure(f"{body!r} came {had} times ({what}), not {most}")
                if topic != now or body in self.foreign or had >= len(places):
                    continue
                gone = [place for place in places if (topic, *place) in self.removed]
                if had < len(places) - len(gone) - sum((topic, *place) in self.unclean for place in places):
                    raise Failure(f"{body!r} is lost: in the channel at {list(places)}, delivered {had} times")
                cut = {(t, p) for t, p, _ in self.unclean}  # positions mean other records there
                if untold := [at for at in gone if (topic, at[0]) not in cut and not self._told(*at)]:
                    raise Failure(f"{body!r} was removed before it was delivered, at {untold}, and nobody says so")
        if strange := [body for body in delivered if not self.bodies.get(body, False) | self.was_mended]:
            raise Failure(f"delivered, and never put or not to be delivered: {strange[:3]}")
        self._check_epochs()
        now = self._epochs()
        for partition, epoch in self.epochs.get(self._topic_id(), {}).items():
            if now.get(partition, 0) < epoch and not any(UNDONE in line for line in self.world.story):
                raise Failure(f"partition {partition} was reset in epoch {epoch}, and is in {now.get(partition)}")

        late = any(f.what == "kafka.commit" and f.kind in (Kind.LATE, Kind.DOUBLED) for f in self.world.faults)
        if not late and (back := [one for group in self.brokers.groups.values() for one in group.set_back]):
            raise Failure(f"a member has set its group back: {back[0]}")

    def _told(self, partition: int, offset: int) -> bool:
        """Whether the log names that record among those that retention took."""
        if offset < self.accepted.get(partition, 0):
            return True
        for line in self.world.story:
            if (found := REMOVED.search(line)) and int(found[1]) == partition:
                if int(found[2]) <= offset <= int(found[3]):
                    return True
            elif (found := UNKNOWN.search(line)) and int(found[1]) == partition and offset < int(found[2]):
                return True
        return False

    def _again(self, topic: str, partition: int, offset: int) -> int:
        """How often an event may come again, as the group was reset to before it."""
        again = sum(1 for t, where in self.resets if t == topic and where.get(partition, offset + 1) <= offset)
        if self.sink in SIMPLE and self.lost_metadata and (self.inherited or self.resets):
            again += 1  # how the group's events are named, and its epoch, were lost with its offsets
        if self.lost_metadata and self.was_reset_before:
            again += 1  # who was about to carry that reset out slept, and nobody else knows of it any more
        if self.moved and any(UNDONE in line for line in self.world.story):
            again += 1  # so may be where the record is, with the position that said so
        return again

    def _letters(self) -> Counter[bytes]:
        from agent.runner.deadletters.letters import dead_letters_of
        from agent.runner.deadletters.stored import read

        def look() -> Counter[bytes]:
            spec = self.spec("h1")
            channel = spec.channels[0]
            letters = dead_letters_of(spec.name, channel, channel.make(), spec.options)
            found: Counter[bytes] = Counter()
            for kept in read(letters):
                if not kept.replayed:
                    found[kept.event.body] += 1
                    if kept.letter in self.replayed:
                        raise Failure(f"{kept.event.body!r} was replayed, and nobody knows of it")
            return found

        if (away := self.brokers.away_until - self.world.now) > 0:
            self.world.sleep(away)
        found: Counter[bytes] = in_process(self.world, "operator", look)
        return found

    def _outcome(self) -> Counter[bytes]:
        found: Counter[bytes] = Counter()
        if self.sink == "hdfs":
            for path, data in self.hdfs.files("/").items():
                if "/.flafka/" not in path:
                    found.update(data.split(b"\n")[:-1])
        elif self.sink == "kafka":
            found.update(entry.value for entry in self.brokers.records(OUT, 0))
        elif self.sink == "hbase":
            found.update(row[b"f:pCol"] for row in self.hbase.tables[b"events"].rows().values())
        else:
            found.update(self._documents())
        return found

    def _documents(self) -> list[bytes]:
        return [str(document["body_s"]).encode() for document in self.solr.collections["events"].values()]

    def _check_epochs(self) -> None:
        """Nothing is committed in an epoch once something is in a later one, whose owner has sealed it before."""
        commits: dict[tuple[str, str, str], dict[int, list[tuple[float, bytes]]]] = defaultdict(dict)
        for when, path in self.renames:
            if "/.flafka/chain/" not in path or path not in self.hdfs.tree.files:
                continue
            parts = path.partition("/.flafka/chain/")[2].split("/")
            if len(parts) != 6:
                continue
            _, topic, group, epoch, partition, _ = parts
            commits[topic, partition, group].setdefault(int(epoch), []).append((when, self.hdfs.tree.files[path]))
        for (_, partition, _), found in commits.items():
            for epoch, committed in found.items():
                later = [
                    when
                    for e, some in found.items()
                    for when, content in some
                    if e > epoch and json.loads(content)["events"]
                ]
                for when, content in committed:
                    manifest = json.loads(content)
                    if later and when > min(later) and manifest["events"]:
                        raise Failure(
                            f"epoch {epoch} committed records {manifest['start']} to {manifest['end'] - 1} of "
                            f"partition {partition} at {when:.1f} s, and a later one did at {min(later):.1f} s"
                        )


_attempts = itertools.count(1)


@cache
def _directory() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="simulated-", dir="/dev/shm")


def attempt(plan: Plan, *, verbose: bool = False) -> tuple[Any, BaseException | None]:
    """Carry it out: what was run, and what went wrong."""
    run = plan.run(verbose=verbose)
    before, tempfile.tempdir = tempfile.tempdir, _directory().name
    try:
        run.go()
    except KeyboardInterrupt:
        raise
    except BaseException as e:
        return run, e
    finally:
        for entry in Path(_directory().name).iterdir():
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        tempfile.tempdir = before
        number = next(_attempts)
        if number % COLLECTED == 0:
            gc.collect()
            if number == COLLECTED:
                gc.freeze()  # what has been imported since, and is looked at no more
    return run, None
