"""Stored events for delivery benchmarks: Kafka topics with equal contents, and verification of files on HDFS."""

from __future__ import annotations

import contextlib
import io
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from confluent_kafka import Producer

from bench.frame import CPU, RATE, Figures
from bench.frame.kafka import CHANNEL, Topic, assert_equal_bodies
from bench.frame.processes import cpu_seconds, resident_bytes
from bench.frame.varied import Events
from flafka.agent.audit.reconciliation import HdfsReader
from flafka.agent.services.kafka import KafkaCluster
from flafka.agent.services.running import RunningAgent
from flafka.plugins import Batch

PARTITIONS = 2
DELIVERY = """
a.channels = c
a.sinks = k
a.channels.c.type = kafka
a.channels.c.kafka.bootstrap.servers = {servers}
a.channels.c.kafka.topic = {topic}
a.sinks.k.type = {kind}
a.sinks.k.channel = c
a.sinks.k.group = {group}
a.monitoring.port = 0
{options}
"""
"""Configuration of an agent that delivers a topic with one sink."""
INTO_HDFS = DELIVERY.replace("{kind}", "hdfs").replace(
    "{options}",
    """\
a.sinks.k.hdfs.path = webhdfs://{webhdfs}{root}
a.sinks.k.hdfs.fileType = DataStream
a.sinks.k.hdfs.rollInterval = 0
a.sinks.k.hdfs.rollSize = 0
a.sinks.k.hdfs.rollCount = 0
{form}""",
)
FORMS = {"text": "", "Parquet": "a.sinks.k.serializer = PARQUET\na.sinks.k.serializer.compressionCodec = snappy"}
ARROW, PLAIN, FLUME_FORMAT = "arrow", "plain", "flume"
"""Formats of records: an Arrow batch, the body of one event as most producers write it, or one event of Flume."""


class StoredEvents:
    """Topics with equal contents, filled on first use."""

    def __init__(self, kafka: KafkaCluster, events: int) -> None:
        self.servers, self.events = kafka.bootstrap_servers, events
        self._filled: dict[str, Topic] = {}
        self._content = Events(events)
        self.bodies = self._content.bodies()
        """Bodies of all events, in the order of their numbers."""

    def topic(self, kind: str, events: int | None = None) -> Topic:
        """Return the topic of a format, with the first `events` events, or all if None.

        The first call fills the topic; later calls return it as it is.
        """
        if kind not in self._filled:
            self._filled[kind] = Topic(self.servers, f"stored-{kind}-{self.events}", PARTITIONS)
            if kind == PLAIN:
                self._plain(self._filled[kind].name)
            else:
                self._channel(self._filled[kind].name, kind, events or self.events)
        return self._filled[kind]

    def _channel(self, name: str, kind: str, events: int) -> None:
        """Fill a topic through the Kafka channel in one of its formats."""
        options = {"kafka.bootstrap.servers": self.servers, "kafka.topic": name, "format": kind}
        config, problems = CHANNEL.config_class.parse(options)
        assert config is not None, problems
        channel: Any = CHANNEL(config, "c")
        headers = self._content.headers()
        channel.open()
        for start in range(0, events, 10_000):
            rows = slice(start, min(events, start + 10_000))
            columns = {name: values[rows] for name, values in headers.items()}
            channel.put(Batch.of_columns(self.bodies[rows], columns))
        channel.close()

    def _plain(self, name: str) -> None:
        """Fill a topic with one record per body."""
        producer = Producer({"bootstrap.servers": self.servers, "compression.type": "lz4", "linger.ms": 50})
        for start in range(0, self.events, 10_000):
            bodies = self.bodies[start : start + 10_000].to_pylist()
            producer.produce_batch(name, [{"value": body} for body in bodies])
            producer.flush()

    def check(self, hdfs: HdfsReader, root: str, form: str, *, masked: bool, events: int | None = None) -> None:
        """Assert that the files below a directory on HDFS hold the first `events` events, or all, exactly once.

        `form` is a key of `FORMS`; `masked`: addresses are masked. Hidden files do not count.
        """
        files = [hdfs.read(path) for path in hdfs.walk(root) if "/_" not in path and "/." not in path]
        if form == "text":
            bodies = pa.array(b"".join(files).splitlines(), pa.binary())
        else:
            tables = [pq.read_table(io.BytesIO(data), columns=["body"]) for data in files]
            bodies = pa.concat_arrays([c.cast(pa.binary()) for table in tables for c in table["body"].chunks])
        count = events or self.events
        expected = self._content.bodies(masked=True) if masked else self.bodies
        assert_equal_bodies(bodies, expected[:count], root)


@contextlib.contextmanager
def peak_memory(pid: int) -> Iterator[list[float]]:
    """Yield a list whose only element is the peak so far of the resident sets of a process and its descendants.

    The peak is in MB, and sampled five times a second.
    """
    is_over, peak = threading.Event(), [resident_bytes(pid) / 1e6]

    def watch() -> None:
        while not is_over.wait(0.2):
            peak[0] = max(peak[0], resident_bytes(pid) / 1e6)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield peak
    finally:
        is_over.set()
        watcher.join()


class DrainResult(NamedTuple):
    """Time and CPU time of a delivery, in seconds."""

    events: int
    seconds: float
    cpu: float

    @property
    def figures(self) -> Figures:
        """Events/s, and µs of CPU per event, by unit."""
        return {RATE: self.events / self.seconds, CPU: self.cpu / self.events * 1e6}


def drain(home: Path, text: str, events: int, delivered: Callable[[], bool] = lambda: False) -> DrainResult:
    """Run an agent in draining mode; return the time until `delivered` returns True or the agent ends.

    `text` is its configuration, with the sink `k`. The measurement starts when its monitoring answers. Events whose
    delivery began before do not count. Raises AssertionError if the agent fails.
    """
    file = configuration(home, text)
    with RunningAgent(home, file, "--drain", "-c", str(file)) as agent:
        agent.until(lambda: agent.get("/metrics")[0], "its metrics")
        last = cpu = cpu_seconds(agent.process.pid)
        started = time.perf_counter()
        events = max(1, events - agent.count("SINK.k", "EventDrainAttemptCount"))  # a smoke run may be complete
        while agent.process.poll() is None and not delivered():
            last = cpu_seconds(agent.process.pid) or last
            time.sleep(0.05)
        seconds, last = time.perf_counter() - started, cpu_seconds(agent.process.pid) or last
        assert agent.wait_for_exit() == 0, agent.log
    return DrainResult(events, seconds, last - cpu)


def configuration(home: Path, text: str) -> Path:
    """Write a configuration to `agent.conf` in the directory `home`, and return its path."""
    file = home / "agent.conf"
    file.write_text(text)
    return file
