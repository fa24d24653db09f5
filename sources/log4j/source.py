"""The source `log4j`."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

from plugins import Batch, Source, option
from sources.connections import Connection
from sources.listening import MAX_BYTES, TICK, Endpoint, HandshakeConfig, Listener, TcpConfig
from sources.log4j.reading import parse

MAX_WAIT = 0.02
"""Seconds that a batch waits for more after its first line."""
SERIALISED, HELLO = b"\xac\xed\x00\x05", b"\x16\x03"
"""How a stream of Java objects begins, and one of TLS."""


class Log4jConfig(TcpConfig, HandshakeConfig):
    """Options of the source `log4j`."""

    max_line_bytes: int = option(
        1024 * 1024,
        name="maxLineBytes",
        description="A longer line is cut at this size and marked Incomplete; the rest of it is dropped.",
        unit="bytes",
        ge=1024,
        le=16 * 1024 * 1024,
    )


class _Application(Connection):
    """One of those that connected."""

    def __init__(self, taken: socket.socket, address: tuple[str, int]) -> None:
        super().__init__(taken, address)
        self.held = b""
        """The beginning of a line."""
        self.began = False
        """Whether anything has come."""
        self.skipping = False
        """Whether the line was cut, and its rest is dropped."""


class Log4jSource(Source[Log4jConfig]):
    """Receives JSON lines of log4j 2 and logback: what it has read is never dropped, and it waits for its channels.

    Their socket appenders get no acknowledgement: what is on its way when either side dies is lost. The avro source
    with a Flume appender loses nothing.
    """

    type_name = "log4j"
    in_flight = 4

    def __init__(self, config: Log4jConfig, name: str = "") -> None:
        super().__init__(config, name)
        self._listener: Listener[_Application] = Listener(
            self,
            Endpoint(config.bind, [config.port], config),
            _Application,
            most=config.max_connections,
            handshake_timeout=config.handshake_timeout,
        )

    @property
    def port(self) -> int:
        """The port it listens on: the one configured, or the one it was given for 0."""
        return self._listener.endpoint.ports[0]

    def open(self) -> None:
        """Load the certificate, and listen. Retry says why that is not possible."""
        self._listener.open()

    def close(self) -> None:
        """Stop listening and end all connections."""
        self._listener.close()

    def probe(self) -> Iterator[str]:
        """Whether the certificate can be used, and the address and the port be had."""
        return self._listener.endpoint.probe()

    def batches(self) -> Iterator[Batch]:
        """What the applications log; after `stopping`, also what had arrived by then."""
        while not self.stopping.is_set():
            if gathered := self._gather(TICK):
                yield self._batch(*gathered)
        lines: list[bytes] = []
        cut: set[int] = set()
        for ready in self._listener.last():
            self._read_all(ready, lines, cut)
            if lines:
                yield self._batch(lines, cut)
                lines, cut = [], set()
        for connection in self._listener.connections:
            self._line(connection.held, lines)
        if lines:
            yield self._batch(lines, cut)

    def _batch(self, lines: list[bytes], cut: set[int]) -> Batch:
        batch, invalid = parse(lines, cut)
        if invalid:
            self.metrics.add("EventReadFail", invalid)
            self.complain(
                "json", "%d of %d lines are not JSON; the batch begins with %r", invalid, len(lines), lines[0][:60]
            )
        return batch

    def _gather(self, patience: float) -> tuple[list[bytes], set[int]] | None:
        """Lines, as many as come within a moment of the first, and which of them were cut; None where none comes."""
        lines: list[bytes] = []
        cut: set[int] = set()
        size, due = 0, time.monotonic() + patience
        while size < MAX_BYTES and (left := due - time.monotonic()) > 0:
            size += self._read_all(self._listener.ready(left), lines, cut)
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
        data = self._listener.read(connection)
        if data is None:
            return
        if not data:
            if connection.held:
                self._line(connection.held, lines)
            self._listener.drop(connection)
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

    def _misled(self, connection: _Application, data: bytes) -> None:
        """End a connection that speaks something else."""
        self.metrics.add("EventReadFail")
        if data.startswith(HELLO):
            self.complain("hello", "%s speaks TLS, which needs ssl = true here", connection.peer)
        else:
            self.complain(
                "serialised",
                "%s sends Java objects, as log4j 1's SocketAppender does, and is closed: they are never read. Use "
                "flume-ng-log4jappender with an avro source",
                connection.peer,
            )
        self._listener.drop(connection)
