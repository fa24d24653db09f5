"""Deliveries on a standalone Spark cluster whose workers have a bare Python.

Every run kills servers of the cluster or the application, by its seed; `./dev soak` does each.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import urllib.parse
import urllib.request
from collections import Counter
from pathlib import Path

import pytest

from flafka.agent.runner.spark.master import fetch_master_status
from flafka.agent.services.hdfs import HdfsCluster
from flafka.agent.services.kafka import KafkaCluster
from flafka.agent.services.running import RunningAgent
from flafka.agent.services.spark import MASTER, WORKERS, SparkCluster
from tests.system.running import ROOT, agent_command, hdfs_sink, in_hdfs, in_topic, kafka_channel, unique
from tests.system.test_proofs_formats import put

PLUGIN = '''
import sys
from pathlib import PurePath
from flafka.plugins import Config, Event, Interceptor, hookimpl
from workplaces.words import SAID

class Workplace(Interceptor[Config]):
    """Adds the name of the Python that it runs in."""

    type_name = "workplace"

    def intercept(self, batch):
        name = PurePath(sys.prefix).name
        return batch.map(lambda event: Event(event.body + f" {SAID} {name}".encode(), event.headers))

@hookimpl
def components():
    return [Workplace]
'''
PROCESSOR = """
from pyspark.sql import functions as F

def sizes(events, options):
    @F.udf("string")
    def size(body):
        import measures  # on an executor
        return measures.size(body)
    return events.select(size("body").alias("body"))
"""


def install(directory: Path) -> dict[str, str]:
    """Install a user's own package with a plugin; return its environment."""
    package, metadata = directory / "workplaces", directory / "workplaces-1.0.dist-info"
    for folder in (package, metadata):
        folder.mkdir(parents=True)
    (package / "__init__.py").write_text(PLUGIN)
    (package / "words.py").write_text('SAID = "by"\n')
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: workplaces\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[flafka]\nworkplaces = workplaces\n")
    return {"PYTHONPATH": os.pathsep.join([str(directory), str(ROOT)])}


def test_the_sandbox_s_cluster_and_its_bare_python(tmp_path: Path, spark_cluster: SparkCluster) -> None:
    home = tmp_path / "flafka"
    home.mkdir()
    (home / "spark").symlink_to(spark_cluster.directory)
    shown = agent_command("sandbox", "status", "spark", "--json", environment={"XDG_DATA_HOME": str(tmp_path)})
    rows = json.loads(shown.stdout)
    assert [row["server"] for row in rows] == [MASTER, *WORKERS]
    assert {(row["state"], row["address"]) for row in rows} == {("up", spark_cluster.address)}
    python = spark_cluster.python / "bin" / spark_cluster.python.name
    result = subprocess.run([python, "-c", "import pyarrow"], capture_output=True, text=True, env={}, check=False)
    assert "No module named 'pyarrow'" in result.stderr
    spark_cluster.kill(MASTER)
    spark_cluster.start()  # ready only with both workers, after they have found the new master


def running(cluster: SparkCluster) -> bool:
    """Return True if the application is alive and registered at the master."""
    status = fetch_master_status("127.0.0.1", cluster.ports[f"{MASTER}-ui"]) or {"activeapps": []}
    return any(app["state"] in ("WAITING", "RUNNING") for app in status["activeapps"])


def kill_application(cluster: SparkCluster) -> None:
    """Kill the application as the master's web page does."""
    address = f"http://127.0.0.1:{cluster.ports[f'{MASTER}-ui']}"
    with urllib.request.urlopen(address) as answer:
        fields = re.findall(r'name="(id|terminate|csrfToken)" value="(.+?)"', answer.read().decode())
    form = urllib.parse.urlencode(dict(fields)).encode()
    assert urllib.request.urlopen(f"{address}/app/kill/", form).status == 200


@pytest.mark.drawn(1)
@pytest.mark.parametrize("killed", ["worker and master", "the application"])
@pytest.mark.timeout(1500)  # packing, and unpacking three times, takes long on slow disks
def test_kills_under_a_plugin_and_a_processor_lose_and_repeat_nothing(
    tmp_path: Path,
    kafka_cluster: KafkaCluster,
    hdfs_cluster: HdfsCluster,
    spark_cluster: SparkCluster,
    lean_python: Path,
    killed: str,
) -> None:
    topic, processors = unique("cluster"), tmp_path / "processors"
    root, servers = f"/cluster/{topic}", kafka_cluster.bootstrap_servers
    processors.mkdir()
    (processors / "sizing.py").write_text(PROCESSOR)
    (processors / "measures.py").write_text(
        "def size(body):\n    return f'{body.split()[1].decode()} is {len(body)}'\n"
    )
    configuration = f"""
a1.channels = c1 c2
a1.sinks = k1 p
a1.runner = spark
a1.spark.master = {spark_cluster.address}
a1.spark.conf.spark.master.ui.port = {spark_cluster.ports[f"{MASTER}-ui"]}
a1.spark.triggerInterval = 1
{kafka_channel(servers, topic, partitions=2)}
{kafka_channel(servers, f"{topic}-sizes", name="c2", partitions=1)}
{hdfs_sink(hdfs_cluster.webhdfs, f"{root}/events")}
a1.sinks.k1.interceptors = i1 i2
a1.sinks.k1.interceptors.i1.type = mask
a1.sinks.k1.interceptors.i1.patterns = email
a1.sinks.k1.interceptors.i2.type = workplace
a1.sinks.p.type = spark
a1.sinks.p.channel = c1
a1.sinks.p.group = {topic}-sizes
a1.sinks.p.processor = sizing:sizes
a1.sinks.p.processor.path = {processors}
a1.sinks.p.checkpoint = {hdfs_cluster.rpc}{root}/checkpoint
a1.sinks.p.output.sizes.type = kafka
a1.sinks.p.output.sizes.topic = {topic}-sizes
"""
    written: list[bytes] = []

    def put_more() -> None:
        for form in ("arrow", "raw"):
            bodies = [b"event %d of eve@example.com" % (len(written) + n) for n in range(250)]
            put(kafka_cluster, topic, form, bodies)
            written.extend(bodies)

    def delivered() -> Counter[bytes]:
        return Counter(in_hdfs(hdfs_cluster, f"{root}/events"))

    def sizes() -> set[bytes]:
        return {event.body for event in in_topic(kafka_cluster, f"{topic}-sizes")}

    def all_there() -> bool:
        return delivered().keys() == expected() and sizes() == {b"%s is %d" % (b.split()[1], len(b)) for b in written}

    def expected() -> set[bytes]:
        by = spark_cluster.python.name.encode()
        return {b.replace(b"eve@example.com", b"***") + b" by " + by for b in written}

    put_more()
    environment = install(tmp_path / "installed")
    command = (str(lean_python), "-m", "flafka", "start")
    with RunningAgent(tmp_path, configuration, environment=environment, command=command) as agent:
        checked = agent_command("check", "-c", str(agent.file), "--connect", environment=environment)
        assert f" on {spark_cluster.address}; its workers need a {spark_cluster.python.name}," in checked.stdout
        assert "(hdfs, on Spark)" in checked.stdout
        agent.until(lambda: agent.count("SINK.k1", "EventDrainSuccessCount"), "the first events on HDFS", 600)
        agent.until(lambda: sizes(), "the first results")
        masked = agent.count("INTERCEPTOR.k1.i1", "EventMaskedCount")
        assert masked >= agent.count("SINK.k1", "EventDrainSuccessCount") - 250, (
            "the executors' interceptors are seen"
        )
        restarts = int(killed == "the application")
        if restarts:
            kill_application(spark_cluster)
            message = "the SparkContext was stopped from outside: Master removed our application: KILLED; its log: "
            agent.until(
                lambda: all(agent.failing().get(f"SINK.{sink}", "").startswith(message) for sink in ("k1", "p")),
                "the end of the application to be reported",
            )
            put_more()
            agent.until(all_there, "all events, by way of a new application", 600)
        else:
            try:
                put_more()
                spark_cluster.kill(WORKERS[0])
                spark_cluster.kill(MASTER)
                put_more()
                agent.until(all_there, "all events, by way of the other worker")
            finally:
                spark_cluster.start()
            agent.until(lambda: running(spark_cluster), "the master to know its application again")
        agent.wait_until_healthy()
        assert agent.count("SINK.k1", "DriverRestartCount") == restarts
        put_more()
        assert agent.stop() == 0
        assert agent.log.count("the Spark driver has ended and is restarted") == restarts
        assert "Traceback" not in agent.log
    counts = delivered()
    assert set(counts.values()) == {1}
    assert counts.keys() <= expected()
