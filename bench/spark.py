"""`./dev bench spark`: events out of Kafka, masked, into text and Parquet on HDFS, on Spark with two cores.

The same events lie in two topics of the same brokers: ours (a record is an Arrow batch) and a plain one (a record for
each event, as most producers write it). Three deliver them: the sink `hdfs` with `runner = spark`, Structured
Streaming as one writes it by hand, with a regular expression in the place of the mask, and the sink `hdfs` with
`runner = local`. Both Spark ways run in one session, `local[2]`; all take turns, after a round that does not count.
Time runs from the start of a query, or from when the agent answers, to its last commit. Every file is read back and
compared. Memory is the highest sum of resident sets seen: the JVM and its Python workers, or the agent.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console
from rich.table import Table

from agent.audit.reconciliation import HdfsReader
from agent.config import load
from agent.options import AgentOptions
from agent.runner.deadletters.letters import dead_letters_of
from agent.runner.deadletters.rejections import Rejections
from agent.runner.spark.job import Job, SinkJob
from agent.runner.spark.query import Query
from agent.runner.spark.session import start_session, stop_session
from agent.services.hdfs import CLOSE_DELAY, HdfsCluster
from agent.services.kafka import KafkaCluster
from agent.services.running import RunningAgent
from plugins import Batch, Components, Event

BODY = b"sshd[4721]: Failed password for invalid user admin from 10.1.2.%d port 4022 ssh2 id=%09d"
MASKED = "sshd[4721]: Failed password for invalid user admin from *** port 4022 ssh2 id="
ADDRESS = r"[0-2]?[0-9]{1,2}\.[0-2]?[0-9]{1,2}\.[0-2]?[0-9]{1,2}\.[0-2]?[0-9]{1,2}"
"""As the interceptor `mask` has it."""
PARTITIONS = 2
OURS, PLAIN, LOCAL = "Arrow, runner = spark", "plain Structured Streaming", "Arrow, runner = local"
FORMS = {"text": "", "Parquet": "a.sinks.k.serializer = PARQUET\na.sinks.k.serializer.compressionCodec = snappy"}
CONFIGURATION = """
a.channels = c
a.sinks = k
a.channels.c.type = kafka
a.channels.c.kafka.bootstrap.servers = {servers}
a.channels.c.kafka.topic = arrow
a.sinks.k.type = hdfs
a.sinks.k.channel = c
a.sinks.k.group = {group}
a.sinks.k.hdfs.path = webhdfs://{webhdfs}{root}
a.sinks.k.hdfs.fileType = DataStream
a.sinks.k.hdfs.rollInterval = 0
a.sinks.k.hdfs.rollSize = 0
a.sinks.k.hdfs.rollCount = 0
{form}
a.sinks.k.interceptors = m
a.sinks.k.interceptors.m.type = mask
a.sinks.k.interceptors.m.patterns = ipv4
a.runner = {runner}
a.spark.triggerInterval = 1
a.monitoring.port = 0
"""


@dataclass
class Figures:
    """Every run of one contender."""

    seconds: list[float] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)
    """MB, highest of each run."""


class Bench:
    """The servers, one Spark session, and what is measured."""

    def __init__(self, home: Path, kafka: KafkaCluster, hdfs: HdfsCluster, events: int) -> None:
        self.home, self.kafka, self.hdfs, self.events = home, kafka, hdfs, events
        self.reader = HdfsReader(hdfs.webhdfs)
        self.found: dict[tuple[str, str], Figures] = {}
        self.log = home / "spark.log"
        conf = {
            "spark.driver.memory": "1g",
            f"spark.hadoop.{CLOSE_DELAY}": "10",  # as the DataNode has it, which writes for our sink
        }
        self.spark, self.gateway = start_session("bench", AgentOptions(spark_conf=conf), self.log)

    def round(self, number: int) -> None:
        """Everybody once; round 0 does not count."""
        ways: dict[str, Callable[[str, str, Figures], None]] = {OURS: self.ours, PLAIN: self.plain, LOCAL: self.local}
        for form in FORMS:
            for name, deliver in ways.items():
                figures = self.found.setdefault((name, form), Figures()) if number else Figures()
                root = f"/bench-{form}-{number}-{list(ways).index(name)}"
                deliver(root, form, figures)
                self.check(root, form)

    # --- the contenders

    def ours(self, root: str, form: str, figures: Figures) -> None:
        """The sink on Spark, as the driver of an agent runs it."""
        spec, diagnostics = load(self.configuration(root, form, "spark"), None, components=Components())
        assert spec is not None, diagnostics
        sink, channel = spec.sinks[0], spec.channels[0]
        job = SinkJob(sink, channel)
        rejections = Rejections(dead_letters_of("a", channel, channel.make(), spec.options), sink.tolerance)
        query = Query(Job("a", (job,), spec.options, str(self.log), str(self.home)), job, rejections)
        ends, stopping = self.ends(), threading.Event()
        # What the driver tells the agent on its standard output is heard by nobody here.
        with measured(self.gateway.process.pid, figures), contextlib.redirect_stdout(io.StringIO()):
            thread = threading.Thread(target=query.run, args=(self.spark, stopping))
            thread.start()
            while query.expected != ends:
                assert thread.is_alive(), f"the query ended; its log: {self.log}"
                time.sleep(0.01)
        stopping.set()
        thread.join()

    def plain(self, root: str, form: str, figures: Figures) -> None:
        """Structured Streaming alone."""
        options = {
            "kafka.bootstrap.servers": self.kafka.bootstrap_servers,
            "subscribe": "plain",
            "startingOffsets": "earliest",
        }
        stream = self.spark.readStream.format("kafka").options(**options).load()
        masked = stream.selectExpr(f"regexp_replace(CAST(value AS string), r'{ADDRESS}', '***') AS body")
        writer = masked.writeStream.format(form.lower()).option("path", f"{self.hdfs.rpc}{root}")
        with measured(self.gateway.process.pid, figures):
            writer = writer.option("checkpointLocation", f"{self.home}/checkpoint{root}").trigger(availableNow=True)
            writer.start().awaitTermination()

    def local(self, root: str, form: str, figures: Figures) -> None:
        """The sink on a thread of an agent that ends once all is committed."""
        file = self.configuration(root, form, "local")
        with RunningAgent(self.home, file, "--drain", "-c", str(file)) as agent:
            agent.until(lambda: agent.get("/metrics")[0], "its metrics")
            with measured(agent.process.pid, figures):
                agent.ended(600)

    def configuration(self, root: str, form: str, runner: str) -> Path:
        """A file for an agent, whose group has read nothing yet."""
        file = self.home / "agent.conf"
        text = CONFIGURATION.format(
            servers=self.kafka.bootstrap_servers,
            webhdfs=self.hdfs.webhdfs,
            root=root,
            group=root[1:],
            form=FORMS[form],
            runner=runner,
        )
        file.write_text(text)
        return file

    # --- what there is to read, and what came of it

    def fill(self) -> None:
        """The same events in both topics."""
        servers = self.kafka.bootstrap_servers
        channel: Any = Components().get("channel", "kafka")
        options = {"kafka.bootstrap.servers": servers, "kafka.topic": "arrow", "partitions": str(PARTITIONS)}
        config, problems = channel.config_class.parse(options)
        assert config is not None, problems
        arrow = channel(config, "c")
        arrow.open()
        admin = AdminClient({"bootstrap.servers": servers})
        admin.create_topics([NewTopic("plain", PARTITIONS, 3)])["plain"].result(60)
        producer = Producer({"bootstrap.servers": servers, "compression.type": "lz4", "linger.ms": 50})
        for start in range(0, self.events, 10_000):
            numbers = range(start, min(self.events, start + 10_000))
            bodies = [BODY % (number % 256, number) for number in numbers]
            arrow.put(Batch.of([Event(body, {"host": "web-1"}) for body in bodies]))
            producer.produce_batch("plain", [{"value": body} for body in bodies])
            producer.flush()
        arrow.close()

    def ends(self) -> dict[int, int]:
        """Where the partitions of our topic end."""
        consumer = Consumer({"bootstrap.servers": self.kafka.bootstrap_servers, "group.id": "bench"})
        try:
            return {p: consumer.get_watermark_offsets(TopicPartition("arrow", p))[1] for p in range(PARTITIONS)}
        finally:
            consumer.close()

    def check(self, root: str, form: str) -> None:
        """Every event once, masked."""
        files = [self.reader.read(path) for path in self.reader.walk(root) if "/_" not in path and "/." not in path]
        if form == "text":
            texts = pa.array(b"".join(files).decode().splitlines())
        else:
            tables = [pq.read_table(io.BytesIO(data), columns=["body"]) for data in files]
            texts = pa.concat_arrays([c.cast(pa.string()) for table in tables for c in table["body"].chunks])
        assert len(texts) == self.events, f"{root}: {len(texts):,} events of {self.events:,}"
        assert pc.all(pc.starts_with(texts, MASKED)).as_py(), f"{root}: not all are masked"
        numbers = pc.utf8_slice_codeunits(texts, -9).cast(pa.int64()).to_numpy()
        assert np.array_equal(np.sort(numbers), np.arange(self.events)), f"{root}: events were lost or doubled"

    def show(self) -> None:
        """Medians, and ours against the plain way within each round."""
        table = Table(box=None)
        for heading in ("", "", "events/s", "MB/s of bodies", "peak MB"):
            table.add_column(heading, justify="left" if not heading else "right")
        for (name, form), figures in self.found.items():
            rate = self.events / statistics.median(figures.seconds)
            size = rate * (len(MASKED) + 9) / 1e6
            table.add_row(name, form, f"{rate:,.0f}", f"{size:,.1f}", f"{max(figures.memory):,.0f}")
        console = Console()
        console.print(table)
        for form in FORMS:
            pairs = zip(self.found[PLAIN, form].seconds, self.found[OURS, form].seconds, strict=True)
            ratio = statistics.median(plain / ours for plain, ours in pairs)
            console.print(f"{form}: {ratio:.2f} times as fast as Structured Streaming from a record for each event")
        console.print(f"{self.events:,} events a run, all read back and compared")


def main() -> None:
    """Run, check, print."""
    parser = argparse.ArgumentParser(prog="./dev bench spark", description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, default=2_000_000, help="events a run (default: 2,000,000)")
    parser.add_argument("--rounds", type=int, default=3, help="how often each is measured, in turns (default: 3)")
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="flafka-bench-") as name,
        KafkaCluster(Path(name, "kafka"), heap_mb=512, fixed_ports=False) as kafka,
        HdfsCluster(Path(name, "hdfs"), fixed_ports=False) as hdfs,
    ):
        bench = Bench(Path(name), kafka, hdfs, arguments.events)
        bench.fill()
        for number in range(arguments.rounds + 1):
            bench.round(number)
            print(f"round {number} of {arguments.rounds}", flush=True)
        stop_session(bench.spark, bench.gateway)
    bench.show()


@contextlib.contextmanager
def measured(pid: int, figures: Figures) -> Iterator[None]:
    """Time, and the memory of that process and all below it, looked at five times a second."""
    over, peak = threading.Event(), [resident(pid)]

    def watch() -> None:
        while not over.wait(0.2):
            peak[0] = max(peak[0], resident(pid))

    watcher = threading.Thread(target=watch)
    watcher.start()
    started = time.perf_counter()
    try:
        yield
        figures.seconds.append(time.perf_counter() - started)
    finally:
        over.set()
        watcher.join()
    figures.memory.append(peak[0] / 1e6)


def resident(root: int) -> int:
    """Bytes of memory that a process and its descendants take now; what they share counts more than once."""
    parents: dict[int, int] = {}
    sizes: dict[int, int] = {}
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            fields = (directory / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(directory.name)], sizes[int(directory.name)] = int(fields[1]), int(fields[21]) * 4096
    family = {root}
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    return sum(sizes.get(pid, 0) for pid in family)


if __name__ == "__main__":
    main()
