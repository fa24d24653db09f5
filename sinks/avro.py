"""The avro sink."""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
import zlib
from collections.abc import Iterator
from types import MappingProxyType

from plugins import Batch, Retry, Sink, option
from plugins.shared.avrorpc import CompressionConfig, Frames, Status, array, frame, opening, read_answer
from plugins.shared.flumeevent import encode
from plugins.shared.tls import TlsClientConfig

WINDOW = 8
"""Requests sent ahead of their answers."""
MAX_ANSWER = 1024 * 1024
"""Bytes of an answer that are accepted."""
READ_SIZE = 64 * 1024


class AvroSinkConfig(CompressionConfig, TlsClientConfig):
    """Options of the avro sink."""

    ignored = MappingProxyType({"maxIoWorkers": "one thread sends all requests"})
    hostname: str = option(name="hostname", description="Name or address of the host where the avro source listens.")
    port: int = option(name="port", description="Port where the avro source listens.", ge=1, le=65535)
    batch_size: int = option(
        100, name="batch-size", description="Maximum number of events in a request.", unit="events", ge=1
    )
    connect_timeout: int = option(
        20_000,
        name="connect-timeout",
        description="Maximum time for connecting and for the first request.",
        unit="ms",
        ge=1,
    )
    request_timeout: int = option(
        20_000, name="request-timeout", description="Maximum time for each later request.", unit="ms", ge=1
    )
    reset_connection_interval: int = option(
        0,
        name="reset-connection-interval",
        description="Age at which a connection is replaced, so that a load balancer can choose another server. 0 "
        "never replaces one.",
        unit="s",
        ge=0,
    )
    compression_level: int = option(
        6,
        name="compression-level",
        description="Level of compression with deflate, from 0 (fastest) to 9 (smallest requests).",
        ge=0,
        le=9,
    )


class AvroSink(Sink[AvroSinkConfig]):
    """Sends events to an avro source, Flume's or ours, at least once: what was not answered OK is sent again."""

    type_name = "avro"
    aliases = ("org.apache.flume.sink.AvroSink",)

    def __init__(self, config: AvroSinkConfig, name: str = "") -> None:
        super().__init__(config, name)
        self.batch_size = config.batch_size
        self._context: ssl.SSLContext | None = None
        self._events: list[bytes] = []
        self._connection: _Connection | None = None

    def open(self) -> None:
        """Read the truststore; connect when there are events."""
        self._context = self.config.context()

    def close(self) -> None:
        """Disconnect."""
        self.reset()

    def write(self, batch: Batch) -> None:
        """Keep the events, encoded, for the next flush."""
        self._events += encode(batch).to_pylist()

    def flush(self) -> None:
        """Return when the source has answered OK to all events."""
        size = self.config.batch_size
        interval = self.config.reset_connection_interval
        if interval and self._connection is not None and time.monotonic() > self._connection.since + interval:
            self._disconnect()
        try:
            for start in range(0, len(self._events), size):
                if self._connection is None:
                    self._connection = _Connection(self.config, self._context)
                    self.metrics.add("ConnectionCreatedCount")
                self._connection.send(array(self._events[start : start + size]))
            if self._connection is not None:
                self._connection.settle()
        except (OSError, ValueError, zlib.error) as e:
            self.metrics.add("ConnectionFailedCount")
            self._disconnect()
            raise Retry(f"{self.config.hostname}:{self.config.port}: {_reason(e)}") from e
        self._events.clear()

    def reset(self) -> None:
        """Forget what is not flushed. Answers to it may still come: only a new connection can tell whose they are."""
        self._events.clear()
        self._disconnect()

    def probe(self) -> Iterator[str]:
        """Whether the source can be reached, TLS included."""
        try:
            _Connection(self.config, self.config.context()).close()
        except Retry as e:
            yield str(e)
        except (OSError, ValueError) as e:
            yield f"{self.config.hostname}:{self.config.port}: {_reason(e)}"

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
            self.metrics.add("ConnectionClosedCount")


class _Connection:
    """One connection to a source. Its methods raise OSError and ValueError; only `close` may follow."""

    def __init__(self, config: AvroSinkConfig, context: ssl.SSLContext | None) -> None:
        self.since = time.monotonic()
        self._timeout = config.request_timeout / 1000
        patience = config.connect_timeout / 1000
        plain = socket.create_connection((config.hostname, config.port), patience)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            self._socket = context.wrap_socket(plain, server_hostname=config.hostname) if context else plain
        except BaseException:
            plain.close()
            raise
        self._first_deadline: float | None = self.since + patience
        self._frames = Frames(MAX_ANSWER)
        self._sent = 0
        self._unanswered: set[int] = set()
        deflate = config.compression_type == "deflate"
        self._deflate = zlib.compressobj(config.compression_level) if deflate else None
        self._inflate = zlib.decompressobj() if deflate else None

    def close(self) -> None:
        """End it."""
        with contextlib.suppress(OSError):
            self._socket.close()

    def send(self, events: bytes) -> None:
        """Send one request, once few enough are unanswered."""
        self._sent += 1
        first = self._sent == 1
        self._unanswered.add(self._sent)
        data = frame(self._sent, [opening(first=first, message="appendBatch"), events])
        if self._deflate is not None:
            data = self._deflate.compress(data) + self._deflate.flush(zlib.Z_SYNC_FLUSH)
        self._socket.settimeout(self._timeout)
        self._socket.sendall(data)
        # The first answer tells whether the source understands us at all: nothing is sent ahead of it.
        self._await(0 if first else WINDOW)

    def settle(self) -> None:
        """Return when all requests are answered OK."""
        self._await(0)

    def _await(self, unanswered: int) -> None:
        deadline = self._first_deadline or time.monotonic() + self._timeout
        while len(self._unanswered) > unanswered:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError("no answer in time")
            self._socket.settimeout(left)
            data = self._socket.recv(READ_SIZE)
            if not data:
                raise ConnectionError("the source has closed the connection")
            if self._inflate is not None:
                data = self._inflate.decompress(data, MAX_ANSWER)
            for serial, content in self._frames.feed(data):
                self._take(serial, content)
                deadline = time.monotonic() + self._timeout

    def _take(self, serial: int, content: bytes) -> None:
        if serial not in self._unanswered:
            raise ValueError(f"an answer to request {serial}, which is not awaited")
        self._unanswered.remove(serial)  # Flume answers in any order
        status = read_answer(content, first=serial == 1)
        self._first_deadline = None
        if status != Status.OK:
            raise ValueError(f"the source answers {status.name}: its channel may be full or away")


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message} (truststore, check-hostname)"
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, zlib.error):
        return "it does not deflate its answers: compression-type must be the same on both sides"
    return getattr(error, "strerror", None) or str(error)
