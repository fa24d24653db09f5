"""Alerts and dashboard of conf/monitoring: on figures of real agents, and provoked."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from flafka.agent.config import load
from flafka.agent.explain import KINDS
from flafka.agent.monitoring import definitions
from flafka.agent.monitoring.kafkamonitor import KafkaMonitor
from flafka.agent.monitoring.registry import Registry
from flafka.agent.runner.agent import Agent
from flafka.agent.services.running import until
from flafka.plugins import Components, Metrics
from flafka.plugins.kafka.backlog import Backlog, Broker, ClusterState
from tests.agent.alerting import RULES, Scrape, firing, hold_minutes, names, rules, series
from tests.agent.prometheus import judged, promtool
from tests.fixtures.ports import free_port
from tests.runner.test_dead_letter_alerts import Plugin
from tests.system.running import small_disk

CONFIGURATION = """
a1.sources = tls udp numbers waiting over
a1.channels = c1 c2 full file kafka lake
a1.sinks = picky down rest
a1.deadletters.directory = {directory}
a1.monitoring.port = 0
a1.sources.tls.type = syslogtcp
a1.sources.tls.host = 127.0.0.1
a1.sources.tls.port = 0
a1.sources.tls.ssl = true
a1.sources.tls.keystore = {directory}/short.pem
a1.sources.tls.maxConnections = 1
a1.sources.tls.handshakeTimeout = 600
a1.sources.tls.channels = file
a1.sources.udp.type = syslogudp
a1.sources.udp.host = 127.0.0.1
a1.sources.udp.port = 0
a1.sources.udp.receiveBufferSize = 4096
a1.sources.udp.channels = file
a1.sources.numbers.type = numbers
a1.sources.numbers.channels = c1 c2
a1.sources.waiting.type = numbers
a1.sources.waiting.channels = full
a1.sources.over.type = numbers
a1.sources.over.channels = kafka
a1.channels.c1.type = memory
a1.channels.c1.capacity = 5000
a1.channels.c2.type = memory
a1.channels.c2.capacity = 5000
a1.channels.full.type = memory
a1.channels.full.capacity = 10
a1.channels.full.transactionCapacity = 10
a1.channels.file.type = file
a1.channels.file.checkpointDir = {directory}/checkpoint
a1.channels.file.dataDirs = {directory}/data
a1.channels.kafka.type = kafka
a1.channels.kafka.kafka.bootstrap.servers = 127.0.0.1:{closed}
a1.channels.kafka.overflow = lake
a1.channels.kafka.overflowTimeout = 1
a1.channels.lake.type = file
a1.channels.lake.checkpointDir = {directory}/lake/checkpoint
a1.channels.lake.dataDirs = {directory}/lake/data
a1.sinks.picky.type = picky
a1.sinks.picky.channel = c1
a1.sinks.down.type = avro
a1.sinks.down.hostname = 127.0.0.1
a1.sinks.down.port = {closed}
a1.sinks.down.channel = c2
a1.sinks.rest.type = null
a1.sinks.rest.channel = file
"""
WATCHED = {
    "FlafkaSinkBehind": {"k1"},
    "FlafkaRetentionNear": {"k1"},
    "FlafkaBrokersDown": {"c1"},
    "FlafkaUnderReplicated": {"c1"},
    "FlafkaPartitionsOffline": {"c1"},
}
"""Components of each alert on brokers and backlogs, which tests/system/test_watch.py provokes on real brokers."""


def scraped(registry: Registry) -> Scrape:
    prometheus = CollectorRegistry()
    prometheus.register(registry)
    return series(generate_latest(prometheus).decode())


@pytest.fixture
def made(tmp_path: Path) -> Agent:
    """Agent that is not started."""
    days = ["-days", "3", "-subj", "/CN=localhost", "-keyout", "short.key", "-out", "short.crt"]
    new = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *days]
    subprocess.run(new, check=True, capture_output=True, cwd=tmp_path)
    (tmp_path / "short.pem").write_bytes(b"".join((tmp_path / f"short.{end}").read_bytes() for end in ("key", "crt")))
    file = tmp_path / "agent.conf"
    file.write_text(CONFIGURATION.format(directory=tmp_path, closed=free_port()))
    spec, diagnostics = load(file, components=Components([Plugin()], entry_points=True))
    assert spec is not None, diagnostics
    return Agent(spec)


@pytest.fixture
def before(made: Agent) -> Scrape:
    """Figures of the agent before its start, for which no alert fires."""
    figures = scraped(made.registry)
    assert firing(figures, figures) == {}
    return figures


@pytest.fixture
def agent(made: Agent, monkeypatch: pytest.MonkeyPatch) -> Iterator[Agent]:
    """Agent that a test may start, and that is stopped afterwards."""
    monkeypatch.setattr("flafka.agent.runner.agent.DRAIN_SECONDS", 1.0)
    monkeypatch.setattr("flafka.agent.runner.agent.SINK_STOP_SECONDS", 1.0)
    made.start()
    yield made
    for channel in made.channels.values():  # no sink takes events, so the stop is not to wait for them
        channel.channel.stopping.set()
    for source in made.sources:
        source.give_up.set()
    made.stop()


@pytest.mark.usefixtures("lengthy")
def test_each_alert_fires_for_its_cause(before: Scrape, agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = {runner.spec.name: runner for runner in agent.sources}
    until(lambda: sources["tls"].was_open.is_set() and sources["udp"].was_open.is_set(), "the sources")
    with (
        socket.create_connection(("127.0.0.1", sources["tls"].source.port), timeout=60),
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender,
    ):
        sender.connect(("127.0.0.1", sources["udp"].source.port))

        def dropped() -> float:
            for _ in range(500):
                sender.send(b"<13>" + bytes(1000))
            return sources["udp"].metrics.get("KernelDropCount")

        until(dropped, "datagrams to be dropped")
        until(lambda: sources["tls"].metrics.get("OpenConnectionCount") == 1, "the connection")
        until(lambda: agent.channels["full"].metrics.get("ChannelFillPercentage") == 100, "the channel to be full")
        until(lambda: sources["waiting"]._in_flight, "a source to wait")
        until(lambda: agent.registry.failing().keys() >= {"SINK.down"}, "the sink to fail")
        until(lambda: agent.sinks[0].members[0].metrics.get("EventRejectedCount"), "dead letters")
        until(lambda: agent.channels["kafka"].metrics.get("Overflowing"), "the overflow to begin")
        later = SimpleNamespace(monotonic=lambda: time.monotonic() + 120)
        monkeypatch.setattr("flafka.agent.runner.local.sources.time", later)
        monkeypatch.setattr("flafka.plugins.storage.free_bytes", lambda _: 10**9)
        alerts = firing(before, scraped(agent.registry))
    assert "down" in alerts.pop("FlafkaComponentFailing")
    assert "waiting" in alerts.pop("FlafkaNotAcknowledged")
    assert alerts == {
        "FlafkaDeadLetters": {"picky"},
        "FlafkaDatagramsLost": {"udp"},
        "FlafkaConnectionsAtLimit": {"tls"},
        "FlafkaChannelFull": {"full"},
        "FlafkaOverflowing": {"kafka"},
        "FlafkaDiskNearlyFull": {"file", "lake"},
        "FlafkaCertificateExpires": {"tls"},
    }
    assert firing(before, series(None)) == {"FlafkaAgentDown": {""}}
    provoked = {*alerts, *WATCHED, "FlafkaComponentFailing", "FlafkaNotAcknowledged", "FlafkaAgentDown"}
    assert provoked == {*rules()}, "an alert that no test provokes"


class Seen:
    """Monitor's result at some time."""

    def __init__(self, brokers: int, oldest: float) -> None:
        self._brokers, self._oldest = brokers, oldest

    def cluster(self) -> ClusterState:
        brokers = tuple(Broker(n, f"b{n}:9092", n <= self._brokers, 1) for n in (1, 2, 3))
        down = 3 - self._brokers
        return ClusterState("id", "t", brokers, 3, down, down)

    def backlog(self, group: str | None) -> Backlog:
        return (
            Backlog(5, int(1000 * (time.time() - self._oldest)), 3600.0) if self._oldest else Backlog(0, None, None)
        )

    def close(self) -> None:
        pass


def test_alerts_on_brokers_and_backlogs() -> None:
    channel, sink = Components().get("channel", "kafka"), Metrics()
    made = channel(channel.config_class.model_validate({"kafka.bootstrap.servers": "b1:9092"}), "c1")
    watch = KafkaMonitor({"c1": made}, {"c1": [(None, sink)]})
    registry = Registry("a1")
    registry.add("CHANNEL", "c1", made.metrics)
    registry.add("SINK", "k1", sink)
    before = scraped(registry)
    for seen, expected in ((Seen(3, 0), {}), (Seen(2, 700), WATCHED), (Seen(3, 0), {})):
        watch._monitors["c1"] = seen
        watch._update("c1")
        assert firing(before, scraped(registry)) == expected


NOT_YET = {
    "SOURCE": {"UnacknowledgedSeconds": 60, "OpenConnectionCount": 3, "OpenConnectionLimit": 4}
    | {"CertificateSecondsLeft": 14 * 86400, "KernelDropCount": 7},
    "CHANNEL": {"ChannelFillPercentage": 80, "Overflowing": 0, "DiskFreeBytes": 2e9}
    | {"BrokersDown": 0, "UnderReplicatedPartitions": 0, "OfflinePartitions": 0},
    "SINK": {"LagSeconds": 600, "RetentionSecondsLeft": 6 * 3600, "EventRejectedCount": 7},
}
"""Figures by kind at the limits of normal operation."""
WRONG = {
    "SOURCE": {"UnacknowledgedSeconds": 61, "OpenConnectionCount": 4, "CertificateSecondsLeft": 14 * 86400 - 1}
    | {"KernelDropCount": 8},
    "CHANNEL": {"ChannelFillPercentage": 80.5, "Overflowing": 1, "DiskFreeBytes": 2e9 - 1}
    | {"BrokersDown": 1, "UnderReplicatedPartitions": 1, "OfflinePartitions": 1},
    "SINK": {"LagSeconds": 601, "RetentionSecondsLeft": 6 * 3600 - 1, "EventRejectedCount": 8},
}
"""Figures beyond these limits."""


def test_prometheus_judges_as_these_tests_do(tmp_path: Path) -> None:
    registry, shown = Registry("a1"), {}
    for kind, figures in NOT_YET.items():
        for name in ("well", "ill"):
            metrics = shown[kind, name] = Metrics()
            registry.add(kind, name, metrics)
            for figure, value in figures.items():
                metrics.add(figure, value) if figure in ("KernelDropCount", "EventRejectedCount") else metrics.set(
                    figure, value
                )
    before = scraped(registry)
    assert firing(before, before) == {}
    for kind, figures in WRONG.items():
        metrics = shown[kind, "ill"]
        metrics.set_error("it is away")
        for figure, value in figures.items():
            metrics.add(figure) if figure in ("KernelDropCount", "EventRejectedCount") else metrics.set(figure, value)
    after = scraped(registry)
    alerts = firing(before, after)
    assert alerts == {alert: {"ill"} for alert in rules().keys() - {"FlafkaAgentDown"}}
    tool = promtool(tmp_path)
    pairs, lasting = {(alert, name) for alert, names in alerts.items() for name in names}, hold_minutes()
    rates = {alert for alert, expression in rules().items() if "rate(" in expression}
    expected = {
        10: set(),
        11: {(alert, name) for alert, name in pairs if not lasting[alert]},
        17: {(alert, name) for alert, name in pairs if lasting[alert] <= 5},
        45: {(alert, name) for alert, name in pairs if alert not in rates},
    }
    assert judged(tool, tmp_path, before, after, expected) == ""
    assert judged(tool, tmp_path, before, series(None), {10: set(), 14: {("FlafkaAgentDown", "")}}) == ""
    expected[45].pop()
    assert "FAILED" in judged(tool, tmp_path, before, after, expected)


def test_a_disk_that_is_nearly_full(tmp_path: Path) -> None:
    file = tmp_path / "agent.conf"
    file.write_text(
        "a1.sources = s\na1.channels = c\na1.sources.s.type = seq\na1.sources.s.channels = c\n"
        f"a1.channels.c.type = file\na1.channels.c.checkpointDir = {tmp_path}/small/checkpoint\n"
        f"a1.channels.c.dataDirs = {tmp_path}/small/data\n"
    )
    spec, diagnostics = load(file, components=Components())
    assert spec is not None, diagnostics
    agent = Agent(spec)
    before = scraped(agent.registry)
    assert firing(before, before) == {}
    with small_disk(tmp_path / "small", 64):
        assert firing(before, scraped(agent.registry)) == {"FlafkaDiskNearlyFull": {"c"}}


def test_alerts_and_dashboard_use_declared_metrics() -> None:
    dashboard = json.loads((RULES.parent / "grafana.json").read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    assert len(expressions) > 10
    declared = {definitions.series_name(metric) for group in definitions.GROUPS for metric in group.metrics}
    components = Components()
    for kind in KINDS:
        declared |= {
            definitions.series_name(metric) for cls in components.all(kind) for metric in cls.declared_metrics
        }
    used = {
        name for expression in [*expressions, *rules().values()] for name in names(re.sub(r"\$\w+", "5m", expression))
    }
    assert used - declared == {"up", definitions.series_name(definitions.UP)}
