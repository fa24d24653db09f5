"""Changes and accidents of a topic and its groups under a running Spark driver, in one session.

Partitions are added, groups are reset and deleted, and the driver is suspended while retention takes records. The
topic is recreated, and the JVM runs out of memory, whereupon the topic is recreated without a driver. Every run takes
three of these, by its seed; the soak takes all.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Collection, Iterable
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_END, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from flafka.agent.services.hdfs import HdfsCluster
from flafka.agent.services.kafka import KafkaCluster
from flafka.agent.services.running import RunningAgent, until
from flafka.agent.services.solr import SolrCluster
from flafka.plugins.kafka.properties import QUIET
from tests.fixtures.cores import create_core
from tests.system.running import agent_command, hdfs_sink, in_hdfs, kafka_channel, unique
from tests.system.stores import solr_sink
from tests.system.test_proofs_formats import put
from tests.system.test_proofs_spark import driver_of
from tests.system.test_solr_sink import documents

PROCESSOR = """
import contextlib, threading, time
from pathlib import Path

def obeying(events, options):
    jvm, order = events.sparkSession._jvm, Path(options["order"])

    def obey():
        while not order.exists():
            time.sleep(0.1)
        with contextlib.suppress(Exception):  # the answer does not come any more
            jvm.java.nio.ByteBuffer.allocate(2**31 - 1)

    threading.Thread(target=obey, daemon=True).start()
    return events.select("body")
"""
TIMEOUT_SECONDS = 600.0
ADVICE = re.compile(
    r"records (\d+) to (\d+), [\d,]+ in all, were removed by retention unread\. "
    r"To accept the loss: agent (group reset .+)"
)


EVENTS = (
    "partitions are added",
    "the group is reset",
    "the group is deleted",
    "retention overtakes the driver",
    "the topic is made again",
    "memory ends",
)
"""Events in their order."""
DRAWN = 3


@pytest.mark.timeout(1800)  # two starts of Spark, on a machine that may be ten times slower than an idle one
def test_what_happens_to_a_topic_under_a_running_driver(
    tmp_path: Path, kafka_cluster: KafkaCluster, hdfs_cluster: HdfsCluster, solr_cluster: SolrCluster, seed: int
) -> None:
    deliver_meanwhile(random.Random(seed).sample(EVENTS, DRAWN), tmp_path, kafka_cluster, hdfs_cluster, solr_cluster)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_all_that_happens_to_a_topic_under_a_running_driver(
    tmp_path: Path, kafka_cluster: KafkaCluster, hdfs_cluster: HdfsCluster, solr_cluster: SolrCluster
) -> None:
    deliver_meanwhile(EVENTS, tmp_path, kafka_cluster, hdfs_cluster, solr_cluster)


def deliver_meanwhile(
    happening: Collection[str],
    tmp_path: Path,
    kafka_cluster: KafkaCluster,
    hdfs_cluster: HdfsCluster,
    solr_cluster: SolrCluster,
) -> None:
    """Deliver to HDFS and Solr during these changes: each store has each event as often as expected."""
    (tmp_path / "processors").mkdir()
    (tmp_path / "processors" / "ends.py").write_text(PROCESSOR)
    topic, order = unique("under"), tmp_path / "order"
    root, url = f"/under/{topic}", create_core(solr_cluster, topic)
    servers = kafka_cluster.bootstrap_servers
    admin = AdminClient({"bootstrap.servers": servers, **QUIET})
    configuration = f"""
a1.channels = c1 c2
a1.sinks = k1 k2 p
a1.runner = spark
a1.spark.triggerInterval = 1
{kafka_channel(servers, topic, partitions=2)}
{kafka_channel(servers, f"{topic}-idle", name="c2", partitions=1)}
{hdfs_sink(hdfs_cluster.webhdfs, root)}
{solr_sink(url, topic)}
a1.sinks.p.type = spark
a1.sinks.p.channel = c2
a1.sinks.p.processor = ends:obeying
a1.sinks.p.processor.path = {tmp_path / "processors"}
a1.sinks.p.option.order = {order}
a1.sinks.p.output.rows.type = console
"""
    sinks = ("SINK.k1", "SINK.k2")
    on_hdfs, in_solr = Counter[bytes](), Counter[bytes]()
    """Expected bodies."""

    def written(name: str, events: int = 40) -> list[bytes]:
        bodies = [b"%s %d" % (name.encode(), number) for number in range(events)]
        put(kafka_cluster, topic, "raw", bodies)
        return bodies

    def expect(bodies: Iterable[bytes]) -> None:
        added = list(bodies)
        on_hdfs.update(added)
        in_solr.update(added)

    def all_there(after: str) -> None:
        def stored() -> bool:
            return Counter(in_hdfs(hdfs_cluster, root)) >= on_hdfs and solr_bodies() >= in_solr

        def counted() -> bool:  # a cheap check
            wanted = {"SINK.k1": on_hdfs.total(), "SINK.k2": in_solr.total()}
            return all(agent.count(sink, "EventDrainSuccessCount") >= n for sink, n in wanted.items())

        agent.until(counted, f"all events after {after} to be counted", TIMEOUT_SECONDS)
        agent.until(stored, f"all events after {after}", TIMEOUT_SECONDS)
        agent.wait_until_healthy()
        assert Counter(in_hdfs(hdfs_cluster, root)) == on_hdfs
        assert solr_bodies() == in_solr

    def solr_bodies() -> Counter[bytes]:
        return Counter(document["body_t"].encode() for document in documents(url).values())

    def recreate_topic() -> None:
        admin.delete_topics([topic])[topic].result(60)
        until(lambda: topic not in admin.list_topics(timeout=60).topics, "the topic to be gone")
        with contextlib.suppress(KafkaException):  # the agent may have created it
            admin.create_topics([NewTopic(topic, 2, 3)])[topic].result(60)

    def operator(command: str) -> subprocess.CompletedProcess[str]:
        return agent_command(*command.split(), "--bootstrap-server", servers, "--yes")

    def removed() -> dict[str, re.Match[str]]:
        matches = {sink: ADVICE.search(agent.failing().get(sink, "")) for sink in sinks}
        return {sink: advice for sink, advice in matches.items() if advice is not None}

    with RunningAgent(tmp_path, configuration) as agent:
        expect(written("first"))
        all_there("the start")

        driver = driver_of(agent)
        os.kill(driver, signal.SIGQUIT)
        agent.until(lambda: "agent/runner/spark/driver.py" in agent.log, "the driver to tell what its threads do")

        if "partitions are added" in happening:
            admin.create_partitions([NewPartitions(topic, 3)])[topic].result(60)
            expect(written("grown"))
            all_there("partitions were added")
            assert driver_of(agent) == driver

        if "the group is reset" in happening:
            assert operator(f"group reset {topic} --topic {topic} --to earliest").returncode == 0
            on_hdfs.update([*on_hdfs])
            all_there("a reset beside the running driver")

        if "the group is deleted" in happening:
            admin.delete_consumer_groups([topic])[topic].result(60)
            expect(written("without a group"))
            all_there("the group was deleted under the running driver")

        if "retention overtakes the driver" in happening:
            driver = driver_of(agent)
            os.kill(driver, signal.SIGSTOP)
            try:
                written("too old")
                partitions = admin.list_topics(topic, timeout=60).topics[topic].partitions
                to_the_end = [TopicPartition(topic, partition, OFFSET_END) for partition in partitions]
                for deleted in admin.delete_records(to_the_end).values():
                    deleted.result(60)
            finally:
                os.kill(driver, signal.SIGCONT)
            lost = Counter[str]()
            deadline = time.monotonic() + TIMEOUT_SECONDS
            while sum(lost.values()) < 2 * 40:
                assert time.monotonic() < deadline, f"{lost}: {agent.failing()}"
                for sink, advice in removed().items():
                    assert operator(advice[3]).returncode == 0
                    lost[sink] += int(advice[2]) - int(advice[1]) + 1
                    agent.until(
                        lambda s=sink, a=advice: removed().get(s, [None])[0] != a[0], "the reset to be followed"
                    )
            assert lost == {"SINK.k1": 40, "SINK.k2": 40}
            expect(written("young"))
            all_there("retention overtook the driver")

        if "the topic is made again" in happening:
            recreate_topic()
            expect(written("new", 400))  # it passes the old offsets
            all_there("the topic was made again")
            assert all(agent.count(sink, "TopicRecreatedCount") == 1 for sink in sinks)
            assert agent.log.count(f"topic {topic} was deleted and recreated: ") >= 2
            assert agent.count("SINK.k1", "DriverRestartCount") == 0

        if "memory ends" in happening:
            order.touch()
            memory = re.compile(
                r"Spark's JVM ended with code 3: java\.lang\.OutOfMemoryError: .*spark\.driver\.memory"
            )
            agent.until(
                lambda: all(memory.match(agent.failing().get(f"SINK.{sink}", "")) for sink in ("k1", "k2", "p")),
                "the end of memory to be reported",
                TIMEOUT_SECONDS,
            )
            order.unlink()
            recreate_topic()
            expect(written("newest"))
            all_there("the topic was made again while there was no driver")
            assert agent.count("SINK.k1", "DriverRestartCount") == 1

        assert agent.stop() == 0
        restarts = int("memory ends" in happening)
        assert agent.log.count("the Spark driver has ended and is restarted: ") == restarts
        assert "Traceback" not in agent.log
