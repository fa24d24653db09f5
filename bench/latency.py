"""Latency from a source to the durable channel, and to Solr.

Syslog lines of many hosts arrive at a steady rate: few, as most machines write, and 10 % and 50 % of the agent's
capacity. The lines of each millisecond are sent together and carry their time.

- Channel: a consumer of the topic, which sees the records below the high watermark, compares times on receipt.
- Solr: requests for the newest document, which see uncommitted documents, are repeated until they find it.

rsyslog runs at all rates but the highest, at which the consumer could not keep up with one record per event.
"""

from __future__ import annotations

import contextlib
import gc
import json
import queue
import socket
import statistics
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Consumer, Message, TopicPartition

from bench.frame import CPU, RATE, Bench, Figures, Row
from bench.frame.kafka import Topic
from bench.frame.peers import RSYSLOG
from bench.frame.processes import cpu_seconds
from bench.frame.sender import STAMP, STAMP_BYTES, STAMP_OFFSET
from bench.frame.syslog import Lines, Receiver, by_rsyslog, ours
from flafka.agent.services.running import until
from tests.fixtures.cores import create_core

LOW_RATES = (100, 1_000)
"""Events per second of most machines."""
CAPACITY_PERCENTAGES = (10, 50)
"""Rates in percent of the capacity."""
WARM_UP_ROUNDS = 4
"""Number of rounds that do not count: for a minute, compilation for small batches delays the brokers."""
SOLR_RATE = 500
"""Events per second: a document costs a hundred times as much as an event, and searches load Solr too."""


MAX_LINES = 4_000_000
"""Largest number of lines of a round, which is shorter at high rates."""
Ages = np.ndarray[Any, np.dtype[np.float64]]
"""Ages of events on receipt, in milliseconds."""
Decode = Callable[[Sequence[Message]], pa.Array]
"""Function from records to the bodies of their events."""


def run(bench: Bench) -> None:
    """Measure the capacity, then latencies at each rate, then latencies to Solr."""
    servers = bench.kafka.bootstrap_servers
    lines = Lines(bench, bench.events(2_000_000, 20_000))
    with ours(bench, Topic(servers, "latency-capacity")) as receiver:
        receiver.take(lines)
        rates = [receiver.take(lines)[RATE] for _ in range(bench.rounds)]
    bench.rows.append(Row("capacity", RATE, None, [(rate, None) for rate in rates]))
    capacity = statistics.median(rates)
    seconds = 1.0 if bench.smoke else 10.0
    loads = {f"{rate:,} events/s": rate for rate in LOW_RATES}
    loads |= {f"{share} %": int(capacity * share / 100) for share in CAPACITY_PERCENTAGES}
    for load, rate in loads.items():
        topics = [Topic(servers, f"latency-{rate}-{contestant}") for contestant in "ab"]
        lines = Lines(bench, min(int(rate * seconds), MAX_LINES), (STAMP,))
        own = steady_rate(topics[0], ours(bench, topics[0]), lines, rate, topics[0].decoded, lines.masked)
        peer = steady_rate(topics[1], by_rsyslog(bench, topics[1]), lines, rate, values_of, lines.lines)
        bench.compare(
            f"source to channel at {load}",
            own,
            {RSYSLOG: peer} if load != f"{CAPACITY_PERCENTAGES[-1]} %" else {},
            warm_up_rounds=WARM_UP_ROUNDS,
        )
    core = create_core(bench.solr, bench.directory("latency").name)
    sink = (
        "a.sinks = solr",
        "a.sinks.solr.type = solr",
        "a.sinks.solr.channel = kafka",
        f"a.sinks.solr.url = {core}",
        "a.sinks.solr.documentId = %[body]",
    )
    topic = Topic(servers, "latency-solr")
    lines = Lines(bench, int(seconds * SOLR_RATE), (STAMP,))
    bench.compare(f"source to Solr, {SOLR_RATE} events/s", to_solr(core, ours(bench, topic, *sink), lines), {})


@contextlib.contextmanager
def steady_rate(
    topic: Topic,
    receiver: AbstractContextManager[Receiver],
    lines: Lines,
    rate: int,
    decode: Decode,
    expected: pa.Array,
) -> Iterator[Callable[[], Figures]]:
    """Yield a contestant that receives these lines at a rate per second.

    `decode` returns the bodies of records; `expected` has the body of each line by number.
    """
    with receiver as running:

        def once() -> Figures:
            consumer = _LatencyConsumer(topic, decode, expected)
            with lines.sender(running.port, f"rate={rate}") as send:
                cpu = cpu_seconds(running.pid)
                gc.disable()  # a collection scans all received records, and delays the consumer
                try:
                    send()
                finally:
                    gc.enable()
                used = cpu_seconds(running.pid) - cpu
                until(lambda: consumer.seen() >= lines.events, f"{lines.events:,} events to be there", seconds=120)
            return {**percentiles(consumer.end()), CPU: used / lines.events * 1e6}

        yield once


def values_of(messages: Sequence[Message]) -> pa.Array:
    """Return the values of records."""
    return pa.array([message.value() for message in messages], pa.binary())


def percentiles(milliseconds: Ages) -> Figures:
    """Return the median, 95th and 99th percentile."""
    return {f"ms, p{share}": float(np.percentile(milliseconds, share)) for share in (50, 95, 99)}


class _LatencyConsumer(threading.Thread):
    """Consumer of a topic from its current end, which records the arrival time of each record.

    Records are decoded and verified later, as that would delay the measurement.
    """

    def __init__(self, topic: Topic, decode: Decode, expected: pa.Array) -> None:
        super().__init__(daemon=True)
        self._decode, self._expected, self._is_stopped = decode, expected, threading.Event()
        self._received = queue.SimpleQueue[tuple[Sequence[Message], int]]()
        self._ages: list[Ages] = []
        self._numbers: list[Any] = []
        self._consumer = Consumer(
            {
                "bootstrap.servers": topic.servers,
                "group.id": "latency",
                "enable.auto.commit": False,
                "fetch.min.bytes": 1,
            }
        )
        ends = topic.ends()
        self._consumer.assign([TopicPartition(topic.name, partition, end) for partition, end in ends.items()])
        self._consumer.poll(0.5)  # connects
        self.start()

    def run(self) -> None:
        """Consume until `end`."""
        while not self._is_stopped.is_set():
            first = self._consumer.poll(0.05)
            now = time.time_ns()
            if first is not None:
                fetched = [first, *self._consumer.consume(10_000, 0)]
                self._received.put((fetched, now))

    def seen(self) -> int:
        """Decode and verify the received records, and return the number of events so far."""
        while not self._received.empty():
            messages, now = self._received.get()
            bodies = self._decode(messages)
            numbers = pc.binary_slice(bodies, -9).cast(pa.string()).cast(pa.int64())
            stamp = slice(-STAMP_OFFSET + 1, -STAMP_OFFSET + 1 + STAMP_BYTES)  # there are no newlines
            unstamped = pc.binary_replace_slice(bodies, stamp.start, stamp.stop, b"0" * STAMP_BYTES)
            assert unstamped.equals(self._expected.take(numbers)), "contents differ"
            sent = pc.binary_slice(bodies, stamp.start, stamp.stop).cast(pa.string()).cast(pa.int64())
            self._ages.append((now - sent.to_numpy()) / 1e6)
            self._numbers.append(numbers.to_numpy())
        return sum(map(len, self._ages))

    def end(self) -> Ages:
        """Stop, and return the age of each event on receipt. Each event must have arrived once."""
        self._is_stopped.set()
        self.join()
        self._consumer.close()
        assert np.array_equal(np.sort(np.concatenate(self._numbers)), np.arange(len(self._expected)))
        return np.concatenate(self._ages)


@contextlib.contextmanager
def to_solr(core: str, receiver: AbstractContextManager[Receiver], lines: Lines) -> Iterator[Callable[[], Figures]]:
    """Yield an agent with a Solr sink. Its documents are requested by ID, which Solr serves before the commit."""
    with receiver as running:

        def once() -> Figures:
            times = []
            with socket.create_connection(("127.0.0.1", running.port)) as client:
                for start in range(0, lines.events, SOLR_RATE // 10):
                    sent_at = time.time_ns()
                    stamp = b"at=%019d " % sent_at
                    client.sendall(bytes(lines.block(start, start + SOLR_RATE // 10)).replace(STAMP, stamp))
                    body = lines.masked[start].as_py().replace(STAMP, stamp).decode()
                    while not _is_indexed(core, body):
                        pass
                    times.append((time.time_ns() - sent_at) / 1e6)
                    time.sleep(max(0.0, 0.1 - times[-1] / 1e3))
            return percentiles(np.array(times))

        yield once


def _is_indexed(core: str, id: str) -> bool:
    query = urllib.parse.urlencode({"id": id, "wt": "json", "fl": "id"})
    with urllib.request.urlopen(f"{core}/get?{query}", timeout=30) as answer:
        return json.load(answer).get("doc") is not None
