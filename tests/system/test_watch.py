"""Monitoring of real brokers: leaders, missing brokers, and backlogs, also for a sink that is down."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from flafka.agent.services.kafka import KafkaCluster
from flafka.agent.services.running import RunningAgent
from flafka.plugins.kafka.backlog import TopicMonitor
from flafka.plugins.kafka.clients import CONSUMER, QUERY
from tests.fixtures.ports import free_port
from tests.system.prometheus import prometheus
from tests.system.running import kafka_channel, send, unique

WEEK = 168 * 3600


def cluster(agent: RunningAgent) -> dict[str, Any]:
    """Return the cluster on the agent's page; it has an error, or is empty, until brokers answered."""
    clusters = json.loads(agent.get("/api/state")[1] or b"{}").get("kafka", [])
    return clusters[0] if clusters else {}


def figure(agent: RunningAgent, sink: str, name: str) -> float | None:
    """Return a figure of a sink; None while it has none."""
    value = agent.metrics().get(f"SINK.{sink}", {}).get(name)
    return None if value is None else float(value)


def an_old_backlog(kafka: KafkaCluster) -> str:
    """Topic with a retention of two hours and one replica, whose partitions each have a record older than ten
    minutes."""
    topic, servers = unique("old"), {"bootstrap.servers": kafka.bootstrap_servers}
    settings = {"retention.ms": str(2 * 3_600_000)}
    # Kafka itself would leave out a broker that was too busy for its heartbeat.
    new = NewTopic(topic, num_partitions=3, replica_assignment=[[1], [2], [3]], config=settings)
    admin = AdminClient(servers)  # its answers arrive as long as it exists
    admin.create_topics([new])[topic].result(60)
    producer = Producer(servers)
    for partition in range(3):
        producer.produce(topic, b"x", partition=partition, timestamp=int(1000 * (time.time() - 700)))
    assert producer.flush(60) == 0
    return topic


def brokers_up(agent: RunningAgent) -> list[bool]:
    return [broker["up"] for broker in cluster(agent).get("brokers", [])]


def test_brokers_and_backlogs_as_they_are(tmp_path: Path, kafka_cluster: KafkaCluster, figures: list[str]) -> None:
    topic, port = unique("watched"), free_port()
    old_topic = an_old_backlog(kafka_cluster)
    text = f"""
a1.monitoring.port = {port}
a1.sources = s1
a1.channels = c1 old
a1.sinks = well down late
a1.sources.s1.type = netcat
a1.sources.s1.bind = 127.0.0.1
a1.sources.s1.port = 0
a1.sources.s1.channels = c1
{kafka_channel(kafka_cluster.bootstrap_servers, topic)}
{kafka_channel(kafka_cluster.bootstrap_servers, old_topic, name="old")}
a1.sinks.late.type = hdfs
a1.sinks.late.channel = old
a1.sinks.late.hdfs.path = webhdfs://127.0.0.1:{free_port()}/nowhere
a1.sinks.well.type = null
a1.sinks.well.channel = c1
a1.sinks.well.group = {topic}-well
a1.sinks.down.type = hdfs
a1.sinks.down.channel = c1
a1.sinks.down.group = {topic}-down
a1.sinks.down.hdfs.path = webhdfs://127.0.0.1:{free_port()}/nowhere
"""
    scraping = prometheus(tmp_path / "prometheus", f"127.0.0.1:{port}")
    with RunningAgent(tmp_path, text) as agent, scraping as monitoring:
        agent.until(lambda: brokers_up(agent) == [True] * 3, "the brokers")
        agent.until(lambda: figure(agent, "late", "Backlog") == 3, "the old backlog")
        late = {"FlafkaSinkBehind": {"late"}, "FlafkaRetentionNear": {"late"}}
        agent.until(lambda: late.items() <= monitoring.alerts().items(), "the alerts on the old backlog")
        of_brokers = {"FlafkaBrokersDown", "FlafkaUnderReplicated", "FlafkaPartitionsOffline"}
        assert not monitoring.alerts().keys() & of_brokers
        agent.until(lambda: cluster(agent)["partitions"] == 3, "the topic")
        began = time.time()
        send(agent.port("s1"), b"".join(b"%d\n" % n for n in range(100)))
        agent.until(lambda: agent.count("SINK.well", "EventDrainSuccessCount") == 100, "the events")
        agent.until(lambda: figure(agent, "well", "Backlog") == 0, "nothing to be left")
        assert (figure(agent, "well", "LagSeconds"), figure(agent, "well", "RetentionSecondsLeft")) == (0, None)
        agent.until(lambda: figure(agent, "down", "Backlog"), "the backlog of the sink that is down")
        agent.until(lambda: (figure(agent, "down", "LagSeconds") or 0) > 3, "the backlog to be older")
        seconds_left = figure(agent, "down", "RetentionSecondsLeft")
        assert seconds_left is not None
        age = time.time() - began
        assert (figure(agent, "down", "LagSeconds") or 0) <= age + 1
        assert WEEK - age - 1 <= seconds_left <= WEEK
        shown = cluster(agent)
        assert (sum(broker["leads"] for broker in shown["brokers"]), shown["under_replicated"]) == (3, 0)

        kafka_cluster.kill("broker-2")
        killed = time.monotonic()
        try:
            agent.until(lambda: brokers_up(agent) == [True, False, True], "the killed broker to be shown")
            figures.append(f"page: a killed broker was shown after {time.monotonic() - killed:.1f} s")
            agent.until(lambda: cluster(agent)["under_replicated"] == 3, "under-replicated partitions")
            agent.until(lambda: cluster(agent)["brokers"][1]["leads"] == 0, "other leaders")
            assert cluster(agent)["leaderless"] == 0
            down = {"FlafkaBrokersDown": {"c1", "old"}, "FlafkaPartitionsOffline": {"old"}}
            agent.until(lambda: down.items() <= monitoring.alerts().items(), "the alerts on brokers")
            agent.until(lambda: "c1" in monitoring.alerts().get("FlafkaUnderReplicated", ()), "lacking replicas")
            assert "down" in monitoring.alerts()["FlafkaComponentFailing"]
        finally:
            kafka_cluster.start()
        agent.until(lambda: brokers_up(agent) == [True] * 3, "the broker to be back")
        agent.until(lambda: cluster(agent)["under_replicated"] == 0, "its replicas to be in sync")


def test_a_backlog_is_known_where_the_settings_of_the_topic_are_not(brokers: str) -> None:
    topic = unique("untold")  # these brokers do not report settings
    producer = Producer({"bootstrap.servers": brokers})
    for n in range(5):
        producer.produce(topic, b"x", timestamp=1000 * (n + 1))
    assert producer.flush(60) == 0
    monitor = TopicMonitor(QUERY, topic, topic, {"bootstrap.servers": brokers})
    try:
        backlog = monitor.backlog(None)
        assert (backlog.records, backlog.retention) == (5, None)
    finally:
        monitor.close()


def test_the_age_of_a_backlog_is_that_of_its_group(brokers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = unique("aged")
    producer = Producer({"bootstrap.servers": brokers})
    producer.produce(topic, b"x", partition=0, timestamp=5000)
    assert producer.flush(60) == 0
    consumer = Consumer({**CONSUMER, "bootstrap.servers": brokers, "group.id": f"{topic}-done"})
    consumer.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
    consumer.close()
    monitor = TopicMonitor(QUERY, topic, f"{topic}-behind", {"bootstrap.servers": brokers})
    try:
        assert monitor.backlog(None).oldest == 5000
        monkeypatch.setattr("flafka.plugins.kafka.backlog.OLDEST_RECORD_SECONDS", 0.0)
        assert monitor.backlog(f"{topic}-done")[:2] == (0, None)
        assert monitor.backlog(None)[:2] == (1, 5000)
    finally:
        monitor.close()


def test_monitoring_creates_no_topic(brokers: str) -> None:
    topic = unique("unseen")  # these brokers would create it for a producer
    monitor = TopicMonitor(QUERY, topic, topic, {"bootstrap.servers": brokers})
    try:
        assert monitor.cluster().partitions == 0
        assert monitor.backlog(None).records == 0
    finally:
        monitor.close()
    assert topic not in AdminClient({"bootstrap.servers": brokers}).list_topics(timeout=30).topics
