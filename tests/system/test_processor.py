"""Processor behind a real agent: its topic is drained by a sink, its files are on HDFS, its checkpoint is its own."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from pathlib import Path

import pytest

from flafka.agent.audit.reconciliation import HdfsReader
from flafka.agent.services.hdfs import HdfsCluster
from flafka.agent.services.kafka import KafkaCluster
from flafka.agent.services.running import RunningAgent
from tests.processors import logins
from tests.system.running import agent_command, hdfs_sink, in_hdfs, kafka_channel, unique
from tests.system.test_proofs_dead_letters import dead_letters
from tests.system.test_proofs_formats import put
from tests.system.test_proofs_spark import driver_of, put_undecodable

WRONG = {
    "foreign": "processor other:function instead of logins:both, ",
    "raises": "processor logins:raises raised AnalysisException: [UNRESOLVED_COLUMN",
    "wrong": "processor logins:wrong returned list: it must return a DataFrame",
    "fails_later": "ZeroDivisionError: integer division or modulo by zero",
}
"""Error message of each wrong sink."""


def processor_sink(name: str, group: str, function: str, *options: str) -> str:
    own = ("type = spark", "channel = c1", f"group = {group}", f"processor = logins:{function}", *options)
    lines = (*own, f"processor.path = {Path(logins.__file__).parent}")
    return "".join(f"a1.sinks.{name}.{line}\n" for line in lines)


@pytest.mark.timeout(1200)  # two starts of Spark, on a machine that may be ten times slower than an idle one
def test_a_processor_between_two_channels(
    tmp_path: Path, kafka_cluster: KafkaCluster, hdfs_cluster: HdfsCluster
) -> None:
    topic, servers = unique("processed"), kafka_cluster.bootstrap_servers
    root = f"/processed/{topic}"
    good = ["output.capitals.type = kafka", f"output.capitals.topic = {topic}-capitals", "output.rows.type = parquet"]
    console = "output.rows.type = console"
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "flafka.json").write_text(json.dumps({"processor": "other:function"}))
    configuration = f"""
a1.channels = c1 c2
a1.sinks = p k1 {" ".join(WRONG)}
a1.spark.triggerInterval = 1
{kafka_channel(servers, topic, partitions=2)}
{kafka_channel(servers, f"{topic}-capitals", name="c2", partitions=1)}
{hdfs_sink(hdfs_cluster.webhdfs, f"{root}/capitals", channel="c2")}
{processor_sink("p", topic, "both", *good, f"output.rows.path = {hdfs_cluster.rpc}{root}/rows")}
a1.sinks.p.interceptors = i1
a1.sinks.p.interceptors.i1.type = mask
a1.sinks.p.interceptors.i1.patterns = email
{processor_sink("foreign", f"{topic}-1", "both", *good, f"output.rows.path = {foreign}", f"checkpoint = {foreign}")}
{processor_sink("raises", f"{topic}-2", "raises", console)}
{processor_sink("wrong", f"{topic}-3", "wrong", console)}
{processor_sink("fails_later", f"{topic}-4", "fails_later", console)}
"""
    written: list[bytes] = []
    failures: dict[str, str] = {}

    def put_more() -> None:
        for form in ("arrow", "raw"):
            bodies = [b"event %d" % (len(written) + n) for n in range(200)]
            put(kafka_cluster, topic, form, bodies)
            written.extend(bodies)

    def capitals() -> Counter[bytes]:
        return Counter(in_hdfs(hdfs_cluster, f"{root}/capitals"))

    def all_there(agent: RunningAgent) -> bool:
        if agent.count("SINK.k1", "EventDrainSuccessCount") < len(written):  # which is a cheap check
            return False
        return capitals().keys() == {body.upper() for body in written}

    def all_errors_are_reported(agent: RunningAgent) -> bool:
        failures.update(agent.failing())
        return {f"SINK.{name}" for name in WRONG} <= failures.keys()

    put_more()
    put_undecodable(kafka_cluster, topic)
    with RunningAgent(tmp_path, configuration) as agent:
        agent.until(lambda: all_there(agent), "the first events")
        agent.until(lambda: all_errors_are_reported(agent), "the errors of all wrong sinks")
        agent.until(
            lambda: agent.count("INTERCEPTOR.p.i1", "EventReceivedCount") == 2 * len(written), "each output's"
        )
        agent.until(
            lambda: agent.count("SINK.p", "EventDrainSuccessCount") == len(written), "each event once in the figures"
        )
        agent.until(lambda: "is arrow/9" in agent.degraded().get("SINK.p", ""), "word of what cannot be decoded")
        assert "--component a1.sinks.p" in agent.log
        os.kill(driver_of(agent), signal.SIGKILL)
        put_more()
        agent.until(lambda: all_there(agent), "the other events")
        agent.until(lambda: agent.metrics()["SINK.p"].get("Lag") == "0", "no lag")
        agent.until(lambda: "SINK.p" not in agent.failing(), "the good one to be healthy")
        assert agent.count("SINK.p", "DriverRestartCount") == 1
        assert agent.stop() == 0
        assert "Traceback" not in agent.log
    assert max(capitals().values()) <= 2  # a topic may have the batch in flight twice when the driver was killed
    for name, text in WRONG.items():
        assert text in failures[f"SINK.{name}"]
    assert "(logins.py, line " in failures["SINK.raises"]

    reader = HdfsReader(hdfs_cluster.webhdfs)
    assert any(path.endswith(".parquet") for path in reader.walk(f"{root}/rows"))
    letters = dead_letters(kafka_cluster, topic)  # once for each output, as they read independently
    assert ("a1.sinks.p", b"from the future") in {(x.headers["flafka.component"], x.body) for x in letters}
    assert {letter.body for letter in letters} == {b"from the future"}

    (tmp_path / "broken.conf").write_text(configuration.replace("logins:raises", "broken:f"))
    refused = agent_command("start", "-c", str(tmp_path / "broken.conf"))
    assert refused.returncode == 2
    assert (
        "module broken cannot be imported: ZeroDivisionError: division by zero (broken.py, line 3)" in refused.stderr
    )
