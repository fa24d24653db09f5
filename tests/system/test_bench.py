"""Smoke runs of the benchmarks: servers, peers and checks of contents work; no figure is judged.

Every run takes one of them, by its seed, as each starts several programs; `./dev soak` takes all.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
import uuid
from typing import Any

import pytest

from bench.__main__ import NAMES
from bench.frame import Bench
from bench.frame.kafka import Topic
from flafka.agent.services.hbase import HBaseCluster
from flafka.agent.services.hdfs import HdfsCluster
from flafka.agent.services.kafka import KafkaCluster
from flafka.agent.services.solr import SolrCluster

IN_A_PROCESS = """
import sys
from flafka.agent.services.hdfs import HdfsCluster
from flafka.agent.services.kafka import KafkaCluster
from bench import spark
from bench.frame import Bench
from bench.frame.kafka import Topic
Topic.prefix = sys.argv[1]
with Bench("spark", smoke=True, kafka=KafkaCluster(sys.argv[2]), hdfs=HdfsCluster(sys.argv[3])) as bench:
    spark.run(bench)
    print(bench.rows[0].ratio)
"""
"""Program of a process of its own, as a Spark session belongs to its process."""


@pytest.fixture
def servers_of_all(
    kafka_cluster: KafkaCluster,
    hdfs_cluster: HdfsCluster,
    hbase_cluster: HBaseCluster,
    solr_cluster: SolrCluster,
) -> dict[str, Any]:
    return {"kafka": kafka_cluster, "hdfs": hdfs_cluster, "hbase": hbase_cluster, "solr": solr_cluster}


def smoke(name: str, servers: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    prefix = f"bench-{uuid.uuid4().hex}-"  # several runs share a cluster
    if name == "spark":
        arguments = [prefix, str(servers["kafka"].directory), str(servers["hdfs"].directory)]
        result = subprocess.run(
            [sys.executable, "-c", IN_A_PROCESS, *arguments], capture_output=True, text=True, check=False
        )
        assert result.returncode == 0, result.stdout + result.stderr
        assert float(result.stdout) > 0
        return
    monkeypatch.setattr(Topic, "prefix", prefix)
    with Bench(name, smoke=True, **servers) as bench:
        importlib.import_module(f"bench.{name}").run(bench)
    assert bench.rows
    for row in bench.rows:
        assert row.peer_name is None or row.peer is not None
        assert len(row.runs) == 1


@pytest.mark.drawn(1)
@pytest.mark.parametrize("name", NAMES)
def test_a_benchmark_works(name: str, servers_of_all: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    smoke(name, servers_of_all, monkeypatch)
