"""The avro source."""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Iterator

from plugins import Batch, Retry, Source
from plugins.avrorpc import Events, Status
from sources.avro.config import AvroConfig
from sources.avro.server import Request, Server
from sources.listening import listen

MAX_BYTES = 768 * 1024
"""Requests gathered for one batch: it still fits into one Kafka record of the usual size."""
IDLE = 0.2
"""Seconds after which an idle source looks whether it shall stop."""


class AvroSource(Source[AvroConfig]):
    """Receives events by Flume's Avro RPC at least once: OK is answered when every required channel has stored them.

    A client that is told FAILED, or nothing, sends its events again, and what had been stored is there twice.
    """

    type_name = "avro"
    aliases = ("org.apache.flume.source.AvroSource",)
    in_flight = 4

    def __init__(self, config: AvroConfig, name: str = "") -> None:
        super().__init__(config, name)
        self._listener: socket.socket | None = None
        self._server: Server | None = None
        self._yielded: deque[list[Request]] = deque()
        self._complained: dict[str, float] = {}

    @property
    def port(self) -> int:
        """The port it listens on: the one configured, or the one it was given for 0."""
        return int(self._listener.getsockname()[1]) if self._listener is not None else self.config.port

    def open(self) -> None:
        """Listen and serve. Retry says why that is not possible."""
        self._yielded.clear()
        context = self.config.context()
        self._listener = self._listen()
        self._server = Server(self.config, self._listener, context, self.metrics, self._complain)
        self._server.start()
        self.log.info("listening on %s port %d", self.config.bind, self.port)

    def close(self) -> None:
        """End all connections; whoever waits for an answer sends again, here or elsewhere."""
        if self._server is not None:
            self._server.stop()
            self._server = None
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def batches(self) -> Iterator[Batch]:
        """What the clients send; requests that wait together travel together."""
        assert self._server is not None
        while not self.stopping.is_set():
            if requests := self._server.take(IDLE, MAX_BYTES):
                yield from self._gather(self._server, requests)
            elif not self._server.alive:
                raise Retry("the thread that serves the clients has ended; what it said is in the log")

    def stored(self, batch: Batch) -> None:
        """Tell the clients OK."""
        requests = self._yielded.popleft()
        self.metrics.add("AppendAcceptedCount", sum(not request.many for request in requests))
        if self._server is not None:
            self._server.answer(requests, Status.OK)

    def probe(self) -> Iterator[str]:
        """Whether the keystore can be read, and the address and the port can be had."""
        for attempt in (self.config.context, lambda: self._listen().close()):
            try:
                attempt()
            except Retry as e:
                yield str(e)

    def _gather(self, server: Server, requests: list[Request]) -> Iterator[Batch]:
        events = Events()
        readable = []
        for request in requests:
            try:
                events.add(request.content, request.at, many=request.many)
            except ValueError as e:
                server.refuse(request, str(e))
            else:
                readable.append(request)
        if readable:
            self._yielded.append(readable)
            yield events.batch()

    def _listen(self) -> socket.socket:
        return listen(self.config.bind, self.config.port, socket.SOCK_STREAM)

    def _complain(self, about: str, message: str, *args: object) -> None:
        """Log a warning, one a minute about the same: anyone who can connect can cause them."""
        now = time.monotonic()
        if now - self._complained.get(about, -60.0) >= 60:
            self._complained[about] = now
            self.log.warning(message, *args)
