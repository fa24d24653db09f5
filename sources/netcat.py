"""The source `netcat`: a line of text sent over TCP is an event, answered with OK."""

from __future__ import annotations

import codecs
import contextlib
import selectors
import socket
from collections.abc import Iterator

import pyarrow as pa
import pydantic

from plugins import Batch, option
from sources.listening import READ_SIZE, Connection, TcpConfig, TcpSource

MAX_BYTES = 768 * 1024
"""Bytes of one batch, about."""
TICK = 0.2
"""Seconds after which an idle source looks whether it shall stop."""


class NetcatConfig(TcpConfig):
    """Options of the source `netcat`."""

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

    @pydantic.field_validator("encoding")
    @classmethod
    def _known(cls, name: str) -> str:
        try:
            "".encode(name)  # codecs that are not for text are refused
            return codecs.lookup(name).name
        except (LookupError, ValueError):
            raise ValueError(f"no encoding {name!r} is known here") from None


class _Sender(Connection):
    """One of those that connected."""

    def __init__(self, taken: socket.socket, peer: str, encoding: str) -> None:
        super().__init__(taken, peer)
        # UTF-8 is passed on as it came, whatever it holds.
        self.decoder = None if encoding == "utf-8" else codecs.getincrementaldecoder(encoding)("replace")
        self.answer = b""
        """What is still to be sent."""
        self.ended = False
        """Nothing more is read of it; it is closed once its answer is sent."""


class NetcatSource(TcpSource[NetcatConfig, _Sender]):
    """Receives lines over TCP, at least once: a line is answered with OK when every required channel holds it.

    A sender that repeats what was not answered loses nothing. A line without a newline at its end is no event.
    """

    type_name = "netcat"
    aliases = ("org.apache.flume.source.NetcatSource",)

    def batches(self) -> Iterator[Batch]:
        """What the senders send, also what has arrived by `stopping`; what has been stored is answered."""
        while not self.stopping.is_set():
            yield from self._turn(self._ready(TICK))
        for ready in self._last():
            yield from self._turn(ready)

    def _turn(self, ready: list[tuple[_Sender, int]]) -> Iterator[Batch]:
        """Read what there is to read, and answer it once it is stored."""
        gathered: list[tuple[_Sender, list[bytes]]] = []
        size = 0
        for connection, events in ready:
            if events & selectors.EVENT_WRITE:
                self._answer(connection)
            elif size < MAX_BYTES:
                lines = self._read(connection)
                gathered.append((connection, lines))
                size += sum(map(len, lines))
        bodies = [line for _, lines in gathered for line in lines]
        if bodies:
            yield Batch.of_columns(pa.array(bodies, pa.binary()), {})
        for connection, lines in gathered:
            if self.config.ack_every_event:
                connection.answer = b"OK\n" * len(lines) + connection.answer
            self._answer(connection)

    def _connection(self, taken: socket.socket, peer: str) -> _Sender:
        return _Sender(taken, peer, self.config.encoding)

    def _read(self, connection: _Sender) -> list[bytes]:
        """The lines that came to their end with what there is to read."""
        data = self._receive(connection)
        if not data:
            connection.ended = data is not None
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

    def _answer(self, connection: _Sender) -> None:
        """Send what can be sent; while some is left, nothing is read from that sender."""
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
            self._await(connection, selectors.EVENT_WRITE if connection.answer else selectors.EVENT_READ)

    def _drop(self, connection: _Sender) -> None:
        with contextlib.suppress(OSError):
            connection.socket.shutdown(socket.SHUT_WR)
            for _ in range(4):
                connection.socket.recv(READ_SIZE)  # what is unread at a close would undo the last answer
        super()._drop(connection)
