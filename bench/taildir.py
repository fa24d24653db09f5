"""Lines of a file into the replicated channel, beside rsyslog's imfile and Flume's TAILDIR.

Every round starts the program anew and has it read the same files from their beginning, so that figures include the
start. Time runs from the start of the process until all in-sync replicas have the last line.
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

from bench.frame import CPU, RATE, Bench, Figures, Missing, simply
from bench.frame.kafka import Topic, same
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
    """One comparison."""
    lines = Lines(bench, bench.events(5_000_000, 20_000))
    compare(bench, "files to Kafka channel, from the start", lines, lines.path.parent, tuned=True)


def compare(bench: Bench, measure: str, lines: Lines, directory: Path, *, tuned: bool = False) -> None:
    """These lines, which are all that the files in the directory have; `tuned` adds Flume with a tuned producer."""
    contestants: dict[str, Callable[[Bench, Lines, Path, Topic], Figures]] = {RSYSLOG: by_rsyslog, FLUME: by_flume}
    if tuned:
        contestants[FLUME_TUNED] = partial(by_flume, more=TUNED)

    def topic(who: str) -> Topic:
        return Topic(bench.kafka.bootstrap_servers, f"{directory.name}-{who}")

    bench.compare(
        measure,
        simply(partial(ours, bench, lines, directory, topic("ours"))),
        {
            name: simply(partial(contestant, bench, lines, directory, topic(str(number))))
            for number, (name, contestant) in enumerate(contestants.items())
        },
        warm=0,
    )


def ours(bench: Bench, lines: Lines, directory: Path, topic: Topic) -> Figures:
    """An agent with the source `taildir`."""
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
    """imfile and omkafka."""
    return _by_peer(lines, topic, _rsyslog(bench, directory, topic), topic.values)


def _rsyslog(bench: Bench, directory: Path, topic: Topic) -> AbstractContextManager[int]:
    files, limit = len(list(directory.iterdir())), resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if 2 * files + 100 > limit:
        raise Missing(f"it keeps two descriptors for each of {files:,} files, and may have {limit:,}")
    input = (
        f'module(load="imfile" mode="inotify")\n'
        f'input(type="imfile" file="{directory}/*" tag="x" ruleset="to-kafka" readTimeout="0")'
    )
    return rsyslog(bench.directory("rsyslog"), topic.servers, topic.name, input=input, template="%msg%")


def by_flume(bench: Bench, lines: Lines, directory: Path, topic: Topic, more: str = "") -> Figures:
    """TAILDIR and KafkaChannel; `more` are more lines of the configuration."""
    home = bench.directory("flume")
    text = FLUME_CONFIGURATION.format(home=home, directory=directory, servers=topic.servers, topic=topic.name)
    return _by_peer(lines, topic, flume(home, text + more), topic.bodies)


def _by_peer(lines: Lines, topic: Topic, peer: AbstractContextManager[int], read: Callable[[], pa.Array]) -> Figures:
    started = time.perf_counter()
    with peer as pid:
        return _measured(lines, started, pid, lambda: topic.records() >= lines.events, read, topic.name)


def _measured(
    lines: Lines, started: float, pid: int, arrived: Callable[[], bool], read: Callable[[], pa.Array], name: str
) -> Figures:
    until(arrived, f"all {lines.events:,} lines to arrive")
    seconds, cpu = time.perf_counter() - started, cpu_seconds(pid)
    same(read(), lines.whole, name)
    return {RATE: lines.events / seconds, CPU: cpu / lines.events * 1e6}


Written = Callable[[Path, Lines], None]
"""Writes these lines into files of a directory."""


def growing(bench: Bench, measure: str, lines: Lines, files: int, rate: int) -> None:
    """So many files that are followed grow by these lines, a line at a time and so many lines a second."""

    def write(directory: Path, lines: Lines) -> None:
        began = time.perf_counter()
        with contextlib.ExitStack() as stack:
            logs = [stack.enter_context(path.open("ab", buffering=0)) for path in directory.iterdir()]
            written = stack.enter_context(lines.path.open("rb"))
            for number, (log, line) in enumerate(zip(itertools.cycle(logs), written, strict=False)):
                log.write(line)
                if not number % 100:
                    time.sleep(max(0.0, began + number / rate - time.perf_counter()))

    _followed(bench, measure, lines, files, write)


def arriving(bench: Bench, measure: str, lines: Lines, files: int, rate: int, length: int) -> None:
    """Beside so many files that are followed come new ones, so many a second, with so many lines each."""

    def write(directory: Path, lines: Lines) -> None:
        began, there = time.perf_counter(), len(list(directory.iterdir()))
        with lines.path.open("rb") as written:
            for number in itertools.count():
                if not (content := b"".join(itertools.islice(written, length))):
                    return
                (directory / f"{there + number}.log").write_bytes(content)
                time.sleep(max(0.0, began + number / rate - time.perf_counter()))

    _followed(bench, measure, lines, files, write)


def _followed(bench: Bench, measure: str, lines: Lines, files: int, write: Written) -> None:
    """What a line costs that is written while so many files are followed, beside rsyslog."""

    @contextlib.contextmanager
    def by_agent() -> Iterator[Callable[[], Figures]]:
        directory, topic = empty("ours")
        with _agent(bench, directory, topic) as agent:
            yield lambda: once(directory, agent.process.pid, partial(_accepted, agent), topic.bodies)

    @contextlib.contextmanager
    def by_rsyslog() -> Iterator[Callable[[], Figures]]:
        directory, topic = empty("rsyslog")
        with _rsyslog(bench, directory, topic) as pid:
            yield lambda: once(directory, pid, topic.records_ever, topic.values)

    def empty(who: str) -> tuple[Path, Topic]:
        directory = bench.directory(f"followed-{who}")
        for number in range(files):
            (directory / f"{number}.log").touch()
        return directory, Topic(bench.kafka.bootstrap_servers, directory.name)

    def once(directory: Path, pid: int, arrived: Callable[[], int], read: Callable[[], pa.Array]) -> Figures:
        before, cpu = arrived(), cpu_seconds(pid)
        write(directory, lines)
        until(lambda: arrived() - before >= lines.events, f"all {lines.events:,} lines to arrive")
        cpu = cpu_seconds(pid) - cpu
        same(read(), lines.whole, measure)
        return {CPU: cpu / lines.events * 1e6}

    bench.compare(measure, by_agent(), {RSYSLOG: by_rsyslog()})
