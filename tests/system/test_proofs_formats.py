"""Topic with all three formats, delivered into HDFS by both runners: every event once, unchanged.

The soak has Spark alone: test_proofs_spark.py has all three formats, and test_audit.py a drain on Spark.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from flafka.agent.services.hdfs import HdfsCluster
from flafka.agent.services.kafka import KafkaCluster
from flafka.agent.services.running import RunningAgent
from flafka.plugins import Batch, Event
from tests.system.running import KAFKA, hdfs_sink, in_hdfs, kafka_channel, reconciliation, unique


def opened(kafka: KafkaCluster, topic: str, form: str) -> Any:
    """Return an open channel that writes this format."""
    properties = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "kafka.topic": topic, "format": form}
    config, problems = KAFKA.config_class.parse({**properties, "partitions": "2"})
    assert config is not None, problems
    channel = KAFKA(config, "c1")
    channel.open()
    return channel


def batch(form: str, bodies: list[bytes]) -> Batch:
    """Return events with a header that names their format."""
    return Batch.of([Event(body, {"host": "web", "key": form}) for body in bodies])


def put(kafka: KafkaCluster, topic: str, form: str, bodies: list[bytes]) -> None:
    channel = opened(kafka, topic, form)
    channel.put(batch(form, bodies))
    channel.close()


@pytest.mark.parametrize("runner", ["local", pytest.param("spark", marks=pytest.mark.soak)])
def test_both_runners_deliver_all_formats(
    runner: str, tmp_path: Path, kafka_cluster: KafkaCluster, hdfs_cluster: HdfsCluster
) -> None:
    topic, written = unique("formats"), Counter[bytes]()
    for number in range(3):
        for form in ("flume", "arrow", "raw"):
            bodies = [b"%s %d-%d \xff" % (form.encode(), number, n) for n in range(500)]
            put(kafka_cluster, topic, form, bodies)
            written.update(bodies)
    configuration = f"""
a1.channels = c1
a1.sinks = k1
a1.runner = {runner}
a1.spark.triggerInterval = 2
{kafka_channel(kafka_cluster.bootstrap_servers, topic, partitions=2)}
{hdfs_sink(hdfs_cluster.webhdfs, f"/proofs/{topic}/%{{host}}/%{{key}}")}
"""
    with RunningAgent(tmp_path, configuration, "-c", str(tmp_path / "agent.conf"), "--drain") as agent:
        assert agent.wait_for_exit() == 0, agent.log[-4000:]
        assert "Traceback" not in agent.log
    assert Counter(in_hdfs(hdfs_cluster, f"/proofs/{topic}")) == written
    audited = reconciliation(kafka_cluster, topic, hdfs_cluster, f"/proofs/{topic}")
    assert audited.differences == []
    assert audited.channel_events == audited.delivered_events == 4500
