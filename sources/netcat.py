"""The source `netcat`: a line of text sent over TCP is an event, answered with OK."""

from __future__ import annotations

import codecs
import selectors
import socket
from collections.abc import Iterator

import pyarrow as pa
import pydantic

from plugins import Batch, Config, Retry, Source, option
from sources.listening import listen

MAX_BYTES = 768 * 1024
"""Bytes of one batch, about."""
READ_SIZE = 256 * 1024
TICK = 0.2
"""Seconds after which an idle source looks whether it shall stop."""


class NetcatConfig(Config):
    """Options of the source `netcat`."""

    bind: str = option(name="bind", description="address or name to listen on; 0.0.0.0 or :: for all addresses")
    port: int = option(name="port", ge=0, le=65535, description="port to listen on; 0 takes a free one")
    max_line_length: int = option(
        512,
        name="max-line-length",
        unit="characters",
        ge=1,
        le=16 << 20,
        description="longest line, its newline included; who sends a longer one is told so and disconnected",
    )
    ack_every_event: bool = option(
        True, name="ack-every-event", description="whether OK is answered for each line, once it is stored"
    )
    encoding: str = option("utf-8", name="encoding", description="how lines are encoded; bodies are UTF-8")
    max_connections: int = option(
        1000, name="maxConnections", ge=1, description="connections at a time; further ones wait"
    )

    @pydantic.field_validator("encoding")
    @classmethod
    def _known(cls, name: str) -> str:
        try:
            "".encode(name)  # codecs that are not for text are refused
            return codecs.lookup(name).name
        except (LookupError, ValueError):
            raise ValueError(f"no encoding {name!r} is known here") from None


class _Connection:
    """One sender."""

    def __init__(self, sender: socket.socket, encoding: str) -> None:
        self.socket = sender
        # UTF-8 is passed on as it came, whatever it holds.
        self.decoder = None if encoding == "utf-8" else codecs.getincrementaldecoder(encoding)("replace")
        self.held = b""
        """The beginning of a line."""
        self.answer = b""
        """What is still to be sent."""
        self.ended = False
        """Nothing more is read of it; it is closed once its answer is sent."""


class NetcatSource(Source[NetcatConfig]):
    """Receives lines over TCP, at least once: a line is answered with OK when every required channel holds it.

    A sender that repeats what was not answered loses nothing. A line without a newline at its end is no event.
    """

    type_name = "netcat"
    aliases = ("org.apache.flume.source.NetcatSource",)

    def __init__(self, config: NetcatConfig, name: str = "") -> None:
        super().__init__(config, name)
        self._listener: socket.socket | None = None
        self._selector: selectors.BaseSelector | None = None
        self._connections: set[_Connection] = set()

    @property
    def port(self) -> int:
        """The port it listens on: the one configured, or the one it was given for 0."""
        return int(self._listener.getsockname()[1]) if self._listener is not None else self.config.port

    def open(self) -> None:
        """Listen. Retry says why that is not possible."""
        self._listener = listen(self.config.bind, self.config.port, socket.SOCK_STREAM)
        self._selector = selectors.DefaultSelector()
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
        """What the senders send; what has been stored is answered."""
        assert self._selector is not None
        assert self._listener is not None
        self._selector.register(self._listener, selectors.EVENT_READ)
        while not self.stopping.is_set():
            gathered: list[tuple[_Connection, list[bytes]]] = []
            size = 0
            for key, events in self._selector.select(TICK):
                if key.data is None:
                    self._accept()
                elif events & selectors.EVENT_WRITE:
                    self._answer(key.data)
                elif size < MAX_BYTES:
                    lines = self._read(key.data)
                    gathered.append((key.data, lines))
                    size += sum(map(len, lines))
            bodies = [line for _, lines in gathered for line in lines]
            if bodies:
                yield Batch.of_columns(pa.array(bodies, pa.binary()), {})
            for connection, lines in gathered:
                if self.config.ack_every_event:
                    connection.answer = b"OK\n" * len(lines) + connection.answer
                self._answer(connection)

    def _accept(self) -> None:
        assert self._selector is not None
        assert self._listener is not None
        try:
            sender, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError as e:
            self.log.debug("a connection cannot be accepted: %s", e)
            self.stopping.wait(0.05)  # with no file descriptor left, the next try would fail at once
            return
        sender.setblocking(False)
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection = _Connection(sender, self.config.encoding)
        self._connections.add(connection)
        self._selector.register(sender, selectors.EVENT_READ, connection)
        if len(self._connections) >= self.config.max_connections:
            self._selector.unregister(self._listener)
        self.metrics.set("OpenConnectionCount", len(self._connections))

    def _read(self, connection: _Connection) -> list[bytes]:
        """The lines that came to their end with what there is to read."""
        try:
            data = connection.socket.recv(READ_SIZE)
        except BlockingIOError:
            return []
        except OSError as e:
            self.log.debug("a connection broke: %s", e)
            data = b""
        if not data:
            connection.ended = True
            return []
        if connection.decoder is not None:
            data = connection.decoder.decode(data).encode()
        *lines, held = (connection.held + data).split(b"\n")
        for row, line in enumerate(lines):
            if self._too_long(line):
                lines, held = lines[:row], b""
                break
        else:
            if not self._too_long(held):
                connection.held = held
                return lines
        self.metrics.add("EventReadFail")
        self.log.warning("a line is longer than max-line-length = %d; its sender is disconnected", self._longest)
        told = f"FAILED: Event exceeds the maximum length ({self._longest} chars, including newline)\n"
        connection.ended, connection.answer = True, told.encode()
        return lines

    @property
    def _longest(self) -> int:
        return self.config.max_line_length

    def _too_long(self, line: bytes) -> bool:
        """Whether a line leaves no room for its newline."""
        return len(line) >= self._longest and len(line.decode("utf-8", "replace")) >= self._longest

    def _answer(self, connection: _Connection) -> None:
        """Send what can be sent; while some is left, nothing is read from that sender."""
        assert self._selector is not None
        if connection not in self._connections:
            return
        try:
            if connection.answer:
                connection.answer = connection.answer[connection.socket.send(connection.answer) :]
        except BlockingIOError:
            pass
        except OSError:
            connection.ended, connection.answer = True, b""
        if connection.ended and not connection.answer:
            self._drop(connection)
        else:
            wanted = selectors.EVENT_WRITE if connection.answer else selectors.EVENT_READ
            self._selector.modify(connection.socket, wanted, connection)

    def _drop(self, connection: _Connection) -> None:
        assert self._selector is not None
        self._selector.unregister(connection.socket)
        try:
            connection.socket.shutdown(socket.SHUT_WR)
            for _ in range(4):
                connection.socket.recv(READ_SIZE)  # what is unread at a close would undo the last answer
        except OSError:
            pass
        connection.socket.close()
        if len(self._connections) >= self.config.max_connections and self._listener is not None:
            self._selector.register(self._listener, selectors.EVENT_READ)
        self._connections.discard(connection)
        self.metrics.set("OpenConnectionCount", len(self._connections))
