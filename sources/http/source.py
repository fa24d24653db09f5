"""The HTTP source."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from plugins import Batch
from sources.http.config import HttpConfig
from sources.http.differences import HTTP
from sources.listening import Endpoint
from sources.serving import ServingSource

if TYPE_CHECKING:  # with uvicorn, which only an agent needs that listens
    from sources.http.server import Request, Server


class HttpSource(ServingSource[HttpConfig, "Server", "Request"]):
    """Receives events by HTTP at least once: 200 is answered when every required channel has stored them.

    A client that gets 503, or no answer, has to send its events again; those stored already are then there twice.
    """

    type_name = "http"
    aliases = ("org.apache.flume.source.http.HTTPSource",)
    differences = HTTP
    libraries: ClassVar = {"sources.http.server": ""}

    def _serve(self, endpoint: Endpoint) -> Server:
        from sources.http.server import Server

        return Server(self, endpoint)

    def _read(self, server: Server, requests: list[Request]) -> tuple[list[Request], Batch]:
        return requests, Batch.of(event for request in requests for event in request.events)

    def _answer(self, server: Server, requests: list[Request]) -> None:
        server.stored(requests)
