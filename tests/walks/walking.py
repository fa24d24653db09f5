"""Batches through recorded agents on real servers: over TCP into Kafka, and from there into files on HDFS."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition

from flafka.agent.audit.reconciliation import HdfsReader
from flafka.agent.services.hdfs import HdfsCluster
from flafka.agent.services.kafka import KafkaCluster
from flafka.agent.services.running import RunningAgent, until
from flafka.plugins.kafka.admin import committed_offsets
from tests.system.running import connected, hdfs_sink, kafka_channel, unique
from tests.walks.recording import Walk, Window, environment, is_complete, walk

EVENTS = 100
"""Number of events in a batch: enough for the vectorized parser."""
BATCHES = 3
"""Number of batches. A function counts if it runs in each, which excludes timers."""
SETTLE_SECONDS = 1.0
"""Time after the delivery of a batch for its counters and acknowledgements."""
AFTER_FIRST_SECONDS = 2.0
"""Time until an agent is idle after the first batch; Spark reports its progress late."""
INTAKE, LOCAL, SPARK = "intake", "hdfs local", "hdfs spark"


class RecordedAgents:
    """Recorded agents on their own topic: one receives events, and one per runner writes files."""

    def __init__(self, directory: Path, kafka: KafkaCluster, hdfs: HdfsCluster, *, spark: bool) -> None:
        self.topic = unique("walk")
        self._directory, self._kafka, self._hdfs = directory, kafka, hdfs
        self._sinks = (LOCAL, SPARK) if spark else (LOCAL,)

    def run(self, idle_seconds: float) -> list[Walk]:
        """Send a first batch, wait, send the measured batches, and return the walk of each agent."""
        with contextlib.ExitStack() as stack:
            intake = stack.enter_context(self._agent(INTAKE, self._intake()))
            port = intake.port("s1")  # the topic exists now
            agents = [intake, *(stack.enter_context(self._agent(name, self._sink(name))) for name in self._sinks)]
            with connected(port) as connection:
                self._deliver(connection.sendall)
                time.sleep(AFTER_FIRST_SECONDS)
                idle = _window(lambda: time.sleep(idle_seconds))
                batches = [_window(lambda: self._deliver(connection.sendall)) for _ in range(BATCHES)]
            recordings = {name: self._directory / name / "calls" for name in (INTAKE, *self._sinks)}
            for name, recording in recordings.items():
                until(lambda recording=recording: is_complete(recording, batches[-1][1]), f"all calls of {name}")
            for agent in agents:
                agent.stop()
        return [walk(name, recording, batches, idle) for name, recording in recordings.items()]

    def _agent(self, name: str, configuration: str) -> RunningAgent:
        directory = self._directory / name
        variables = environment(directory / "calls", os.environ.get("PYTHONPATH", ""))
        return RunningAgent(directory, configuration, environment=variables)

    def _channel(self) -> str:
        return kafka_channel(self._kafka.bootstrap_servers, self.topic, partitions=1)

    def _intake(self) -> str:
        return f"""
a1.sources = s1
a1.channels = c1
a1.sources.s1.type = syslogtcp
a1.sources.s1.host = 127.0.0.1
a1.sources.s1.port = 0
a1.sources.s1.channels = c1
a1.sources.s1.interceptors = i1
a1.sources.s1.interceptors.i1.type = mask
a1.sources.s1.interceptors.i1.patterns = ipv4
{self._channel()}
"""

    def _sink(self, name: str) -> str:
        return f"""
a1.channels = c1
a1.sinks = k1
a1.runner = {"spark" if name == SPARK else "local"}
a1.spark.master = local[1]
a1.spark.triggerInterval = 1
{self._channel()}
{hdfs_sink(self._hdfs.webhdfs, self._root(name))}
a1.sinks.k1.group = {self._group(name)}
"""

    def _root(self, name: str) -> str:
        return f"/walks/{self.topic}/{name.replace(' ', '-')}"

    def _group(self, name: str) -> str:
        return f"{self.topic}-{name.replace(' ', '-')}"

    def _deliver(self, send: Callable[[bytes], object]) -> None:
        """Send a batch, and wait until each sink has its file and has committed its offset."""
        files = {name: self._files(name) for name in self._sinks}
        before = self._end()
        send(b"".join(b"<13>Nov 28 12:00:00 host%d app: event %d of 10.0.0.1\n" % (n, n) for n in range(EVENTS)))
        until(lambda: self._end() > before, "a record in all in-sync replicas")
        for name in self._sinks:
            until(lambda name=name: self._files(name) > files[name], f"a file of {name}")
            until(lambda name=name: self._committed(name) == self._end(), f"the committed offset of {name}")
        time.sleep(SETTLE_SECONDS)

    def _files(self, name: str) -> int:
        return len(HdfsReader(self._hdfs.webhdfs).visible(self._root(name)))

    def _end(self) -> int:
        """High watermark of the topic: all in-sync replicas have the records below it."""
        with self._consumer(self.topic) as consumer:
            return consumer.get_watermark_offsets(TopicPartition(self.topic, 0), timeout=60)[1]

    def _committed(self, name: str) -> int:
        with self._consumer(self._group(name)) as consumer:
            (committed,) = committed_offsets(consumer, [TopicPartition(self.topic, 0)], seconds=60)
            return committed.offset

    @contextlib.contextmanager
    def _consumer(self, group: str) -> Iterator[Consumer]:
        consumer = Consumer({"bootstrap.servers": self._kafka.bootstrap_servers, "group.id": group})
        try:
            yield consumer
        finally:
            consumer.close()


def _window(run: Callable[[], object]) -> Window:
    start = time.monotonic()
    run()
    return start, time.monotonic()
