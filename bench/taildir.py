"""Lines of a file into the replicated channel, in comparison with rsyslog's imfile and Flume's TAILDIR.

Every round starts a new process, which reads the same files from their beginning: figures include the start. Time
runs from the start of the process until all in-sync replicas have the last line.
"""

from __future__ import annotations

import contextlib
import itertools
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import pyarrow as pa

from bench.frame import CPU, RATE, Bench, Figures, PeerMissing, without_setup
from bench.frame.kafka import Topic, assert_equal_bodies
from bench.frame.peers import FLUME, FLUME_TUNED, RSYSLOG, TUNED, flume, rsyslog
from bench.frame.processes import cpu_seconds
from bench.frame.syslog import Lines
from flafka.agent.services.running import RunningAgent, until

CONFIGURATION = """
a.sources = files
a.channels = kafka
a.sources.files.type = taildir
a.sources.files.filegroups = all
a.sources.files.filegroups.all = {directory}/.*
a.sources.files.positionFile = {home}/positions.json
a.sources.files.channels = kafka
a.channels.kafka.type = kafka
a.channels.kafka.kafka.bootstrap.servers = {servers}
a.channels.kafka.kafka.topic = {topic}
"""
FLUME_CONFIGURATION = """
a1.sources = files
a1.channels = kafka
a1.sources.files.type = TAILDIR
a1.sources.files.filegroups = all
a1.sources.files.filegroups.all = {directory}/.*
a1.sources.files.positionFile = {home}/positions.json
a1.sources.files.batchSize = 1000
a1.sources.files.channels = kafka
a1.channels.kafka.type = org.apache.flume.channel.kafka.KafkaChannel
a1.channels.kafka.kafka.bootstrap.servers = {servers}
a1.channels.kafka.kafka.topic = {topic}
a1.channels.kafka.kafka.producer.acks = all
"""


def run(bench: Bench) -> None:
    """Compare all contestants on one file."""
    lines = Lines(bench, bench.events(5_000_000, 20_000))
    compare(bench, "files to Kafka channel, from the start", lines, lines.path.parent, tuned=True)


def compare(bench: Bench, measure: str, lines: Lines, directory: Path, *, tuned: bool = False) -> None:
    """Compare all contestants on a directory that holds these lines. `tuned` adds Flume with a tuned producer."""
    contestants: dict[str, Callable[[Bench, Lines, Path, Topic], Figures]] = {RSYSLOG: by_rsyslog, FLUME: by_flume}
    if tuned:
        contestants[FLUME_TUNED] = partial(by_flume, extra_lines=TUNED)

    def topic(contestant: str) -> Topic:
        return Topic(bench.kafka.bootstrap_servers, f"{directory.name}-{contestant}")

    bench.compare(
        measure,
        without_setup(partial(ours, bench, lines, directory, topic("ours"))),
        {
            name: without_setup(partial(contestant, bench, lines, directory, topic(str(number))))
            for number, (name, contestant) in enumerate(contestants.items())
        },
        warm_up_rounds=0,
    )


def ours(bench: Bench, lines: Lines, directory: Path, topic: Topic) -> Figures:
    """Run an agent with the source `taildir`."""
    started = time.perf_counter()
    with _agent(bench, directory, topic) as agent:

        def arrived() -> bool:
            return _accepted(agent) >= lines.events

        return _measured(lines, started, agent.process.pid, arrived, topic.bodies, topic.name)


def _agent(bench: Bench, directory: Path, topic: Topic) -> RunningAgent:
    home = bench.directory("agent")
    text = CONFIGURATION.format(home=home, directory=directory, servers=topic.servers, topic=topic.name)
    return RunningAgent(home, text)


def _accepted(agent: RunningAgent) -> int:
    return agent.count("SOURCE.files", "EventAcceptedCount")


def by_rsyslog(bench: Bench, lines: Lines, directory: Path, topic: Topic) -> Figures:
    """Run rsyslog with imfile and omkafka."""
    return _by_peer(lines, topic, _rsyslog(bench, directory, topic), topic.values)


def _rsyslog(bench: Bench, directory: Path, topic: Topic) -> AbstractContextManager[int]:
    files, limit = len(list(directory.iterdir())), resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if 2 * files + 100 > limit:
        raise PeerMissing(f"rsyslog needs two descriptors for each of {files:,} files, and the limit is {limit:,}")
    input = (
        f'module(load="imfile" mode="inotify")\n'
        f'input(type="imfile" file="{directory}/*" tag="x" ruleset="to-kafka" readTimeout="0")'
    )
    return rsyslog(bench.directory("rsyslog"), topic.servers, topic.name, input=input, template="%msg%")


def by_flume(bench: Bench, lines: Lines, directory: Path, topic: Topic, extra_lines: str = "") -> Figures:
    """Run Flume with TAILDIR and KafkaChannel. `extra_lines`: more lines of its configuration."""
    home = bench.directory("flume")
    text = FLUME_CONFIGURATION.format(home=home, directory=directory, servers=topic.servers, topic=topic.name)
    return _by_peer(lines, topic, flume(home, text + extra_lines), topic.bodies)


def _by_peer(lines: Lines, topic: Topic, peer: AbstractContextManager[int], read: Callable[[], pa.Array]) -> Figures:
    started = time.perf_counter()
    with peer as pid:
        return _measured(lines, started, pid, lambda: topic.records() >= lines.events, read, topic.name)


def _measured(
    lines: Lines, started: float, pid: int, arrived: Callable[[], bool], read: Callable[[], pa.Array], name: str
) -> Figures:
    until(arrived, f"all {lines.events:,} lines to arrive")
    seconds, cpu = time.perf_counter() - started, cpu_seconds(pid)
    assert_equal_bodies(read(), lines.lines, name)
    return {RATE: lines.events / seconds, CPU: cpu / lines.events * 1e6}


LineWriter = Callable[[Path, Lines], None]
"""Function that writes lines into files of a directory."""


def compare_growing_files(bench: Bench, measure: str, lines: Lines, files: int, rate: int) -> None:
    """Compare CPU time while tailed files grow, one line at a time, by `rate` lines per second in total."""

    def write(directory: Path, lines: Lines) -> None:
        started = time.perf_counter()
        with contextlib.ExitStack() as stack:
            logs = [stack.enter_context(path.open("ab", buffering=0)) for path in directory.iterdir()]
            written = stack.enter_context(lines.path.open("rb"))
            for number, (log, line) in enumerate(zip(itertools.cycle(logs), written, strict=False)):
                log.write(line)
                if not number % 100:
                    time.sleep(max(0.0, started + number / rate - time.perf_counter()))

    _compare_tailed_files(bench, measure, lines, files, write)


def compare_new_files(bench: Bench, measure: str, lines: Lines, files: int, rate: int, length: int) -> None:
    """Compare CPU time while `rate` new files per second appear beside tailed ones, with `length` lines each."""

    def write(directory: Path, lines: Lines) -> None:
        started, existing = time.perf_counter(), len(list(directory.iterdir()))
        with lines.path.open("rb") as written:
            for number in itertools.count():
                if not (content := b"".join(itertools.islice(written, length))):
                    return
                (directory / f"{existing + number}.log").write_bytes(content)
                time.sleep(max(0.0, started + number / rate - time.perf_counter()))

    _compare_tailed_files(bench, measure, lines, files, write)


def _compare_tailed_files(bench: Bench, measure: str, lines: Lines, files: int, write: LineWriter) -> None:
    """Compare the CPU time per line while `files` files are tailed, with rsyslog."""

    @contextlib.contextmanager
    def by_agent() -> Iterator[Callable[[], Figures]]:
        directory, topic = empty("ours")
        with _agent(bench, directory, topic) as agent:
            yield lambda: once(directory, agent.process.pid, partial(_accepted, agent), topic.bodies)

    @contextlib.contextmanager
    def by_rsyslog() -> Iterator[Callable[[], Figures]]:
        directory, topic = empty("rsyslog")
        with _rsyslog(bench, directory, topic) as pid:
            yield lambda: once(directory, pid, topic.total_records, topic.values)

    def empty(contestant: str) -> tuple[Path, Topic]:
        directory = bench.directory(f"followed-{contestant}")
        for number in range(files):
            (directory / f"{number}.log").touch()
        return directory, Topic(bench.kafka.bootstrap_servers, directory.name)

    def once(directory: Path, pid: int, arrived: Callable[[], int], read: Callable[[], pa.Array]) -> Figures:
        before, cpu = arrived(), cpu_seconds(pid)
        write(directory, lines)
        until(lambda: arrived() - before >= lines.events, f"all {lines.events:,} lines to arrive")
        cpu = cpu_seconds(pid) - cpu
        assert_equal_bodies(read(), lines.lines, measure)
        return {CPU: cpu / lines.events * 1e6}

    bench.compare(measure, by_agent(), {RSYSLOG: by_rsyslog()})
