"""Listener, one step at a time, as a source on one thread drives it."""

from __future__ import annotations

import contextlib
import re
import select
import shutil
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flafka.agent.services.running import until
from flafka.plugins import Batch, Source
from flafka.plugins.installed import current_call
from flafka.sources.avro import AvroSource
from flafka.sources.connections import Connection
from flafka.sources.listening import Endpoint, HandshakeConfig, Listener
from flafka.sources.log4j import Log4jSource
from flafka.sources.netcat import NetcatSource
from flafka.sources.netcatudp import NetcatUdpSource
from flafka.sources.syslog import MultiportSyslogTcp, SyslogTcp, SyslogUdp
from tests.plugins.certificates import certificate
from tests.sources.syslog_running import Running


class Holder(Source[HandshakeConfig]):
    """Source that holds a listener."""

    def batches(self) -> Iterator[Batch]:
        return iter(())


@contextlib.contextmanager
def listening(holder: Holder, *ports: int) -> Iterator[Listener[Connection]]:
    tls = holder.config if holder.config.tls else None
    endpoint = Endpoint("127.0.0.1", ports, tls)
    listener = Listener(
        holder, endpoint, Connection, max_connections=10, handshake_timeout=holder.config.handshake_timeout
    )
    listener.open()
    try:
        yield listener
    finally:
        listener.close()
        listener.close()


def connect(listener: Listener[Connection], port: int = 0) -> socket.socket:
    return socket.create_connection(("127.0.0.1", listener.endpoint.ports[port]), timeout=20)


def read(listener: Listener[Connection], turns: Iterator[list[tuple[Connection, int]]]) -> bytes:
    """Return the data of all connections in these turns."""
    return b"".join(listener.read(connection) or b"" for ready in turns for connection, _ in ready)


@pytest.fixture
def keystore(tmp_path: Path) -> Path:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    return certificate(tmp_path)


@pytest.mark.usefixtures("lengthy")
def test_connections_of_every_port_are_accepted_and_read_before_the_end() -> None:
    with listening(Holder(HandshakeConfig()), 0, 0) as listener:
        assert len(set(listener.endpoint.ports)) == 2
        for port in 0, 1:
            with connect(listener, port) as client:
                client.sendall(b"sent to port %d, " % port)
        received = read(listener, listener.drain())
        assert b"port 0" in received
        assert b"port 1" in received
        assert listener.endpoint.sockets == []
        assert len(listener.connections) == 2
    assert len(listener.connections) == 0


def test_data_after_a_handshake_is_read_before_the_end(keystore: Path) -> None:
    config = HandshakeConfig.parse({"ssl": "true", "keystore": str(keystore / "server.pem")})[0]
    assert config is not None
    holder = Holder(config)
    with listening(holder, 0) as listener, connect(listener) as plain:
        client = ssl.create_default_context(cafile=str(keystore / "server.crt")).wrap_socket(
            plain, server_hostname="localhost", do_handshake_on_connect=False
        )
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client.setblocking(False)
        assert not has_tls(client)
        until(lambda: not listener.poll(0) and select.select([client], [], [], 0)[0])  # it was answered
        last = listener.drain()
        assert next(last) == []
        assert has_tls(client)
        client.setblocking(True)
        client.sendall(b"at the last moment")
        assert read(listener, last) == b"at the last moment"
    assert holder.metrics.get("TlsHandshakeFail") == 0


def has_tls(client: ssl.SSLSocket) -> bool:
    try:
        client.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True


def test_a_slow_handshake_is_closed_and_counted(keystore: Path) -> None:
    properties = {"ssl": "true", "keystore": str(keystore / "server.pem"), "handshakeTimeout": "0.05"}
    config = HandshakeConfig.parse(properties)[0]
    assert config is not None
    holder = Holder(config)
    with listening(holder, 0) as listener, connect(listener) as slow:
        slow.sendall(b"\x16\x03\x01")  # the first bytes of a handshake
        until(lambda: not listener.poll(0.01) and holder.metrics.get("TlsHandshakeFail") == 1)
        assert len(listener.connections) == 0
        assert slow.recv(1) == b""


@pytest.mark.parametrize(
    "cls", [SyslogTcp, MultiportSyslogTcp, SyslogUdp, Log4jSource, NetcatSource, NetcatUdpSource, AvroSource]
)
def test_a_waiting_source_is_woken_to_stop(cls: type[Source[Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("batching", "syslog.framing", "log4j.source", "netcat", "serving"):
        for name in ("CONNECTION_CHECK_SECONDS", "STOP_CHECK_SECONDS"):
            monkeypatch.setattr(f"flafka.sources.{module}.{name}", 300.0, raising=False)
    options = {"host": "127.0.0.1", "ports": "0"} if cls is MultiportSyslogTcp else {"port": "0"}
    config, _ = cls.config_class.parse(options | {"host" if "Syslog" in cls.__name__ else "bind": "127.0.0.1"})
    with Running(cls(config, "s1")) as running:
        until(lambda: re.search("poll|select|datagram", current_call(running._thread)), "a wait for input", 20)


@pytest.mark.parametrize("cls", [SyslogTcp, MultiportSyslogTcp, Log4jSource, NetcatSource])
def test_a_client_with_tls_on_a_plain_port_is_reported_and_closed(
    cls: type[Source[Any]], caplog: pytest.LogCaptureFixture
) -> None:
    options = {"host": "127.0.0.1", "ports": "0"} if cls is MultiportSyslogTcp else {"port": "0"}
    config, _ = cls.config_class.parse(options | {"host" if cls is SyslogTcp else "bind": "127.0.0.1"})
    with Running(cls(config, "s1")) as running:
        for _ in range(2):
            with (
                socket.create_connection(("127.0.0.1", running.source.port), timeout=20) as client,
                pytest.raises(OSError, match=r"EOF|reset"),
            ):
                ssl._create_unverified_context().wrap_socket(client)
        assert running.source.metrics.get("EventReadFail") == 2
    assert running.events == []
    (record,) = [record for record in caplog.records if "speaks TLS" in record.getMessage()]
    assert ("no TLS" if cls is NetcatSource else "set ssl = true") in record.getMessage()
