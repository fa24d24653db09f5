"""Rules and dashboard of conf/monitoring in a real Prometheus: on rising figures, and on a real agent."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from flafka.agent.config import load
from flafka.agent.monitoring.server import MetricsServer
from flafka.agent.runner.agent import Agent
from flafka.agent.services import ServiceError
from flafka.agent.services.kafka import KafkaCluster
from flafka.agent.services.running import until
from flafka.plugins import Components
from tests.fixtures.ports import free_port
from tests.plugins.certificates import certificate
from tests.runner.test_dead_letter_alerts import Plugin
from tests.system.prometheus import RULES, Prometheus, alertmanager, prometheus, promtool, received_alerts
from tests.system.running import kafka_channel
from tests.system.test_watch import an_old_backlog

MORE = {"FlafkaAgentDown", "FlafkaComponentFailing", "FlafkaNotAcknowledged"}
"""Alerts that may fire for others as well: components behind the causes, and a busy machine's agent."""
CASES = Path(__file__).with_name("alerts.test.yml")
CONFIGURATION = """
a1.sources = tls udp numbers waiting over
a1.channels = c1 c2 full file kafka lake old
a1.sinks = picky down rest late
a1.deadletters.directory = {directory}
a1.monitoring.port = 0
a1.sources.tls.type = syslogtcp
a1.sources.tls.host = 127.0.0.1
a1.sources.tls.port = 0
a1.sources.tls.ssl = true
a1.sources.tls.keystore = {directory}/server.pem
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
{old}
a1.channels.old.parseAsFlumeEvent = false
a1.sinks.picky.type = picky
a1.sinks.picky.channel = c1
a1.sinks.down.type = avro
a1.sinks.down.hostname = 127.0.0.1
a1.sinks.down.port = {closed}
a1.sinks.down.channel = c2
a1.sinks.rest.type = null
a1.sinks.rest.channel = file
a1.sinks.late.type = http
a1.sinks.late.endpoint = http://127.0.0.1:{closed}/
a1.sinks.late.channel = old
"""


@pytest.mark.usefixtures("servers")
def test_each_alert_fires_beyond_its_limit_only(tmp_path: Path) -> None:
    assert promtool("check", "rules", RULES) == ""
    assert promtool("test", "rules", CASES) == ""
    rules = RULES.read_text()
    (tmp_path / "alerts.yml").write_text(rules.replace("> 600", "> 599"))
    (tmp_path / "cases.yml").write_text(CASES.read_text().replace(f"../../conf/monitoring/{RULES.name}", RULES.name))
    assert "FlafkaSinkBehind" in promtool("test", "rules", tmp_path / "cases.yml")


@pytest.fixture
def made(tmp_path: Path, kafka_cluster: KafkaCluster) -> Agent:
    """Agent that is not started."""
    certificate(tmp_path, whose="server", days=3)
    old = kafka_channel(kafka_cluster.bootstrap_servers, an_old_backlog(kafka_cluster), name="old")
    file = tmp_path / "agent.conf"
    file.write_text(CONFIGURATION.format(directory=tmp_path, closed=free_port(), old=old))
    spec, diagnostics = load(file, components=Components([Plugin()], entry_points=True))
    assert spec is not None, diagnostics
    return Agent(spec)


@contextlib.contextmanager
def scraped(agent: Agent) -> Iterator[str]:
    """Serve the metrics of an agent, also before its start, and yield their address."""
    server = MetricsServer(agent.registry, "127.0.0.1", 0)
    server.start()
    try:
        yield f"127.0.0.1:{server.port}"
    finally:
        server.stop()


@contextlib.contextmanager
def started(agent: Agent) -> Iterator[None]:
    agent.start()
    try:
        yield
    finally:
        for channel in agent.channels.values():  # no sink takes events, so the stop is not to wait for them
            channel.channel.stopping.set()
        for source in agent.sources:
            source.give_up.set()
        agent.stop()


def dashboard_expressions() -> set[str]:
    """Return the expressions of the dashboard as Grafana sends them, without zeros in place of missing data."""
    panels = json.loads((RULES.parent / "grafana.json").read_text())["panels"]
    expressions = [target["expr"] for panel in panels for target in panel.get("targets", ())]
    assert len(expressions) > 10
    values = {"$job": "flafka", "$agent": "a1", "$__rate_interval": "1m"}
    filled = {re.sub(r"\$\w+", lambda match: values[match[0]], expression) for expression in expressions}
    return {expression.removesuffix(" or vector(0)") for expression in filled}


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_a_real_agent_in_trouble_fires_alerts_and_fills_the_dashboard(
    made: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flafka.agent.runner.agent.DRAIN_SECONDS", 1.0)
    monkeypatch.setattr("flafka.agent.runner.agent.SINK_STOP_SECONDS", 1.0)
    away = f"127.0.0.1:{free_port()}"
    with (
        alertmanager(tmp_path / "alertmanager") as manager,
        scraped(made) as address,
        prometheus(tmp_path / "prometheus", address, away, alertmanager="{}:{}".format(*manager)) as monitoring,
    ):
        until(lambda: monitoring.query("flafka_event_rejected_total"), "the figures before the start")
        until(lambda: monitoring.alerts() == {"FlafkaAgentDown": {away}}, "the only alert")
        with started(made):
            provoked(made, monitoring, away, monkeypatch)
            for expression in dashboard_expressions():
                until(lambda: monitoring.query(expression), f"data of {expression}")
            until(lambda: received_alerts(manager).keys() >= monitoring.alerts().keys(), "the alerts to be sent on")
            assert received_alerts(manager)["FlafkaAgentDown"] == {f"Agent {away} does not answer"}
            assert "sink down of a1 fails; /healthz says why" in received_alerts(manager)["FlafkaComponentFailing"]


def provoked(agent: Agent, monitoring: Prometheus, away: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cause the trouble that the alerts are for, except with brokers, and wait until exactly these fire."""
    sources = {runner.spec.name: runner for runner in agent.sources}
    until(lambda: sources["tls"].was_open.is_set() and sources["udp"].was_open.is_set(), "the sources")
    with (
        socket.create_connection(("127.0.0.1", sources["tls"].source.port), timeout=60),
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender,
    ):
        sender.connect(("127.0.0.1", sources["udp"].source.port))

        def dropped() -> bool:
            for _ in range(500):
                sender.send(b"<13>" + bytes(1000))
            return "FlafkaDatagramsLost" in monitoring.alerts()

        until(dropped, "datagrams to be dropped")
        until(lambda: sources["waiting"]._in_flight, "a source to wait")
        later = SimpleNamespace(monotonic=lambda: time.monotonic() + 120)
        monkeypatch.setattr("flafka.agent.runner.local.sources.time", later)
        monkeypatch.setattr("flafka.plugins.storage.free_bytes", lambda _: 10**9)
        expected = {
            "FlafkaAgentDown": {away},
            "FlafkaComponentFailing": {"down", "late"},
            "FlafkaNotAcknowledged": {"waiting"},
            "FlafkaSinkBehind": {"late"},
            "FlafkaRetentionNear": {"late"},
            "FlafkaDeadLetters": {"picky"},
            "FlafkaDatagramsLost": {"udp"},
            "FlafkaConnectionsAtLimit": {"tls"},
            "FlafkaChannelFull": {"full"},
            "FlafkaOverflowing": {"kafka"},
            "FlafkaDiskNearlyFull": {"file", "lake"},
            "FlafkaCertificateExpires": {"tls"},
        }

        seen: dict[str, set[str]] = {}

        def fired() -> dict[str, set[str]]:  # since the start: on a busy machine a scrape may fail now and then
            for alert, components in monitoring.alerts().items():
                components = components & expected.get(alert, components) if alert in MORE else components
                seen[alert] = seen.get(alert, set()) | components
            return seen

        with contextlib.suppress(ServiceError):
            until(lambda: fired() == expected, "these alerts", 120)
        assert seen == expected
