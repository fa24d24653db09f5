"""YARN of the sandbox: reports of `agent check`, and files of `agent spark upload` on its HDFS."""

from __future__ import annotations

import getpass
import io
import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pyhdfs
import pytest

from flafka.agent.audit.reconciliation import HdfsReader
from flafka.agent.services.kafka import KafkaCluster
from flafka.agent.services.yarn import NODEMANAGER, RESOURCEMANAGER, YarnCluster
from flafka.agent.yarn.uploads import DRAFT_EXPIRY_SECONDS
from tests.system.onyarn import small_containers
from tests.system.running import ROOT, agent_command, kafka_channel, unique

UPLOAD = """
import os, signal, sys, time
from pathlib import Path
from flafka.agent.cli import main
from flafka.agent.yarn import uploads

home, turn, *arguments = sys.argv[1:]
uploads.spark_home = lambda: Path(home)  # 400 MB of jars would be uploaded in the same way
copied = uploads.UploadedFiles._copy

def copy(self, file, draft):
    copied(self, file, draft)
    if turn == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if turn.startswith("together"):
        Path(home, turn).touch()
        while len(list(Path(home).glob("together*"))) < 2:
            time.sleep(0.01)

uploads.UploadedFiles._copy = copy
main(arguments)
"""


@pytest.fixture
def environment(yarn_cluster: YarnCluster) -> dict[str, str]:
    return {"HADOOP_CONF_DIR": str(yarn_cluster.conf)}


def test_the_sandbox_s_cluster(tmp_path: Path, yarn_cluster: YarnCluster) -> None:
    home = tmp_path / "flafka"
    home.mkdir()
    for cluster in (yarn_cluster, yarn_cluster.hdfs):
        (home / cluster.service).symlink_to(cluster.directory)
    shown = agent_command("sandbox", "status", "yarn", "--json", environment={"XDG_DATA_HOME": str(tmp_path)})
    rows = json.loads(shown.stdout)
    assert [row["server"] for row in rows] == [RESOURCEMANAGER, NODEMANAGER]
    assert {(row["state"], row["address"]) for row in rows} == {("up", yarn_cluster.address)}


def test_check_reports_the_answers_of_the_resourcemanager(
    tmp_path: Path, kafka_cluster: KafkaCluster, yarn_cluster: YarnCluster, environment: dict[str, str]
) -> None:
    def checked(*options: str) -> str:
        file = tmp_path / "agent.conf"
        topic = unique("checked")
        channel, sink = (
            kafka_channel(kafka_cluster.bootstrap_servers, topic),
            yarn_cluster.hdfs.webhdfs,
        )
        lines = [small_containers(*options), "a1.channels = c1", "a1.sinks = k1", "a1.monitoring.port = 0", channel]
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
    report = checked("a1.spark.conf.spark.executor.memory = 9g")
    assert "no node of YARN has room for a container of 10,137 MB, which the executor needs" in report
    report = checked("a1.spark.conf.spark.pyspark.python = no-python")
    assert "a node of YARN has no no-python on the PATH of its containers" in report
    report = checked("a1.spark.conf.spark.pyspark.python = /bin/false")
    assert "the Python of the nodes of YARN, /bin/false, is unknown" in report


def test_spark_s_jars_are_uploaded_once_by_whoever_comes_first(
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
        f"a1.spark.conf.spark.yarn.stagingDir = /{unique('staging')}\n"
    )
    own = {**os.environ, **environment, "XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    client = pyhdfs.HdfsClient(yarn_cluster.hdfs.webhdfs, user_name=getpass.getuser())

    def begin(turn: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", UPLOAD, str(home), turn, "spark", "upload", "-c", str(file), "--json"]
        return subprocess.Popen(command, env=own, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def result_of(process: subprocess.Popen[str]) -> dict[str, str]:
        output, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
        (row,) = json.loads(output)
        return {**row}

    killed = begin("killed")
    assert killed.wait(300) == -signal.SIGKILL
    ends = [result_of(process) for process in [begin("together 1"), begin("together 2")]]
    assert [row["state"] for row in ends] == ["uploaded", "uploaded"]
    (uri,) = {row["file"] for row in ends}
    path = uri.removeprefix(yarn_cluster.hdfs.rpc)
    directory, _, name = path.rpartition("/")
    draft, uploaded = sorted(client.listdir(directory))
    assert draft.startswith(f".{name}.")
    assert uploaded == name
    client.set_times(f"{directory}/{draft}", modificationtime=int((time.time() - DRAFT_EXPIRY_SECONDS - 60) * 1000))
    last = result_of(begin("alone"))
    assert (last["state"], last["file"]) == ("exists", uri)
    assert client.listdir(directory) == [name]
    with zipfile.ZipFile(io.BytesIO(HdfsReader(yarn_cluster.hdfs.webhdfs).read(path))) as archive:
        assert archive.namelist() == ["one.jar", "other.jar"]
