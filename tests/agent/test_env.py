"""`agent env`, and the one setting that moves all servers of a user."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from flafka.agent.cli import demo as demo_module
from flafka.agent.cli import main
from flafka.agent.services import ServiceError
from flafka.agent.services.cluster import LAST_INSTANCE, Cluster
from flafka.agent.services.hbase import HBaseCluster
from flafka.agent.services.hdfs import HdfsCluster
from flafka.agent.services.kafka import KafkaCluster
from flafka.agent.services.solr import SolrCluster
from flafka.agent.services.spark import SparkCluster
from flafka.agent.services.yarn import YarnCluster

CLASSES: tuple[type[Cluster], ...] = (
    *(KafkaCluster, HdfsCluster, HBaseCluster, SolrCluster, SparkCluster, YarnCluster),
)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    for name in ("FLAFKA_CLUSTER_DIR", "FLAFKA_INSTANCE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_one_setting_moves_ports_and_directories(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ports: list[int] = []
    for number in range(LAST_INSTANCE + 1):
        monkeypatch.setenv("FLAFKA_INSTANCE", str(number))
        clusters = [cls.default() for cls in CLASSES]
        assert {cluster.directory.parent for cluster in clusters} == {
            home / (f"flafka-{number}" if number else "flafka")
        }
        ports += [port for cluster in clusters for port in cluster.preferred_ports().values()]
    assert len(ports) == len(set(ports))
    assert max(ports) < 32_768, "no ports of outgoing connections"
    monkeypatch.setenv("FLAFKA_INSTANCE", "ten")
    with pytest.raises(ServiceError, match="FLAFKA_INSTANCE must be a number from 0 to 9, not 'ten'"):
        KafkaCluster.default()
    refused = CliRunner().invoke(main, ["env"])
    assert (refused.exit_code, refused.output) == (
        1,
        "Error: FLAFKA_INSTANCE must be a number from 0 to 9, not 'ten'\n",
    )


def test_all_addresses_for_people_programs_and_shells(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLAFKA_INSTANCE", "3")
    hdfs, solr = HdfsCluster.default().reserve(), SolrCluster.default().reserve()
    rows = [line.split("\t") for line in CliRunner().invoke(main, ["env"]).output.splitlines()]
    assert rows[0] == ["SERVICE", "ADDRESS", "DIRECTORY"]
    assert [row[0] for row in rows[1:]] == ["kafka", "hdfs", "hbase", "solr", "spark", "yarn"]
    assert rows[1][1:] == ["-", str(home / "flafka-3" / "cluster")]
    assert rows[2][1:] == [hdfs.address, str(home / "flafka-3" / "hdfs")]
    environment = json.loads(CliRunner().invoke(main, ["env", "--json"]).output)
    assert environment["directory"] == str(home / "flafka-3")
    assert environment["servers"]["solr"]["ports"] == solr.ports
    assert environment["servers"]["hbase"]["address"] is None
    lines = CliRunner().invoke(main, ["env", "--export"]).output
    assert lines == (
        f"export FLAFKA_HDFS={hdfs.webhdfs}\nexport FLAFKA_HDFS_RPC={hdfs.rpc}\nexport FLAFKA_SOLR={solr.address}\n"
    )
    shell = subprocess.run(["sh", "-c", f"{lines}env"], capture_output=True, text=True, check=True).stdout
    assert f"FLAFKA_SOLR={solr.address}" in shell.splitlines()
    assert os.environ.get("FLAFKA_SOLR") != solr.address


def test_the_demo_names_the_extras_it_needs_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    def find(module: str) -> object:
        return None if module in ("pyspark", "pysolr") else module

    monkeypatch.setattr("importlib.util.find_spec", find)
    monkeypatch.setattr(demo_module, "_run", None)
    refused = CliRunner().invoke(main, ["demo"])
    assert (refused.exit_code, refused.output) == (
        1,
        "error: the demo needs extras that are not installed: pip install 'flafka[solr,spark]'\n",
    )


def test_public_modules_are_typed_for_importers() -> None:
    root = Path(demo_module.__file__).parents[2]
    assert (root / "py.typed").exists()
