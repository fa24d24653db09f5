"""The source `log4j`."""

from __future__ import annotations

import selectors
import socket
import ssl
import time
from collections.abc import Iterator

from plugins import Batch, Retry, option
from plugins.tls import TlsServerConfig, handshake, refusal
from sources.listening import Connection, TcpConfig, TcpSource
from sources.log4j.reading import parse

MAX_BYTES = 768 * 1024
"""Bytes gathered for one batch."""
MAX_WAIT = 0.02
"""Seconds that a batch waits for more after its first line."""
TICK = 0.2
"""Seconds after which an idle source looks whether it shall stop."""
SERIALISED, HELLO = b"\xac\xed\x00\x05", b"\x16\x03"
"""How a stream of Java objects begins, and one of TLS."""


class Log4jConfig(TcpConfig, TlsServerConfig):
    """Options of the source `log4j`."""

    max_line_bytes: int = option(
        1024 * 1024,
        name="maxLineBytes",
        description="A longer line is cut there, marked Incomplete, and what follows of it is dropped.",
        unit="bytes",
        ge=1024,
        le=16 * 1024 * 1024,
    )
    handshake_timeout: float = option(
        10.0,
        name="handshakeTimeout",
        description="A connection that has not agreed on TLS after so long is closed.",
        unit="s",
        gt=0,
    )


class _Application(Connection):
    """One of those that connected."""

    def __init__(self, taken: socket.socket, peer: str) -> None:
        super().__init__(taken, peer)
        self.since = time.monotonic()
        """When it connected."""
        self.began = False
        """Whether anything has come."""
        self.skipping = False
        """Whether the line was cut, and its rest is dropped."""


class Log4jSource(TcpSource[Log4jConfig, _Application]):
    """Receives JSON lines of log4j 2 and logback: what it has read is never dropped, and it waits for its channels.

    Their socket appenders get no acknowledgement: what is on its way when either side dies is lost. The avro source
    with a Flume appender loses nothing.
    """

    type_name = "log4j"
    in_flight = 4

    def __init__(self, config: Log4jConfig, name: str = "") -> None:
        super().__init__(config, name)
        self._tls: ssl.SSLContext | None = None

    def open(self) -> None:
        """Load the certificate, and listen. Retry says why that is not possible."""
        self._tls = self.config.context()
        super().open()

    def probe(self) -> Iterator[str]:
        """Whether the certificate can be used, and the address and the port be had."""
        try:
            self.config.context()
        except Retry as e:
            yield str(e)
        yield from super().probe()

    def batches(self) -> Iterator[Batch]:
        """What the applications log; after `stopping`, also what had arrived by then."""
        while not self.stopping.is_set():
            if gathered := self._gather(TICK):
                yield self._batch(*gathered)
            self._drop_overdue()
        lines: list[bytes] = []
        cut: set[int] = set()
        for ready in self._last():
            self._read_all(ready, lines, cut)
            if lines:
                yield self._batch(lines, cut)
                lines, cut = [], set()
        for connection in self._connections:
            self._line(connection.held, lines)
        if lines:
            yield self._batch(lines, cut)

    def _batch(self, lines: list[bytes], cut: set[int]) -> Batch:
        batch, invalid = parse(lines, cut)
        if invalid:
            self.metrics.add("EventReadFail", invalid)
            self.complain("json", "%d of %d lines are no JSON, the first is %r", invalid, len(lines), lines[0][:60])
        return batch

    def _gather(self, patience: float) -> tuple[list[bytes], set[int]] | None:
        """Lines, as many as come within a moment of the first, and which of them were cut; None where none comes."""
        lines: list[bytes] = []
        cut: set[int] = set()
        size, due = 0, time.monotonic() + patience
        while size < MAX_BYTES and (left := due - time.monotonic()) > 0:
            size += self._read_all(self._ready(left), lines, cut)
            if lines:
                due = min(due, time.monotonic() + MAX_WAIT)
        return (lines, cut) if lines else None

    def _read_all(self, ready: list[tuple[_Application, int]], lines: list[bytes], cut: set[int]) -> int:
        """Read from each of these until a batch is full; how many bytes of lines came."""
        size = 0
        for connection, _ in ready:
            if size >= MAX_BYTES:
                break
            before = len(lines)
            self._read(connection, lines, cut)
            size += sum(map(len, lines[before:]))
        return size

    def _read(self, connection: _Application, lines: list[bytes], cut: set[int]) -> None:
        if connection.shaking:
            self._shake(connection)
            return
        data = self._receive(connection)
        if data is None:
            return
        if not data:
            if connection.held:
                self._line(connection.held, lines)
            self._drop(connection)
            return
        data = connection.held + data
        if not connection.began:
            if len(data) < len(SERIALISED) and SERIALISED.startswith(data):
                connection.held = data
                return
            if data.startswith((SERIALISED, HELLO)):
                self._misled(connection, data)
                return
        connection.began = True
        *whole, rest = data.split(b"\n")
        limit = self.config.max_line_bytes
        if whole and connection.skipping:
            connection.skipping = False
            del whole[0]
        for line in whole:
            if len(line) > limit:
                cut.add(len(lines))
                lines.append(line[:limit])
            else:
                self._line(line, lines)
        if connection.skipping:
            rest = b""
        elif len(rest) > limit:
            cut.add(len(lines))
            lines.append(rest[:limit])
            connection.skipping, rest = True, b""
        connection.held = rest

    def _line(self, line: bytes, lines: list[bytes]) -> None:
        # JsonLayout with complete = true makes an array of all events of its connection.
        if (line := line.strip(b" \t\r\0,")) and line not in (b"[", b"]"):
            lines.append(line)

    # --- connections

    def _connection(self, taken: socket.socket, peer: str) -> _Application:
        if self._tls is not None:
            taken = self._tls.wrap_socket(taken, server_side=True, do_handshake_on_connect=False)
        return _Application(taken, peer)

    def _shake(self, connection: _Application) -> None:
        """Go on agreeing on TLS."""
        assert isinstance(connection.socket, ssl.SSLSocket)
        try:
            awaited = handshake(connection.socket)
        except OSError as e:
            self._refuse(connection, refusal(e))
            return
        connection.shaking = bool(awaited)
        self._await(connection, awaited or selectors.EVENT_READ)

    def _drop_overdue(self) -> None:
        """End connections that do not come to terms about TLS."""
        limit = time.monotonic() - self.config.handshake_timeout
        for connection in [c for c in self._connections if c.shaking and c.since < limit]:
            self._refuse(connection, f"not agreed on within {self.config.handshake_timeout:g} s")

    def _refuse(self, connection: _Application, why: str) -> None:
        self.metrics.add("TlsHandshakeFail")
        self.complain("tls", "%s is not let in, no TLS: %s", connection.peer, why)
        self._drop(connection)

    def _misled(self, connection: _Application, data: bytes) -> None:
        """End a connection that speaks something else."""
        self.metrics.add("EventReadFail")
        if data.startswith(HELLO):
            self.complain("hello", "%s speaks TLS, which is not switched on here: ssl = true", connection.peer)
        else:
            self.complain(
                "serialised",
                "%s sends Java objects, as log4j 1's SocketAppender does, and is closed: they are never read. Use "
                "flume-ng-log4jappender with an avro source",
                connection.peer,
            )
        self._drop(connection)
