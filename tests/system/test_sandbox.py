"""`agent sandbox` with this run's servers as the user's own."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from flafka.agent.services.hbase import HBaseCluster
from flafka.agent.services.hdfs import HdfsCluster
from flafka.agent.services.kafka import KafkaCluster
from flafka.agent.services.solr import SOLR, SolrCluster
from tests.system.running import agent_command

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(
    tmp_path: Path,
    kafka_cluster: KafkaCluster,
    hdfs_cluster: HdfsCluster,
    hbase_cluster: HBaseCluster,
    solr_cluster: SolrCluster,
) -> Run:
    """Run `agent sandbox …`."""
    home = tmp_path / "flafka"
    home.mkdir()
    for cluster in (hdfs_cluster, hbase_cluster, solr_cluster):
        (home / cluster.service).symlink_to(cluster.directory)
    environment = {"XDG_DATA_HOME": str(tmp_path), "FLAFKA_CLUSTER_DIR": str(kafka_cluster.directory)}

    def run(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        result = agent_command("sandbox", *arguments, environment=environment)
        assert result.returncode == code, result.stdout + result.stderr
        assert "Traceback" not in result.stderr
        return result

    return run


def test_up_finds_what_runs_and_starts_what_does_not(run: Run, solr_cluster: SolrCluster) -> None:
    def pids(rows: str) -> dict[str, int | None]:
        return {row["server"]: row["pid"] for row in json.loads(rows)}

    before = pids(run("status", "--json").stdout)
    assert list(before) == [
        *("broker-1", "broker-2", "broker-3", "namenode", "datanode-1"),
        *("master", "thrift", "solr"),
    ]
    try:
        run("down", "solr")
        assert solr_cluster.server(SOLR).pid is None
        assert run("status", "solr", code=1).stdout.splitlines()[1].split("\t")[1:3] == ["solr", "down"]
        rows = json.loads(run("up", "--json").stdout)
    finally:
        solr_cluster.start()
    assert {row["state"] for row in rows} == {"up"}
    assert all(row["rss_mb"] > 20 for row in rows)
    after = pids(json.dumps(rows))
    assert [name for name in before if before[name] != after[name]] == ["solr"]
    assert rows[-1]["address"] == solr_cluster.address


def test_native_tools(run: Run) -> None:
    assert "/tmp/sandbox" not in run("hdfs", "--", "-ls", "-R", "/").stdout
    run("hdfs", "--", "-mkdir", "-p", "/tmp/sandbox/a")
    assert "/tmp/sandbox/a" in run("hdfs", "dfs", "-ls", "/tmp/sandbox").stdout
    assert "No such file" in run("hdfs", "--", "-ls", "/nowhere", code=1).stderr
    assert "HBase 2.6" in run("hbase", "--", "version").stderr + run("hbase", "version").stdout
    refused = run("hbase", "--", "shell", code=1).stderr
    assert "HBase's shell needs JRuby" in refused
    assert "happybase.Connection('127.0.0.1', " in refused


def test_a_service_that_was_never_started(tmp_path: Path) -> None:
    environment = {"XDG_DATA_HOME": str(tmp_path), "FLAFKA_CLUSTER_DIR": str(tmp_path / "kafka")}
    status = agent_command("sandbox", "status", environment=environment)
    assert status.returncode == 1
    assert [line.split("\t")[2] for line in status.stdout.splitlines()[1:]] == ["never started"] * 4
    assert agent_command("sandbox", "down", environment=environment).returncode == 0
    wrong = agent_command("sandbox", "up", "sollr", environment=environment)
    assert "'sollr' is not one of 'kafka', 'hdfs', 'hbase', 'solr', 'spark', 'yarn'" in wrong.stderr
    lost = agent_command("sandbox", "hdfs", "--", "-ls", "/", environment=environment)
    assert "was never started" in lost.stderr + lost.stdout
