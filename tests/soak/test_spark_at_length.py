"""Three stores behind a Spark driver that is killed and suspended, as are its workers and Kafka's leaders: `./dev
soak`. Also concurrent attempts of one task on a cluster."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient

from flafka.agent.audit.reconciliation import (
    HdfsReader,
    bodies_by_id,
    differences,
    hbase_rows,
    read_topic,
    reconcile,
    solr_documents,
)
from flafka.agent.services.hbase import HBaseCluster
from flafka.agent.services.hdfs import HdfsCluster
from flafka.agent.services.kafka import KafkaCluster
from flafka.agent.services.running import RunningAgent, until
from flafka.agent.services.solr import SolrCluster
from flafka.agent.services.spark import SparkCluster
from flafka.plugins import Batch, Event
from tests.fixtures.cores import create_core
from tests.system.running import KAFKA, hdfs_sink, kafka_channel, processes, unique
from tests.system.stores import hbase_sink, solr_sink, table_of
from tests.system.test_proofs_spark import driver_of

EVENTS = int(os.environ.get("FLAFKA_SOAK_EVENTS", "500000"))
KILLS = {"driver": 6, "driver asleep": 4, "executor": 4, "executor asleep": 4, "leader": 6}
SUSPENDED_SECONDS = 30.0
"""Seconds of a suspension."""
TIMEOUT_SECONDS = 600.0
EXECUTOR = "CoarseGrainedExecutorBackend"
BATCH = 500
ROUNDS = 6
SAMPLE = 500
"""Rows of which every version is read."""


class Feed(threading.Thread):
    """Thread that puts numbered events into the topic: the wanted number at full rate, then a trickle, so that some
    are always in flight."""

    def __init__(self, kafka: KafkaCluster, topic: str) -> None:
        super().__init__(name="feed", daemon=True)
        config, problems = KAFKA.config_class.parse(
            {"kafka.bootstrap.servers": kafka.bootstrap_servers, "kafka.topic": topic, "partitions": "3"}
        )
        assert config is not None, problems
        self.channel: Any = KAFKA(config, "c1")
        self.channel.open()
        self.wanted = self.stored = 0
        self.enough = threading.Event()

    def run(self) -> None:
        while not self.enough.is_set():
            behind = self.stored < self.wanted
            numbers = range(self.stored, self.stored + (BATCH if behind else 5))
            self.channel.put(Batch.of([Event(b"event %d" % number) for number in numbers]))
            self.stored = numbers.stop
            self.enough.wait(0.02 if behind else 0.5)
        self.channel.close()


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_half_a_million_events_through_twenty_kills(
    tmp_path: Path,
    kafka_cluster: KafkaCluster,
    hdfs_cluster: HdfsCluster,
    hbase_cluster: HBaseCluster,
    solr_cluster: SolrCluster,
    seed: int,
    figures: list[str],
) -> None:
    chance, topic = random.Random(seed), unique("half-a-million")
    root, url = f"/{topic}", create_core(solr_cluster, topic)
    with table_of(hbase_cluster, topic) as table:
        table.connection.create_table(topic, {"f": {"max_versions": 10}})  # so that a second write is visible
    configuration = f"""
a1.channels = c1
a1.sinks = k1 k2 k3
a1.runner = spark
a1.spark.triggerInterval = 2
{kafka_channel(kafka_cluster.bootstrap_servers, topic)}
{hbase_sink(hbase_cluster, topic, "columnFamily = f")}
{solr_sink(url, topic)}
{hdfs_sink(hdfs_cluster.webhdfs, root, name="k3")}
a1.sinks.k3.group = {topic}-hdfs
"""
    sinks = ("SINK.k1", "SINK.k2", "SINK.k3")
    reader = HdfsReader(hdfs_cluster.webhdfs)
    faults = [name for name, count in KILLS.items() for _ in range(count)]
    chance.shuffle(faults)
    share = EVENTS // (len(faults) + 1) // BATCH * BATCH
    began, kills, done = time.monotonic(), Counter[str](), 0
    feed = Feed(kafka_cluster, topic)
    feed.start()
    try:
        with RunningAgent(tmp_path, configuration) as agent:

            def deliver() -> None:
                before = {sink: agent.count(sink, "EventDrainSuccessCount") for sink in sinks}
                agent.until(
                    lambda: all(agent.count(sink, "EventDrainSuccessCount") > n for sink, n in before.items()),
                    "all three to deliver",
                    TIMEOUT_SECONDS,
                )

            def staged() -> set[str]:
                return {str(Path(path).parent) for path in reader.walk(f"{root}/.flafka/tmp")}

            for done, fault in enumerate(faults, 1):
                feed.wanted = share * done
                deliver()
                feed.wanted += share // 2
                if fault == "leader":
                    name = f"broker-{chance.choice(sorted(leaders(kafka_cluster, topic)))}"
                    kafka_cluster.kill(name)
                    feed.wanted = share * (done + 1)
                    deliver()
                    kafka_cluster.start()
                    until(
                        lambda: not kafka_cluster.status().under_replicated, "all replicas in sync", TIMEOUT_SECONDS
                    )
                else:
                    if fault.startswith("driver"):
                        before = staged()
                        agent.until(lambda: staged() - before, "files on their way to HDFS", TIMEOUT_SECONDS)
                        process = driver_of(agent)
                    else:
                        agent.until(lambda: workers(driver_of(agent)), "workers", TIMEOUT_SECONDS)
                        process = chance.choice(workers(driver_of(agent)))
                    strike(process, asleep=fault.endswith("asleep"))
                kills[fault] += 1
            feed.wanted = EVENTS
            until(lambda: feed.stored >= EVENTS, "all events in the topic", TIMEOUT_SECONDS)
            feed.enough.set()
            feed.join()
            assert agent.stop() == 0
            assert "Traceback" not in agent.log
        with RunningAgent(tmp_path, configuration, "-c", str(tmp_path / "agent.conf"), "--drain") as agent:
            assert agent.wait_for_exit(TIMEOUT_SECONDS) == 0, agent.log[-4000:]
    finally:
        kafka_cluster.start()
        feed.enough.set()
        feed.join(60)
    seconds = time.monotonic() - began

    records = read_topic(kafka_cluster.bootstrap_servers, topic, KAFKA)
    channel = bodies_by_id(records)
    assert sorted(channel.values()) == sorted(b"event %d" % number for number in range(feed.stored))
    rows = {id: row["pCol"] for id, row in hbase_rows(hbase_cluster.address, topic).items()}
    assert differences(channel, rows) == []
    with table_of(hbase_cluster, topic) as table:
        sample = chance.sample(sorted(rows), min(SAMPLE, len(rows)))
        assert [id for id in sample if len(table.cells(id, b"f:pCol", versions=10)) != 1] == []
    documents = {id: document["body_t"].encode() for id, document in solr_documents(url).items()}
    assert differences(channel, documents) == []
    books = reconcile(records, reader, root)
    assert books.differences == []
    assert books.delivered_events == len(channel)
    assert kills == KILLS
    killed = ", ".join(f"{name} {count}" for name, count in sorted(kills.items()))
    rate = len(channel) / seconds
    figures.append(
        f"seed {seed}: {len(channel):,} events in {seconds:.0f} s ({rate:,.0f}/s); killed: {killed}; "
        f"each once in HDFS ({books.files} files), HBase and Solr"
    )


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_attempts_of_one_task_beside_one_another(
    tmp_path: Path,
    kafka_cluster: KafkaCluster,
    hdfs_cluster: HdfsCluster,
    solr_cluster: SolrCluster,
    spark_cluster: SparkCluster,
    seed: int,
    figures: list[str],
) -> None:
    """An executor, its Python workers, or both are suspended while they stage files. Spark starts their task again on
    the other executor, and removes one whose heartbeats it misses. They wake when another attempt was committed."""
    chance, topic = random.Random(seed), unique("speculation")
    root, url = f"/{topic}", create_core(solr_cluster, topic)
    configuration = f"""
a1.channels = c1
a1.sinks = k2 k3
a1.runner = spark
a1.spark.master = {spark_cluster.address}
a1.spark.triggerInterval = 2
a1.spark.conf.spark.speculation = true
a1.spark.conf.spark.speculation.quantile = 0.1
a1.spark.conf.spark.speculation.multiplier = 1.1
a1.spark.conf.spark.executor.heartbeatInterval = 3s
a1.spark.conf.spark.network.timeout = 15s
a1.spark.conf.spark.network.timeoutInterval = 3s
{kafka_channel(kafka_cluster.bootstrap_servers, topic)}
{solr_sink(url, topic)}
{hdfs_sink(hdfs_cluster.webhdfs, root, name="k3")}
a1.sinks.k3.group = {topic}-hdfs
"""
    reader = HdfsReader(hdfs_cluster.webhdfs)
    feed = Feed(kafka_cluster, topic)
    feed.wanted = BATCH
    feed.start()
    asleep = 0
    try:
        with RunningAgent(tmp_path, configuration) as agent:
            for number in range(ROUNDS):
                before = {sink: agent.count(sink, "EventDrainSuccessCount") for sink in ("SINK.k2", "SINK.k3")}
                feed.wanted = feed.stored + 20 * BATCH
                agent.until(
                    lambda: all(agent.count(sink, "EventDrainSuccessCount") > n for sink, n in before.items()),
                    "both to deliver",
                    TIMEOUT_SECONDS,
                )
                agent.until(lambda: len(processes(spark_cluster, EXECUTOR)) == 2, "both executors", TIMEOUT_SECONDS)
                uploaded = {*reader.walk(f"{root}/.flafka/tmp")}
                agent.until(
                    lambda: {*reader.walk(f"{root}/.flafka/tmp")} - uploaded,
                    "files on their way to HDFS",
                    TIMEOUT_SECONDS,
                )
                executor = chance.choice(processes(spark_cluster, EXECUTOR))
                python = workers(executor) if number % 3 else []
                asleep += len(python)
                strike(*python, *((executor,) if number % 3 != 1 else ()), asleep=True)
            feed.enough.set()
            feed.join()
            assert agent.stop() == 0
            assert "Traceback" not in agent.log
        with RunningAgent(tmp_path, configuration, "-c", str(tmp_path / "agent.conf"), "--drain") as agent:
            assert agent.wait_for_exit(TIMEOUT_SECONDS) == 0, agent.log[-4000:]
    finally:
        feed.enough.set()
        feed.join(60)
    records = read_topic(kafka_cluster.bootstrap_servers, topic, KAFKA)
    channel = bodies_by_id(records)
    documents = {id: document["body_t"].encode() for id, document in solr_documents(url).items()}
    assert differences(channel, documents) == []
    books = reconcile(records, reader, root)
    assert books.differences == []
    assert books.delivered_events == len(channel) == feed.stored
    assert asleep
    figures.append(
        f"seed {seed}: {len(channel):,} events beside executors that slept {ROUNDS} times, with {asleep} workers"
    )


def strike(*processes: int, asleep: bool) -> None:
    """Kill them, or suspend them for a while."""
    stopped = []
    try:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):  # workers end by themselves as well
                os.kill(process, signal.SIGSTOP if asleep else signal.SIGKILL)
                stopped.append(process)
        if asleep:
            time.sleep(SUSPENDED_SECONDS)
    finally:
        for process in stopped if asleep else ():
            with contextlib.suppress(ProcessLookupError):  # Spark has removed it
                os.kill(process, signal.SIGCONT)


def leaders(kafka: KafkaCluster, topic: str) -> set[int]:
    """Return the brokers that lead a partition of that topic."""
    brokers: set[int] = set()
    with KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers) as admin:

        def led() -> bool:
            (described,) = admin.describe_topics([topic])  # a restarted broker may not know it yet
            brokers.update(p["leader_id"] for p in described["partitions"] if p["leader_id"] > 0)
            return bool(brokers)

        until(led, "leaders of the topic", TIMEOUT_SECONDS)
    return brokers


def workers(driver: int) -> list[int]:
    """Return Spark's Python workers below that driver or executor: children of a daemon of the same command. They run
    the sinks."""
    parents: dict[int, int] = {}
    daemons: set[int] = set()
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(directory.name)] = int((directory / "stat").read_text().rpartition(")")[2].split()[1])
            if b"pyspark.daemon" in (directory / "cmdline").read_bytes():
                daemons.add(int(directory.name))
        except OSError:
            continue
    family = {driver}
    while children := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= children
    return [pid for pid in daemons & family if parents[pid] in daemons]
