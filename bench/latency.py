"""The time from a source until an event can be read from the durable channel, and until it is in Solr.

Lines of syslog come at a steady rate: few, as most machines write them, and 10 % and 50 % of what the agent takes at
full speed; every millisecond's lines are sent together, with the time in them. For the channel a consumer of the
topic, which gets what all in-sync replicas have, takes the time when it has the event. For Solr a request for the
newest document, which sees what is not committed yet, is made again and again. rsyslog has all rates but the highest
and the same consumer, which could not follow a record for each event at that one.
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
from bench.frame.syslog import Lines, Receiver, by_rsyslog, ours
from flafka.agent.services.running import until
from tests.fixtures.cores import create_core

LINE = b"<134>%s web-1 sshd[4721]: Failed password for invalid user admin from 10.1.2.3 port 4022 ssh2 at=%019d"
TICK = 0.001
FEW = (100, 1_000)
"""Events a second of most machines."""
SHARES = (10, 50)
"""Per cent of the capacity."""
WARM = 4
"""Rounds that do not count: for a minute brokers compile what small batches have them do, and events wait for it."""
TO_SOLR = 500
"""Events a second: a document costs a hundred times what an event does, and searches need Solr as well."""
TEXT = r"sshd\[4721\]: Failed password for invalid user admin from (\*\*\*|10\.1\.2\.3) port 4022 ssh2 at=\d{19}$"


def of_lines(messages: Sequence[Message]) -> pa.Array:
    """Records that are lines."""
    return pa.array([message.value() for message in messages], pa.binary())


Ages = np.ndarray[Any, np.dtype[np.float64]]
"""Milliseconds."""


def run(bench: Bench) -> None:
    """Measure the capacity, then both loads."""
    servers = bench.kafka.bootstrap_servers
    lines = Lines(bench, bench.events(2_000_000, 20_000))
    with ours(bench, Topic(servers, "latency-capacity")) as receiver:
        receiver.take(lines)
        rates = [receiver.take(lines)[RATE] for _ in range(bench.rounds)]
    bench.rows.append(Row("capacity", RATE, None, [(rate, None) for rate in rates]))
    capacity = statistics.median(rates)
    seconds = 1.0 if bench.smoke else 10.0
    loads = {f"{rate:,} events/s": rate for rate in FEW}
    loads |= {f"{share} %": int(capacity * share / 100) for share in SHARES}
    for load, rate in loads.items():
        topics = [Topic(servers, f"latency-{rate}-{who}") for who in "ab"]
        peers = {RSYSLOG: steady(topics[1], by_rsyslog(bench, topics[1]), rate, seconds, of_lines)}
        bench.compare(
            f"source to channel at {load}",
            steady(topics[0], ours(bench, topics[0]), rate, seconds, topics[0].decoded),
            peers if load != f"{SHARES[-1]} %" else {},
            warm=WARM,
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
    bench.compare(f"source to Solr, {TO_SOLR} events/s", to_solr(core, ours(bench, topic, *sink), seconds), {})


@contextlib.contextmanager
def steady(
    topic: Topic,
    receiver: AbstractContextManager[Receiver],
    rate: int,
    seconds: float,
    decode: Callable[[Sequence[Message]], pa.Array],
) -> Iterator[Callable[[], Figures]]:
    """A contestant that takes lines at that rate for so long."""
    with receiver as it:

        def once() -> Figures:
            waiting = _Waiting(topic, decode)
            cpu = cpu_seconds(it.pid)
            gc.disable()  # a collection would go through all records that came, and hold up what takes their time
            try:
                sent = send(it.port, rate, seconds)
            finally:
                gc.enable()
            used = cpu_seconds(it.pid) - cpu
            until(lambda: waiting.seen() >= sent, f"{sent:,} events to be there", seconds=120)
            times = waiting.end()
            assert len(times) == sent
            return {**percentiles(times), CPU: used / sent * 1e6}

        yield once


def percentiles(milliseconds: Ages) -> Figures:
    """Three of them."""
    return {f"ms, p{share}": float(np.percentile(milliseconds, share)) for share in (50, 95, 99)}


def send(port: int, rate: int, seconds: float) -> int:
    """Lines at that rate; how many."""
    stamp = time.strftime("%b %e %H:%M:%S").encode()
    sent = 0
    with socket.create_connection(("127.0.0.1", port)) as client:
        began = time.monotonic()
        while (passed := time.monotonic() - began) < seconds:
            wanted = int(passed * rate) - sent
            if wanted > 0:
                line = LINE % (stamp, time.time_ns())
                client.sendall((line + b"\n") * wanted)
                sent += wanted
            time.sleep(TICK)
    return sent


class _Waiting(threading.Thread):
    """Consumes the topic from now on, and keeps when each record came. What is in them is looked at later: here it
    would take time from what is measured.
    """

    def __init__(self, topic: Topic, decode: Callable[[Sequence[Message]], pa.Array]) -> None:
        super().__init__(daemon=True)
        self._decode, self._over = decode, threading.Event()
        self._came = queue.SimpleQueue[tuple[Sequence[Message], int]]()
        self._ages: list[Ages] = []
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
        self._consumer.poll(0.5)  # connected
        self.start()

    def run(self) -> None:
        """Until `end`."""
        while not self._over.is_set():
            first = self._consumer.poll(0.05)
            now = time.time_ns()
            if first is not None:
                self._came.put(([first, *self._consumer.consume(10_000, 0)], now))  # those that came with it

    def seen(self) -> int:
        """How many events have come by now."""
        while not self._came.empty():
            messages, now = self._came.get()
            self._ages.append(_ages(self._decode(messages), now))
        return sum(map(len, self._ages))

    def end(self) -> Ages:
        """How old each event was when it came; all had their text."""
        self._over.set()
        self.join()
        self._consumer.close()
        return np.concatenate(self._ages)


def _ages(bodies: pa.Array, now: int) -> Ages:
    texts = bodies.cast(pa.string())
    assert pc.all(pc.match_substring_regex(texts, TEXT)).as_py(), "contents differ"
    ages: Ages = (now - pc.utf8_slice_codeunits(texts, -19).cast(pa.int64()).to_numpy()) / 1e6
    return ages


@contextlib.contextmanager
def to_solr(core: str, receiver: AbstractContextManager[Receiver], seconds: float) -> Iterator[Callable[[], Figures]]:
    """An agent with a sink; a document is looked for by its id, which Solr knows before it is committed."""
    with receiver as it:

        def once() -> Figures:
            times = []
            stamp = time.strftime("%b %e %H:%M:%S").encode()
            with socket.create_connection(("127.0.0.1", it.port)) as client:
                for _ in range(int(seconds * 10)):
                    at = time.time_ns()
                    line = LINE % (stamp, at)
                    filler = b"".join(LINE % (stamp, at + more) + b"\n" for more in range(1, TO_SOLR // 10))
                    client.sendall(line + b"\n" + filler)
                    body = line[line.index(b"sshd") :].replace(b"10.1.2.3", b"***").decode()
                    while not _known(core, body):
                        pass
                    times.append((time.time_ns() - at) / 1e6)
                    time.sleep(max(0.0, 0.1 - times[-1] / 1e3))
            return percentiles(np.array(times))

        yield once


def _known(core: str, id: str) -> bool:
    query = urllib.parse.urlencode({"id": id, "wt": "json", "fl": "id"})
    with urllib.request.urlopen(f"{core}/get?{query}", timeout=30) as answer:
        return json.load(answer).get("doc") is not None
