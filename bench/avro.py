"""The avro source: batches of 1,000 events from several clients, into files and into the replicated channel.

A real agent (`agent start`), and clients that send their requests one after the other, each as soon as the one before
is answered OK, as flume-ng-sdk does. They are processes of their own, with requests made beforehand. Time runs from
the first request until all is in the files of a sink behind a memory channel, or until Kafka's channel has all of it;
beside it a bare producer sends the same bodies to the same brokers, one record each. Every event is read back.
"""

from __future__ import annotations

import argparse
import multiprocessing
import socket
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from agent.audit.reconciliation import read_topic
from agent.services.kafka import KafkaCluster
from agent.services.running import RunningAgent
from bench.intake import Figure, cpu_seconds, run_producer
from channels.kafka import KafkaChannel
from plugins import Batch, Event
from plugins.shared.avrorpc import Frames, Status, array, frame, opening, read_answer
from plugins.shared.flumeevent import encode

BATCH = 1000
CLIENTS = 4
BODY = b"client %d says: Failed password for invalid user admin from 10.1.2.3 port 4022 ssh2 id=%09d"
HEADERS = {"host": "web-1", "flume.client.log4j.log.level": "30000"}
CONFIGURATION = """
a.sources = avro
a.channels = c
a.sources.avro.type = avro
a.sources.avro.bind = 127.0.0.1
a.sources.avro.port = 0
a.sources.avro.channels = c
"""
MEMORY = """
a.channels.c.type = memory
a.channels.c.capacity = 1000000
a.channels.c.transactionCapacity = 100000
a.sinks = files
a.sinks.files.type = file_roll
a.sinks.files.channel = c
a.sinks.files.sink.directory = {out}
"""
KAFKA = """
a.channels.c.type = kafka
a.channels.c.kafka.bootstrap.servers = {servers}
a.channels.c.kafka.topic = {topic}
"""


def main() -> None:
    """Run, check, print."""
    parser = argparse.ArgumentParser(prog="./dev bench avro", description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, default=400_000, help="events a run (default: 400,000)")
    arguments = parser.parse_args()
    each = arguments.events // CLIENTS // BATCH * BATCH
    table = Table(box=None)
    for heading in ("", "events/s", "CPU µs/event"):
        table.add_column(heading, justify="left" if not heading else "right")
    with tempfile.TemporaryDirectory(prefix="flafka-bench-") as home:
        out = Path(home, "out")
        size = CLIENTS * each * (len(BODY % (0, 0)) + 1)
        figure = run(MEMORY.format(out=out), Path(home), each, lambda: sum_of_sizes(out) == size)
        check((line for file in out.iterdir() for line in file.read_bytes().splitlines()), each)
        row(table, "avro → memory → file_roll", figure)
        with KafkaCluster(Path(home, "kafka"), heap_mb=512, fixed_ports=False) as kafka:
            servers = kafka.bootstrap_servers
            row(table, "avro → kafka, three replicas", run_kafka(servers, Path(home), each))
            lines = Path(home, "lines")
            lines.write_bytes(b"".join(BODY % (client, n) + b"\n" for client in range(CLIENTS) for n in range(each)))
            row(table, "bare producer, three replicas", run_producer(servers, "bare", lines, CLIENTS * each))
    console = Console()
    console.print(table)
    console.print(f"{CLIENTS} clients, {BATCH:,} events a request; {each * CLIENTS:,} a run, read back and compared")


def run(channel: str, home: Path, each: int, done: Callable[[], bool]) -> Figure:
    """One agent with this channel: from the first request to the last OK, and until the sink is done."""
    with RunningAgent(home, CONFIGURATION + channel) as agent:
        port = agent.port("avro")
        context = multiprocessing.get_context("spawn")
        ready = context.Barrier(CLIENTS + 1)
        clients = [context.Process(target=send, args=(n, port, each, ready)) for n in range(CLIENTS)]
        for client in clients:
            client.start()
        ready.wait(60)
        before, started = cpu_seconds(agent.process.pid), time.perf_counter()
        for client in clients:
            client.join()
            assert client.exitcode == 0
        agent.until(done, "the sink to be done")
        figure = Figure(each * CLIENTS, time.perf_counter() - started, cpu_seconds(agent.process.pid) - before)
        agent.stop()
        return figure


def run_kafka(servers: str, home: Path, each: int) -> Figure:
    """Into the replicated channel, which is then read."""
    figure = run(KAFKA.format(servers=servers, topic="bench"), home, each, lambda: True)  # OK means that it is there
    records = read_topic(servers, "bench", KafkaChannel)
    batches = [taken.batch for takes in records.values() for taken in takes]
    assert all(event.headers == HEADERS for batch in batches for event in batch)
    check((body for batch in batches for body in batch.bodies.to_pylist()), each)
    return figure


def send(client: int, port: int, count: int, ready: Any) -> None:
    """One client: every request must be answered OK."""
    requests = [
        array(encode(Batch.of(Event(BODY % (client, n), HEADERS) for n in range(start, start + BATCH))).to_pylist())
        for start in range(0, count, BATCH)
    ]
    ready.wait(60)
    frames = Frames(1 << 20)
    with socket.create_connection(("127.0.0.1", port), 60) as connection:
        for serial, request in enumerate(requests, 1):
            connection.sendall(frame(serial, [opening(first=serial == 1, message="appendBatch"), request]))
            answers: list[tuple[int, bytes]] = []
            while not answers:
                answers = list(frames.feed(connection.recv(65536)))
            assert read_answer(answers[0][1], first=serial == 1) is Status.OK


def sum_of_sizes(directory: Path) -> int:
    """Bytes of all files there."""
    return sum(file.stat().st_size for file in directory.iterdir())


def check(bodies: Iterable[bytes], each: int) -> None:
    """Every event of every client, once."""
    assert Counter(bodies) == Counter(BODY % (client, n) for client in range(CLIENTS) for n in range(each))


def row(table: Table, name: str, figure: Figure) -> None:
    """One line of the table."""
    table.add_row(name, f"{figure.rate:,.0f}", f"{figure.cpu_per_event:.2f}")


if __name__ == "__main__":
    main()
