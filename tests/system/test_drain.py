"""`agent start --drain` on real brokers, beside other members of the group."""

import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from flafka.agent.cli import start
from flafka.agent.config import load
from flafka.agent.runner import drain
from flafka.agent.runner.agent import member_id
from flafka.agent.services.kafka import KafkaCluster
from flafka.agent.services.running import RunningAgent
from flafka.plugins import Components
from tests.system.running import kafka_channel, unique

EVENTS = [b"event %03d" % number for number in range(300)]


def configuration(servers: str, topic: str, out: Path, *, name: str = "a1") -> str:
    """Return an agent with one sink on that topic; all agents share one group."""
    text = f"""
a1.channels = c1
{kafka_channel(servers, topic, partitions=2)}
a1.channels.c1.format = raw
a1.channels.c1.parseAsFlumeEvent = false
a1.sinks = k1
a1.sinks.k1.type = file_roll
a1.sinks.k1.channel = c1
a1.sinks.k1.sink.directory = {out}
a1.monitoring.port = 0
"""
    return text.replace("a1.", f"{name}.")


def create(kafka: KafkaCluster, topic: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    admin.create_topics([NewTopic(topic, partitions, 3)])[topic].result(60)


def put(kafka: KafkaCluster, topic: str, bodies: list[bytes], *partitions: int, **properties: str) -> Producer:
    """Put the bodies into these partitions in turn."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, **properties})
    if properties:
        producer.init_transactions(60)
        producer.begin_transaction()
    for number, body in enumerate(bodies):
        producer.produce(topic, body, partition=partitions[number % len(partitions)])
    assert not producer.flush(60)
    return producer


def delivered(*directories: Path) -> Counter[bytes]:
    """Return every line of the sinks' files."""
    files = [file for directory in directories for file in directory.glob("*")]
    return Counter(line for file in files for line in file.read_bytes().splitlines())


@contextmanager
def two_agents(directory: Path, first: str, second: str) -> Iterator[tuple[RunningAgent, RunningAgent]]:
    """Start agents a1 and a2, and wait until each has one of the two partitions."""
    file = str(directory / "2/agent.conf")
    with (
        RunningAgent(directory / "1", first) as a1,
        RunningAgent(directory / "2", second, "-n", "a2", "-c", file) as a2,
    ):
        a1.until(
            lambda: {agent.log.rpartition("has partitions [")[2][:2] for agent in (a1, a2)} == {"0]", "1]"},
            "a partition for each",
        )
        yield a1, a2


@pytest.fixture
def topic(kafka_cluster: KafkaCluster) -> str:
    """Topic of two partitions, and the group of that name."""
    name = unique("drain")
    create(kafka_cluster, name, 2)
    return name


def test_a_drain_delivers_partitions_that_another_members_session_still_holds(
    tmp_path: Path, kafka_cluster: KafkaCluster, topic: str
) -> None:
    servers, out = kafka_cluster.bootstrap_servers, tmp_path / "out"
    first, second = (configuration(servers, topic, out / name, name=name) for name in ("a1", "a2"))
    with two_agents(tmp_path, first, second) as (a1, a2):
        assert (a1.stop(), a2.stop(signal.SIGKILL)) == (0, -signal.SIGKILL)
    put(kafka_cluster, topic, EVENTS, 0, 1)
    with RunningAgent(tmp_path / "1", first, "-c", str(tmp_path / "1/agent.conf"), "--drain") as agent:
        assert agent.wait_for_exit() == 0, agent.log
    assert delivered(out / "a1", out / "a2") == Counter(EVENTS)


def test_a_drain_waits_for_no_control_records_aborted_records_or_empty_partitions(
    tmp_path: Path, kafka_cluster: KafkaCluster
) -> None:
    topic = unique("drain")
    create(kafka_cluster, topic, 4)
    aborted = put(kafka_cluster, topic, [b"aborted"], 0, 1, **{"transactional.id": f"{topic}-1"})
    aborted.abort_transaction(60)
    committed = put(kafka_cluster, topic, EVENTS, 1, 2, **{"transactional.id": f"{topic}-2"})
    committed.commit_transaction(60)
    file = configuration(kafka_cluster.bootstrap_servers, topic, tmp_path / "out")
    for _ in range(2):  # with and without committed offsets
        with RunningAgent(tmp_path / "a", file, "-c", str(tmp_path / "a/agent.conf"), "--drain") as agent:
            assert agent.wait_for_exit() == 0, agent.log
        assert delivered(tmp_path / "out") == Counter(EVENTS)


@pytest.fixture
def handlers() -> Iterator[None]:
    """Restore the signal handlers afterwards."""
    saved = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in saved.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("handlers")
def test_a_drain_exits_with_1_and_names_the_member_that_holds_the_rest(
    tmp_path: Path,
    kafka_cluster: KafkaCluster,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(drain, "DRAIN_STALL_SECONDS", 5.0)
    servers, out = kafka_cluster.bootstrap_servers, tmp_path / "out"
    first, second = (configuration(servers, topic, out / name, name=name) for name in ("a1", "a2"))
    second = second.replace("session.timeout.ms = 6000", "session.timeout.ms = 300000")
    assert "300000" in second
    with two_agents(tmp_path, first, second) as (a1, a2):
        assert a1.stop() == 0
        a2.process.send_signal(signal.SIGSTOP)  # the stopped member keeps its partition
        theirs = int(a2.log.rpartition("has partitions [")[2][0])
        put(kafka_cluster, topic, EVENTS, 0, 1)
        spec, diagnostics = load(a1.file, None, components=Components())
        assert spec is not None, diagnostics
        assert start.run(spec, drain=True) == 1
    (message,) = [record.message for record in caplog.records if "not drained" in record.message]
    assert message == (
        f"not drained, and nothing was delivered for 5 s: partition {theirs} of a1.channels.c1 is delivered up to 0 "
        f"of 150 in group {topic}, and assigned to {member_id('a2', 'k1')}.{topic} on 127.0.0.1"
    )
    assert delivered(out / "a1") == Counter(EVENTS[1 - theirs :: 2])
