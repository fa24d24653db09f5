"""Programs that take syslog over TCP and store it in Kafka, and lines to send them."""

from __future__ import annotations

import contextlib
import functools
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import pyarrow as pa

from bench.frame import BROKERS, CPU, RATE, Bench, Figures
from bench.frame.kafka import Topic, same
from bench.frame.peers import flume, rsyslog, syslog_ng
from bench.frame.processes import cpu_seconds, listening
from flafka.agent.services.running import RunningAgent, until
from flafka.plugins import Batch
from tests.fixtures.ports import free_port

LINE = b"<134>%s web-1 sshd[4721]: Failed password for invalid user admin from 10.1.2.3 port 4022 ssh2 %sid=%%09d"
BODY = b"sshd[4721]: Failed password for invalid user admin from %s port 4022 ssh2 %sid=%%09d"
CONFIGURATION = """
a.sources = syslog
a.channels = kafka
a.sources.syslog.type = syslogtcp
a.sources.syslog.host = 127.0.0.1
a.sources.syslog.port = 0
a.sources.syslog.channels = kafka
a.sources.syslog.interceptors = mask
a.sources.syslog.interceptors.mask.type = mask
a.sources.syslog.interceptors.mask.patterns = ipv4
a.channels.kafka.type = kafka
a.channels.kafka.kafka.bootstrap.servers = {servers}
a.channels.kafka.kafka.topic = {topic}
"""
FLUME_CONFIGURATION = """
a1.sources = syslog
a1.channels = kafka
a1.sources.syslog.type = multiport_syslogtcp
a1.sources.syslog.host = 127.0.0.1
a1.sources.syslog.ports = {port}
a1.sources.syslog.batchSize = 1000
a1.sources.syslog.channels = kafka
a1.channels.kafka.type = org.apache.flume.channel.kafka.KafkaChannel
a1.channels.kafka.kafka.bootstrap.servers = {servers}
a1.channels.kafka.kafka.topic = {topic}
a1.channels.kafka.kafka.producer.acks = all
"""


class Lines:
    """A file of lines with numbers, made beforehand: formatting them would take a core from what is measured.

    `fillings`, of one length, make them longer, one after the other.
    """

    def __init__(self, bench: Bench, events: int, fillings: Sequence[bytes] = (b"",)) -> None:
        self._bench, self.events, self._fillings = bench, events, fillings
        self.path = bench.directory("lines") / "lines"
        # The time of day is now: omkafka gives it to Kafka, whose retention begins there.
        lines = self._numbered(LINE, time.strftime("%b %e %H:%M:%S").encode())
        self.path.write_bytes(b"".join(line + b"\n" for line in lines))
        self.bytes = len(lines[0]) + 1
        """Of each line, its end included."""
        self.whole = pa.array(lines)

    def fewer(self, share: int) -> Lines:
        """Of as many, every so many-th: for those who would take very long."""
        return Lines(self._bench, max(1, self.events // share), self._fillings)

    def _numbered(self, pattern: bytes, first: bytes) -> list[bytes]:
        patterns = [pattern % (first, filling) for filling in self._fillings]
        return [patterns[number % len(patterns)] % number for number in range(self.events)]

    @functools.cached_property
    def masked(self) -> pa.Array:
        """What comes of them, parsed and masked."""
        return pa.array(self._numbered(BODY, b"***"))

    @functools.cached_property
    def bodies(self) -> pa.Array:
        """What comes of them, parsed."""
        return pa.array(self._numbered(BODY, b"10.1.2.3"))

    def send(self, clients: Sequence[socket.socket], at_once: int = 100) -> None:
        """Over these connections: one has all; of several each its part, by turns, up to so many lines at a time."""
        if len(clients) == 1:
            with self.path.open("rb") as file:
                clients[0].sendfile(file)
            return
        data, size = self.path.read_bytes(), self.bytes
        piece = max(1, min(at_once, self.events // len(clients)))
        for number, start in enumerate(range(0, self.events, piece)):
            clients[number % len(clients)].sendall(data[start * size : (start + piece) * size])


@contextlib.contextmanager
def connected(port: int, pid: int, connections: int) -> Iterator[list[socket.socket]]:
    """So many connections to a process, which has taken them all: it is at rest again."""
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(connections)]
        if connections > 1:
            until(lambda: cpu_seconds(pid) == _a_moment_later(pid), f"{connections:,} connections to be taken")
        yield clients


def _a_moment_later(pid: int) -> float:
    time.sleep(0.1)
    return cpu_seconds(pid)


@dataclass
class Receiver:
    """A program that takes lines: how many have arrived in Kafka since it began, and what is new there."""

    bench: Bench
    port: int
    pid: int
    arrived: Callable[[], int]
    read: Callable[[], pa.Array]
    expected: Callable[[Lines], pa.Array]
    name: str
    sent: int = 0

    def take(self, lines: Lines, connections: int = 1, at_once: int = 100, *, read: bool = True) -> Figures:
        """Send it those; time and its CPU time until all have arrived, with their contents unless not `read`."""
        self.sent += lines.events
        with connected(self.port, self.pid, connections) as clients:
            brokers, cpu, started = self.bench.broker_cpu(), cpu_seconds(self.pid), time.perf_counter()
            lines.send(clients, at_once)
            until(lambda: self.arrived() >= self.sent, f"all {lines.events:,} events to arrive")
            seconds, cpu = time.perf_counter() - started, cpu_seconds(self.pid) - cpu
            brokers = self.bench.broker_cpu() - brokers
        if read:
            same(self.read(), self.expected(lines), self.name)
        used = {CPU: cpu / lines.events * 1e6, BROKERS: brokers / lines.events * 1e6}
        return {RATE: lines.events / seconds, **used}


@contextlib.contextmanager
def taking(
    receiver: AbstractContextManager[Receiver], lines: Lines, connections: int = 1, at_once: int = 100
) -> Iterator[Callable[[], Figures]]:
    """The contestant that takes these lines again and again."""
    with receiver as it:
        yield lambda: it.take(lines, connections, at_once)


@contextlib.contextmanager
def ours(bench: Bench, topic: Topic, *options: str) -> Iterator[Receiver]:
    """An agent that parses and masks, with the channel `kafka`; `options` are more lines of its configuration."""

    def headers(batch: Batch) -> None:
        assert batch.header("host").unique().to_pylist() == ["web-1"]
        assert batch.header("Facility").unique().to_pylist() == ["16"]

    text = CONFIGURATION.format(servers=topic.servers, topic=topic.name) + "\n".join(options)
    with RunningAgent(bench.directory("agent"), text) as agent:
        yield Receiver(
            bench,
            agent.port("syslog"),
            agent.process.pid,
            lambda: agent.count("SOURCE.syslog", "EventAcceptedCount"),
            lambda: topic.bodies(headers),
            lambda lines: lines.masked,
            topic.name,
        )
        agent.stop()


@contextlib.contextmanager
def by_rsyslog(bench: Bench, topic: Topic) -> Iterator[Receiver]:
    """imtcp and omkafka: whole lines, neither parsed into columns nor masked."""
    home, port = bench.directory("rsyslog"), free_port()
    input = f'module(load="imtcp" maxSessions="20000")\ninput(type="imtcp" port="{port}" ruleset="to-kafka")'
    with rsyslog(home, topic.servers, topic.name, input=input, template="%rawmsg%") as pid:
        listening(port)
        yield _of_lines(bench, port, pid, topic)


@contextlib.contextmanager
def by_syslog_ng(bench: Bench, topic: Topic) -> Iterator[Receiver]:
    """Its network source without parsing, and its Kafka destination: whole lines."""
    home, port = bench.directory("syslog-ng"), free_port()
    source = (
        f"source s {{ network(ip(127.0.0.1) port({port}) transport(tcp) flags(no-parse) "
        "max-connections(20000) log-iw-size(2000000) log-fetch-limit(1000)); };"
    )
    with syslog_ng(home, topic.servers, topic.name, source=source, template="${MESSAGE}") as pid:
        listening(port)
        yield _of_lines(bench, port, pid, topic)


@contextlib.contextmanager
def by_flume(bench: Bench, topic: Topic, more: str = "") -> Iterator[Receiver]:
    """Its source for several ports, with batches of 1,000 events, and its KafkaChannel: parsed, not masked.

    `more` are more lines of its configuration.
    """
    home, port = bench.directory("flume"), free_port()
    text = FLUME_CONFIGURATION.format(port=port, servers=topic.servers, topic=topic.name)
    with flume(home, text + more) as pid:
        listening(port)
        yield Receiver(bench, port, pid, topic.records_ever, topic.bodies, lambda lines: lines.bodies, topic.name)


def _of_lines(bench: Bench, port: int, pid: int, topic: Topic) -> Receiver:
    return Receiver(bench, port, pid, topic.records_ever, topic.values, lambda lines: lines.whole, topic.name)
