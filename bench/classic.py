"""Kafka's classic table: one producer, messages of 100 bytes, replicated or not.

Flafka's contestant is the channel `kafka` in its own process, with batches of three megabytes from four threads. Such
are the batches of a source under load. The peer is kafka-producer-perf-test, with one record per message and batches
of a megabyte. It runs with LZ4, and with Zstandard, which the channel uses for such batches.

Latency is that of an event, from its handover to the producer until its acknowledgement. The channel always waits for
all in-sync replicas; perf-test does so in the last row only.
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

from bench.frame import CPU, RATE, Bench, Figures, without_setup
from bench.frame.channel_puts import make_batch
from bench.frame.kafka import Topic, assert_equal_bodies
from flafka.agent.jvm.jars import ensure
from flafka.agent.jvm.java import find_java
from flafka.agent.services.cluster import java_command
from flafka.agent.services.running import until

PEERS = {"kafka-producer-perf-test": "lz4", "the same, with zstd": "zstd"}
"""Peer → `compression.type`."""
EVENT_BYTES, BATCH_EVENTS = 100, 30_000
REPLICATION = {
    "no replication": (1, "1"),
    "3 replicas, asynchronous": (3, "1"),
    "3 replicas, synchronous": (3, "all"),
}
"""Measure → number of replicas, and `acks` of the peers."""
UNITS = {"average": "ms, average", "p50": "ms, p50", "p95": "ms, p95", "p99": "ms, p99", "max": "ms, maximum"}
REPORT_PATTERN = re.compile(
    r"records sent, ([\d.]+) records/sec .*?, ([\d.]+) ms avg latency, ([\d.]+) ms max latency, "
    r"(\d+) ms 50th, (\d+) ms 95th, (\d+) ms 99th"
)


def run(bench: Bench) -> None:
    """Compare for each kind of replication."""
    events = bench.events(2_000_000, 20_000)
    batches = range(0, events, BATCH_EVENTS)
    expected = pa.concat_arrays(
        [make_batch(start, min(BATCH_EVENTS, events - start), EVENT_BYTES).bodies for start in batches]
    )
    for measure, (replicas, acks) in REPLICATION.items():
        topics = {
            contestant: Topic(
                bench.kafka.bootstrap_servers, f"classic-{replicas}-{acks}-{contestant}", replicas=replicas, in_sync=1
            )
            for contestant in ("ours", *PEERS.values())
        }
        peers = {name: without_setup(perf_test(topics[codec], events, acks, codec)) for name, codec in PEERS.items()}
        bench.compare(measure, without_setup(ours(topics["ours"], expected, replicas)), peers)


def ours(topic: Topic, expected: pa.Array, replicas: int) -> Callable[[], Figures]:
    """Return a run of `bench/frame/channel_puts.py`."""

    def once() -> Figures:
        arguments = [topic.servers, topic.name, str(len(expected)), str(EVENT_BYTES), str(BATCH_EVENTS)]
        command = [sys.executable, "-m", "bench.frame.channel_puts", *arguments, f"replication={replicas}"]
        answer = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        assert_equal_bodies(topic.bodies(), expected, topic.name)
        rates = {RATE: len(expected) / answer["seconds"], CPU: answer["cpu"] / len(expected) * 1e6}
        return rates | {unit: answer[name] for name, unit in UNITS.items()}

    return once


def perf_test(topic: Topic, events: int, acks: str, codec: str) -> Callable[[], Figures]:
    """Return a run of kafka-producer-perf-test. Number and sizes of its random records are verified."""
    path = [ensure("kafka-tools") / "*", ensure("kafka") / "*"]
    settings = [f"bootstrap.servers={topic.servers}", f"acks={acks}", "linger.ms=5", "batch.size=1000000"]
    settings += [
        f"compression.type={codec}",
        "buffer.memory=134217728",
        f"enable.idempotence={str(acks == 'all').lower()}",
    ]
    command = java_command(find_java(), path, "org.apache.kafka.tools.ProducerPerformance", heap_mb=512, options=[])
    arguments = [
        "--topic",
        topic.name,
        "--num-records",
        str(events),
        "--record-size",
        str(EVENT_BYTES),
        "--throughput",
        "-1",
    ]

    def once() -> Figures:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        result = subprocess.run(
            [*command, *arguments, "--producer-props", *settings], check=True, capture_output=True, text=True
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        reports = REPORT_PATTERN.findall(result.stdout)
        assert reports, result.stdout + result.stderr
        rate, average, maximum, *percentiles = map(float, reports[-1])
        until(lambda: topic.records() >= events, "all replicas to have them")  # `acks=1` does not wait for that
        values = topic.values()
        assert len(values) == events, f"{len(values):,} records of {events:,}"
        assert pc.all(pc.equal(pc.binary_length(values), EVENT_BYTES)).as_py()
        times = dict(zip(UNITS.values(), (average, *percentiles, maximum), strict=True))
        return {RATE: rate, CPU: cpu / events * 1e6, **times}

    return once
