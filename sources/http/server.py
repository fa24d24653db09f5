"""The network's side of the HTTP source: uvicorn on a thread of its own."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
from collections.abc import Iterable
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from flafka.plugins import Event, Source
from flafka.plugins.threads import warn_rate_limited
from flafka.sources import serving
from flafka.sources.connections import Connections
from flafka.sources.http import handlers
from flafka.sources.http.config import HttpSourceConfig
from flafka.sources.http.handlers import HandlerError
from flafka.sources.listening import Endpoint
from flafka.sources.serving import OVERHEAD, Client, Reception

BUDGET = 64 * 1024 * 1024
"""Most bytes of requests that wait to be stored, and of those that are being received; others are answered 503. The
size of the largest request, where that is more."""
CROWDED = "too many large requests at once; send the request again"
ENDING = "the source stops; send the request again"
ENDING_SECONDS = 0.7
"""Time for the requests that have begun when the source stops."""
_CHARSET = re.compile(rb'(?<![\w-])charset\s*=\s*"?([^\s";]+)', re.IGNORECASE)

_WITHOUT_HYPHEN = re.compile("^utf(?=8$|16$)")
"""`utf8` is no name of Java's, but clients write it and Jetty knew what they mean."""


class HttpRequest:
    """Events of a client that wait to be stored."""

    __slots__ = ("done", "events", "size")

    def __init__(self, events: list[Event], size: int, done: asyncio.Future[bool]) -> None:
        self.events, self.size, self.done = events, size, done

    @property
    def answered(self) -> bool:
        """True once the request has been answered."""
        return self.done.done()


class HttpServer(serving.Server[HttpRequest]):
    """Serves clients at `endpoint` from `start` to `stop`. `stored` may be called by any thread."""

    def __init__(self, source: Source[HttpSourceConfig], endpoint: Endpoint) -> None:
        super().__init__(source)
        config = self.config = source.config
        self.metrics = source.metrics
        self._reader = config.reader()
        self._budget = max(BUDGET, config.largest)
        self._held = self._unfinished = 0
        self._ending = False
        """True once no more requests are taken, as nobody would store their events."""
        self._unanswered: set[HttpRequest] = set()
        settings = uvicorn.Config(
            self._answer,
            interface="asgi3",
            loop="asyncio",
            proxy_headers=False,
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=config.idle_timeout,
            timeout_graceful_shutdown=1,
        )
        settings.load()
        reception = Reception(source, endpoint, config.idle_timeout, lambda client: self._server.protocol(client))
        self._server = _UvicornServer(settings, reception, source.log)

    def _end(self) -> None:
        self._call(self._give_up)  # 503 is answered to whoever waits
        self._server.should_exit = True

    def stored(self, requests: Iterable[HttpRequest]) -> None:
        """Answer 200 to these. Any thread."""
        self._call(self._settle, requests, True)

    # --- the loop's thread

    def _run(self) -> None:
        self._server.run()

    def _give_up(self) -> None:
        self._ending = True
        self._settle(list(self._unanswered), False)

    def _settle(self, requests: Iterable[HttpRequest], stored: bool) -> None:
        for request in requests:
            if not request.answered:
                request.done.set_result(stored)

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        """One request, as ASGI has it."""
        self._loop = asyncio.get_running_loop()
        try:
            status, text = await self._status(scope, receive)
        except asyncio.CancelledError:  # the server ends, and the request has not
            status, text = 503, ENDING
        if status >= 400:
            self.metrics.add("EventReadFail" if status not in (503, 499) else "ChannelFail")
        body = text.encode()
        headers = [(b"content-length", str(len(body)).encode()), (b"content-type", b"text/plain; charset=utf-8")]
        if status == 405:
            headers.append((b"allow", b"GET, HEAD, POST"))
        if status in (413, 408) or text in (CROWDED, ENDING):  # what is left of the request is not read
            headers.append((b"connection", b"close"))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _status(self, scope: Any, receive: Any) -> tuple[int, str]:
        method = scope["method"]
        if method not in ("GET", "HEAD", "POST"):
            return {"PUT": 405, "DELETE": 405, "OPTIONS": 403, "TRACE": 403}.get(method, 501), ""
        try:
            content = await asyncio.wait_for(self._content(receive), self.config.idle_timeout)
            if self.config.handler != "blob":
                content = handlers.decompressed(content, scope["headers"], self.config.largest)
            events = self._events(scope, content)
        except TimeoutError:
            return 408, "the request did not end in time"
        except HandlerError as e:
            return e.status, e.reason
        if not events:
            return 200, ""
        return await self._store(events, len(content) + OVERHEAD)

    async def _store(self, events: list[Event], size: int) -> tuple[int, str]:
        if self._ending:
            return 503, ENDING
        if self._held and self._held + size > self._budget:
            return 503, "too many events wait to be stored; send the request again"
        request = HttpRequest(events, size, asyncio.get_running_loop().create_future())
        self._held += size
        self._unanswered.add(request)
        timer = request.done.get_loop().call_later(
            self.config.request_timeout / 1000, self._settle, (request,), False
        )
        self.arrivals.put(request)
        try:
            return (
                (200, "")
                if await request.done
                else (503, "the channel did not store it in time; send the request again")
            )
        finally:
            timer.cancel()
            self._held -= size
            self._unanswered.discard(request)

    async def _content(self, receive: Any) -> bytes:
        pieces: list[bytes] = []
        size = 0
        try:
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise HandlerError(499, "the client has gone")
                pieces.append(message.get("body", b""))
                size += len(pieces[-1])
                self._unfinished += len(pieces[-1])
                if size > self.config.largest:
                    raise HandlerError(413, f"a request may have at most {self.config.largest} bytes")
                if not message.get("more_body"):
                    return pieces[0] if len(pieces) == 1 else b"".join(pieces)
                if self._unfinished > self._budget:
                    raise HandlerError(503, CROWDED)
        finally:
            self._unfinished -= size

    def _events(self, scope: Any, content: bytes) -> list[Event]:
        if self.config.handler == "blob":
            return handlers.blob(content, scope["query_string"].decode("latin-1"))
        if self.config.handler == "log4j":
            return handlers.log4j(content, self._reader)
        named = next((value for name, value in scope["headers"] if name == b"content-type"), b"")
        found = _CHARSET.search(named)
        charset = _WITHOUT_HYPHEN.sub("utf-", found[1].decode("latin-1").lower()) if found else None
        return (handlers.json if self.config.handler == "json" else handlers.ndjson)(content, charset)


class _UvicornServer(uvicorn.Server):
    """uvicorn's, with a reception instead of its own listening."""

    def __init__(self, settings: uvicorn.Config, reception: Reception[HttpSourceConfig], log: logging.Logger) -> None:
        super().__init__(settings)
        self._reception, self._log = reception, log

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        warn_rate_limited(asyncio.get_running_loop(), self._log)
        await super().startup(sockets=[])
        self._reception.open()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._reception.close()
        timer = asyncio.get_running_loop().call_later(ENDING_SECONDS, self._cancel)
        await super().shutdown(sockets=[])
        timer.cancel()

    def _cancel(self) -> None:
        """End the requests that have not ended: each answers 503. uvicorn would do so later, with an error."""
        for task in self.server_state.tasks:
            task.cancel()

    def protocol(self, client: Client) -> _Protocol:
        return _Protocol(client, self._reception.connections, self.config, self.server_state)


class _Protocol(H11Protocol):
    """uvicorn's, which also closes connections that never send a whole head of a request."""

    _head: asyncio.TimerHandle | None = None

    def __init__(
        self, client: Client, connections: Connections[Client], config: uvicorn.Config, state: ServerState
    ) -> None:
        super().__init__(config, state, {})
        self._client, self._kept = client, connections

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        self._client.begin(transport)
        super().connection_made(transport)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        self._kept.heard(self._client)
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            if self._head is not None:
                self._head.cancel()
                self._head = None
        elif self._head is None:
            self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._kept.discard(self._client)
        if self._head is not None:
            self._head.cancel()
        super().connection_lost(exc)

    def _await_head(self) -> None:
        self._head = self.loop.call_later(self.timeout_keep_alive, self._no_head)

    def _no_head(self) -> None:
        self._head = None
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()
