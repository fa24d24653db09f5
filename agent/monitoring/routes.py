"""Routes of the page at `/` and of its API below `/api`, for this host or for clients with the token."""

from __future__ import annotations

import hmac
import json
import math
from importlib.resources import files
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from flafka.agent.monitoring import problemkinds
from flafka.agent.monitoring.view import View
from flafka.agent.web import is_loopback

PAGE = "flafka.agent.monitoring.page"
"""Package with the files of the page."""
_PAGE_FILES = ("page.css", "page.js", "wires.js", "charts.js", "sample.js", "problems.js", "texts.js", "detail.js")
_TYPES = {"css": "text/css", "html": "text/html", "js": "text/javascript"}
_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}
COOKIE = "flafka-token"
CLEAR_TEXT = (
    "the token and the page would cross the network in clear text, as {} is not a loopback address: set "
    "monitoring.ssl = true and monitoring.keystore, or monitoring.ssl = false behind a proxy that encrypts"
)
"""Reason for a refusal of the page without TLS, with the host that the server listens on."""


def routes(view: View, token: str, *, secure_cookie: bool = False) -> list[BaseRoute]:
    """Return the routes of the page and its API; `token` is empty if none is set. `AccessGuard` checks the token.

    With `secure_cookie`, browsers send the cookie over HTTPS only, although requests come in clear text from a proxy.
    """

    async def index(request: Request) -> Response:
        if token and request.query_params.get("token"):
            return token_in_cookie(request, COOKIE, secure=secure_cookie or request.url.scheme == "https")
        return file_response(PAGE, "index.html")

    async def page_file(request: Request) -> Response:
        name = request.path_params["name"]
        return file_response(PAGE, name) if name in _PAGE_FILES else PlainTextResponse("not found", 404)

    async def help_page(_: Request) -> Response:
        return Response(problemkinds.help_page(), media_type="text/html", headers=_HEADERS)

    async def graph(_: Request) -> Response:
        return LenientJsonResponse(view.graph())

    # Not async, so that Starlette runs it on a thread: the locks of components may block.
    def state(_: Request) -> Response:
        return LenientJsonResponse(view.state())

    def history(request: Request) -> Response:
        query = request.query_params
        try:
            span, since = float(query.get("span", 3600)), float(query.get("since", 0))
            if not (math.isfinite(span) and math.isfinite(since)):
                raise ValueError
        except ValueError:
            return PlainTextResponse("span: seconds; since: seconds since the epoch\n", 400)
        return LenientJsonResponse(view.series(span, since, query.get("component", "")))

    def tailed_files(request: Request) -> Response:
        return LenientJsonResponse(view.files(request.query_params.get("match", "")))

    def sample(request: Request) -> Response:
        return LenientJsonResponse(view.samples.get(request.query_params.get("component", "")))

    api = [
        *(Route("/graph", graph), Route("/state", state), Route("/history", history)),
        *(Route("/files", tailed_files), Route("/sample", sample)),
    ]
    return [
        *(Route("/", index), Route("/page/{name}", page_file), Route("/help", help_page)),
        Mount("/api", routes=api),
    ]


class LenientJsonResponse(JSONResponse):
    """JSON response of any text and numbers. File names in paths and reasons may be invalid UTF-8."""

    def render(self, content: Any) -> bytes:
        """Return `content` as UTF-8 JSON, with escapes (`\\udcff`) for bytes that are not UTF-8.

        NaN and infinity become null.
        """
        try:
            text = _dump(content)
        except ValueError:
            text = _dump(_replace_non_finite(content))
        return text.encode("utf-8", "backslashreplace")


def _dump(content: Any) -> str:
    return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _replace_non_finite(content: Any) -> Any:
    """Return `content` with None for NaN and infinity: browsers reject JSON with such numbers."""
    if isinstance(content, dict):
        return {name: _replace_non_finite(value) for name, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [_replace_non_finite(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content


class AccessGuard:
    """ASGI middleware that restricts access to the page and its API.

    Without a token, only this host has access: the server must listen on a loopback address, and the Host header of
    a request must name it. Otherwise a page of another site could send requests (DNS rebinding). On another address,
    access also needs a connection that `is_safe`: with TLS, or behind a proxy that encrypts.
    """

    def __init__(self, app: ASGIApp, host: str, token: str, *, is_safe: bool, cookie: str = COOKIE) -> None:
        self.app, self.host, self.token, self.is_safe, self.cookie = app, host, token, is_safe, cookie

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request for the page or its API with 403 if access is refused; pass any other request on."""
        guarded = scope["type"] == "http" and (scope["path"] == "/" or scope["path"].startswith("/api"))
        if guarded and (refusal := self._refusal(Request(scope))):
            await PlainTextResponse(f"{refusal}\n", 403)(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    def _refusal(self, request: Request) -> str:
        """Return the reason for a refusal; empty if access is allowed."""
        if self.token and not self.is_safe and not is_loopback(self.host):
            return CLEAR_TEXT.format(self.host)
        if self.token:
            given = request.headers.get("authorization", "").removeprefix("Bearer ") or request.cookies.get(
                self.cookie, ""
            )
            given = request.query_params.get("token", given)
            is_valid = hmac.compare_digest(given.encode(), self.token.encode())
            return (
                ""
                if is_valid
                else "the token is missing or wrong: use /?token=… or the header Authorization: Bearer …"
            )
        if not is_loopback(self.host):
            return (
                f"this page shows events and settings, and {self.host} is not a loopback address: set "
                "monitoring.token and monitoring.ssl = true with a monitoring.keystore, and open /?token=…"
            )
        host = request.url.hostname or ""
        return "" if is_loopback(host) else f"this page is for this host only: open localhost, not {host}"


def token_in_cookie(request: Request, cookie: str, *, secure: bool) -> Response:
    """Return the redirect to the same page that keeps the token of the request's address in a cookie.

    So the token stays out of the address bar and the history of the browser.
    """
    response = RedirectResponse(request.url.path)
    token = request.query_params["token"]
    # With "strict", a browser that comes from the page of a fleet on another host would not send the cookie.
    response.set_cookie(cookie, token, httponly=True, samesite="lax", secure=secure)
    return response


def file_response(package: str, name: str) -> Response:
    """Return the response with a file of a page, which browsers must not cache."""
    content = files(package).joinpath(name).read_bytes()
    return Response(content, media_type=_TYPES[name.rpartition(".")[2]], headers=_HEADERS)
