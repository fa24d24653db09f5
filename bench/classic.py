"""Kafka's classic table: one producer, messages of 100 bytes; no replication, three replicas, asynchronous or not.

Ours is the channel `kafka` in a process of its own, with batches of three megabytes from four threads, as a source
under load has them; beside it kafka-producer-perf-test, a record each message, with batches of a megabyte and LZ4,
and once more with Zstandard, which the channel takes for batches of this size. Latency is that of an event, from
when it is given to the producer until it is acknowledged. The channel waits for all in-sync replicas in every row,
as it knows no other way; perf-test in the last row only.
"""

from __future__ import annotations

import json
import re
import resource
import subprocess
import sys
from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from bench.frame import CPU, RATE, Bench, Figures, simply
from bench.frame.kafka import Topic, same
from bench.frame.putter import made
from flafka.agent.jvm.jars import ensure
from flafka.agent.jvm.java import find_java
from flafka.agent.services.cluster import java_command
from flafka.agent.services.running import until

PEERS = {"kafka-producer-perf-test": "lz4", "the same, with zstd": "zstd"}
"""A peer's name → `compression.type`."""
SIZE, BATCH = 100, 30_000
ROWS = {
    "no replication": (1, "1"),
    "3 replicas, asynchronous": (3, "1"),
    "3 replicas, synchronous": (3, "all"),
}
"""What the table calls it → replicas, and the acknowledgements that a producer waits for."""
TIMES = {"average": "ms, average", "p50": "ms, p50", "p95": "ms, p95", "p99": "ms, p99", "max": "ms, maximum"}
REPORT = re.compile(
    r"records sent, ([\d.]+) records/sec .*?, ([\d.]+) ms avg latency, ([\d.]+) ms max latency, "
    r"(\d+) ms 50th, (\d+) ms 95th, (\d+) ms 99th"
)


def run(bench: Bench) -> None:
    """Row by row."""
    events = bench.events(2_000_000, 20_000)
    batches = range(0, events, BATCH)
    expected = pa.concat_arrays([made(start, min(BATCH, events - start), SIZE).bodies for start in batches])
    for measure, (replicas, acks) in ROWS.items():
        topics = {
            who: Topic(
                bench.kafka.bootstrap_servers, f"classic-{replicas}-{acks}-{who}", replicas=replicas, in_sync=1
            )
            for who in ("ours", *PEERS.values())
        }
        peers = {name: simply(perf_test(topics[codec], events, acks, codec)) for name, codec in PEERS.items()}
        bench.compare(measure, simply(ours(topics["ours"], expected, replicas)), peers)


def ours(topic: Topic, expected: pa.Array, replicas: int) -> Callable[[], Figures]:
    """`bench/frame/putter.py`."""

    def once() -> Figures:
        told = [topic.servers, topic.name, str(len(expected)), str(SIZE), str(BATCH)]
        command = [sys.executable, "-m", "bench.frame.putter", *told, f"replication={replicas}"]
        answer = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        same(topic.bodies(), expected, topic.name)
        rates = {RATE: len(expected) / answer["seconds"], CPU: answer["cpu"] / len(expected) * 1e6}
        return rates | {unit: answer[name] for name, unit in TIMES.items()}

    return once


def perf_test(topic: Topic, events: int, acks: str, codec: str) -> Callable[[], Figures]:
    """Kafka's own tool: random letters, the number of records is checked."""
    path = [ensure("kafka-tools") / "*", ensure("kafka") / "*"]
    settings = [f"bootstrap.servers={topic.servers}", f"acks={acks}", "linger.ms=5", "batch.size=1000000"]
    settings += [
        f"compression.type={codec}",
        "buffer.memory=134217728",
        f"enable.idempotence={str(acks == 'all').lower()}",
    ]
    command = java_command(find_java(), path, "org.apache.kafka.tools.ProducerPerformance", heap_mb=512, options=[])
    told = ["--topic", topic.name, "--num-records", str(events), "--record-size", str(SIZE), "--throughput", "-1"]

    def once() -> Figures:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(
            [*command, *told, "--producer-props", *settings], check=True, capture_output=True, text=True
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        found = REPORT.findall(done.stdout)
        assert found, done.stdout + done.stderr
        rate, average, most, *percentiles = map(float, found[-1])
        until(lambda: topic.records() >= events, "all replicas to have them")  # `acks=1` does not wait for that
        values = topic.values()
        assert len(values) == events, f"{len(values):,} records of {events:,}"
        assert pc.all(pc.equal(pc.binary_length(values), SIZE)).as_py()
        times = dict(zip(TIMES.values(), (average, *percentiles, most), strict=True))
        return {RATE: rate, CPU: cpu / events * 1e6, **times}

    return once
