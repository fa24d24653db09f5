"""Configuration of Hadoop, read without Java."""

from __future__ import annotations

from pathlib import Path

import pytest

from flafka.agent.config import load
from flafka.agent.services.cluster import site_xml
from flafka.agent.yarn.hadoop import hadoop_configuration
from flafka.plugins import Components, FlafkaError

CONFIGURATION = """
a1.channels = c1
a1.sinks = k1
a1.spark.master = yarn
a1.channels.c1.type = kafka
a1.channels.c1.kafka.bootstrap.servers = 127.0.0.1:1
a1.sinks.k1.type = logger
a1.sinks.k1.channel = c1
a1.sinks.k1.runner = {runner}
"""


@pytest.fixture(autouse=True)
def no_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HADOOP_CONF_DIR", "YARN_CONF_DIR"):
        monkeypatch.delenv(name, raising=False)


def write(directory: Path, **files: dict[str, str]) -> Path:
    directory.mkdir(exist_ok=True)
    for name, properties in files.items():
        (directory / f"{name}-site.xml").write_text(site_xml(properties))
    return directory


def test_both_directories_and_references(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = {"yarn.resourcemanager.hostname": "rm", "dfs.nameservices": "hdfs", "x": "${y}", "y": "${env.PLACE}/${x}"}
    first = write(tmp_path / "hadoop", core={"fs.defaultFS": "hdfs://${dfs.nameservices}"}, yarn=host)
    second = write(tmp_path / "yarn", yarn={"yarn.resourcemanager.hostname": "other", "only": "there"})
    monkeypatch.setenv("HADOOP_CONF_DIR", str(first))
    monkeypatch.setenv("YARN_CONF_DIR", str(second))
    configuration = hadoop_configuration()
    assert configuration.directories == (first, second)
    assert configuration.get("fs.defaultFS") == "hdfs://hdfs"
    assert configuration.get("only") == "there"
    assert configuration.get("missing", "otherwise") == "otherwise"
    assert configuration.get("x")  # two that refer to one another end
    assert configuration.resource_managers() == [("rm", 8032)]
    assert configuration.pages() == ["http://rm:8088"]


def test_several_resource_managers_and_https(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    properties = {
        "yarn.resourcemanager.ha.enabled": "true",
        "yarn.resourcemanager.ha.rm-ids": "rm1, rm2",
        "yarn.resourcemanager.hostname.rm1": "a",
        "yarn.resourcemanager.hostname.rm2": "b",
        "yarn.resourcemanager.address.rm2": "b:9032",
        "yarn.http.policy": "HTTPS_ONLY",
        "yarn.resourcemanager.webapp.https.address.rm1": "a:9090",
    }
    monkeypatch.setenv("YARN_CONF_DIR", str(write(tmp_path / "conf", yarn=properties)))
    configuration = hadoop_configuration()
    assert configuration.resource_managers() == [("a", 8032), ("b", 9032)]
    assert configuration.pages() == ["https://a:9090", "https://b:8090"]


def test_missing_configuration_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def message() -> str:
        with pytest.raises(FlafkaError) as raised:
            hadoop_configuration()
        return str(raised.value)

    assert message().startswith(
        "spark.master = yarn needs the environment variable HADOOP_CONF_DIR or YARN_CONF_DIR: "
    )
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path / "none"))
    assert message() == f"HADOOP_CONF_DIR = {tmp_path / 'none'} is not a directory"
    monkeypatch.setenv("HADOOP_CONF_DIR", str(write(tmp_path / "conf", core={})))
    assert message() == f"{tmp_path / 'conf'} has no yarn-site.xml, which has the address of YARN"
    (tmp_path / "conf" / "yarn-site.xml").write_text("<configuration>")
    assert message().startswith(f"{tmp_path / 'conf' / 'yarn-site.xml'} cannot be read: ")


@pytest.mark.parametrize("runner", ["local", "spark"])
def test_a_configuration_for_yarn_needs_it_at_the_line_of_the_master(runner: str, tmp_path: Path) -> None:
    file = tmp_path / "agent.conf"
    file.write_text(CONFIGURATION.format(runner=runner))
    spec, diagnostics = load(file, components=Components())
    errors = [diagnostic for diagnostic in diagnostics if diagnostic.severity == "error"]
    if runner == "local":
        assert spec is not None
        assert errors == []
    else:
        (error,) = errors
        assert (spec, error.place.line) == (None, 4)
        assert "HADOOP_CONF_DIR or YARN_CONF_DIR" in error.message
