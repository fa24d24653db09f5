"""Curves of cost as work grows: rate, connections, files, partitions, and names of headers.

Each measure is a point of a curve, with a name such as `syslog by connections: 1,000`. Peers are rsyslog and Flume
where they can do the same. CPU time and memory are of the whole process tree, idle times included.

- `syslog by events a second`: CPU time for an event at a steady rate.
- `syslog by connections`: memory with open connections, each of which has sent a line.
- `taildir by files`: time until a line of each file is stored, memory then, and time of a restart until a new line of
  one file is stored.
- `http by names of headers`: CPU time for an event whose header names occur in no other event, beside events that all
  have the same names.
- `Kafka channel by partitions`: time from the start of a process until its sink has delivered the first event.
"""

from __future__ import annotations

import contextlib
import functools
import http.client
import json
import os
import resource
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import pyarrow as pa

from bench.frame import BROKERS, CPU, Bench, Figures, PeerMissing, without_setup
from bench.frame.kafka import Topic, assert_equal_bodies
from bench.frame.peers import FLUME, RSYSLOG, flume, rsyslog
from bench.frame.plot import FULL_SPEED
from bench.frame.processes import cpu_seconds, resident_bytes, wait_for_listener
from bench.frame.syslog import CONFIGURATION as SYSLOG
from bench.frame.syslog import FLUME_CONFIGURATION as FLUME_SYSLOG
from bench.frame.syslog import Lines, Receiver, by_flume, by_rsyslog, ours
from bench.memory import MIB
from bench.sizing import send
from bench.taildir import CONFIGURATION as TAILDIR
from bench.taildir import FLUME_CONFIGURATION as FLUME_TAILDIR
from flafka.agent.services import ServiceError
from flafka.agent.services.running import WAIT_TIMEOUT_SECONDS, RunningAgent, until
from tests.fixtures.ports import free_port

RATES = {1: 10.0, 10: 5.0, 100: 4.0, 1_000: 3.0, 10_000: 3.0, 100_000: 3.0}
"""Events per second → seconds."""
FLUME_RATE = 10_000
"""Highest rate of Flume, which has less than 100,000 events per second at full speed."""
SETTLING_SECONDS = 0.2
"""Minimum time from the last line of a steady rate until all its work is done."""
CONNECTIONS = (1, 1_000, 2_500, 5_000, 10_000)
FILES = (1, 1_000, 5_000, 10_000, 20_000, 50_000)
PARTITIONS = (1, 60, 250, 500)
HEADER_NAMES = (1, 16, 32, 64, 96, 128)
HEADERS_PER_RUN, MAX_EVENTS_PER_RUN = 200_000, 20_000
"""Limits of the work of a run with headers."""
EVENTS_PER_REQUEST = 500
MAX_ROUNDS = 2
"""Largest number of rounds of short measures. Long ones have one round."""
PEER_TIMEOUT_SECONDS = 15.0
"""Longest time that a peer gets for a start."""
RECEIVER_TIMEOUT_SECONDS = 60.0
"""Longest time from the last line until all are stored. A peer that takes longer is left out from then on."""
SAME_NAMES = "the same names in every event"
HTTP = """
a.sources = http
a.channels = kafka
a.sinks = files
a.sources.http.type = http
a.sources.http.bind = 127.0.0.1
a.sources.http.port = 0
a.sources.http.channels = kafka
a.channels.kafka.type = kafka
a.channels.kafka.kafka.bootstrap.servers = {servers}
a.channels.kafka.kafka.topic = {topic}
a.sinks.files.type = file_roll
a.sinks.files.channel = kafka
a.sinks.files.sink.directory = {home}
a.sinks.files.sink.serializer = HEADER_AND_TEXT
"""
FILE_SINK = """
{agent}.sinks = files
{agent}.sinks.files.type = file_roll
{agent}.sinks.files.channel = kafka
{agent}.sinks.files.sink.directory = {directory}
{agent}.channels.kafka.kafka.consumer.group.id = {topic}
"""
Counting = AbstractContextManager[tuple[int, Callable[[], int]]]
"""Running process: its PID, and a function that returns the number of lines that it has stored."""


def run(bench: Bench) -> None:
    """Measure all curves."""
    compare_rates(bench)
    compare_connections(bench)
    compare_files(bench)
    compare_header_names(bench)
    compare_partitions(bench)  # last, as many partitions slow the brokers down


def points(bench: Bench, numbers: Sequence[int]) -> Sequence[int]:
    """Return the numbers to measure: the second one in a smoke run."""
    return numbers[1:2] if bench.smoke else numbers


# --- receivers of syslog: CPU time by rate, memory by connections


class _Receivers:
    """An agent, rsyslog and Flume that receive syslog, each started at its first use."""

    def __init__(self, bench: Bench, stack: contextlib.ExitStack, name: str) -> None:
        self._bench = bench
        kinds = {"ours": ours, RSYSLOG: by_rsyslog, FLUME: by_flume}

        def start(receiver: Callable[[Bench, Topic], AbstractContextManager[Receiver]], topic: Topic) -> Receiver:
            return stack.enter_context(receiver(bench, topic))

        self._start = {
            kind: functools.cache(partial(start, receiver, Topic(bench.kafka.bootstrap_servers, f"{name}-{number}")))
            for number, (kind, receiver) in enumerate(kinds.items())
        }

    def compare(
        self,
        measure: str,
        take: Callable[[Receiver], Figures],
        *without: str,
        rounds: int = 1,
        warm_up_rounds: int = 0,
    ) -> None:
        """Compare what `take` returns for each receiver, except those named in `without`."""

        def once(kind: str) -> Figures:
            return take(self._start[kind]())

        def limited(kind: str) -> Figures:
            try:
                return once(kind)
            except ServiceError as e:
                del self._start[kind]  # the rest of its events may come during the next point
                raise PeerMissing(str(e).partition("\n")[0]) from None

        peers = [kind for kind in self._start if kind not in ("ours", *without)]
        self._bench.compare(
            measure,
            without_setup(lambda: once("ours")),
            {kind: without_setup(partial(limited, kind)) for kind in peers},
            rounds=rounds,
            warm_up_rounds=warm_up_rounds,
        )


def compare_rates(bench: Bench) -> None:
    """Compare CPU time for an event by rate. Full speed comes first, so that all programs are warm."""
    rounds = min(bench.rounds, MAX_ROUNDS)
    lines = Lines(bench, bench.events(500_000, 5_000))
    with contextlib.ExitStack() as stack:
        receivers = _Receivers(bench, stack, "rates")
        receivers.compare(
            f"syslog by events a second: {FULL_SPEED}",
            lambda receiver: receiver.take(lines),
            rounds=rounds,
            warm_up_rounds=1,
        )
        for rate, seconds in {100: 1.0}.items() if bench.smoke else RATES.items():
            receivers.compare(
                f"syslog by events a second: {rate:,}",
                partial(take_steadily, lines=Lines(bench, int(rate * seconds)), rate=rate),
                *([FLUME] if rate > FLUME_RATE else []),
                rounds=rounds,
            )


def take_steadily(receiver: Receiver, lines: Lines, rate: int) -> Figures:
    """Send lines at a rate; return µs of CPU per event of the program and of the brokers, and verify contents.

    Nobody asks the program for its progress before the CPU times are read, as an answer costs as much as an event.
    """
    receiver.sent += lines.events
    brokers, cpu = receiver.bench.broker_cpu(), cpu_seconds(receiver.pid)

    def figures() -> Figures:
        used = {CPU: cpu_seconds(receiver.pid) - cpu, BROKERS: receiver.bench.broker_cpu() - brokers}
        return {unit: seconds / lines.events * 1e6 for unit, seconds in used.items()}

    send(receiver.port, lines, rate)
    time.sleep(max(SETTLING_SECONDS, 1 / rate))
    result = figures()
    if receiver.arrived() < receiver.sent:
        wait_for_all(receiver)
        result = figures()
    receiver.check(lines)
    return result


def wait_for_all(receiver: Receiver) -> None:
    """Block until all events that were sent are stored. Raises ServiceError after a minute."""
    until(
        lambda: receiver.arrived() >= receiver.sent, f"{receiver.sent:,} events to arrive", RECEIVER_TIMEOUT_SECONDS
    )


def compare_connections(bench: Bench) -> None:
    """Compare memory by number of connections."""
    with contextlib.ExitStack() as stack:
        receivers = _Receivers(bench, stack, "memory")
        for count in points(bench, CONNECTIONS):
            take = partial(memory_with_connections, lines=Lines(bench, count))
            receivers.compare(f"syslog by connections: {count:,}", take)


def memory_with_connections(receiver: Receiver, lines: Lines) -> Figures:
    """Return the memory while as many connections as lines are open, and the line of each is stored."""
    receiver.sent += lines.events
    with lines.sender(receiver.port, lines.events, 1) as send_lines:
        send_lines()
        wait_for_all(receiver)
        figures = {MIB: resident_bytes(receiver.pid) / 2**20}
    receiver.check(lines)
    return figures


# --- files: start, memory, restart


def compare_files(bench: Bench) -> None:
    """Compare start, memory and restart by number of files."""
    for count in points(bench, FILES):
        lines = Lines(bench, count + 1)
        bench.compare(
            f"taildir by files: {count:,}",
            without_setup(partial(start_with_files, bench, lines, _agent, Topic.bodies)),
            {
                RSYSLOG: without_setup(partial(_limited, bench, lines, _rsyslog, Topic.values)),
                FLUME: without_setup(partial(_limited, bench, lines, _flume, Topic.bodies)),
            },
            rounds=1,
            warm_up_rounds=0,
        )


def start_with_files(
    bench: Bench,
    lines: Lines,
    start: Callable[[Path, Topic], Counting],
    read: Callable[[Topic], pa.Array],
    timeout: float = WAIT_TIMEOUT_SECONDS,
) -> Figures:
    """Return the times of a start with a line in each file, and of a restart with one new line, and the memory.

    The last one of the lines is the new one. Raises ServiceError after `timeout` seconds.
    """
    home, count = bench.directory("files"), lines.events - 1
    topic = Topic(bench.kafka.bootstrap_servers, home.name)
    (home / "files").mkdir()
    for number in range(count):
        (home / "files" / f"{number}.log").write_bytes(lines.block(number, number + 1))

    def run_until_stored(expected: pa.Array, event: str) -> Figures:
        started = time.perf_counter()
        with start(home, topic) as (pid, stored):
            until(lambda: stored() >= len(expected), f"{event} with {count:,} files", timeout)
            seconds = time.perf_counter() - started
            figures = {
                f"s to {event}": seconds,
                f"s CPU to {event}": cpu_seconds(pid),
                MIB: resident_bytes(pid) / 2**20,
            }
        assert_equal_bodies(read(topic), expected, topic.name)
        return figures

    first = run_until_stored(lines.lines.slice(0, count), "start")
    with (home / "files" / "0.log").open("ab") as file:
        file.write(lines.block(count, count + 1))
    return {**run_until_stored(lines.lines.slice(count), "restart"), **first}


def _limited(
    bench: Bench, lines: Lines, start: Callable[[Path, Topic], Counting], read: Callable[[Topic], pa.Array]
) -> Figures:
    """Return the figures of a peer. Raises PeerMissing if one of both starts takes too long, or it fails."""
    try:
        return start_with_files(bench, lines, start, read, PEER_TIMEOUT_SECONDS)
    except ServiceError as e:
        raise PeerMissing(str(e).partition("\n")[0]) from None


@contextlib.contextmanager
def _agent(home: Path, topic: Topic) -> Iterator[tuple[int, Callable[[], int]]]:
    text = TAILDIR.format(home=home, directory=home / "files", servers=topic.servers, topic=topic.name)
    with RunningAgent(home, text) as agent:
        yield agent.process.pid, lambda: agent.count("SOURCE.files", "EventAcceptedCount")
        agent.stop()


@contextlib.contextmanager
def _rsyslog(home: Path, topic: Topic) -> Iterator[tuple[int, Callable[[], int]]]:
    _require_descriptors(home, 2)
    input = (
        f'module(load="imfile" mode="inotify")\n'
        f'input(type="imfile" file="{home}/files/*" tag="x" ruleset="to-kafka" readTimeout="0")'
    )
    with rsyslog(home, topic.servers, topic.name, input=input, template="%msg%") as pid:
        yield pid, topic.records


@contextlib.contextmanager
def _flume(home: Path, topic: Topic) -> Iterator[tuple[int, Callable[[], int]]]:
    _require_descriptors(home, 1)
    text = FLUME_TAILDIR.format(home=home, directory=home / "files", servers=topic.servers, topic=topic.name)
    with flume(home, text) as pid:
        yield pid, topic.records
        os.kill(pid, signal.SIGTERM)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # it writes its positions


def _require_descriptors(home: Path, per_file: int) -> None:
    """Raise PeerMissing if a program that keeps all files open would need more descriptors than it may have."""
    files, limit = len(list((home / "files").iterdir())), resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if per_file * files + 100 > limit:
        raise PeerMissing(f"{per_file} descriptors for each of {files:,} files are more than the limit {limit:,}")


# --- names of headers


def compare_header_names(bench: Bench) -> None:
    """Compare events whose header names differ with events that have the same names, by names of an event."""
    home = bench.directory("http")
    topic = Topic(bench.kafka.bootstrap_servers, home.name)
    (home / "out").mkdir()
    with contextlib.ExitStack() as stack:

        @functools.cache
        def agent() -> RunningAgent:
            text = HTTP.format(servers=topic.servers, topic=topic.name, home=home / "out")
            return stack.enter_context(RunningAgent(home, text))

        for count in points(bench, HEADER_NAMES):
            events = 10 if bench.smoke else min(MAX_EVENTS_PER_RUN, HEADERS_PER_RUN // count)
            differing, same = (
                {
                    f"id={number:09d}": {f"name-{number if differs else 0}-{name}": "value" for name in range(count)}
                    for number in range(events)
                }
                for differs in (True, False)
            )
            bench.compare(
                f"http by names of headers: {count}",
                without_setup(partial(post, agent, topic, differing)),
                {SAME_NAMES: without_setup(partial(post, agent, topic, same))},
                rounds=min(bench.rounds, MAX_ROUNDS),
            )


def post(
    running: Callable[[], RunningAgent], topic: Topic, headers_by_body: Mapping[str, Mapping[str, str]]
) -> Figures:
    """Post events to the source `http`; return the µs of CPU per event until the sink has delivered all of them."""
    agent, events = running(), [{"headers": headers, "body": body} for body, headers in headers_by_body.items()]
    port = agent.port("http")
    requests = [
        json.dumps(events[start : start + EVENTS_PER_REQUEST]) for start in range(0, len(events), EVENTS_PER_REQUEST)
    ]
    before, cpu = agent.count("SINK.files", "EventDrainSuccessCount"), cpu_seconds(agent.process.pid)
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        for request in requests:
            connection.request("POST", "/", request, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            assert answer.status == 200, answer.read()
            answer.read()
    agent.until(
        lambda: agent.count("SINK.files", "EventDrainSuccessCount") >= before + len(events), "all to be delivered"
    )
    cpu = cpu_seconds(agent.process.pid) - cpu
    stored = {event.body.decode(): event.headers for batch in topic.batches() for event in batch}
    assert stored == headers_by_body, f"{topic.name}: contents differ"
    return {CPU: cpu / len(events) * 1e6}


# --- partitions


def compare_partitions(bench: Bench) -> None:
    """Compare time until the first event is delivered by number of partitions."""
    for count in points(bench, PARTITIONS):
        bench.compare(
            f"Kafka channel by partitions: {count}",
            without_setup(partial(start_with_partitions, bench, count, _deliver)),
            {FLUME: without_setup(partial(start_with_partitions, bench, count, _deliver_by_flume))},
            rounds=1,
            warm_up_rounds=0,
        )


def start_with_partitions(
    bench: Bench, partitions: int, start: Callable[[Path, Topic, int], AbstractContextManager[int]]
) -> Figures:
    """Return the time from the start of a process until an event is in a file of its sink."""
    home, port = bench.directory("partitions"), free_port()
    topic = Topic(bench.kafka.bootstrap_servers, home.name, partitions)
    (home / "out").mkdir()
    started = time.perf_counter()
    with start(home, topic, port) as pid:
        wait_for_listener(port)
        figures = {"s to listen": time.perf_counter() - started}
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(b"<134>Nov 29 12:00:00 web-1 app: the first\n")
        until(lambda: any(b"the first" in file.read_bytes() for file in (home / "out").iterdir()), "the first event")
        figures |= {"s to deliver": time.perf_counter() - started, "s CPU to deliver": cpu_seconds(pid)}
    return figures


@contextlib.contextmanager
def _deliver(home: Path, topic: Topic, port: int) -> Iterator[int]:
    text = SYSLOG.replace("syslog.port = 0", f"syslog.port = {port}") + FILE_SINK
    text = text.format(servers=topic.servers, topic=topic.name, agent="a", directory=home / "out")
    with RunningAgent(home, text) as agent:
        yield agent.process.pid
        agent.stop()


def _deliver_by_flume(home: Path, topic: Topic, port: int) -> AbstractContextManager[int]:
    # By default a new group begins at the end, and an event that comes before the first assignment is lost.
    text = FLUME_SYSLOG + FILE_SINK + "a1.channels.kafka.kafka.consumer.auto.offset.reset = earliest\n"
    return flume(
        home, text.format(port=port, servers=topic.servers, topic=topic.name, agent="a1", directory=home / "out")
    )
