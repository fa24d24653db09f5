"""The agents in conf/ are right as they are, with no variable set."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from agent.cli import main
from agent.services.cluster import Cluster
from agent.services.hbase import HBaseCluster
from agent.services.hdfs import HdfsCluster
from agent.services.solr import SolrCluster

CONF = Path(__file__).parents[2] / "conf"


@pytest.mark.parametrize("name", ["flafka.conf", "quickstart.conf"])
def test_check_finds_nothing_to_say(name: str) -> None:
    result = CliRunner().invoke(main, ["check", "--strict", "-c", str(CONF / name)])
    assert result.exit_code == 0, result.output
    assert result.stderr == ""


def test_each_sink_of_flafka_conf_sees_every_event() -> None:
    text = (CONF / "flafka.conf").read_text()
    (sinks,) = re.findall(r"^flafka\.sinks = (.*)$", text, re.MULTILINE)
    groups = dict(re.findall(r"^flafka\.sinks\.(\w+)\.group = (.*)$", text, re.MULTILINE))
    assert groups == {sink: f"flafka-{sink}" for sink in ("hdfs", "hbase", "solr")}
    assert sinks.split() == list(groups)


@pytest.mark.parametrize(
    ("cluster", "name"), [(HdfsCluster, "namenode-http"), (HBaseCluster, "thrift"), (SolrCluster, "solr")]
)
def test_flafka_conf_names_the_sandbox(cluster: type[Cluster], name: str, tmp_path: Path) -> None:
    port = cluster(tmp_path).default_ports()[name]
    assert f"127.0.0.1:{port}" in (CONF / "flafka.conf").read_text()
