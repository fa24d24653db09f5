"""Memory of an agent whose sink is down while its source runs at full speed, and of an idle agent.

The sink is `hdfs` behind a Kafka channel, with a NameNode address at which nothing listens. Syslog lines arrive as
fast as the agent reads them. The figure is the growth of the resident set. For an idle agent, the figures are the
resident set and the share of one core.
"""

from __future__ import annotations

import time

from bench.frame import Bench, Figures, without_setup
from bench.frame.delivery import peak_memory
from bench.frame.kafka import Topic
from bench.frame.processes import cpu_seconds, resident_bytes
from bench.frame.syslog import Lines, ours
from tests.fixtures.ports import free_port

MIB = "MiB"


def run(bench: Bench) -> None:
    """Measure both; the sink that is down once, as it takes minutes."""
    bench.compare("idle agent", without_setup(lambda: idle(bench)), {}, warm_up_rounds=0)
    bench.compare("dead sink, full speed", without_setup(lambda: dead_sink(bench)), {}, rounds=1, warm_up_rounds=0)


def idle(bench: Bench) -> Figures:
    """Measure an idle agent, some seconds after its start."""
    topic = Topic(bench.kafka.bootstrap_servers, bench.directory("idle").name)
    with ours(bench, topic) as receiver:
        time.sleep(1 if bench.smoke else 5)
        cpu, began = cpu_seconds(receiver.pid), time.perf_counter()
        time.sleep(1 if bench.smoke else 15)
        share = (cpu_seconds(receiver.pid) - cpu) / (time.perf_counter() - began)
        return {MIB: resident_bytes(receiver.pid) / 2**20, "% of a core": share * 100}


def dead_sink(bench: Bench) -> Figures:
    """Measure an agent whose sink is down, for five minutes."""
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
        before = resident_bytes(receiver.pid) / 2**20
        with peak_memory(receiver.pid) as peak:
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                receiver.take(lines, read=False)
        return {f"{MIB} more than before": peak[0] * 1e6 / 2**20 - before}
