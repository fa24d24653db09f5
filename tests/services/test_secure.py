"""Secured brokers: their certificates, configuration and clients' files. Nothing is started."""

from __future__ import annotations

import os
import socket
import ssl
import threading
from pathlib import Path

import javaproperties
import pytest
from click.testing import CliRunner

from flafka.agent.cli.kafka_admin import read_config
from flafka.agent.cli.sandbox import sandbox
from flafka.agent.services.certificates import create_certificates
from flafka.agent.services.cluster import Cluster
from flafka.agent.services.secure import PORT_OFFSET, SecureServers, secure_servers
from flafka.agent.services.securekafka import USER, SecureKafkaCluster


def servers(home: Path) -> SecureServers:
    servers = secure_servers(home / "secured servers", fixed_ports=False)
    for cluster in servers.by_service().values():
        cluster.reserve()
    return servers


def mode(file: Path) -> str:
    return oct(file.stat().st_mode & 0o777)


def test_certificates_prove_servers_and_clients_to_each_other_and_are_kept(tmp_path: Path) -> None:
    authority, server = tmp_path / "ca.pem", tmp_path / "server.pem"
    create_certificates(authority, server, "broker")
    assert mode(server) == "0o600"
    assert "KEY" not in authority.read_text()
    before = authority.read_bytes(), server.read_bytes()
    create_certificates(authority, server, "broker")
    assert (authority.read_bytes(), server.read_bytes()) == before
    accepting, connecting = (
        ssl.create_default_context(purpose, cafile=str(authority))
        for purpose in (ssl.Purpose.CLIENT_AUTH, ssl.Purpose.SERVER_AUTH)
    )
    accepting.verify_mode = ssl.CERT_REQUIRED
    for context in (accepting, connecting):
        context.load_cert_chain(server)
        context.verify_flags |= ssl.VERIFY_X509_STRICT  # as Python 3.13 does
    for name in ("localhost", "127.0.0.1"):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            thread = threading.Thread(target=lambda: accepting.wrap_socket(theirs, server_side=True).close())
            thread.start()
            with connecting.wrap_socket(ours, server_hostname=name) as connection:
                subject = dict(item[0] for item in (connection.getpeercert() or {})["subject"])
            thread.join()
        assert subject == {"commonName": "broker"}


def test_clients_are_authenticated_and_checked_and_brokers_show_certificates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kafka = servers(tmp_path).kafka
    monkeypatch.setattr(SecureKafkaCluster, "_format", lambda *_: None)
    kafka.prepare(None, Path())  # Java only formats
    ports = kafka.ports
    for node in (1, 2, 3):
        with (kafka.directory / "conf" / f"broker-{node}" / "server.properties").open("rb") as file:
            properties = javaproperties.load(file)
        listeners = dict(listener.split("://") for listener in properties["listeners"].split(","))
        assert listeners == {
            name.upper(): f"127.0.0.1:{ports[f'{port}-{node}']}"
            for name, port in (("client", "broker"), ("internal", "internal"), ("controller", "controller"))
        }
        assert f"CLIENT://localhost:{ports[f'broker-{node}']}" in properties["advertised.listeners"]
        assert "PLAINTEXT" not in properties["listener.security.protocol.map"]
        for name in ("internal", "controller"):
            assert properties[f"listener.name.{name}.ssl.client.auth"] == "required"
        assert properties["allow.everyone.if.no.acl.found"] == "false"
        assert Path(properties["ssl.keystore.location"]).exists()
        assert 'keyTab="' in properties["listener.name.client.gssapi.sasl.jaas.config"]


def test_the_files_of_a_user_are_private_and_read_by_the_commands(tmp_path: Path) -> None:
    kafka = servers(tmp_path).kafka
    kafka.prepare_user(USER)
    password = kafka.password_file(USER).read_text()
    assert len(password) > 20
    kafka.prepare_user(USER)
    assert kafka.password_file(USER).read_text() == password
    assert {mode(kafka.password_file(USER)), mode(kafka.properties(USER))} == {"0o600"}
    create_certificates(kafka.authority, tmp_path / "server.pem", "broker")
    options, properties = read_config(kafka.properties(USER))
    assert options["bootstrap_servers"] == kafka.bootstrap_servers
    assert options["sasl_plain_password"] == password
    assert properties["sasl.mechanism"] == "SCRAM-SHA-512"
    agents = kafka.client_options(USER)
    assert agents["sasl.password"] == f"${{file:{kafka.password_file(USER)}}}"
    assert password not in str(agents)


@pytest.mark.parametrize(
    ("options", "message"),
    [(["--secure"], "--secure has no solr; there are kdc, hdfs, kafka"), ([], "without --secure there is no kdc")],
)
def test_each_set_of_servers_has_its_own_services(options: list[str], message: str) -> None:
    result = CliRunner().invoke(sandbox, ["up", *options, "solr" if options else "kdc"])
    assert result.exit_code == 2
    assert message in result.output


def test_the_secured_servers_have_their_own_ports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def ports(clusters: dict[str, Cluster]) -> list[int]:
        return [port for cluster in clusters.values() for port in cluster.preferred_ports().values()]

    monkeypatch.setitem(os.environ, "FLAFKA_INSTANCE", "1")
    clusters = secure_servers(tmp_path).by_service()
    assert list(clusters) == ["kdc", "hdfs", "kafka"]
    assert clusters["kafka"].preferred_ports()["broker-1"] == 19092 + 100 + PORT_OFFSET
    secured = ports(clusters)
    assert len({*secured}) == len(secured)
