"""Three stores and a topic behind one channel, and two runners in turn: kills lose nothing.

The stores have each event once. Spark has no transactions for the topic: there records carry their event ids.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from flafka.agent.audit.reconciliation import HdfsReader
from flafka.agent.services.hbase import HBaseCluster
from flafka.agent.services.hdfs import HdfsCluster
from flafka.agent.services.kafka import KafkaCluster
from flafka.agent.services.running import RunningAgent, until
from flafka.agent.services.solr import SolrCluster
from flafka.plugins.kafka.admin import committed_offsets
from tests.fixtures.cores import create_core
from tests.system.running import hdfs_sink, kafka_channel, reconciliation, unique
from tests.system.stores import hbase_sink, solr_sink, stored, table_of
from tests.system.test_kafka_ends import consumed, create
from tests.system.test_proofs_dead_letters import dead_letters
from tests.system.test_proofs_formats import batch, opened
from tests.system.test_solr_sink import documents


def driver_of(agent: RunningAgent) -> int:
    """Return the process id of the agent's Spark driver."""
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((directory / "stat").read_text().rpartition(")")[2].split()[1])
            if (
                parent == agent.process.pid
                and b"flafka.agent.runner.spark.driver" in (directory / "cmdline").read_bytes()
            ):
                return int(directory.name)
        except OSError:
            continue
    raise AssertionError("the agent has no Spark driver")


def at_the_end(kafka: KafkaCluster, topic: str, group: str) -> bool:
    """Return True if the group has everything that the topic holds now. Its coordinator may be moving."""
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": group})
    try:
        partitions = [
            TopicPartition(topic, number) for number in consumer.list_topics(topic).topics[topic].partitions
        ]
        return all(
            position.offset == consumer.get_watermark_offsets(position)[1]
            for position in committed_offsets(consumer, partitions, seconds=60)
        )
    finally:
        consumer.close()


def put_undecodable(kafka: KafkaCluster, topic: str) -> None:
    """Put a record of an unknown format into partition 0."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    producer.produce(topic, b"from the future", headers={"flafka.format": b"arrow/9"}, partition=0)
    assert producer.flush(60) == 0


class Feed(threading.Thread):
    """Thread that puts events into a topic until it is stopped, so that some are always in flight."""

    def __init__(self, kafka: KafkaCluster, topic: str) -> None:
        super().__init__(name="feed", daemon=True)
        self.kafka, self.topic, self.enough = kafka, topic, threading.Event()
        self.good, self.bad = set[bytes](), set[bytes]()

    def run(self) -> None:
        channels = {form: opened(self.kafka, self.topic, form) for form in ("arrow", "raw", "flume")}
        for number, (form, channel) in enumerate(itertools.cycle(channels.items())):
            good = [b"good %d" % (number * 50 + n) for n in range(50)]
            bad = [b"bad %d \xff" % number]
            channel.put(batch(form, [*good, *bad]))
            self.good.update(good)
            self.bad.update(bad)
            if self.enough.wait(0.1):
                break
        for channel in channels.values():
            channel.close()


@contextlib.contextmanager
def feeding(kafka: KafkaCluster, topic: str) -> Iterator[Feed]:
    feed = Feed(kafka, topic)
    feed.start()
    try:
        yield feed
    finally:
        feed.enough.set()
        feed.join()


@pytest.mark.timeout(900)  # two starts of Spark, on a machine that may be ten times slower than an idle one
def test_runners_are_switched_in_the_middle_of_a_batch(
    tmp_path: Path,
    kafka_cluster: KafkaCluster,
    hdfs_cluster: HdfsCluster,
    hbase_cluster: HBaseCluster,
    solr_cluster: SolrCluster,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("flafka.agent.services.running.MAX_PAUSE_SECONDS", 0.05)  # files are staged for a moment
    topic, out = unique("switched"), create(kafka_cluster, unique("switched-out"))
    root, url = f"/switched/{topic}", create_core(solr_cluster, topic)
    with table_of(hbase_cluster, topic) as table:
        table.connection.create_table(topic, {"f": {"max_versions": 10}})  # so that a second write is visible
    regex = ["serializer = regex", "serializer.regex = (good) (.*)", "serializer.colNames = kind,text"]
    configuration = f"""
a1.channels = c1
a1.sinks = k1 k2 k3 k4
a1.spark.triggerInterval = 1
{kafka_channel(kafka_cluster.bootstrap_servers, topic, partitions=2)}
{hbase_sink(hbase_cluster, topic, "columnFamily = f", *regex)}
{solr_sink(url, topic)}
{hdfs_sink(hdfs_cluster.webhdfs, root, name="k3")}
a1.sinks.k3.group = {topic}-hdfs
a1.sinks.k4.type = kafka
a1.sinks.k4.channel = c1
a1.sinks.k4.group = {topic}-out
a1.sinks.k4.kafka.bootstrap.servers = {kafka_cluster.bootstrap_servers}
a1.sinks.k4.kafka.topic = {out}
"""
    groups = [f"{topic}-{name}" for name in ("hbase", "solr", "hdfs", "out")]
    reader = HdfsReader(hdfs_cluster.webhdfs)

    def staged() -> set[str]:
        return {str(Path(path).parent) for path in reader.walk(f"{root}/.flafka/tmp")}

    def in_the_middle(agent: RunningAgent) -> None:
        """Wait until all sinks deliver and the next files are on HDFS and not yet committed."""
        for sink in ("SINK.k1", "SINK.k2", "SINK.k3", "SINK.k4"):
            agent.until(lambda s=sink: agent.count(s, "EventDrainSuccessCount"), f"events of {sink}")
        before = staged()
        agent.until(lambda: staged() - before, "files on their way")

    with feeding(kafka_cluster, topic) as feed:
        with RunningAgent(tmp_path, configuration + "a1.runner = spark\n") as agent:
            in_the_middle(agent)
            driver = driver_of(agent)
            os.kill(driver, signal.SIGSTOP)
            agent.stop(signal.SIGKILL)
        put_undecodable(kafka_cluster, topic)
        try:
            with RunningAgent(tmp_path, configuration + "a1.runner = local\n") as agent:
                in_the_middle(agent)
                # it continues with its batch until it detects that its agent has ended
                os.kill(driver, signal.SIGCONT)
                until(lambda: not Path(f"/proc/{driver}").exists(), "the driver to end")
                in_the_middle(agent)
                agent.stop(signal.SIGKILL)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(driver, signal.SIGKILL)
        with RunningAgent(tmp_path, configuration + "a1.runner = spark\n") as agent:
            in_the_middle(agent)
            put_undecodable(kafka_cluster, topic)
            feed.enough.set()
            feed.join()
            # A lag is of the start of a micro-batch, and this one may have taken long.
            agent.until(lambda: all(at_the_end(kafka_cluster, topic, group) for group in groups), "all deliveries")
            agent.until(lambda: agent.metrics()["SINK.k2"].get("Lag") == "0", "no lag")
            agent.wait_until_healthy()
            shown = agent.metrics()["SINK.k1"]
            assert float(shown["BatchMilliseconds"]) > 0
            assert "RecordsPerSecond" in shown
            assert b'flafka_lag{agent="a1",kind="sink",name="k2"} 0.0' in agent.get("/metrics/prometheus")[1]
            assert agent.stop() == 0
            assert "Traceback" not in agent.log
    good, bad = feed.good, feed.bad
    channel = stored(kafka_cluster, topic)
    assert set(channel.values()) == good | bad
    assert {id: d["body_t"].encode() for id, d in documents(url).items()}.keys() == channel.keys()
    wanted = {id: body for id, body in channel.items() if body in good}
    with table_of(hbase_cluster, topic) as table:
        rows = {key.decode(): b"good " + cells[b"f:text"] for key, cells in table.scan()}
        assert rows == wanted
        assert not [id for id in list(rows)[::20] if len(table.cells(id, b"f:text", versions=10)) > 1]
    audited = reconciliation(kafka_cluster, topic, hdfs_cluster, root)
    assert audited.differences == []
    assert audited.channel_events == audited.delivered_events == len(channel)

    records = [
        (dict(m.headers() or ()).get("flafka.id", b"").decode(), m.value()) for m in consumed(kafka_cluster, out)
    ]
    assert {body for _, body in records} == set(channel.values())
    assert all(channel[id] == body for id, body in records if id)
    in_transactions = [body for id, body in records if not id]
    assert len(in_transactions) == len({*in_transactions}) > 0

    letters = dead_letters(kafka_cluster, topic)
    undecodable = {letter.headers["flafka.id"] for letter in letters if letter.body == b"from the future"}
    assert len(undecodable) == 2
    rejected = {(letter.headers["flafka.component"], letter.headers["flafka.id"]) for letter in letters}
    assert rejected == {("a1.sinks.k1", id) for id in channel.keys() - wanted.keys()} | {
        (f"a1.sinks.k{n}", id) for n in (1, 2, 3, 4) for id in undecodable
    }
    assert all(channel.get(letter.headers["flafka.id"], b"from the future") == letter.body for letter in letters)
