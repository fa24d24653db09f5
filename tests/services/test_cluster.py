"""Cluster of servers whose ports others have, with servers that only listen."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from flafka.agent.jvm.java import Java
from flafka.agent.services import ServiceError, cluster
from flafka.agent.services.cluster import Cluster, PortInUse, is_listening
from flafka.agent.services.kafka import KafkaCluster
from flafka.agent.services.running import free_ports, until

PROGRAM = """
import socket, sys
sys.stdin.read()
with socket.create_server(("127.0.0.1", int(sys.argv[1]))):
    import signal
    signal.pause()
"""


class Listeners(Cluster):
    """Cluster with one server for each port."""

    service = "listeners"

    @property
    def address(self) -> str:
        return str(self.ports)

    def default_ports(self) -> Mapping[str, int]:
        return dict(zip("ab", free_ports(2), strict=True))

    def names(self) -> list[str]:
        return ["a", "b"]

    def prepare(self, java: Java, lib: Path) -> None:
        pass

    def command(self, name: str, java: Java, lib: Path) -> list[str]:
        return [sys.executable, "-c", PROGRAM, str(self.ports[name])]

    def unready_reason(self) -> str | None:
        return None if all(map(is_listening, self.ports.values())) else "not all listen"


@pytest.fixture(autouse=True)
def no_jars(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "ensure", lambda _: Path())
    monkeypatch.setattr(cluster, "find_java", lambda: None)


@contextlib.contextmanager
def stopped(cluster: Cluster) -> Iterator[None]:
    try:
        yield
    finally:
        for name in cluster.names():
            cluster.kill(name)


@pytest.mark.parametrize("seen", ["before a server ends", "after it has ended"])
def test_a_port_that_another_program_takes_during_the_start_ends_the_start(seen: str, tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:

        class Raced(Listeners):
            def prepare(self, java: Java, lib: Path) -> None:  # ports are chosen; no server runs yet
                for port in self.ports.values():
                    stack.enter_context(socket.create_server(("127.0.0.1", port)))

            def start_blocker(self, name: str) -> str | None:  # servers start one after the other
                if seen == "after it has ended" and name == "b":
                    until(lambda: self.server("a").pid is None)
                return None

        servers = Raced(tmp_path)
        with stopped(servers):
            with pytest.raises(ServiceError, match="another program"):
                servers.start(60)
            assert [servers.server(name).pid for name in servers.names()] == [None, None]


def test_the_port_of_a_stopped_server_is_checked_while_another_one_runs(tmp_path: Path) -> None:
    servers = Listeners(tmp_path)
    with stopped(servers):
        pid = servers.start(60).server("a").pid
        assert servers.foreign_listeners() == {}
        servers.kill("b")
        with socket.create_server(("127.0.0.1", servers.ports["b"])):
            message = f"port {servers.ports['b']}, which this cluster uses for b, is taken by another program"
            with pytest.raises(PortInUse, match=message):
                servers.start(60)
            assert servers.server("a").pid == pid  # it served before
        assert servers.start(60).foreign_listeners() == {}


def test_the_advice_leads_to_other_ports(tmp_path: Path) -> None:
    servers = Listeners(tmp_path).reserve()
    with socket.create_server(("127.0.0.1", servers.ports["a"])), pytest.raises(PortInUse, match='remove "ports"'):
        servers.start(60)
    (tmp_path / "cluster.json").write_text(json.dumps({"cluster_id": "kept"}))
    with stopped(servers):
        servers.start(60)
        assert servers.state()["cluster_id"] == "kept"


def test_a_listener_on_another_address_is_not_foreign(tmp_path: Path) -> None:
    servers = Listeners(tmp_path).reserve()
    with socket.create_server(("127.0.0.2", servers.ports["a"])), stopped(servers):
        assert servers.foreign_listeners() == {}
        assert servers.start(60).foreign_listeners() == {}


def test_our_server_that_starts_to_listen_meanwhile_is_not_foreign(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers = Listeners(tmp_path).reserve()

    def begins(port: int, _: str) -> bool:
        servers.server("a").start(servers.command("a", cast(Any, None), Path()))
        until(lambda: is_listening(port), "it to listen")
        return False

    with socket.create_server(("127.0.0.2", servers.ports["a"])), stopped(servers):
        monkeypatch.setattr(cluster, "_is_free", begins)
        assert servers.foreign_listeners() == {}


def test_servers_whose_ports_are_lost_have_to_be_stopped_first(tmp_path: Path) -> None:
    servers = Listeners(tmp_path)
    with stopped(servers):
        servers.start(60)
        (tmp_path / "cluster.json").unlink()
        with pytest.raises(ServiceError, match=r"a, b of .* run, but their ports are no longer in cluster"):
            servers.start(60)


def test_brokers_keep_the_id_of_their_data(tmp_path: Path) -> None:
    data = tmp_path / "data" / "broker-2"
    data.mkdir(parents=True)
    (data / "meta.properties").write_text("#\nversion=1\ncluster.id=Zm9v_YmFy-w\nnode.id=2\n")
    assert KafkaCluster(tmp_path, fixed_ports=False).reserve().cluster_id == "Zm9v_YmFy-w"
    other = KafkaCluster(tmp_path / "other", fixed_ports=False)
    with pytest.raises(ServiceError, match="it was never started"):
        _ = other.cluster_id
    assert len(other.reserve().cluster_id) == 22
    assert KafkaCluster(tmp_path / "other").cluster_id == other.cluster_id


def test_a_running_broker_without_its_data_has_to_be_stopped_first(tmp_path: Path) -> None:
    brokers = KafkaCluster(tmp_path, fixed_ports=False).reserve()
    with stopped(brokers):
        brokers.server("broker-1").start([sys.executable, "-c", "import signal; signal.pause()"])
        with pytest.raises(ServiceError, match=r"broker-1 of .* run, but their data was deleted"):
            brokers.start()
        assert brokers.server("broker-1").pid
        brokers.kill("broker-1", signal.SIGTERM)
