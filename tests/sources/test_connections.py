"""Sources with connections at their limit, and at their end."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flafka.agent.monitoring.registry import Registry
from flafka.agent.services.running import until
from flafka.plugins import Batch, Components, Event, Source
from flafka.plugins.wire.avrorpc import encode_array, encode_frame, encode_request_head
from flafka.plugins.wire.flumeevent import encode
from tests.fixtures.processes import Forked
from tests.plugins.certificates import certificate

COMPONENTS = Components()
TYPES = ("syslogtcp", "multiport_syslogtcp", "netcat", "log4j", "avro", "http")
ONE_WAY = ("syslogtcp", "multiport_syslogtcp", "netcat", "log4j")
"""Sources that send no answer; netcat if so configured."""


def message(kind: str, text: str, *, first: bool = True) -> bytes:
    """Return an event of such a source on the wire, whose body is that text; `first` on its connection or not."""
    if kind == "log4j":
        return b'{"message":"%s"}\n' % text.encode()
    if kind == "avro":
        events = encode(Batch.of([Event(text.encode())])).to_pylist()
        return encode_frame(1, [encode_request_head(first=first, message="appendBatch"), encode_array(events)])
    if kind == "http":
        body = b'[{"body": "%s"}]' % text.encode()
        return b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    return b"%s\n" % text.encode() if kind == "netcat" else b"<13>Oct 11 22:14:15 h %s\n" % text.encode()


class Taking:
    """Running source; `hold` keeps it from being resumed after a batch."""

    def __init__(self, kind: str, **properties: str) -> None:
        where = {"host" if "syslog" in kind else "bind": "127.0.0.1", "ports" if "multi" in kind else "port": "0"}
        cls = COMPONENTS.get("source", kind)
        config, problems = cls.config_class.parse(where | properties)
        assert config is not None, problems
        assert not problems
        self.kind = kind
        self.source: Source[Any] = cls(config)
        self.hold = threading.Event()
        self.hold.set()
        self.bodies: list[bytes] = []
        self._greeted: set[socket.socket] = set()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        for batch in self.source.batches():
            self.bodies += [event.body for event in batch]
            self.hold.wait()
            self.source.stored(batch)

    def __enter__(self) -> Taking:
        self.source.open()
        self._thread.start()
        until(lambda: self.count("OpenConnectionLimit"))
        return self

    def __exit__(self, *_: object) -> None:
        self.hold.set()
        self.stop()
        self.source.close()

    def stop(self) -> None:
        self.source.stopping.set()
        self._thread.join(60)
        assert not self._thread.is_alive()

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.source.port), timeout=20)

    def send(self, connection: socket.socket, text: str) -> None:
        """Send an event, and wait until it has come."""
        connection.sendall(message(self.kind, text, first=connection not in self._greeted))
        self._greeted.add(connection)
        until(lambda: text.encode() in self.bodies, text)

    def count(self, name: str) -> float:
        return self.source.metrics.get(name)

    def until_open(self, connections: int) -> None:
        until(lambda: self.count("OpenConnectionCount") == connections)

    @property
    def degraded(self) -> dict[str, str]:
        registry = Registry("a1")
        registry.add("SOURCE", "s1", self.source.metrics)
        return registry.degraded()


def is_refused(taking: Taking) -> bool:
    """Return True if one more connection is reset."""
    try:
        with taking.connect() as connection:
            return was_reset(connection)
    except ConnectionResetError:
        return True


def was_reset(connection: socket.socket) -> bool:
    """Wait for the end of a connection; return True for a reset."""
    try:
        while connection.recv(1000):
            pass
    except ConnectionResetError:
        return True
    return False


def still_open(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        while connection.recv(1000):
            pass
    except BlockingIOError:
        return True
    finally:
        connection.settimeout(20)
    return False


@contextlib.contextmanager
def allow_few_files() -> Iterator[int]:
    """Limit the open files of this process: to 600 more than the highest descriptor."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = max(map(int, os.listdir("/proc/self/fd"))) + 600  # noqa: PTH208  # numbers, not paths
    resource.setrlimit(resource.RLIMIT_NOFILE, (few, hard))
    yield few
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("kind", TYPES)
def test_at_the_limit_the_oldest_connection_without_data_is_closed(kind: str, caplog: Any) -> None:
    with Taking(kind, maxConnections="3") as taking, contextlib.ExitStack() as stack:
        used = stack.enter_context(taking.connect())
        taking.send(used, "used")
        oldest, younger = stack.enter_context(taking.connect()), stack.enter_context(taking.connect())
        taking.until_open(3)
        new = stack.enter_context(taking.connect())
        taking.send(new, "new")
        assert was_reset(oldest)
        assert still_open(used)
        assert still_open(younger)
        assert taking.count("ConnectionEvictedCount") == 1
        assert taking.count("ConnectionRefusedCount") == 0
        assert taking.count("OpenConnectionCount") == 3
        assert "maxConnections = 3" in caplog.text


@pytest.mark.parametrize("kind", TYPES)
def test_at_the_limit_of_connections_with_data_a_new_one_is_reset(kind: str, caplog: Any) -> None:
    with Taking(kind, maxConnections="2") as taking:
        assert taking.count("OpenConnectionLimit") == 2
        assert not taking.degraded
        with taking.connect() as first, taking.connect() as second:
            taking.send(first, "first")
            taking.send(second, "second")
            assert "maxConnections = 2" in taking.degraded["SOURCE.s1"]
            for refused in range(1, 4):
                assert is_refused(taking)
                assert taking.count("ConnectionRefusedCount") == refused
            assert taking.count("ConnectionEvictedCount") == 0
            assert still_open(first)
            assert still_open(second)
        until(lambda: not taking.degraded)
        with taking.connect() as new:
            taking.send(new, "again")
    assert not taking.degraded
    (warning,) = [record for record in caplog.records if "maxConnections = 2" in record.getMessage()]
    assert warning.levelname == "WARNING"


@pytest.mark.parametrize("kind", ["syslogtcp", "log4j", "avro", "http"])
def test_at_the_limit_a_pending_handshake_is_closed(kind: str, tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    certificates = certificate(tmp_path)
    context = ssl.create_default_context(cafile=str(certificates / "server.crt"))
    keystore = str(certificates / "server.pem")
    with Taking(kind, maxConnections="1", ssl="true", keystore=keystore) as taking, taking.connect() as stuck:
        stuck.sendall(b"\x16\x03\x01\x02")  # the first bytes of a handshake
        taking.until_open(1)
        with context.wrap_socket(taking.connect(), server_hostname="localhost") as new:
            taking.send(new, "new")
            assert was_reset(stuck)


def test_unread_data_counts_as_sent() -> None:
    with Taking("syslogtcp", maxConnections="2") as taking, taking.connect() as busy, taking.connect() as silent:
        taking.until_open(2)
        taking.hold.clear()
        taking.send(busy, "busy")  # from now on the source waits for its channel, and reads nothing
        silent.sendall(message("syslogtcp", "not so silent"))
        with taking.connect() as third:
            taking.hold.set()
            assert was_reset(third)
        until(lambda: b"not so silent" in taking.bodies)


def test_the_default_limit_is_for_a_fleet_and_bounded_by_file_descriptors(caplog: Any) -> None:
    for kind in TYPES:
        with allow_few_files() as few, Taking(kind) as taking:
            assert taking.source.config.max_connections >= 10_000
            assert taking.count("OpenConnectionLimit") == few - min(256, few // 2)
            assert f"this process may have {few} files open" in caplog.text
            caplog.clear()


@pytest.mark.parametrize("kind", TYPES)
def test_without_file_descriptors_connections_are_reset_and_do_not_wait(kind: str, forked: Forked) -> None:
    # In a process of its own, as remains of other tests open and close files in this one.
    forked.call(without_files, kind)


def without_files(kind: str) -> None:
    """Check the sources in a process without file descriptors, as the last action of the process."""
    with allow_few_files() as few, Taking(kind) as taking, contextlib.ExitStack() as stack:
        used = stack.enter_context(taking.connect())
        taking.send(used, "used")
        clients = [stack.enter_context(socket.socket()) for _ in range(3)]  # they are files of this process, too
        files: list[int] = []

        def is_limit_reported() -> bool:
            """With no file left, also where something was closed meanwhile that nobody needed any more."""
            with contextlib.suppress(OSError):
                while True:
                    files.append(os.open(os.devnull, os.O_RDONLY))
            # The last report depends on the speed of the two.
            reason = taking.degraded.get("SOURCE.s1", "")
            return f"limit of {few} files" in reason or os.strerror(errno.EMFILE) in reason

        is_limit_reported()
        assert max(files) == few - 1
        try:
            for client in clients:
                client.settimeout(20)
                with contextlib.suppress(ConnectionResetError):
                    client.connect(("127.0.0.1", taking.source.port))
                    assert was_reset(client)
            until(is_limit_reported, "the limit to be reported")
            taking.send(used, "goes on")
        finally:
            for file in files:
                os.close(file)
        assert not taking.degraded
        assert taking.count("ConnectionRefusedCount") == 3
        taking.send(stack.enter_context(taking.connect()), "room again")


@pytest.mark.parametrize("kind", ONE_WAY)
def test_connections_accepted_by_the_kernel_are_read_before_the_end(kind: str) -> None:
    properties = {"ack-every-event": "false"} if kind == "netcat" else {}
    with Taking(kind, **properties) as taking, taking.connect() as first:
        taking.hold.clear()
        taking.send(first, "first")  # from now on the source waits for its channel, and accepts nothing
        expected = {f"short {number}" for number in range(1000)} | {"first", "more"}
        for number in range(1000):
            with taking.connect() as short:
                short.sendall(message(kind, f"short {number}"))
        padding = 1500
        first.sendall(b"".join(message(kind, "x" * 400) for _ in range(padding)) + message(kind, "more"))
        taking.source.stopping.set()
        taking.hold.set()
        taking.stop()
    assert taking.bodies.count(b"x" * 400) == padding
    received = [body.decode() for body in taking.bodies if not body.startswith(b"x")]
    assert sorted(received) == sorted(expected)


@pytest.mark.skipif(shutil.which("logger") is None, reason="logger of util-linux is not installed")
def test_logger_delivers_beside_the_most_idle_connections() -> None:
    with Taking("syslogtcp", maxConnections="200") as taking, contextlib.ExitStack() as stack:
        for _ in range(200):
            stack.enter_context(taking.connect())
        taking.until_open(200)
        to = ["--server", "127.0.0.1", "--port", str(taking.source.port), "--tcp"]
        subprocess.run(["logger", *to, "--rfc3164", "--tag", "t", "among the idle"], check=True, timeout=60)
        taking.stop()
    assert taking.bodies == [b"t: among the idle"]
