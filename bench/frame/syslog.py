"""Receivers that store syslog over TCP in Kafka, and the lines for them."""

from __future__ import annotations

import contextlib
import functools
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bench.frame import BROKERS, CPU, RATE, Bench, Figures
from bench.frame.kafka import Topic
from bench.frame.peers import flume, rsyslog, syslog_ng
from bench.frame.processes import cpu_seconds, wait_for_listener
from bench.frame.varied import RFC3164, Events, Population
from flafka.agent.services.running import RunningAgent, until
from tests.fixtures.ports import free_port

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
    """File of syslog lines, written beforehand: making them would take a core from the measured program.

    Each line ends with `id=` and its number. `fillings`, which alternate, lengthen the lines in front of that.
    `population` is varied by default; `form` is `RFC3164` or `RFC5424`.
    """

    def __init__(
        self,
        bench: Bench,
        events: int,
        fillings: Sequence[bytes] = (b"",),
        *,
        population: Population | None = None,
        form: str = RFC3164,
    ) -> None:
        self._bench, self.events, self._fillings, self.form = bench, events, fillings, form
        # Times end with the present: omkafka passes them to Kafka as the timestamps of records, which retention uses.
        self.content = Events(events, fillings, population)
        """Columns of the events."""
        self.lines = self.content.lines(form)
        """Lines without their newlines."""
        self.path = bench.directory("lines") / "lines"
        with_newlines = pc.binary_join_element_wise(self.lines, b"\n", b"")
        self._bounds = np.frombuffer(with_newlines.buffers()[1], np.int32, events + 1)
        self.path.write_bytes(memoryview(with_newlines.buffers()[2])[: self._bounds[-1]])

    def fewer(self, share: int) -> Lines:
        """Return a new file with a `share`-th of the lines, at least one, for slow peers."""
        events = max(1, self.events // share)
        return Lines(self._bench, events, self._fillings, population=self.content.population, form=self.form)

    def block(self, start: int, stop: int) -> memoryview:
        """Return the lines from number `start` to `stop` (exclusive, at most the number of lines), with newlines."""
        return memoryview(self._data)[self._bounds[start] : self._bounds[min(stop, self.events)]]

    @functools.cached_property
    def _data(self) -> bytes:
        return self.path.read_bytes()

    @functools.cached_property
    def masked(self) -> pa.Array:
        """Expected bodies, parsed and masked."""
        return self.content.bodies(self.form, masked=True)

    @functools.cached_property
    def bodies(self) -> pa.Array:
        """Expected bodies, parsed."""
        return self.content.bodies(self.form)

    @functools.cached_property
    def headers(self) -> dict[str, pa.Array]:
        """Expected headers of parsed lines."""
        return self.content.headers(self.form)

    @contextlib.contextmanager
    def sender(self, port: int, *arguments: object) -> Iterator[Callable[[], None]]:
        """Connect a process of `bench/frame/sender.py` with these arguments; yield a function that sends all lines.

        The connections are closed at the end of the block.
        """
        command = [sys.executable, "-m", "bench.frame.sender", str(port), str(self.path), *map(str, arguments)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            requests, answers = process.stdin, process.stdout

            def send() -> None:
                requests.write("\n")
                requests.flush()
                assert answers.readline() == "sent\n", "the sender failed"

            try:
                assert answers.readline() == "connected\n", "the sender failed"
                yield send
                requests.close()
                process.wait(60)
            finally:
                process.kill()


def _is_idle(pid: int) -> bool:
    """Return True if a process uses less than a tenth of a core for 0.1 s."""
    before = cpu_seconds(pid)
    time.sleep(0.1)
    return cpu_seconds(pid) - before < 0.01


@dataclass
class Receiver:
    """Program that receives lines, with functions that count and read the events it has stored in Kafka."""

    bench: Bench
    port: int
    pid: int
    arrived: Callable[[], int]
    check: Callable[[Lines], None]
    """Assert that the events stored since the last call are these lines, each once."""
    sent: int = 0

    def take(self, lines: Lines, connections: int = 1, at_once: int = 100, *, read: bool = True) -> Figures:
        """Send lines and wait until all are stored; return events/s, and µs of CPU per event of program and brokers.

        Several connections are accepted before the clock starts: the program is idle for 0.1 s. With `read`,
        assert that the stored contents are as expected.
        """
        self.sent += lines.events
        with lines.sender(self.port, connections, at_once) as send:
            if connections > 1:
                taken = f"{connections:,} connections to be taken"
                until(lambda: _is_idle(self.pid), taken)
            brokers, cpu, started = self.bench.broker_cpu(), cpu_seconds(self.pid), time.perf_counter()
            send()
            until(lambda: self.arrived() >= self.sent, f"all {lines.events:,} events to arrive")
            seconds, cpu = time.perf_counter() - started, cpu_seconds(self.pid) - cpu
            brokers = self.bench.broker_cpu() - brokers
        if read:
            self.check(lines)
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

    text = CONFIGURATION.format(servers=topic.servers, topic=topic.name) + "\n".join(options)
    with RunningAgent(bench.directory("agent"), text) as agent:
        yield Receiver(
            bench,
            agent.port("syslog"),
            agent.process.pid,
            lambda: agent.count("SOURCE.syslog", "EventAcceptedCount"),
            lambda lines: topic.check_events(lines.masked, lines.headers),
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
        yield Receiver(
            bench, port, pid, topic.total_records, lambda lines: topic.check_events(lines.bodies, lines.headers)
        )


def _line_receiver(bench: Bench, port: int, pid: int, topic: Topic) -> Receiver:
    """Return a receiver that stores each complete line as one record."""
    return Receiver(bench, port, pid, topic.total_records, lambda lines: topic.check_values(lines.lines))
