"""Version 0.1 and this one in the same groups, on real servers."""

from collections import Counter
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from agent.audit.reconciliation import solr_documents
from agent.services.hdfs import HdfsCluster
from agent.services.kafka import KafkaCluster
from agent.services.running import RunningAgent, until
from agent.services.solr import SolrCluster
from tests.system.older import older
from tests.system.running import agent_command, hdfs_sink, in_hdfs, kafka_channel, unique
from tests.system.upgrade import NEWER, OLDER, REFUSED, SINKS, Change, Upgrade

SHORT = (
    Change("h1", NEWER),
    Change("h1", OLDER),
    Change("h2", NEWER),
    Change("h1", NEWER),
)
"""Up, down, and up."""


@pytest.mark.timeout(1200)
def test_nothing_is_lost_or_twice_while_agents_are_upgraded_and_downgraded(
    tmp_path: Path,
    kafka_cluster: KafkaCluster,
    hdfs_cluster: HdfsCluster,
    solr_cluster: SolrCluster,
    seed: int,
    figures: list[str],
) -> None:
    upgrade = Upgrade(older(tmp_path), kafka_cluster, hdfs_cluster, solr_cluster, tmp_path, seed)
    events = upgrade.run(SHORT)
    figures.append(upgrade.describe(events))
    assert upgrade.signals.keys() == {"SIGTERM", "SIGKILL"}
    expected = Counter(b"event %d" % number for number in range(events))
    for sink in SINKS:
        assert upgrade.delivered(sink) == expected, sink
    names = {id.rpartition("-")[0].rpartition("-")[0].rpartition("-")[0] for id in solr_documents(upgrade.url)}
    assert names == {upgrade.topic}, "a group that holds offsets of version 0.1 keeps its ids"


def create(kafka: KafkaCluster, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    admin.create_topics([NewTopic(topic, 1, 3)])[topic].result(60)


def put(kafka: KafkaCluster, topic: str, *bodies: bytes) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for body in bodies:
        producer.produce(topic, body)
    assert not producer.flush(60)


def reset(kafka: KafkaCluster, group: str) -> None:
    arguments = ("--topic", group, "--to", "earliest", "--yes", "--bootstrap-server", kafka.bootstrap_servers)
    until(lambda: agent_command("group", "reset", group, *arguments).returncode == 0, "the reset")


@pytest.mark.timeout(600)
def test_version_0_1_refuses_a_record_that_was_reset_since(
    tmp_path: Path, kafka_cluster: KafkaCluster, hdfs_cluster: HdfsCluster
) -> None:
    used, unused = unique("used"), unique("unused")
    text = "a1.channels = c1 c2\na1.sinks = k1 k2\n"
    for number, topic in ((1, used), (2, unused)):
        create(kafka_cluster, topic)
        text += kafka_channel(kafka_cluster.bootstrap_servers, topic, name=f"c{number}", partitions=1)
        text += f"a1.channels.c{number}.parseAsFlumeEvent = false\n"
        text += hdfs_sink(hdfs_cluster.webhdfs, f"/{topic}/all", name=f"k{number}", channel=f"c{number}")

    def found(topic: str) -> Counter[bytes]:
        return Counter(in_hdfs(hdfs_cluster, f"/{topic}"))

    tree = older(tmp_path)
    put(kafka_cluster, used, b"1", b"2")
    with RunningAgent(tmp_path / "older", text, tree=tree) as agent:
        agent.until(lambda: found(used) == Counter([b"1", b"2"]), "the first events")
        assert agent.stop() == 0
    reset(kafka_cluster, used)
    reset(kafka_cluster, unused)
    put(kafka_cluster, unused, b"a")
    with RunningAgent(tmp_path / "newer", text) as agent:
        agent.until(lambda: found(used) == Counter([b"1", b"2"] * 2), "them again")
        agent.until(lambda: found(unused) == Counter([b"a"]), "the other one")
        assert agent.stop() == 0
    put(kafka_cluster, used, b"3")
    put(kafka_cluster, unused, b"b")
    with RunningAgent(tmp_path / "older", text, tree=tree) as agent:
        agent.until(lambda: REFUSED in agent.failing().get("SINK.k1", ""), "a refusal")
        agent.until(lambda: "SINK.k2" in agent.failing(), "the other refusal")
        agent.process.kill()
    with RunningAgent(tmp_path / "newer", text) as agent:
        agent.until(lambda: found(used)[b"3"], "the rest")
        agent.until(lambda: found(unused)[b"b"], "the other rest")
        assert agent.stop() == 0
    assert found(used) == Counter([b"1", b"2"] * 2 + [b"3"])
    assert found(unused) == Counter([b"a", b"b"])


@pytest.mark.timeout(600)
def test_names_of_events_are_not_mixed_with_those_of_version_0_1(tmp_path: Path, kafka_cluster: KafkaCluster) -> None:
    topic, tree = unique("names"), older(tmp_path)
    create(kafka_cluster, topic)

    def agent_of(host: str, **tree: Path) -> RunningAgent:
        directory = tmp_path / f"{host}-out"
        directory.mkdir(exist_ok=True)
        text = f"""
a1.channels = c1
a1.sinks = k1
{kafka_channel(kafka_cluster.bootstrap_servers, topic, partitions=1)}
a1.channels.c1.parseAsFlumeEvent = false
a1.sinks.k1.type = file_roll
a1.sinks.k1.channel = c1
a1.sinks.k1.sink.directory = {directory}
a1.monitoring.port = 0
"""
        return RunningAgent(tmp_path / host, text.replace("a1.", f"{host}."), **tree)

    def found() -> Counter[bytes]:
        files = [file for directory in tmp_path.glob("*-out") for file in directory.iterdir()]
        return Counter(line for file in files for line in file.read_bytes().splitlines())

    put(kafka_cluster, topic, b"1")
    with agent_of("newer") as newer:
        newer.until(lambda: found()[b"1"], "the first event")
        with agent_of("older", tree=tree) as beside:
            newer.until(lambda: "of version 0.1, which would deliver" in str(newer.failing()), "a refusal")
            put(kafka_cluster, topic, b"2")
            assert beside.stop() == 0
        newer.until(lambda: found()[b"2"], "the second event")
        newer.healthy()
        assert newer.stop() == 0
    assert found() == Counter([b"1", b"2"])
