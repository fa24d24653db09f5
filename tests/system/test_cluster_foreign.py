"""Foreign cluster at the addresses of the default cluster, played by the session's brokers."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from kafka import KafkaAdminClient

from flafka.agent.cli.group import group
from flafka.agent.cli.topic import topic
from flafka.agent.services import ServiceError, kafka
from flafka.agent.services.kafka import KafkaCluster
from flafka.agent.services.running import RunningAgent
from tests.system.running import agent_command, kafka_channel, unique

IDLE = [sys.executable, "-c", "import signal; signal.pause()"]
"""Command that stands for a broker of ours that does not listen yet, or is about to find its port taken."""


@pytest.fixture
def own(tmp_path: Path, kafka_cluster: KafkaCluster) -> Iterator[KafkaCluster]:
    """Default cluster with three processes, and foreign brokers on its ports."""
    directory = tmp_path / "own"
    directory.mkdir()
    (directory / "cluster.json").write_text(json.dumps({"ports": kafka_cluster.ports}))
    cluster = KafkaCluster(directory).reserve()
    for name in cluster.names():
        cluster.server(name).start(IDLE)
    try:
        yield cluster
    finally:
        for name in cluster.names():
            cluster.kill(name)


def test_a_foreign_cluster_is_neither_ready_nor_up_and_is_not_stopped(
    own: KafkaCluster, kafka_cluster: KafkaCluster
) -> None:
    missing = own.unready_reason()
    assert missing is not None
    message = f"the Kafka cluster at {own.bootstrap_servers} is {kafka_cluster.cluster_id}"
    assert missing.startswith(f"{message}, not that of")
    status = own.status()
    assert [broker.state for broker in status.brokers] == ["starting"] * 3
    assert (status.controller, status.foreign_listener) == (None, missing)
    assert own.find_foreign_cluster() == missing

    port = own.ports["broker-1"]
    in_use = f"port {port}, which this cluster uses for broker-1, is taken by the Kafka cluster"
    with pytest.raises(ServiceError, match=f"{in_use} {kafka_cluster.cluster_id}"):
        own.start()

    options = ("--dir", str(own.directory))
    assert agent_command("cluster", "stop", *options).returncode == 0
    assert not own.is_running()
    assert kafka_cluster.status().up
    shown = agent_command("cluster", "status", *options)
    assert shown.returncode == 1
    assert {line.split("\t")[1] for line in shown.stdout.splitlines()[1:]} == {"down"}
    assert f"port {port} is taken by the Kafka cluster {kafka_cluster.cluster_id}" in shown.stderr
    restarted = agent_command("cluster", "start", *options)
    assert restarted.returncode == 1
    assert f"{in_use} {kafka_cluster.cluster_id}" in restarted.stderr
    assert "Traceback" not in restarted.stderr


def test_of_three_hosts_only_those_of_the_cluster_are_up(
    tmp_path: Path, kafka_cluster: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = kafka_cluster.bootstrap_servers.split(",")
    state = {"node": 1, "hosts": hosts, "ports": {"broker-1": kafka_cluster.ports["broker-1"]}}
    (tmp_path / "cluster.json").write_text(json.dumps({**state, "cluster_id": kafka_cluster.cluster_id}))
    # The broker of this host does not run, although the others believe so for a while.
    assert [broker.state for broker in KafkaCluster(tmp_path).status().brokers] == ["down", "up", "up"]
    (tmp_path / "cluster.json").write_text(json.dumps({**state, "cluster_id": "another"}))
    status = KafkaCluster(tmp_path).status()
    assert [broker.state for broker in status.brokers] == ["down"] * 3
    monkeypatch.setattr(kafka, "is_listening", lambda *_: True)  # the controllers' ports are not three above here
    with pytest.raises(ServiceError, match=f"is {kafka_cluster.cluster_id}, not that of .* another"):
        KafkaCluster(tmp_path).unready_reason()


def test_commands_refuse_a_foreign_cluster_unless_it_is_named(
    own: KafkaCluster, kafka_cluster: KafkaCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLAFKA_CLUSTER_DIR", str(own.directory))
    agent = click.Group(commands=[topic, group])
    for command in ("topic list", "topic create mine", "group list"):
        refused = CliRunner().invoke(agent, command.split())
        assert refused.exit_code == 1
        assert kafka_cluster.cluster_id in refused.stderr
        assert own.cluster_id in refused.stderr
        assert "--bootstrap-server" in refused.stderr
    named = CliRunner().invoke(agent, ["topic", "list", "--bootstrap-server", own.bootstrap_servers])
    assert named.exit_code == 0
    with KafkaAdminClient(bootstrap_servers=kafka_cluster.bootstrap_servers) as admin:
        assert "mine" not in {description["name"] for description in admin.describe_topics()}

    configuration = tmp_path / "agent.conf"
    configuration.write_text(
        "a1.channels = c1\na1.sinks = k1\na1.audit.topic = books\na1.channels.c1.type = kafka\n"
        "a1.sinks.k1.type = null\na1.sinks.k1.channel = c1\n"
    )
    for words in (["dlq", "list"], ["audit"]):
        result = agent_command(*words, "-c", str(configuration))
        assert result.returncode == 1
        assert kafka_cluster.cluster_id in result.stderr
        assert own.cluster_id in result.stderr
        assert "kafka.bootstrap.servers" in result.stderr
        assert "Traceback" not in result.stderr


def test_an_agent_refuses_a_foreign_cluster_unless_it_is_named(
    own: KafkaCluster, kafka_cluster: KafkaCluster, tmp_path: Path
) -> None:
    name = unique("foreign")
    configuration = f"""
a1.sources = s1
a1.channels = c1 c2
a1.sinks = k1
a1.sources.s1.type = kafka
a1.sources.s1.kafka.topics = {name}
a1.sources.s1.channels = c2
a1.channels.c1.type = kafka
a1.channels.c1.kafka.topic = {name}
a1.channels.c2.type = memory
a1.sinks.k1.type = kafka
a1.sinks.k1.kafka.topic = {name}
a1.sinks.k1.channel = c2
{kafka_channel(kafka_cluster.bootstrap_servers, name, name="named")}
""".replace("c1 c2", "c1 c2 named")
    configuration = configuration.replace(f"named.kafka.topic = {name}", f"named.kafka.topic = {name}-named")
    environment = {"FLAFKA_CLUSTER_DIR": str(own.directory)}
    refusing = {"CHANNEL.c1", "SOURCE.s1", "SINK.k1"}
    with RunningAgent(tmp_path, configuration, environment=environment) as agent:
        agent.until(lambda: agent.failing().keys() == refusing, "all that name no brokers to refuse")
        agent.until(lambda: f"created topic {name}-named" in agent.log, "the named one to be used")
        for failure in agent.failing().values():
            assert f"answers the Kafka cluster {kafka_cluster.cluster_id}, not your own, {own.cluster_id}" in failure
        assert f"created topic {name}:" not in agent.log
        agent.stop()
    checked = agent_command("check", "-c", str(agent.file), "--connect", environment=environment)
    assert checked.returncode == 2
    assert checked.stdout.count(f"not your own, {own.cluster_id}") == 3
