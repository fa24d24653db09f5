"""Unavailable brokers: at the start, all at once under load, and one with a full disk.

These brokers belong to the tests: they are stopped, and one keeps its data on a disk of a few megabytes.
"""

import contextlib
import itertools
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from flafka.agent.services.kafka import KafkaCluster
from flafka.agent.services.running import RunningAgent, free_ports, until
from flafka.channels.kafka import KafkaChannel, KafkaChannelConfig
from flafka.plugins.kafka.admin import is_accepting, is_answering
from tests.system.outage import outage
from tests.system.overflow import overflow
from tests.system.running import connected, fill, in_topic, kafka_channel, send, small_disk, syslog_sources, unique

DISK_MB = 256
OUTAGE_SECONDS = 10
SILENCE_SECONDS = 15
CHECKS = 4
HEAD = b"<13>Oct 11 22:14:15 web-1 "


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path | None]:
    """Small disk for the data of broker-1; None where this user may not mount one."""
    with contextlib.ExitStack() as stack:
        mounted = None
        with contextlib.suppress(pytest.skip.Exception):
            mounted = stack.enter_context(small_disk(tmp_path_factory.mktemp("disk"), DISK_MB))
        yield mounted


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, disk: Path | None) -> Iterator[KafkaCluster]:
    """Three brokers that have their ports, but do not run yet."""
    cluster = KafkaCluster(tmp_path_factory.mktemp("brokers"))
    cluster.save_state(ports=dict(zip(cluster.default_ports(), free_ports(6), strict=True)))
    if disk is not None:
        (cluster.directory / "data").mkdir()
        (cluster.directory / "data" / "broker-1").symlink_to(disk)
    try:
        yield cluster
    finally:
        for name in cluster.names():
            cluster.kill(name)


def configured(servers: str, topic: str, out: Path) -> str:
    """Return syslog over TCP and UDP, through Kafka, into files."""
    return f"""
a1.channels = c1
{syslog_sources()}
a1.sources.udp.receiveBufferSize = 65536
{kafka_channel(servers, topic)}
a1.sinks = k1
a1.sinks.k1.type = file_roll
a1.sinks.k1.channel = c1
a1.sinks.k1.sink.directory = {out}
"""


def in_files(out: Path) -> Counter[bytes]:
    """Return the delivered lines with their numbers."""
    return Counter(line for file in out.iterdir() for line in file.read_bytes().splitlines())


def delivered(agent: RunningAgent, out: Path, expected: Counter[bytes]) -> bool:
    """Return True if all expected lines are in the files, at least once."""
    return agent.count("SINK.k1", "Lag") == 0 and in_files(out).keys() == expected.keys()


class Sender:
    """Client with two threads that sends numbered messages: over UDP, and 2 MB a second over TCP unless blocked."""

    def __init__(self, name: str, tcp: int, udp: int) -> None:
        self.sent: set[bytes] = set()
        """Messages over TCP: all of them have to arrive."""
        self.datagrams: set[bytes] = set()
        self._stop = threading.Event()
        self._name = name.encode()
        self._threads = [
            threading.Thread(target=self._tcp, args=(tcp,)),
            threading.Thread(target=self._udp, args=(udp,)),
        ]

    def __enter__(self) -> "Sender":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()

    def is_waiting(self) -> bool:
        """Return True if sending over TCP has been blocked for at least a second."""
        before = len(self.sent)
        return not self._stop.wait(1) and len(self.sent) == before

    def _tcp(self, port: int) -> None:
        with connected(port) as connection:
            for start in itertools.count(0, 100):
                if self._stop.is_set():
                    return
                bodies = [b"%s tcp %d %s" % (self._name, n, b"." * 500) for n in range(start, start + 100)]
                self.sent.update(bodies)
                connection.sendall(b"".join(HEAD + body + b"\n" for body in bodies))
                self._stop.wait(0.02)

    def _udp(self, port: int) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
            client.connect(("127.0.0.1", port))
            for number in itertools.count():
                if self._stop.wait(0.005):
                    return
                body = b"%s udp %d" % (self._name, number)
                client.send(HEAD + body)
                self.datagrams.add(body)


def test_brokers_that_come_later(tmp_path: Path, cluster: KafkaCluster) -> None:
    """The agent runs, reports the missing brokers, and works once they are started."""
    cluster.stop()
    topic, out = unique("later"), tmp_path / "out"
    with RunningAgent(tmp_path, configured(cluster.bootstrap_servers, topic, out)) as agent:
        agent.until(lambda: "CHANNEL.c1" in agent.failing(), "the missing brokers to be reported")
        assert f"no Kafka broker answers at {cluster.bootstrap_servers}" in agent.failing()["CHANNEL.c1"]
        cluster.start()
        agent.wait_until_healthy()
        send(agent.port("tcp"), HEAD + b"at last\n")
        agent.until(lambda: agent.count("SINK.k1", "EventDrainSuccessCount") == 1, "the message")
        assert agent.stop() == 0
        assert "Traceback" not in agent.log
    assert [event.body for event in in_topic(cluster, topic)] == [b"at last"]
    assert in_files(out) == Counter([b"at last"])


@pytest.mark.drawn(3, of="outages")
def test_all_brokers_stopped_for_a_while_under_load(tmp_path: Path, cluster: KafkaCluster) -> None:
    """Messages accepted over TCP are kept; TCP senders wait, and each lost datagram is counted."""
    cluster.start()
    topic, out = unique("outage"), tmp_path / "out"
    with RunningAgent(tmp_path, configured(cluster.bootstrap_servers, topic, out)) as agent:
        with Sender("outage", agent.port("tcp"), agent.port("udp")) as sender:
            agent.until(lambda: agent.count("SOURCE.tcp", "EventAcceptedCount") > 1000, "events before the outage")
            cluster.stop()
            stopped = time.monotonic()
            agent.until(lambda: "CHANNEL.c1" in agent.failing(), "the outage to be reported")
            until(lambda: time.monotonic() - stopped > OUTAGE_SECONDS, "the outage to be long enough")
            waiting = sender.is_waiting()
            cluster.start()
            agent.wait_until_healthy()
            assert waiting
            until(lambda: not sender.is_waiting(), "the TCP sender to go on")
        agent.until(lambda: agent.count("SOURCE.tcp", "EventAcceptedCount") >= len(sender.sent), "all of TCP")
        agent.until(
            lambda: _stored_or_dropped(agent) >= len(sender.datagrams), "every datagram to be stored or counted"
        )
        dropped = agent.count("SOURCE.udp", "KernelDropCount")
        assert dropped
        counts = Counter(event.body for event in in_topic(cluster, topic))
        agent.until(lambda: delivered(agent, out, counts), "the sink to have caught up")
        assert agent.stop() == 0
        assert "Traceback" not in agent.log
        assert agent.log.count("no acknowledgement from Kafka") == 1
        assert agent.log.count("Kafka acknowledges again") == 1
    udp = {body for body in counts if b" udp " in body}
    assert not counts.keys() ^ (sender.sent | udp)
    assert max(counts.values()) <= 2  # a batch in flight when the brokers stopped may be in the topic twice
    assert udp < sender.datagrams
    assert len(sender.datagrams - udp) == dropped


def _stored_or_dropped(agent: RunningAgent) -> int:
    return agent.count("SOURCE.udp", "EventAcceptedCount") + agent.count("SOURCE.udp", "KernelDropCount")


@pytest.mark.drawn(3, of="outages")
def test_brokers_without_their_controllers_are_not_writable(tmp_path: Path, cluster: KafkaCluster) -> None:
    """The remaining broker reports the state of the others before they ended."""
    cluster.start()
    config, _ = KafkaChannelConfig.parse(
        {"kafka.bootstrap.servers": cluster.bootstrap_servers, "kafka.topic": unique("left")}
    )
    assert config is not None
    channel = KafkaChannel(config, "c1")
    channel.open()
    try:
        until(channel._is_writable, "the brokers to be ready")
        for name in cluster.names()[1:]:
            cluster.kill(name)
        with ThreadPoolExecutor(CHECKS) as threads:  # each waits for an answer until its timeout
            answers = [*threads.map(lambda _: channel._is_writable(), range(CHECKS))]
        cluster.start()
        until(channel._is_writable, "the brokers to be ready again")
    finally:
        channel.close()
    assert not any(answers)


@pytest.mark.drawn(3, of="outages")
def test_frozen_brokers_are_not_writable(cluster: KafkaCluster) -> None:
    """Frozen brokers still accept connections."""
    cluster.start()
    topic = unique("frozen")
    config, _ = KafkaChannelConfig.parse(
        {"kafka.bootstrap.servers": cluster.bootstrap_servers, "kafka.topic": topic, "partitions": "1"}
    )
    assert config is not None
    channel = KafkaChannel(config, "c1")
    channel.open()
    try:
        until(channel._is_writable, "the brokers to be ready")
        client = {"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0}
        metadata = AdminClient(client).list_topics(topic, timeout=30)
        leader = metadata.topics[topic].partitions[0].leader
        frozen = [broker for broker in metadata.brokers.values() if broker.id != leader]
        servers = [cluster.server(f"broker-{broker.id}") for broker in frozen]
        for server in servers:
            server.signal(signal.SIGSTOP)
        try:
            addresses = [(broker.host, broker.port) for broker in frozen]
            accepting = [is_accepting(address) for address in addresses]
            with ThreadPoolExecutor() as threads:  # each waits for an answer until its timeout
                pending = threads.submit(channel._is_writable)
                answering = [*threads.map(lambda address: is_answering(client, address, topic), addresses)]
                writable = pending.result()
        finally:
            for server in servers:
                server.signal(signal.SIGCONT)
        until(channel._is_writable, "the brokers to be ready again")
    finally:
        channel.close()
    assert all(accepting)
    assert not any(answering)
    assert not writable


@pytest.mark.drawn(3, of="outages")
def test_applications_while_no_broker_answers(tmp_path: Path, cluster: KafkaCluster, figures: list[str]) -> None:
    """Clients receive FAILED in time, appenders block no application, and acknowledged events are kept."""
    cluster.start()
    figures.append(outage(tmp_path, cluster, seconds=SILENCE_SECONDS))


@pytest.mark.drawn(3, of="outages")
def test_sources_continue_without_brokers_with_a_disk_overflow(
    tmp_path: Path, cluster: KafkaCluster, figures: list[str]
) -> None:
    cluster.start()
    figures.append(overflow(tmp_path, cluster, seconds=OUTAGE_SECONDS))


@pytest.mark.drawn(3, of="outages")
def test_a_broker_whose_disk_is_full(tmp_path: Path, cluster: KafkaCluster, disk: Path | None) -> None:
    """Kafka ends a broker that cannot write; the two others have every record, and it catches up later."""
    if disk is None:
        pytest.skip("a file system cannot be mounted here")
    cluster.start()
    topic, out = unique("full"), tmp_path / "out"
    with RunningAgent(tmp_path / "a", configured(cluster.bootstrap_servers, topic, out)) as agent:
        with Sender("full", agent.port("tcp"), agent.port("udp")) as sender:
            agent.until(lambda: agent.count("SINK.k1", "EventDrainSuccessCount") > 500, "the first events")
            filler = fill(disk)
            agent.until(lambda: cluster.server("broker-1").pid is None, "the broker to end")
            stored = agent.count("SOURCE.tcp", "EventAcceptedCount")
            agent.until(lambda: agent.count("SOURCE.tcp", "EventAcceptedCount") > stored + 2000, "more events")
            agent.wait_until_healthy()
            filler.unlink()
            cluster.start()
        agent.until(lambda: agent.count("SOURCE.tcp", "EventAcceptedCount") >= len(sender.sent), "all of TCP")
        until(lambda: not cluster.status().under_replicated, "the broker to have caught up")
        counts = Counter(event.body for event in in_topic(cluster, topic))
        agent.until(lambda: delivered(agent, out, counts), "the sink to have caught up")
        assert agent.stop() == 0
        assert "Traceback" not in agent.log
    assert {body: n for body, n in counts.items() if b" tcp " in body} == Counter(sender.sent)
