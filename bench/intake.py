"""`./dev bench intake`: syslog over TCP, parsed and masked, into the replicated channel, beside a bare producer.

A real agent (`agent start`) takes lines from a file sent over one connection; beside it, in the same run and on the
same three brokers, a loop of confluent-kafka produces the same lines, one record each, unparsed. The two take turns.
Time runs from the first byte sent to the last event acknowledged by all in-sync replicas. Every event is then read
back and compared.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from rich.console import Console
from rich.table import Table

from agent.services.kafka import KafkaCluster
from agent.services.running import RunningAgent
from plugins import Components, PartitionClaim, Record

LINE = b"<134>%s web-1 sshd[4721]: Failed password for invalid user admin from 10.1.2.3 port 4022 ssh2 id=%09d\n"
BODY = b"sshd[4721]: Failed password for invalid user admin from *** port 4022 ssh2 id=%09d"
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


@dataclass(frozen=True)
class Figure:
    """One run: `seconds` of wall time and of CPU (of the measured process alone) for `events`."""

    events: int
    seconds: float
    cpu: float

    @property
    def rate(self) -> float:
        """Events a second."""
        return self.events / self.seconds

    @property
    def cpu_per_event(self) -> float:
        """Microseconds."""
        return self.cpu / self.events * 1e6


def main() -> None:
    """Run, check, print."""
    parser = argparse.ArgumentParser(prog="./dev bench intake", description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, default=2_000_000, help="events a run (default: 2,000,000)")
    parser.add_argument("--runs", type=int, default=3, help="runs of each, in turns (default: 3)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="flafka-bench-") as home:
        lines = Path(home, "lines")
        write_lines(lines, arguments.events)
        with KafkaCluster(Path(home, "kafka"), heap_mb=512, fixed_ports=False) as kafka:
            servers = kafka.bootstrap_servers
            ours: list[Figure] = []
            bare: list[Figure] = []
            for run in range(arguments.runs):
                ours.append(run_agent(servers, f"agent-{run}", Path(home), lines, arguments.events))
                bare.append(run_producer(servers, f"bare-{run}", lines, arguments.events // 4))
                print(f"run {run + 1}: {ours[-1].rate:,.0f} and {bare[-1].rate:,.0f} events/s", flush=True)
    show(ours, bare)


def write_lines(path: Path, events: int) -> None:
    """The file to send, made beforehand: formatting lines would take a core from what is measured."""
    stamp = time.strftime("%b %e %H:%M:%S").encode()
    with path.open("wb") as file:
        for start in range(0, events, 100_000):
            file.write(b"".join(LINE % (stamp, number) for number in range(start, min(events, start + 100_000))))


def run_agent(servers: str, topic: str, home: Path, lines: Path, events: int) -> Figure:
    """Send the file to a real agent, wait until all is acknowledged, read it back."""
    with RunningAgent(home / topic, CONFIGURATION.format(servers=servers, topic=topic)) as agent:
        with socket.create_connection(("127.0.0.1", agent.port("syslog"))) as client, lines.open("rb") as file:
            before = cpu_seconds(agent.process.pid)
            started = time.perf_counter()
            client.sendfile(file)
        agent.until(lambda: agent.count("SOURCE.syslog", "EventAcceptedCount") >= events, "all to be acknowledged")
        figure = Figure(events, time.perf_counter() - started, cpu_seconds(agent.process.pid) - before)
        agent.stop()
    check(servers, topic, events)
    return figure


def run_producer(servers: str, topic: str, lines: Path, events: int) -> Figure:
    """Produce as many lines, one record each, in a process of its own, with the channel's guarantees."""
    started = time.perf_counter()
    command = [sys.executable, "-m", "bench.intake_bare", servers, topic, str(lines), str(events)]
    answer = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    assert answer["acknowledged"] == events, f"{answer} in {time.perf_counter() - started}"
    return Figure(events, answer["seconds"], answer["cpu"])


def check(servers: str, topic: str, events: int) -> None:
    """Every event once, masked, with its headers."""
    channel: Any = Components().get("channel", "kafka")
    decode = channel(channel.config_class()).decode
    seen = np.zeros(events, np.int8)
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "check", "enable.auto.commit": False})
    partitions = consumer.list_topics(topic, timeout=10).topics[topic].partitions
    consumer.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in partitions])
    while int(seen.sum()) < events:
        message = consumer.poll(10)
        assert message is not None, f"{events - int(seen.sum()):,} events are missing"
        claim = PartitionClaim("", topic, "", "", 0, message.partition() or 0)
        headers: Any = message.headers() or []
        record = Record(message.offset() or 0, 0, None, message.value(), headers)
        batch = decode(iter([record]), claim).batch
        numbers = pc.binary_slice(batch.bodies, -9).cast(pa.string()).cast(pa.int64())
        first = numbers[0].as_py()
        assert batch.bodies[0].as_py() == BODY % first
        assert pc.all(pc.match_substring(batch.bodies.cast(pa.string()), "from *** port")).as_py()
        assert batch.header("host").unique().to_pylist() == ["web-1"]
        assert batch.header("Facility").unique().to_pylist() == ["16"]
        np.add.at(seen, numbers.to_numpy(), 1)
    consumer.close()
    assert seen.min() == seen.max() == 1, "events were lost or doubled"


def show(ours: list[Figure], bare: list[Figure]) -> None:
    """Medians, and the ratio within each run."""
    table = Table(box=None)
    for heading in ("", "events/s", "CPU µs/event"):
        table.add_column(heading, justify="left" if not heading else "right")
    for name, figures in (("syslog → parse → mask → channel", ours), ("bare producer, unparsed", bare)):
        rate = statistics.median(f.rate for f in figures)
        table.add_row(name, f"{rate:,.0f}", f"{statistics.median(f.cpu_per_event for f in figures):.2f}")
    ratio = statistics.median(o.rate / b.rate for o, b in zip(ours, bare, strict=True))
    console = Console()
    console.print(table)
    console.print(f"{ratio:.2f} times the bare producer; {ours[0].events:,} events a run, all read back and compared")


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
