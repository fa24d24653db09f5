"""What the sinks of Flume's RPCs share: options, connections, and requests that are sent ahead of their answers."""

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
from flafka.plugins.shared.tls import TlsClientConfig

WINDOW = 8
"""Requests sent ahead of their answers."""
MAX_ANSWER = 1024 * 1024
"""Bytes of an answer that are accepted."""
READ_SIZE = 64 * 1024
DEFAULT_TIMEOUT, SHORTEST_TIMEOUT = 20_000, 1000
"""Milliseconds."""

DIFFERENCES = (
    CompatibilityNote(
        flume="any certificate of a trusted authority will do",
        here="it must also be for `hostname`; `check-hostname = false` gives Flume's behaviour",
        option="ssl",
        seen=True,
    ),
)


class RpcSinkConfig(TlsClientConfig):
    """Options of a sink that calls a source."""

    hostname: str = option(name="hostname", description="Name or address of the host where the source listens.")
    port: int = option(name="port", description="Port where the source listens.", ge=1, le=65535)
    batch_size: int = option(
        100, name="batch-size", description="Maximum number of events in a request.", unit="events", ge=1
    )
    connect_timeout: int = option(
        DEFAULT_TIMEOUT,
        name="connect-timeout",
        description="Maximum time for connecting and for the first request. A value below 1000 stands for the "
        "default.",
        unit="ms",
    )
    request_timeout: int = option(
        DEFAULT_TIMEOUT,
        name="request-timeout",
        description="Maximum time for each later request. A value below 1000 stands for the default.",
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
        """Timeouts that are not what they say."""
        yield from super().warnings()
        for name, value in (("connect-timeout", self.connect_timeout), ("request-timeout", self.request_timeout)):
            if value < SHORTEST_TIMEOUT:
                message = f"is less than {SHORTEST_TIMEOUT} ms: it is the default, {DEFAULT_TIMEOUT} ms"
                yield Problem(name, message, as_in_flume=True)

    def patience(self, timeout: int) -> float:
        """That timeout in seconds, as Flume takes it: few of its users mean so few milliseconds."""
        return (timeout if timeout >= SHORTEST_TIMEOUT else DEFAULT_TIMEOUT) / 1000


class ClientProtocol(ABC):
    """One connection's way to write requests and answers. ValueError and zlib.error for what is no answer."""

    @abstractmethod
    def request(self, serial: int, events: Sequence[bytes]) -> bytes:
        """A request, of which the first has the serial number 1."""

    @abstractmethod
    def answers(self, data: bytes) -> Iterator[tuple[int, Callable[[], enum.IntEnum]]]:
        """The answers that are complete now: the request's serial number, and what tells its status: 0 for OK."""


K = TypeVar("K", bound=RpcSinkConfig)


class RpcSink(Sink[K]):
    """Sends events to a source, Flume's or ours, at least once: what was not answered OK is sent again."""

    def __init__(self, config: K, name: str = "") -> None:
        super().__init__(config, name)
        self.batch_size = config.batch_size
        self._context: ssl.SSLContext | None = None
        self._events: list[bytes] = []
        self._connection: _ClientConnection | None = None

    @abstractmethod
    def _encoded(self, batch: Batch) -> list[bytes]:
        """The events, as requests hold them."""

    @abstractmethod
    def _wire(self) -> ClientProtocol:
        """That of a new connection."""

    def open(self) -> None:
        """Read the truststore; connect when there are events."""
        self._context = self.config.context()

    def close(self) -> None:
        """Disconnect."""
        self.reset()

    def write(self, batch: Batch) -> None:
        """Keep the events, encoded, for the next flush."""
        self._events += self._encoded(batch)

    def flush(self) -> None:
        """Return when the source has answered OK to all events."""
        size = self.config.batch_size
        interval = self.config.reset_connection_interval
        if interval > 0 and self._connection is not None and time.monotonic() > self._connection.since + interval:
            self._disconnect()
        try:
            for start in range(0, len(self._events), size):
                if self._connection is None:
                    self._connection = _ClientConnection(self.config, self._context, self._wire())
                    self.metrics.add("ConnectionCreatedCount")
                self._connection.send(self._events[start : start + size])
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

    def check_connectivity(self) -> Iterator[str]:
        """Whether the source can be reached, TLS included."""
        try:
            _ClientConnection(self.config, self.config.context(), self._wire()).close()
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
    """One connection to a source. Its methods raise OSError and ValueError; only `close` may follow."""

    def __init__(self, config: RpcSinkConfig, context: ssl.SSLContext | None, wire: ClientProtocol) -> None:
        self.since = time.monotonic()
        self._timeout = config.patience(config.request_timeout)
        patience = config.patience(config.connect_timeout)
        plain = socket.create_connection((config.hostname, config.port), patience)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            self._socket = context.wrap_socket(plain, server_hostname=config.hostname) if context else plain
        except BaseException:
            plain.close()
            raise
        self._first_deadline: float | None = self.since + patience
        self._wire = wire
        self._sent = 0
        self._unanswered: set[int] = set()

    def close(self) -> None:
        """End it."""
        with contextlib.suppress(OSError):
            self._socket.close()

    def send(self, events: Sequence[bytes]) -> None:
        """Send one request, once few enough are unanswered."""
        self._sent += 1
        first = self._sent == 1
        self._unanswered.add(self._sent)
        self._socket.settimeout(self._timeout)
        self._socket.sendall(self._wire.request(self._sent, events))
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
            for serial, read in self._wire.answers(data):
                self._take(serial, read)
                deadline = time.monotonic() + self._timeout

    def _take(self, serial: int, read: Callable[[], enum.IntEnum]) -> None:
        if serial not in self._unanswered:
            raise ValueError(f"an answer to request {serial}, which is not awaited")
        self._unanswered.remove(serial)  # Flume answers in any order
        status = read()
        self._first_deadline = None
        if status:
            raise ValueError(f"the source answers {status.name}: its channel may be full or away")


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message} (truststore, check-hostname)"
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, zlib.error):
        return "it does not deflate its answers: compression-type must be the same on both sides"
    return getattr(error, "strerror", None) or str(error)
