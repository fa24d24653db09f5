"""`agent sandbox` with this run's servers as the user's own."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Producer

from flafka.agent.services.hbase import HBaseCluster
from flafka.agent.services.hdfs import HdfsCluster
from flafka.agent.services.kafka import KafkaCluster
from flafka.agent.services.running import until
from flafka.agent.services.secure import secure_servers
from flafka.agent.services.securekafka import SecureKafkaCluster
from flafka.agent.services.solr import SOLR, SolrCluster
from flafka.plugins.kafka.properties import client_properties
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


def test_the_secured_brokers_check_passwords_and_rights(servers: None, tmp_path: Path) -> None:
    secured = secure_servers(tmp_path / "flafka" / "secure", fixed_ports=False)
    for cluster in secured.by_service().values():
        cluster.reserve()

    def run(*arguments: str) -> str:
        result = agent_command(*arguments, environment={"XDG_DATA_HOME": str(tmp_path)})
        assert result.returncode == 0, result.stdout + result.stderr
        assert "Traceback" not in result.stderr
        return result.stdout + result.stderr

    kafka, clients = secured.kafka, secured.kafka.authority.parent
    try:
        assert str(clients / "flafka.properties") in run("sandbox", "up", "--secure", "kafka")
        run("topic", "create", "alice-1", "--command-config", str(clients / "admin.properties"))
        assert str(clients / "alice.properties") in run("sandbox", "kinit", "alice")
        assert "alice-1" in run("topic", "list", "--command-config", str(clients / "alice.properties"))
        rows = json.loads(run("sandbox", "status", "--secure", "kdc", "kafka", "--json"))
        assert [row["state"] for row in rows] == ["up"] * 4
        assert put(kafka, "alice", "alice-1", kafka.password_file("alice").read_text()) is None
        foreign = put(kafka, "flafka", "alice-1", kafka.password_file("flafka").read_text())
        assert foreign is not None
        assert foreign.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
        wrong = put(kafka, "alice", "alice-1", "wrong")
        assert wrong is not None
        assert wrong.code() == KafkaError._AUTHENTICATION
    finally:
        for running in secured.by_service().values():
            for name in running.names():
                running.server(name).signal(signal.SIGKILL)


def put(kafka: SecureKafkaCluster, user: str, topic: str, password: str) -> KafkaError | None:
    """Store one record as this user, and return the error; None if it was stored."""
    errors: list[KafkaError] = []
    results: list[KafkaError | None] = []
    producer = Producer(
        {
            **client_properties({**kafka.client_options(user), "sasl.password": password}),
            "bootstrap.servers": kafka.bootstrap_servers,
            "error_cb": errors.append,
            "log_level": 0,
        }
    )
    producer.produce(topic, b"a record", on_delivery=lambda error, _: results.append(error))

    def is_answered() -> bool:
        producer.poll(0.1)  # calls both kinds of callbacks
        return bool(results) or any(error.code() == KafkaError._AUTHENTICATION for error in errors)

    until(is_answered)
    return results[0] if results else next(e for e in errors if e.code() == KafkaError._AUTHENTICATION)
