"""Alerts and dashboard of conf/monitoring: metrics that exist, a case for each rule, and their figures.

tests/system/test_alerting.py runs them in a real Prometheus.
"""

from __future__ import annotations

import re
import time
from pathlib import Path

import yaml

from flafka.agent.config import load
from flafka.agent.explain import KINDS
from flafka.agent.monitoring import definitions
from flafka.agent.monitoring.kafkamonitor import BACKLOG, CLUSTER, KafkaMonitor
from flafka.agent.runner.agent import Agent
from flafka.plugins import Components, Metrics
from flafka.plugins.kafka.backlog import Backlog, Broker, ClusterState
from tests.system.running import small_disk

ROOT = Path(__file__).parents[2]
RULES = ROOT / "conf/monitoring/alerts.yml"


def test_alerts_and_dashboard_use_declared_metrics() -> None:
    declared = {definitions.series_name(metric) for group in definitions.GROUPS for metric in group.metrics}
    components = Components()
    for kind in KINDS:
        declared |= {
            definitions.series_name(metric) for cls in components.all(kind) for metric in cls.declared_metrics
        }
    declared.add(definitions.series_name(definitions.UP))
    for file in (RULES, RULES.with_name("grafana.json")):
        used = set(re.findall(r"\bflafka_\w+", file.read_text()))
        assert len(used) > 10
        assert used <= declared, file


def test_each_rule_has_a_case_in_which_it_fires_and_one_in_which_it_is_silent() -> None:
    rules = [rule["alert"] for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    cases = yaml.safe_load((ROOT / "tests/system/alerts.test.yml").read_text())["tests"]
    expected = [(case["alertname"], bool(case["exp_alerts"])) for test in cases for case in test["alert_rule_test"]]
    assert {*expected} == {(rule, fires) for rule in rules for fires in (True, False)}


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


def test_figures_of_brokers_and_backlogs() -> None:
    channel, sink = Components().get("channel", "kafka"), Metrics()
    made = channel(channel.config_class.model_validate({"kafka.bootstrap.servers": "b1:9092"}), "c1")
    watch = KafkaMonitor({"c1": made}, {"c1": [(None, sink)]})
    for seen, cluster, backlog in (
        (Seen(3, 0), [0, 0, 0], [0, 0, 0, None]),
        (Seen(2, 700), [1, 1, 1], [5, 5, 700, 3600]),
        (Seen(3, 0), [0, 0, 0], [0, 0, 0, None]),
    ):
        watch._monitors["c1"] = seen
        watch._update("c1")
        assert [made.metrics.snapshot().get(name) for name in CLUSTER] == cluster
        figures = [sink.snapshot().get(name) for name in BACKLOG]
        assert [figure and round(figure) for figure in figures] == backlog


def test_the_figure_of_a_disk_that_is_nearly_full(tmp_path: Path) -> None:
    file = tmp_path / "agent.conf"
    file.write_text(
        "a1.sources = s\na1.channels = c\na1.sources.s.type = seq\na1.sources.s.channels = c\n"
        f"a1.channels.c.type = file\na1.channels.c.checkpointDir = {tmp_path}/small/checkpoint\n"
        f"a1.channels.c.dataDirs = {tmp_path}/small/data\n"
    )
    spec, diagnostics = load(file, components=Components())
    assert spec is not None, diagnostics
    agent = Agent(spec)
    with small_disk(tmp_path / "small", 64):
        assert 0 < int(agent.registry.flume()["CHANNEL.c"]["DiskFreeBytes"]) <= 64 << 20
