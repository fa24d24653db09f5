"""The figures of `agent size`, in comparison with one agent under the same load: syslog, a mask, Kafka, text on HDFS.

Lines arrive at a steady rate, far below the capacity of the machine, so that nothing waits. The peer is the model,
with the costs of agent/sizing/costs.toml and fully used machines: a ratio of 1.1 means that the load took a tenth
more than the model computed. Disks are not compared, as numbered lines compress better than real logs.

A second comparison has the sink on Spark: a standalone master and two workers of one core. The driver counts as the
agent's, as its child process. A small part of the load precedes the measurement, so that executors are running.
"""

from __future__ import annotations

import socket
import time
from functools import partial

from bench.frame import Bench, Figures, without_setup
from bench.frame.kafka import Topic
from bench.frame.processes import cpu_seconds
from bench.frame.syslog import CONFIGURATION, Lines
from flafka.agent.audit.reconciliation import HdfsReader
from flafka.agent.services.running import RunningAgent
from flafka.agent.services.spark import MASTER, WORKERS
from flafka.agent.sizing import Load, read_costs, requirements

MODEL = "agent size"
RATE = 50_000
LOAD_SECONDS = 20.0
ROLL_SECONDS = 5
FILLING = b"session opened for user root by the scheduler after 31 ms, next one in 900 s; host is healthy; "
SINK = """
a.sinks = files
a.sinks.files.type = hdfs
a.sinks.files.channel = kafka
a.sinks.files.hdfs.path = webhdfs://{webhdfs}/{root}
a.sinks.files.hdfs.fileType = DataStream
a.sinks.files.hdfs.rollInterval = {roll}
a.sinks.files.hdfs.rollSize = 0
a.sinks.files.hdfs.rollCount = 0
"""
ON_SPARK = """
a.runner = spark
a.spark.master = {master}
a.spark.conf.spark.master.ui.port = {page}
a.spark.triggerInterval = {roll}
"""
EXECUTORS = "cores of executors"
WARM_UP_SHARE = 20
"""Divisor of the number of lines that precede the measurement."""


def run(bench: Bench) -> None:
    """Compare for each runner."""
    seconds = 3.0 if bench.smoke else LOAD_SECONDS
    rate = bench.events(RATE, 1_000)
    lines = Lines(bench, int(rate * seconds), (FILLING,))
    for runner in ("local",) if bench.smoke else ("local", "spark"):
        model = computed_needs(load_of(lines, rate, seconds, runner))
        bench.compare(
            f"{rate:,} events/s for {seconds:.0f} s, runner = {runner}",
            without_setup(partial(measure, bench, lines, rate, int(model["partitions"]), runner)),
            {MODEL: without_setup(partial(model_figures, model, seconds))},
            warm_up_rounds=0,
        )


def load_of(lines: Lines, rate: int, seconds: float, runner: str) -> Load:
    """Return the input of `agent size`."""
    size = len(lines.masked[0].as_py())
    return Load(events=rate, bytes=size, masks=1, runner=runner, busy=1, retention=seconds / 3600, roll=ROLL_SECONDS)


def computed_needs(load: Load) -> dict[str, float]:
    """Return the amounts that the model computes."""
    return {need.resource: need.amount for need in requirements(load, read_costs())}


def model_figures(amounts: dict[str, float], seconds: float) -> Figures:
    """Return the amounts of the model that a run can measure."""
    return {
        "cores of the agent": amounts["cores of agents"] + amounts.get("cores of the driver", 0.0),
        "cores of brokers": amounts["cores of brokers"],
        "files": amounts["files an hour"] * seconds / 3600,
        **({EXECUTORS: amounts[EXECUTORS]} if EXECUTORS in amounts else {}),
    }


def measure(bench: Bench, lines: Lines, rate: int, partitions: int, runner: str) -> Figures:
    """Run an agent until all lines are on HDFS, verify them, and return its figures."""
    home, warm_up_lines = bench.directory("sizing"), lines.fewer(WARM_UP_SHARE)
    topic = Topic(bench.kafka.bootstrap_servers, home.name, partitions)
    text = CONFIGURATION.format(servers=topic.servers, topic=topic.name)
    text += SINK.format(webhdfs=bench.hdfs.webhdfs, root=home.name, roll=ROLL_SECONDS)
    if runner == "spark":
        text += ON_SPARK.format(master=bench.spark.address, page=bench.spark.ports[f"{MASTER}-ui"], roll=ROLL_SECONDS)
    reader = HdfsReader(bench.hdfs.webhdfs)
    with RunningAgent(home, text) as agent:
        port = agent.port("syslog")

        def deliver(lines: Lines, total: int) -> None:
            send(port, lines, rate)
            agent.until(lambda: agent.count("SINK.files", "EventDrainSuccessCount") >= total, "all to be delivered")

        deliver(warm_up_lines, warm_up_lines.events)  # the start of executors is no part of the load
        before = len(finished_files(reader, home.name))
        pids = {"cores of the agent": [agent.process.pid]}
        if runner == "spark":
            pids[EXECUTORS] = [pid for name in WORKERS if (pid := bench.spark.server(name).pid)]
        cpu = {what: sum(map(cpu_seconds, group)) for what, group in pids.items()}
        brokers, started = bench.broker_cpu(), time.perf_counter()
        deliver(lines, warm_up_lines.events + lines.events)
        seconds = lines.events / rate
        figures = {what: (sum(map(cpu_seconds, group)) - cpu[what]) / seconds for what, group in pids.items()}
        figures["cores of brokers"] = (bench.broker_cpu() - brokers) / seconds
        bench.log_progress(f"took {time.perf_counter() - started:.1f} s for {seconds:.1f} s")
        agent.stop()
    files = finished_files(reader, home.name)
    count = sum(reader.read(path).count(b"\n") for path in files)
    assert count == warm_up_lines.events + lines.events, (
        f"{count:,} events of {warm_up_lines.events + lines.events:,}"
    )
    return {**figures, "files": float(len(files) - before)}


def finished_files(reader: HdfsReader, root: str) -> list[str]:
    """Return the finished files below a directory."""
    return [path for path in reader.walk(f"/{root}") if "/_" not in path and "/." not in path]


def send(port: int, lines: Lines, rate: int) -> None:
    """Send lines at this rate, in one piece per 10 ms."""
    data, piece = lines.path.read_bytes(), max(1, rate // 100)
    started = time.monotonic()
    with socket.create_connection(("127.0.0.1", port)) as client:
        for start in range(0, lines.events, piece):
            time.sleep(max(0.0, started + start / rate - time.monotonic()))
            client.sendall(data[start * lines.line_bytes : (start + piece) * lines.line_bytes])
