"""The agent's HTTP server: `/metrics`, `/metrics/prometheus`, `/healthz`."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from html import escape

import uvicorn
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from agent.monitoring.registry import Registry

log = logging.getLogger(__name__)

_PATHS = ("/metrics", "/metrics/prometheus", "/healthz")


RETRY_SECONDS = 5.0
"""How often a port that is taken is tried again."""


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
    """Serves a registry on a thread of its own. A port that is taken never keeps the agent from running: it is a
    warning, once, and is tried again until it can be had.
    """

    def __init__(self, registry: Registry, host: str, port: int) -> None:
        self.registry, self.host, self.port = registry, host, port
        self._server: uvicorn.Server | None = None
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
        self._thread.start()

    def _listen(self) -> socket.socket:
        listener = listen(self.host, self.port)
        self.port = listener.getsockname()[1]
        log.info("metrics on http://%s:%d/metrics and /metrics/prometheus", self.host, self.port)
        return listener

    def _run(self, listener: socket.socket | None) -> None:
        while listener is None and not self._stopping.wait(RETRY_SECONDS):
            with contextlib.suppress(OSError):
                listener = self._listen()
        if listener is not None:
            config = uvicorn.Config(
                self._app(), log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=1
            )
            self._server = uvicorn.Server(config)
            self._server.should_exit = self._stopping.is_set()
            self._server.run(sockets=[listener])

    def stop(self) -> None:
        """Stop listening."""
        self._stopping.set()
        if self._server is not None:
            self._server.should_exit = True
        if self._thread is not None:
            self._thread.join(3)

    def _app(self) -> Starlette:
        prometheus = CollectorRegistry()
        prometheus.register(self.registry)

        async def flume(_: Request) -> Response:
            return JSONResponse(self.registry.flume(), media_type="application/json;charset=utf-8")

        async def exposition(_: Request) -> Response:
            return Response(generate_latest(prometheus), headers={"content-type": CONTENT_TYPE_LATEST})

        async def health(_: Request) -> Response:
            failing, degraded = self.registry.failing(), self.registry.degraded()
            told = {"agent": self.registry.agent, "failing": failing, "degraded": degraded}
            return JSONResponse(told, status_code=503 if failing else 200)

        async def index(_: Request) -> Response:
            links = "".join(f'<li><a href="{path}">{path}</a>' for path in _PATHS)
            return HTMLResponse(f"<!doctype html><title>{escape(self.registry.agent)}</title><ul>{links}</ul>")

        return Starlette(
            routes=[
                Route("/", index),
                Route("/metrics", flume, methods=["GET", "POST"]),
                Route("/metrics/prometheus", exposition),
                Route("/healthz", health),
            ],
            middleware=[Middleware(_AnyCase)],
        )


class _AnyCase:
    """Flume's paths ignore case."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope = {**scope, "path": scope["path"].lower()}
        await self.app(scope, receive, send)
