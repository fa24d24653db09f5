"""The HTTP source."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from plugins import Batch
from sources.http.config import HttpSourceConfig
from sources.http.differences import HTTP
from sources.listening import Endpoint
from sources.serving import ServingSource

if TYPE_CHECKING:  # with uvicorn, which only an agent needs that listens
    from sources.http.server import HttpRequest, HttpServer


class HttpSource(ServingSource[HttpSourceConfig, "HttpServer", "HttpRequest"]):
    """Receives events by HTTP at least once: 200 is answered when every required channel has stored them.

    A client that gets 503, or no answer, has to send its events again; those stored already are then there twice.
    """

    type_name = "http"
    aliases = ("org.apache.flume.source.http.HTTPSource",)
    differences = HTTP
    libraries: ClassVar = {"sources.http.server": ""}

    def _serve(self, endpoint: Endpoint) -> HttpServer:
        from sources.http.server import HttpServer

        return HttpServer(self, endpoint)

    def _read(self, server: HttpServer, requests: list[HttpRequest]) -> tuple[list[HttpRequest], Batch]:
        return requests, Batch.of(event for request in requests for event in request.events)
