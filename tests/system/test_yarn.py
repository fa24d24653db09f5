"""YARN from the sandbox: what `agent check` is told by it, and what `agent spark upload` keeps on its HDFS."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from agent.audit.reconciliation import HdfsReader
from agent.services.kafka import KafkaCluster
from agent.services.spark import spark_home
from agent.services.yarn import NODEMANAGER, RESOURCEMANAGER, YarnCluster
from tests.system.running import ROOT, agent_command, kafka_channel, unique

UPLOAD = """
import sys
from pathlib import Path
from agent.cli import main
from agent.runner.spark import kept
kept.spark_home = lambda: Path(sys.argv[1])  # 400 MB of jars would be uploaded in the same way
main(sys.argv[2:])
"""


@pytest.fixture
def environment(yarn_cluster: YarnCluster) -> dict[str, str]:
    return {"HADOOP_CONF_DIR": str(yarn_cluster.conf)}


def small(*more: str) -> str:
    """Lines for containers that leave room on a small machine, and for a cluster that has Spark."""
    return "\n".join(
        [
            "a1.runner = spark",
            "a1.spark.master = yarn",
            "a1.spark.triggerInterval = 1",
            f"a1.spark.conf.spark.yarn.jars = local:{spark_home()}/jars/*",
            "a1.spark.conf.spark.executor.instances = 1",
            "a1.spark.conf.spark.executor.memory = 512m",
            "a1.spark.conf.spark.executor.cores = 2",
            "a1.spark.conf.spark.yarn.am.memory = 256m",
            *more,
        ]
    )


def test_the_sandbox_s_cluster(tmp_path: Path, yarn_cluster: YarnCluster) -> None:
    home = tmp_path / "flafka"
    home.mkdir()
    for cluster in (yarn_cluster, yarn_cluster.hdfs):
        (home / cluster.service).symlink_to(cluster.directory)
    shown = agent_command("sandbox", "status", "yarn", "--json", environment={"XDG_DATA_HOME": str(tmp_path)})
    rows = json.loads(shown.stdout)
    assert [row["server"] for row in rows] == [RESOURCEMANAGER, NODEMANAGER]
    assert {(row["state"], row["address"]) for row in rows} == {("up", yarn_cluster.address)}


def test_what_check_is_told_by_the_resourcemanager(
    tmp_path: Path, kafka_cluster: KafkaCluster, yarn_cluster: YarnCluster, environment: dict[str, str]
) -> None:
    def checked(*more: str) -> str:
        file = tmp_path / "agent.conf"
        topic = unique("checked")
        channel, sink = (
            kafka_channel(kafka_cluster.bootstrap_servers, topic),
            yarn_cluster.hdfs.webhdfs,
        )
        lines = [small(*more), "a1.channels = c1", "a1.sinks = k1", "a1.monitoring.port = 0", channel]
        lines += [
            "a1.sinks.k1.type = hdfs",
            "a1.sinks.k1.channel = c1",
            f"a1.sinks.k1.hdfs.path = webhdfs://{sink}/{topic}",
        ]
        file.write_text("\n".join(lines))
        return agent_command("check", "-c", str(file), "--connect", environment=environment).stdout

    python = yarn_cluster.python.name
    assert f" on yarn (YARN 3.4.3 with 1 NodeManager and 4,096 MB); its executors need a {python}," in checked()
    assert "YARN has no queue night (spark.conf.spark.yarn.queue): there are default" in checked(
        "a1.spark.conf.spark.yarn.queue = night"
    )
    told = checked("a1.spark.conf.spark.executor.memory = 9g")
    assert "no node of YARN has room for a container of 10,137 MB, which the executor needs" in told
    told = checked("a1.spark.conf.spark.pyspark.python = no-python")
    assert "a node of YARN has no no-python on the PATH of its containers" in told
    told = checked("a1.spark.conf.spark.pyspark.python = /bin/false")
    assert "whether the nodes of YARN have /bin/false is not known" in told


def test_spark_s_jars_are_uploaded_once(
    tmp_path: Path, yarn_cluster: YarnCluster, environment: dict[str, str]
) -> None:
    home = tmp_path / "spark home"
    (home / "jars").mkdir(parents=True)
    for name in ("one.jar", "other.jar"):
        (home / "jars" / name).write_text(name)
    file = tmp_path / "agent.conf"
    file.write_text(
        "a1.channels = c1\na1.sinks = k1\na1.spark.master = yarn\na1.channels.c1.type = kafka\n"
        "a1.sinks.k1.type = logger\n"
        "a1.channels.c1.kafka.bootstrap.servers = 127.0.0.1:1\na1.sinks.k1.channel = c1\na1.sinks.k1.runner = spark\n"
    )
    command = [sys.executable, "-c", UPLOAD, str(home), "spark", "upload", "-c", str(file), "--json"]
    told = []
    for _ in range(2):
        own = {**os.environ, **environment, "XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, env=own, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        told += json.loads(done.stdout)
    assert [one["state"] for one in told] == ["uploaded", "is there"]
    assert told[0]["file"] == told[1]["file"]
    assert told[0]["file"].startswith(f"{yarn_cluster.hdfs.rpc}/user/")
    stored = HdfsReader(yarn_cluster.hdfs.webhdfs).read(told[0]["file"].removeprefix(yarn_cluster.hdfs.rpc))
    with zipfile.ZipFile(io.BytesIO(stored)) as archive:
        assert archive.namelist() == ["one.jar", "other.jar"]
