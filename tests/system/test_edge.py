"""Unchanged conf/edge.conf on a host without Java; Kafka and HDFS are elsewhere."""

from __future__ import annotations

from pathlib import Path

from flafka.agent.services.hdfs import HdfsCluster
from flafka.agent.services.kafka import KafkaCluster
from flafka.agent.services.running import RunningAgent
from tests.fixtures.ports import free_port
from tests.system.running import ROOT, in_hdfs, send


def test_a_small_host_delivers_without_java(
    tmp_path: Path, kafka_cluster: KafkaCluster, hdfs_cluster: HdfsCluster
) -> None:
    syslog = free_port()
    tools = tmp_path / "tools"
    tools.mkdir()
    environment = {
        "PATH": str(tools),  # a path without Java
        "JAVA_HOME": str(tools),
        "FLAFKA_KAFKA": kafka_cluster.bootstrap_servers,
        "FLAFKA_HDFS": hdfs_cluster.webhdfs,
        "FLAFKA_SYSLOG": str(syslog),
        "FLAFKA_FILES": f"{tmp_path}/[a-z]+[.]txt",
        "FLAFKA_STATE": str(tmp_path),
        "FLAFKA_ROLL": "1",
        "FLAFKA_METRICS": "0",
    }
    (tmp_path / "app.txt").write_bytes(b"a line for jane@example.com\nanother\n")
    with RunningAgent(tmp_path, ROOT / "conf" / "edge.conf", environment=environment) as agent:
        agent.port("tcp")
        send(syslog, b"<13>1 - web-1 app - - - card 4111 1111 1111 1111\n")
        agent.until(lambda: agent.count("SINK.archive", "EventDrainSuccessCount") == 3, "three events on HDFS")
        agent.wait_until_healthy()
        children = Path(f"/proc/{agent.process.pid}/task/{agent.process.pid}/children").read_text()
        assert children == ""
        assert agent.stop() == 0
        assert "Traceback" not in agent.log
    assert sorted(in_hdfs(hdfs_cluster, "/flafka/edge")) == [b"a line for ***", b"another", b"app - - - card ***"]
