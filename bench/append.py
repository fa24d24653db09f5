"""Requests of flume-ng-sdk, whose clients wait for each answer: single events, and batches of 1,000.

The client is Flume's own for both servers: NettyAvroRpcClient in a JVM.

- `append`: one client with one event in flight, until it is stored and answered. Peers are Flume with a file channel
  and with a KafkaChannel, and a bare confluent-kafka producer that waits for each record.
- `appendBatch`: four clients with 1,000 events per load. The peer is Flume with a KafkaChannel.

Both Kafka channels wait for all in-sync replicas.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from bench.frame import CPU, RATE, Bench, Figures
from bench.frame.kafka import Topic, assert_equal_bodies
from bench.frame.peers import BARE, FLUME, flume
from bench.frame.processes import cpu_seconds, wait_for_listener
from bench.frame.varied import RFC5424, Events
from flafka.agent.jvm.java import find_java
from flafka.agent.services.cluster import java_command
from flafka.agent.services.running import RunningAgent, until
from tests.fixtures.ports import free_port
from tests.interop.jvm import SOURCES, compiled

CLIENTS, BATCH_EVENTS = 4, 1000
CONFIGURATION = """
a1.sources = avro
a1.channels = kafka
a1.sources.avro.type = avro
a1.sources.avro.bind = 127.0.0.1
a1.sources.avro.port = {port}
a1.sources.avro.channels = kafka
"""
FLAFKA_CHANNEL = """
a1.channels.kafka.type = kafka
a1.channels.kafka.kafka.bootstrap.servers = {servers}
a1.channels.kafka.kafka.topic = {topic}
"""
FLUME_KAFKA_CHANNEL = """
a1.channels.kafka.type = org.apache.flume.channel.kafka.KafkaChannel
a1.channels.kafka.kafka.bootstrap.servers = {servers}
a1.channels.kafka.kafka.topic = {topic}
a1.channels.kafka.kafka.producer.acks = all
"""
FLUME_FILE_CHANNEL = """
a1.channels.kafka.type = file
a1.channels.kafka.checkpointDir = {home}/checkpoint
a1.channels.kafka.dataDirs = {home}/data
a1.sinks = files
a1.sinks.files.type = file_roll
a1.sinks.files.channel = kafka
a1.sinks.files.sink.directory = {home}/out
a1.sinks.files.sink.rollInterval = 0
"""
FLUME_FILE = "Apache Flume → file channel"


@dataclass
class ClientLoad:
    """Number of clients, requests and events of a run."""

    clients: int
    requests: int
    events: int

    @property
    def total_events(self) -> int:
        """Number of events of a run."""
        return self.clients * self.requests * self.events


class AvroClient:
    """Client `java/AvroClient.java`, warm after its first run."""

    def __init__(self, bench: Bench) -> None:
        path = compiled(Path(__file__).parent / "java/AvroClient.java", "appenders", bench.directory("classes"))
        # Log lines of libraries on standard output would be read as answers.
        logging = {
            "log4j.configuration": (SOURCES / "log4j-silent.properties").as_uri(),
            "logback.configurationFile": SOURCES / "logback-silent.xml",
        }
        options = [f"-D{name}={value}" for name, value in logging.items()]
        self.command = java_command(find_java(), path, "AvroClient", heap_mb=512, options=options)

    @contextlib.contextmanager
    def start_client(self, port: int, load: ClientLoad, events: Path) -> Iterator[Callable[[], dict[str, float]]]:
        """Yield a function that makes the client process send one run to a port, and returns its answer.

        `events` is a file that `Events.write` has written.
        """
        command, pipe = [*self.command, str(events)], subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True) as process:
            assert process.stdin is not None
            assert process.stdout is not None

            def call() -> dict[str, float]:
                assert process.stdin is not None
                assert process.stdout is not None
                process.stdin.write(f"{port} {load.clients} {load.requests} {load.events}\n")
                process.stdin.flush()
                answer: dict[str, float] = json.loads(process.stdout.readline())
                return answer

            try:
                yield call
                process.stdin.close()
                process.wait(30)
            finally:
                process.kill()


def run(bench: Bench) -> None:
    """Compare single events, then batches."""
    client = AvroClient(bench)
    single = ClientLoad(1, bench.events(3_000, 100), 1)
    bench.compare(
        "append, one in flight",
        contestant(bench, client, single, "ours"),
        {
            BARE: bare(bench, single.total_events),
            FLUME_FILE: contestant(bench, client, single, FLUME_FILE),
            FLUME: contestant(bench, client, single, FLUME),
        },
    )
    many = ClientLoad(CLIENTS, bench.events(400_000, 8_000) // CLIENTS // BATCH_EVENTS, BATCH_EVENTS)
    bench.compare(
        f"appendBatch of {BATCH_EVENTS:,}",
        contestant(bench, client, many, "ours"),
        {FLUME: contestant(bench, client, many, FLUME)},
    )


@contextlib.contextmanager
def contestant(
    bench: Bench, client: AvroClient, load: ClientLoad, contestant_name: str
) -> Iterator[Callable[[], Figures]]:
    """Yield a run of an agent of Flafka or Flume, and its client."""
    home, port = bench.directory("avro"), free_port()
    (home / "out").mkdir()
    content = Events(load.total_events)
    content.write(home / "events")
    bodies, sent = content.bodies(), content.headers(RFC5424)
    headers = {name: sent[name] for name in ("host", "timestamp")}
    read_events = 0
    topic = Topic(bench.kafka.bootstrap_servers, home.name)

    def check() -> None:
        nonlocal read_events
        if contestant_name != FLUME_FILE:
            topic.check_events(bodies, headers)
            return

        def lines() -> list[bytes]:
            return b"".join(file.read_bytes() for file in sorted((home / "out").iterdir())).splitlines()

        start, read_events = read_events, read_events + load.total_events
        until(lambda: len(lines()) >= read_events, "Flume's sink to write")
        assert_equal_bodies(pa.array(lines()[start:]), bodies, contestant_name)

    text = (
        CONFIGURATION
        + {"ours": FLAFKA_CHANNEL, FLUME: FLUME_KAFKA_CHANNEL, FLUME_FILE: FLUME_FILE_CHANNEL}[contestant_name]
    )
    text = text.format(home=home, port=port, servers=topic.servers, topic=topic.name)
    with _server(home, text, contestant_name) as pid, client.start_client(port, load, home / "events") as call:
        wait_for_listener(port)

        def once() -> Figures:
            cpu = cpu_seconds(pid)
            answer = call()
            cpu = (cpu_seconds(pid) - cpu) / load.total_events * 1e6
            check()
            if load.events > 1:
                return {RATE: load.total_events / answer["seconds"], CPU: cpu}
            return {"ms, p50": answer["p50"], "ms, p99": answer["p99"], CPU: cpu}

        yield once


@contextlib.contextmanager
def _server(home: Path, text: str, contestant_name: str) -> Iterator[int]:
    running: AbstractContextManager[int] = flume(home, text) if contestant_name != "ours" else _ours(home, text)
    with running as pid:
        yield pid


@contextlib.contextmanager
def _ours(home: Path, text: str) -> Iterator[int]:
    with RunningAgent(home, text) as agent:
        agent.port("avro")
        yield agent.process.pid
        agent.stop()


@contextlib.contextmanager
def bare(bench: Bench, events: int) -> Iterator[Callable[[], Figures]]:
    """Yield a run of a bare producer that waits for each record, with the channel's guarantees."""
    topic = Topic(bench.kafka.bootstrap_servers, "append-bare")
    expected = Events(events).bodies()
    lines = bench.directory("lines") / "lines"
    lines.write_bytes(b"".join(body + b"\n" for body in expected.to_pylist()))

    def once() -> Figures:
        command = [
            sys.executable,
            "-m",
            "bench.frame.bare_producer",
            topic.servers,
            topic.name,
            str(lines),
            str(events),
        ]
        result = subprocess.run([*command, "linger.ms=0", "one"], check=True, capture_output=True)
        answer = json.loads(result.stdout)
        topic.check_values(expected)
        return {"ms, p50": answer["p50"], "ms, p99": answer["p99"], CPU: answer["cpu"] / events * 1e6}

    yield once
