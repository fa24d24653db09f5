"""HTTP server of the source `http`: uvicorn."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import re
import socket
from collections.abc import Iterable, Iterator
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from flafka.plugins import Event, Source
from flafka.plugins.threads import rate_limit_loop_errors
from flafka.sources import serving
from flafka.sources.connections import Connections
from flafka.sources.http import handlers
from flafka.sources.http.config import HttpSourceConfig
from flafka.sources.http.handlers import HandlerError
from flafka.sources.listening import Endpoint
from flafka.sources.serving import REQUEST_OVERHEAD_BYTES, Acceptor, Client

BUDGET_BYTES = 64 * 1024 * 1024
"""Maximum size of all requests that wait to be stored, and of all that are being received, in bytes.

Further requests are answered 503. A larger `maxRequestBytes` or `handler.maxBlobLength` raises the limit.
"""
TOO_MANY_TEXT = "too many large requests at once; send the request again"
STOPPING_TEXT = "the source stops; send the request again"
HTTP_DRAIN_SECONDS = 0.7
"""Time for unfinished requests to complete when the source stops."""
_CHARSET = re.compile(rb'(?<![\w-])charset\s*=\s*"?([^\s";]+)', re.IGNORECASE)

_WITHOUT_HYPHEN = re.compile("^utf(?=8$|16$)")
"""Prefix of `utf8` and `utf16`, which Jetty accepts although Java has no such names."""


class HttpRequest:
    """Request whose events wait to be stored."""

    __slots__ = ("done", "events", "size")

    def __init__(self, events: list[Event], size: int, done: asyncio.Future[bool]) -> None:
        self.events, self.size, self.done = events, size, done

    @property
    def is_answered(self) -> bool:
        """True once the request has been answered."""
        return self.done.done()


class HttpServer(serving.Server[HttpRequest]):
    """HTTP server at `endpoint`, from `start` to `stop`. Any thread may call `stored`."""

    def __init__(self, source: Source[HttpSourceConfig], endpoint: Endpoint) -> None:
        super().__init__(source)
        config = self.config = source.config
        self.metrics = source.metrics
        self._parser = config.parser()
        self._credentials = config.credentials()
        self._warn_rate_limited = source.warn_rate_limited
        self._budget_bytes = max(BUDGET_BYTES, config.max_content_bytes)
        self._unstored_bytes = 0
        self._rejects = False
        """True once further requests are answered 503: their events would not be stored."""
        self._unanswered: set[HttpRequest] = set()
        settings = uvicorn.Config(
            self._handle,
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
        acceptor = Acceptor(source, endpoint, config.idle_timeout, lambda client: self._server.protocol(client))
        self._server = _UvicornServer(settings, acceptor, source.log)

    def _end(self) -> None:
        """Answer 503 to all requests that wait to be stored, and to any further request, and stop uvicorn."""
        self._rejects = True
        self._respond(list(self._unanswered), False)
        self._server.should_exit = True

    def stored(self, requests: Iterable[HttpRequest]) -> None:
        """Answer 200 to the requests that have no answer yet. Thread-safe."""
        self._call(self._send_stored, requests)

    def _send_stored(self, requests: Iterable[HttpRequest]) -> None:
        """Answer 200 to the requests that have no answer yet, and run the loop once unless it runs: it sends them."""
        self._respond(requests, True)
        if not self._loop.is_running():
            self._loop.call_soon(self._loop.stop)
            self._loop.run_forever()

    # --- on the event loop

    async def _serve(self) -> None:
        await self._server.serve()

    def _respond(self, requests: Iterable[HttpRequest], stored: bool) -> None:
        """Answer 200 if `stored`, or else 503, to the requests that have no answer yet."""
        for request in requests:
            if not request.is_answered:
                request.done.set_result(stored)

    async def _handle(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one HTTP request, as the ASGI application that uvicorn calls.

        The status is 200 once the channels have stored all events, and 503 if the client should send them again.
        Other statuses report a fault of the request.
        """
        try:
            status, text = await self._process(scope, receive)
        except asyncio.CancelledError:  # the server stops before the request is complete
            status, text = 503, STOPPING_TEXT
        if status >= 400:
            self.metrics.add("EventReadFail" if status not in (503, 499) else "ChannelFail")
        body = text.encode()
        headers = [(b"content-length", str(len(body)).encode()), (b"content-type", b"text/plain; charset=utf-8")]
        if status == 401:
            headers += [(b"www-authenticate", scheme) for scheme in self._schemes()]
        if status == 405:
            headers.append((b"allow", b"GET, HEAD, POST"))
        if status in (401, 413, 408) or text in (TOO_MANY_TEXT, STOPPING_TEXT):  # the rest of the request is not read
            headers.append((b"connection", b"close"))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _process(self, scope: Any, receive: Any) -> tuple[int, str]:
        """Read and decode a request, and wait until its events are stored; return the status and text of the answer.

        A request without events is answered 200 at once.
        """
        if not self._is_admitted(scope):
            return 401, "credentials are required"
        method = scope["method"]
        if method not in ("GET", "HEAD", "POST"):
            return {"PUT": 405, "DELETE": 405, "OPTIONS": 403, "TRACE": 403}.get(method, 501), ""
        try:
            content = await asyncio.wait_for(self._content(receive), self.config.idle_timeout)
            if self.config.handler != "blob":
                content = handlers.decompress(content, scope["headers"], self.config.max_content_bytes)
            events = self._events(scope, content)
        except TimeoutError:
            return 408, "the request was not complete in time"
        except HandlerError as e:
            return e.status, e.reason
        if not events:
            return 200, ""
        return await self._store(events, len(content) + REQUEST_OVERHEAD_BYTES)

    def _is_admitted(self, scope: Any) -> bool:
        """Return True if a request has the configured credentials, or none are configured; else log a warning."""
        if not self._credentials:
            return True
        given = b" ".join(next((value for name, value in scope["headers"] if name == b"authorization"), b"").split())
        scheme, _, value = given.partition(b" ")
        given = scheme.capitalize() + b" " + value  # the scheme is case-insensitive, RFC 9110, section 11.1
        # In constant time: the time of an answer must not depend on how much of a password is right.
        if any(hmac.compare_digest(given, expected) for expected in self._credentials):
            return True
        client = scope.get("client") or ("a client",)
        fault = "wrong credentials" if value else "no credentials"
        self._warn_rate_limited("credentials", "a request of %s has %s, and is answered 401", client[0], fault)
        return False

    def _schemes(self) -> list[bytes]:
        """Return the values of `WWW-Authenticate` for a request without credentials."""
        schemes = [value.partition(b" ")[0] for value in self._credentials]
        return [scheme + b' realm="flafka"' for scheme in schemes]

    async def _store(self, events: list[Event], size: int) -> tuple[int, str]:
        """Queue the events, and wait until they are stored: 200, or 503 after `requestTimeout` ms or at a stop.

        503 at once while the server stops or too many bytes wait to be stored.
        """
        if self._rejects:
            return 503, STOPPING_TEXT
        if self._unstored_bytes and self._unstored_bytes + size > self._budget_bytes:
            return 503, "too many events wait to be stored; send the request again"
        request = HttpRequest(events, size, asyncio.get_running_loop().create_future())
        self._unstored_bytes += size
        self._unanswered.add(request)
        timer = request.done.get_loop().call_later(
            self.config.request_timeout / 1000, self._respond, (request,), False
        )
        self._enqueue(request)
        self.notify_source()
        try:
            return (
                (200, "")
                if await request.done
                else (503, "the channel did not store the events in time; send the request again")
            )
        finally:
            timer.cancel()
            self._unstored_bytes -= size
            self._unanswered.discard(request)

    async def _content(self, receive: Any) -> bytes:
        """Return the complete body of a request.

        Raises HandlerError: 413 if it is too large, 503 if all requests together are, 499 if the client disconnects.
        """
        pieces: list[bytes] = []
        size = 0
        try:
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise HandlerError(499, "the client closed the connection")
                pieces.append(message.get("body", b""))
                size += len(pieces[-1])
                self.add_partial(len(pieces[-1]))
                if size > self.config.max_content_bytes:
                    raise HandlerError(413, f"a request may have at most {self.config.max_content_bytes} bytes")
                if not message.get("more_body"):
                    return pieces[0] if len(pieces) == 1 else b"".join(pieces)
                if self.partial_bytes > self._budget_bytes:
                    raise HandlerError(503, TOO_MANY_TEXT)
        finally:
            self.add_partial(-size)

    def _events(self, scope: Any, content: bytes) -> list[Event]:
        """Return the events of an uncompressed body by the configured handler. Raises HandlerError."""
        if self.config.handler == "blob":
            return handlers.blob(content, scope["query_string"].decode("latin-1"))
        if self.config.handler == "log4j":
            return handlers.log4j(content, self._parser)
        content_type = next((value for name, value in scope["headers"] if name == b"content-type"), b"")
        match = _CHARSET.search(content_type)
        charset = _WITHOUT_HYPHEN.sub("utf-", match[1].decode("latin-1").lower()) if match else None
        return (handlers.json if self.config.handler == "json" else handlers.ndjson)(content, charset)


class _UvicornServer(uvicorn.Server):
    """Server of uvicorn that listens by an `Acceptor` instead of its own sockets."""

    def __init__(self, settings: uvicorn.Config, acceptor: Acceptor[HttpSourceConfig], log: logging.Logger) -> None:
        super().__init__(settings)
        self._acceptor, self._log = acceptor, log

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone, also on the main thread: they are the agent's."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start uvicorn without sockets of its own, then accept clients."""
        rate_limit_loop_errors(asyncio.get_running_loop(), self._log)
        await super().startup(sockets=[])
        self._acceptor.open()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting, and stop uvicorn; unfinished requests are cancelled after `HTTP_DRAIN_SECONDS`."""
        await self._acceptor.close()
        timer = asyncio.get_running_loop().call_later(HTTP_DRAIN_SECONDS, self._cancel_requests)
        await super().shutdown(sockets=[])
        timer.cancel()

    def _cancel_requests(self) -> None:
        """Cancel unfinished requests, each of which is answered 503. uvicorn would do so later, with an error."""
        for task in self.server_state.tasks:
            task.cancel()

    def protocol(self, client: Client) -> _Protocol:
        """Return the protocol of an accepted client."""
        return _Protocol(client, self._acceptor.connections, self.config, self.server_state)


class _Protocol(H11Protocol):
    """Protocol of uvicorn that also closes connections that do not send a complete request head in time."""

    _head_timer: asyncio.TimerHandle | None = None

    def __init__(
        self, client: Client, connections: Connections[Client], config: uvicorn.Config, state: ServerState
    ) -> None:
        super().__init__(config, state, {})
        self._client, self._connections = client, connections

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        self._client.record_transport(transport)
        super().connection_made(transport)
        self._start_head_timer()

    def data_received(self, data: bytes) -> None:
        self._connections.record_activity(self._client)
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            if self._head_timer is not None:
                self._head_timer.cancel()
                self._head_timer = None
        elif self._head_timer is None:
            self._start_head_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self._client)
        if self._head_timer is not None:
            self._head_timer.cancel()
        super().connection_lost(exc)

    def _start_head_timer(self) -> None:
        """Close the connection after `idleTimeout` seconds unless a request head has arrived by then."""
        self._head_timer = self.loop.call_later(self.timeout_keep_alive, self._on_head_timeout)

    def _on_head_timeout(self) -> None:
        self._head_timer = None
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()
