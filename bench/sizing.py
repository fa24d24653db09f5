"""What `agent size` computes, beside what one agent takes of the same load: syslog, a mask, Kafka, text on HDFS.

Lines come at a steady rate, far below what the machine could take, so that nothing waits. The peer is the model, with
the costs that are in agent/sizing.toml and machines that are used in full: a ratio of 1.1 says that the load took a
tenth more than the model had computed. Disks are not compared, as numbered lines are smaller there than any log.
"""

from __future__ import annotations

import socket
import time

from agent.audit.reconciliation import HdfsReader
from agent.services.running import RunningAgent
from agent.sizing import Load, costs, needs
from bench.frame import Bench, Figures, simply
from bench.frame.kafka import Topic
from bench.frame.processes import cpu_seconds
from bench.frame.syslog import CONFIGURATION, Lines

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


def run(bench: Bench) -> None:
    """One comparison, of all that can be seen on one machine."""
    seconds = 3.0 if bench.smoke else SECONDS
    rate = bench.events(RATE, 1_000)
    lines = Lines(bench, int(rate * seconds), FILLING)
    partitions = int(computed(load(lines, rate, seconds))["partitions"])
    bench.compare(
        f"{rate:,} events/s for {seconds:.0f} s",
        simply(lambda: taken(bench, lines, rate, partitions)),
        {MODEL: simply(lambda: seen(computed(load(lines, rate, seconds)), seconds))},
        warm=False,
    )


def load(lines: Lines, rate: int, seconds: float) -> Load:
    """As `agent size` is asked for it."""
    size = len(lines.masked[0].as_py())
    return Load(events=rate, bytes=size, masks=1, busy=1, retention=seconds / 3600, roll=ROLL)


def computed(load: Load) -> dict[str, float]:
    """What the model says."""
    return {need.what: need.amount for need in needs(load, costs())}


def seen(amounts: dict[str, float], seconds: float) -> Figures:
    """That of it which a run shows."""
    return {
        "cores of the agent": amounts["cores of agents"],
        "cores of brokers": amounts["cores of brokers"],
        "files": amounts["files an hour"] * seconds / 3600,
    }


def taken(bench: Bench, lines: Lines, rate: int, partitions: int) -> Figures:
    """An agent of its own, until all is on HDFS, compared."""
    home = bench.directory("sizing")
    topic = Topic(bench.kafka.bootstrap_servers, home.name, partitions)
    text = CONFIGURATION.format(servers=topic.servers, topic=topic.name)
    text += SINK.format(webhdfs=bench.hdfs.webhdfs, root=home.name, roll=ROLL)
    reader = HdfsReader(bench.hdfs.webhdfs)
    with RunningAgent(home, text) as agent:
        port = agent.port("syslog")
        brokers, cpu, began = bench.broker_cpu(), cpu_seconds(agent.process.pid), time.perf_counter()
        paced(port, lines, rate)
        agent.until(
            lambda: agent.count("SINK.files", "EventDrainSuccessCount") >= lines.events, "all to be delivered"
        )
        seconds = lines.events / rate
        cpu, brokers = cpu_seconds(agent.process.pid) - cpu, bench.broker_cpu() - brokers
        bench.say(f"took {time.perf_counter() - began:.1f} s for {seconds:.1f} s")
        agent.stop()
    files = [path for path in reader.walk(f"/{home.name}") if "/_" not in path and "/." not in path]
    found = sum(reader.read(path).count(b"\n") for path in files)
    assert found == lines.events, f"{found:,} events of {lines.events:,}"
    return {
        "cores of the agent": cpu / seconds,
        "cores of brokers": brokers / seconds,
        "files": float(len(files)),
    }


def paced(port: int, lines: Lines, rate: int) -> None:
    """The lines at that rate, those of a hundredth of a second together."""
    data, piece = lines.path.read_bytes(), max(1, rate // 100)
    began = time.monotonic()
    with socket.create_connection(("127.0.0.1", port)) as client:
        for start in range(0, lines.events, piece):
            time.sleep(max(0.0, began + start / rate - time.monotonic()))
            client.sendall(data[start * lines.bytes : (start + piece) * lines.bytes])
