"""`./dev bench spark`: events out of Kafka, masked, into files, by Spark from our Arrow records, beside two others.

The same events lie in two topics of the same brokers: ours (records are Arrow batches) and a plain one (a record for
each event, as most producers write it). Spark, local[2], reads ours as a `spark` sink does and the plain one as
Structured Streaming does by itself; both mask addresses and write text and Parquet. An agent with `runner = local`
delivers ours into one text file. They take turns after one run that does not count; every file is read and compared.
Memory is the highest sum of resident sets seen: the JVM and its Python workers, or the agent.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console
from rich.table import Table

from agent.config import load
from agent.runner.spark.job import Job, SinkJob
from agent.runner.spark.processing import Processing
from agent.runner.spark.session import start_session, stop_session
from agent.services.kafka import KafkaCluster
from bench.intake import free_port
from plugins import Batch, Components, Event

BODY = b"sshd[4721]: Failed password for invalid user admin from 10.1.2.%d port 4022 ssh2 id=%09d"
MASKED = "sshd[4721]: Failed password for invalid user admin from *** port 4022 ssh2 id="
ADDRESS = r"\b\d{1,3}(\.\d{1,3}){3}\b"
"""What the plain query masks; the mask interceptor's `ipv4` looks closer, to its disadvantage."""
CONFIGURATION = """
a.channels = c
a.sinks = {sink}
a.channels.c.type = kafka
a.channels.c.kafka.bootstrap.servers = {servers}
a.channels.c.kafka.topic = arrow
a.spark.maxRecordsPerTrigger = 1000000
a.monitoring.port = {port}
a.sinks.{sink}.channel = c
a.sinks.{sink}.group = {group}
a.sinks.{sink}.interceptors = m
a.sinks.{sink}.interceptors.m.type = mask
a.sinks.{sink}.interceptors.m.patterns = ipv4
"""
ON_SPARK = """
a.sinks.p.type = spark
a.sinks.p.processor = bench.spark:bodies
a.sinks.p.output.files.type = console
"""
ON_THREADS = """
a.sinks.f.type = file_roll
a.sinks.f.sink.directory = {directory}
a.sinks.f.sink.rollInterval = 0
"""


@dataclass
class Figures:
    """Every run of one contender."""

    seconds: list[float] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)
    """MB, highest of each run."""


def bodies(events: Any, options: dict[str, str]) -> Any:
    """The processor: bodies as text."""
    return events.selectExpr("CAST(body AS string) AS value")


def main() -> None:
    """Run, check, print."""
    parser = argparse.ArgumentParser(prog="./dev bench spark", description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, default=2_000_000, help="events a run (default: 2,000,000)")
    parser.add_argument("--runs", type=int, default=3, help="runs of each, in turns (default: 3)")
    arguments = parser.parse_args()
    events = arguments.events
    with tempfile.TemporaryDirectory(prefix="flafka-bench-") as name:
        home = Path(name)
        with KafkaCluster(home / "kafka", heap_mb=512, fixed_ports=False) as kafka:
            servers = kafka.bootstrap_servers
            fill(servers, events)
            spark, gateway = start_session("bench", {"spark.conf.spark.driver.memory": "1g"}, home / "spark.log")
            contenders: dict[str, Callable[[Path], None]] = {}
            for form in ("text", "parquet"):
                contenders[f"Arrow records, Spark, {form}"] = lambda to, form=form: write(
                    ours(spark, servers, home), form, to
                )
                contenders[f"one record an event, Spark, {form}"] = lambda to, form=form: write(
                    plain(spark, servers), form, to
                )
            found = {name: Figures() for name in [*contenders, "Arrow records, agent, text"]}
            for run in range(arguments.runs + 1):
                for name, deliver in contenders.items():
                    directory = home / "out"
                    with measured(gateway.pid, found[name] if run else Figures()):
                        deliver(directory)
                    check(directory, "parquet" if name.endswith("parquet") else "text", events)
                local(servers, home, events, run, found["Arrow records, agent, text"] if run else Figures())
                print(f"run {run} of {arguments.runs} done", flush=True)
            stop_session(spark, gateway)
    show(found, events)


# --- what there is to read


def fill(servers: str, events: int) -> None:
    """The same events in both topics."""
    channel: Any = Components().get("channel", "kafka")
    config, problems = channel.config_class.parse(
        {"kafka.bootstrap.servers": servers, "kafka.topic": "arrow", "partitions": "2"}
    )
    assert config is not None, problems
    arrow = channel(config, "c")
    arrow.open()
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic("plain", num_partitions=2, replication_factor=3)])["plain"].result(30)
    producer = Producer({"bootstrap.servers": servers, "compression.type": "lz4", "linger.ms": 50})
    for start in range(0, events, 10_000):
        some = [BODY % (number % 256, number) for number in range(start, min(events, start + 10_000))]
        arrow.put(Batch.of([Event(body, {"host": "web-1"}) for body in some]))
        producer.produce_batch("plain", [{"value": body} for body in some])
        producer.flush()
    arrow.close()


# --- the contenders


def ours(spark: Any, servers: str, home: Path) -> Any:
    """The bodies of the Arrow topic, masked on executors, as the `spark` sink reads them."""
    spec = configured(home, CONFIGURATION + ON_SPARK, sink="p", servers=servers, port=0, group="spark")
    job = SinkJob(spec.sinks[0], spec.channels[0])
    processing = Processing(Job("a", (job,), dict(spec.options), str(home / "spark.log"), str(home)), job)
    processing.channel.open()
    frames = processing.sink.frames(processing.events(spark, preview=True)[0])
    processing.channel.close()
    return frames["files"]


def plain(spark: Any, servers: str) -> Any:
    """The bodies of the plain topic, masked by Spark."""
    options = {"kafka.bootstrap.servers": servers, "subscribe": "plain", "startingOffsets": "earliest"}
    stream = spark.readStream.format("kafka").options(**options).load()
    return stream.selectExpr(f"regexp_replace(CAST(value AS string), r'{ADDRESS}', '***') AS value")


def write(frame: Any, form: str, directory: Path) -> None:
    """All of it into files."""
    writer = frame.writeStream.format(form).option("path", str(directory)).trigger(availableNow=True)
    with tempfile.TemporaryDirectory(prefix="flafka-bench-checkpoint-") as checkpoint:
        writer.option("checkpointLocation", checkpoint).start().awaitTermination()


def local(servers: str, home: Path, events: int, run: int, figures: Figures) -> None:
    """The Arrow topic through an agent of one thread into a file; time runs from when it is up."""
    directory, port = home / "out", free_port()
    values = {"sink": "f", "servers": servers, "port": port, "group": f"local-{run}", "directory": directory}
    (home / "agent.conf").write_text((CONFIGURATION + ON_THREADS).format(**values))
    command = [sys.executable, "-m", "agent", "start", "-c", str(home / "agent.conf")]
    with (home / "agent.log").open("wb") as log:
        agent = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        while delivered(port) is None:
            time.sleep(0.01)
        with measured(agent.pid, figures):
            while (delivered(port) or 0) < events:
                time.sleep(0.01)
    finally:
        agent.terminate()
        agent.wait(60)
    check(directory, "text", events)


def configured(home: Path, text: str, **values: Any) -> Any:
    """The agent of a configuration."""
    file = home / "spark.conf"
    file.write_text(text.format(**values))
    spec, diagnostics = load(file, None, components=Components())
    assert spec is not None, diagnostics
    return spec


def delivered(port: int) -> int | None:
    """Events the agent's sink has delivered; None while there is no answer."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            return int(json.load(answer)["SINK.f"]["EventDrainSuccessCount"])
    except OSError:
        return None


# --- what came of it


@contextmanager
def measured(pid: int, figures: Figures) -> Iterator[None]:
    """Time, and the memory of that process and all below it, looked at five times a second."""
    over, peak = threading.Event(), [resident(pid)]

    def watch() -> None:
        while not over.wait(0.2):
            peak[0] = max(peak[0], resident(pid))

    watcher = threading.Thread(target=watch)
    watcher.start()
    started = time.perf_counter()
    try:
        yield
        figures.seconds.append(time.perf_counter() - started)
    finally:
        over.set()
        watcher.join()
    figures.memory.append(peak[0] / 1e6)


def resident(root: int) -> int:
    """Bytes of memory that a process and its descendants take now; what they share counts more than once."""
    parents: dict[int, int] = {}
    sizes: dict[int, int] = {}
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            fields = (directory / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(directory.name)], sizes[int(directory.name)] = int(fields[1]), int(fields[21]) * 4096
    family = {root}
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    return sum(sizes.get(pid, 0) for pid in family)


def check(directory: Path, form: str, events: int) -> None:
    """Every event once, masked; the files are removed."""
    if form == "text":
        files = [p for p in directory.iterdir() if p.is_file() and not p.name.startswith(("_", "."))]
        texts = pa.array(b"".join(p.read_bytes() for p in files).decode().splitlines())
    else:
        files = [str(p) for p in directory.glob("*.parquet")]
        texts = ds.dataset(files).to_table()["value"].combine_chunks()
    assert len(texts) == events, f"{len(texts):,} events of {events:,}"
    assert pc.all(pc.starts_with(texts, MASKED)).as_py(), "not all are masked"
    numbers = pc.utf8_slice_codeunits(texts, -9).cast(pa.int64()).to_numpy()
    assert np.array_equal(np.sort(numbers), np.arange(events)), "events were lost or doubled"
    shutil.rmtree(directory)


def show(found: dict[str, Figures], events: int) -> None:
    """Medians, and ours against the plain way within each run."""
    table = Table(box=None)
    for heading in ("", "events/s", "MB/s of bodies", "peak MB"):
        table.add_column(heading, justify="left" if not heading else "right")
    size = len(MASKED) + 9
    for name, figures in found.items():
        rate = events / statistics.median(figures.seconds)
        table.add_row(name, f"{rate:,.0f}", f"{rate * size / 1e6:,.0f}", f"{max(figures.memory):,.0f}")
    console = Console()
    console.print(table)
    for form in ("text", "parquet"):
        pairs = zip(
            found[f"Arrow records, Spark, {form}"].seconds,
            found[f"one record an event, Spark, {form}"].seconds,
            strict=True,
        )
        ratio = statistics.median(theirs / ours for ours, theirs in pairs)
        console.print(f"{form}: {ratio:.2f} times as fast from Arrow records as from one record an event")
    console.print(f"{events:,} events a run, all read back and compared")


if __name__ == "__main__":
    main()
