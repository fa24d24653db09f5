"""Certificates, their passwords and other secrets that change under a running agent, with real clients."""

from __future__ import annotations

import http.client
import shutil
import socket
import ssl
from collections import Counter
from pathlib import Path

import pytest

from flafka.agent.services.running import RunningAgent
from tests.fixtures.ports import free_port
from tests.plugins.certificates import certificate
from tests.system.running import agent_command, connected
from tests.system.test_reload import arrived, sink

LINE = b"<13>1 2024-05-01T10:00:00Z h "

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")


def configuration(home: Path, port: int) -> str:
    return f"""
a1.sources = tls plain
a1.channels = c1
a1.sinks = k1
a1.monitoring.port = {port}
a1.monitoring.token = ${{file:{home}/token}}
a1.sources.tls.type = syslogtcp
a1.sources.tls.host = 127.0.0.1
a1.sources.tls.port = {free_port()}
a1.sources.tls.ssl = true
a1.sources.tls.keystore = {home}/server.p12
a1.sources.tls.keystore-password = ${{file:{home}/password}}
a1.sources.tls.channels = c1
a1.sources.plain.type = netcat
a1.sources.plain.bind = 127.0.0.1
a1.sources.plain.port = 0
a1.sources.plain.channels = c1
a1.channels.c1.type = memory
{sink(home, "k1", "x").replace("channel = k1", "channel = c1")}
"""


def connect(port: int, authority: Path) -> ssl.SSLSocket:
    """Connect as a client that trusts only that certificate."""
    context = ssl.create_default_context(cafile=str(authority))
    return context.wrap_socket(socket.create_connection(("127.0.0.1", port), timeout=60), server_hostname="localhost")


def status(port: int, token: str) -> int:
    """Return the HTTP status of the page for that token; 0 while nobody listens."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", "/api/state", headers={"authorization": f"Bearer {token}"})
        return connection.getresponse().status
    except OSError:
        return 0
    finally:
        connection.close()


def days_left(agent: RunningAgent) -> float:
    return float(agent.metrics()["SOURCE.tls"]["CertificateSecondsLeft"]) / 86400


def test_certificates_and_secrets_take_effect_without_a_restart(tmp_path: Path) -> None:
    (tmp_path / "k1").mkdir()
    old, new = tmp_path / "old", tmp_path / "new"
    for directory, options in ((old, {"days": 1}), (new, {"password": "another"})):
        directory.mkdir()
        certificate(directory, whose=directory.name, **options)
    shutil.copy(old / "server.p12", tmp_path)
    (tmp_path / "password").write_text("changeit\n")
    (tmp_path / "token").write_text("first\n")
    port = free_port()
    with RunningAgent(tmp_path / "a", configuration(tmp_path, port)) as agent:
        agent.until(lambda: agent.get("/readyz")[0] == 200, "the agent to be ready")
        tls = agent.port("tls")
        assert 0 < days_left(agent) <= 1
        with (
            connected(agent.port("plain")) as plain,
            plain.makefile("rb") as answers,
            connect(tls, old / "server.crt") as before,
        ):
            before.sendall(LINE + b"1\n")
            with pytest.raises(ssl.SSLCertVerificationError):
                connect(tls, new / "server.crt")
            plain.sendall(b"2\n")
            assert answers.readline() == b"OK\n"
            shutil.copy(new / "server.p12", tmp_path)
            (tmp_path / "password").write_text("another\n")
            (tmp_path / "token").write_text("second\n")
            result = agent_command("reload", "-c", str(agent.file))
            assert (result.returncode, result.stdout.splitlines()[-1]) == (
                0,
                "changed: sources tls; the monitoring server",
            ), result
            agent.until(lambda: status(port, "second") == 200, "the new token")
            assert status(port, "first") == 403
            agent.until(lambda: agent.log.count("a1.sources.tls: listening") == 2, "the source to listen anew")
            with connect(tls, new / "server.crt") as after:
                after.sendall(LINE + b"3\n")
            with pytest.raises(ssl.SSLCertVerificationError):
                connect(tls, old / "server.crt")
            plain.sendall(b"4\n")  # by the connection that was open before
            assert answers.readline() == b"OK\n"
            assert 29 < days_left(agent) <= 30
        agent.until(lambda: agent.count("SINK.k1", "EventDrainSuccessCount") == 4, "the events")
        assert agent.stop() == 0
    assert arrived(tmp_path / "k1") == Counter(range(1, 5))
