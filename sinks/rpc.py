"""Base of the sinks of Flume's RPCs: options, and connections with pipelined requests."""

from __future__ import annotations

import contextlib
import enum
import socket
import ssl
import time
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from flafka.plugins import Batch, CompatibilityNote, Problem, Retry, Sink, option
from flafka.plugins.net.tls import TlsClientConfig

MAX_PENDING_REQUESTS = 8
"""Number of requests without a response, at which the sink waits for a response."""
MAX_RESPONSE_BYTES = 1024 * 1024
READ_BYTES = 64 * 1024
DEFAULT_TIMEOUT_MS, MIN_TIMEOUT_MS = 20_000, 1000

RPC_COMPATIBILITY = (
    CompatibilityNote(
        flume="any certificate of a trusted authority is accepted",
        here="it must also be for `hostname`; `check-hostname = false` is Flume's behaviour",
        option="ssl",
        is_common=True,
    ),
)


class RpcSinkConfig(TlsClientConfig):
    """Options of an RPC sink."""

    hostname: str = option(name="hostname", description="Name or address of the host where the source listens.")
    port: int = option(name="port", description="Port where the source listens.", ge=1, le=65535)
    batch_size: int = option(
        100, name="batch-size", description="Maximum number of events in a request.", unit="events", ge=1
    )
    connect_timeout: int = option(
        DEFAULT_TIMEOUT_MS,
        name="connect-timeout",
        description="Maximum time for connecting and for the first request. A value below 1000 means the default.",
        unit="ms",
    )
    request_timeout: int = option(
        DEFAULT_TIMEOUT_MS,
        name="request-timeout",
        description="Maximum time for each later request. A value below 1000 means the default.",
        unit="ms",
    )
    reset_connection_interval: int = option(
        0,
        name="reset-connection-interval",
        description="Age at which a connection is replaced, so that a load balancer can choose another server. 0 or "
        "less never replaces one.",
        unit="s",
    )

    def warnings(self) -> Iterator[Problem]:
        """Yield warnings of timeouts that are replaced by the default."""
        yield from super().warnings()
        for name, value in (("connect-timeout", self.connect_timeout), ("request-timeout", self.request_timeout)):
            if value < MIN_TIMEOUT_MS:
                message = f"is less than {MIN_TIMEOUT_MS} ms, and is replaced by the default, {DEFAULT_TIMEOUT_MS} ms"
                yield Problem(name, message, is_flume_behavior=True)

    @staticmethod
    def timeout_seconds(timeout: int) -> float:
        """Return a timeout of milliseconds in seconds; the default, as in Flume, for less than `MIN_TIMEOUT_MS`."""
        return (timeout if timeout >= MIN_TIMEOUT_MS else DEFAULT_TIMEOUT_MS) / 1000


class ClientProtocol(ABC):
    """Encoding of requests and responses on one connection."""

    @abstractmethod
    def encode_request(self, serial: int, events: Sequence[bytes]) -> bytes:
        """Return the bytes of a request. Serial numbers count the requests of a connection, from 1 on."""

    @abstractmethod
    def decode_responses(self, data: bytes) -> Iterator[tuple[int, Callable[[], enum.IntEnum]]]:
        """Yield complete responses: the request's serial number, and a function that reads its status, 0 for OK.

        Raises ValueError and zlib.error for an invalid response; the function raises ValueError.
        """


K = TypeVar("K", bound=RpcSinkConfig)


class RpcSink(Sink[K]):
    """Sends events to a source of Flume or Flafka at least once: unanswered requests are repeated."""

    def __init__(self, config: K, name: str = "") -> None:
        super().__init__(config, name)
        self.batch_size = config.batch_size
        self._context: ssl.SSLContext | None = None
        self._events: list[bytes] = []
        self._connection: _ClientConnection | None = None

    @abstractmethod
    def _encode_events(self, batch: Batch) -> list[bytes]:
        """Return the encoded events of a batch, in order."""

    @abstractmethod
    def _new_protocol(self) -> ClientProtocol:
        """Return the protocol of a new connection."""

    def open(self) -> None:
        """Read the truststore. The first flush connects. Raises Retry if the truststore cannot be used."""
        self._context = self.config.context()

    def close(self) -> None:
        """Drop events that are not flushed, and close the connection."""
        self.reset()

    def write(self, batch: Batch) -> None:
        """Encode the events, and keep them for the next flush."""
        self._events += self._encode_events(batch)

    def flush(self) -> None:
        """Send the events, and return when the source has answered OK to all. Raises Retry after any other answer.

        Also raises Retry if the connection breaks, or no answer comes in time. The events stay until `reset`.
        """
        size = self.config.batch_size
        interval = self.config.reset_connection_interval
        if interval > 0 and self._connection is not None and time.monotonic() > self._connection.since + interval:
            self._disconnect()
        try:
            for start in range(0, len(self._events), size):
                if self._connection is None:
                    self._connection = _ClientConnection(self.config, self._context, self._new_protocol())
                    self.metrics.add("ConnectionCreatedCount")
                self._connection.send(self._events[start : start + size])
            if self._connection is not None:
                self._connection.drain()
        except (OSError, ValueError, zlib.error) as e:
            self.metrics.add("ConnectionFailedCount")
            self._disconnect()
            raise Retry(f"{self.config.hostname}:{self.config.port}: {_reason(e)}") from e
        self._events.clear()

    def reset(self) -> None:
        """Drop events that are not flushed, and disconnect, so that no late response counts for a later request."""
        self._events.clear()
        self._disconnect()

    def check_connectivity(self) -> Iterator[str]:
        """Yield the error if no connection to the source, with TLS if configured, is possible. Sends no request."""
        try:
            _ClientConnection(self.config, self.config.context(), self._new_protocol()).close()
        except Retry as e:
            yield str(e)
        except (OSError, ValueError) as e:
            yield f"{self.config.hostname}:{self.config.port}: {_reason(e)}"

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
            self.metrics.add("ConnectionClosedCount")


class _ClientConnection:
    """Connection to a source. After an OSError or ValueError of a method, only `close` may be called."""

    def __init__(self, config: RpcSinkConfig, context: ssl.SSLContext | None, protocol: ClientProtocol) -> None:
        self.since = time.monotonic()
        self._timeout = config.timeout_seconds(config.request_timeout)
        connect_timeout = config.timeout_seconds(config.connect_timeout)
        plain = socket.create_connection((config.hostname, config.port), connect_timeout)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            self._socket = context.wrap_socket(plain, server_hostname=config.hostname) if context else plain
        except BaseException:
            plain.close()
            raise
        self._first_deadline: float | None = self.since + connect_timeout
        self._protocol = protocol
        self._sent = 0
        self._pending: set[int] = set()

    def close(self) -> None:
        """Close the connection."""
        with contextlib.suppress(OSError):
            self._socket.close()

    def send(self, events: Sequence[bytes]) -> None:
        """Send one request, and wait while more than `MAX_PENDING_REQUESTS` have no answer.

        The first request waits for its own answer. Raises OSError, also after a timeout, and ValueError for an answer
        other than OK.
        """
        self._sent += 1
        first = self._sent == 1
        self._pending.add(self._sent)
        self._socket.settimeout(self._timeout)
        self._socket.sendall(self._protocol.encode_request(self._sent, events))
        # The first response shows whether the source understands the protocol: no request is sent before it.
        self._read_responses(0 if first else MAX_PENDING_REQUESTS)

    def drain(self) -> None:
        """Return when all requests are answered OK. Raises as `send`."""
        self._read_responses(0)

    def _read_responses(self, max_pending: int) -> None:
        """Read answers until at most `max_pending` requests have none. Each answer extends the timeout.

        Raises TimeoutError, ConnectionError if the source disconnects, and ValueError for an answer other than OK.
        """
        deadline = self._first_deadline or time.monotonic() + self._timeout
        while len(self._pending) > max_pending:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise TimeoutError("no answer in time")
            self._socket.settimeout(remaining)
            data = self._socket.recv(READ_BYTES)
            if not data:
                raise ConnectionError("the source has closed the connection")
            for serial, read_status in self._protocol.decode_responses(data):
                self._handle_response(serial, read_status)
                deadline = time.monotonic() + self._timeout

    def _handle_response(self, serial: int, read_status: Callable[[], enum.IntEnum]) -> None:
        """Remove the request from the pending ones.

        Raises ValueError if it is none of them, or if its status is not OK.
        """
        if serial not in self._pending:
            raise ValueError(f"an answer to request {serial}, which is not pending")
        self._pending.remove(serial)  # Flume answers in any order
        status = read_status()
        self._first_deadline = None
        if status:
            raise ValueError(f"the source answers {status.name}: its channel may be full or unavailable")


def _reason(error: Exception) -> str:
    """Return the reason for a failed connection, for the end of a sentence."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message} (truststore, check-hostname)"
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, zlib.error):
        return "it does not compress its answers with deflate: compression-type must be the same on both sides"
    return getattr(error, "strerror", None) or str(error)
