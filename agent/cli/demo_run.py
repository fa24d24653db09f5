"""Servers and agent of `agent demo`: with every store, or secured with HDFS alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import cast

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
from flafka.agent.cli.demo_outcome import SOURCES, DemoResult
from flafka.agent.jvm.spark import spark_home
from flafka.agent.services.cluster import Cluster, data_directory
from flafka.agent.services.hbase import HBaseCluster
from flafka.agent.services.hdfs import HdfsCluster
from flafka.agent.services.kafka import KafkaCluster
from flafka.agent.services.kdc import REALM
from flafka.agent.services.logs import CONF, AgentLogPorts
from flafka.agent.services.running import RunningAgent, free_ports
from flafka.agent.services.secure import secure_servers, share_root
from flafka.agent.services.securekafka import USER
from flafka.agent.services.solr import SolrCluster
from flafka.agent.services.yarn import YarnCluster
from flafka.plugins import Components, FlafkaError
from flafka.plugins.kafka.properties import client_properties
from flafka.plugins.kafka.topic import KafkaBackedChannel
from flafka.plugins.net.gssapi import Credential

CONFIGURATION = CONF / "flafka.conf"
MESSAGES = 500
"""Number of messages that `logger` sends over each of TCP and UDP, in each of the two formats."""
TOPIC, ROOT, TABLE, CORE, COUNTS = "flafka-events", "/flafka/events", "events", "events", "counts"
"""Names in conf/flafka.conf."""
CHANNEL = cast("type[KafkaBackedChannel]", Components().get("channel", "kafka"))
BROKER_HEAP_MB = 160
ON_YARN = """\
flafka.spark.conf.spark.yarn.jars = local:{spark}/jars/*
flafka.spark.conf.spark.executor.instances = 1
flafka.spark.conf.spark.executor.cores = 2
flafka.spark.conf.spark.yarn.am.memory = 256m
flafka.sinks.levels.checkpoint = {hdfs}/flafka/levels
"""
"""Options for YARN: its only node, this host, has Spark's jars, and checkpoints are on HDFS for all executors."""
SECURED = """\
flafka.channels = events
flafka.sinks = hdfs
flafka.channels.events.kafka.bootstrap.servers = {servers}
{login}
flafka.sinks.hdfs.hdfs.kerberosPrincipal = {principal}
flafka.sinks.hdfs.hdfs.kerberosKeytab = {keytab}
"""
"""Options for the secured servers: HDFS is the only store."""


class DemoRun(ABC):
    """Servers, and one agent with conf/flafka.conf."""

    sinks: tuple[str, ...]
    """Sinks of the agent."""
    brokers_step: str
    stores_step: str
    """Descriptions of `start_brokers` and of `start_stores`."""
    compared: str
    """Names of the stores."""

    def __init__(
        self, home: Path, runner: str, kafka: KafkaCluster, hdfs: HdfsCluster, others: Sequence[Cluster] = ()
    ) -> None:
        """`home` is an empty directory of the run. `others` are the clusters besides Kafka and HDFS."""
        self.home, self.kafka, self.hdfs = home, kafka, hdfs
        self._locks: dict[Cluster, threading.Lock] = {cluster: threading.Lock() for cluster in (kafka, hdfs, *others)}
        self._is_ending = threading.Event()
        self._agents = ExitStack()
        self.directory = home / "agent"
        self.directory.mkdir(parents=True)
        self.syslog, metrics, log4j, avro = free_ports(4)
        intake = AgentLogPorts(log4j, avro)
        for cluster in self._locks:
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
            "FLAFKA_STATE": str(self.directory),
            "FLAFKA_METRICS": str(metrics),
            "FLAFKA_HDFS": self.hdfs.webhdfs,
            "FLAFKA_PROCESSORS": str(CONF / "processors"),
            "FLAFKA_ROLL": "5",
            "FLAFKA_TRIGGER": "5",
            "FLAFKA_RUNNER": runner,
        }
        self.more: Path | None = None
        """File with options that override conf/flafka.conf."""
        self.to_send = 4 * MESSAGES
        self.agent: RunningAgent
        self.counters: dict[str, dict[str, str]] = {}

    @abstractmethod
    def start_brokers(self) -> None:
        """Start Kafka, with all that it needs, and block until it serves. Raises ServiceError."""

    @abstractmethod
    def start_stores(self) -> None:
        """Start the servers of the stores, and block until they serve. Raises ServiceError."""

    @abstractmethod
    def read_back(self) -> DemoResult:
        """Read the channel and the stores, compare them event by event, and return the result."""

    @abstractmethod
    def hints(self) -> list[str]:
        """Return command lines to try on the servers."""

    def start_agent(self) -> None:
        """Start the agent, and wait until its source `tcp` is open."""
        self.agent = self._agents.enter_context(self._agent())
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
        files = ["-c", str(CONFIGURATION)]
        if self.more is not None:
            files = ["-f", str(CONFIGURATION), "-f", str(self.more), "--no-reload-conf"]
        return RunningAgent(self.directory, CONFIGURATION, *files, *arguments, environment=self.environment)

    def send(self) -> None:
        """Send syslog messages with personal data, and wait until the agent or the kernel has handled all."""
        source = self.directory / "messages"
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
        for sink in self.sinks:
            self.agent.until(
                partial(self.agent.count, f"SINK.{sink}", "EventDrainSuccessCount"),
                f"sink {sink} to deliver",
            )

    def stop(self) -> None:
        """Stop the agent, and set `counters` to its final metrics. Raises FlafkaError if it does not stop cleanly."""
        if self.agent.stop() != 0:
            raise FlafkaError(f"the agent did not stop cleanly; its log: {self.directory}/agent.log")
        self.counters = json.loads((self.directory / "metrics.json").read_text())

    def drain(self) -> None:
        """Run the agent with `--drain` to its end. Raises FlafkaError if it fails."""
        self.agent = self._agents.enter_context(self._agent("--drain"))
        if self.agent.wait_for_exit() != 0:
            raise FlafkaError(f"the channel could not be drained; the agent's log: {self.directory}/agent.log")

    def memory_mb(self) -> int:
        """Return the memory of all servers, in MB."""
        return sum(cluster.server(name).rss_mb or 0 for cluster in self._locks for name in cluster.names())

    def end(self) -> None:
        """Stop the agent and all servers. Ctrl-C and SIGTERM are ignored from then on."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        self._agents.close()
        self._is_ending.set()
        with ThreadPoolExecutor() as threads:
            for cluster in self._locks:
                threads.submit(self._stop_cluster, cluster)


class FullDemoRun(DemoRun):
    """Demo with HDFS, HBase, Solr and a processor, and perhaps on YARN."""

    sinks = ("hdfs", "hbase", "solr", "counts")
    brokers_step = "Kafka starts: three brokers"
    compared = "the three stores"

    def __init__(self, home: Path, runner: str, *, on_yarn: bool) -> None:
        # The layout of `agent sandbox`, so that its commands work on these servers.
        data = home / data_directory().name
        hdfs = HdfsCluster(data / "hdfs", fixed_ports=False)
        self.hbase = HBaseCluster(data / "hbase", fixed_ports=False)
        self.solr = SolrCluster(data / "solr", fixed_ports=False)
        self.yarn = YarnCluster(data / "yarn", hdfs, fixed_ports=False) if on_yarn else None
        self._others: tuple[Cluster, ...] = (*([self.yarn] if self.yarn else ()), self.hbase, self.solr)
        kafka = KafkaCluster(data / "cluster", fixed_ports=False, heap_mb=BROKER_HEAP_MB)
        super().__init__(home, runner, kafka, hdfs, self._others)
        servers = "HDFS, YARN, HBase and Solr" if on_yarn else "HDFS, HBase and Solr"
        self.stores_step = f"{servers} start, and log into the agent at once"
        self.environment |= {"FLAFKA_HBASE": self.hbase.address, "FLAFKA_SOLR": self.solr.address}
        if self.yarn is not None:
            self.yarn.configure()
            self.environment |= {
                "FLAFKA_SPARK": "yarn",
                "HADOOP_CONF_DIR": str(self.yarn.conf),
                "YARN_CONF_DIR": None,
            }
            self.more = self.directory / "yarn.conf"
            self.more.write_text(ON_YARN.format(spark=spark_home(), hdfs=hdfs.rpc))

    def start_brokers(self) -> None:
        """Start Kafka, and block until it serves. Raises ServiceError."""
        self.start_clusters(self.kafka)

    def start_stores(self) -> None:
        """Start all other servers at once, and block until they serve. Raises ServiceError."""
        self.start_clusters(self.hdfs, *self._others)

    def read_back(self) -> DemoResult:
        """Read the channel and the three stores, compare them event by event, and return the result."""
        records = read_topic(self.kafka.bootstrap_servers, TOPIC, CHANNEL)
        events = [event for takes in records.values() for taken in takes for event in taken.batch]
        channel = bodies_by_id(records)
        reader = HdfsReader(self.hdfs.webhdfs)
        hdfs = reconcile(records, reader, ROOT)
        rows, documents = hbase_rows(self.hbase.address, TABLE), solr_documents(f"{self.solr.address}/{CORE}")
        result = DemoResult(self.counters, len(channel), self.to_send)
        if self.yarn is not None:
            result.senders = {**SOURCES, "avro": f"{SOURCES['avro']} and YARN"}
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
        result.samples = [*_hdfs_samples(reader), *_samples(rows, f"{self.solr.address}/{CORE}")]
        return result

    def hints(self) -> list[str]:
        """Return command lines to try on the servers."""
        return [
            f"export XDG_DATA_HOME={self.home}",
            "agent sandbox status",
            f"agent topic describe {TOPIC}",
            "agent group describe flafka-hbase",
            f"agent sandbox hdfs -- -ls -R {ROOT}",
            f"curl '{self.solr.address}/{CORE}/select?q=level_s:WARN'",
        ]


class SecureDemoRun(DemoRun):
    """Demo with brokers that check passwords and ACLs over TLS, and with an HDFS that requires Kerberos."""

    sinks = ("hdfs",)
    brokers_step = "a KDC starts, and Kafka: three brokers with TLS, passwords and ACLs"
    stores_step = "HDFS, which requires Kerberos, starts and logs into the agent at once"
    compared = "HDFS"

    def __init__(self, home: Path, runner: str) -> None:
        # The layout of `agent sandbox --secure`, so that its commands work on these servers.
        self._secured = secured = secure_servers(
            home / data_directory().name / "secure", fixed_ports=False, heap_mb=BROKER_HEAP_MB
        )
        super().__init__(home, runner, secured.kafka, secured.hdfs, [secured.kdc])
        self._principal = f"{USER}@{REALM}"
        self._keytab = secured.kdc.keytab(USER)
        self.environment |= secured.kdc.variables()
        login = [
            f"flafka.channels.events.kafka.{client}.{name} = {value}"
            for client in ("producer", "consumer")
            for name, value in secured.kafka.client_options(USER).items()
        ]
        self.more = self.directory / "secure.conf"
        self.more.write_text(
            SECURED.format(
                servers=secured.kafka.bootstrap_servers,
                login="\n".join(login),
                principal=self._principal,
                keytab=self._keytab,
            )
        )

    def start_brokers(self) -> None:
        """Start the KDC and then Kafka, and block until both serve. Raises ServiceError."""
        self.start_clusters(self._secured.kdc)
        self._secured.kdc.add(USER)
        self.start_clusters(self.kafka)

    def start_stores(self) -> None:
        """Start HDFS, and block until it serves. Raises ServiceError."""
        self.start_clusters(self.hdfs)
        share_root(self.hdfs)

    def read_back(self) -> DemoResult:
        """Read the channel and HDFS as the agent's user, compare them event by event, and return the result."""
        kafka = self._secured.kafka
        password = kafka.password_file(USER).read_text()
        login = client_properties({**kafka.client_options(USER), "sasl.password": password})
        records = read_topic(kafka.bootstrap_servers, TOPIC, CHANNEL, login)
        os.environ.update(self._secured.kdc.variables())  # read by the library of Kerberos
        credential = Credential(self._principal, str(self._keytab))
        try:
            reader = HdfsReader(self.hdfs.webhdfs, credential)
            hdfs = reconcile(records, reader, ROOT)
            result = DemoResult(self.counters, len(bodies_by_id(records)), self.to_send)
            result.senders = {**SOURCES, "json": "log4j 2 as JSON, from Kafka"}
            result.store("HDFS", f"in {hdfs.files} files", hdfs.delivered_events, hdfs.differences)
            result.samples = [*_hdfs_samples(reader)]
        finally:
            credential.close()
        return result

    def hints(self) -> list[str]:
        """Return command lines to try on the servers."""
        properties = self._secured.kafka.properties(USER)
        return [
            f"export XDG_DATA_HOME={self.home}",
            "agent sandbox status --secure",
            f"agent topic describe {TOPIC} --command-config {properties}",
            f"agent group describe flafka-hdfs --command-config {properties}",
            f'eval "$(agent sandbox kinit {USER})"',
            f"agent sandbox hdfs --secure -- -ls -R {ROOT}",
        ]


def _counts(rows: dict[str, dict[str, bytes]]) -> Counter[tuple[str, str]]:
    """Return sender and level → number of events, over all minutes.

    Row keys are like `2026-01-31 12:00 broker-1 INFO`.
    """
    counts: Counter[tuple[str, str]] = Counter()
    for key, row in rows.items():
        sender, _, level = key[len("2026-01-31 12:00 ") :].rpartition(" ")
        counts[sender, level] += int(row["events"])
    return counts


def _hdfs_samples(reader: HdfsReader) -> Iterator[tuple[str, str]]:
    """Yield location and text of one event in HDFS, if there is one of `logger`."""
    for path in reader.visible(ROOT):
        if matches := [line for line in lines(reader.read(path)) if b"paid with card" in line]:
            yield f"HDFS  {path}", matches[0].decode(errors="replace")
            break


def _samples(rows: dict[str, dict[str, bytes]], solr: str) -> Iterator[tuple[str, str]]:
    """Yield location and text of one event each of HBase and Solr, read with the store's own API.

    A store without a matching event is left out.
    """
    for id, row in rows.items():
        if b"active master" in row["pCol"]:
            cells = {name: value.decode(errors="replace") for name, value in row.items()}
            yield f"HBase  row {id}", f"{cells['level']} {cells['logger']} {cells['pCol']}"
            break
    query = "application_s:broker-1"
    for id, document in solr_documents(solr, query).items():
        yield f"Solr  select?q={query}  {id}", f"{document['level_s']} {document['logger_s']} {document['body_t']}"
        break
