"""A smoke run of each benchmark: servers, peers and the checks of contents do their work; no figure is judged."""

from __future__ import annotations

import importlib
import subprocess
import sys
import uuid
from typing import Any

import pytest

from agent.services.hbase import HBaseCluster
from agent.services.hdfs import HdfsCluster
from agent.services.kafka import KafkaCluster
from agent.services.solr import SolrCluster
from bench.__main__ import NAMES
from bench.frame import Bench
from bench.frame.kafka import Topic

WITH_HDFS = {"hdfs"}
WITH_STORES = {"stores", "latency"}
IN_SPARK = {"spark"}
ALONE = {"staging", "filechannel"}
WITH_KAFKA = [name for name in NAMES if name not in WITH_HDFS | WITH_STORES | IN_SPARK | ALONE]


IN_A_PROCESS = """
import sys
from agent.services.hdfs import HdfsCluster
from agent.services.kafka import KafkaCluster
from bench import spark
from bench.frame import Bench
from bench.frame.kafka import Topic
Topic.prefix = sys.argv[1]
with Bench("spark", smoke=True, kafka=KafkaCluster(sys.argv[2]), hdfs=HdfsCluster(sys.argv[3])) as bench:
    spark.run(bench)
    print(bench.rows[0].ratio)
"""


@pytest.fixture(autouse=True)
def named_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Topics of one cluster that several runs share."""
    monkeypatch.setattr(Topic, "prefix", f"bench-{uuid.uuid4().hex}-")


def smoke(name: str, **servers: Any) -> None:
    module = importlib.import_module(f"bench.{name}")
    with Bench(name, smoke=True, **servers) as bench:
        module.run(bench)
    assert bench.rows
    for row in bench.rows:
        assert row.ours >= 0 or "b of" in row.measure or "more" in row.measure
        assert row.peer_name is None or row.peer is not None
        assert len(row.runs) == 1


@pytest.mark.parametrize("name", sorted(ALONE))
def test_without_servers(name: str) -> None:
    smoke(name)


@pytest.mark.parametrize("name", WITH_KAFKA)
def test_with_brokers(name: str, kafka_cluster: KafkaCluster) -> None:
    smoke(name, kafka=kafka_cluster)


@pytest.mark.parametrize("name", sorted(WITH_HDFS))
def test_with_hdfs(name: str, kafka_cluster: KafkaCluster, hdfs_cluster: HdfsCluster) -> None:
    smoke(name, kafka=kafka_cluster, hdfs=hdfs_cluster)


@pytest.mark.parametrize("name", sorted(WITH_STORES))
def test_with_stores(
    name: str, kafka_cluster: KafkaCluster, hbase_cluster: HBaseCluster, solr_cluster: SolrCluster
) -> None:
    smoke(name, kafka=kafka_cluster, hbase=hbase_cluster, solr=solr_cluster)


def test_on_spark(kafka_cluster: KafkaCluster, hdfs_cluster: HdfsCluster) -> None:
    """In a process of its own, as Spark's session is one of the whole process."""
    told = [f"bench-{uuid.uuid4().hex}-", str(kafka_cluster.directory), str(hdfs_cluster.directory)]
    done = subprocess.run([sys.executable, "-c", IN_A_PROCESS, *told], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert float(done.stdout) > 0
