"""Life of a group behind real agents: recreated topic, group reset and deleted, agents suspended."""

from __future__ import annotations

import json
import re
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient

from flafka.agent.audit.reconciliation import solr_documents
from flafka.agent.services.hdfs import HdfsCluster
from flafka.agent.services.kafka import KafkaCluster
from flafka.agent.services.running import RunningAgent, until
from flafka.agent.services.solr import SolrCluster
from flafka.plugins.kafka.offsets import OffsetMetadata
from tests.fixtures.cores import create_core
from tests.system.running import agent_command, hdfs_sink, in_hdfs, kafka_channel, unique
from tests.system.test_drain import create, put
from tests.system.test_kafka_ends import bodies

PARTITIONS = (0, 1, 2)


class Group:
    """Topic, its group, and all events that were put into it."""

    def __init__(self, directory: Path, kafka: KafkaCluster, name: str, sink: str) -> None:
        self.directory, self.kafka, self.name = directory, kafka, name
        self.admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
        self.bodies: list[bytes] = []
        self.configuration = f"""
a1.channels = c1
{kafka_channel(kafka.bootstrap_servers, name)}
a1.channels.c1.format = raw
a1.channels.c1.parseAsFlumeEvent = false
a1.sinks = k1
{sink}
"""
        create(kafka, name, len(PARTITIONS))

    def put(self, count: int) -> None:
        bodies = [b"%06d" % (len(self.bodies) + number) for number in range(count)]
        put(self.kafka, self.name, bodies, *PARTITIONS)
        self.bodies += bodies

    def recreate(self) -> None:
        self.admin.delete_topics([self.name])[self.name].result(60)

        def recreated() -> bool:
            try:
                create(self.kafka, self.name, len(PARTITIONS))
            except KafkaException as e:
                if e.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise
                return False  # the topic is still being deleted
            return True

        until(recreated, "the topic to be gone")

    def agent(self, name: str = "a1") -> RunningAgent:
        directory = self.directory / name
        text = self.configuration.replace("a1.", f"{name}.") + f"{name}.monitoring.port = 0\n"
        return RunningAgent(directory, text, "-n", name, "-c", str(directory / "agent.conf"))

    def await_empty(self) -> None:
        """Wait until the group has no member, expired sessions included."""

        def empty() -> bool:
            try:
                return [listed.state for listed in self.admin.list_groups(self.name, timeout=60)] == ["Empty"]
            except KafkaException:  # its coordinator is about to change
                return False

        until(empty, "the group to be empty")

    def lead(self, *brokers: int) -> None:
        """Have the first of these brokers lead partition 0 in a new leader epoch."""
        from kafka import KafkaAdminClient
        from kafka import TopicPartition as Partition

        def leads() -> bool:
            return self.admin.list_topics(self.name, timeout=60).topics[self.name].partitions[0].leader == brokers[0]

        with KafkaAdminClient(bootstrap_servers=self.kafka.bootstrap_servers) as admin:
            admin.alter_partition_reassignments({Partition(self.name, 0): list(brokers)})
            admin.elect_leaders(0, {self.name: [0]}, raise_errors=False)
        until(leads, f"broker {brokers[0]} to lead")

    def reset(self, to: str, *partitions: int) -> None:
        target = f"{self.name}:{','.join(map(str, partitions))}" if partitions else self.name
        servers = ("--bootstrap-server", self.kafka.bootstrap_servers)
        result = agent_command("group", "reset", self.name, "--topic", target, "--to", to, "--yes", *servers)
        assert result.returncode == 0, result.stderr


def _hdfs(name: str, cluster: HdfsCluster) -> tuple[str, Callable[[], Counter[bytes]]]:
    return hdfs_sink(cluster.webhdfs, f"/{name}"), lambda: Counter(in_hdfs(cluster, f"/{name}"))


def _solr(name: str, cluster: SolrCluster) -> tuple[str, Callable[[], Counter[bytes]]]:
    url = create_core(cluster, name)
    sink = ("type = solr", "channel = c1", f"url = {url}", "commitWithin = 100")
    lines = "\n".join(f"a1.sinks.k1.{line}" for line in sink)
    return lines, lambda: Counter(document["body_t"].encode() for document in solr_documents(url).values())


def _kafka(name: str, cluster: KafkaCluster) -> tuple[str, Callable[[], Counter[bytes]]]:
    out = f"{name}-out"
    create(cluster, out, 1)
    sink = ("type = kafka", "channel = c1", f"kafka.bootstrap.servers = {cluster.bootstrap_servers}")
    lines = "\n".join(f"a1.sinks.k1.{line}" for line in (*sink, f"kafka.topic = {out}", "flushInterval = 500"))
    return lines, lambda: Counter(bodies(cluster, out))


SINKS: dict[str, Callable[..., tuple[str, Callable[[], Counter[bytes]]]]] = {
    "hdfs": _hdfs,
    "solr": _solr,
    "kafka": _kafka,
}


def _claims(agent: RunningAgent) -> list[str]:
    """Return the sink's partitions after each rebalance, one list each."""
    return re.findall(r"has partitions (.*)", agent.log)


@pytest.mark.xdist_group("stores")
@pytest.mark.drawn(1)
@pytest.mark.parametrize("kind", SINKS)
def test_a_topic_is_recreated_and_its_group_reset_and_deleted(
    request: pytest.FixtureRequest, tmp_path: Path, kafka_cluster: KafkaCluster, kind: str
) -> None:
    name = unique("group")
    sink, delivered = SINKS[kind](name, request.getfixturevalue(f"{kind}_cluster"))
    group = Group(tmp_path, kafka_cluster, name, sink)

    def has(times: int = 1) -> Counter[bytes]:
        return Counter(dict.fromkeys(group.bodies, times))

    group.put(60)
    with group.agent() as agent:
        agent.until(lambda: delivered() == has(), "what the first topic held")
        group.recreate()
        group.put(90)  # more than were there before
        agent.until(lambda: delivered() == has(), "what the second held")
        assert "was deleted" in agent.log or "Unknown topic" in agent.log  # depends on how soon the topic is there
        assert agent.stop() == 0
    group.recreate()
    group.put(90)
    latest = group.bodies[-90:]
    with group.agent() as agent:
        agent.until(lambda: delivered() == has(), "what the third held")
        assert agent.stop() == 0
    group.await_empty()
    group.reset("earliest")
    once_more = Counter(latest) if kind != "solr" else Counter[bytes]()  # Solr has one document for each id
    for deleted in (False, True):
        if deleted:
            group.await_empty()
            group.admin.delete_consumer_groups([name])[name].result(60)
            group.put(30)
        with group.agent() as agent:
            agent.until(
                lambda: (delivered() == has() + once_more) and agent.count("SINK.k1", "EventDrainSuccessCount") >= 30,
                "what was to be delivered",
            )
            assert agent.stop() == 0
    assert delivered() == has() + once_more


@pytest.mark.drawn(1)
@pytest.mark.parametrize("meanwhile", ["its group is reset", "another one takes over below another path"])
def test_a_suspended_agent_delivers_nothing_of_its_lost_partitions(
    tmp_path: Path, kafka_cluster: KafkaCluster, hdfs_cluster: HdfsCluster, meanwhile: str
) -> None:
    name = unique("group")
    sink, delivered = _hdfs(name, hdfs_cluster)
    group = Group(tmp_path, kafka_cluster, name, sink)
    group.put(600)
    group.configuration += "a1.sinks.k1.hdfs.rollInterval = 600\n"
    with group.agent("a1") as asleep:
        asleep.until(lambda: asleep.count("SINK.k1", "EventDrainAttemptCount") == 600, "all to be held")
        asleep.process.send_signal(signal.SIGSTOP)
        group.await_empty()
        if meanwhile == "its group is reset":
            group.reset("earliest")
        else:
            path = f"a1.sinks.k1.hdfs.path = webhdfs://{hdfs_cluster.webhdfs}/{name}"
            assert f"{path}\n" in group.configuration
            group.configuration = group.configuration.replace(f"{path}\n", f"{path}/moved\n")
        group.configuration += "a1.sinks.k1.hdfs.rollInterval = 1\n"
        with group.agent("a2") as other:
            other.until(lambda: delivered() == Counter(group.bodies), "what the other delivers")
            asleep.process.send_signal(signal.SIGTERM)  # so that it commits as soon as it wakes
            asleep.process.send_signal(signal.SIGCONT)
            asleep.wait_for_exit()
            group.put(60)
            other.until(lambda: not Counter(group.bodies) - delivered(), "what came last")
            other.until(lambda: _claims(other)[-1] == "[0, 1, 2]", "the group to have one member again")
            other.until(lambda: not other.failing(), "what failed in the rebalance to be done")
            assert other.stop() == 0
    assert delivered() == Counter(group.bodies)


def test_a_commit_log_moves_at_a_start_or_by_a_command_while_its_group_has_no_members(
    tmp_path: Path, kafka_cluster: KafkaCluster, hdfs_cluster: HdfsCluster
) -> None:
    name = unique("group")
    sink, delivered = _hdfs(name, hdfs_cluster)
    group = Group(tmp_path, kafka_cluster, name, sink)
    group.configuration += "a1.sinks.k1.hdfs.rollInterval = 1\n"
    path_line = f"a1.sinks.k1.hdfs.path = webhdfs://{hdfs_cluster.webhdfs}/{name}"
    assert f"{path_line}\n" in group.configuration

    def moved_to(directory: str) -> None:
        nonlocal path_line
        new_line = f"{path_line.removesuffix('/b').removesuffix('/c')}/{directory}"
        group.configuration = group.configuration.replace(f"{path_line}\n", f"{new_line}\n")
        path_line = new_line

    group.put(60)
    with group.agent("a1") as old:
        old.until(lambda: delivered() == Counter(group.bodies), "what the first delivers")
        moved_to("b")
        with group.agent("a2") as other:
            other.until(lambda: "is read by" in other.failing().get("SINK.k1", ""), "the other to be refused")
            reason = other.failing()["SINK.k1"]
            assert (
                f"a1.k1.{name} on 127.0.0.1, and has its commit log in hdfs:/{name}/.flafka, not in hdfs:/{name}/b"
                in reason
            )
            group.put(60)
            old.until(lambda: delivered() == Counter(group.bodies), "the first to go on")
            assert old.stop() == 0
            group.put(60)
            other.until(lambda: delivered() == Counter(group.bodies), "the other, once it is alone")
            assert other.stop() == 0
    group.await_empty()
    group.put(60)
    command = ("group", "move", name, "-n", "a2", "-c", str(tmp_path / "a2" / "agent.conf"))
    result = agent_command(
        *command, "--to", f"{path_line.partition(' = ')[2].removesuffix('/b')}/c", "--yes", "--json"
    )
    assert result.returncode == 0, result.stderr
    assert [(row["partition"], row["commit_log"], row["moved"]) for row in json.loads(result.stdout)] == [
        (f"{name}-{partition}", f"hdfs:/{name}/c/.flafka", True) for partition in PARTITIONS
    ]
    moved_to("c")
    with group.agent("a1") as restarted:
        restarted.until(lambda: delivered() == Counter(group.bodies), "who starts with the new path")
        assert "moved" not in restarted.log
        assert restarted.stop() == 0
    group.await_empty()
    result = agent_command("group", "move", name, "-c", str(tmp_path / "a1" / "agent.conf"), "--yes")
    assert "true" not in result.stdout.lower(), result.stderr
    result = agent_command("group", "move", "other", "-c", str(tmp_path / "a1" / "agent.conf"), "--yes")
    assert f"a1 has no sink hdfs in group other; its groups are: {name}" in result.stderr
    assert delivered() == Counter(group.bodies)


def test_two_agents_of_one_name_on_one_host_share_the_partitions(tmp_path: Path, kafka_cluster: KafkaCluster) -> None:
    """Two agents that both join as the same static member at first would fence each other for ever."""
    outs = [tmp_path / "out-1", tmp_path / "out-2"]
    sink = f"a1.sinks.k1.type = file_roll\na1.sinks.k1.channel = c1\na1.sinks.k1.sink.directory = {outs[0]}"
    group = Group(tmp_path, kafka_cluster, unique("twins"), sink)
    text = group.configuration.replace(str(outs[0]), str(outs[1]))
    for out in outs:
        out.mkdir()

    def delivered() -> list[set[bytes]]:
        return [{line for file in out.iterdir() for line in file.read_bytes().split()} for out in outs]

    with group.agent() as first, RunningAgent(tmp_path / "a2", text) as second:
        first.until(
            lambda: {*_claims(first)[-1:], *_claims(second)[-1:]} & {"[0, 1]", "[0, 2]", "[1, 2]"}, "two shares"
        )
        group.put(600)
        first.until(lambda: set.union(*delivered()) == {*group.bodies} and all(delivered()), "both to deliver")
        assert first.stop() == second.stop() == 0
        assert (first.log + second.log).count("joining again under another name") <= 2


def test_records_at_the_offsets_of_lost_ones_are_not_skipped(
    tmp_path: Path, kafka_cluster: KafkaCluster, hdfs_cluster: HdfsCluster
) -> None:
    """Unclean leader election: the group has read up to offset 40 of the former leader."""
    name = unique("group")
    sink, delivered = _hdfs(name, hdfs_cluster)
    group = Group(tmp_path, kafka_cluster, name, sink)
    for leader, count in ((1, 20), (2, 65)):
        group.lead(leader, *{1, 2, 3} - {leader})
        bodies = [b"%d %06d" % (leader, number) for number in range(count)]
        put(kafka_cluster, name, bodies, 0)
        group.bodies = bodies
    own = {"group.id": name, "enable.auto.commit": False}
    reader = Consumer({"bootstrap.servers": kafka_cluster.bootstrap_servers, **own})
    reader.assign([TopicPartition(name, 0, 0)])
    message = reader.poll(60)
    assert message is not None
    epoch = message.leader_epoch()
    assert epoch is not None
    topic_id = group.admin.describe_topics(TopicCollection([name]))[name].result(60).topic_id
    metadata = OffsetMetadata(topic_id=str(topic_id)).text()
    reader.commit(offsets=[TopicPartition(name, 0, 40, metadata, leader_epoch=epoch)], asynchronous=False)
    reader.close()
    with group.agent() as agent:
        pattern = f"read records 20 to 39, 20 in all, .* offsets from 20 on.*: agent (group reset {name} .*)"
        agent.until(lambda: re.search(pattern, agent.failing().get("SINK.k1", "")), "what was lost to be reported")
        advice = re.search(pattern, agent.log)
        assert advice is not None
        assert agent.stop() == 1
    assert not delivered()
    servers = ("--bootstrap-server", kafka_cluster.bootstrap_servers)
    checked = agent_command("check", "-c", str(agent.file), "--connect")
    assert checked.returncode == 2
    assert advice[0] in checked.stdout
    assert advice[0] in agent_command("group", "describe", name, *servers).stderr
    group.await_empty()
    result = agent_command(*advice[1].split(), "--yes", *servers)
    assert result.returncode == 0, result.stderr
    with group.agent() as agent:
        agent.until(lambda: delivered() == Counter(group.bodies), "what took their place")
        assert agent.stop() == 0
    group.lead(3, 1, 2)  # a leader that has everything changes nothing
    with group.agent() as agent:
        group.put(30)
        agent.until(lambda: delivered() == Counter(group.bodies), "what came last")
        assert agent.stop() == 0
        assert "have lost" not in agent.log
