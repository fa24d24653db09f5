"""The source `log4j`."""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Iterator

from plugins import Batch, Config, Retry, Source, option
from sources.listening import listen
from sources.log4j.reading import parse

MAX_BYTES = 768 * 1024
"""Bytes gathered for one batch."""
READ_SIZE = 64 * 1024
MAX_WAIT = 0.02
"""Seconds that a batch waits for more after its first line."""
TICK = 0.2
"""Seconds after which an idle source looks whether it shall stop."""
SERIALISED = b"\xac\xed\x00\x05"
"""How a stream of Java objects begins."""


class Log4jConfig(Config):
    """Options of the source `log4j`."""

    bind: str = option(name="bind", description="Address or name to listen on; 0.0.0.0 or :: for all addresses.")
    port: int = option(name="port", description="Port to listen on; 0 takes a free one.", ge=0, le=65535)
    max_line_bytes: int = option(
        1024 * 1024,
        name="maxLineBytes",
        description="A longer line is cut there, marked Incomplete, and what follows of it is dropped.",
        unit="bytes",
        ge=1024,
        le=16 * 1024 * 1024,
    )
    max_connections: int = option(
        1000, name="maxConnections", description="Connections at a time; further ones wait.", ge=1
    )


class _Connection:
    """One application."""

    __slots__ = ("began", "held", "peer", "skipping", "socket")

    def __init__(self, taken: socket.socket, peer: str) -> None:
        self.socket, self.peer = taken, peer
        self.began = False
        """Whether anything has come."""
        self.held = b""
        """The beginning of a line."""
        self.skipping = False
        """Whether that line was cut, and its rest is dropped."""


class Log4jSource(Source[Log4jConfig]):
    """Receives JSON lines of log4j 2 and logback: what it has read is never dropped, and it waits for its channels.

    Their socket appenders get no acknowledgement: what is on its way when either side dies is lost. The avro source
    with a Flume appender loses nothing.
    """

    type_name = "log4j"
    in_flight = 4

    def __init__(self, config: Log4jConfig, name: str = "") -> None:
        super().__init__(config, name)
        self._listener: socket.socket | None = None
        self._selector: selectors.BaseSelector | None = None
        self._connections: set[_Connection] = set()
        self._complained: dict[str, float] = {}

    @property
    def port(self) -> int:
        """The port it listens on: the one configured, or the one it was given for 0."""
        return int(self._listener.getsockname()[1]) if self._listener is not None else self.config.port

    def open(self) -> None:
        """Listen. Retry says why that is not possible."""
        self._listener = listen(self.config.bind, self.config.port, socket.SOCK_STREAM)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self.log.info("listening on %s port %d", self.config.bind, self.port)

    def close(self) -> None:
        """Stop listening and end all connections."""
        for connection in list(self._connections):
            self._drop(connection)
        if self._selector is not None:
            self._selector.close()
            self._selector = None
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def probe(self) -> Iterator[str]:
        """Whether the address and the port can be had."""
        try:
            listen(self.config.bind, self.config.port, socket.SOCK_STREAM).close()
        except Retry as e:
            yield str(e)

    def batches(self) -> Iterator[Batch]:
        """What the applications log."""
        while not self.stopping.is_set():
            if lines := self._gather(TICK):
                yield self._batch(*lines)
        if lines := self._gather(MAX_WAIT):  # what had arrived by then
            yield self._batch(*lines)

    def _batch(self, lines: list[bytes], cut: set[int]) -> Batch:
        batch, invalid = parse(lines, cut)
        if invalid:
            self.metrics.add("EventReadFail", invalid)
            self._complain("json", "%d of %d lines are no JSON, the first is %r", invalid, len(lines), lines[0][:60])
        return batch

    def _gather(self, patience: float) -> tuple[list[bytes], set[int]] | None:
        """Lines, as many as come within a moment of the first, and which of them were cut; None where none comes."""
        assert self._selector is not None
        lines: list[bytes] = []
        cut: set[int] = set()
        size, due = 0, time.monotonic() + patience
        while size < MAX_BYTES and (left := due - time.monotonic()) > 0:
            for key, _ in self._selector.select(left):
                if key.data is None:
                    self._accept()
                    continue
                before = len(lines)
                self._read(key.data, lines, cut)
                size += sum(map(len, lines[before:]))
            if lines:
                due = min(due, time.monotonic() + MAX_WAIT)
        return (lines, cut) if lines else None

    def _read(self, connection: _Connection, lines: list[bytes], cut: set[int]) -> None:
        try:
            data = connection.socket.recv(READ_SIZE)
        except BlockingIOError:
            return
        except OSError as e:
            self.log.debug("%s: %s", connection.peer, e)
            data = b""
        if not data:
            if connection.held:
                self._line(connection.held, lines)
            self._drop(connection)
            return
        data = connection.held + data
        if not connection.began and SERIALISED.startswith(data[:4]):
            if len(data) < len(SERIALISED):
                connection.held = data
                return
            self.metrics.add("EventReadFail")
            self._complain(
                "serialised",
                "%s sends Java objects, as log4j 1's SocketAppender does, and is closed: they are never read. Use "
                "flume-ng-log4jappender with an avro source",
                connection.peer,
            )
            self._drop(connection)
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

    def _accept(self) -> None:
        assert self._selector is not None
        assert self._listener is not None
        try:
            taken, address = self._listener.accept()
        except BlockingIOError:
            return
        except OSError as e:
            self._complain("accept", "cannot accept connections for a while: %s", e.strerror)
            self.stopping.wait(0.05)  # with no file descriptor left, the next try would fail at once
            return
        taken.setblocking(False)
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection = _Connection(taken, f"{address[0]}:{address[1]}")
        self._connections.add(connection)
        self._selector.register(taken, selectors.EVENT_READ, connection)
        if len(self._connections) >= self.config.max_connections:
            self._complain("full", "%d connections, as many as maxConnections: new ones wait", len(self._connections))
            self._selector.unregister(self._listener)
        self.metrics.set("OpenConnectionCount", len(self._connections))

    def _drop(self, connection: _Connection) -> None:
        assert self._selector is not None
        self._selector.unregister(connection.socket)
        connection.socket.close()
        if len(self._connections) >= self.config.max_connections and self._listener is not None:
            self._selector.register(self._listener, selectors.EVENT_READ)
        self._connections.discard(connection)
        self.metrics.set("OpenConnectionCount", len(self._connections))

    def _complain(self, about: str, message: str, *args: object) -> None:
        """Log a warning, one a minute about the same: anyone who can connect can cause them."""
        now = time.monotonic()
        if now - self._complained.get(about, -60.0) >= 60:
            self._complained[about] = now
            self.log.warning(message, *args)
