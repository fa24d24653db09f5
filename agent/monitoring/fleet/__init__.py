"""Page of a fleet of agents: its routes and files. `agent dashboard` polls the agents and serves it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from flafka.agent.monitoring.routes import AccessGuard, LenientJsonResponse, file_response, token_in_cookie

FLEET_COOKIE = "flafka-fleet-token"
"""Name of the cookie. Browsers share the cookies of a host among its ports, so that of an agent has another name."""
_FILES = ("fleet.css", "fleet.js")


def fleet_app(state: Callable[[], dict[str, Any]], page_of: Callable[[int], str | None], token: str) -> Starlette:
    """Return the application for a loopback address, open to clients with the token.

    `state` returns the JSON values of `/api/fleet`. `page_of` returns the URL of an agent's own page by its number,
    or None. That URL may contain the token of the agent.
    """

    async def index(request: Request) -> Response:
        if request.query_params.get("token"):
            return token_in_cookie(request, FLEET_COOKIE, secure=False)
        return file_response(__name__, "index.html")

    async def page_file(request: Request) -> Response:
        name = request.path_params["name"]
        return file_response(__name__, name) if name in _FILES else PlainTextResponse("not found", 404)

    # Not async, so that Starlette runs it on a thread: hundreds of agents take milliseconds.
    def fleet(_: Request) -> Response:
        return LenientJsonResponse(state())

    async def agent(request: Request) -> Response:
        url = page_of(request.path_params["number"])
        if url is None:
            return PlainTextResponse("no such agent\n", 404)
        return RedirectResponse(url, headers={"referrer-policy": "no-referrer", "cache-control": "no-store"})

    return Starlette(
        routes=[
            *(Route("/", index), Route("/page/{name}", page_file)),
            *(Route("/api/fleet", fleet), Route("/api/agents/{number:int}", agent)),
        ],
        middleware=[Middleware(AccessGuard, host="127.0.0.1", token=token, is_safe=False, cookie=FLEET_COOKIE)],
    )
