"""Source `http`: receives events by HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from flafka.plugins import Batch, CompatibilityNote, Metric
from flafka.sources.http.config import HttpSourceConfig
from flafka.sources.listening import Endpoint
from flafka.sources.serving import ServingSource

if TYPE_CHECKING:  # these import uvicorn, which is slow to import and needed only by a running agent
    from flafka.sources.http.server import HttpRequest, HttpServer


class HttpSource(ServingSource[HttpSourceConfig, "HttpServer", "HttpRequest"]):
    """Receive events by HTTP at least once.

    A request is answered 200 once every required channel has stored its events.
    A client that gets 503, or no response, must send its events again. Events that were stored already are then
    duplicated.
    """

    type_name = "http"
    aliases = ("org.apache.flume.source.http.HTTPSource",)
    declared_metrics = (
        *ServingSource.declared_metrics,
        Metric(
            *("ChannelFail", "counter", "requests"),
            "Requests that were not stored in time, or that ended before they were stored.",
            "known",
        ),
    )
    compatibility_notes = (
        CompatibilityNote(
            flume="a null header is present, without a value",
            here="it is absent",
        ),
        CompatibilityNote(
            flume="some requests that are no JSON are answered 500, such as an invalid `\\u` escape",
            here="they are answered 400, as all invalid JSON",
        ),
        CompatibilityNote(
            flume="an object of other fields than `headers` and `body`, without a body, is an empty event",
            here="the request is answered 400 with the names of these fields, as their values would be lost",
        ),
        CompatibilityNote(
            flume="a body with `Content-Encoding: gzip` is answered 400",
            here="it is uncompressed, except for `handler = blob`; any other encoding is answered 415",
        ),
        CompatibilityNote(
            flume="a request of any size is read",
            here="a request that is too large is answered 413",
        ),
        CompatibilityNote(
            flume="the answer is 503 as soon as the channel is full",
            here="the source waits `requestTimeout` for the channel, then answers 503; the client may send again",
        ),
    )
    libraries: ClassVar = {"flafka.sources.http.server": ""}

    def _serve(self, endpoint: Endpoint) -> HttpServer:
        """Return an HTTP server for an open endpoint, not started."""
        from flafka.sources.http.server import HttpServer

        return HttpServer(self, endpoint)

    def _read(self, server: HttpServer, requests: list[HttpRequest]) -> tuple[list[HttpRequest], Batch]:
        """Return all requests, and a batch of their events, which the server has decoded already."""
        return requests, Batch.of(event for request in requests for event in request.events)
