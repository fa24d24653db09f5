"""`agent dashboard -c`: the brokers know the hosts of the agents that read a configuration's channels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from flafka.agent.services.kafka import KafkaCluster
from flafka.agent.services.running import RunningAgent
from tests.fixtures.ports import free_port
from tests.fixtures.secured import SecuredKafka
from tests.system.rebuilding import GROUP, READ, TOPIC, WRITE
from tests.system.running import agent_command, kafka_channel, unique

PIPELINE = """
a1.sources = s1
a1.channels = c1
a1.sinks = k1
a1.sources.s1.type = seq
a1.sources.s1.totalEvents = 10
a1.sources.s1.channels = c1
a1.sinks.k1.type = null
a1.sinks.k1.channel = c1
a1.monitoring.token = word
a1.monitoring.port = {port}
"""


def discovered(file: Path) -> list[dict[str, Any]]:
    result = agent_command("dashboard", "-c", str(file), "--json")
    assert result.returncode == 0, result.stderr
    agents: list[dict[str, Any]] = json.loads(result.stdout)["agents"]
    return agents


def test_agents_that_read_a_channel_are_found_and_others_are_not(tmp_path: Path, kafka_cluster: KafkaCluster) -> None:
    topic, port = unique("fleet"), free_port()
    text = PIPELINE.format(port=port) + kafka_channel(kafka_cluster.bootstrap_servers, topic)
    (tmp_path / "all.conf").write_text(text)
    sources = text.replace("a1.sinks", "# a1.sinks")
    with RunningAgent(tmp_path / "sources", sources) as agent:
        agent.until(lambda: agent.count("SOURCE.s1", "EventAcceptedCount") == 10, "the events to be stored")
        result = agent_command("dashboard", "-c", str(tmp_path / "all.conf"), "--json")
        assert result.returncode == 1
        assert result.stderr.startswith(f"Error: no consumer is in the group {topic}: start the agents, or name ")
        assert agent.stop() == 0
    with RunningAgent(tmp_path, text) as agent:
        agent.until(lambda: agent.count("SINK.k1", "EventDrainSuccessCount") == 20, "the events to be delivered")
        (found,) = discovered(agent.file)
        assert (found["address"], found["state"], found["agent"]) == (f"http://127.0.0.1:{port}", "ok", "a1")


def test_a_cluster_with_logins_and_rights(tmp_path: Path, secured_kafka: SecuredKafka) -> None:
    kafka, topic, port = secured_kafka, unique("fleet"), free_port()
    kafka.create(topic)
    channel = kafka.client("login", component="a1.channels.c1")
    text = f"{PIPELINE.format(port=port)}{channel}a1.channels.c1.type = kafka\n"
    text += f"a1.channels.c1.kafka.topic = {topic}\na1.channels.c1.kafka.consumer.group.id = {topic}\n"
    kafka.allow((TOPIC, topic, READ), (TOPIC, topic, WRITE), (GROUP, topic, READ))
    with RunningAgent(tmp_path, text) as agent:
        agent.until(lambda: agent.count("SINK.k1", "EventDrainSuccessCount") == 10, "the events to be delivered")
        (found,) = discovered(agent.file)
        assert (found["address"], found["agent"]) == (f"http://127.0.0.1:{port}", "a1")
        kafka.revoke({"flafka": [(GROUP, topic, READ)]})
        result = agent_command("dashboard", "-c", str(agent.file), "--json")
    assert result.returncode == 1
    assert f"user flafka lacks the right Read on consumer group {topic} " in result.stderr
    assert "name the agents with --agents HOST:PORT,…" in result.stderr
    wrong = tmp_path / "wrong.conf"
    wrong.write_text(text.replace("sasl.password = secret", "sasl.password = wrong"))
    result = agent_command("dashboard", "-c", str(wrong), "--json")
    assert (result.returncode, "Traceback" in result.stderr) == (1, False)
    assert "takes this client" in result.stderr
