"""Source `log4j`: JSON of log4j 2 and logback over TCP."""

from __future__ import annotations

import socket
from collections.abc import Iterator

from flafka.plugins import Batch, option
from flafka.sources.batching import CONNECTION_CHECK_SECONDS, BatchingPolicy
from flafka.sources.connections import CONNECTION_METRICS, Connection
from flafka.sources.listening import (
    CERTIFICATE_METRIC,
    HANDSHAKE_METRIC,
    MAX_BATCH_BYTES,
    Endpoint,
    EndpointSource,
    HandshakeConfig,
    Listener,
    TcpConfig,
)
from flafka.sources.log4j.config import EncodingConfig
from flafka.sources.log4j.framing import Log4jFramer

JAVA_STREAM_HEADER, BOM = b"\xac\xed\x00\x05", b"\xef\xbb\xbf"
"""First bytes of a stream of serialized Java objects, and of UTF-8 with a byte order mark."""


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
    """Connection of one application."""

    def __init__(self, accepted: socket.socket, address: tuple[str, int], limit: int) -> None:
        super().__init__(accepted, address)
        self.framer = Log4jFramer(limit)
        self.prefix: bytes | None = b""
        """First bytes, until they identify the format; then None."""


class Log4jSource(EndpointSource[Log4jConfig]):
    """Receive JSON of log4j 2 and logback: an event once read is never dropped, and full channels pause reading.

    The message and its stack trace become the body. Level, logger, thread and time become the headers `level`,
    `logger`, `thread` and `timestamp`. The thread context (MDC) and all other fields become headers of their own
    names, with the prefix `mdc.` if a name is taken. An unreadable time stays in the header of its field,
    `log4j.timestamp` for `timestamp`.

    Supported are the Elastic Common Schema, GELF, logstash-logback-encoder, JsonLayout, JsonTemplateLayout with its
    templates and logback's JsonEncoder. `field.<part>` adds names of custom templates and composites.

    Socket appenders get no acknowledgement: events in flight when either side fails are lost. The source `avro` with
    a Flume appender loses nothing.
    """

    type_name = "log4j"
    declared_metrics = (*CONNECTION_METRICS, CERTIFICATE_METRIC, HANDSHAKE_METRIC)
    in_flight = 4

    def __init__(self, config: Log4jConfig, name: str = "") -> None:
        super().__init__(config, name, Endpoint(config.bind, [config.port], config))
        self._parser = config.parser()
        self._batching = BatchingPolicy()
        self._listener: Listener[_Application] = Listener(
            self,
            self._endpoint,
            lambda accepted, address: _Application(accepted, address, config.max_line_bytes),
            max_connections=config.max_connections,
            handshake_timeout=config.handshake_timeout,
        )

    def open(self) -> None:
        """Load the certificate and listen. Raises `Retry` if either is impossible."""
        self._listener.open()

    def close(self) -> None:
        """Stop listening and close all connections."""
        self._listener.close()

    def batches(self) -> Iterator[Batch]:
        """Yield the events of all applications until `stopping`, then the events that had arrived."""
        while not self.stopping.is_set():
            if events := self._gather():
                yield self._batch(events)
        events = []
        for ready in self._listener.drain():
            self._read_all(ready, events)
            if events:
                yield self._batch(events)
                events = []
        for connection in self._listener.connections:
            events += connection.framer.end()
        if events:
            yield self._batch(events)

    def _batch(self, events: list[bytes]) -> Batch:
        """Return the parsed events; count and log the texts that are no JSON objects."""
        batch, invalid = self._parser.batch(events)
        if invalid:
            self.metrics.add("EventReadFail", invalid)
            self.warn_rate_limited(
                "json", "%d of %d events are not JSON; the batch begins with %r", invalid, len(events), events[0][:60]
            )
        return batch

    def _gather(self) -> list[bytes]:
        """Return the JSON texts of one batch; empty if no event is complete within `CONNECTION_CHECK_SECONDS`."""
        events: list[bytes] = []
        size = 0
        while size < MAX_BATCH_BYTES:
            ready = self._listener.poll(
                self._batching.timeout() if events else CONNECTION_CHECK_SECONDS, self._batching.linger
            )
            is_first_read = not events
            size += self._read_all(ready, events)
            if not events:
                return events
            if is_first_read:
                self._batching.start_batch()
            if self._batching.is_due(idle=not ready):
                break
        self._batching.end_batch(len(events), size)
        return events

    def _read_all(self, ready: list[tuple[_Application, int]], events: list[bytes]) -> int:
        """Read once from each connection until a batch is full, and append the complete events to `events`.

        Return the size of these events in bytes.
        """
        size = 0
        for connection, _ in ready:
            if size >= MAX_BATCH_BYTES:
                break
            before = len(events)
            self._read(connection, events)
            size += sum(map(len, events[before:]))
        return size

    def _read(self, connection: _Application, events: list[bytes]) -> None:
        """Read once from a connection, and append the events that are complete; close it at its end.

        A connection that begins with serialized Java objects is closed.
        """
        data = self._listener.read(connection)
        if data is None:
            return
        if not data:
            events += connection.framer.feed(connection.prefix or b"") + connection.framer.end()
            self._listener.drop(connection)
            return
        if connection.prefix is not None:
            data = connection.prefix + data
            if any(len(data) < len(known) and known.startswith(data) for known in (JAVA_STREAM_HEADER, BOM)):
                connection.prefix = data
                return
            if data.startswith(JAVA_STREAM_HEADER):
                self._refuse_objects(connection)
                return
            connection.prefix = None
            data = data.removeprefix(BOM)
        events += connection.framer.feed(data)

    def _refuse_objects(self, connection: _Application) -> None:
        """Close a connection that sends serialized Java objects; count and log that."""
        self.metrics.add("EventReadFail")
        self.warn_rate_limited(
            "serialised",
            "%s sends Java objects, as log4j 1's SocketAppender does, and is closed: use "
            "flume-ng-log4jappender with an avro source",
            connection.peer,
        )
        self._listener.drop(connection)
