"""The page at `/`, and what it asks for below `/api`: for this host, or for who knows the token."""

from __future__ import annotations

import hmac
import ipaddress
import json
import math
from importlib.resources import files
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from flafka.agent.monitoring.view import View

_PARTS = ("page.css", "page.js", "wires.js", "charts.js", "sample.js")
_TYPES = {"css": "text/css", "html": "text/html", "js": "text/javascript"}
_HEADERS = {
    "content-security-policy": "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'",
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}
COOKIE = "flafka-token"


def is_loopback(host: str) -> bool:
    """Whether nobody but this host can connect to an address, or means it by that name."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def routes(view: View, token: str) -> list[BaseRoute]:
    """What is served besides the metrics; `token` is empty where none is set."""

    async def index(request: Request) -> Response:
        if token and request.query_params.get("token"):  # kept by the browser, and out of its address bar
            answer = RedirectResponse(request.url.path)
            answer.set_cookie(COOKIE, request.query_params["token"], httponly=True, samesite="strict")
            return answer
        return _file("index.html")

    async def part(request: Request) -> Response:
        name = request.path_params["name"]
        return _file(name) if name in _PARTS else PlainTextResponse("not found", 404)

    async def graph(_: Request) -> Response:
        return LenientJsonResponse(view.graph())

    def state(_: Request) -> Response:  # on a thread of starlette's: it may wait for locks of components
        return LenientJsonResponse(view.state())

    def history(request: Request) -> Response:
        try:
            since = float(request.query_params.get("since", 0))
        except ValueError:
            return PlainTextResponse("since: seconds since the epoch\n", 400)
        return LenientJsonResponse(view.series(since))

    def followed(request: Request) -> Response:
        return LenientJsonResponse(view.files(request.query_params.get("match", "")))

    def sample(request: Request) -> Response:
        return LenientJsonResponse(view.samples.of(request.query_params.get("component", "")))

    api = [
        *(Route("/graph", graph), Route("/state", state), Route("/history", history)),
        *(Route("/files", followed), Route("/sample", sample)),
    ]
    return [Route("/", index), Route("/page/{name}", part), Mount("/api", routes=api)]


class LenientJsonResponse(JSONResponse):
    """JSON of whatever there is: names of files, which are in paths and reasons, need not be UTF-8."""

    def render(self, content: Any) -> bytes:
        """What is no text is written as JSON escapes it, `\\udcff`; what is no number, such as NaN, as null."""
        try:
            text = _dumped(content)
        except ValueError:
            text = _dumped(_known(content))
        return text.encode("utf-8", "backslashreplace")


def _dumped(content: Any) -> str:
    return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _known(content: Any) -> Any:
    """The same without the numbers that JSON does not have, which browsers would refuse as a whole."""
    if isinstance(content, dict):
        return {name: _known(value) for name, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [_known(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content


class Guard:
    """Lets those see the page who may.

    Without a token the page is for this host alone: the server has to listen on its loopback address, and be asked
    by that name, so that no page of another site can ask through a browser of this host.
    """

    def __init__(self, app: ASGIApp, host: str, token: str) -> None:
        self.app, self.host, self.token = app, host, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        guarded = scope["type"] == "http" and (scope["path"] == "/" or scope["path"].startswith("/api"))
        if guarded and (refusal := self._refusal(Request(scope))):
            await PlainTextResponse(f"{refusal}\n", 403)(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    def _refusal(self, request: Request) -> str:
        """A sentence; empty for who may."""
        if self.token:
            given = request.headers.get("authorization", "").removeprefix("Bearer ") or request.cookies.get(
                COOKIE, ""
            )
            given = request.query_params.get("token", given)
            right = hmac.compare_digest(given.encode(), self.token.encode())
            return "" if right else "the token is missing or wrong: /?token=… or the header Authorization: Bearer …"
        if not is_loopback(self.host):
            return (
                f"this page shows events and settings, and the agent serves it on {self.host}: set monitoring.token, "
                "and open /?token=…"
            )
        asked = request.url.hostname or ""
        return "" if is_loopback(asked) else f"this page is for this host alone: ask for localhost, not {asked}"


def _file(name: str) -> Response:
    content = files("flafka.agent.monitoring.page").joinpath(name).read_bytes()
    return Response(content, media_type=_TYPES[name.rpartition(".")[2]], headers=_HEADERS)
