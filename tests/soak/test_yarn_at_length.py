"""Parts of YARN that are lost for longer, and queues that refuse or preempt: `./dev soak`."""

from __future__ import annotations

import getpass
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from flafka.agent.services.cluster import site_xml
from flafka.agent.services.hdfs import HdfsCluster
from flafka.agent.services.kafka import KafkaCluster
from flafka.agent.services.running import RunningAgent, until
from flafka.agent.services.yarn import MEMORY_MB, NODEMANAGER, RESOURCEMANAGER, YarnCluster
from tests.system.onyarn import kill, live, running, small_containers, submit
from tests.system.running import ROOT, hdfs_sink, in_hdfs, kafka_channel, processes, reconciliation, unique
from tests.system.test_proofs_formats import put
from tests.system.test_proofs_yarn import ENDING, SURVIVED, Start, deliver_while_killed, start

__all__ = ["start"]

TIMEOUT_SECONDS = 600.0
Command = tuple[str, ...]
QUEUE = "yarn.scheduler.capacity.root"
QUEUES = {
    f"{QUEUE}.queues": "default,guest,closed",
    # Queue `guest` uses resources that no other queue needs, and is to be preempted.
    **{f"{QUEUE}.{name}.capacity": percent for name, percent in (("default", "98"), ("guest", "1"), ("closed", "1"))},
    **{f"{QUEUE}.{name}.maximum-capacity": "100" for name in ("default", "guest", "closed")},
    f"{QUEUE}.acl_submit_applications": " ",
    f"{QUEUE}.acl_administer_queue": " ",
    f"{QUEUE}.default.acl_submit_applications": "*",
    f"{QUEUE}.guest.acl_submit_applications": "*",
    f"{QUEUE}.closed.acl_submit_applications": "bob",
    "yarn.scheduler.capacity.maximum-am-resource-percent": "1",
    f"{QUEUE}.guest.user-limit-factor": "100",
}
PREEMPTION = "yarn.resourcemanager.monitor.capacity.preemption"
MANAGER = {
    "yarn.acl.enable": "true",
    "yarn.admin.acl": getpass.getuser(),
    "yarn.resourcemanager.scheduler.monitor.enable": "true",
    f"{PREEMPTION}.monitoring_interval": "500",
    f"{PREEMPTION}.max_wait_before_kill": "1000",
    f"{PREEMPTION}.total_preemption_per_round": "1.0",
    f"{PREEMPTION}.natural_termination_factor": "1.0",
}


class Queues(YarnCluster):
    """Cluster with three queues."""

    def configure(self) -> None:
        """Configure it like every cluster, with additions for its ResourceManager."""
        super().configure()
        conf = self.directory / "conf" / RESOURCEMANAGER
        (conf / "capacity-scheduler.xml").write_text(site_xml(QUEUES))
        (conf / "yarn-site.xml").write_text(site_xml(self._site() | MANAGER))


class Events:
    """Events of one topic, which an agent's sink delivers to HDFS."""

    def __init__(self, name: str, kafka: KafkaCluster, hdfs: HdfsCluster) -> None:
        self.topic = unique(name)
        self.root = f"/yarn/{self.topic}/events"
        self._kafka, self._hdfs, self._written = kafka, hdfs, 0

    def configuration(self, spark: str) -> str:
        """Return an agent's configuration with additional lines about Spark."""
        return f"""
a1.channels = c1
a1.sinks = k1
{small_containers(spark)}
{kafka_channel(self._kafka.bootstrap_servers, self.topic, partitions=2)}
{hdfs_sink(self._hdfs.webhdfs, self.root)}
"""

    def put_events(self) -> None:
        """Put 200 events into the channel."""
        for form in ("arrow", "raw"):
            put(self._kafka, self.topic, form, [b"event %d" % (self._written + n) for n in range(100)])
            self._written += 100

    def delivered_by(self, agent: RunningAgent) -> None:
        """Put more events; each is delivered by this agent."""
        self.put_events()
        agent.until(lambda: len(in_hdfs(self._hdfs, self.root)) == self._written, "all events", TIMEOUT_SECONDS)
        agent.wait_until_healthy()

    def reconcile(self) -> None:
        """Check that each event is in HDFS once."""
        audited = reconciliation(self._kafka, self.topic, self._hdfs, self.root)
        assert audited.differences == []
        assert audited.channel_events == audited.delivered_events == self._written


@pytest.fixture
def queues(hdfs_cluster: HdfsCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[YarnCluster]:
    with Queues(tmp_path_factory.mktemp("queues"), hdfs_cluster, fixed_ports=False) as cluster:
        yield cluster


@pytest.fixture
def command(lean_python: Path) -> Command:
    return str(lean_python), "-m", "flafka", "start"


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_each_part_is_killed_under_deliveries_and_a_processor_with_state(
    tmp_path: Path, kafka_cluster: KafkaCluster, hdfs_cluster: HdfsCluster, yarn_cluster: YarnCluster, start: Start
) -> None:
    parts = (*SURVIVED, *ENDING)
    deliver_while_killed(parts, tmp_path, kafka_cluster, hdfs_cluster, yarn_cluster, start)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_a_second_attempt_no_room_a_killed_node_and_a_stopped_resource_manager_at_the_end(
    tmp_path: Path,
    kafka_cluster: KafkaCluster,
    hdfs_cluster: HdfsCluster,
    yarn_cluster: YarnCluster,
    command: Command,
) -> None:
    events = Events("attempts", kafka_cluster, hdfs_cluster)
    configuration = events.configuration("a1.spark.conf.spark.yarn.maxAppAttempts = 2")
    environment = {"HADOOP_CONF_DIR": str(yarn_cluster.conf), "PYTHONPATH": str(ROOT)}
    try:
        with RunningAgent(tmp_path, configuration, environment=environment, command=command) as agent:
            events.delivered_by(agent)
            (first,) = live(yarn_cluster)
            (master,) = processes(yarn_cluster, "ExecutorLauncher")
            os.kill(master, signal.SIGKILL)
            agent.until(
                lambda: processes(yarn_cluster, "ExecutorLauncher") not in ([], [master]), "the second attempt"
            )
            events.delivered_by(agent)
            assert live(yarn_cluster) == [first]
            assert agent.count("SINK.k1", "DriverRestartCount") == 0

            (executor,) = processes(yarn_cluster, "YarnCoarseGrainedExecutorBackend")
            other = submit(yarn_cluster, "sleep 1000", memory=MEMORY_MB - 768 - 896)
            until(lambda: running(yarn_cluster, other), "the other application to run")
            waiting = submit(yarn_cluster, "sleep 1000", memory=896)  # it waits for the resources of the executor
            os.kill(executor, signal.SIGKILL)
            until(lambda: running(yarn_cluster, waiting), "it to come first", TIMEOUT_SECONDS)
            lacking = (
                f"YARN gives {first} no executor: queue root.default is full to 97 %, and a container with 512m "
            )
            agent.until(
                lambda: agent.failing().get("SINK.k1", "").startswith(lacking), "it to be reported", TIMEOUT_SECONDS
            )
            for id in (other, waiting):
                kill(yarn_cluster, id)
            events.delivered_by(agent)

            yarn_cluster.kill(NODEMANAGER)
            events.put_events()
            yarn_cluster.start()
            message = f"the YARN application {first} has ended as FAILED: Application {first} failed 2 times"
            agent.until(
                lambda: agent.failing().get("SINK.k1", "").startswith(message),
                "the report of its end",
                TIMEOUT_SECONDS,
            )
            events.delivered_by(agent)
            assert agent.count("SINK.k1", "DriverRestartCount") == 1
            assert first not in live(yarn_cluster)

            yarn_cluster.kill(RESOURCEMANAGER)
            events.delivered_by(agent)
            assert agent.stop() == 0
            assert "Traceback" not in agent.log
    finally:
        yarn_cluster.start()
    until(lambda: not live(yarn_cluster), "the unreported end of the application")
    events.reconcile()


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_a_queue_refuses_and_another_one_preempts(
    tmp_path: Path,
    kafka_cluster: KafkaCluster,
    hdfs_cluster: HdfsCluster,
    queues: YarnCluster,
    command: Command,
) -> None:
    events = Events("queues", kafka_cluster, hdfs_cluster)

    def started(queue: str) -> RunningAgent:
        configuration = events.configuration(f"a1.spark.conf.spark.yarn.queue = {queue}")
        # Every user of the ResourceManager may use each queue.
        environment = {"HADOOP_CONF_DIR": str(queues.conf), "PYTHONPATH": str(ROOT), "HADOOP_USER_NAME": "ann"}
        return RunningAgent(tmp_path, configuration, environment=environment, command=command)

    def await_report(agent: RunningAgent, *words: str) -> None:
        agent.until(
            lambda: all(word in agent.failing().get("SINK.k1", "") for word in words), f"{words}", TIMEOUT_SECONDS
        )

    with started("no") as agent:
        await_report(agent, "unknown queue")
    with started("closed") as agent:
        await_report(agent, "AccessControlException: User ann does not have permission to submit", " to queue closed")
    with started("guest") as agent:
        events.delivered_by(agent)
        (first,) = live(queues)
        events.put_events()
        other = submit(queues, "sleep 1000", memory=MEMORY_MB - 128)
        await_report(agent, "waits (ACCEPTED): ")
        assert f"the YARN application {first} has ended as FAILED: " in agent.log
        assert "Container preempted by scheduler" in agent.log
        kill(queues, other)
        events.delivered_by(agent)
        assert agent.count("SINK.k1", "DriverRestartCount") >= 1
        assert agent.stop() == 0
    events.reconcile()
