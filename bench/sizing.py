"""Cores that one agent and its brokers take under a load, in comparison with `agent size`.

Events arrive at a steady rate, far below the capacity of the machine, so that nothing waits. The peer is the model,
with the costs of agent/sizing/costs.toml and fully used machines: a ratio of 1.1 means that the load took a tenth
more than the model computed. Disks are not compared.

The costs are fitted to the loads at 50,000 events per second, beside other benchmarks: `bench/frame/costs.py`. The
others are predictions: few events, a thousand files, another source, other sinks.

On Spark, a standalone master has two workers of one core. The driver counts as the agent's, as its child process. A
small part of each load precedes the measurement, so that executors are running.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import happybase

from bench.frame import Bench, Figures, without_setup
from bench.frame.costs import (
    AGENT_CORES,
    BROKER_CORES,
    EXECUTOR_CORES,
    FITTED_LOADS,
    PREDICTED_LOADS,
    ROLL_SECONDS,
    amounts,
    model_figures,
    predictions,
)
from bench.frame.kafka import Topic
from bench.frame.processes import cpu_seconds
from bench.frame.report import as_json
from bench.frame.syslog import CONFIGURATION as SYSLOG
from bench.frame.syslog import Lines
from bench.taildir import CONFIGURATION as TAILDIR
from flafka.agent.audit.reconciliation import HdfsReader, hbase_rows, solr_documents
from flafka.agent.services.running import RunningAgent
from flafka.agent.services.spark import MASTER, WORKERS
from flafka.agent.sizing import Load, read_costs
from flafka.plugins import Batch, Event
from flafka.plugins.wire.avrorpc import (
    AvroFrameDecoder,
    AvroStatus,
    encode_array,
    encode_frame,
    encode_request_head,
    read_response,
)
from flafka.plugins.wire.flumeevent import encode
from tests.fixtures.cores import create_core

MODEL = "agent size"
LOAD_SECONDS = 20.0
SMOKE_RATE, SMOKE_SECONDS = 1_000, 1.0
"""Highest rate, and duration of the load, of a smoke run."""
MAX_ROUNDS = 3
FILES = 1_000
"""Number of files that grow, a line at a time."""
SINK = """
a.sinks = k
a.sinks.k.channel = kafka
"""
AVRO = (
    SYSLOG.partition("a.sources.syslog")[0].replace("syslog", "avro")
    + """\
a.sources.avro.type = avro
a.sources.avro.bind = 127.0.0.1
a.sources.avro.port = 0
a.sources.avro.channels = kafka
"""
    + SYSLOG[SYSLOG.index("a.channels.kafka.type") :]
)
HDFS_SINK = """
a.sinks.k.type = hdfs
a.sinks.k.hdfs.path = webhdfs://{webhdfs}/{root}
a.sinks.k.hdfs.fileType = DataStream
a.sinks.k.hdfs.rollInterval = {roll}
a.sinks.k.hdfs.rollSize = 0
a.sinks.k.hdfs.rollCount = 0
"""
SOLR_SINK = """
a.sinks.k.type = solr
a.sinks.k.url = {url}
a.sinks.k.indexHeaders = false
"""
HBASE_SINK = """
a.sinks.k.type = hbase
a.sinks.k.thrift = {address}
a.sinks.k.table = {table}
a.sinks.k.columnFamily = cf
"""
ON_SPARK = """
a.runner = spark
a.spark.master = {master}
a.spark.conf.spark.master.ui.port = {page}
a.spark.triggerInterval = {roll}
"""
SEND_INTERVAL_SECONDS = 0.001
AVRO_INTERVAL_SECONDS = 0.01
"""Interval between two requests of the Avro client."""
WARM_UP_SHARE = 20
"""Divisor of the number of events that precede the measurement."""
Sender = Callable[[Lines], None]
Reader = Callable[[], list[bytes]]


def run(bench: Bench) -> None:
    """Compare for each load; print the errors of predictions."""
    loads = {**FITTED_LOADS, **PREDICTED_LOADS}
    if bench.smoke:
        local = {name: load for name, load in loads.items() if load.runner == "local"}
        loads = {name: replace(load, events=min(load.events, SMOKE_RATE)) for name, load in local.items()}
    for name, load in loads.items():
        bench.compare(
            name,
            without_setup(partial(measure, bench, load)),
            {MODEL: without_setup(partial(model_figures, load, read_costs()))},
            rounds=min(bench.rounds, MAX_ROUNDS),
            warm_up_rounds=0,
        )
    for row in predictions([as_json(bench)], read_costs(), loads):
        figures = f"measured {row.measured:.3g}, predicted {row.predicted:.3g}, error {row.error:+.0%}"
        bench.log_progress(f"{row.load}: {row.unit}: {figures}")


def measure(bench: Bench, load: Load) -> Figures:
    """Run an agent until all events are in the store, verify them, and return the cores that were busy."""
    home = bench.directory("sizing")
    rate = int(load.events)
    lines = Lines(bench, int(rate * (SMOKE_SECONDS if bench.smoke else LOAD_SECONDS)))
    warm_up_lines = lines.fewer(WARM_UP_SHARE)
    topic = Topic(bench.kafka.bootstrap_servers, home.name, int(amounts(load, read_costs())["partitions"]))
    sink, read = _sink(bench, load, home)
    source = {"syslog": SYSLOG, "taildir": TAILDIR, "avro": AVRO}[load.source]
    text = source.format(servers=topic.servers, topic=topic.name, home=home, directory=home / "files") + SINK + sink
    if load.runner == "spark":
        text += ON_SPARK.format(master=bench.spark.address, page=bench.spark.ports[f"{MASTER}-ui"], roll=ROLL_SECONDS)
    with contextlib.ExitStack() as stack:
        send_lines = stack.enter_context(_growing_files(home / "files", rate)) if load.source == "taildir" else None
        agent = stack.enter_context(RunningAgent(home, text))
        if send_lines is None:
            send_lines = partial({"syslog": send, "avro": send_avro}[load.source], agent.port(load.source), rate=rate)

        def deliver(lines: Lines, total: int) -> None:
            send_lines(lines)
            agent.until(lambda: agent.count("SINK.k", "EventDrainSuccessCount") >= total, "all to be delivered")

        agent.wait_until_healthy()
        deliver(warm_up_lines, warm_up_lines.events)  # the start of executors is no part of the load
        pids = {AGENT_CORES: [agent.process.pid]}
        if load.runner == "spark":
            pids[EXECUTOR_CORES] = [pid for name in WORKERS if (pid := bench.spark.server(name).pid)]
        cpu = {unit: sum(map(cpu_seconds, group)) for unit, group in pids.items()}
        brokers, seconds = bench.broker_cpu(), lines.events / rate
        deliver(lines, warm_up_lines.events + lines.events)
        figures = {unit: (sum(map(cpu_seconds, group)) - cpu[unit]) / seconds for unit, group in pids.items()}
        figures[BROKER_CORES] = (bench.broker_cpu() - brokers) / seconds
        agent.stop()
    content = {"syslog": "masked", "taildir": "lines", "avro": "bodies"}[load.source]
    expected = [body for sent in (warm_up_lines, lines) for body in getattr(sent, content).to_pylist()]
    assert sorted(read()) == sorted(expected), f"{home.name}: contents differ"
    return figures


def _sink(bench: Bench, load: Load, home: Path) -> tuple[str, Reader]:
    """Create the target of the sink; return the options of the sink, and a function that reads all stored bodies."""
    if load.sink == "solr":
        url = create_core(bench.solr, home.name)
        return SOLR_SINK.format(url=url), lambda: [d["body_t"].encode() for d in solr_documents(url).values()]
    if load.sink == "hbase":
        address = bench.hbase.address
        host, _, port = address.partition(":")
        with contextlib.closing(happybase.Connection(host, int(port), timeout=60_000)) as connection:
            connection.create_table(home.name, {"cf": {}})
        options = HBASE_SINK.format(address=address, table=home.name)
        return options, lambda: [cells["pCol"] for cells in hbase_rows(address, home.name).values()]
    reader = HdfsReader(bench.hdfs.webhdfs)

    def read() -> list[bytes]:
        paths = [path for path in reader.walk(f"/{home.name}") if "/_" not in path and "/." not in path]
        return [line for path in paths for line in reader.read(path).splitlines()]

    return HDFS_SINK.format(webhdfs=bench.hdfs.webhdfs, root=home.name, roll=ROLL_SECONDS), read


def send(port: int, lines: Lines, rate: int) -> None:
    """Send lines at this rate over one connection, the lines of each millisecond together."""
    with socket.create_connection(("127.0.0.1", port)) as client:
        for start, stop in _steps(lines, rate, SEND_INTERVAL_SECONDS):
            client.sendall(lines.block(start, stop))


def send_avro(port: int, lines: Lines, rate: int) -> None:
    """Send the bodies at this rate over one connection: a request each 10 ms, after the answer to the one before."""
    bodies, frames = lines.bodies.to_pylist(), AvroFrameDecoder(1 << 16)
    with socket.create_connection(("127.0.0.1", port)) as client:
        for serial, (start, stop) in enumerate(_steps(lines, rate, AVRO_INTERVAL_SECONDS), 1):
            events = encode(Batch.of(Event(body, {"host": "web-1"}) for body in bodies[start:stop])).to_pylist()
            head = encode_request_head(first=serial == 1, message="appendBatch")
            client.sendall(encode_frame(serial, [head, encode_array(events)]))
            while not (answers := list(frames.feed(client.recv(1 << 16)))):
                pass
            assert read_response(answers[0][1], first=serial == 1) == AvroStatus.OK


@contextlib.contextmanager
def _growing_files(directory: Path, rate: int) -> Iterator[Sender]:
    """Create empty files; yield a function that appends lines to them in turn at this rate."""
    directory.mkdir()
    with contextlib.ExitStack() as stack:
        files = [
            stack.enter_context((directory / f"{number}.log").open("ab", buffering=0)) for number in range(FILES)
        ]

        def append(lines: Lines) -> None:
            for start, stop in _steps(lines, rate, SEND_INTERVAL_SECONDS):
                for number in range(start, stop):
                    files[number % FILES].write(lines.block(number, number + 1))

        yield append


def _steps(lines: Lines, rate: int, interval: float) -> Iterator[tuple[int, int]]:
    """Yield the range of lines to send at this rate, each when it is due, `interval` seconds or more apart."""
    started, sent = time.monotonic(), 0
    while sent < lines.events:
        due = min(lines.events, int((time.monotonic() - started) * rate) + 1)
        yield sent, due
        sent = due
        time.sleep(max(interval, started + sent / rate - time.monotonic()))
