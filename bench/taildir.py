"""Lines of a file into the replicated channel, beside rsyslog's imfile and Flume's TAILDIR.

Every round starts the program anew and has it read the same files from their beginning, so that figures include the
start. Time runs from the start of the process until all in-sync replicas have the last line.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import pyarrow as pa

from agent.services.running import RunningAgent, until
from bench.frame import CPU, RATE, Bench, Figures, Missing, simply
from bench.frame.kafka import Topic, same
from bench.frame.peers import FLUME, FLUME_TUNED, RSYSLOG, TUNED, flume, rsyslog
from bench.frame.processes import cpu_seconds
from bench.frame.syslog import Lines

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
    home = bench.directory("agent")
    text = CONFIGURATION.format(home=home, directory=directory, servers=topic.servers, topic=topic.name)
    started = time.perf_counter()
    with RunningAgent(home, text) as agent:

        def arrived() -> bool:
            return agent.count("SOURCE.files", "EventAcceptedCount") >= lines.events

        return _measured(lines, started, agent.process.pid, arrived, topic.bodies, topic.name)


def by_rsyslog(bench: Bench, lines: Lines, directory: Path, topic: Topic) -> Figures:
    """imfile and omkafka."""
    files, limit = len(list(directory.iterdir())), resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if 2 * files + 100 > limit:
        raise Missing(f"it keeps two descriptors for each of {files:,} files, and may have {limit:,}")
    input = (
        f'module(load="imfile" mode="inotify")\n'
        f'input(type="imfile" file="{directory}/*" tag="x" ruleset="to-kafka" readTimeout="0")'
    )
    with_it = rsyslog(bench.directory("rsyslog"), topic.servers, topic.name, input=input, template="%msg%")
    return _by_peer(lines, topic, with_it, topic.values)


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
