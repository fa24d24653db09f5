"""Page of an agent with every feature and no running component: for a browser, without servers."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from flafka.agent.graph import graph_of
from flafka.agent.monitoring.kafkamonitor import KafkaMonitor
from flafka.agent.monitoring.registry import Registry
from flafka.agent.monitoring.server import MetricsServer
from flafka.agent.monitoring.view import View
from flafka.agent.topology import AgentSpec
from flafka.plugins import Metrics, TailedFile
from flafka.plugins.kafka.backlog import Broker, ClusterState


class Scene:
    """Registry and page of an agent; a test sets its figures by hand."""

    def __init__(self, spec: AgentSpec, files: list[TailedFile] | None = None) -> None:
        self.files = files or []
        self.rejecting: dict[str, str] = {}
        self.registry = Registry(spec.name, lambda: self.rejecting)
        self.graph = graph_of(spec)
        self.metrics: dict[str, Metrics] = {}
        self.kafka_monitor = KafkaMonitor({}, {})
        for node in self.graph.nodes:
            for component in (node, *node.interceptors):
                kind, _, name = component.metrics.partition(".")
                self.metrics[component.metrics] = Metrics()
                self.registry.add(kind, name, self.metrics[component.metrics])
        for edge in self.graph.edges:
            if edge.metrics:
                self.metrics[edge.metrics] = Metrics()
                self.registry.add("ROUTE", edge.metrics.partition(".")[2], self.metrics[edge.metrics])
        command = f"agent dlq list -c {spec.file} -n {spec.name}"
        self.view = View(self.graph, self.registry, command)
        self.view.set_agent(self.graph, self.kafka_monitor, {"files": lambda: self.files})
        self.view.history._monotonic = time.time  # so that samples of the past have rates

    def sample(self, at: float) -> None:
        """Take a sample of the metrics as at this time, in seconds since the epoch."""
        history = self.view.history
        history._now = history._monotonic = lambda: at
        history.sample()
        history._now = history._monotonic = time.time

    @property
    def url(self) -> str:
        """Address of the page."""
        return f"http://127.0.0.1:{self.server.port}/"

    @contextlib.contextmanager
    def served(self) -> Iterator[Scene]:
        """Serve the page until the end of the block."""
        self.server = MetricsServer(self.registry, "127.0.0.1", 0, self.view)
        self.server.start()
        try:
            yield self
        finally:
            self.server.stop()

    def set_cluster(self, channel: str, seen: ClusterState) -> None:
        """Set the results of the monitor."""
        self.kafka_monitor._latest[channel] = seen

    def log(self, level: int, component: str, text: str) -> None:
        """Add a line to the log."""
        self.view.recent.handle(logging.LogRecord(component, level, "", 0, text, (), None))


def cluster(topic: str, down: int | None = None) -> ClusterState:
    """Return three brokers, of which one may be down."""
    brokers = tuple(
        Broker(n, f"127.0.0.1:{19091 + n}", n != down, 0 if n == down else 1 + (down is not None and n == 1))
        for n in (1, 2, 3)
    )
    return ClusterState("4L6g3nShT-eMCtK--X86sw", topic, brokers, 3, 3 if down else 0, 0)


def at_work(scene: Scene) -> None:
    """Set figures of a busy agent of conf/flafka.conf: a broker down, a failing sink, dead letters, an hour."""
    now = time.time()
    counters: Mapping[str, tuple[str, float]] = {
        "SOURCE": ("EventAcceptedCount", 1),
        "INTERCEPTOR": ("EventReceivedCount", 1),
        "ROUTE": ("EventRoutedCount", 1),
        "CHANNEL": ("EventPutSuccessCount", 4),
        "SINK": ("EventDrainSuccessCount", 3),
    }
    for number in range(361):
        if 140 < number < 160:  # the agent was down
            continue
        for key, metrics in scene.metrics.items():
            counter, factor = counters[key.partition(".")[0]]
            metrics.add(counter, int(factor * (2000 + 1500 * (number % 38) / 38) * (1 + len(key) % 3)))
            if key.startswith("SINK."):
                metrics.set("Lag", 120 + 50 * (number % 8))
                metrics.set("LagSeconds", 2 + number % 6)
        scene.sample(now - 10 * (360 - number))
    figures: dict[str, dict[str, float]] = {
        "SOURCE.tcp": {"OpenConnectionCount": 37, "OpenConnectionLimit": 4096},
        "SOURCE.udp": {"KernelDropCount": 1234},
        "SOURCE.files": {"FollowedFileCount": len(scene.files)},
        "CHANNEL.events": {"UnderReplicatedPartitions": 3, "BrokersDown": 1},
        "SINK.hdfs": {"BatchMilliseconds": 2140, "RecordsPerSecond": 812.4, "Backlog": 2810, "LagSeconds": 44},
        "SINK.hbase": {"BatchMilliseconds": 960, "RecordsPerSecond": 790.1, "EventRejectedCount": 17},
        "SINK.solr": {"Backlog": 1_284_223, "LagSeconds": 7 * 3600, "RetentionSecondsLeft": 5 * 3600}
        | {"RetryAttempt": 41, "RetryTime": 1000 * (now + 27), "EventRejectedCount": 3},
        "SINK.levels": {
            "BatchMilliseconds": 5310,
            "RecordsPerSecond": 402.0,
            "StateRows": 5012,
            "StateBytes": 1 << 21,
        },
    }
    for key, values in figures.items():
        for name, value in values.items():
            if key in scene.metrics:
                counted = name in ("KernelDropCount", "EventRejectedCount")
                (scene.metrics[key].add if counted else scene.metrics[key].set)(name, value)
    if "SINK.solr" in scene.metrics:
        text = "http://127.0.0.1:18983/solr/events does not answer: Connection refused; start it: agent sandbox up"
        scene.metrics["SINK.solr"].set_error(text)
        scene.rejecting["flafka.sinks.hbase"] = (
            "17 events were rejected, the latest 12 s ago (17: header `key` is missing): "
            "agent dlq list -c conf/flafka.conf -n flafka --component flafka.sinks.hbase"
        )
        drops = "the kernel dropped 1234 datagrams, which arrived faster than they were stored"
        scene.log(logging.WARNING, "flafka.sources.udp", drops)
        scene.log(logging.ERROR, "flafka.sinks.solr", text)
        scene.set_cluster("events", cluster("flafka-events", down=2))
        scene.set_cluster("counts", cluster("flafka-counts"))


def some_files(directory: Path, number: int) -> list[TailedFile]:
    """Return files of different sizes, most of them read to their ends."""
    files = []
    for n in range(number):
        path = directory / f"application-{n:05}.log"
        path.write_bytes(b"x" * (n % 97))
        files.append(TailedFile(str(path), (n % 97) * (n % 5 != 0)))
    return files
