"""The agent's HTTP server: `/metrics`, `/metrics/prometheus`, `/healthz`, `/readyz`, and the page at `/`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
from email.utils import formatdate

import uvicorn
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from flafka.agent.monitoring.history import History
from flafka.agent.monitoring.problemmonitor import ProblemMonitor
from flafka.agent.monitoring.problems import to_json
from flafka.agent.monitoring.registry import Registry
from flafka.agent.monitoring.routes import CLEAR_TEXT, AccessGuard, LenientJsonResponse, routes
from flafka.agent.monitoring.view import View
from flafka.agent.web import is_loopback
from flafka.plugins.errors import ANY_FAILURE, FlafkaError
from flafka.plugins.net.tls import TlsServerConfig
from flafka.plugins.threads import describe_exception, rate_limit_loop_errors, start_thread

log = logging.getLogger(__name__)

RETRY_SECONDS = 5.0
"""Delay before the next attempt to listen on an occupied port."""
BACKLOG = 16
"""Backlog of listen(2). asyncio accepts as many connections at once, and logs each failure."""


def open_listener(host: str, port: int) -> socket.socket:
    """Return a TCP socket that listens on this address or name; port 0 is any free port. Raises OSError.

    A name stands for its first IPv4 address, or for its first IPv6 address if it has no other. An empty host stands
    for all IPv4 addresses.
    """
    results = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    # Hosts may list ::1 first for localhost, where clients of 127.0.0.1 would find no listener.
    family, *_, address = next((result for result in results if result[0] == socket.AF_INET), results[0])
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind(address)
        listener.listen()  # connections queue here until the server thread runs
    except OSError:
        listener.close()
        raise
    return listener


class MetricsServer:
    """HTTP server of a registry, and of the page of a view, on its own thread.

    Best-effort: an occupied port is logged once, and retried until it is free. The agent runs meanwhile.
    """

    def __init__(
        self,
        registry: Registry,
        host: str,
        port: int,
        view: View | None = None,
        token: str = "",
        tls: TlsServerConfig | None = None,
        *,
        behind_proxy: bool = False,
    ) -> None:
        """`view` is the data of the page; None serves no page. `token` is empty if none is set. Nothing is opened.

        Without `tls`, the page is served on a loopback address only, unless the server is `behind_proxy`, which
        encrypts.
        """
        self.registry, self.host, self.port, self.view, self.token = registry, host, port, view, token
        self.tls = tls
        self._problems = view.problems if view is not None else ProblemMonitor(registry, History(registry))
        self._expiry: float | None = None
        """Expiry of the loaded certificate."""
        self._is_safe = tls is not None or behind_proxy
        self._behind_proxy = behind_proxy
        self._server: _PageServer | None = None
        self._failure = ""
        """Latest logged error."""
        # With the defaults, uvicorn would import every event loop and protocol library that is installed.
        self._settings = uvicorn.Config(
            self._app(),
            loop="asyncio",
            http="h11",
            ws="none",
            log_config=None,
            access_log=False,
            lifespan="off",
            date_header=False,  # uvicorn would have to renew it every second
            backlog=BACKLOG,
            timeout_graceful_shutdown=1,
        )
        self._settings.load()  # imports modules, here instead of on the server thread
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def load_certificate(self) -> None:
        """Load the certificate from the keystore unless it is loaded. No effect without TLS.

        Raises FlafkaError if the keystore cannot be used.
        """
        if self.tls is not None and self._settings.ssl is None:
            self._settings.ssl, self._expiry = self.tls.context_and_expiry()

    def start(self) -> None:
        """Start to listen, on a thread of its own. Does not block. With port 0, use a free port and set `port` to it.

        An occupied port and an unusable certificate are only logged, and retried every `RETRY_SECONDS`.
        """
        listener = None
        if self.token and not self._is_safe and not is_loopback(self.host):
            log.warning("the page is not served: %s", CLEAR_TEXT.format(self.host))
        try:
            listener = self._listen()
        except OSError as e:
            log.warning(
                "metrics are not served: cannot listen on %s:%d: %s; the agent retries every %.0f s; free the port, "
                "or set monitoring.port to another one",
                self.host,
                self.port,
                e.strerror,
                RETRY_SECONDS,
            )
        except FlafkaError as e:
            self._failure = str(e)
            log.warning("metrics are not served: %s; the agent retries every %.0f s", e, RETRY_SECONDS)
        self._thread = threading.Thread(target=self._run, args=(listener,), name="metrics", daemon=True)
        start_thread(self._thread)

    def _listen(self) -> socket.socket:
        """Load the certificate, return the listening socket, and set `port` to its port.

        Raises OSError, and FlafkaError for an unusable certificate.
        """
        self.load_certificate()
        self.registry.certificate_expiry = self._expiry
        listener = open_listener(self.host, self.port)
        self.port = listener.getsockname()[1]
        scheme, host = "https" if self.tls else "http", f"[{self.host}]" if ":" in self.host else self.host
        log.info("metrics on %s://%s:%d/metrics and /metrics/prometheus", scheme, host, self.port)
        return listener

    def _run(self, listener: socket.socket | None) -> None:
        """Serve until `stop`. After an error, such as too many open files, listen again."""
        while not self._stopping.is_set():
            try:
                if listener is None:
                    listener = self._listen()
                self._server = _PageServer(self._settings, self._stopping)
                self._server.run(sockets=[listener])
            except OSError as e:
                log.debug("metrics are not served: %s", e)
            except ANY_FAILURE as e:
                text = str(e) if isinstance(e, FlafkaError) else describe_exception(type(e), e)
                if text != self._failure:
                    self._failure = text
                    log.error("metrics are not served: %s; the agent retries every %.0f s", text, RETRY_SECONDS)
            if listener is not None:
                listener.close()
                listener = None
            self._stopping.wait(RETRY_SECONDS)

    def stop(self) -> None:
        """Stop the server. Wait for its thread at most 3 s."""
        self._stopping.set()
        if self._server is not None:
            self._server.request_stop()
        if self._thread is not None and self._thread.is_alive():
            self._thread.join(3)

    def _app(self) -> Starlette:
        """Return the application with all routes."""
        prometheus = CollectorRegistry()
        prometheus.register(self.registry)
        secure = self._behind_proxy and not is_loopback(self.host)

        async def flume(_: Request) -> Response:
            return LenientJsonResponse(self.registry.flume(), media_type="application/json;charset=utf-8")

        async def exposition(_: Request) -> Response:
            return Response(generate_latest(prometheus), headers={"content-type": CONTENT_TYPE_LATEST})

        # Not async: figures such as the free space of a disk may block.
        def health(_: Request) -> Response:
            problems = self._problems.current()
            state = self._problems.state(problems)
            content: dict[str, object] = {"agent": self.registry.agent, "state": state, **to_json(problems)}
            if standby := self.registry.standby():
                content["standby"] = standby
            if application := self.registry.application():
                content["spark"] = application
            return LenientJsonResponse(content, status_code=503 if state == "failing" else 200)

        async def readiness(_: Request) -> Response:
            waiting = self.registry.waiting()
            content = {"agent": self.registry.agent, "ready": not waiting, "waiting": waiting}
            return LenientJsonResponse(content, status_code=503 if waiting else 200)

        return Starlette(
            routes=[
                Route("/metrics", flume, methods=["GET", "POST"]),
                Route("/metrics/prometheus", exposition),
                Route("/healthz", health),
                Route("/readyz", readiness),
                *(routes(self.view, self.token, secure_cookie=secure) if self.view is not None else ()),
            ],
            middleware=[
                Middleware(_DateHeader),
                Middleware(_CaseInsensitivePaths),
                Middleware(AccessGuard, host=self.host, token=self.token, is_safe=self._is_safe),
            ],
        )


class _PageServer(uvicorn.Server):
    """uvicorn server without periodic work, to save CPU time. The application sets the header `date`."""

    def __init__(self, config: uvicorn.Config, stopping: threading.Event) -> None:
        super().__init__(config)
        self._stopping = stopping
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop_requested = asyncio.Event()

    async def main_loop(self) -> None:
        """Run until `request_stop`. uvicorn calls this method between startup and shutdown."""
        self._loop = asyncio.get_running_loop()
        rate_limit_loop_errors(self._loop, log)
        if not self._stopping.is_set():
            await self._stop_requested.wait()

    def request_stop(self) -> None:
        """Wake the main loop, so that it stops. Any thread may call."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._stop_requested.set)


class _DateHeader:
    """ASGI middleware that adds the header `date`, which RFC 9110 (6.6.1) requires, to each response."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and add the header to its response."""

        async def send_dated(message: Message) -> None:
            if message["type"] == "http.response.start":
                date = (b"date", formatdate(usegmt=True).encode())
                message = {**message, "headers": [date, *message.get("headers", ())]}
            await send(message)

        await self.app(scope, receive, send_dated)


class _CaseInsensitivePaths:
    """ASGI middleware that ignores the case of paths, as Flume does."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on with its path in lower case."""
        if scope["type"] == "http":
            scope = {**scope, "path": scope["path"].lower()}
        await self.app(scope, receive, send)
