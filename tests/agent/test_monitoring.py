"""HTTP server of an agent, and a port that is busy at first."""

from __future__ import annotations

import logging
import re
import shutil
import socket
import ssl
import time
import urllib.request
from contextlib import closing
from email.utils import parsedate_to_datetime
from pathlib import Path

import pytest
from click.testing import CliRunner

from flafka.agent.cli import main
from flafka.agent.monitoring import server as server_module
from flafka.agent.monitoring.registry import Registry
from flafka.agent.monitoring.server import MetricsServer
from flafka.agent.options import AgentOptions
from flafka.agent.services.running import RunningAgent, until
from flafka.plugins.errors import MissingExtra
from flafka.plugins.net.tls import TlsServerConfig
from tests.fixtures.ports import free_port
from tests.plugins.certificates import certificate


def test_a_busy_port_is_retried(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(server_module, "RETRY_SECONDS", 0.01, raising=False)
    caplog.set_level(logging.INFO, "flafka.agent.monitoring.server")
    with closing(socket.create_server(("127.0.0.1", 0))) as other:
        port = other.getsockname()[1]
        server = MetricsServer(Registry("a1"), "127.0.0.1", port)
        server.start()
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        assert f"127.0.0.1:{port}: Address already in use; the agent retries" in caplog.text
    try:
        until(lambda: "metrics on" in caplog.text, "the port", 30)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=30) as answer:
            assert answer.status == 200
            assert abs(parsedate_to_datetime(answer.headers["date"]).timestamp() - time.time()) < 60
        assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    finally:
        server.stop()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_an_unusable_certificate_is_retried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server_module, "RETRY_SECONDS", 0.01, raising=False)
    caplog.set_level(logging.INFO, "flafka.agent.monitoring.server")
    keystore = tmp_path / "server.pem"
    server = MetricsServer(Registry("a1"), "localhost", 0, tls=TlsServerConfig(tls=True, keystore=str(keystore)))
    server.start()
    try:
        assert f"metrics are not served: cannot use the keystore {keystore}: No such file" in caplog.text
        certificate(tmp_path)
        until(lambda: "metrics on https://" in caplog.text, "the certificate", 30)
        context = ssl.create_default_context(cafile=tmp_path / "server.crt")
        with urllib.request.urlopen(
            f"https://localhost:{server.port}/healthz", timeout=30, context=context
        ) as answer:
            assert answer.status == 200
    finally:
        server.stop()
    assert [record.levelname for record in caplog.records].count("WARNING") == 1


@pytest.mark.parametrize(
    ("host", "results", "family"),
    [
        ("localhost", ["::1", "127.0.0.1"], socket.AF_INET),
        ("localhost", ["::1"], socket.AF_INET6),
        ("::1", None, socket.AF_INET6),
        ("", None, socket.AF_INET),
    ],
)
def test_a_name_is_listened_on_over_ipv4_if_it_has_such_an_address(
    host: str, results: list[str] | None, family: socket.AddressFamily, monkeypatch: pytest.MonkeyPatch
) -> None:
    if results is not None:
        addresses = [socket.getaddrinfo(text, 0, type=socket.SOCK_STREAM)[0] for text in results]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: addresses)
    with closing(server_module.open_listener(host, 0)) as listener:
        assert listener.family == family


def test_an_agent_that_never_got_its_port_stops_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as other:
        server = MetricsServer(Registry("a1"), "127.0.0.1", other.getsockname()[1])
        server.start()
        server.stop()
        assert server._thread is not None
        assert not server._thread.is_alive()


def test_the_default_is_no_port_of_outgoing_connections() -> None:
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    assert not min(first, 32_768) <= AgentOptions().monitoring_port <= max(last, 60_999)


def configuration(port: int, *more: str) -> str:
    return "\n".join(
        (
            "a1.sources = s1 s2",
            "a1.channels = c1",
            "a1.sinks = k1",
            f"a1.monitoring.port = {port}",
            "a1.sources.s1.type = netcat",
            "a1.sources.s1.bind = 127.0.0.1",
            f"a1.sources.s1.port = {free_port()}",
            "a1.sources.s1.channels = c1",
            "a1.sources.s2.type = syslogudp",
            "a1.sources.s2.host = 127.0.0.1",
            f"a1.sources.s2.port = {free_port()}",
            "a1.sources.s2.channels = c1",
            "a1.channels.c1.type = memory",
            "a1.sinks.k1.type = null",
            "a1.sinks.k1.channel = c1",
            *more,
        )
    )


def test_check_connect_reports_a_busy_port(tmp_path: Path) -> None:
    file = tmp_path / "agent.conf"
    with closing(socket.create_server(("127.0.0.1", 0))) as other:
        port = other.getsockname()[1]
        file.write_text(configuration(port))
        result = CliRunner().invoke(main, ["check", "-c", str(file), "--connect"])
    assert (result.exit_code, result.output) == (
        2,
        f"{file}:4: a1: monitoring.port: cannot listen on 127.0.0.1:{port} (TCP): another program listens there; "
        "stop it or choose another port\n1 error: it would start, and retry these components: a1\n",
    )


def test_check_connect_without_the_library_for_keystores_keeps_its_other_findings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise MissingExtra("cryptography is not installed: pip install 'flafka[tls]'")

    monkeypatch.setattr(TlsServerConfig, "context", fail)
    file, keystore = tmp_path / "agent.conf", tmp_path / "server.pem"
    keystore.write_text("")
    with closing(socket.create_server(("127.0.0.1", 0))) as other:
        port = other.getsockname()[1]
        lines = configuration(port, "a1.monitoring.ssl = true", f"a1.monitoring.keystore = {keystore}")
        file.write_text(lines)
        result = CliRunner().invoke(main, ["check", "-c", str(file), "--connect"])
    assert result.exit_code == 2
    assert "a1: monitoring.keystore: cryptography is not installed" in result.output
    assert f"a1: monitoring.port: cannot listen on 127.0.0.1:{port}" in result.output


@pytest.mark.usefixtures("servers")
def test_check_connect_beside_the_agent_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = configuration(free_port())
    with RunningAgent(tmp_path, text) as agent:
        until(lambda: agent.get("/healthz")[0] == 200, "the agent")
        until(lambda: agent.log.count("listening on") == 2, "its sources")
        monkeypatch.chdir(tmp_path)
        result = CliRunner().invoke(main, ["check", "-c", "agent.conf", "--connect"])
        assert result.exit_code == 0, result.output
        assert f"it runs already, as process {agent.process.pid}" in result.output
        # Another configuration, and another program on a port of this one, are still errors.
        other = tmp_path / "other.conf"
        other.write_text(text)
        result = CliRunner().invoke(main, ["check", "-c", str(other), "--connect"])
        assert result.output.count("another program listens there") == 3, result.output
        with closing(socket.create_server(("127.0.0.1", 0))) as stranger:
            port = stranger.getsockname()[1]
            agent.file.write_text(re.sub(r"(s1\.port = )\d+", rf"\g<1>{port}", text))
            result = CliRunner().invoke(main, ["check", "-c", "agent.conf", "--connect"])
        assert (result.exit_code, result.output.count("another program listens there")) == (2, 1), result.output
