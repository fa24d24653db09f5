"""Stories: what users, operators and accidents do to agents in a simulation, and what must be true afterwards."""

from __future__ import annotations

import json
import logging
import random
import tempfile
from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

from tests.simulator.kafka import Brokers
from tests.simulator.program import AgentProcess, command, configured, in_process, logged, seeded
from tests.simulator.webhdfs import Hdfs
from tests.simulator.world import Chances, Fault, Signal, World, simulation

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
""",
}


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


@dataclass
class Feed:
    """Events on their way in."""

    waiting: deque[list[Any]] = field(default_factory=deque)
    stored: list[bytes] = field(default_factory=list)
    changed: Any = None


class Failure(AssertionError):
    """Something was lost, came twice, or was not told."""


def plan_of(seed: int, sinks: tuple[str, ...] = tuple(SINKS)) -> Plan:
    """The one of that seed."""
    chance = random.Random(seed)
    sink = chance.choice(sinks)
    steps = [Step(0, "start", ("h1",)), Step(2, "put", (chance.randint(1, 6), 0))]
    if chance.random() < 0.6:
        steps.append(Step(chance.choice([0, 3, 8]), "start", ("h2",)))
    kinds = {
        "put": 8,
        "bad": 3,
        "kill": 2,
        "pause": 3,
        "stop": 1,
        "start": 4,
        "reset": 2,
        "delete-group": 1,
        "recreate": 2,
        "foreign": 1,
        "replay": 2,
        "obstacle": 2,
        "clock": 1,
        "root": 2,
        "partitions": 1,
    }
    for _ in range(chance.randint(3, 10)):
        what = chance.choices(list(kinds), list(kinds.values()))[0]
        host = chance.choice(["h1", "h2"])
        after = chance.choice([0.0, 0.5, 2.0, 6.0, 20.0])
        arguments: tuple[Any, ...] = {
            "put": (chance.randint(1, 6), 0),
            "bad": (chance.randint(1, 3), 1),
            "pause": (host, chance.choice([5.0, 30.0, 80.0])),
            "reset": (chance.choice(["earliest", "same", "middle"]),),
            "foreign": (chance.randint(0, 1), chance.choice([-2, 0, 2])),
            "recreate": (chance.choice([0, 1]), chance.randint(0, 8)),
            "clock": (chance.choice([-3600.0, 3600.0]),),
            "obstacle": (chance.choice([4.0, 25.0]),),
            "root": (host,),
            "partitions": (3,),
        }.get(what, (host,))
        steps.append(Step(after, "put" if what == "bad" else what, arguments))
    return Plan(seed, sink, steps, share=chance.choice([0.0, 0.004, 0.02]))


class Run:
    """One plan carried out."""

    def __init__(self, plan: Plan, *, verbose: bool = False) -> None:
        self.plan = plan
        chances = Chances(plan.share, processes=("h1", "h2", "replay"))
        self.world = World(plan.seed, chances=chances, given=plan.faults, verbose=verbose)
        self.agents: dict[str, AgentProcess] = {}
        self.number = 0
        self.bodies: dict[bytes, bool] = {}
        """All that was ever put; whether it can be delivered."""
        self.resets: list[tuple[str, dict[int, int]]] = []
        """Incarnation of the topic, and position by partition."""
        self.logs: dict[str, dict[bytes, list[tuple[int, int]]]] = {}
        """By topic id: the places (partition, offset) of each body that was in it."""
        self.told_lost = 0
        self.foreign: set[bytes] = set()
        """Events that another program says it has delivered."""
        self.roots = {"h1": "data", "h2": "data"}
        self.moved = self.lost_metadata = False

    def go(self) -> None:
        """Raises Failure, or what else went wrong."""
        seeded(self.plan.seed)
        with simulation(self.world), logged(logging.INFO if self.world.verbose else logging.WARNING):
            self.brokers = self.world.models["kafka"] = Brokers(self.world)
            self.hdfs = Hdfs(self.world)
            if self.plan.sink == "solr":
                from tests.simulator.stores import Solr

                self.solr = Solr(self.world, "events")
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
        for step in self.plan.steps:
            self.world.sleep(step.after)
            self.world.told(f"--- {step}")
            getattr(self, f"do_{step.what.replace('-', '_')}")(*step.arguments)
        self._end()
        self._check()

    # --- what happens

    def spec(self, host: str) -> Any:
        text = CHANNEL + SINKS[self.plan.sink].replace("/data/", f"/{self.roots[host]}/")
        return configured(text)

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

    def do_clock(self, seconds: float) -> None:
        self.world.skew += seconds

    def do_root(self, host: str) -> None:
        """The operator writes another hdfs.path, and starts the agent anew."""
        if self.lost_metadata:  # what was left in the old place cannot be found then
            return
        self.moved = True
        self.roots[host] = "data" if self.roots[host] != "data" else f"data-{host}"
        self.do_stop(host)
        self.do_start(host)

    def do_partitions(self, total: int) -> None:
        if self.brokers.count(TOPIC):
            self.brokers.add_partitions(TOPIC, max(total, self.brokers.count(TOPIC)))

    def do_put(self, events: int, bad: int) -> None:
        from plugins import Event

        batch = []
        for _ in range(events):
            self.number += 1
            body = b"event %d%s" % (self.number, b" bad" * bad)
            self.bodies[body] = not bad
            # No directory on HDFS, no partition of the topic, no number for Solr.
            headers = {"place": "a:b", "to": "77", "number_i": "large"} if bad else {"place": "x", "to": "0"}
            batch.append(Event(body, headers))
        self.feed.waiting.append(batch)
        self.feed.changed.fire()

    def do_reset(self, to: str) -> None:
        committed = {p: self.brokers.committed(GROUP, TOPIC, p) for p in range(self.brokers.count(TOPIC))}
        positions = {p: at.offset for p, at in committed.items() if at is not None and at.offset >= 0}
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

    def do_delete_group(self, host: str) -> None:
        if self.moved:
            return
        try:
            self.brokers.delete_group(GROUP)
            self.lost_metadata = True
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
        if events:
            from channels.kafka.records import ARROW, FORMAT, encode
            from plugins import Batch, Event

            for _ in range(events):
                self.number += 1
                body = b"event %d" % self.number
                self.bodies[body] = True
                value = encode(Batch.of([Event(body, {"place": "x", "to": "0"})]))
                self._append(self.number % partitions, value, [(FORMAT, ARROW)])

    def _append(self, partition: int, value: bytes, headers: list[Any]) -> None:
        from confluent_kafka import Producer

        def produce() -> None:
            producer = Producer({"bootstrap.servers": "sim:9092"})
            producer.produce(TOPIC, value, None, partition, headers=headers)
            producer.flush(10)

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
        from agent.runner.kept import read
        from agent.runner.replay import replay, way_of

        spec = self.spec("h1")
        way = way_of(spec, spec.channels[0])
        names = {kept.letter for kept in read(way.letters) if not kept.replayed and way.destination(kept)}
        if names:
            replay(way, names, again=False)

    # --- the end

    def _topic_id(self) -> str:
        return str(self.brokers.topics[TOPIC].id)

    def _read_log(self) -> None:
        """What the topic holds now: it may be gone later."""
        from channels.kafka.records import REPLAYED, format_of
        from plugins import Batch, Record

        if TOPIC not in self.brokers.topics:
            return
        log: dict[bytes, list[tuple[int, int]]] = defaultdict(list)
        for partition in range(self.brokers.count(TOPIC)):
            for entry in self.brokers.records(TOPIC, partition):
                record = Record(entry.offset, 0, entry.key, entry.value, entry.headers or ())
                if not (format_of(record) or b"").endswith(REPLAYED):
                    for body in Batch.from_ipc(entry.value).bodies.to_pylist():
                        log[body].append((partition, entry.offset))
        self.logs[self._topic_id()] = log

    def _end(self) -> None:
        """Nothing goes wrong any more; wait until all is delivered."""
        self.world.told("--- nothing goes wrong any more")
        self.world.quiet = True
        self.world.given = self.world.given and {}
        for root in {*self.roots.values()}:
            if f"/{root}/x" in self.hdfs.tree.files:
                self.hdfs.remove(f"/{root}/x")
        self.world.sleep(90)
        self.do_start("h1")
        self.do_start("h2")
        deadline = self.world.now + 900
        while not self._delivered():
            if self.world.now > deadline:
                raise Failure(f"not all is delivered after 15 minutes: {self._position()}")
            self.world.sleep(5)
        self.world.sleep(10)
        for agent in self.agents.values():
            agent.stop()
        while any(agent.running for agent in self.agents.values()):
            if self.world.now > deadline + 300:
                raise Failure("an agent does not stop")
            self.world.sleep(2)

    def _position(self) -> str:
        parts = range(self.brokers.count(TOPIC))
        return ", ".join(
            f"{p}: {self.brokers.committed(GROUP, TOPIC, p)} of {self.brokers.end_offset(TOPIC, p)}" for p in parts
        )

    def _delivered(self) -> bool:
        if self.feed.waiting:
            return False
        for partition in range(self.brokers.count(TOPIC)):
            records = self.brokers.records(TOPIC, partition)
            at = self.brokers.committed(GROUP, TOPIC, partition)
            said = dict(parse_qsl(at.metadata or "")).get("topic") if at is not None else None
            if records and (at is None or at.offset <= records[-1].offset or said not in (None, self._topic_id())):
                break
        else:
            return True
        # The group may lag behind a sink's own record.
        self._read_log()
        had = self._outcome() + self._letters()
        return all(had[body] for body in self.logs[self._topic_id()] if body not in self.foreign)

    # --- what must be true

    def _check(self) -> None:
        self._read_log()
        stored = Counter(self.feed.stored)
        logged_: Counter[bytes] = Counter()
        for log in self.logs.values():
            logged_.update({body: len(places) for body, places in log.items()})
        letters = self._letters()
        delivered = self._outcome()
        if lost := [body for body in stored if not logged_[body]]:
            # What was in a topic when it was deleted was seen then.
            raise Failure(f"acknowledged, and never in the channel: {lost[:3]}")
        now = self._topic_id()
        for topic, log in self.logs.items():
            for body, places in log.items():
                had = delivered[body] + letters[body]
                most = sum(1 + self._again(topic, *place) for place in places)
                others = sum(len(other.get(body, ())) for t, other in self.logs.items() if t != topic)
                if had > most + others:
                    what = "letters" if letters[body] else "deliveries"
                    raise Failure(f"{body!r} came {had} times ({what}), not {most}")
                if topic == now and body not in self.foreign and had < len(places):
                    raise Failure(f"{body!r} is lost: in the channel at {places}, delivered {had} times")
        if strange := [body for body in delivered if body not in self.bodies]:
            raise Failure(f"delivered, and never put: {strange[:3]}")
        self._check_epochs()

    def _again(self, topic: str, partition: int, offset: int) -> int:
        """How often an event may come again, as the group was reset to before it."""
        return sum(1 for t, where in self.resets if t == topic and where.get(partition, offset + 1) <= offset)

    def _letters(self) -> Counter[bytes]:
        from agent.runner.deadletters import dead_letters_of
        from agent.runner.kept import read

        def look() -> Counter[bytes]:
            spec = self.spec("h1")
            channel = spec.channels[0]
            letters = dead_letters_of(spec.name, channel, channel.make(), spec.options)
            found: Counter[bytes] = Counter()
            for kept in read(letters):
                if not kept.replayed:
                    found[kept.event.body] += 1
            return found

        found: Counter[bytes] = in_process(self.world, "operator", look)
        return found

    def _outcome(self) -> Counter[bytes]:
        found: Counter[bytes] = Counter()
        if self.plan.sink == "hdfs":
            for path, data in self.hdfs.files("/").items():
                if "/.flafka/" not in path:
                    found.update(data.split(b"\n")[:-1])
        elif self.plan.sink == "kafka":
            found.update(entry.value for entry in self.brokers.records(OUT, 0))
        else:
            found.update(self._documents())
        return found

    def _documents(self) -> list[bytes]:
        return [str(document["body_s"]).encode() for document in self.solr.collections["events"].values()]

    def _check_epochs(self) -> None:
        """Nothing is committed in an epoch once a later one has begun."""
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
                later = [when for e, some in found.items() if e > epoch for when, _ in some]
                for when, content in committed:
                    manifest = json.loads(content)
                    if later and when > min(later) and manifest["events"]:
                        raise Failure(
                            f"epoch {epoch} committed records {manifest['start']} to {manifest['end'] - 1} of "
                            f"partition {partition} at {when:.1f} s, and a later one began at {min(later):.1f} s"
                        )


def attempt(plan: Plan, *, verbose: bool = False) -> tuple[Run, BaseException | None]:
    """Carry it out: what was run, and what went wrong."""
    run = Run(plan, verbose=verbose)
    with tempfile.TemporaryDirectory(prefix="simulated-", dir="/dev/shm") as directory:
        before, tempfile.tempdir = tempfile.tempdir, directory
        try:
            run.go()
        except KeyboardInterrupt:
            raise
        except BaseException as e:
            return run, e
        finally:
            tempfile.tempdir = before
    return run, None
