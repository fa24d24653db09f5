"""A processor behind a real agent: its topic drained by a sink of ours, its files on HDFS."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path

from agent.books import HdfsReader
from agent.services.hdfs import HdfsCluster
from agent.services.kafka import KafkaCluster
from tests.processors import logins
from tests.system.running import Agent, hdfs_sink, in_hdfs, kafka_channel, unique
from tests.system.test_proofs_formats import put
from tests.system.test_proofs_spark import driver_of


def test_a_processor_between_two_channels(
    tmp_path: Path, kafka_cluster: KafkaCluster, hdfs_cluster: HdfsCluster
) -> None:
    topic, servers = unique("processed"), kafka_cluster.bootstrap_servers
    root = f"/processed/{topic}"
    configuration = f"""
a1.channels = c1 c2
a1.sinks = p k1
a1.spark.triggerInterval = 1
{kafka_channel(servers, topic, partitions=2)}
{kafka_channel(servers, f"{topic}-capitals", name="c2", partitions=1)}
{hdfs_sink(hdfs_cluster.webhdfs, f"{root}/capitals", channel="c2")}
a1.sinks.p.type = spark
a1.sinks.p.channel = c1
a1.sinks.p.processor = logins:both
a1.sinks.p.processor.path = {Path(logins.__file__).parent}
a1.sinks.p.output.capitals.type = kafka
a1.sinks.p.output.capitals.topic = {topic}-capitals
a1.sinks.p.output.rows.type = parquet
a1.sinks.p.output.rows.path = {hdfs_cluster.rpc}{root}/rows
"""
    written: list[bytes] = []

    def more() -> None:
        for form in ("arrow", "raw"):
            some = [b"event %d" % (len(written) + n) for n in range(200)]
            put(kafka_cluster, topic, form, some)
            written.extend(some)

    def capitals() -> Counter[bytes]:
        return Counter(in_hdfs(hdfs_cluster, f"{root}/capitals"))

    more()
    with Agent(tmp_path, configuration) as agent:
        agent.until(lambda: capitals().keys() == {body.upper() for body in written}, "the first events", 120)
        os.kill(driver_of(agent), signal.SIGKILL)
        more()
        agent.until(lambda: capitals().keys() == {body.upper() for body in written}, "the other events", 120)
        agent.until(lambda: agent.metrics()["SINK.p"].get("Lag") == "0", "no lag")
        agent.healthy()
        assert agent.stop() == 0
        assert "Traceback" not in agent.log
    assert max(capitals().values()) <= 2  # a topic gets what was under way when the driver was killed once more

    reader = HdfsReader(hdfs_cluster.webhdfs)
    assert any(path.endswith(".parquet") for path in reader.walk(f"{root}/rows"))
