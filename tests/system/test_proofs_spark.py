"""Sinks that only write and flush, on Spark: two stores from one driver, which is killed; every event once."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path

from agent.services.hbase import HBaseCluster
from agent.services.kafka import KafkaCluster
from agent.services.solr import SolrCluster
from tests.system.running import Agent, kafka_channel, unique
from tests.system.stores import hbase_sink, solr_sink, stored, table_of
from tests.system.test_proofs_dead_letters import dead_letters
from tests.system.test_proofs_formats import put
from tests.system.test_solr_sink import documents


def driver_of(agent: Agent) -> int:
    """The process id of the agent's Spark driver."""
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((directory / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == agent.process.pid and b"agent.runner.spark.driver" in (directory / "cmdline").read_bytes():
                return int(directory.name)
        except OSError:
            continue
    raise AssertionError("the agent has no Spark driver")


def test_two_stores_from_one_driver_that_is_killed(
    tmp_path: Path, kafka_cluster: KafkaCluster, hbase_cluster: HBaseCluster, solr_cluster: SolrCluster
) -> None:
    topic = unique("executors")
    url = solr_cluster.create_core(topic)
    with table_of(hbase_cluster, topic) as table:
        table.connection.create_table(topic, {"f": {"max_versions": 10}})  # so that a second write would be seen
    regex = ["serializer = regex", "serializer.regex = (good) (.*)", "serializer.colNames = kind,text"]
    configuration = f"""
a1.channels = c1
a1.sinks = k1 k2
a1.runner = spark
a1.spark.triggerInterval = 1
{kafka_channel(kafka_cluster.bootstrap_servers, topic, partitions=2)}
{hbase_sink(hbase_cluster, topic, "columnFamily = f", *regex)}
{solr_sink(url, topic)}
"""
    good, bad = set[bytes](), set[bytes]()

    def more() -> None:
        for form in ("arrow", "raw"):
            number = len(good)
            some = [b"good %d" % (number + n) for n in range(250)], [b"bad %d \xff" % (number + n) for n in range(5)]
            put(kafka_cluster, topic, form, [*some[0], *some[1]])
            good.update(some[0])
            bad.update(some[1])

    def delivered(agent: Agent) -> bool:
        counts = [agent.metrics().get(sink, {}) for sink in ("SINK.k1", "SINK.k2")]
        return [c.get("Lag") for c in counts] == ["0", "0"] and len(documents(url)) == len(good | bad)

    more()
    with Agent(tmp_path, configuration) as agent:
        agent.until(lambda: delivered(agent), "the first events in both stores")
        more()
        os.kill(driver_of(agent), signal.SIGKILL)
        agent.until(lambda: agent.count("SINK.k1", "DriverRestartCount"), "the agent to notice")
        more()
        agent.until(lambda: delivered(agent), "the other events in both stores", 120)
        agent.healthy()
        shown = agent.metrics()["SINK.k1"]
        assert float(shown["BatchMilliseconds"]) > 0
        assert "RecordsPerSecond" in shown
        assert agent.count("SINK.k1", "EventRejectedCount") >= len(bad)
        assert b'flafka_lag{agent="a1",kind="sink",name="k2"} 0.0' in agent.get("/metrics/prometheus")[1]
        assert "a1.sinks.k1: batch 0: " in agent.log
        assert agent.stop() == 0
        assert "Traceback" not in agent.log
    channel = stored(kafka_cluster, topic)
    assert set(channel.values()) == good | bad
    assert {id: d["body_t"].encode() for id, d in documents(url).items()}.keys() == channel.keys()
    wanted = {id: body for id, body in channel.items() if body in good}
    with table_of(hbase_cluster, topic) as table:
        rows = {key.decode(): b"good " + cells[b"f:text"] for key, cells in table.scan()}
        assert rows == wanted
        assert not [id for id in list(rows)[::20] if len(table.cells(id, b"f:text", versions=10)) > 1]
    letters = dead_letters(kafka_cluster, topic)
    assert Counter(letter.headers["flafka.component"] for letter in letters).keys() == {"a1.sinks.k1"}
    assert {(letter.headers["flafka.id"], letter.body) for letter in letters} == channel.items() - wanted.items()
