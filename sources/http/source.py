"""The HTTP source."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from flafka.plugins import Batch, CompatibilityNote, Metric
from flafka.sources.http.config import HttpSourceConfig
from flafka.sources.listening import Endpoint
from flafka.sources.serving import ServingSource

if TYPE_CHECKING:  # with uvicorn, which only an agent needs that listens
    from flafka.sources.http.server import HttpRequest, HttpServer


class HttpSource(ServingSource[HttpSourceConfig, "HttpServer", "HttpRequest"]):
    """Receives events by HTTP at least once: 200 is answered when every required channel has stored them.

    A client that gets 503, or no answer, has to send its events again; those stored already are then there twice.
    """

    type_name = "http"
    aliases = ("org.apache.flume.source.http.HTTPSource",)
    declared_metrics = (
        *ServingSource.declared_metrics,
        Metric(
            *("ChannelFail", "counter", "requests"),
            "Requests that were not stored in time, or ended before they were.",
            "known",
        ),
    )
    compatibility_notes = (
        CompatibilityNote(
            flume="a header that is null is there, without a value",
            here="it is absent",
        ),
        CompatibilityNote(
            flume="some requests that are no JSON are answered 500, a wrong `\\u` escape for instance",
            here="400, as all others that are none",
        ),
        CompatibilityNote(
            flume="an object of other fields than `headers` and `body`, without a body, is an empty event",
            here="the request is answered 400 with these fields' names, as all that it holds would be lost",
        ),
        CompatibilityNote(
            flume="a body with `Content-Encoding: gzip` is answered 400",
            here="it is unpacked, except for `handler = blob`; any other encoding is answered 415",
        ),
        CompatibilityNote(
            flume="a request of any size is read",
            here="one too large is answered 413",
        ),
        CompatibilityNote(
            flume="the answer is 503 as soon as the channel is full",
            here="the source waits `requestTimeout` for the channel, then answers 503; the client may send again",
        ),
    )
    libraries: ClassVar = {"flafka.sources.http.server": ""}

    def _serve(self, endpoint: Endpoint) -> HttpServer:
        from flafka.sources.http.server import HttpServer

        return HttpServer(self, endpoint)

    def _read(self, server: HttpServer, requests: list[HttpRequest]) -> tuple[list[HttpRequest], Batch]:
        return requests, Batch.of(event for request in requests for event in request.events)
