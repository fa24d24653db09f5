"""Start of an agent with a Kafka channel, in comparison with Flume, and `agent check` of 60 components.

Time runs from the start of the process until its syslog port is open. CPU time is that of the process until then.
`agent check` reads a file of 20 sources, 20 channels and 20 sinks of many types.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from bench.frame import Bench, Figures, without_setup
from bench.frame.kafka import Topic
from bench.frame.peers import FLUME, flume
from bench.frame.processes import cpu_seconds, wait_for_listener
from bench.frame.syslog import CONFIGURATION, FLUME_CONFIGURATION
from flafka.agent.services.running import RunningAgent
from tests.fixtures.ports import free_port

COMPONENTS_PER_KIND = 20
SOURCES = ("syslogtcp", "avro", "http", "netcat", "taildir")
SINKS = ("hdfs", "solr", "file_roll", "kafka", "hbase")
REQUIRED_OPTIONS = {
    "syslogtcp": ("port = {port}", "host = 127.0.0.1"),
    "avro": ("port = {port}", "bind = 127.0.0.1"),
    "http": ("port = {port}", "bind = 127.0.0.1"),
    "netcat": ("port = {port}", "bind = 127.0.0.1"),
    "taildir": (
        "filegroups = f",
        "filegroups.f = /var/log/app-{number}/.*log",
        "positionFile = /tmp/p-{number}.json",
    ),
    "hdfs": ("hdfs.path = webhdfs://127.0.0.1:9870/logs-{number}",),
    "solr": ("url = http://127.0.0.1:8983/solr/logs-{number}",),
    "file_roll": ("sink.directory = /tmp/roll-{number}",),
    "kafka": ("kafka.bootstrap.servers = 127.0.0.1:19092", "kafka.topic = out-{number}"),
    "hbase": ("table = t-{number}", "columnFamily = f", "thrift = 127.0.0.1:9090"),
}


def run(bench: Bench) -> None:
    """Measure both."""
    topic = Topic(bench.kafka.bootstrap_servers, "start")
    bench.compare(
        "start to listening",
        without_setup(lambda: measure_start(topic, *_ours(bench, topic))),
        {FLUME: without_setup(lambda: measure_start(topic, *_flume(bench, topic)))},
    )
    home = bench.directory("check")
    (home / "agent.conf").write_text(sixty_components())
    bench.compare("agent check of 60 components", without_setup(lambda: measure_check(str(home / "agent.conf"))), {})


def _ours(bench: Bench, topic: Topic) -> tuple[AbstractContextManager[int], int]:
    port = free_port()
    text = CONFIGURATION.format(servers=topic.servers, topic=topic.name)

    @contextmanager
    def running() -> Iterator[int]:
        text_with_port = text.replace("syslog.port = 0", f"syslog.port = {port}")
        with RunningAgent(bench.directory("agent"), text_with_port) as agent:
            yield agent.process.pid

    return running(), port


def _flume(bench: Bench, topic: Topic) -> tuple[AbstractContextManager[int], int]:
    port = free_port()
    text = FLUME_CONFIGURATION.format(port=port, servers=topic.servers, topic=topic.name)
    return flume(bench.directory("flume"), text), port


def measure_start(topic: Topic, process: AbstractContextManager[int], port: int) -> Figures:
    """Measure from the start of a process until it listens."""
    started = time.perf_counter()
    with process as pid:
        wait_for_listener(port)
        return {"s": time.perf_counter() - started, "s CPU": cpu_seconds(pid)}


def measure_check(file: str) -> Figures:
    """Measure `agent check` of a valid configuration."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    result = subprocess.run(
        [sys.executable, "-m", "flafka", "check", "-c", file], capture_output=True, text=True, check=False
    )
    seconds, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    assert result.returncode == 0, result.stdout + result.stderr
    return {"s": seconds, "s CPU": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime}


def sixty_components() -> str:
    """Return a configuration in which each source has a channel, and each channel a sink."""
    lines = [
        f"a.{kind}s = " + " ".join(f"{kind}{n}" for n in range(COMPONENTS_PER_KIND))
        for kind in ("source", "channel", "sink")
    ]
    for number in range(COMPONENTS_PER_KIND):
        for kind, types in (("source", SOURCES), ("sink", SINKS)):
            type = types[number % len(types)]
            channel = "channels" if kind == "source" else "channel"
            options = (f"type = {type}", f"{channel} = channel{number}", *REQUIRED_OPTIONS[type])
            lines += [f"a.{kind}s.{kind}{number}.{line}" for line in options]
        lines.append(f"a.channels.channel{number}.type = memory")
        lines = [line.format(port=20_000 + number, number=number) for line in lines]
    return "\n".join(lines)
