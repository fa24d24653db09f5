"""Three tiers of Flume's users, any of which is a real Flume 1.11, under load while each is killed.

    tail agent: taildir → file channel → two avro sinks in a load_balance group
    relays, two: avro source → file channel → avro sink
    collector: avro source → file channel, or Kafka's → hdfs sink

Both products run the same file.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path

import pyhdfs
from confluent_kafka.admin import AdminClient, NewTopic

from flafka.agent.audit.reconciliation import HdfsReader
from flafka.agent.services import ServiceError
from flafka.agent.services.hdfs import HdfsCluster
from flafka.agent.services.kafka import KafkaCluster
from flafka.agent.services.running import RunningAgent, free_ports, until
from tests.interop.test_flume import RunningFlume
from tests.system.running import kafka_channel, unique

TIERS = ("tails", "relays", "collector")
CHANNEL = """
a1.channels = c1
a1.channels.c1.type = file
a1.channels.c1.checkpointDir = {home}/checkpoint
a1.channels.c1.dataDirs = {home}/data
a1.channels.c1.minimumRequiredSpace = 1048576
"""
TAIL = """
a1.sources = files
a1.sources.files.type = TAILDIR
a1.sources.files.channels = c1
a1.sources.files.filegroups = logs
a1.sources.files.filegroups.logs = {logs}/[a-z]+[.]log.*
a1.sources.files.positionFile = {home}/positions.json
a1.sources.files.writePosInterval = 200
a1.sinks = k1 k2
a1.sinkgroups = both
a1.sinkgroups.both.sinks = k1 k2
a1.sinkgroups.both.processor.type = load_balance
a1.sinkgroups.both.processor.backoff = true
a1.sinkgroups.both.processor.selector = {selector}
a1.sinkgroups.both.processor.selector.maxTimeOut = 2000
"""
AVRO_SOURCE = """
a1.sources = in
a1.sources.in.type = avro
a1.sources.in.channels = c1
a1.sources.in.bind = 127.0.0.1
a1.sources.in.port = {port}
a1.sources.in.threads = 8
"""
AVRO_SINK = """
a1.sinks.{name}.type = avro
a1.sinks.{name}.channel = c1
a1.sinks.{name}.hostname = 127.0.0.1
a1.sinks.{name}.port = {port}
a1.sinks.{name}.batch-size = {batch}
a1.sinks.{name}.reset-connection-interval = 10
"""
HDFS = """
a1.sinks = k1
a1.sinks.k1.type = hdfs
a1.sinks.k1.channel = c1
a1.sinks.k1.hdfs.path = {rpc}{root}
a1.sinks.k1.hdfs.webhdfs = {webhdfs}
a1.sinks.k1.hdfs.fileType = DataStream
a1.sinks.k1.hdfs.batchSize = 100
a1.sinks.k1.hdfs.rollInterval = 5
a1.sinks.k1.hdfs.rollSize = 0
a1.sinks.k1.hdfs.rollCount = 0
"""
BATCH = 100
ID = re.compile(rb"\d{8} x*;")


class Writer(threading.Thread):
    """Thread that writes numbered lines at a rate to two files in turns, and sometimes renames one of them."""

    def __init__(self, logs: Path, rate: int) -> None:
        super().__init__(daemon=True)
        self.logs, self.rate = logs, rate
        self.written = 0
        self.end = threading.Event()

    def run(self) -> None:
        begin = time.monotonic()
        while not self.end.is_set():
            due = int((time.monotonic() - begin) * self.rate) - self.written
            for name in ("app.log", "db.log"):
                lines = [b"%08d %s;\n" % (n, b"x" * (n % 150)) for n in range(self.written, self.written + due // 2)]
                with (self.logs / name).open("ab") as file:
                    file.write(b"".join(lines))
                self.written += len(lines)
            if (self.logs / "app.log").stat().st_size > 2_000_000:
                (self.logs / "app.log").rename(self.logs / f"app.log.{self.written}")
            self.end.wait(0.05)


@dataclass
class Process:
    """One agent with its directory, over all its processes."""

    home: Path
    real: bool
    hadoop: bool = False
    running: RunningAgent | RunningFlume | None = None

    def start(self) -> None:
        """Start it, or restart it."""
        file = self.home / "flume.conf"
        if self.real:
            self.running = RunningFlume(self.home, file, jars=["hdfs"] if self.hadoop else [])
        else:
            self.running = RunningAgent(self.home, file)
        self.running.__enter__()

    def kill(self) -> None:
        """End it with SIGKILL."""
        if self.running is not None:
            self.running.process.kill()
            self.running.process.wait()

    @property
    def log(self) -> str:
        return self.running.log if self.running is not None else ""


@dataclass
class Tiers:
    """Tiers below `directory`; Flume runs those in `real`. A context manager that ends all processes."""

    directory: Path
    hdfs: HdfsCluster
    kafka: KafkaCluster | None
    real: Collection[str]
    rate: int
    selector: str = "round_robin"
    processes: dict[str, list[Process]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.root = f"/test/{unique('tiers')}"
        self.logs = self.directory / "logs"
        self.logs.mkdir()
        first, second, end = free_ports(3)
        tail = TAIL + CHANNEL + self._sinks(("k1", first), ("k2", second))
        relay = AVRO_SOURCE + CHANNEL + "a1.sinks = k1\n" + self._sinks(("k1", end))
        store = HDFS.format(rpc=self.hdfs.rpc, root=self.root, webhdfs=self.hdfs.webhdfs)
        if self.kafka:
            servers, topic = self.kafka.bootstrap_servers, unique("tiers")
            channel = "a1.channels = c1\n" + kafka_channel(servers, topic)
            channel = channel.replace("type = kafka", "type = org.apache.flume.channel.kafka.KafkaChannel")
            channel += "a1.channels.c1.kafka.consumer.auto.offset.reset = earliest\n"
            admin = AdminClient({"bootstrap.servers": servers})
            admin.create_topics([NewTopic(topic, 3, 3)])[topic].result(30)  # Flume creates none
        else:
            channel = CHANNEL
        self._add("tails", tail, 0)
        self._add("relays", relay, first)
        self._add("relays", relay, second)
        self._add("collector", AVRO_SOURCE + channel + store, end)
        self.writer = Writer(self.logs, self.rate)
        self._closed: dict[str, list[int]] = {}

    def _sinks(self, *sinks: tuple[str, int]) -> str:
        return "".join(AVRO_SINK.format(name=name, port=port, batch=BATCH) for name, port in sinks)

    def _add(self, tier: str, text: str, port: int) -> None:
        home = self.directory / f"{tier}-{port}"
        home.mkdir()
        text = text.format(home=home, logs=self.logs, port=port, selector=self.selector)
        real = tier in self.real
        (home / "flume.conf").write_text(text + "a1.monitoring.port = 0\n" * (not real))
        self.processes.setdefault(tier, []).append(Process(home, real, hadoop=tier == "collector"))

    def __enter__(self) -> Tiers:
        for tier in reversed(TIERS):
            for process in self.processes[tier]:
                process.start()
        self.writer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.writer.end.set()
        self.writer.join()
        for processes in self.processes.values():
            for process in processes:
                process.kill()

    def kill(self, tier: str) -> None:
        """End all processes of a tier by SIGKILL, and start them again."""
        for process in self.processes[tier]:
            process.kill()
        for process in self.processes[tier]:
            process.start()

    def delivered(self) -> Counter[int]:
        """Return the number of copies of each line on HDFS, in files that Flume has not closed as well."""
        reader = HdfsReader(self.hdfs.webhdfs)
        open_files = []
        for path in reader.visible(self.root):
            if path not in self._closed:
                with contextlib.suppress(pyhdfs.HdfsFileNotFoundException):  # renamed meanwhile
                    lines = reader.read(path).split(b"\n")
                    numbers = [int(line[:8]) for line in lines if ID.fullmatch(line)]
                    if path.endswith(".tmp"):
                        open_files.append(numbers)
                    else:
                        self._closed[path] = numbers
        return Counter(itertools.chain(*self._closed.values(), *open_files))

    def flows(self, beyond: int) -> None:
        """Wait until a line with a higher number is delivered."""
        self._until(lambda: max(self.delivered(), default=-1) > beyond, f"a line beyond {beyond} on HDFS")

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        def read_lines() -> bool:
            time.sleep(0.5)  # each check reads all files
            return condition()

        try:
            until(read_lines, what)
        except ServiceError as e:
            ends = "\n".join(f"{p.home.name}:\n{p.log[-3000:]}" for tier in TIERS for p in self.processes[tier])
            raise AssertionError(f"{e}\n{ends}") from None

    def finish(self) -> Counter[int]:
        """Stop writing, and wait until every line is on HDFS; return the number of copies of each."""
        self.writer.end.set()
        self.writer.join()
        wanted = set(range(self.writer.written))
        copies: Counter[int] = Counter()

        def all_there() -> bool:
            nonlocal copies
            copies = self.delivered()
            return wanted <= copies.keys()

        with contextlib.suppress(AssertionError):  # the list of missing lines says more
            self._until(all_there, "every line on HDFS")
        missing = sorted(wanted - copies.keys())
        assert not missing, f"{len(missing)} of {len(wanted)} lines are lost, such as {missing[:5]}"
        assert not copies.keys() - wanted
        return copies


def campaign(tiers: Tiers, killed: Collection[str] = TIERS) -> str:
    """Kill these tiers under load, one after the other, and restart each: nothing is lost.

    The result is a line of figures: the repeated lines of each tier's kill. A sender without an answer retries, also
    on a machine that is busy for longer than `request-timeout`. The events in flight of a hop may then be repeated.
    """
    begin = time.monotonic()
    repeated: dict[str, int] = {}
    with tiers:
        tiers.flows(tiers.writer.written)
        before = repeats(tiers.delivered())
        repeated["none"] = before
        for tier in killed:
            tiers.kill(tier)
            tiers.flows(tiers.writer.written)
            now = repeats(tiers.delivered())
            repeated[tier], before = now - before, now
        copies = tiers.finish()
    return (
        f"three tiers, Flume's: {', '.join(tiers.real)}, {'Kafka' if tiers.kafka else 'file'} channel: {len(copies)} "
        f"lines, none lost, {repeats(copies)} repeated, by the end of: "
        f"{', '.join(f'{tier} {count}' for tier, count in repeated.items())}; {time.monotonic() - begin:.0f} s"
    )


def repeats(copies: Counter[int]) -> int:
    """Return the number of lines beyond the first copy of each."""
    return copies.total() - len(copies)
