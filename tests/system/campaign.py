"""Campaign: numbered lines flow through a whole agent while its processes and servers are killed."""

import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from kafka import KafkaAdminClient

from flafka.agent.audit.reconciliation import HdfsReader, read_topic
from flafka.agent.services.hdfs import NAMENODE, HdfsCluster
from flafka.agent.services.kafka import KafkaCluster
from flafka.agent.services.running import RunningAgent
from flafka.plugins import Components
from tests.system.evidence import Evidence, Snapshot
from tests.system.kafka_running import abort_transaction
from tests.system.proc import command_of, family_of, marked
from tests.system.writing import Writer

TIMEOUT_SECONDS = 240.0
"""Timeout of operations that take a few seconds on an idle machine."""
POLL_SECONDS = 0.02
"""Seconds between two checks for files that are on HDFS for a moment before they are committed."""
MARK = "FLAFKA_CAMPAIGN"
"""Environment variable that identifies every process that an agent leaves behind."""

CONFIGURATION = r"""
t.sources = files
t.channels = events
t.sinks = hdfs

t.sources.files.type = taildir
t.sources.files.filegroups = a b
t.sources.files.filegroups.a = {logs}/a\\.log(\\.\\d+)?
t.sources.files.filegroups.b = {logs}/b\\.log(\\.\\d+)?
t.sources.files.headers.a.application = a
t.sources.files.headers.b.application = b
t.sources.files.positionFile = {directory}/positions.json
t.sources.files.channels = events

t.channels.events.type = kafka
t.channels.events.kafka.bootstrap.servers = {brokers}
t.channels.events.kafka.topic = {topic}
t.channels.events.kafka.consumer.group.id = {topic}
t.channels.events.kafka.consumer.session.timeout.ms = 6000
t.channels.events.kafka.consumer.heartbeat.interval.ms = 1000
t.channels.events.partitions = 3

t.sinks.hdfs.type = hdfs
t.sinks.hdfs.channel = events
t.sinks.hdfs.hdfs.path = webhdfs://{webhdfs}{root}/%{{application}}
t.sinks.hdfs.hdfs.fileType = DataStream
t.sinks.hdfs.hdfs.rollInterval = 1
t.sinks.hdfs.hdfs.rollSize = 0
t.sinks.hdfs.hdfs.rollCount = 0

t.runner = {runner}
t.spark.triggerInterval = 2
t.monitoring.port = 0
"""


@dataclass(frozen=True)
class Phase:
    """Faults during the delivery of one runner, with their numbers."""

    runner: str
    agent: int = 0
    stop: int = 0
    """Number of restarts by SIGTERM, which is not a kill."""
    leader: int = 0
    namenode: int = 0
    driver: int = 0
    jvm: int = 0
    end: signal.Signals = signal.SIGTERM
    """Signal that ends the agent last; SIGKILL counts as one more kill of it."""

    def faults(self, chance: random.Random) -> list[str]:
        """Return all faults in a random order."""
        names = ("agent", "stop", "leader", "namenode", "driver", "jvm")
        faults = [name for name in names for _ in range(getattr(self, name))]
        chance.shuffle(faults)
        return faults

    @property
    def count(self) -> int:
        """Return the number of faults."""
        return len(self.faults(random.Random()))


@dataclass(frozen=True)
class Plan:
    """Least number of lines, most lines a second, and the phases of the campaign."""

    lines: int
    rate: int
    phases: tuple[Phase, ...]
    drain: str = "local"
    """Runner that delivers the remaining lines."""


class Campaign:
    """Run of a plan that gathers the evidence. The servers are running afterwards in every case."""

    def __init__(self, plan: Plan, kafka: KafkaCluster, hdfs: HdfsCluster, directory: Path, seed: int) -> None:
        self.plan, self.kafka, self.hdfs, self.directory = plan, kafka, hdfs, directory
        self.seed, self.chance = seed, random.Random(seed)
        self.topic = f"campaign-{seed}-{time.time_ns() // 1_000_000}"
        self.root = f"/{self.topic}"
        self.log = directory / "agent.log"
        self.temporary = directory / "tmp"
        self.reader = HdfsReader(hdfs.webhdfs)
        self.kills: Counter[str] = Counter()
        self.seconds = 0.0
        self.agent: RunningAgent | None = None
        self.writer = Writer(directory / "logs", seed, plan.rate)

    def run(self) -> Evidence:
        """Run all phases; then deliver everything and stop."""
        began = time.monotonic()
        try:
            self.writer.start()
            share = self.plan.lines // sum(phase.count + 1 for phase in self.plan.phases)
            for phase in self.plan.phases:
                self._phase(phase, share)
                if phase is self.plan.phases[-1]:
                    self.writer.finish(self.plan.lines)
                    self._await(self._all_stored, "the last lines in the channel")
                    # A drain has to find the end of the channel after these records.
                    abort_transaction(self.kafka, self.topic, TIMEOUT_SECONDS)
                (self._kill if phase.end is signal.SIGKILL else self._stop)()
            self._drain(self.plan.drain)
            self.seconds = time.monotonic() - began
            self._drain("local")  # a start removes what remains of ranges that were delivered before it
            self._await(lambda: not self._processes(), "the end of all processes")
        finally:
            self._clean_up()
        channel = Components().get("channel", "kafka")
        records = read_topic(self.kafka.bootstrap_servers, self.topic, channel)
        return Evidence(self.seed, self.writer.written, records, Snapshot.of(self.reader, self.root), self.root)

    def describe(self, evidence: Evidence) -> str:
        """Return the figures in one line."""
        kills = ", ".join(f"{name} {count}" for name, count in sorted(self.kills.items()))
        events, batches = evidence.repeated()
        return (
            f"seed {self.seed}: {evidence.written:,} lines through {self.writer.rotations} rotations in "
            f"{self.seconds:.0f} s ({evidence.written / self.seconds:,.0f}/s); killed: {kills}; "
            f"{batches} batches came twice into the channel ({events} events); "
            f"{len(evidence.hdfs.manifests(self.root))} commits, {len(evidence.hdfs.visible(self.root))} files"
        )

    # --- the agent

    def _begin(self, runner: str, *arguments: str) -> None:
        configuration = self.directory / f"{runner}.conf"
        configuration.write_text(
            CONFIGURATION.format(
                logs=self.writer.paths[0].parent,
                directory=self.directory,
                brokers=self.kafka.bootstrap_servers,
                topic=self.topic,
                webhdfs=self.hdfs.webhdfs,
                root=self.root,
                runner=runner,
            )
        )
        self.temporary.mkdir(exist_ok=True)
        environment = {MARK: self.topic, "TMPDIR": str(self.temporary)}
        self._log_end(f"{runner} {' '.join(arguments)}")
        agent = RunningAgent(
            self.directory, configuration, "-c", str(configuration), *arguments, environment=environment
        )
        self.agent = agent.__enter__()  # _clean_up ends it

    def _kill(self) -> None:
        assert self.agent is not None
        self._log_event("agent")
        self.agent.__exit__()

    def _restart(self, runner: str) -> None:
        self._kill()
        self._begin(runner)

    def _stop(self) -> None:
        assert self.agent is not None
        self._await(lambda: self._count("SINK.hdfs", "StartTime") > 0, "the agent to answer")
        self.agent.process.terminate()
        self._ends_well("after SIGTERM")

    def _drain(self, runner: str) -> None:
        self._begin(runner, "--drain")
        self._ends_well("after --drain")

    def _ends_well(self, when: str) -> None:
        assert self.agent is not None
        code = self.agent.wait_for_exit(TIMEOUT_SECONDS)
        if code != 0:
            raise self._failure(f"the agent ended with code {code} {when}")

    def _count(self, component: str, name: str) -> int:
        """Return a counter of the present process; 0 while it does not answer."""
        return self.agent.count(component, name) if self.agent else 0

    def _delivered(self) -> int:
        return self._count("SINK.hdfs", "EventDrainSuccessCount")

    def _all_stored(self) -> bool:
        """Return True if the writer has ended and the positions are at the end of every file."""
        if self.writer.is_alive():
            return False
        with suppress(OSError, ValueError):
            saved = json.loads((self.directory / "positions.json").read_text())
            positions = {entry["inode"]: entry["pos"] for entry in saved}
            statuses = [path.stat() for path in self.writer.paths[0].parent.iterdir()]
            return all(positions.get(status.st_ino) == status.st_size for status in statuses if status.st_size)
        return False

    # --- faults

    def _phase(self, phase: Phase, share: int) -> None:
        """Write one share of the lines for each fault, and one for the end."""
        self._begin(phase.runner)
        faults = phase.faults(self.chance)
        while faults:
            self.writer.wanted += share
            fault = faults.pop()
            if fault in ("driver", "jvm"):
                self._await_batch()
                self._kill_spark(fault)
                continue
            self._await_moment(phase.runner)
            if fault == "agent":
                self._restart(phase.runner)
                continue
            if fault == "stop":
                self._stop()
                self._begin(phase.runner)
                continue
            restart = None
            if "agent" in faults and self.chance.random() < 0.4:
                faults.remove("agent")
                restart = phase.runner
            (self._leader if fault == "leader" else self._namenode)(restart)
        self.writer.wanted += share
        self._await_delivery()
        abort_transaction(self.kafka, self.topic, TIMEOUT_SECONDS)
        self._await_batch()

    def _leader(self, restart: str | None) -> None:
        """Kill a broker that leads a partition; the two others continue until it is back."""
        leaders: list[int] = []
        with KafkaAdminClient(bootstrap_servers=self.kafka.bootstrap_servers) as admin:

            def led() -> bool:
                # A broker that has just come back may not know the topic yet.
                (topic,) = admin.describe_topics([self.topic])
                leaders[:] = [p["leader_id"] for p in topic["partitions"] if p["leader_id"] > 0]
                return bool(leaders)

            self._await(led, "leaders of the topic")
        name = f"broker-{self.chance.choice(leaders)}"
        try:
            self._log_event("leader")
            self.kafka.kill(name)
            if restart:
                time.sleep(self.chance.uniform(0, 2))
                self._restart(restart)
            self._await_delivery()
        finally:
            self.kafka.start()
        self._await(lambda: not self.kafka.status().under_replicated, "all replicas in sync")

    def _namenode(self, restart: str | None) -> None:
        """Kill the NameNode. The channel takes lines meanwhile, and delivery resumes when HDFS is back."""
        try:
            self._log_event("namenode")
            self.hdfs.kill(NAMENODE)
            time.sleep(self.chance.uniform(0, 2))
            if restart:
                self._restart(restart)
            accepted = self._count("SOURCE.files", "EventAcceptedCount")
            self._await(lambda: self._count("SOURCE.files", "EventAcceptedCount") > accepted, "lines in the channel")
        finally:
            self.hdfs.start()
        self._await_delivery()

    def _kill_spark(self, kind: str) -> None:
        """Kill the driver or its JVM. The agent keeps running, their processes end, and both are started again."""
        assert self.agent is not None
        (driver,) = (pid for pid in self._processes() if "flafka.agent.runner.spark.driver" in command_of(pid))
        family = family_of(driver)
        (victim,) = [pid for pid in family if "SparkSubmit" in command_of(pid)] if kind == "jvm" else [driver]
        self._log_event(kind)
        os.kill(victim, signal.SIGKILL)
        self._await(lambda: not family & set(self._processes()), f"the end of all that belonged to the {kind}")

    # --- moments

    def _await_moment(self, runner: str) -> None:
        """Wait for a moment at random: during the start, during work, or between the two halves of a commit."""
        kind = self.chance.choices(("starting", "working", "committing"), (2, 3, 5))[0]
        if kind == "committing":
            self._await_batch()
        else:
            if kind == "working":
                self._await_delivery()
            time.sleep(self.chance.uniform(0, 10 if (kind, runner) == ("starting", "spark") else 2))

    def _await_delivery(self) -> None:
        before = self._delivered()
        self._await(lambda: self._delivered() > before, "a delivery")

    def _await_batch(self) -> None:
        """Wait until the agent, or its Spark, has uploaded files that are not yet committed."""
        before = self._staged()
        self._await(lambda: bool(self._staged() - before), "files on their way to HDFS", POLL_SECONDS)
        time.sleep(self.chance.uniform(0, 0.05))

    def _staged(self) -> set[str]:
        with suppress(Exception):  # HDFS may be unavailable
            return {str(Path(path).parent) for path in self.reader.walk(f"{self.root}/.flafka/tmp")}
        return set()

    def _await(self, condition: Callable[[], bool], what: str, pause: float = 0.1) -> None:
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while not condition():
            code = self.agent.process.poll() if self.agent else None
            if code:
                raise self._failure(f"the agent ended by itself, with code {code}")
            if time.monotonic() > deadline:
                raise self._failure(f"waited {TIMEOUT_SECONDS:.0f} s in vain for {what}")
            time.sleep(pause)

    # --- ends

    def _log_event(self, kind: str) -> None:
        self.kills[kind] += 1
        self._log_end(f"kill {kind}, at line {self.writer.written}")

    def _log_end(self, event: str) -> None:
        """End of the agent's log, for the message of a failure."""
        with self.log.open("a") as log:
            log.write(f"--- {time.strftime('%H:%M:%S')} {event}\n")

    def _failure(self, text: str) -> AssertionError:
        tail = self.log.read_text(errors="replace").splitlines()[-25:]
        return AssertionError("\n".join([f"seed {self.seed}: {text}; {self.log} ends:", *tail]))

    def _processes(self) -> list[int]:
        """Return all processes of the agents that still run, the agents included."""
        return marked(MARK, self.topic)

    def _clean_up(self) -> None:
        self.writer.finish(0)
        for pid in self._processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self.agent is not None:
            self.agent.__exit__()
