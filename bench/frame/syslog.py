"""Receivers that store syslog over TCP in Kafka, and the lines for them."""

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
from bench.frame.kafka import Topic, assert_equal_bodies
from bench.frame.peers import flume, rsyslog, syslog_ng
from bench.frame.processes import cpu_seconds, wait_for_listener
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
    """File of numbered lines, written beforehand: formatting them would take a core from the measured program.

    `fillings`, all of one length, alternate in lengthening the lines.
    """

    def __init__(self, bench: Bench, events: int, fillings: Sequence[bytes] = (b"",)) -> None:
        self._bench, self.events, self._fillings = bench, events, fillings
        self.path = bench.directory("lines") / "lines"
        # The current time: omkafka passes it to Kafka as the timestamp of the record, which retention uses.
        lines = self._numbered(LINE, time.strftime("%b %e %H:%M:%S").encode())
        self.path.write_bytes(b"".join(line + b"\n" for line in lines))
        self.line_bytes = len(lines[0]) + 1
        """Size of each line with its newline, in bytes."""
        self.lines = pa.array(lines)

    def fewer(self, share: int) -> Lines:
        """Return a new file with a `share`-th of the lines, at least one, for slow peers."""
        return Lines(self._bench, max(1, self.events // share), self._fillings)

    def _numbered(self, pattern: bytes, first: bytes) -> list[bytes]:
        """Return a text for each event from a pattern: with `first`, a filling and the event's number."""
        patterns = [pattern % (first, filling) for filling in self._fillings]
        return [patterns[number % len(patterns)] % number for number in range(self.events)]

    @functools.cached_property
    def masked(self) -> pa.Array:
        """Expected bodies, parsed and masked."""
        return pa.array(self._numbered(BODY, b"***"))

    @functools.cached_property
    def bodies(self) -> pa.Array:
        """Expected bodies, parsed."""
        return pa.array(self._numbered(BODY, b"10.1.2.3"))

    def send(self, clients: Sequence[socket.socket], at_once: int = 100) -> None:
        """Send all lines over these connections, each line once.

        Several connections take turns of up to `at_once` lines.
        """
        if len(clients) == 1:
            with self.path.open("rb") as file:
                clients[0].sendfile(file)
            return
        data, size = self.path.read_bytes(), self.line_bytes
        piece = max(1, min(at_once, self.events // len(clients)))
        for number, start in enumerate(range(0, self.events, piece)):
            clients[number % len(clients)].sendall(data[start * size : (start + piece) * size])


@contextlib.contextmanager
def connect(port: int, pid: int, connections: int) -> Iterator[list[socket.socket]]:
    """Open connections to a port of this machine; yield the sockets, and close them at the end.

    With several connections, wait until the process `pid` has accepted them: it uses no CPU time for 0.1 s.
    """
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(connections)]
        if connections > 1:
            until(lambda: cpu_seconds(pid) == _cpu_seconds_later(pid), f"{connections:,} connections to be taken")
        yield clients


def _cpu_seconds_later(pid: int) -> float:
    """Return the CPU time of a process, in seconds, 0.1 s from now."""
    time.sleep(0.1)
    return cpu_seconds(pid)


@dataclass
class Receiver:
    """Program that receives lines, with functions that count and read the events it has stored in Kafka."""

    bench: Bench
    port: int
    pid: int
    arrived: Callable[[], int]
    read: Callable[[], pa.Array]
    expected: Callable[[Lines], pa.Array]
    name: str
    sent: int = 0

    def take(self, lines: Lines, connections: int = 1, at_once: int = 100, *, read: bool = True) -> Figures:
        """Send lines and wait until all are stored; return events/s, and µs of CPU per event of program and brokers.

        With `read`, assert that the stored contents are as expected.
        """
        self.sent += lines.events
        with connect(self.port, self.pid, connections) as clients:
            brokers, cpu, started = self.bench.broker_cpu(), cpu_seconds(self.pid), time.perf_counter()
            lines.send(clients, at_once)
            until(lambda: self.arrived() >= self.sent, f"all {lines.events:,} events to arrive")
            seconds, cpu = time.perf_counter() - started, cpu_seconds(self.pid) - cpu
            brokers = self.bench.broker_cpu() - brokers
        if read:
            assert_equal_bodies(self.read(), self.expected(lines), self.name)
        used = {CPU: cpu / lines.events * 1e6, BROKERS: brokers / lines.events * 1e6}
        return {RATE: lines.events / seconds, **used}


@contextlib.contextmanager
def syslog_contestant(
    receiver: AbstractContextManager[Receiver], lines: Lines, connections: int = 1, at_once: int = 100
) -> Iterator[Callable[[], Figures]]:
    """Yield a contestant that receives these lines once per round."""
    with receiver as running:
        yield lambda: running.take(lines, connections, at_once)


@contextlib.contextmanager
def ours(bench: Bench, topic: Topic, *options: str) -> Iterator[Receiver]:
    """Yield an agent that parses and masks syslog, with the channel `kafka`; stop it at the end.

    `options`: more lines of its configuration.
    """

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
    """Yield rsyslog with imtcp and omkafka: complete lines, neither parsed into columns nor masked."""
    home, port = bench.directory("rsyslog"), free_port()
    input = f'module(load="imtcp" maxSessions="20000")\ninput(type="imtcp" port="{port}" ruleset="to-kafka")'
    with rsyslog(home, topic.servers, topic.name, input=input, template="%rawmsg%") as pid:
        wait_for_listener(port)
        yield _line_receiver(bench, port, pid, topic)


@contextlib.contextmanager
def by_syslog_ng(bench: Bench, topic: Topic) -> Iterator[Receiver]:
    """Yield syslog-ng with its network source, without parsing, and its Kafka destination: complete lines."""
    home, port = bench.directory("syslog-ng"), free_port()
    source = (
        f"source s {{ network(ip(127.0.0.1) port({port}) transport(tcp) flags(no-parse) "
        "max-connections(20000) log-iw-size(2000000) log-fetch-limit(1000)); };"
    )
    with syslog_ng(home, topic.servers, topic.name, source=source, template="${MESSAGE}") as pid:
        wait_for_listener(port)
        yield _line_receiver(bench, port, pid, topic)


@contextlib.contextmanager
def by_flume(bench: Bench, topic: Topic, extra_lines: str = "") -> Iterator[Receiver]:
    """Yield Flume with its multiport source, batches of 1,000 events, and its KafkaChannel: parsed, not masked.

    `extra_lines`: more lines of its configuration.
    """
    home, port = bench.directory("flume"), free_port()
    text = FLUME_CONFIGURATION.format(port=port, servers=topic.servers, topic=topic.name)
    with flume(home, text + extra_lines) as pid:
        wait_for_listener(port)
        yield Receiver(bench, port, pid, topic.total_records, topic.bodies, lambda lines: lines.bodies, topic.name)


def _line_receiver(bench: Bench, port: int, pid: int, topic: Topic) -> Receiver:
    """Return a receiver that stores each complete line as one record."""
    return Receiver(bench, port, pid, topic.total_records, topic.values, lambda lines: lines.lines, topic.name)
