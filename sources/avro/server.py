"""The network's side of the avro source: connections, requests and answers, on a thread with an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterable
from typing import cast

from plugins import Source
from plugins.shared.avrorpc import Frames, Greeting, Status, answer, complaint, frame
from sources import serving
from sources.avro.config import AvroConfig, Rule, admitted
from sources.listening import Endpoint
from sources.serving import Admission, Client, Reception

INFLATED = 256 * 1024
"""Bytes inflated at a time."""
OVERHEAD = 1024
"""Bytes that a request takes beside its content, roughly."""
BUDGET = 64 * 1024 * 1024
"""Bytes of unanswered requests from which on nothing is read, and of unfinished ones; or the largest request."""
TICK = 0.25
"""Seconds between two looks at what is overdue."""
FAREWELL = 1.0
"""Seconds that the last answers are given to leave."""

MESSAGES = {"append": False, "appendBatch": True}
"""Whether they carry an array of events."""


class Request:
    """Events of a client that wait to be stored."""

    __slots__ = ("answered", "arrived", "at", "connection", "content", "handshake", "many", "serial", "size")

    def __init__(
        self, connection: Connection, serial: int, content: bytes, handshake: bytes, name: str, at: int
    ) -> None:
        self.connection, self.serial, self.content, self.handshake = connection, serial, content, handshake
        self.many, self.at = MESSAGES[name], at
        self.size = len(content) + OVERHEAD
        self.arrived = time.monotonic()
        self.answered = False


class Server(serving.Server[Request]):
    """Serves clients at `endpoint` from `start` to `stop`. Answers may be given by any thread."""

    def __init__(self, source: Source[AvroConfig], endpoint: Endpoint) -> None:
        super().__init__("avro")
        config = self.config = source.config
        self.metrics, self.complain = source.metrics, source.complain
        self.full = False
        """Whether so much is unanswered that nothing more is read."""
        self.budget = max(BUDGET, config.max_request_bytes)
        self.unfinished = 0
        """Bytes of requests that have begun and not ended."""
        self.connections: dict[Connection, None] = {}
        hint = "; Flume 1.11 compresses outside of TLS, which cannot be read: switch compression off"
        self._reception = Reception(
            source,
            endpoint,
            config.frame_timeout,
            lambda client: Connection(self, client),
            admission=IpFilter(config.rules()),
            hint=hint if config.compression_type == "deflate" else "",
        )
        self._unanswered: deque[Request] = deque()
        self._held = 0
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()

    def _end(self) -> None:
        self._call(self._stop.set)

    def answer(self, requests: Iterable[Request], status: Status) -> None:
        """Tell the clients, those that have not been told yet."""
        self._call(self._answer, requests, status)

    def refuse(self, request: Request, reason: str) -> None:
        """Tell the client that its request cannot be read, and end the connection."""
        self._call(self._refuse, request, reason)

    def _call(self, function: Callable[..., None], *arguments: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended, and all connections with it
            self._loop.call_soon_threadsafe(function, *arguments)

    # --- the loop's thread

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        self._reception.open()
        while not self._stop.is_set():
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._stop.wait(), TICK)
            self._fail_overdue()
            self._drop_overdue()
        await self._reception.close()
        for connection in list(self.connections):
            connection.transport.close()
        deadline = time.monotonic() + FAREWELL
        while self.connections and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        for connection in list(self.connections):
            connection.transport.abort()
        await asyncio.sleep(0)

    def joined(self, connection: Connection) -> None:
        """A connection has come about."""
        self.connections[connection] = None

    def heard(self, connection: Connection) -> None:
        """Something has come from it."""
        self._reception.connections.heard(connection.client)

    def left(self, connection: Connection) -> None:
        """A connection has ended."""
        self.connections.pop(connection, None)
        self._reception.connections.discard(connection.client)

    def _fail_overdue(self) -> None:
        timeout = self.config.request_timeout
        limit = time.monotonic() - timeout / 1000
        arrived = itertools.takewhile(lambda request: request.arrived < limit, self._unanswered)
        if overdue := [request for request in arrived if not request.answered]:
            self.metrics.add("RequestTimeoutCount", len(overdue))
            self.complain("overdue", "requests were not stored within %d ms: their clients get FAILED", timeout)
            self._answer(overdue, Status.FAILED)
        self.arrivals.forget_answered()

    def _drop_overdue(self) -> None:
        now, config = time.monotonic(), self.config
        for connection in list(self.connections):
            if connection.stuck and now > connection.last + config.frame_timeout:
                connection.transport.abort()
            elif connection.frames.held and not self.full and now > connection.began + config.frame_timeout:
                connection.drop(f"left a request unfinished for {config.frame_timeout:g} s")
            elif config.idle_timeout and not connection.unanswered and now > connection.last + config.idle_timeout:
                connection.transport.close()

    def took(self, request: Request) -> None:
        """A request has arrived."""
        self._unanswered.append(request)
        self.arrivals.put(request)
        self._holds(request.size)

    def _holds(self, more: int) -> None:
        self._held += more
        if full := self._held > (self.budget // 2 if self.full else self.budget):
            self.complain("held", "%d bytes of events wait to be stored: reading pauses", self._held)
        if full != self.full:
            self.full = full
            for connection in self.connections:
                connection.read_or_not()

    def _answer(self, requests: Iterable[Request], status: Status) -> None:
        for request in requests:
            if not request.answered:
                self._reply(request, answer(request.handshake, status))

    def _refuse(self, request: Request, reason: str) -> None:
        if not request.answered:
            self._reply(request, complaint(request.handshake, reason))
            request.connection.drop(f"sent a request that cannot be read: {reason}")

    def _reply(self, request: Request, buffers: list[bytes]) -> None:
        request.answered = True
        request.content = b""
        request.connection.unanswered -= 1
        request.connection.send(request.serial, buffers)
        self._holds(-request.size)
        while self._unanswered and self._unanswered[0].answered:
            self._unanswered.popleft()


class IpFilter(Admission):
    """Lets in whom `ipFilterRules` do."""

    def __init__(self, rules: list[Rule]) -> None:
        self._rules = rules
        self._by_name = any(rule.by_name for rule in rules)

    def denies(self, address: tuple[str, int]) -> bool:
        """Whether no rule needs the client's name, and they do not admit its address."""
        return not self._by_name and not admitted(self._rules, address[0], "")

    async def denies_name(self, address: tuple[str, int]) -> bool:
        """Whether a rule needs the client's name, and they do not admit it."""
        if not self._by_name:
            return False
        name = ""
        with contextlib.suppress(OSError):
            name, _ = await asyncio.get_running_loop().getnameinfo(address, socket.NI_NAMEREQD)
        return not admitted(self._rules, address[0], name)


class Connection(asyncio.Protocol):
    """One client."""

    def __init__(self, server: Server, client: Client) -> None:
        self.server, self.client, self.peer = server, client, client.peer
        self.frames = Frames(server.config.max_request_bytes)
        self.began = self.last = time.monotonic()
        """When the unfinished request began; when something was received or sent."""
        self.unanswered = 0
        self.transport: asyncio.Transport
        self._greeting = Greeting()
        self._writable = True
        self._unread = b""
        """Deflated bytes that came and are not inflated yet."""
        deflates = server.config.compression_type == "deflate"
        self._inflate = zlib.decompressobj() if deflates else None
        self._deflate = zlib.compressobj() if deflates else None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio calls this first."""
        self.transport = cast("asyncio.Transport", transport)
        self.client.begin(self.transport)
        self.server.joined(self)
        self.read_or_not()

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio calls this last. Requests that arrived whole are stored all the same."""
        self.server.left(self)
        self.server.unfinished -= self.frames.held

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
        self.server.heard(self)
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
            self.drop(f"sent something that is not Avro RPC: {e}")

    def _receive(self, data: bytes) -> None:
        held = self.frames.held
        complete = False
        try:
            for serial, content in self.frames.feed(data):
                complete = True
                self._request(serial, content)
        finally:
            self.server.unfinished += self.frames.held - held
        if complete or not held:
            self.began = self.last
        if self.server.unfinished > self.server.budget:
            raise ValueError("too many large requests have begun at once")

    def _request(self, serial: int, content: bytes) -> None:
        if self.transport.is_closing():
            return
        handshake, name, at = self._greeting.read(content)
        if not name:
            self.send(serial, [handshake])
        elif name in MESSAGES:
            self.unanswered += 1
            if name == "append":
                self.server.metrics.add("AppendReceivedCount")
            self.server.took(Request(self, serial, content, handshake, name, at))
        else:
            self.send(serial, complaint(handshake, f"there is no message {name[:100]!r} here"))

    def send(self, serial: int, buffers: list[bytes]) -> None:
        """One frame to the client."""
        self.last = time.monotonic()
        data = frame(serial, buffers)
        if self._deflate is not None:
            data = self._deflate.compress(data) + self._deflate.flush(zlib.Z_SYNC_FLUSH)
        if not self.transport.is_closing():
            self.transport.write(data)

    def drop(self, reason: str) -> None:
        """End it, for something the client did; what was written still leaves."""
        self.server.metrics.add("EventReadFail")
        self.server.complain("dropped", "%s %s; the connection is closed", self.peer, reason)
        self.transport.close()
