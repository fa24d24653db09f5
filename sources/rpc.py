"""Base of the sources `avro` and `thrift`: the server of Flume's RPCs, its connections and its requests."""

from __future__ import annotations

import asyncio
import itertools
import time
import zlib
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Generic, TypeVar, cast

from flafka.plugins import Batch, CompatibilityNote, Metric, Source, option
from flafka.plugins.threads import rate_limit_loop_errors
from flafka.plugins.wire.rpcevents import RpcBatchBuilder
from flafka.sources import serving
from flafka.sources.ipfilter import IpFilter
from flafka.sources.listening import Endpoint
from flafka.sources.serving import REQUEST_OVERHEAD_BYTES, Acceptor, Client, ServingConfig, ServingSource

INFLATE_CHUNK_BYTES = 256 * 1024
"""Size of the output of one inflate call."""
MAX_PENDING_BYTES = 64 * 1024 * 1024
"""Limit of unanswered requests, above which no data is read, and of incomplete ones; at least the largest request."""
LINGER_ON_CLOSE_SECONDS = 1.0
"""Time for the kernel to accept the last answers before connections are aborted."""

CALLS = {"append": False, "appendBatch": True}
"""Methods that clients call → True if the method carries several events."""

RPC_COMPATIBILITY = (
    CompatibilityNote(
        flume="the answer is FAILED as soon as the channel is full",
        here="the source waits `request-timeout` (15 s) for the channel, then answers FAILED; the client "
        "sends the request again, and events stored late are duplicated",
    ),
    CompatibilityNote(
        flume="any client that speaks TLS is admitted",
        here="`truststore` requires a client certificate signed by one of its authorities",
        option="ssl",
    ),
    CompatibilityNote(
        flume="TLS 1.0 and 1.1 are spoken",
        here="1.2 and 1.3, unless `include-protocols` says otherwise",
        option="ssl",
    ),
)
"""Compatibility notes of the sources `avro` and `thrift`."""


class RpcConfig(ServingConfig):
    """Options of the sources `avro` and `thrift`."""

    options_without_effect = MappingProxyType({"threads": "one thread serves all connections"})
    max_request_bytes: int = option(
        32 * 1024 * 1024,
        name="maxRequestBytes",
        description="Maximum size of a request. After a larger one the connection is closed.",
        unit="bytes",
        ge=1024,
    )
    request_timeout: int = option(
        15_000,
        name="request-timeout",
        description="A request whose events are not stored within this time is answered with FAILED. Set it below "
        "the timeout of the clients, which is 20,000 ms by default.",
        unit="ms",
        ge=100,
    )
    frame_timeout: float = option(
        30.0,
        name="frameTimeout",
        description="A connection that leaves a request or a TLS handshake unfinished for this long is closed.",
        unit="s",
        gt=0,
    )
    idle_timeout: float = option(
        0.0,
        name="idleTimeout",
        description="A connection that is silent for this long is closed; 0 never closes one. Appenders may log "
        "nothing for days, and report a closed connection as a failure.",
        unit="s",
        ge=0,
    )


@dataclass(slots=True)
class Call:
    """Method call of a client."""

    name: str
    """Key of `CALLS`."""
    serial: int
    handshake: bytes
    """First part of the answer."""
    content: bytes
    offset: int
    """Position of the events in `content`."""


class ServerProtocol(ABC):
    """Decoder of requests and encoder of answers for one connection."""

    protocol_name: str
    """Name of the protocol in log lines."""

    @property
    @abstractmethod
    def partial_bytes(self) -> int:
        """Size of the incomplete request, in bytes."""

    @abstractmethod
    def feed(self, data: bytes) -> Iterator[Call | bytes]:
        """Yield the calls that `data` completes, and answers to send at once: handshakes, errors of unknown calls.

        Raises ValueError for data that is not of this protocol.
        """

    @abstractmethod
    def answer(self, call: Call, *, stored: bool) -> bytes:
        """Return the encoded answer: OK if the events are stored, or else FAILED."""

    @abstractmethod
    def error_answer(self, call: Call, reason: str) -> bytes:
        """Return the encoded error answer to a call whose events cannot be read, with the reason."""


class RpcRequest:
    """Call whose events wait to be stored."""

    __slots__ = ("arrived", "call", "connection", "is_answered", "size")

    def __init__(self, connection: RpcConnection, call: Call) -> None:
        self.connection, self.call = connection, call
        self.size = len(call.content) + REQUEST_OVERHEAD_BYTES
        self.arrived = time.monotonic()
        self.is_answered = False


C = TypeVar("C", bound=RpcConfig)


class RpcServer(serving.Server[RpcRequest], Generic[C]):
    """Server of Flume's RPC clients at `endpoint`, from `start` to `stop`. Any thread may answer requests."""

    def __init__(
        self,
        source: Source[C],
        endpoint: Endpoint,
        create_protocol: Callable[[], ServerProtocol],
        *,
        deflate: bool = False,
        ip_filter: IpFilter | None = None,
    ) -> None:
        super().__init__(source)
        config = self.config = source.config
        self.create_protocol, self.deflate = create_protocol, deflate
        self.metrics, self.warn_rate_limited = source.metrics, source.warn_rate_limited
        self.is_full = False
        """True while unanswered requests exceed the limit: no data is read."""
        self.max_pending_bytes = max(MAX_PENDING_BYTES, config.max_request_bytes)
        self.connections: dict[RpcConnection, None] = {}
        hint = "; Flume 1.11 compresses outside of TLS, which cannot be read: switch compression off"
        self.acceptor = Acceptor(
            source,
            endpoint,
            config.frame_timeout,
            lambda client: RpcConnection(self, client),
            ip_filter=ip_filter,
            hint=hint if deflate else "",
        )
        self._unanswered: deque[RpcRequest] = deque()
        self._pending_bytes = 0
        self._stop = asyncio.Event()

    def _end(self) -> None:
        self._stop.set()

    def stored(self, requests: Sequence[RpcRequest]) -> None:
        """Answer OK to the requests that have no answer yet. Thread-safe."""
        self.metrics.add("AppendAcceptedCount", sum(not CALLS[request.call.name] for request in requests))
        self._call(self._answer, requests, True)

    def refuse(self, request: RpcRequest, reason: str) -> None:
        """Answer that the request is unreadable, and close its connection. Thread-safe."""
        self._call(self._refuse, request, reason)

    # --- on the event loop

    async def _serve(self) -> None:
        """Serve clients until `stop`; then send pending answers for `LINGER_ON_CLOSE_SECONDS` and close all."""
        rate_limit_loop_errors(self._loop, self._log)
        self.acceptor.open()
        await self._stop.wait()
        await self.acceptor.close()
        for connection in list(self.connections):
            connection.transport.close()
        deadline = time.monotonic() + LINGER_ON_CLOSE_SECONDS
        while self.connections and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        for connection in list(self.connections):
            connection.transport.abort()
        await asyncio.sleep(0)

    def _check(self) -> None:
        self._fail_overdue()
        self._drop_overdue()

    def _fail_overdue(self) -> None:
        """Answer FAILED to the requests that wait longer than `request-timeout` ms."""
        timeout = self.config.request_timeout
        limit = time.monotonic() - timeout / 1000
        arrived = itertools.takewhile(lambda request: request.arrived < limit, self._unanswered)
        if overdue := [request for request in arrived if not request.is_answered]:
            self.metrics.add("RequestTimeoutCount", len(overdue))
            self.warn_rate_limited(
                "overdue", "requests were not stored within %d ms: their clients get FAILED", timeout
            )
            self._answer(overdue, False)
        self._forget_answered()

    def _drop_overdue(self) -> None:
        """Close connections past their time limits.

        `frameTimeout` limits unread answers, and unfinished requests while reading is not paused. `idleTimeout`, if
        set, limits silence without pending requests.
        """
        now, config = time.monotonic(), self.config
        for connection in list(self.connections):
            if connection.is_write_blocked and now > connection.last_activity + config.frame_timeout:
                connection.transport.abort()
            elif (
                connection.protocol.partial_bytes
                and not self.is_full
                and now > connection.request_started + config.frame_timeout
            ):
                connection.drop(f"left a request unfinished for {config.frame_timeout:g} s")
            elif (
                config.idle_timeout
                and not connection.unanswered
                and now > connection.last_activity + config.idle_timeout
            ):
                connection.transport.close()

    def enqueue(self, request: RpcRequest) -> None:
        """Queue a request for the source's thread, and pause reading if too many bytes wait."""
        self._unanswered.append(request)
        self._enqueue(request)
        self._add_pending(request.size)

    def _add_pending(self, size_bytes: int) -> None:
        """Add to the size of unanswered requests, and pause or resume reading.

        Reading pauses above `max_pending_bytes`, and resumes at half of that.
        """
        self._pending_bytes += size_bytes
        if full := self._pending_bytes > (self.max_pending_bytes // 2 if self.is_full else self.max_pending_bytes):
            self.warn_rate_limited(
                "pending", "%d bytes of events wait to be stored: reading pauses", self._pending_bytes
            )
        if full != self.is_full:
            self.is_full = full
            for connection in self.connections:
                connection.update_reading()

    def _answer(self, requests: Iterable[RpcRequest], stored: bool) -> None:
        """Answer OK if `stored`, or else FAILED, to the requests that have no answer yet."""
        for request in requests:
            if not request.is_answered:
                self._reply(request, request.connection.protocol.answer(request.call, stored=stored))

    def _refuse(self, request: RpcRequest, reason: str) -> None:
        """Send an error and close the connection, unless the request has an answer."""
        if not request.is_answered:
            self._reply(request, request.connection.protocol.error_answer(request.call, reason))
            request.connection.drop(f"sent a request that cannot be read: {reason}")

    def _reply(self, request: RpcRequest, answer: bytes) -> None:
        """Send the answer to a request, mark it as answered, and release its content."""
        request.is_answered = True
        request.call.content = b""
        request.connection.unanswered -= 1
        request.connection.send(answer)
        self._add_pending(-request.size)
        while self._unanswered and self._unanswered[0].is_answered:
            self._unanswered.popleft()


class RpcConnection(asyncio.Protocol):
    """Connection of one client."""

    def __init__(self, server: RpcServer[Any], client: Client) -> None:
        self.server, self.client, self.peer = server, client, client.peer
        self.protocol = server.create_protocol()
        self.request_started = self.last_activity = time.monotonic()
        """Start of the incomplete request, and the last read or write, in seconds of the monotonic clock."""
        self.unanswered = 0
        self.transport: asyncio.Transport
        self._writable = True
        self._deflated = b""
        """Received data that is not inflated yet."""
        self._inflate = zlib.decompressobj() if server.deflate else None
        self._deflate = zlib.compressobj() if server.deflate else None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register the connection, and begin to read unless reading pauses. Called by asyncio."""
        self.transport = cast("asyncio.Transport", transport)
        self.client.record_transport(self.transport)
        self.server.connections[self] = None
        self.update_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """Unregister the connection; its complete requests are stored all the same. Called by asyncio."""
        self.server.connections.pop(self, None)
        self.server.acceptor.connections.discard(self.client)
        self.server.add_partial(-self.protocol.partial_bytes)

    def pause_writing(self) -> None:
        """Pause reading while the client does not read its answers. Called by asyncio."""
        self._writable = False
        self.update_reading()

    def resume_writing(self) -> None:
        """Resume reading once the client reads its answers, unless too many requests wait. Called by asyncio."""
        self._writable = True
        self.update_reading()

    def update_reading(self) -> None:
        """Resume reading, or pause it while too many bytes wait to be stored or the client does not read its answers.

        No effect on a connection that is closing.
        """
        if self.transport.is_closing():
            return
        if self._is_reading_allowed:
            self.request_started = time.monotonic()
            self.transport.resume_reading()
            if self._deflated:
                self.server._loop.call_soon(self.data_received, b"")
        else:
            self.transport.pause_reading()

    @property
    def is_write_blocked(self) -> bool:
        """True while the client does not read its answers, or the connection closes."""
        return not self._writable or self.transport.is_closing()

    @property
    def _is_reading_allowed(self) -> bool:
        """True unless too many requests wait to be stored, or the client does not read its answers."""
        return self._writable and not self.server.is_full

    def data_received(self, data: bytes) -> None:
        """Inflate received data if configured, and queue the calls that it completes. Called by asyncio.

        The connection is closed after invalid data.
        """
        self.last_activity = time.monotonic()
        self.server.acceptor.connections.record_activity(self.client)
        try:
            if self._inflate is None:
                self._receive(data)
                return
            self._deflated += data
            while self._deflated and self._is_reading_allowed and not self.transport.is_closing():
                inflated = self._inflate.decompress(self._deflated, INFLATE_CHUNK_BYTES)
                self._deflated = self._inflate.unconsumed_tail
                self._receive(inflated)
                if self._inflate.eof:
                    raise ValueError("its deflated data has ended")
        except zlib.error:
            self.drop("sends data that is not deflated, which compression-type = deflate requires")
        except ValueError as e:
            self.drop(f"sent something that is not {self.protocol.protocol_name}: {e}")

    def _receive(self, data: bytes) -> None:
        """Decode data, queue the calls that it completes, and send immediate answers.

        Raises ValueError for invalid data, or if incomplete requests of all clients exceed the limit.
        """
        partial_before = self.protocol.partial_bytes
        complete = False
        try:
            for call in self.protocol.feed(data):
                complete = True
                if self.transport.is_closing():
                    continue
                if isinstance(call, bytes):
                    self.send(call)
                else:
                    self.unanswered += 1
                    if not CALLS[call.name]:
                        self.server.metrics.add("AppendReceivedCount")
                    self.server.enqueue(RpcRequest(self, call))
        finally:
            self.server.add_partial(self.protocol.partial_bytes - partial_before)
        if complete or not partial_before:
            self.request_started = self.last_activity
        if complete:
            self.server.notify_source()
        # A connection without an incomplete request does not contribute to the total: it stays open.
        if self.protocol.partial_bytes and self.server.partial_bytes > self.server.max_pending_bytes:
            raise ValueError("too many large requests have begun at once")

    def send(self, data: bytes) -> None:
        """Send data to the client, deflated if configured; drop the data if the connection is closing."""
        self.last_activity = time.monotonic()
        if self._deflate is not None:
            data = self._deflate.compress(data) + self._deflate.flush(zlib.Z_SYNC_FLUSH)
        if not self.transport.is_closing():
            self.transport.write(data)

    def drop(self, reason: str) -> None:
        """Count and log an error of the client, and close its connection. Data written before is still sent."""
        self.server.metrics.add("EventReadFail")
        self.server.warn_rate_limited("dropped", "%s %s; the connection is closed", self.peer, reason)
        self.transport.close()


class RpcSource(ServingSource[C, RpcServer[C], RpcRequest]):
    """Source of Flume's RPCs, which answers OK once every required channel has stored the events."""

    declared_metrics = (
        *ServingSource.declared_metrics,
        Metric(
            *("RequestTimeoutCount", "counter", "requests"),
            "Requests that were answered FAILED because they were not stored in time.",
            "known",
        ),
    )

    @abstractmethod
    def _events(self) -> RpcBatchBuilder:
        """Return a builder that decodes the events of requests."""

    def _read(self, server: RpcServer[C], requests: list[RpcRequest]) -> tuple[list[RpcRequest], Batch]:
        """Return the readable requests and a batch of their events, in order; refuse unreadable requests."""
        events = self._events()
        readable = []
        for request in requests:
            call = request.call
            try:
                events.add(call.content, call.offset, is_batch=CALLS[call.name])
            except ValueError as e:
                server.refuse(request, str(e))
            else:
                readable.append(request)
        return readable, events.batch()
