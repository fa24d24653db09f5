"""Source `netcat`: lines of text over TCP, one event each, acknowledged with OK."""

from __future__ import annotations

import codecs
import contextlib
import selectors
import socket
from collections.abc import Collection, Iterator

import pyarrow as pa
import pydantic

from flafka.plugins import Batch, option
from flafka.plugins.java.charsets import text_codec
from flafka.sources.batching import CONNECTION_CHECK_SECONDS
from flafka.sources.connections import CONNECTION_METRICS, Connection
from flafka.sources.listening import MAX_BATCH_BYTES, READ_BYTES, Endpoint, EndpointSource, Listener, TcpConfig


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
    """Connection of one sender."""

    def __init__(self, accepted: socket.socket, address: tuple[str, int], encoding: str) -> None:
        super().__init__(accepted, address)
        # UTF-8 is not decoded: invalid bytes stay as they were sent.
        self.decoder = None if encoding == "utf-8" else codecs.getincrementaldecoder(encoding)("replace")
        self.partial_line = b""
        """Beginning of a line whose newline has not arrived."""
        self.answer = b""
        """Part of the answers that is not sent yet."""
        self.is_closing = False
        """True if no more data is read: the connection is closed once `answer` is sent."""


class NetcatSource(EndpointSource[NetcatConfig]):
    """Receive lines over TCP, at least once: a line is answered with OK when every required channel holds it.

    A sender that repeats unanswered lines loses nothing. A line without a newline at its end is no event.
    """

    type_name = "netcat"
    aliases = ("org.apache.flume.source.NetcatSource",)
    declared_metrics = CONNECTION_METRICS

    def __init__(self, config: NetcatConfig, name: str = "") -> None:
        super().__init__(config, name, Endpoint(config.bind, [config.port]))
        self._listener: Listener[_Sender] = Listener(
            self,
            self._endpoint,
            lambda accepted, address: _Sender(accepted, address, config.encoding),
            max_connections=config.max_connections,
        )

    def open(self) -> None:
        """Listen. Raises `Retry` if that is impossible."""
        self._listener.open()

    def close(self) -> None:
        """Stop listening and close all connections."""
        for connection in self._listener.connections:
            self._drop(connection)
        self._listener.close()

    def sets_headers(self) -> Collection[str]:
        """Return an empty collection: events have no headers."""
        return ()

    def batches(self) -> Iterator[Batch]:
        """Yield the lines of all senders until `stopping`, then the lines that had arrived; answer stored lines."""
        while not self.stopping.is_set():
            yield from self._read_and_answer(self._listener.poll(CONNECTION_CHECK_SECONDS))
        for ready in self._listener.drain():
            yield from self._read_and_answer(ready)

    def _read_and_answer(self, ready: list[tuple[_Sender, int]]) -> Iterator[Batch]:
        """Read once from each connection in `ready`, yield a batch of the lines, and answer these once stored.

        A connection ready for writing gets the rest of its answers instead. With `ack-every-event` off, only errors
        are answered. About `MAX_BATCH_BYTES` are read.
        """
        gathered: list[tuple[_Sender, list[bytes]]] = []
        size = 0
        for connection, events in ready:
            if events & selectors.EVENT_WRITE:
                self._answer(connection)
            elif size < MAX_BATCH_BYTES:
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
        """Read once from a connection and return the lines that are complete now, without newlines, in UTF-8.

        A line above `max-line-length` ends the list: its sender gets an error and is disconnected.
        """
        data = self._listener.read(connection)
        if not data:
            connection.is_closing = data is not None
            return []
        if connection.decoder is not None:
            data = connection.decoder.decode(data).encode()
        *lines, partial_line = (connection.partial_line + data).split(b"\n")
        for row, line in enumerate(lines):
            if self._too_long(line):
                lines, partial_line = lines[:row], b""
                break
        else:
            if not self._too_long(partial_line):
                connection.partial_line = partial_line
                return lines
        longest = self.config.max_line_length
        self.metrics.add("EventReadFail")
        self.log.warning("a line is longer than max-line-length = %d; its sender is disconnected", longest)
        answer = f"FAILED: Event exceeds the maximum length ({longest} chars, including newline)\n"
        connection.is_closing, connection.answer = True, answer.encode()
        return lines

    def _too_long(self, line: bytes) -> bool:
        """Return True if a line, without its newline, has `max-line-length` characters or more."""
        longest = self.config.max_line_length
        return len(line) >= longest and len(line.decode("utf-8", "replace")) >= longest

    def _answer(self, connection: _Sender) -> None:
        """Send as much of the answer as the kernel accepts; a sender with unsent answers is not read."""
        if connection not in self._listener.connections:
            return
        try:
            if connection.answer:
                connection.answer = connection.answer[connection.socket.send(connection.answer) :]
        except BlockingIOError:
            pass
        except OSError:
            connection.is_closing, connection.answer = True, b""
        if connection.is_closing and not connection.answer:
            self._drop(connection)
        else:
            self._listener.wait_for(connection, selectors.EVENT_WRITE if connection.answer else selectors.EVENT_READ)

    def _drop(self, connection: _Sender) -> None:
        """Close a connection, after its unread data was dropped, so that the last answer reaches the sender."""
        with contextlib.suppress(OSError):
            connection.socket.shutdown(socket.SHUT_WR)
            for _ in range(4):
                # A close with unread data sends a reset, which discards the last answer at the client.
                connection.socket.recv(READ_BYTES)
        self._listener.drop(connection)
