"""flume-ng-sdk, whose clients wait for each answer: single events as of an appender, and batches of 1,000.

The client is Flume's own (NettyAvroRpcClient in a JVM), the same for both servers. `append`: one client, one event in
flight, until it is stored and the answer is there; beside Flume with a file channel and with a KafkaChannel, and
beside a bare producer of confluent-kafka that waits for each record. `appendBatch`: four clients, 1,000 events a
request, beside Flume with a KafkaChannel. Both Kafka channels wait for all in-sync replicas.
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
from bench.frame.kafka import Topic, numbered, same
from bench.frame.peers import BARE, FLUME, flume
from bench.frame.processes import cpu_seconds, listening
from flafka.agent.jvm.java import find_java
from flafka.agent.services.cluster import java_command
from flafka.agent.services.running import RunningAgent, until
from tests.fixtures.ports import free_port
from tests.interop.jvm import SOURCES, compiled

CLIENTS, BATCH = 4, 1000
BODY = b"Failed password for invalid user admin from 10.1.2.3 port 4022 ssh2 id=%09d"
CONFIGURATION = """
a1.sources = avro
a1.channels = kafka
a1.sources.avro.type = avro
a1.sources.avro.bind = 127.0.0.1
a1.sources.avro.port = {port}
a1.sources.avro.channels = kafka
"""
OURS = """
a1.channels.kafka.type = kafka
a1.channels.kafka.kafka.bootstrap.servers = {servers}
a1.channels.kafka.kafka.topic = {topic}
"""
KAFKA = """
a1.channels.kafka.type = org.apache.flume.channel.kafka.KafkaChannel
a1.channels.kafka.kafka.bootstrap.servers = {servers}
a1.channels.kafka.kafka.topic = {topic}
a1.channels.kafka.kafka.producer.acks = all
"""
FILE = """
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
class Request:
    """What a run sends."""

    clients: int
    requests: int
    events: int

    @property
    def all(self) -> int:
        """Events of a run."""
        return self.clients * self.requests * self.events


class AvroClient:
    """`java/AvroClient.java`, warm after its first run."""

    def __init__(self, bench: Bench) -> None:
        path = compiled(Path(__file__).parent / "java/AvroClient.java", "appenders", bench.directory("classes"))
        # Libraries that log on standard output would be heard in place of the answers.
        logging = {
            "log4j.configuration": (SOURCES / "log4j-silent.properties").as_uri(),
            "logback.configurationFile": SOURCES / "logback-silent.xml",
        }
        options = [f"-D{name}={value}" for name, value in logging.items()]
        self.command = java_command(find_java(), path, "AvroClient", heap_mb=512, options=options)

    @contextlib.contextmanager
    def calling(self, port: int, request: Request) -> Iterator[Callable[[], dict[str, float]]]:
        """A process that sends to that port."""
        with subprocess.Popen(
            self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None

            def call() -> dict[str, float]:
                assert process.stdin is not None
                assert process.stdout is not None
                process.stdin.write(f"{port} {request.clients} {request.requests} {request.events}\n")
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
    """Single events, then batches."""
    client = AvroClient(bench)
    single = Request(1, bench.events(3_000, 100), 1)
    bench.compare(
        "append, one in flight",
        contestant(bench, client, single, "ours"),
        {
            BARE: bare(bench, single.all),
            FLUME_FILE: contestant(bench, client, single, FLUME_FILE),
            FLUME: contestant(bench, client, single, FLUME),
        },
    )
    many = Request(CLIENTS, bench.events(400_000, 8_000) // CLIENTS // BATCH, BATCH)
    bench.compare(
        f"appendBatch of {BATCH:,}",
        contestant(bench, client, many, "ours"),
        {FLUME: contestant(bench, client, many, FLUME)},
    )


@contextlib.contextmanager
def contestant(bench: Bench, client: AvroClient, request: Request, who: str) -> Iterator[Callable[[], Figures]]:
    """An agent, ours or Flume's, and its client."""
    home, port = bench.directory("avro"), free_port()
    (home / "out").mkdir()
    expected = pa.array(numbered(BODY, request.all))
    in_files = 0
    topic = Topic(bench.kafka.bootstrap_servers, home.name)

    def stored() -> pa.Array:
        nonlocal in_files
        if who != FLUME_FILE:
            return topic.bodies()

        def lines() -> list[bytes]:
            return b"".join(file.read_bytes() for file in sorted((home / "out").iterdir())).splitlines()

        start, in_files = in_files, in_files + request.all
        until(lambda: len(lines()) >= in_files, "Flume's sink to write")
        return pa.array(lines()[start:])

    text = CONFIGURATION + {"ours": OURS, FLUME: KAFKA, FLUME_FILE: FILE}[who]
    text = text.format(home=home, port=port, servers=topic.servers, topic=topic.name)
    with _server(home, text, who) as pid, client.calling(port, request) as call:
        listening(port)

        def once() -> Figures:
            cpu = cpu_seconds(pid)
            answer = call()
            cpu = (cpu_seconds(pid) - cpu) / request.all * 1e6
            same(stored(), expected, who)
            if request.events > 1:
                return {RATE: request.all / answer["seconds"], CPU: cpu}
            return {"ms, p50": answer["p50"], "ms, p99": answer["p99"], CPU: cpu}

        yield once


@contextlib.contextmanager
def _server(home: Path, text: str, who: str) -> Iterator[int]:
    running: AbstractContextManager[int] = flume(home, text) if who != "ours" else _ours(home, text)
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
    """A record at a time, each waited for, with the channel's guarantees."""
    topic = Topic(bench.kafka.bootstrap_servers, "append-bare")
    expected = pa.array(numbered(BODY, events))
    lines = bench.directory("lines") / "lines"
    lines.write_bytes(b"".join(line + b"\n" for line in numbered(BODY, events)))

    def once() -> Figures:
        command = [sys.executable, "-m", "bench.frame.producer", topic.servers, topic.name, str(lines), str(events)]
        done = subprocess.run([*command, "linger.ms=0", "one"], check=True, capture_output=True)
        answer = json.loads(done.stdout)
        same(topic.values(), expected, topic.name)
        return {"ms, p50": answer["p50"], "ms, p99": answer["p99"], CPU: answer["cpu"] / events * 1e6}

    yield once
