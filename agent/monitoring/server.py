"""The agent's HTTP server: `/metrics`, `/metrics/prometheus`, `/healthz`, `/readyz`, and the page at `/`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading

import uvicorn
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from flafka.agent.monitoring.registry import Registry
from flafka.agent.monitoring.routes import Guard, LenientJsonResponse, routes
from flafka.agent.monitoring.view import View
from flafka.plugins.errors import ANY_FAILURE
from flafka.plugins.threads import in_words, start_thread, warn_rate_limited

log = logging.getLogger(__name__)

RETRY_SECONDS = 5.0
"""Wait before a port that is taken is tried again."""
TICK_SECONDS = 1.0
BACKLOG = 16
"""Connections that wait to be accepted. asyncio tries to accept so many at once, and reports each one that fails."""


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens there. Raises OSError."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen()  # who asks before the server's thread is there waits
    except OSError:
        listener.close()
        raise
    return listener


class MetricsServer:
    """Serves a registry, and the page of a view of it, on a thread of its own.

    A port that is taken never keeps the agent from running: it is a warning, once, and is tried again until it can
    be had.
    """

    def __init__(self, registry: Registry, host: str, port: int, view: View | None = None, token: str = "") -> None:
        self.registry, self.host, self.port, self.view, self.token = registry, host, port, view, token
        self._server: _PageServer | None = None
        self._failure = ""
        """The error that was logged last."""
        # Neither of the event loop nor of the protocols that uvicorn would look for: it imports those that it finds.
        self._settings = uvicorn.Config(
            self._app(),
            loop="asyncio",
            http="h11",
            ws="none",
            log_config=None,
            access_log=False,
            lifespan="off",
            backlog=BACKLOG,
            timeout_graceful_shutdown=1,
        )
        self._settings.load()  # imports, which it would do on the server's thread
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Listen; port 0 takes a free one, then in `port`."""
        listener = None
        try:
            listener = self._listen()
        except OSError as e:
            log.warning(
                "metrics are not served: %s:%d: %s; it is tried again every %.0f s, or set `monitoring.port` to "
                "another port",
                self.host,
                self.port,
                e.strerror,
                RETRY_SECONDS,
            )
        self._thread = threading.Thread(target=self._run, args=(listener,), name="metrics", daemon=True)
        start_thread(self._thread)

    def _listen(self) -> socket.socket:
        listener = listen(self.host, self.port)
        self.port = listener.getsockname()[1]
        log.info("metrics on http://%s:%d/metrics and /metrics/prometheus", self.host, self.port)
        return listener

    def _run(self, listener: socket.socket | None) -> None:
        """Serve until the stop; after an error, such as too many open files, listen and serve again."""
        while not self._stopping.is_set():
            try:
                if listener is None:
                    listener = self._listen()
                self._server = _PageServer(self._settings, self._stopping)
                self._server.run(sockets=[listener])
            except OSError as e:
                log.debug("metrics are not served: %s", e)
            except ANY_FAILURE as e:
                text = in_words(type(e), e)
                if text != self._failure:
                    self._failure = text
                    log.error("metrics are not served: %s; it is tried again every %.0f s", text, RETRY_SECONDS)
            if listener is not None:
                listener.close()
                listener = None
            self._stopping.wait(RETRY_SECONDS)

    def stop(self) -> None:
        """Stop listening."""
        self._stopping.set()
        if self._server is not None:
            self._server.end()
        if self._thread is not None and self._thread.is_alive():
            self._thread.join(3)

    def _app(self) -> Starlette:
        prometheus = CollectorRegistry()
        prometheus.register(self.registry)

        async def flume(_: Request) -> Response:
            return LenientJsonResponse(self.registry.flume(), media_type="application/json;charset=utf-8")

        async def exposition(_: Request) -> Response:
            return Response(generate_latest(prometheus), headers={"content-type": CONTENT_TYPE_LATEST})

        async def health(_: Request) -> Response:
            failing, degraded = self.registry.failing(), self.registry.degraded()
            told = {"agent": self.registry.agent, "state": self.registry.state()}
            application = self.registry.application()
            more = {"spark": application} if application else {}
            standby = {"standby": standbys} if (standbys := self.registry.standby()) else {}
            told_of_all = {**told, "failing": failing, "degraded": degraded, **standby, **more}
            return LenientJsonResponse(told_of_all, status_code=503 if failing else 200)

        async def readiness(_: Request) -> Response:
            waiting = self.registry.waiting()
            told = {"agent": self.registry.agent, "ready": not waiting, "waiting": waiting}
            return LenientJsonResponse(told, status_code=503 if waiting else 200)

        return Starlette(
            routes=[
                Route("/metrics", flume, methods=["GET", "POST"]),
                Route("/metrics/prometheus", exposition),
                Route("/healthz", health),
                Route("/readyz", readiness),
                *(routes(self.view, self.token) if self.view is not None else ()),
            ],
            middleware=[Middleware(_AnyCase), Middleware(Guard, host=self.host, token=self.token)],
        )


class _PageServer(uvicorn.Server):
    """uvicorn's, which looks each second for what it has to do in between, and not each tenth."""

    def __init__(self, config: uvicorn.Config, stopping: threading.Event) -> None:
        super().__init__(config)
        self._stopping = stopping
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended = asyncio.Event()

    async def main_loop(self) -> None:
        """uvicorn calls this between start and end."""
        self._loop = asyncio.get_running_loop()
        warn_rate_limited(self._loop, log)
        while not (self._stopping.is_set() or await self.on_tick(0)):
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._ended.wait(), TICK_SECONDS)

    def end(self) -> None:
        """Look now, as it is to stop. Any thread."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # it has ended by itself
                self._loop.call_soon_threadsafe(self._ended.set)


class _AnyCase:
    """Flume's paths ignore case."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope = {**scope, "path": scope["path"].lower()}
        await self.app(scope, receive, send)
