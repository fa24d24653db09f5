"""What the sources of Flume's RPCs share: connections, requests and answers, on a thread's event loop."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
import zlib
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar, cast

from flafka.plugins import Batch, CompatibilityNote, Metric, Source, option
from flafka.plugins.shared.rpcevents import RpcBatchBuilder
from flafka.plugins.threads import warn_rate_limited
from flafka.sources import serving
from flafka.sources.ipfilter import IpFilter
from flafka.sources.listening import Endpoint
from flafka.sources.serving import OVERHEAD, Client, Reception, ServingConfig, ServingSource

INFLATED = 256 * 1024
"""Bytes inflated at a time."""
BUDGET = 64 * 1024 * 1024
"""Bytes of unanswered requests from which on nothing is read, and of unfinished ones; or the largest request."""
OVERDUE_CHECK_SECONDS = 0.25
"""Seconds between two looks at what is overdue."""
FAREWELL = 1.0
"""Seconds that the last answers are given to leave."""

CALLS = {"append": False, "appendBatch": True}
"""What clients may ask for, and whether that carries several events."""

DIFFERENCES = (
    CompatibilityNote(
        flume="the answer is FAILED as soon as the channel is full",
        here="the source waits `request-timeout` (15 s) for the channel, then answers FAILED; the client "
        "sends again, what was stored late is there twice",
    ),
    CompatibilityNote(
        flume="any client that speaks TLS is admitted",
        here="`truststore` asks clients for a certificate that one of its authorities signed",
        option="ssl",
    ),
    CompatibilityNote(
        flume="TLS 1.0 and 1.1 are spoken",
        here="1.2 and 1.3, unless `include-protocols` says otherwise",
        option="ssl",
    ),
)
"""Differences between the sources `avro` and `thrift` and Flume's."""


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


class Call(NamedTuple):
    """What a client asks for."""

    name: str
    """One of `CALLS`."""
    serial: int
    handshake: bytes
    """What the answer begins with."""
    content: bytes
    at: int
    """Where its events begin there."""


class ServerProtocol(ABC):
    """One connection's way to write requests and answers."""

    what: str
    """What is spoken there."""

    @property
    @abstractmethod
    def held(self) -> int:
        """Bytes of the request that has begun and not ended."""

    @abstractmethod
    def feed(self, data: bytes) -> Iterator[Call | bytes]:
        """The calls that are complete now; and what is to be answered at once. ValueError for what is none."""

    @abstractmethod
    def answer(self, call: Call, *, stored: bool) -> bytes:
        """That the events are stored, or that they are not."""

    @abstractmethod
    def complaint(self, call: Call, reason: str) -> bytes:
        """That the call cannot be read."""


class RpcRequest:
    """Events of a client that wait to be stored."""

    __slots__ = ("answered", "arrived", "call", "connection", "size")

    def __init__(self, connection: RpcConnection, call: Call) -> None:
        self.connection, self.call = connection, call
        self.size = len(call.content) + OVERHEAD
        self.arrived = time.monotonic()
        self.answered = False


C = TypeVar("C", bound=RpcConfig)


class RpcServer(serving.Server[RpcRequest], Generic[C]):
    """Serves clients at `endpoint` from `start` to `stop`. Answers may be given by any thread."""

    def __init__(
        self,
        source: Source[C],
        endpoint: Endpoint,
        wire: Callable[[], ServerProtocol],
        *,
        deflate: bool = False,
        admission: IpFilter | None = None,
    ) -> None:
        super().__init__(source)
        config = self.config = source.config
        self.wire, self.deflate = wire, deflate
        self.metrics, self.warn_rate_limited = source.metrics, source.warn_rate_limited
        self.full = False
        """Whether so much is unanswered that nothing more is read."""
        self.budget = max(BUDGET, config.max_request_bytes)
        self.unfinished = 0
        """Bytes of requests that have begun and not ended."""
        self.connections: dict[RpcConnection, None] = {}
        hint = "; Flume 1.11 compresses outside of TLS, which cannot be read: switch compression off"
        self.reception = Reception(
            source,
            endpoint,
            config.frame_timeout,
            lambda client: RpcConnection(self, client),
            admission=admission,
            hint=hint if deflate else "",
        )
        self._unanswered: deque[RpcRequest] = deque()
        self._held = 0
        self._loop: asyncio.AbstractEventLoop = asyncio.new_event_loop()
        self._stop = asyncio.Event()

    def _end(self) -> None:
        self._call(self._stop.set)

    def stored(self, requests: Sequence[RpcRequest]) -> None:
        """Answer OK to the requests that have no answer yet. Any thread."""
        self.metrics.add("AppendAcceptedCount", sum(not CALLS[request.call.name] for request in requests))
        self._call(self._answer, requests, True)

    def refuse(self, request: RpcRequest, reason: str) -> None:
        """Answer that the request is unreadable, and close its connection. Any thread."""
        self._call(self._refuse, request, reason)

    # --- the loop's thread

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        warn_rate_limited(self._loop, self._log)
        self.reception.open()
        while not self._stop.is_set():
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._stop.wait(), OVERDUE_CHECK_SECONDS)
            self._fail_overdue()
            self._drop_overdue()
        await self.reception.close()
        for connection in list(self.connections):
            connection.transport.close()
        deadline = time.monotonic() + FAREWELL
        while self.connections and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        for connection in list(self.connections):
            connection.transport.abort()
        await asyncio.sleep(0)

    def _fail_overdue(self) -> None:
        timeout = self.config.request_timeout
        limit = time.monotonic() - timeout / 1000
        arrived = itertools.takewhile(lambda request: request.arrived < limit, self._unanswered)
        if overdue := [request for request in arrived if not request.answered]:
            self.metrics.add("RequestTimeoutCount", len(overdue))
            self.warn_rate_limited(
                "overdue", "requests were not stored within %d ms: their clients get FAILED", timeout
            )
            self._answer(overdue, False)
        self.arrivals.forget_answered()

    def _drop_overdue(self) -> None:
        now, config = time.monotonic(), self.config
        for connection in list(self.connections):
            if connection.stuck and now > connection.last + config.frame_timeout:
                connection.transport.abort()
            elif connection.wire.held and not self.full and now > connection.began + config.frame_timeout:
                connection.drop(f"left a request unfinished for {config.frame_timeout:g} s")
            elif config.idle_timeout and not connection.unanswered and now > connection.last + config.idle_timeout:
                connection.transport.close()

    def took(self, request: RpcRequest) -> None:
        """A request has arrived."""
        self._unanswered.append(request)
        self.arrivals.put(request)
        self._holds(request.size)

    def _holds(self, more: int) -> None:
        self._held += more
        if full := self._held > (self.budget // 2 if self.full else self.budget):
            self.warn_rate_limited("held", "%d bytes of events wait to be stored: reading pauses", self._held)
        if full != self.full:
            self.full = full
            for connection in self.connections:
                connection.read_or_not()

    def _answer(self, requests: Iterable[RpcRequest], stored: bool) -> None:
        for request in requests:
            if not request.answered:
                self._reply(request, request.connection.wire.answer(request.call, stored=stored))

    def _refuse(self, request: RpcRequest, reason: str) -> None:
        if not request.answered:
            self._reply(request, request.connection.wire.complaint(request.call, reason))
            request.connection.drop(f"sent a request that cannot be read: {reason}")

    def _reply(self, request: RpcRequest, answer: bytes) -> None:
        request.answered = True
        request.call = request.call._replace(content=b"")
        request.connection.unanswered -= 1
        request.connection.send(answer)
        self._holds(-request.size)
        while self._unanswered and self._unanswered[0].answered:
            self._unanswered.popleft()


class RpcConnection(asyncio.Protocol):
    """One client."""

    def __init__(self, server: RpcServer[Any], client: Client) -> None:
        self.server, self.client, self.peer = server, client, client.peer
        self.wire = server.wire()
        self.began = self.last = time.monotonic()
        """When the unfinished request began; when something was received or sent."""
        self.unanswered = 0
        self.transport: asyncio.Transport
        self._writable = True
        self._unread = b""
        """Deflated bytes that came and are not inflated yet."""
        self._inflate = zlib.decompressobj() if server.deflate else None
        self._deflate = zlib.compressobj() if server.deflate else None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio calls this first."""
        self.transport = cast("asyncio.Transport", transport)
        self.client.begin(self.transport)
        self.server.connections[self] = None
        self.read_or_not()

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio calls this last. Requests that arrived whole are stored all the same."""
        self.server.connections.pop(self, None)
        self.server.reception.connections.discard(self.client)
        self.server.unfinished -= self.wire.held

    def pause_writing(self) -> None:
        """asyncio calls this when the client does not read its answers: nothing more is read from it."""
        self._writable = False
        self.read_or_not()

    def resume_writing(self) -> None:
        """asyncio calls this when it does again."""
        self._writable = True
        self.read_or_not()

    def read_or_not(self) -> None:
        """Read on, or wait."""
        if self.transport.is_closing():
            return
        if self._may_read:
            self.began = time.monotonic()
            self.transport.resume_reading()
            if self._unread:
                self.server._loop.call_soon(self.data_received, b"")
        else:
            self.transport.pause_reading()

    @property
    def stuck(self) -> bool:
        """Whether it waits for a client that does not read its answers."""
        return not self._writable or self.transport.is_closing()

    @property
    def _may_read(self) -> bool:
        return self._writable and not self.server.full

    def data_received(self, data: bytes) -> None:
        """asyncio calls this with what came."""
        self.last = time.monotonic()
        self.server.reception.connections.heard(self.client)
        try:
            if self._inflate is None:
                self._receive(data)
                return
            self._unread += data
            while self._unread and self._may_read and not self.transport.is_closing():
                inflated = self._inflate.decompress(self._unread, INFLATED)
                self._unread = self._inflate.unconsumed_tail
                self._receive(inflated)
                if self._inflate.eof:
                    raise ValueError("its deflated data has come to an end")
        except zlib.error:
            self.drop("sends data that is not deflated, which compression-type = deflate requires")
        except ValueError as e:
            self.drop(f"sent something that is not {self.wire.what}: {e}")

    def _receive(self, data: bytes) -> None:
        held = self.wire.held
        complete = False
        try:
            for call in self.wire.feed(data):
                complete = True
                if self.transport.is_closing():
                    continue
                if isinstance(call, bytes):
                    self.send(call)
                else:
                    self.unanswered += 1
                    if not CALLS[call.name]:
                        self.server.metrics.add("AppendReceivedCount")
                    self.server.took(RpcRequest(self, call))
        finally:
            self.server.unfinished += self.wire.held - held
        if complete or not held:
            self.began = self.last
        if self.wire.held and self.server.unfinished > self.server.budget:  # who holds nothing is not to blame
            raise ValueError("too many large requests have begun at once")

    def send(self, data: bytes) -> None:
        """Something to the client."""
        self.last = time.monotonic()
        if self._deflate is not None:
            data = self._deflate.compress(data) + self._deflate.flush(zlib.Z_SYNC_FLUSH)
        if not self.transport.is_closing():
            self.transport.write(data)

    def drop(self, reason: str) -> None:
        """End it, for something the client did; what was written still leaves."""
        self.server.metrics.add("EventReadFail")
        self.server.warn_rate_limited("dropped", "%s %s; the connection is closed", self.peer, reason)
        self.transport.close()


class RpcSource(ServingSource[C, RpcServer[C], RpcRequest]):
    """A source that is called: OK is answered when every required channel has stored the events."""

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
        """What reads the events of requests."""

    def _read(self, server: RpcServer[C], requests: list[RpcRequest]) -> tuple[list[RpcRequest], Batch]:
        events = self._events()
        readable = []
        for request in requests:
            call = request.call
            try:
                events.add(call.content, call.at, many=CALLS[call.name])
            except ValueError as e:
                server.refuse(request, str(e))
            else:
                readable.append(request)
        return readable, events.batch()
