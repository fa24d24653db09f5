"""Brokers of Apache Kafka 2.7.2, which come with Flume 1.11's jars: the newest version without topic ids."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from flafka.agent.jvm.jars import ensure
from flafka.agent.jvm.java import find_java
from flafka.agent.services.cluster import java_command
from flafka.agent.services.process import ServerProcess
from flafka.agent.services.running import RunningAgent, until
from tests.fixtures.ports import free_port
from tests.system.running import agent_command

pytestmark = pytest.mark.usefixtures("servers")
BROKER = """
broker.id=0
listeners=PLAINTEXT://127.0.0.1:{port}
zookeeper.connect=127.0.0.1:{zookeeper}
log.dirs={directory}/kafka
auto.create.topics.enable=false
group.initial.rebalance.delay.ms=0
offsets.topic.num.partitions=1
log.cleaner.dedupe.buffer.size=4194304
offsets.topic.replication.factor=1
"""


@pytest.fixture
def old_brokers(tmp_path: Path) -> Iterator[str]:
    """Address of one broker."""
    port, zookeeper = free_port(), free_port()
    files = {
        "broker": BROKER.format(port=port, zookeeper=zookeeper, directory=tmp_path),
        "zookeeper": f"dataDir={tmp_path}/zk\nclientPort={zookeeper}\nadmin.enableServer=false\n",
    }
    mains = {"zookeeper": "org.apache.zookeeper.server.quorum.QuorumPeerMain", "broker": "kafka.Kafka"}
    processes = []
    try:
        for name, main in mains.items():
            (tmp_path / f"{name}.properties").write_text(files[name])
            command = java_command(find_java(), [ensure("flume") / "*"], main, heap_mb=192, options=[])
            processes.append(ServerProcess(name, tmp_path))
            processes[-1].start([*command, str(tmp_path / f"{name}.properties")])
            until(partial(_listens, zookeeper if name == "zookeeper" else port), f"{name} to listen")
        yield f"127.0.0.1:{port}"
    finally:
        for process in reversed(processes):
            process.stop(0)


def _listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def test_a_source_and_a_sink_work_with_them_and_a_channel_refuses_them(tmp_path: Path, old_brokers: str) -> None:
    def created() -> bool:
        """Ask with a new client: one that asked a broker before it is the controller keeps asking it for minutes."""
        admin = AdminClient(client)  # its answers arrive as long as it exists
        futures = admin.create_topics([NewTopic("in", 2, 1), NewTopic("between", 2, 1)])
        for future in futures.values():
            with contextlib.suppress(KafkaException, TimeoutError):
                future.result(5)
        return {"in", "between"} <= admin.list_topics(timeout=60).topics.keys()

    client: dict[str, Any] = {"bootstrap.servers": old_brokers, "log_level": 0}
    until(created, "the topics")
    producer, bodies = Producer(client), {b"%d" % n for n in range(100)}
    for body in bodies:
        producer.produce("in", body)
    assert not producer.flush(60)
    out = tmp_path / "out"
    out.mkdir()
    kafka = f"kafka.bootstrap.servers = {old_brokers}"
    configuration = f"""
a1.sources = s1 s2
a1.channels = c1 c2
a1.sinks = k1 k2
a1.sources.s1.type = kafka
a1.sources.s1.channels = c1
a1.sources.s1.{kafka}
a1.sources.s1.kafka.topics = in
a1.sources.s1.setTopicHeader = false
a1.channels.c1.type = memory
a1.sinks.k1.type = kafka
a1.sinks.k1.channel = c1
a1.sinks.k1.{kafka}
a1.sinks.k1.kafka.topic = between
a1.sources.s2.type = kafka
a1.sources.s2.channels = c2
a1.sources.s2.{kafka}
a1.sources.s2.kafka.topics = between
a1.sources.s2.kafka.consumer.group.id = second
a1.channels.c2.type = memory
a1.sinks.k2.type = file_roll
a1.sinks.k2.channel = c2
a1.sinks.k2.sink.directory = {out}
"""
    with RunningAgent(tmp_path / "agent", configuration) as agent:
        agent.until(
            lambda: {line for file in out.iterdir() for line in file.read_bytes().split()} == bodies, "events"
        )
        assert agent.stop() == 0
    (tmp_path / "channel.conf").write_text(f"""
a1.channels = c1
a1.sinks = k1
a1.channels.c1.type = kafka
a1.channels.c1.{kafka}
a1.channels.c1.kafka.topic = channel
a1.channels.c1.replication = 1
a1.sinks.k1.type = null
a1.sinks.k1.channel = c1
a1.monitoring.port = 0
""")
    result = agent_command("check", "-c", str(tmp_path / "channel.conf"), "--connect")
    assert result.returncode == 2
    assert "channel.conf:4: a1.channels.c1: the brokers are older than Apache Kafka 2.8, the oldest" in result.stdout
    with RunningAgent(tmp_path / "refused", tmp_path / "channel.conf") as agent:
        agent.until(lambda: "older than Apache Kafka 2.8" in agent.failing().get("CHANNEL.c1", ""), "the refusal")
    assert "channel" not in AdminClient(client).list_topics(timeout=60).topics
    for command in (("reset", "new", "--topic", "between", "--to", "latest", "--yes"), ("describe", "new")):
        result = agent_command("group", *command, "--bootstrap-server", old_brokers)
        assert result.returncode == 0, result.stderr
        assert "between" in result.stdout
