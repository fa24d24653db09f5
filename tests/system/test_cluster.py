"""Kafka and HDFS of the project as real servers."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from kafka import KafkaAdminClient
from kafka.admin import ConfigResource

from flafka.agent.services import ServiceError
from flafka.agent.services.hdfs import HdfsCluster
from flafka.agent.services.kafka import KafkaCluster


def create_topic(cluster: KafkaCluster, name: str, **options: object) -> None:
    with KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers) as admin:
        admin.create_topics({name: options}, wait_for_metadata=True)


def produce(cluster: KafkaCluster, topic: str, values: list[bytes]) -> None:
    """Produce; return when all in-sync replicas have the records."""
    failures: list[object] = []
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "enable.idempotence": True})
    for value in values:
        producer.produce(topic, value, on_delivery=lambda error, _: failures.append(error) if error else None)
    assert producer.flush(60) == 0
    assert not failures


def consume(cluster: KafkaCluster, topic: str, count: int) -> list[bytes]:
    consumer = Consumer(
        {"bootstrap.servers": cluster.bootstrap_servers, "group.id": "reader", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    try:
        return sorted(message.value() for message in consumer.consume(count, timeout=60))
    finally:
        consumer.close()


def pids(cluster: KafkaCluster) -> list[int | None]:
    return [cluster.server(name).pid for name in cluster.names()]


def test_three_brokers_with_a_controller(kafka_cluster: KafkaCluster) -> None:
    status = kafka_cluster.status()
    assert status.up
    assert status.controller in (1, 2, 3)
    assert [broker.state for broker in status.brokers] == ["up"] * 3
    assert all((broker.rss_mb or 0) > 50 for broker in status.brokers)
    assert status.under_replicated == []


def test_a_second_start_finds_the_first(kafka_cluster: KafkaCluster) -> None:
    before = pids(kafka_cluster)
    program = "import sys; from flafka.agent.services.kafka import KafkaCluster; KafkaCluster(sys.argv[1]).start()"
    command = [sys.executable, "-c", program, str(kafka_cluster.directory)]
    subprocess.run(command, check=True, cwd=Path(__file__).parents[2])
    assert pids(kafka_cluster) == before
    assert KafkaCluster(kafka_cluster.directory).bootstrap_servers == kafka_cluster.bootstrap_servers


def test_topics_are_safe_by_default(kafka_cluster: KafkaCluster) -> None:
    create_topic(kafka_cluster, "safe")
    with KafkaAdminClient(bootstrap_servers=kafka_cluster.bootstrap_servers) as admin:
        (topic,) = admin.describe_topics(["safe"])
        config = admin.describe_configs([ConfigResource("TOPIC", "safe")], config_filter="all")["topic"]["safe"]
        (unknown,) = admin.describe_topics(["mispelt"])
    assert {len(partition["replica_nodes"]) for partition in topic["partitions"]} == {3}
    assert config["min.insync.replicas"]["value"] == "2"
    assert config["max.message.bytes"]["value"] == str(8 << 20)
    assert config["unclean.leader.election.enable"]["value"] == "false"
    assert unknown["error_code"]


def test_an_eight_megabyte_record_passes(kafka_cluster: KafkaCluster) -> None:
    create_topic(kafka_cluster, "large")
    settings = {"bootstrap.servers": kafka_cluster.bootstrap_servers, "message.max.bytes": 8 << 20}
    producer = Producer(settings)
    producer.produce("large", bytes((8 << 20) - 1000))
    assert producer.flush(60) == 0
    (value,) = consume(kafka_cluster, "large", 1)
    assert len(value) == (8 << 20) - 1000


def test_records_survive_a_killed_broker_and_start_brings_it_back(kafka_cluster: KafkaCluster) -> None:
    create_topic(kafka_cluster, "survivor", num_partitions=3)
    values = [b"%03d" % number for number in range(100)]
    produce(kafka_cluster, "survivor", values[:50])
    leader = kafka_cluster.status().controller
    survivors = [pid for pid in pids(kafka_cluster) if pid != kafka_cluster.server(f"broker-{leader}").pid]
    try:
        kafka_cluster.kill(f"broker-{leader}")
        assert not kafka_cluster.is_running()
        assert [broker.node for broker in kafka_cluster.status().brokers if broker.state == "down"] == [leader]
        produce(kafka_cluster, "survivor", values[50:])  # min ISR 2 of 3 still holds
    finally:
        kafka_cluster.start()
    assert kafka_cluster.status().up
    assert set(survivors) < set(pids(kafka_cluster))
    assert consume(kafka_cluster, "survivor", 100) == values


def test_data_survives_stop_and_start_on_the_same_ports(kafka_cluster: KafkaCluster) -> None:
    create_topic(kafka_cluster, "kept", num_partitions=1)
    produce(kafka_cluster, "kept", [b"one", b"two"])
    servers = kafka_cluster.bootstrap_servers
    try:
        kafka_cluster.stop()
        assert pids(kafka_cluster) == [None] * 3
        assert kafka_cluster.status().controller is None
    finally:
        kafka_cluster.start()
    assert kafka_cluster.bootstrap_servers == servers
    assert consume(kafka_cluster, "kept", 2) == [b"one", b"two"]


def test_logs_are_files_to_tail(kafka_cluster: KafkaCluster) -> None:
    for name in kafka_cluster.names():
        assert "Kafka Server started" in kafka_cluster.server(name).log.read_text()


def test_a_port_taken_by_another_program_is_named(kafka_cluster: KafkaCluster, tmp_path: Path) -> None:
    (tmp_path / "cluster.json").write_text(json.dumps({"ports": kafka_cluster.ports}))
    port = kafka_cluster.ports["broker-1"]
    with pytest.raises(ServiceError, match=f"port {port}, which this cluster uses for broker-1, is taken"):
        KafkaCluster(tmp_path).start()


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ServiceError, match=f"cannot keep a cluster in {tmp_path / 'file' / 'x'}"):
        KafkaCluster(tmp_path / "file" / "x").start()


def test_the_default_cluster_is_found_by_its_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLAFKA_CLUSTER_DIR", str(tmp_path))
    assert KafkaCluster.default().directory == tmp_path
    monkeypatch.delenv("FLAFKA_CLUSTER_DIR")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert KafkaCluster.default().directory == tmp_path / "flafka" / "cluster"
    with pytest.raises(ServiceError, match="it was never started"):
        _ = KafkaCluster.default().bootstrap_servers


def test_hdfs_keeps_its_files_when_every_server_is_killed(hdfs_cluster: HdfsCluster) -> None:
    pyhdfs = pytest.importorskip("pyhdfs")
    client = pyhdfs.HdfsClient(hosts=hdfs_cluster.webhdfs, user_name="test")
    client.create("/kept/a.txt", b"bytes" * 1000, overwrite=True)
    try:
        for name in hdfs_cluster.names():
            hdfs_cluster.kill(name)
        assert not hdfs_cluster.status().up
    finally:
        hdfs_cluster.start()
    assert hdfs_cluster.status().up
    assert client.open("/kept/a.txt").read() == b"bytes" * 1000


def test_one_hdfs_server_is_restarted_alone(hdfs_cluster: HdfsCluster) -> None:
    namenode, datanode = (hdfs_cluster.server(name).pid for name in hdfs_cluster.names())
    hdfs_cluster.restart("datanode-1")
    assert hdfs_cluster.server("namenode").pid == namenode
    assert hdfs_cluster.server("datanode-1").pid not in (None, datanode)
    assert hdfs_cluster.status().live_datanodes == 1


def test_a_suspended_server_is_alive_but_not_ready(hdfs_cluster: HdfsCluster) -> None:
    hdfs_cluster.kill("namenode", signal.SIGSTOP)
    try:
        assert hdfs_cluster.is_running()
        assert hdfs_cluster.unready_reason() == "the NameNode is down"
    finally:
        hdfs_cluster.kill("namenode", signal.SIGCONT)
    hdfs_cluster.start()
