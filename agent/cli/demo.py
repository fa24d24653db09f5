"""`agent demo`: a complete pipeline with real servers on one machine, and a reconciliation at the end."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import cast

import click

from flafka.agent.audit.reconciliation import (
    HdfsReader,
    bodies_by_id,
    differences,
    hbase_rows,
    lines,
    read_topic,
    reconcile,
    solr_documents,
)
from flafka.agent.cli.demo_outcome import DemoResult, console
from flafka.agent.cli.output import json_option, show_json
from flafka.agent.jvm.jars import ensure_all
from flafka.agent.jvm.spark import spark_home
from flafka.agent.services import ServiceError
from flafka.agent.services.cluster import Cluster, data_directory
from flafka.agent.services.hbase import HBaseCluster
from flafka.agent.services.hdfs import HdfsCluster
from flafka.agent.services.kafka import KafkaCluster
from flafka.agent.services.logs import CONF, AgentLogPorts
from flafka.agent.services.running import RunningAgent, free_ports
from flafka.agent.services.solr import SolrCluster
from flafka.agent.services.yarn import YarnCluster
from flafka.plugins import Components, FlafkaError
from flafka.plugins.kafka.topic import KafkaBackedChannel

REQUIRED_MODULES = {
    "hdfs": ("pyhdfs", "requests"),
    "hbase": ("happybase",),
    "solr": ("pysolr", "requests"),
    "spark": ("pyspark", "pandas", "fastavro"),
}
"""Extra → its modules that the demo uses."""
CONFIGURATION = CONF / "flafka.conf"
MESSAGES = 500
"""Number of messages that `logger` sends over each of TCP and UDP, in each of the two formats."""
TOPIC, ROOT, TABLE, CORE, COUNTS = "flafka-events", "/flafka/events", "events", "events", "counts"
"""Names in conf/flafka.conf."""
BROKER_HEAP_MB = 160
ON_YARN = """\
flafka.spark.conf.spark.yarn.jars = local:{spark}/jars/*
flafka.spark.conf.spark.executor.instances = 1
flafka.spark.conf.spark.executor.cores = 2
flafka.spark.conf.spark.yarn.am.memory = 256m
flafka.sinks.levels.checkpoint = {hdfs}/flafka/levels
"""
"""Options for YARN: its only node, this host, has Spark's jars, and checkpoints are on HDFS for all executors."""


@click.command()
@click.option(
    "--exit",
    "leave",
    is_flag=True,
    help="Stop everything afterwards. Exit code: 0 only if no event was lost or duplicated.",
)
@click.option("--seconds", default=10, show_default=True, help="Time in seconds for which the servers log.")
@click.option(
    "--master",
    type=click.Choice(["local", "yarn"]),
    default="local",
    show_default=True,
    help="Spark's master: local, or YARN, which is started as well.",
)
@click.option(
    "--runner",
    type=click.Choice(["local", "spark"]),
    default="spark",
    show_default=True,
    help="Runner of the sinks. The processor always runs on Spark.",
)
@json_option
def demo(leave: bool, seconds: int, master: str, runner: str, as_json: bool) -> None:
    """Run conf/flafka.conf with real servers that log into it, and compare the stores with the channel.

    With --json, the result is JSON, and the steps are printed to standard error.
    """
    console.stderr = as_json
    if shutil.which("logger") is None:
        raise FlafkaError("the demo sends syslog with `logger`: install the package util-linux (Debian: bsdutils)")
    if missing := [
        extra for extra, modules in REQUIRED_MODULES.items() if not all(map(importlib.util.find_spec, modules))
    ]:
        raise FlafkaError(f"the demo needs extras that are not installed: pip install 'flafka[{','.join(missing)}]'")
    home = Path(tempfile.mkdtemp(prefix="flafka-demo-"))
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM, too, stops the servers
    try:
        result = _run(home, leave, seconds, runner, as_json, on_yarn=master == "yarn")
    except ServiceError as e:  # a server that does not start is no bug of Flafka
        raise FlafkaError(str(e)) from None
    except KeyboardInterrupt:
        shutil.rmtree(home, ignore_errors=True)
        sys.exit(130)
    shutil.rmtree(home, ignore_errors=True)
    if not result.balanced:
        sys.exit(1)


def _run(home: Path, leave: bool, seconds: int, runner: str, as_json: bool, *, on_yarn: bool) -> DemoResult:
    """Do all steps of the demo, print the result, and return it; without `leave`, block until Ctrl-C before."""
    with ExitStack() as stack:
        ensure_all("kafka", "hdfs", "hbase", "solr", "appenders", "spark", *(["yarn"] if on_yarn else ()))
        began = time.monotonic()
        run = _DemoRun(home, runner, on_yarn=on_yarn)
        stack.callback(run.end)
        with _step("Kafka starts: three brokers"):
            run.start_clusters(run.kafka)
        more = " -f yarn.conf" if on_yarn else ""
        with _step(f"agent start {'-f' if on_yarn else '-c'} conf/{CONFIGURATION.name}{more}"):
            run.start()
        names = "HDFS, YARN, HBase and Solr" if on_yarn else "HDFS, HBase and Solr"
        with _step(f"{names} start, and log into the agent at once"):
            run.start_clusters(*run.stores)
        with _step(f"logger sends {run.to_send:,} syslog messages"):
            run.send()
        with _step(f"the servers' logs flow for {seconds} s, and into every store"):
            time.sleep(seconds)
            run.await_deliveries()
        with _step("SIGTERM: the agent drains, commits and ends"):
            run.stop()
        with _step("agent start --drain: the rest of the channel"):
            run.drain()
        with _step("the channel and the three stores are compared, event by event"):
            result = run.read_back()
        result.compare()
        result.seconds = time.monotonic() - began
        if as_json:
            show_json(result.data())
        else:
            result.show()
        if not leave:
            console.print(
                f"\nThe servers keep running. In another terminal:\n\n"
                f"  export XDG_DATA_HOME={home}\n"
                f"  agent sandbox status\n"
                f"  agent topic describe {TOPIC}\n"
                f"  agent group describe flafka-hbase\n"
                f"  agent sandbox hdfs -- -ls -R {ROOT}\n"
                f"  curl '{run.solr.address}/{CORE}/select?q=level_s:WARN'\n\n"
                f"Ctrl-C stops them and removes their data.",
                soft_wrap=True,
            )
            _wait_for_interrupt()
    return result


class _DemoRun:
    """Servers, and one agent with conf/flafka.conf."""

    def __init__(self, home: Path, runner: str, *, on_yarn: bool) -> None:
        # The layout of `agent sandbox`, so that its commands work on these servers.
        data = home / data_directory().name
        self.kafka = KafkaCluster(data / "cluster", fixed_ports=False, heap_mb=BROKER_HEAP_MB)
        self.hdfs = HdfsCluster(data / "hdfs", fixed_ports=False)
        self.hbase = HBaseCluster(data / "hbase", fixed_ports=False)
        self.solr = SolrCluster(data / "solr", fixed_ports=False)
        self.yarn = YarnCluster(data / "yarn", self.hdfs, fixed_ports=False) if on_yarn else None
        self.stores: tuple[Cluster, ...] = (self.hdfs, *([self.yarn] if self.yarn else ()), self.hbase, self.solr)
        self._locks: dict[Cluster, threading.Lock] = {
            cluster: threading.Lock() for cluster in (self.kafka, *self.stores)
        }
        self._is_ending = threading.Event()
        self._agents = ExitStack()
        self.home, self.runner = home / "agent", runner
        self.home.mkdir(parents=True)
        self.syslog, metrics, log4j, avro = free_ports(4)
        intake = AgentLogPorts(log4j, avro)
        for cluster in (self.kafka, *self.stores):
            cluster.log_ports = intake
            cluster.reserve()
        self.environment: dict[str, str | None] = {
            **{name: None for name in os.environ if name.startswith("FLAFKA_CLUSTER")},
            "XDG_DATA_HOME": str(home),  # the default brokers of the channel are found below it
            "XDG_STATE_HOME": str(home),
            "FLAFKA_SYSLOG": str(self.syslog),
            "FLAFKA_LOG4J": str(intake.log4j),
            "FLAFKA_AVRO": str(intake.avro),
            "FLAFKA_FILES": f"{self.kafka.directory / 'logs'}/.*\\.log",
            "FLAFKA_STATE": str(self.home),
            "FLAFKA_METRICS": str(metrics),
            "FLAFKA_HDFS": self.hdfs.webhdfs,
            "FLAFKA_HBASE": self.hbase.address,
            "FLAFKA_SOLR": self.solr.address,
            "FLAFKA_PROCESSORS": str(CONF / "processors"),
            "FLAFKA_ROLL": "5",
            "FLAFKA_TRIGGER": "5",
            "FLAFKA_RUNNER": runner,
        }
        self.arguments = ["-c", str(CONFIGURATION)]
        if self.yarn is not None:
            self.yarn.configure()
            self.environment |= {
                "FLAFKA_SPARK": "yarn",
                "HADOOP_CONF_DIR": str(self.yarn.conf),
                "YARN_CONF_DIR": None,
            }
            more = self.home / "yarn.conf"
            more.write_text(ON_YARN.format(spark=spark_home(), hdfs=self.hdfs.rpc))
            self.arguments = ["-f", str(CONFIGURATION), "-f", str(more), "--no-reload-conf"]
        self.agent = self._agent()
        self.to_send = 4 * MESSAGES

    def start(self) -> None:
        """Start the agent, and wait until its source `tcp` is open."""
        self._agents.enter_context(self.agent)
        self.agent.port("tcp")

    def start_clusters(self, *clusters: Cluster) -> None:
        """Start clusters at once, on threads, and block until all serve. Ctrl-C never interrupts a start."""
        with ThreadPoolExecutor() as threads:
            for future in [threads.submit(self._start_cluster, cluster) for cluster in clusters]:
                future.result()

    def _start_cluster(self, cluster: Cluster) -> None:
        with self._locks[cluster]:
            if not self._is_ending.is_set():  # a thread may begin after an interrupt has ended the wait for it
                cluster.start()

    def _stop_cluster(self, cluster: Cluster) -> None:
        with self._locks[cluster]:
            cluster.stop()

    def _agent(self, *arguments: str) -> RunningAgent:
        return RunningAgent(self.home, CONFIGURATION, *self.arguments, *arguments, environment=self.environment)

    def send(self) -> None:
        """Send syslog messages with personal data, and wait until the agent or the kernel has handled all."""
        source = self.home / "messages"
        source.write_text(
            "".join(
                f"order {number} paid with card 4111 1111 1111 1111 by ann{number}@example.com from 10.0.0.7\n"
                for number in range(MESSAGES)
            )
        )
        message = ["--tag", "shop", "--priority", "local0.notice", "--file", str(source)]
        for protocol in ("--tcp", "--udp"):
            for form in ("--rfc3164", "--rfc5424"):
                octets = ["--octet-count"] if (protocol, form) == ("--tcp", "--rfc5424") else []
                to = ["--server", "127.0.0.1", "--port", str(self.syslog)]
                subprocess.run(["logger", *to, protocol, form, *octets, *message], check=True, capture_output=True)
        self.agent.until(self._all_arrived, "the agent to have accepted every message")

    def _all_arrived(self) -> bool:
        """Return True once the agent has accepted all messages that were sent, or the kernel has dropped them."""
        counters = self.agent.metrics()
        tcp, udp = counters.get("SOURCE.tcp", {}), counters.get("SOURCE.udp", {})
        dropped = int(udp.get("KernelDropCount", 0))
        return int(tcp.get("EventAcceptedCount", 0)) + int(udp.get("EventAcceptedCount", 0)) + dropped >= self.to_send

    def await_deliveries(self) -> None:
        """Wait until each sink has delivered at least one event; the retry of a sink may take 30 s."""
        for sink in ("hdfs", "hbase", "solr", "counts"):
            self.agent.until(
                partial(self.agent.count, f"SINK.{sink}", "EventDrainSuccessCount"),
                f"sink {sink} to deliver",
            )

    def stop(self) -> None:
        """Stop the agent, and set `counters` to its final metrics. Raises FlafkaError if it does not stop cleanly."""
        if self.agent.stop() != 0:
            raise FlafkaError(f"the agent did not stop cleanly; its log: {self.home}/agent.log")
        self.counters = json.loads((self.home / "metrics.json").read_text())

    def drain(self) -> None:
        """Run the agent with `--drain` to its end. Raises FlafkaError if it fails."""
        self.agent = self._agents.enter_context(self._agent("--drain"))
        if self.agent.wait_for_exit() != 0:
            raise FlafkaError(f"the channel could not be drained; the agent's log: {self.home}/agent.log")

    def read_back(self) -> DemoResult:
        """Read the channel and the stores, compare them event by event, and return the result."""
        channel_class = cast("type[KafkaBackedChannel]", Components().get("channel", "kafka"))
        records = read_topic(self.kafka.bootstrap_servers, TOPIC, channel_class)
        events = [event for takes in records.values() for taken in takes for event in taken.batch]
        channel = bodies_by_id(records)
        reader = HdfsReader(self.hdfs.webhdfs)
        hdfs = reconcile(records, reader, ROOT)
        rows, documents = hbase_rows(self.hbase.address, TABLE), solr_documents(f"{self.solr.address}/{CORE}")
        result = DemoResult(self.counters, len(channel), self.to_send, self.yarn is not None)
        result.counts = _counts(hbase_rows(self.hbase.address, COUNTS))
        logged = Counter((e.headers["application"], e.headers["level"]) for e in events if "application" in e.headers)
        result.store("HDFS", f"in {hdfs.files} files", hdfs.delivered_events, hdfs.differences)
        result.store(
            "HBase",
            "rows by event id",
            len(rows),
            differences(channel, {id: row["pCol"] for id, row in rows.items()}),
        )
        text = {id: body.decode(errors="backslashreplace").encode() for id, body in channel.items()}
        bodies = {id: document.get("body_t", "").encode() for id, document in documents.items()}
        result.store("Solr", "documents by event id", len(documents), differences(text, bodies))
        wrong = [
            f"{result.counts[sender, level]:,} events of {sender} with level {level}, not {count:,}"
            for (sender, level), count in logged.items()
            if result.counts[sender, level] != count
        ]
        result.store("counts", "counted by the processor, by minute, sender and level", result.counts.total(), wrong)
        clusters = (self.kafka, *self.stores)
        result.memory_mb = sum(cluster.server(name).rss_mb or 0 for cluster in clusters for name in cluster.names())
        result.samples = list(_samples(reader, rows, f"{self.solr.address}/{CORE}"))
        return result

    def end(self) -> None:
        """Stop the agent and all servers. Ctrl-C and SIGTERM are ignored from then on."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        self._agents.close()
        self._is_ending.set()
        with ThreadPoolExecutor() as threads:
            for cluster in self._locks:
                threads.submit(self._stop_cluster, cluster)


def _counts(rows: dict[str, dict[str, bytes]]) -> Counter[tuple[str, str]]:
    """Return sender and level → number of events, over all minutes.

    Row keys are like `2026-01-31 12:00 broker-1 INFO`.
    """
    counts: Counter[tuple[str, str]] = Counter()
    for key, row in rows.items():
        sender, _, level = key[len("2026-01-31 12:00 ") :].rpartition(" ")
        counts[sender, level] += int(row["events"])
    return counts


def _samples(reader: HdfsReader, rows: dict[str, dict[str, bytes]], solr: str) -> Iterator[tuple[str, str]]:
    """Yield location and text of one event of each store, read with the store's own API.

    A store without a matching event is left out.
    """
    for path in reader.visible(ROOT):
        if matches := [line for line in lines(reader.read(path)) if b"paid with card" in line]:
            yield f"HDFS  {path}", matches[0].decode(errors="replace")
            break
    for id, row in rows.items():
        if b"active master" in row["pCol"]:
            cells = {name: value.decode(errors="replace") for name, value in row.items()}
            yield f"HBase  row {id}", f"{cells['level']} {cells['logger']} {cells['pCol']}"
            break
    query = "application_s:broker-1"
    for id, document in solr_documents(solr, query).items():
        yield f"Solr  select?q={query}  {id}", f"{document['level_s']} {document['logger_s']} {document['body_t']}"
        break


@contextmanager
def _step(text: str) -> Iterator[None]:
    """Show a step while the block runs, and print it with its duration afterwards."""
    started = time.monotonic()
    with console.status(text) if console.is_terminal else nullcontext():
        yield
    console.print(f"[green]✓[/] {text} [dim]({time.monotonic() - started:.1f} s)", soft_wrap=True)


def _wait_for_interrupt() -> None:
    try:
        signal.pause()
    except KeyboardInterrupt:
        console.print("stopping the servers")
