"""Samples of the reference that need servers, on real ones. The sample of the sink `spark` is in conf/flafka.conf."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import happybase
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from flafka.agent.services.hbase import HBaseCluster
from flafka.agent.services.hdfs import HdfsCluster
from flafka.agent.services.kafka import KafkaCluster
from flafka.agent.services.solr import SolrCluster
from tests.docs.samples import ON_SERVERS, run
from tests.fixtures.cores import create_core
from tests.fixtures.opensearch import OpenSearchCluster
from tests.system.running import unique


def kafka(request: pytest.FixtureRequest) -> str:
    cluster: KafkaCluster = request.getfixturevalue("kafka_cluster")
    return cluster.bootstrap_servers


def channel(request: pytest.FixtureRequest) -> tuple[dict[str, str], str]:
    return {"kafka-1:9092,kafka-2:9092,kafka-3:9092": kafka(request), "= logs": f"= {unique('logs')}"}, ""


def topic(servers: str, name: str) -> str:
    """Create a topic, as brokers need not create those that clients ask for."""
    new_topic = NewTopic(unique(name), num_partitions=1, replication_factor=3)
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([new_topic])[new_topic.topic].result(60)
    return new_topic.topic


def source(request: pytest.FixtureRequest) -> tuple[dict[str, str], str]:
    servers = kafka(request)
    return {"kafka-1:9092,kafka-2:9092": servers, "orders,payments": topic(servers, "orders")}, ""


def kafka_sink(request: pytest.FixtureRequest) -> tuple[dict[str, str], str]:
    servers = kafka(request)
    channel = f"a1.channels.c1.kafka.bootstrap.servers = {servers}\na1.channels.c1.kafka.topic = {unique('events')}"
    return {"kafka-1:9092,kafka-2:9092": servers, "= alerts": f"= {topic(servers, 'alerts')}"}, channel


def hdfs(request: pytest.FixtureRequest) -> tuple[dict[str, str], str]:
    cluster: HdfsCluster = request.getfixturevalue("hdfs_cluster")
    return {"namenode:9870/logs": f"{cluster.webhdfs}/{unique('logs')}", "rollInterval = 300": "rollInterval = 1"}, ""


def hbase(request: pytest.FixtureRequest) -> tuple[dict[str, str], str]:
    cluster: HBaseCluster = request.getfixturevalue("hbase_cluster")
    host, _, port = cluster.address.partition(":")
    connection, table = happybase.Connection(host, int(port), timeout=60_000), unique("logs")
    connection.create_table(table, {"event": {}})
    connection.close()
    return {"= logs": f"= {table}", "hbase-1:9090": cluster.address}, ""


def solr(request: pytest.FixtureRequest) -> tuple[dict[str, str], str]:
    cluster: SolrCluster = request.getfixturevalue("solr_cluster")
    return {"http://solr-1:8983/solr/logs": create_core(cluster, unique("logs"))}, ""


def elasticsearch(request: pytest.FixtureRequest) -> tuple[dict[str, str], str]:
    cluster: OpenSearchCluster = request.getfixturevalue("opensearch_cluster")
    return {"search-1:9200,search-2:9200": cluster.address, "= logs": f"= {unique('logs')}"}, ""


SERVERS = {
    "channel-kafka": channel,
    "sink-elasticsearch": elasticsearch,
    "sink-hbase": hbase,
    "sink-hdfs": hdfs,
    "sink-kafka": kafka_sink,
    "sink-solr": solr,
    "source-kafka": source,
}
"""Replacements and additions for each sample."""
GROUPS = {"sink-elasticsearch": "test_elasticsearch_sink", "sink-hbase": "stores", "sink-solr": "stores"}
"""Tests that share their servers with a sample in a run of several processes."""


def grouped(name: str) -> Any:
    """Return a case in the worker of other tests with the same servers."""
    return pytest.param(name, marks=pytest.mark.xdist_group(GROUPS.get(name, "test_samples")))


@pytest.mark.parametrize("name", [*map(grouped, SERVERS)])
def test_sample_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    for variable in ("XDG_STATE_HOME", "HOME"):
        monkeypatch.setenv(variable, str(tmp_path / "home"))
    replacements, added = SERVERS[name](request)
    run(name, tmp_path, replacements, added)


def test_all_samples_with_servers_are_here() -> None:
    assert {*SERVERS, "sink-spark"} == ON_SERVERS
