"""The conformance kit on the components that need real servers."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pyhdfs

from agent.services.hdfs import HdfsCluster
from agent.services.kafka import KafkaCluster
from channels.kafka import KafkaChannel
from plugins import conformance
from sinks.hdfs import HdfsSink


def test_kafka_channel(kafka_cluster: KafkaCluster) -> None:
    name = f"conformance-{uuid.uuid4().hex}"
    conformance.check_channel(
        KafkaChannel,
        {
            "kafka.bootstrap.servers": kafka_cluster.bootstrap_servers,
            "kafka.topic": name,
            "kafka.consumer.group.id": name,
            "partitions": "2",
        },
    )


def test_hdfs_sink(hdfs_cluster: HdfsCluster, tmp_path: Path) -> None:
    root = f"/conformance-{uuid.uuid4().hex}"
    client = pyhdfs.HdfsClient(hosts=hdfs_cluster.webhdfs)

    def delivered() -> Iterator[bytes]:
        for folder, _, files in client.walk(root):
            if "/.flafka" not in folder:
                for file in files:
                    with client.open(f"{folder}/{file}") as content:
                        yield from content.read().splitlines()

    properties = {"hdfs.path": root, "hdfs.webhdfs": hdfs_cluster.webhdfs, "hdfs.fileType": "DataStream"}
    conformance.check_sink(
        HdfsSink,
        properties | {"hdfs.stagingDir": str(tmp_path)},
        delivered,
        failing=properties
        | {"hdfs.stagingDir": str(tmp_path), "hdfs.webhdfs": "127.0.0.1:1", "hdfs.callTimeout": "200"},
    )
