"""HDFS sink over TLS: servers that break connections, have a wrong certificate, or are silent."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from flafka.plugins import Retry
from flafka.sinks.hdfs import namenodes
from flafka.sinks.hdfs.namenodes import DataNodeAway
from flafka.sinks.hdfs.trust import TlsFailure, TlsSettings
from flafka.sinks.hdfs.webhdfs import WebHdfs
from tests.plugins.certificates import certificate

Handle = Callable[[BaseHTTPRequestHandler], None]


@contextlib.contextmanager
def server(directory: Path, handle: Handle, requests: list[str]) -> Iterator[str]:
    """Run an HTTPS server with the certificate in a directory; `requests` gets the target of each request."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(directory / "server.pem")

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def setup(self) -> None:
            self.request = context.wrap_socket(self.request, server_side=True)  # in the thread of the connection
            super().setup()

        def do_GET(self) -> None:
            requests.append(self.path)
            handle(self)

        do_PUT = do_DELETE = do_GET

        def log_message(self, *_: object) -> None:
            """Write nothing."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            """Ignore clients that refuse the certificate."""

    running = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=running.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"localhost:{running.server_port}"
    finally:
        running.shutdown()
        running.server_close()


def answer(handler: BaseHTTPRequestHandler, status: int, body: bytes = b"", location: str = "") -> None:
    handler.send_response_only(status)
    if location:
        handler.send_header("Location", location)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)


def standby(handler: BaseHTTPRequestHandler) -> None:
    error = {"exception": "StandbyException", "message": "Operation category READ is not supported in state standby"}
    answer(handler, 403, json.dumps({"RemoteException": error}).encode())


def redirect(datanode: str) -> Handle:
    return lambda handler: answer(handler, 307, location=f"https://{datanode}{handler.path}")


def close(handler: BaseHTTPRequestHandler) -> None:
    """Close the connection amid a request."""
    handler.rfile.read(min(100_000, int(handler.headers.get("Content-Length", 0))))
    handler.close_connection = True


def reset(handler: BaseHTTPRequestHandler) -> None:
    """Reset the connection amid a request."""
    handler.rfile.read(min(100_000, int(handler.headers.get("Content-Length", 0))))
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    handler.close_connection = True


@pytest.fixture
def trusted(tmp_path: Path) -> Path:
    directory = tmp_path / "trusted"
    directory.mkdir()
    return certificate(directory)


@pytest.fixture
def untrusted(tmp_path: Path) -> Path:
    directory = tmp_path / "untrusted"
    directory.mkdir()
    return certificate(directory, whose="another server")


@contextlib.contextmanager
def client(trusted: Path, *hosts: str, timeout: float | None = 30) -> Iterator[WebHdfs]:
    hdfs = WebHdfs(
        hosts,
        scheme="https",
        user="u",
        timeout=timeout,
        threads=1,
        stopping=threading.Event(),
        tls=TlsSettings(str(trusted / "server.crt")),
    )
    hdfs._namenodes.failover_pause_seconds = 0
    with contextlib.closing(hdfs):
        yield hdfs


@pytest.mark.parametrize("end", [close, reset])
def test_a_datanode_that_breaks_a_tls_connection_is_away_and_gets_no_name_twice(trusted: Path, end: Handle) -> None:
    asked: list[str] = []
    written: list[str] = []
    with (
        server(trusted, end, written) as datanode,
        server(trusted, redirect(datanode), asked) as first,
        server(trusted, redirect(datanode), asked) as second,
        client(trusted, first, second) as hdfs,
        pytest.raises(DataNodeAway, match=f"DataNode {datanode}, to which it redirects, does not answer"),
    ):
        hdfs.upload("/a", bytes(20_000_000))
    names = [target.partition("?")[0].removeprefix("/webhdfs/v1") for target in written]
    assert names == ["/a-0", "/a-1", "/a-2"]
    assert ["excludedatanodes=localhost" in target for target in asked] == [False, True, False]


def test_a_datanode_with_another_certificate_is_named_and_gets_no_name_twice(trusted: Path, untrusted: Path) -> None:
    asked: list[str] = []
    with (
        server(untrusted, close, []) as datanode,
        server(trusted, redirect(datanode), asked) as first,
        server(trusted, redirect(datanode), asked) as second,
        client(trusted, first, second) as hdfs,
        pytest.raises(DataNodeAway, match=f"fails: no TLS connection to {datanode} .*hdfs.truststore must be a file"),
    ):
        hdfs.upload("/a", b"1")
    assert [target.partition("?")[0].rpartition("/")[2] for target in asked] == ["a-0", "a-1", "a-2"]


def test_the_certificate_of_an_active_namenode_is_blamed_rather_than_the_standby(
    trusted: Path, untrusted: Path
) -> None:
    with (
        server(untrusted, close, []) as active,
        server(trusted, standby, []) as other,
        client(trusted, active, other) as hdfs,
        pytest.raises(TlsFailure, match=f"no TLS connection to {active} of HDFS: its certificate is refused"),
    ):
        hdfs.delete("/a")


def test_a_namenode_that_ends_connections_within_the_handshake_is_away(trusted: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def end_all() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection = listener.accept()[0]
                    connection.recv(10_000)
                    connection.close()

        threading.Thread(target=end_all, daemon=True).start()
        with (
            client(trusted, f"localhost:{listener.getsockname()[1]}") as hdfs,
            pytest.raises(Retry, match="no NameNode answers") as failure,
        ):
            hdfs.delete("/a")
        assert not isinstance(failure.value, TlsFailure)
        listener.shutdown(socket.SHUT_RDWR)


def test_a_namenode_that_breaks_connections_is_away(trusted: Path) -> None:
    with (
        server(trusted, reset, []) as namenode,
        client(trusted, namenode) as hdfs,
        pytest.raises(Retry, match="no NameNode answers") as failure,
    ):
        hdfs.upload("/a", b"1")
    assert not isinstance(failure.value, TlsFailure)


def test_a_stop_ends_a_read_over_tls_without_a_timeout(trusted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The session tickets of TLS 1.3 make a socket readable, and are no answer."""
    monkeypatch.setattr(namenodes, "SERVER_SILENCE_SECONDS", 0.1)
    asked: list[str] = []
    ended = threading.Event()
    with (
        server(trusted, lambda handler: ended.wait(60) and None, asked) as namenode,
        client(trusted, namenode, timeout=None) as hdfs,
    ):
        failures: list[Retry] = []

        def delete() -> None:
            try:
                hdfs.delete("/a")
            except Retry as e:
                failures.append(e)

        thread = threading.Thread(target=delete, daemon=True)
        thread.start()
        deadline = time.monotonic() + 60
        while not asked and time.monotonic() < deadline:
            time.sleep(0.01)
        hdfs._stopping.set()
        thread.join(30)
        ended.set()
    assert failures
