"""Versions of Spark, Java and Python, here and on a cluster, as `agent check` compares them."""

from __future__ import annotations

import http.server
import importlib.metadata
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from flafka.agent.jvm import java
from flafka.agent.options import AgentOptions
from flafka.agent.runner.spark import versions
from flafka.agent.runner.spark.driver import failure_reason
from flafka.agent.runner.spark.versions import PYTHON, describe_versions, master_problems, version_problems
from flafka.agent.services.cluster import site_xml
from flafka.agent.services.spark import SparkCluster, own_master_pages
from flafka.agent.yarn.hadoop import hadoop_configuration
from flafka.agent.yarn.uploads import record_jars_upload
from flafka.plugins import ConnectivityWarning
from tests.fixtures.ports import free_port

SPARK = importlib.metadata.version("pyspark")
REMOTE = AgentOptions(spark_master="spark://there:7077")


class Page(http.server.BaseHTTPRequestHandler):
    """Part of a master's web page that is read."""

    version, workers = SPARK, 2

    def do_GET(self) -> None:
        text = f'<span class="version me-3">{self.version}</span>'
        if self.path == "/json/":
            text = f'{{"status": "ALIVE", "aliveworkers": {self.workers}}}'
        self.send_response(200)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@pytest.fixture
def master(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[tuple[type[Page], AgentOptions]]:
    """Page of a master, and an agent's options that name it."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))

    class Own(Page):
        pass

    with http.server.HTTPServer(("127.0.0.1", 0), Own) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        port = str(server.server_port)
        yield (
            Own,
            AgentOptions(spark_master=f"spark://127.0.0.1:{port}", spark_conf={"spark.master.ui.port": port}),
        )
        server.shutdown()
        thread.join()


def test_matching_versions_are_accepted() -> None:
    assert list(version_problems(AgentOptions())) == []
    assert list(version_problems(REMOTE)) == []
    assert describe_versions(AgentOptions()).startswith(f"Spark {SPARK}, Java ")
    assert describe_versions(AgentOptions()).endswith(f" and Python {PYTHON} on local[2]")
    assert describe_versions(REMOTE).endswith(
        f"on spark://there:7077; its workers need a python{PYTHON}, without packages"
    )


def test_python_of_another_version_on_the_workers() -> None:
    conf = {"spark.pyspark.python": "/opt/bin/python3.9"}
    options = REMOTE.model_copy(update={"spark_conf": conf})
    assert list(version_problems(options)) == [
        f"the workers' /opt/bin/python3.9 is not the agent's Python {PYTHON}, and Spark requires the same version "
        f"of both: name one of {PYTHON} with spark.conf.spark.pyspark.python, or run the agent with "
        "/opt/bin/python3.9"
    ]
    assert (
        list(version_problems(REMOTE.model_copy(update={"spark_conf": {**conf, "spark.archives": "own.tar.gz#own"}})))
        == []
    )


def test_files_of_executors_on_yarn_are_at_reachable_paths(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "yarn-site.xml").write_text(site_xml({}))

    def problems(**conf: str) -> list[str]:
        named = {f"spark.{name.replace('_', '.')}": value for name, value in conf.items()}
        cautions = list(version_problems(AgentOptions(spark_master="yarn", spark_conf=named)))
        assert all(isinstance(caution, ConnectivityWarning) for caution in cautions)
        return [caution.partition(",")[0] for caution in cautions]

    own, uploads = ["fs.defaultFS"], ["Spark uploads its own jars"]
    assert problems() == own
    assert problems(yarn_archive="hdfs://nn/spark.zip") == own
    assert problems(yarn_stagingDir="/apps") == own
    assert problems(yarn_stagingDir="hdfs://nn/apps") == uploads
    assert problems(hadoop_fs_defaultFS="hdfs://nn") == uploads
    (tmp_path / "core-site.xml").write_text(site_xml({"fs.defaultFS": "hdfs://nn"}))
    assert problems() == uploads
    assert problems(yarn_archive="hdfs://nn/spark.zip") == []
    record_jars_upload(hadoop_configuration(), {}, "hdfs://nn/user/ann/.flafka/spark/spark.zip")
    assert problems() == []
    assert problems(yarn_stagingDir="/apps") == uploads, "it looks for them below that"
    record_jars_upload(
        hadoop_configuration(), {"spark.yarn.stagingDir": "/apps"}, "hdfs://nn/apps/.flafka/spark/spark.zip"
    )
    assert problems(yarn_stagingDir="/apps") == []


def test_no_java_no_pyspark_and_another_pyspark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "_candidates", lambda: iter(()))
    monkeypatch.setattr(versions, "_pyspark", lambda: "3.5.1")
    other, missing = version_problems(AgentOptions())
    assert other.startswith("pyspark 3.5.1 is not compatible with Spark's Kafka connector 4.2.0: pip install")
    assert missing.startswith("no Java 17 to 23\n  either: pip install 'flafka[sandbox]'")
    monkeypatch.setattr(versions, "_pyspark", lambda: None)
    assert list(version_problems(AgentOptions())) == ["runner = spark needs pyspark: pip install 'flafka[spark]'"]


def test_on_yarn_where_spark_s_own_jars_come_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    monkeypatch.delenv("YARN_CONF_DIR", raising=False)
    (tmp_path / "yarn-site.xml").write_text(site_xml({}))
    (tmp_path / "core-site.xml").write_text(site_xml({"fs.defaultFS": "hdfs://one"}))
    (problem,) = version_problems(AgentOptions(spark_master="yarn"))
    assert isinstance(problem, ConnectivityWarning)
    assert str(problem).startswith("Spark uploads its own jars, ")
    assert "at each start: `agent spark upload` uploads them once, or set spark.conf.spark.yarn.jars or " in str(
        problem
    )
    for name in ("spark.yarn.jars", "spark.yarn.archive"):
        assert (
            list(version_problems(AgentOptions(spark_master="yarn", spark_conf={name: "local:/opt/spark/jars/*"})))
            == []
        )
    record_jars_upload(hadoop_configuration(), {}, "hdfs://one/jars.zip")
    assert list(version_problems(AgentOptions(spark_master="yarn"))) == []
    conf = {"spark.yarn.stagingDir": "hdfs://one/stage"}
    assert list(version_problems(AgentOptions(spark_master="yarn", spark_conf=conf))) == [str(problem)]
    (tmp_path / "core-site.xml").write_text(site_xml({"fs.defaultFS": "hdfs://other"}))
    assert list(version_problems(AgentOptions(spark_master="yarn"))) == [str(problem)]


def test_a_master_that_fits(master: tuple[type[Page], AgentOptions]) -> None:
    assert list(master_problems(master[1])) == []
    assert list(master_problems(AgentOptions(spark_master="k8s://https://there"))) == []


def test_the_page_of_the_sandbox_s_master_needs_no_option(master: tuple[type[Page], AgentOptions]) -> None:
    assert own_master_pages() == {}
    unnamed = master[1].model_copy(update={"spark_conf": {}})
    port = int(unnamed.spark_master.rpartition(":")[2])
    cluster = SparkCluster.default()
    cluster.directory.mkdir(parents=True)
    (cluster.directory / "cluster.json").write_text(f'{{"ports": {{"master": {port}, "master-ui": {port}}}}}')
    assert list(master_problems(unnamed, own_master_pages())) == []


def test_a_master_that_does_not(master: tuple[type[Page], AgentOptions]) -> None:
    page, options = master
    page.version = "4.1.0"
    (problem,) = master_problems(options)
    assert problem == f"{options.spark_master} is Spark 4.1.0, and pyspark here is {SPARK}: install the same version"
    assert not isinstance(problem, ConnectivityWarning)
    page.version = "4.2.99"
    (problem,) = master_problems(options)
    assert isinstance(problem, ConnectivityWarning)
    page.version, page.workers = SPARK, 0
    (problem,) = master_problems(options)
    assert problem.endswith(" has no workers: nothing is delivered until one registers")


def test_no_master_and_one_without_a_page(master: tuple[type[Page], AgentOptions]) -> None:
    _, options = master
    free = free_port()
    (problem,) = master_problems(options.model_copy(update={"spark_conf": {"spark.master.ui.port": str(free)}}))
    assert f"has no web page at http://127.0.0.1:{free}: spark.conf.spark.master.ui.port names" in problem
    (problem,) = master_problems(AgentOptions(spark_master=f"spark://127.0.0.1:{free}"))
    assert problem == (f"no Spark master answers at spark://127.0.0.1:{free} (127.0.0.1:{free}: Connection refused)")


def test_sparks_error_about_the_workers_python_is_reported_with_advice() -> None:
    for error in (
        "PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.12",
        'java.io.IOException: Cannot run program "python3.11": error=2, No such file or directory',
    ):
        assert failure_reason(f"StreamingQueryException: Traceback (most recent call last):\n{error}").startswith(
            f"the cluster's workers need a python{PYTHON} on their PATH"
        )
