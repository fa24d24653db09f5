"""Shipped agents in conf/ are valid without any variable set."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from flafka.agent.cli import main
from flafka.agent.config import load
from flafka.agent.services.cluster import Cluster
from flafka.agent.services.hbase import HBaseCluster
from flafka.agent.services.hdfs import HdfsCluster
from flafka.agent.services.solr import SolrCluster
from flafka.agent.testing import run_processor
from flafka.plugins import Components, Event
from flafka.sinks.spark.loading import load_processor

CONF = Path(__file__).parents[2] / "conf"


@pytest.mark.parametrize("name", ["flafka.conf", "edge.conf", "quickstart.conf", "package/agent.conf"])
def test_check_has_no_messages(name: str) -> None:
    result = CliRunner().invoke(main, ["check", "--strict", "-c", str(CONF / name)])
    assert result.exit_code == 0, result.output
    assert result.stderr == ""


def test_each_sink_of_flafka_conf_has_a_group_of_its_own_and_spark_delivers() -> None:
    text = (CONF / "flafka.conf").read_text()
    (sinks,) = re.findall(r"^flafka\.sinks = (.*)$", text, re.MULTILINE)
    groups = dict(re.findall(r"^flafka\.sinks\.(\w+)\.group = (.*)$", text, re.MULTILINE))
    assert groups == {sink: f"flafka-{sink}" for sink in ("hdfs", "hbase", "solr", "levels", "counts")}
    assert sinks.split() == list(groups)
    spec, _ = load(CONF / "flafka.conf", None, components=Components())
    assert spec is not None
    on_spark = [sink.name for sink in spec.sinks if sink.runner == "spark"]
    assert on_spark == ["hdfs", "hbase", "solr", "levels"]


@pytest.mark.usefixtures("spark_session")
def test_the_processor_of_flafka_conf_counts_by_minute_sender_and_level() -> None:
    by_level = load_processor("counts:by_level", str(CONF / "processors"))
    minute = 1_700_000_000_000 // 60_000 * 60_000

    def event(second: int, **headers: str) -> Event:
        return Event(b"", {"timestamp": str(minute + second), **headers})

    first = [
        event(1, application="shop", level="WARN", host="web-1"),
        event(2, host="web-1", Severity="3"),
        event(3, host="web-1", Severity="9"),
        event(4, host="web-1", Severity="three"),
        event(59_999),
    ]
    rows = run_processor(by_level, first, [event(5, host="web-1", Severity="3"), event(60_000)], mode="update")
    assert [(row.key, row.body, row.headers) for row in sorted(rows, key=lambda row: (row.body, row.key))] == [
        (f"{time} {sender} {level}", count, {"minute": time, "who": sender, "level": level})
        for time, sender, level, count in (
            ("2023-11-14 22:13", "-", "-", 1),
            ("2023-11-14 22:13", "shop", "WARN", 1),
            ("2023-11-14 22:13", "web-1", "ERROR", 1),
            ("2023-11-14 22:14", "-", "-", 1),
            ("2023-11-14 22:13", "web-1", "-", 2),
            ("2023-11-14 22:13", "web-1", "ERROR", 2),
        )
    ]


@pytest.mark.parametrize(
    ("cluster", "name"), [(HdfsCluster, "namenode-http"), (HBaseCluster, "thrift"), (SolrCluster, "solr")]
)
def test_flafka_conf_names_the_sandbox(cluster: type[Cluster], name: str, tmp_path: Path) -> None:
    port = cluster(tmp_path).default_ports()[name]
    assert f"127.0.0.1:{port}" in (CONF / "flafka.conf").read_text()


def test_addresses_in_shipped_files_come_from_the_variables_of_agent_env() -> None:
    """`eval "$(agent env --export)"` is enough for every instance of the servers."""
    servers = {}
    for file in CONF.rglob("*.conf"):
        variables = re.findall(r"\$\{env:(\w+):-(?:https?://)?127\.0\.0\.1:\d{5}\b", file.read_text())
        servers |= dict.fromkeys(variables, file.name)
    assert servers.keys() == {"FLAFKA_KAFKA", "FLAFKA_HDFS", "FLAFKA_HBASE", "FLAFKA_SOLR"}, servers
