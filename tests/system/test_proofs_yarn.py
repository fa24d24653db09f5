"""Deliveries on YARN: deaths of each part, and messages while the cluster has no room.

Every run kills two parts, by the run's seed; `./dev soak` kills all. The NodeManager is killed in tests/soak: after
its death it unpacks the executors' files anew.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from flafka.agent.services.hdfs import HdfsCluster
from flafka.agent.services.kafka import KafkaCluster
from flafka.agent.services.running import RunningAgent, until
from flafka.agent.services.yarn import MEMORY_MB, NODEMANAGER, RESOURCEMANAGER, YarnCluster
from tests.system.onyarn import kill, live, running, small_containers, state, submit
from tests.system.running import ROOT, hdfs_sink, in_hdfs, in_topic, kafka_channel, processes, reconciliation, unique
from tests.system.test_proofs_formats import batch, opened

PROCESSOR = """
from pyspark.sql import functions as F

def counts(events, options):
    key = F.split(events.body.cast("string"), " ")[1]
    counted = events.groupBy(key.alias("key")).count()
    return counted.select("key", F.concat("key", F.lit(" "), F.col("count").cast("string")).alias("body"))
"""
TIMEOUT_SECONDS = 600.0
KEYS = 7
SINKS = ("k1", "p")
SURVIVED = ("the executor", "the ResourceManager")
"""Parts after whose death the application continues."""
ENDING = ("the ApplicationMaster", "the application", "the agent")
"""Parts after whose death another application is started."""

Start = Callable[[str], RunningAgent]


@pytest.fixture
def start(tmp_path: Path, yarn_cluster: YarnCluster, lean_python: Path) -> Start:
    """Function that starts an agent of a configuration, each time with the same state directory."""
    command = (str(lean_python), "-m", "flafka", "start")
    environment = {"HADOOP_CONF_DIR": str(yarn_cluster.conf), "PYTHONPATH": str(ROOT)}
    return lambda configuration: RunningAgent(tmp_path, configuration, environment=environment, command=command)


class Feed(threading.Thread):
    """Thread that puts events into a topic until it is stopped, so that some are always in flight."""

    def __init__(self, kafka: KafkaCluster, topic: str) -> None:
        super().__init__(name="feed", daemon=True)
        self.kafka, self.topic, self.enough = kafka, topic, threading.Event()
        self.written: list[bytes] = []

    def run(self) -> None:
        """Put events of both formats, in turn."""
        channels = {form: opened(self.kafka, self.topic, form) for form in ("arrow", "raw")}
        for number, (form, channel) in enumerate(itertools.cycle(channels.items())):
            bodies = [b"event %d %d" % (n % KEYS, n) for n in range(number * 50, number * 50 + 50)]
            channel.put(batch(form, bodies))
            self.written += bodies
            if self.enough.wait(0.2):
                break
        for channel in channels.values():
            channel.close()


def shown(agent: RunningAgent) -> dict[str, str]:
    """Return the agent's health message about its application."""
    reported: dict[str, str] = json.loads(agent.get("/healthz")[1] or b"{}").get("spark", {})
    return reported


@pytest.mark.timeout(1800)  # two starts of Spark, on a machine that may be ten times slower than an idle one
def test_a_part_is_killed_under_deliveries_and_a_processor_with_state(
    tmp_path: Path,
    kafka_cluster: KafkaCluster,
    hdfs_cluster: HdfsCluster,
    yarn_cluster: YarnCluster,
    start: Start,
    seed: int,
) -> None:
    chance = random.Random(seed)
    part = chance.choice((*SURVIVED, *ENDING))
    deliver_while_killed([part], tmp_path, kafka_cluster, hdfs_cluster, yarn_cluster, start)


def deliver_while_killed(
    parts: Sequence[str],
    tmp_path: Path,
    kafka_cluster: KafkaCluster,
    hdfs_cluster: HdfsCluster,
    yarn_cluster: YarnCluster,
    start: Start,
) -> None:
    """Kill these parts in turn: each event is on HDFS once, and the processor counts it once."""
    topic, processors = unique("yarn"), tmp_path / "processors"
    root, servers = f"/yarn/{topic}", kafka_cluster.bootstrap_servers
    processors.mkdir()
    (processors / "counting.py").write_text(PROCESSOR)
    configuration = f"""
a1.channels = c1
a1.sinks = {" ".join(SINKS)}
{small_containers("a1.spark.conf.spark.sql.shuffle.partitions = 2")}
{kafka_channel(servers, topic, partitions=2)}
{hdfs_sink(hdfs_cluster.webhdfs, f"{root}/events")}
a1.sinks.p.type = spark
a1.sinks.p.channel = c1
a1.sinks.p.group = {topic}-counts
a1.sinks.p.processor = counting:counts
a1.sinks.p.processor.path = {processors}
a1.sinks.p.checkpoint = {hdfs_cluster.rpc}{root}/checkpoint
a1.sinks.p.output.counts.type = kafka
a1.sinks.p.output.counts.topic = {topic}-counts
a1.sinks.p.output.counts.mode = update
"""

    def counted() -> dict[str, int]:
        """Return the highest reported count by key."""
        counts: dict[str, int] = {}
        for event in in_topic(kafka_cluster, f"{topic}-counts"):
            key, count = event.body.decode().split()
            counts[key] = max(counts.get(key, 0), int(count))
        return counts

    def delivers(agent: RunningAgent, after: str) -> None:
        """Return True if both sinks deliver and the agent is healthy."""
        names = ("EventDrainSuccessCount", "BatchCompleteCount")
        before = [agent.count(f"SINK.{sink}", name) for sink, name in zip(SINKS, names, strict=True)]
        agent.until(
            lambda: all(
                agent.count(f"SINK.{sink}", name) > count
                for sink, name, count in zip(SINKS, names, before, strict=True)
            ),
            f"deliveries after {after}",
            TIMEOUT_SECONDS,
        )
        agent.wait_until_healthy()

    def restarted(agent: RunningAgent, times: int, reason: str) -> None:
        agent.until(
            lambda: all(reason in agent.failing().get(f"SINK.{sink}", "") for sink in SINKS),
            f"{reason!r} to be reported",
            TIMEOUT_SECONDS,
        )
        assert f"the Spark driver has ended and is restarted: {reason}" in agent.log
        delivers(agent, reason)
        assert agent.count("SINK.k1", "DriverRestartCount") == times
        assert [shown(agent)["application"]] == live(yarn_cluster)

    feed = Feed(kafka_cluster, topic)
    feed.start()
    try:
        with contextlib.ExitStack() as agents:
            agent = agents.enter_context(start(configuration))
            delivers(agent, "the start")
            (first,) = live(yarn_cluster)
            assert shown(agent)["application"] == first
            assert f":{yarn_cluster.ports['resourcemanager-web']}/" in shown(agent)["tracking"]

            restarts = 0
            for part in parts:
                (application,) = live(yarn_cluster)
                match part:
                    case "the executor":
                        (executor,) = processes(yarn_cluster, "YarnCoarseGrainedExecutorBackend")
                        os.kill(executor, signal.SIGKILL)
                    case "the ResourceManager":
                        yarn_cluster.kill(RESOURCEMANAGER)
                        yarn_cluster.start()
                    case "the ApplicationMaster":
                        (master,) = processes(yarn_cluster, "ExecutorLauncher")
                        os.kill(master, signal.SIGKILL)
                        cause = f"FAILED: Application {application} failed 1 times"
                    case "the application":
                        kill(yarn_cluster, application)
                        cause = f"KILLED: Application {application} was killed by"
                    case "the agent":
                        agent.stop(signal.SIGKILL)
                        until(lambda: not live(yarn_cluster), "the application of the killed agent to end")
                        assert "Traceback" not in agent.log
                        agent = agents.enter_context(start(configuration))
                        delivers(agent, "the agent was killed")
                        assert len(live(yarn_cluster)) == 1
                        assert "uploading" not in agent.log
                        restarts = 0
                        continue
                if part in ENDING:
                    restarts += 1
                    restarted(agent, restarts, f"the YARN application {application} has ended as {cause}")
                else:
                    delivers(agent, f"{part} was killed")
                    assert live(yarn_cluster) == [application]
                    assert agent.count("SINK.k1", "DriverRestartCount") == restarts

            assert agent.log.count("uploading libraries-") <= 1
            feed.enough.set()
            feed.join()
            wanted = Counter(event.split()[1].decode() for event in feed.written)
            agent.until(lambda: counted() == wanted, "all to be counted", TIMEOUT_SECONDS)
            agent.until(
                lambda: len(in_hdfs(hdfs_cluster, f"{root}/events")) >= len(feed.written),
                "all events",
                TIMEOUT_SECONDS,
            )
            agent.wait_until_healthy()
            assert agent.stop() == 0
            assert "Traceback" not in agent.log
        until(lambda: not live(yarn_cluster), "the application to end")
        audited = reconciliation(kafka_cluster, topic, hdfs_cluster, f"{root}/events")
        assert audited.differences == []
        assert audited.channel_events == audited.delivered_events == len(feed.written)
        assert counted() == wanted
    finally:
        feed.enough.set()
        feed.join(60)
        yarn_cluster.start()


@pytest.mark.timeout(1200)
def test_the_wait_of_an_application_is_reported_and_an_orphaned_one_ends(
    kafka_cluster: KafkaCluster, hdfs_cluster: HdfsCluster, yarn_cluster: YarnCluster, start: Start
) -> None:
    topic = unique("waiting")
    configuration = f"""
a1.channels = c1
a1.sinks = k1
{small_containers()}
{kafka_channel(kafka_cluster.bootstrap_servers, topic, partitions=1)}
{hdfs_sink(hdfs_cluster.webhdfs, f"/yarn/{topic}")}
"""

    def waits(agent: RunningAgent, *words: str) -> str:
        """Return the id of the application that waits with this message."""
        agent.until(
            lambda: all(word in agent.failing().get("SINK.k1", "") for word in words), f"{words}", TIMEOUT_SECONDS
        )
        id = shown(agent)["application"]
        assert agent.failing()["SINK.k1"].startswith(f"the YARN application {id} waits (ACCEPTED): ")
        assert words[0] in agent.log
        return id

    other = submit(yarn_cluster, "sleep 1000", memory=MEMORY_MB - 128)
    try:
        until(lambda: running(yarn_cluster, other), "the other application to run")
        with start(configuration) as agent:
            orphan = waits(agent, "Queue's AM resource limit exceeded")
            agent.stop(signal.SIGKILL)
        assert state(yarn_cluster, orphan) == "ACCEPTED", "it has no container that could notice"
        assert "Traceback" not in agent.log
        yarn_cluster.server(NODEMANAGER).stop(yarn_cluster.grace)
        with start(configuration) as agent:
            second = waits(agent, "no NodeManager runs; ")
            assert second != orphan
            assert state(yarn_cluster, orphan) == "KILLED"
            assert f"{orphan} was left by an earlier driver of this agent, and is ended" in agent.log
            assert [application for application in live(yarn_cluster) if application != other] == [second]
            assert agent.stop() == 0
            assert "Traceback" not in agent.log
        until(lambda: second not in live(yarn_cluster), "the application that waited to be ended with its agent")
    finally:
        yarn_cluster.start()
        for id in live(yarn_cluster):
            kill(yarn_cluster, id)
