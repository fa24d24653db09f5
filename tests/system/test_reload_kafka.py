"""Reloads beside a Kafka channel: unchanged sinks keep their consumers and their partitions."""

from __future__ import annotations

import signal
import socket
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from confluent_kafka.admin import AdminClient

from flafka.agent.services.kafka import KafkaCluster
from flafka.agent.services.running import RunningAgent, until
from tests.fixtures.ports import free_port
from tests.system.running import unique
from tests.system.test_reload import Load, arrived, outcome, sink

ROUNDS = 20


def configuration(home: Path, port: int, servers: str, topic: str, round_: int) -> str:
    """Return two sinks that share the events of a channel; each round changes one."""
    return f"""
a1.sources = tcp
a1.channels = c1
a1.sinks = steady changed
a1.monitoring.port = {port}
a1.sources.tcp.type = netcat
a1.sources.tcp.bind = 127.0.0.1
a1.sources.tcp.port = 0
a1.sources.tcp.ack-every-event = false
a1.sources.tcp.channels = c1
a1.channels.c1.type = kafka
a1.channels.c1.kafka.bootstrap.servers = {servers}
a1.channels.c1.kafka.topic = {topic}
a1.channels.c1.kafka.consumer.group.id = {topic}
a1.channels.c1.partitions = 4
{sink(home, "steady", "x").replace("channel = steady", "channel = c1")}
{sink(home, "changed", f"x{round_}").replace("channel = changed", "channel = c1")}
"""


class Member(NamedTuple):
    """Consumer of a sink as the brokers list it."""

    id: str
    partitions: frozenset[int]


def members(admin: AdminClient, group: str) -> dict[str, Member]:
    """Return the members by sink."""
    described = admin.describe_consumer_groups([group])[group].result(60)
    return {
        member.group_instance_id.split(".a1.")[1].partition(".")[0]: Member(
            member.member_id, frozenset(assigned.partition for assigned in member.assignment.topic_partitions)
        )
        for member in described.members
    }


def took_over(name: str, member: Member) -> str:
    """Return the log line of a sink that has its partitions."""
    return f"a1.sinks.{name}: has partitions {sorted(member.partitions)}"


def test_the_sink_that_does_not_change_keeps_its_partitions(tmp_path: Path, kafka_cluster: KafkaCluster) -> None:
    topic, servers, port = unique("reloaded"), kafka_cluster.bootstrap_servers, free_port()
    for name in ("steady", "changed"):
        (tmp_path / name).mkdir()
    admin = AdminClient({"bootstrap.servers": servers})
    with RunningAgent(tmp_path / "a", configuration(tmp_path, port, servers, topic, 0)) as agent:
        agent.until(lambda: agent.get("/readyz")[0] == 200, "the agent to be ready")
        shared = lambda: [len(member.partitions) for member in members(admin, topic).values()] == [2, 2]  # noqa: E731
        agent.until(shared, "both sinks to have partitions")
        before = members(admin, topic)
        agent.until(lambda: all(took_over(name, of) in agent.log for name, of in before.items()), "both to say so")
        with (
            socket.create_connection(("127.0.0.1", agent.port("tcp"))) as connection,
            Load(connection.sendall) as sent,
        ):
            agent.until(lambda: arrived(tmp_path / "steady") and arrived(tmp_path / "changed"), "events at both")
            log_size = len(agent.log)
            for round_ in range(1, ROUNDS + 1):
                agent.file.write_text(configuration(tmp_path, port, servers, topic, round_))
                agent.process.send_signal(signal.SIGHUP)
                assert outcome(agent, round_) == "sinks changed"
                held = sum(arrived(tmp_path / "changed").values())
                until(lambda held=held: sum(arrived(tmp_path / "changed").values()) > held, "the changed sink")
        assert members(admin, topic)["steady"] == before["steady"]
        assert members(admin, topic)["changed"].partitions == before["changed"].partitions
        assert "a1.sinks.steady: has partitions" not in agent.log[log_size:]
        assert agent.log.count("a1.sinks.changed: has partitions") >= ROUNDS + 1
        agent.until(lambda: agent.count("SOURCE.tcp", "EventAcceptedCount") == sent.written, "what was sent")
        agent.until(lambda: agent.count("SINK.steady", "Backlog") == 0, "nothing to be left")
        assert agent.stop() == 0
    assert arrived(tmp_path / "steady") + arrived(tmp_path / "changed") == Counter(range(sent.written))
