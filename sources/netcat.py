"""The source `netcat`: a line of text sent over TCP is an event, answered with OK."""

from __future__ import annotations

import codecs
import contextlib
import selectors
import socket
from collections.abc import Collection, Iterator

import pyarrow as pa
import pydantic

from flafka.plugins import Batch, option
from flafka.plugins.shared.charsets import text_codec
from flafka.sources.connections import CONNECTION_METRICS, Connection
from flafka.sources.listening import MAX_BYTES, READ_SIZE, Endpoint, EndpointSource, Listener, TcpConfig
from flafka.sources.pace import STOP_CHECK_SECONDS


class NetcatConfig(TcpConfig):
    """Options of the source `netcat`."""

    max_line_length: int = option(
        512,
        name="max-line-length",
        unit="characters",
        ge=1,
        le=16 << 20,
        description="Maximum length of a line, newline included. A longer one is answered with an error, and its "
        "connection is closed.",
    )
    ack_every_event: bool = option(
        True, name="ack-every-event", description="Answer OK for each line once it is stored."
    )
    encoding: str = option(
        "utf-8", name="encoding", description="Character set of the lines. Bodies of events are UTF-8."
    )

    _check_encoding = pydantic.field_validator("encoding")(text_codec)


class _Sender(Connection):
    """One of those that connected."""

    def __init__(self, taken: socket.socket, address: tuple[str, int], encoding: str) -> None:
        super().__init__(taken, address)
        # UTF-8 is passed on as it came, whatever it holds.
        self.decoder = None if encoding == "utf-8" else codecs.getincrementaldecoder(encoding)("replace")
        self.held = b""
        """The beginning of a line."""
        self.answer = b""
        """What is still to be sent."""
        self.ended = False
        """Nothing more is read of it; it is closed once its answer is sent."""


class NetcatSource(EndpointSource[NetcatConfig]):
    """Receives lines over TCP, at least once: a line is answered with OK when every required channel holds it.

    A sender that repeats what was not answered loses nothing. A line without a newline at its end is no event.
    """

    type_name = "netcat"
    aliases = ("org.apache.flume.source.NetcatSource",)
    declared_metrics = CONNECTION_METRICS

    def __init__(self, config: NetcatConfig, name: str = "") -> None:
        super().__init__(config, name, Endpoint(config.bind, [config.port]))
        self._listener: Listener[_Sender] = Listener(
            self,
            self._endpoint,
            lambda taken, address: _Sender(taken, address, config.encoding),
            most=config.max_connections,
        )

    def open(self) -> None:
        """Listen. Retry says why that is not possible."""
        self._listener.open()

    def close(self) -> None:
        """Stop listening and end all connections."""
        for connection in self._listener.connections:
            self._drop(connection)
        self._listener.close()

    def sets_headers(self) -> Collection[str]:
        """None."""
        return ()

    def batches(self) -> Iterator[Batch]:
        """What the senders send, also what has arrived by `stopping`; what has been stored is answered."""
        while not self.stopping.is_set():
            yield from self._turn(self._listener.ready(STOP_CHECK_SECONDS))
        for ready in self._listener.last():
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

    def _read(self, connection: _Sender) -> list[bytes]:
        """The lines that came to their end with what there is to read."""
        data = self._listener.read(connection)
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
        longest = self.config.max_line_length
        self.metrics.add("EventReadFail")
        self.log.warning("a line is longer than max-line-length = %d; its sender is disconnected", longest)
        answer = f"FAILED: Event exceeds the maximum length ({longest} chars, including newline)\n"
        connection.ended, connection.answer = True, answer.encode()
        return lines

    def _too_long(self, line: bytes) -> bool:
        """Return True if a line leaves no room for its newline."""
        longest = self.config.max_line_length
        return len(line) >= longest and len(line.decode("utf-8", "replace")) >= longest

    def _answer(self, connection: _Sender) -> None:
        """Send what can be sent; while some is left, nothing is read from that sender."""
        if connection not in self._listener.connections:
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
            self._listener.wait_for(connection, selectors.EVENT_WRITE if connection.answer else selectors.EVENT_READ)

    def _drop(self, connection: _Sender) -> None:
        with contextlib.suppress(OSError):
            connection.socket.shutdown(socket.SHUT_WR)
            for _ in range(4):
                connection.socket.recv(READ_SIZE)  # what is unread at a close would undo the last answer
        self._listener.drop(connection)
