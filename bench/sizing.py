"""What `agent size` computes, beside what one agent takes of the same load: syslog, a mask, Kafka, text on HDFS.

Lines come at a steady rate, far below what the machine could take, so that nothing waits. The peer is the model, with
the costs of agent/sizing/costs.toml and machines that are used in full: a ratio of 1.1 says that the load took a
tenth more than the model had computed. Disks are not compared, as numbered lines are smaller there than any log.

The same again with the sink on Spark: a standalone master and two workers of one core. The driver counts as the
agent's, whose child it is. A small part of the load goes first, so that executors run when it is measured.
"""

from __future__ import annotations

import socket
import time
from functools import partial

from bench.frame import Bench, Figures, simply
from bench.frame.kafka import Topic
from bench.frame.processes import cpu_seconds
from bench.frame.syslog import CONFIGURATION, Lines
from flafka.agent.audit.reconciliation import HdfsReader
from flafka.agent.services.running import RunningAgent
from flafka.agent.services.spark import MASTER, WORKERS
from flafka.agent.sizing import Load, costs, needs

MODEL = "agent size"
RATE = 50_000
SECONDS = 20.0
ROLL = 5
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
FIRST = 20
"""The share of the load that goes before it."""


def run(bench: Bench) -> None:
    """One comparison for each runner, of all that can be seen on one machine."""
    seconds = 3.0 if bench.smoke else SECONDS
    rate = bench.events(RATE, 1_000)
    lines = Lines(bench, int(rate * seconds), (FILLING,))
    for runner in ("local",) if bench.smoke else ("local", "spark"):
        model = computed(load(lines, rate, seconds, runner))
        bench.compare(
            f"{rate:,} events/s for {seconds:.0f} s, runner = {runner}",
            simply(partial(taken, bench, lines, rate, int(model["partitions"]), runner)),
            {MODEL: simply(partial(seen, model, seconds))},
            warm=0,
        )


def load(lines: Lines, rate: int, seconds: float, runner: str) -> Load:
    """As `agent size` is asked for it."""
    size = len(lines.masked[0].as_py())
    return Load(events=rate, bytes=size, masks=1, runner=runner, busy=1, retention=seconds / 3600, roll=ROLL)


def computed(load: Load) -> dict[str, float]:
    """What the model says."""
    return {need.what: need.amount for need in needs(load, costs())}


def seen(amounts: dict[str, float], seconds: float) -> Figures:
    """That of it which a run shows."""
    return {
        "cores of the agent": amounts["cores of agents"] + amounts.get("cores of the driver", 0.0),
        "cores of brokers": amounts["cores of brokers"],
        "files": amounts["files an hour"] * seconds / 3600,
        **({EXECUTORS: amounts[EXECUTORS]} if EXECUTORS in amounts else {}),
    }


def taken(bench: Bench, lines: Lines, rate: int, partitions: int, runner: str) -> Figures:
    """An agent of its own, until all is on HDFS, compared."""
    home, few = bench.directory("sizing"), lines.fewer(FIRST)
    topic = Topic(bench.kafka.bootstrap_servers, home.name, partitions)
    text = CONFIGURATION.format(servers=topic.servers, topic=topic.name)
    text += SINK.format(webhdfs=bench.hdfs.webhdfs, root=home.name, roll=ROLL)
    if runner == "spark":
        text += ON_SPARK.format(master=bench.spark.address, page=bench.spark.ports[f"{MASTER}-ui"], roll=ROLL)
    reader = HdfsReader(bench.hdfs.webhdfs)
    with RunningAgent(home, text) as agent:
        port = agent.port("syslog")

        def deliver(lines: Lines, together: int) -> None:
            paced(port, lines, rate)
            agent.until(
                lambda: agent.count("SINK.files", "EventDrainSuccessCount") >= together, "all to be delivered"
            )

        deliver(few, few.events)  # what executors take to begin is no part of a load
        before = len(written(reader, home.name))
        pids = {"cores of the agent": [agent.process.pid]}
        if runner == "spark":
            pids[EXECUTORS] = [pid for name in WORKERS if (pid := bench.spark.server(name).pid)]
        cpu = {what: sum(map(cpu_seconds, some)) for what, some in pids.items()}
        brokers, began = bench.broker_cpu(), time.perf_counter()
        deliver(lines, few.events + lines.events)
        seconds = lines.events / rate
        figures = {what: (sum(map(cpu_seconds, some)) - cpu[what]) / seconds for what, some in pids.items()}
        figures["cores of brokers"] = (bench.broker_cpu() - brokers) / seconds
        bench.say(f"took {time.perf_counter() - began:.1f} s for {seconds:.1f} s")
        agent.stop()
    files = written(reader, home.name)
    found = sum(reader.read(path).count(b"\n") for path in files)
    assert found == few.events + lines.events, f"{found:,} events of {few.events + lines.events:,}"
    return {**figures, "files": float(len(files) - before)}


def written(reader: HdfsReader, root: str) -> list[str]:
    """The finished files."""
    return [path for path in reader.walk(f"/{root}") if "/_" not in path and "/." not in path]


def paced(port: int, lines: Lines, rate: int) -> None:
    """The lines at that rate, those of a hundredth of a second together."""
    data, piece = lines.path.read_bytes(), max(1, rate // 100)
    began = time.monotonic()
    with socket.create_connection(("127.0.0.1", port)) as client:
        for start in range(0, lines.events, piece):
            time.sleep(max(0.0, began + start / rate - time.monotonic()))
            client.sendall(data[start * lines.bytes : (start + piece) * lines.bytes])
