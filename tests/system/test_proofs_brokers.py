"""Brokers that are away: at the start, all at once under load, and one whose disk is full.

These brokers are the tests' own: they are stopped, and one keeps its data on a disk of a few megabytes.
"""

import contextlib
import itertools
import shutil
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.services.kafka import KafkaCluster
from tests.system.running import (
    Agent,
    connected,
    fill,
    free_ports,
    in_topic,
    kafka_channel,
    send,
    small_disk,
    unique,
    until,
)

DISK_MB = 48
OUTAGE_SECONDS = 20
HEAD = b"<13>Oct 11 22:14:15 web-1 "


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """Three brokers that have their ports, but do not run yet."""
    cluster = KafkaCluster(tmp_path_factory.mktemp("brokers"))
    cluster.remember(ports=dict(zip(cluster.default_ports(), free_ports(6), strict=True)))
    try:
        yield cluster
    finally:
        cluster.stop()


def configured(servers: str, topic: str, out: Path) -> str:
    """Syslog over TCP and UDP, through Kafka, into files."""
    return f"""
a1.sources = tcp udp
a1.channels = c1
a1.sources.tcp.type = syslogtcp
a1.sources.tcp.host = 127.0.0.1
a1.sources.tcp.port = 0
a1.sources.tcp.channels = c1
a1.sources.udp.type = syslogudp
a1.sources.udp.host = 127.0.0.1
a1.sources.udp.port = 0
a1.sources.udp.receiveBufferSize = 65536
a1.sources.udp.channels = c1
{kafka_channel(servers, topic)}
a1.sinks = k1
a1.sinks.k1.type = file_roll
a1.sinks.k1.channel = c1
a1.sinks.k1.sink.directory = {out}
"""


def in_files(out: Path) -> Counter[bytes]:
    """What the sink delivered."""
    return Counter(line for file in out.iterdir() for line in file.read_bytes().splitlines())


class Sender:
    """Sends numbered messages over TCP and UDP from threads of its own, as fast as they are taken."""

    def __init__(self, name: str, tcp: int, udp: int) -> None:
        self.sent: set[bytes] = set()
        """Over TCP: all of them have to arrive."""
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

    def _tcp(self, port: int) -> None:
        with connected(port) as connection:
            for start in itertools.count(0, 100):
                if self._stop.is_set():
                    return
                bodies = [b"%s tcp %d %s" % (self._name, n, b"." * 500) for n in range(start, start + 100)]
                self.sent.update(bodies)
                connection.sendall(b"".join(HEAD + body + b"\n" for body in bodies))
                self._stop.wait(0.005)

    def _udp(self, port: int) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
            client.connect(("127.0.0.1", port))
            for number in itertools.count():
                if self._stop.wait(0.001):
                    return
                body = b"%s udp %d" % (self._name, number)
                client.send(HEAD + body)
                self.datagrams.add(body)


def test_brokers_that_come_later(tmp_path: Path, cluster: KafkaCluster) -> None:
    """The agent runs, says what is missing, and works once it is there."""
    cluster.stop()
    topic, out = unique("later"), tmp_path / "out"
    with Agent(tmp_path, configured(cluster.bootstrap_servers, topic, out)) as agent:
        agent.until(lambda: "CHANNEL.c1" in agent.failing(), "the missing brokers to be told", seconds=30)
        assert f"no Kafka broker answers at {cluster.bootstrap_servers}" in agent.failing()["CHANNEL.c1"]
        cluster.start()
        agent.healthy()
        send(agent.port("tcp"), HEAD + b"at last\n")
        agent.until(lambda: agent.count("SOURCE.tcp", "EventAcceptedCount") == 1, "the message")
        assert agent.stop() == 0
        assert "Traceback" not in agent.log
    assert [event.body for event in in_topic(cluster, topic)] == [b"at last"]
    assert in_files(out) == Counter([b"at last"])


def test_all_brokers_stopped_for_a_while_under_load(tmp_path: Path, cluster: KafkaCluster) -> None:
    """What the agent took over TCP is kept; TCP senders wait, and each datagram lost is counted."""
    cluster.start()
    topic, out = unique("outage"), tmp_path / "out"
    with Agent(tmp_path, configured(cluster.bootstrap_servers, topic, out)) as agent:
        with Sender("outage", agent.port("tcp"), agent.port("udp")) as sender:
            agent.until(lambda: agent.count("SOURCE.tcp", "EventAcceptedCount") > 1000, "events before the outage")
            cluster.stop()
            stopped = time.monotonic()
            agent.until(lambda: "CHANNEL.c1" in agent.failing(), "the outage to be told")
            agent.until(lambda: agent.count("SOURCE.udp", "KernelDropCount"), "datagrams to be dropped and counted")
            until(lambda: time.monotonic() - stopped > OUTAGE_SECONDS, "the outage to be long enough")
            waiting = len(sender.sent)
            cluster.start()
            agent.healthy()
            until(lambda: len(sender.sent) > waiting, "the TCP sender to go on")
        agent.until(lambda: agent.count("SOURCE.tcp", "EventAcceptedCount") >= len(sender.sent), "all of TCP")
        agent.until(lambda: _told(agent) >= len(sender.datagrams), "every datagram to be stored or counted")
        dropped = agent.count("SOURCE.udp", "KernelDropCount")
        assert agent.stop() == 0
        assert "Traceback" not in agent.log
        assert agent.log.count("no acknowledgement from Kafka") == 1
        assert agent.log.count("Kafka acknowledges again") == 1
    found = Counter(event.body for event in in_topic(cluster, topic))
    udp = {body for body in found if b" udp " in body}
    assert found == Counter(sender.sent | udp)
    assert udp < sender.datagrams
    assert len(sender.datagrams - udp) == dropped
    assert in_files(out).keys() == found.keys()  # the local file is at least once


def _told(agent: Agent) -> int:
    return agent.count("SOURCE.udp", "EventAcceptedCount") + agent.count("SOURCE.udp", "KernelDropCount")


def test_a_broker_whose_disk_is_full(tmp_path: Path, cluster: KafkaCluster) -> None:
    """Kafka ends a broker that cannot write; the two others have every record, and it catches up once it can."""
    cluster.start()
    topic, out, data = unique("full"), tmp_path / "out", cluster.directory / "data" / "broker-1"
    configuration = configured(cluster.bootstrap_servers, topic, out)
    with small_disk(tmp_path / "disk", DISK_MB) as disk, on_disk(cluster, data, disk):
        with Agent(tmp_path / "a", configuration) as agent:
            with Sender("full", agent.port("tcp"), agent.port("udp")) as sender:
                agent.until(lambda: agent.count("SINK.k1", "EventDrainSuccessCount") > 500, "the first events")
                filler = fill(disk)
                agent.until(lambda: cluster.server("broker-1").pid is None, "the broker to end")
                stored = agent.count("SOURCE.tcp", "EventAcceptedCount")
                agent.until(lambda: agent.count("SOURCE.tcp", "EventAcceptedCount") > stored + 2000, "more events")
                agent.healthy()
                filler.unlink()
                cluster.start()
            agent.until(lambda: agent.count("SOURCE.tcp", "EventAcceptedCount") >= len(sender.sent), "all of TCP")
            until(lambda: not cluster.status().under_replicated, "the broker to have caught up")
            assert agent.stop() == 0
            assert "Traceback" not in agent.log
        found = Counter(event.body for event in in_topic(cluster, topic))
        assert {body: n for body, n in found.items() if b" tcp " in body} == Counter(sender.sent)
        assert in_files(out).keys() == found.keys()


@contextlib.contextmanager
def on_disk(cluster: KafkaCluster, data: Path, disk: Path) -> Iterator[None]:
    """Meanwhile this broker's data lie on that disk."""
    broker = cluster.server(data.name)
    broker.stop(cluster.grace)
    shutil.move(data, disk / data.name)
    data.symlink_to(disk / data.name)
    try:
        cluster.start()
        yield
    finally:
        broker.stop(cluster.grace)
        data.unlink()
        shutil.move(disk / data.name, data)
