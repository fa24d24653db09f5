"""Memory: an agent whose sink is dead while its source runs at full speed, and an agent that has nothing to do.

The dead sink is `hdfs` of a NameNode that nobody listens for, behind a Kafka channel; lines of syslog come as fast as
they are taken. Given is how much the resident set grows meanwhile. Idle, it is the resident set
and the share of one core that the agent takes.
"""

from __future__ import annotations

import time

from bench.frame import Bench, Figures, simply
from bench.frame.delivery import peak_memory
from bench.frame.kafka import Topic
from bench.frame.processes import cpu_seconds, resident
from bench.frame.syslog import Lines, ours
from tests.fixtures.ports import free_port

MIB = "MiB"


def run(bench: Bench) -> None:
    """Both; the dead sink once, as it takes minutes."""
    bench.compare("idle agent", simply(lambda: idle(bench)), {}, warm=0)
    bench.compare("dead sink, full speed", simply(lambda: dead_sink(bench)), {}, rounds=1, warm=0)


def idle(bench: Bench) -> Figures:
    """After it has settled."""
    topic = Topic(bench.kafka.bootstrap_servers, bench.directory("idle").name)
    with ours(bench, topic) as receiver:
        time.sleep(1 if bench.smoke else 5)
        cpu, began = cpu_seconds(receiver.pid), time.perf_counter()
        time.sleep(1 if bench.smoke else 15)
        share = (cpu_seconds(receiver.pid) - cpu) / (time.perf_counter() - began)
        return {MIB: resident(receiver.pid) / 2**20, "% of a core": share * 100}


def dead_sink(bench: Bench) -> Figures:
    """For five minutes."""
    seconds = 3 if bench.smoke else 300
    topic = Topic(bench.kafka.bootstrap_servers, "dead-sink")
    sink = (
        "a.sinks = dead",
        "a.sinks.dead.type = hdfs",
        "a.sinks.dead.channel = kafka",
        f"a.sinks.dead.hdfs.path = webhdfs://127.0.0.1:{free_port()}/logs",
    )
    lines = Lines(bench, bench.events(1_000_000, 10_000))
    with ours(bench, topic, *sink) as receiver:
        receiver.take(lines.fewer(100))
        before = resident(receiver.pid) / 2**20
        with peak_memory(receiver.pid) as peak:
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                receiver.take(lines, read=False)
        return {f"{MIB} more than before": peak[0] * 1e6 / 2**20 - before}
