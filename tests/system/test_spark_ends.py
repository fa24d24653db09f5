"""A SparkContext that someone else stops, and a JVM that runs out of memory: told, and begun anew."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from agent.services.kafka import KafkaCluster
from tests.system.running import Agent, kafka_channel, unique

PROCESSOR = """
import contextlib, threading, time
from pathlib import Path

def obeying(events, options):
    spark, orders = events.sparkSession, Path(options["orders"])

    def obey():
        while not orders.exists():
            time.sleep(0.1)
        order = orders.read_text()
        orders.unlink()
        with contextlib.suppress(Exception):  # the answer does not come any more
            if order == "stop":
                spark.sparkContext._jsc.sc().stop()
            else:
                spark._jvm.java.nio.ByteBuffer.allocate(2**31 - 1)

    threading.Thread(target=obey, daemon=True).start()
    return events.select("body")
"""


@pytest.mark.timeout(900)  # three starts of Spark, on a machine that may be ten times slower than an idle one
def test_spark_that_ends_is_told_and_started_again(tmp_path: Path, kafka_cluster: KafkaCluster) -> None:
    (tmp_path / "processors").mkdir()
    (tmp_path / "processors" / "ends.py").write_text(PROCESSOR)
    orders, topic = tmp_path / "orders", unique("ends")
    configuration = f"""
a1.channels = c1
a1.sinks = p k1
a1.runner = spark
a1.spark.triggerInterval = 1
{kafka_channel(kafka_cluster.bootstrap_servers, topic, partitions=1)}
a1.sinks.p.type = spark
a1.sinks.p.channel = c1
a1.sinks.p.group = {topic}-p
a1.sinks.p.processor = ends:obeying
a1.sinks.p.processor.path = {tmp_path / "processors"}
a1.sinks.p.option.orders = {orders}
a1.sinks.p.output.rows.type = console
a1.sinks.k1.type = null
a1.sinks.k1.channel = c1
"""
    sinks = ("SINK.p", "SINK.k1")

    def order(text: str) -> None:
        draft = orders.with_suffix(".new")
        draft.write_text(text)
        draft.rename(orders)

    def all_say(pattern: str) -> bool:
        failing = agent.failing()
        return all(re.match(pattern, failing.get(sink, "")) for sink in sinks)

    def nothing_left() -> bool:
        shown = agent.metrics()
        return all(shown.get(sink, {}).get("Lag") == "0" for sink in sinks)

    def counts(counter: str) -> list[int]:
        return [agent.count(sink, counter) for sink in sinks]

    with Agent(tmp_path, configuration) as agent:
        agent.until(nothing_left, "both queries")
        before = counts("FailureCount")  # a new cluster's coordinator may not have been found at once
        order("stop")
        stopped = "the SparkContext was stopped from outside; its log: "
        agent.until(lambda: all_say(stopped), "the stop to be told")
        agent.until(nothing_left, "both queries again")
        agent.healthy()
        assert counts("DriverRestartCount") == [1, 1]
        assert counts("FailureCount") == [count + 1 for count in before]
        order("memory")
        agent.until(
            lambda: all_say(r"Spark's JVM ended with code 3: java\.lang\.OutOfMemoryError: .*spark\.driver\.memory"),
            "the end of memory to be told",
        )
        assert agent.stop() == 0
        assert agent.log.count("the Spark driver has ended and is started again: ") == 2
        assert "Traceback" not in agent.log
        assert agent.log.count(stopped) == 1
