"""The agent's HTTP server: `/metrics`, `/metrics/prometheus`, `/healthz`."""

from __future__ import annotations

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


class MetricsServer:
    """Serves a registry on a thread of its own. A busy port is a warning: it never keeps the agent from running."""

    def __init__(self, registry: Registry, host: str, port: int) -> None:
        self.registry, self.host, self.port = registry, host, port
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Listen; port 0 takes a free one, then in `port`."""
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((self.host, self.port))
            listener.listen()  # who asks before the server's thread is there waits
        except OSError as e:
            listener.close()
            log.warning(
                "metrics are not served: %s:%d: %s; set `monitoring.port` to another",
                self.host,
                self.port,
                e.strerror,
            )
            return
        self.port = listener.getsockname()[1]
        config = uvicorn.Config(
            self._app(), log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=1
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [listener]}, name="metrics", daemon=True
        )
        self._thread.start()
        log.info("metrics on http://%s:%d/metrics and /metrics/prometheus", self.host, self.port)

    def stop(self) -> None:
        """Stop listening."""
        if self._server is not None and self._thread is not None:
            self._server.should_exit = True
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
