"""The source `log4j`."""

from __future__ import annotations

import socket
from collections.abc import Iterator

from flafka.plugins import Batch, option
from flafka.sources.connections import CONNECTION_METRICS, Connection
from flafka.sources.listening import (
    CERTIFICATE,
    HANDSHAKES,
    MAX_BYTES,
    Endpoint,
    EndpointSource,
    HandshakeConfig,
    Listener,
    TcpConfig,
)
from flafka.sources.log4j.config import EncodingConfig
from flafka.sources.log4j.framing import Log4jFramer
from flafka.sources.pace import STOP_CHECK_SECONDS, Pace

SERIALISED, BOM = b"\xac\xed\x00\x05", b"\xef\xbb\xbf"
"""Beginnings of a stream of Java objects, and of one of UTF-8 that is marked as such."""


class Log4jConfig(TcpConfig, HandshakeConfig, EncodingConfig):
    """Options of the source `log4j`."""

    max_line_bytes: int = option(
        1024 * 1024,
        name="maxLineBytes",
        description="A longer event is cut at this size and marked Incomplete; the rest of it is dropped.",
        unit="bytes",
        ge=1024,
        le=16 * 1024 * 1024,
    )


class _Application(Connection):
    """One of those that connected."""

    def __init__(self, taken: socket.socket, address: tuple[str, int], limit: int) -> None:
        super().__init__(taken, address)
        self.framer = Log4jFramer(limit)
        self.first: bytes | None = b""
        """The first bytes, until they tell what it speaks."""


class Log4jSource(EndpointSource[Log4jConfig]):
    """Receives JSON of log4j 2 and logback: what it has read is never dropped, and it waits for its channels.

    The message and its stack trace become the body. Level, logger, thread and time become the headers `level`,
    `logger`, `thread` and `timestamp`. The thread context (MDC) and all other fields become headers of their own
    names, with `mdc.` before a name that is taken. A time that is not understood stays in the header of its field,
    `log4j.timestamp` for `timestamp`.

    Known are the Elastic Common Schema, GELF, logstash-logback-encoder, JsonLayout, JsonTemplateLayout with its
    templates and logback's JsonEncoder. `field.<part>` adds names of templates and composites of one's own.

    Their socket appenders get no acknowledgement: what is on its way when either side dies is lost. The avro source
    with a Flume appender loses nothing.
    """

    type_name = "log4j"
    declared_metrics = (*CONNECTION_METRICS, CERTIFICATE, HANDSHAKES)
    in_flight = 4

    def __init__(self, config: Log4jConfig, name: str = "") -> None:
        super().__init__(config, name, Endpoint(config.bind, [config.port], config))
        self._reader = config.reader()
        self._pace = Pace()
        self._listener: Listener[_Application] = Listener(
            self,
            self._endpoint,
            lambda taken, address: _Application(taken, address, config.max_line_bytes),
            most=config.max_connections,
            handshake_timeout=config.handshake_timeout,
        )

    def open(self) -> None:
        """Load the certificate, and listen. Retry says why that is not possible."""
        self._listener.open()

    def close(self) -> None:
        """Stop listening and end all connections."""
        self._listener.close()

    def batches(self) -> Iterator[Batch]:
        """Yield what the applications log; after `stopping`, also what had arrived by then."""
        while not self.stopping.is_set():
            if events := self._gather():
                yield self._batch(events)
        events = []
        for ready in self._listener.last():
            self._read_all(ready, events)
            if events:
                yield self._batch(events)
                events = []
        for connection in self._listener.connections:
            events += connection.framer.end()
        if events:
            yield self._batch(events)

    def _batch(self, events: list[bytes]) -> Batch:
        batch, invalid = self._reader.batch(events)
        if invalid:
            self.metrics.add("EventReadFail", invalid)
            self.warn_rate_limited(
                "json", "%d of %d events are not JSON; the batch begins with %r", invalid, len(events), events[0][:60]
            )
        return batch

    def _gather(self) -> list[bytes]:
        """Events that go together; none where none comes for a while."""
        events: list[bytes] = []
        size = 0
        while size < MAX_BYTES:
            ready = self._listener.ready(self._pace.patience() if events else STOP_CHECK_SECONDS, self._pace.rest)
            began = not events
            size += self._read_all(ready, events)
            if not events:
                return events
            if began:
                self._pace.begin()
            if self._pace.due(quiet=not ready):
                break
        self._pace.end(size)
        return events

    def _read_all(self, ready: list[tuple[_Application, int]], events: list[bytes]) -> int:
        """Read from each of these until a batch is full; how many bytes of events came."""
        size = 0
        for connection, _ in ready:
            if size >= MAX_BYTES:
                break
            before = len(events)
            self._read(connection, events)
            size += sum(map(len, events[before:]))
        return size

    def _read(self, connection: _Application, events: list[bytes]) -> None:
        data = self._listener.read(connection)
        if data is None:
            return
        if not data:
            events += connection.framer.feed(connection.first or b"") + connection.framer.end()
            self._listener.drop(connection)
            return
        if connection.first is not None:
            data = connection.first + data
            if any(len(data) < len(begins) and begins.startswith(data) for begins in (SERIALISED, BOM)):
                connection.first = data
                return
            if data.startswith(SERIALISED):
                self._refuse_objects(connection)
                return
            connection.first = None
            data = data.removeprefix(BOM)
        events += connection.framer.feed(data)

    def _refuse_objects(self, connection: _Application) -> None:
        """End a connection that sends Java objects."""
        self.metrics.add("EventReadFail")
        self.warn_rate_limited(
            "serialised",
            "%s sends Java objects, as log4j 1's SocketAppender does, and is closed: they are never read. Use "
            "flume-ng-log4jappender with an avro source",
            connection.peer,
        )
        self._listener.drop(connection)
