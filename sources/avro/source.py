"""The avro source."""

from __future__ import annotations

from plugins import Batch
from plugins.shared.avrorpc import Events, Status
from sources.avro.config import AvroConfig
from sources.avro.server import Request, Server
from sources.listening import Endpoint
from sources.serving import ServingSource


class AvroSource(ServingSource[AvroConfig, Server, Request]):
    """Receives events by Flume's Avro RPC at least once: OK is answered when every required channel has stored them.

    A client that gets FAILED, or no answer, sends its events again; those stored already are then there twice.
    """

    type_name = "avro"
    aliases = ("org.apache.flume.source.AvroSource",)

    def _serve(self, endpoint: Endpoint) -> Server:
        return Server(self, endpoint)

    def _read(self, server: Server, requests: list[Request]) -> tuple[list[Request], Batch]:
        events = Events()
        readable = []
        for request in requests:
            try:
                events.add(request.content, request.at, many=request.many)
            except ValueError as e:
                server.refuse(request, str(e))
            else:
                readable.append(request)
        return readable, events.batch()

    def _answer(self, server: Server, requests: list[Request]) -> None:
        self.metrics.add("AppendAcceptedCount", sum(not request.many for request in requests))
        server.answer(requests, Status.OK)
