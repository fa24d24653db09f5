"""`agent cluster start --node`: one broker on each of three hosts, here three addresses of this machine."""

from __future__ import annotations

import contextlib
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka import KafkaAdminClient

from flafka.agent.services import ServiceError
from flafka.agent.services.cluster import is_listening
from flafka.agent.services.kafka import KafkaCluster
from flafka.agent.services.running import until
from tests.system.running import agent_command
from tests.system.test_cluster import consume, create_topic, produce


@contextlib.contextmanager
def three_hosts(directory: Path) -> Iterator[str]:
    """Yield the value of `--nodes` for three hosts; end their processes afterwards."""
    hosts = [f"127.0.0.{number}" for number in (1, 2, 3)]
    free = (
        p
        for p in random.sample(range(20_000, 32_000), 100)
        if not any(is_listening(p + n, h) for n in (0, 3) for h in hosts)
    )
    port = next(free)
    try:
        yield ",".join(f"{host}:{port}" for host in hosts)
    finally:
        for number in (1, 2, 3):
            KafkaCluster(directory / f"host-{number}").server(f"broker-{number}").signal(signal.SIGKILL)


def test_what_three_hosts_hold_survives_the_loss_of_any_one(tmp_path: Path) -> None:
    with three_hosts(tmp_path) as nodes:

        def start(number: int) -> str:
            options = ["--dir", str(tmp_path / f"host-{number}"), "--heap", "160"]
            result = agent_command("cluster", "start", *options, "--node", str(number), "--nodes", nodes)
            assert result.returncode == 0, result.stderr
            return result.stdout + result.stderr

        assert "no controller yet: start a second host" in start(1)
        for number in (2, 3):
            assert "no controller" not in start(number)
        clusters = [KafkaCluster(tmp_path / f"host-{number}") for number in (1, 2, 3)]
        until(lambda: all(cluster.status().up for cluster in clusters), "all three hosts to be one cluster")
        assert {cluster.bootstrap_servers for cluster in clusters} == {nodes}
        assert [cluster.names() for cluster in clusters] == [["broker-1"], ["broker-2"], ["broker-3"]]

        values = sorted(b"%d" % number for number in range(1000))
        create_topic(clusters[0], "kept")
        produce(clusters[0], "kept", values)
        with KafkaAdminClient(bootstrap_servers=nodes) as admin:
            (topic,) = admin.describe_topics(["kept"])
        assert {tuple(sorted(partition["replica_nodes"])) for partition in topic["partitions"]} == {(1, 2, 3)}

        controller = clusters[0].status().controller
        assert controller is not None
        lost = clusters[controller - 1]  # the hardest broker to lose
        lost.kill(lost.names()[0], signal.SIGKILL)
        survivor = clusters[controller % 3]
        until(lambda: survivor.status().controller not in (None, controller), "another controller")
        assert consume(survivor, "kept", len(values)) == values
        produce(survivor, "kept", [b"later"])

        # the command remembers node and hosts
        restarted = agent_command("cluster", "start", "--dir", str(lost.directory))
        assert restarted.returncode == 0, restarted.stderr
        until(lambda: lost.status().up and not lost.status().under_replicated, "the host to catch up")


def test_a_directory_holds_one_node(tmp_path: Path) -> None:
    hosts = ["127.0.0.1", "127.0.0.2", "127.0.0.3"]
    (tmp_path / "cluster.json").write_text(
        '{"node": 1, "hosts": ["127.0.0.1:19092", "127.0.0.2:19092", "127.0.0.3:19092"]}'
    )
    assert KafkaCluster(tmp_path, node=1, hosts=hosts).names() == ["broker-1"]
    with pytest.raises(ServiceError, match=r"contains node 1 of 127.0.0.1:19092, .*--dir"):
        KafkaCluster(tmp_path, node=2, hosts=hosts)
    with pytest.raises(ServiceError, match="not a node of three different hosts: 1 of a, a, b"):
        KafkaCluster(tmp_path / "new", node=1, hosts=["a", "a", "b"])
    with pytest.raises(ServiceError, match="'b:x' is not a host, or host:port"):
        KafkaCluster(tmp_path / "new", node=1, hosts=["a", "b:x", "c"])
    result = agent_command("cluster", "start", "--dir", str(tmp_path), "--node", "1")
    assert result.returncode == 2
    assert "--node and --nodes belong together" in result.stderr
