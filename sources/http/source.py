"""The HTTP source."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Iterator

from plugins import Batch, Retry, Source
from sources.http.config import HttpConfig
from sources.http.server import Request, Server
from sources.listening import listen

MAX_BYTES = 768 * 1024
"""Requests gathered for one batch: it still fits into one Kafka record of the usual size."""
IDLE = 0.2
"""Seconds after which an idle source looks whether it shall stop."""


class HttpSource(Source[HttpConfig]):
    """Receives events by HTTP at least once: 200 is answered when every required channel has stored them.

    A client that is told 503, or nothing, sends its events again, and what had been stored is there twice.
    """

    type_name = "http"
    aliases = ("org.apache.flume.source.http.HTTPSource",)
    in_flight = 4

    def __init__(self, config: HttpConfig, name: str = "") -> None:
        super().__init__(config, name)
        self._listener: socket.socket | None = None
        self._server: Server | None = None
        self._yielded: deque[list[Request]] = deque()

    @property
    def port(self) -> int:
        """The port it listens on: the one configured, or the one it was given for 0."""
        return int(self._listener.getsockname()[1]) if self._listener is not None else self.config.port

    def open(self) -> None:
        """Listen and serve. Retry says why that is not possible."""
        self._yielded.clear()
        context = self.config.context()
        self._listener = self._listen()
        self._server = Server(self.config, self._listener, context, self.metrics)
        self._server.start()
        self.log.info("listening on %s port %d", self.config.bind, self.port)

    def close(self) -> None:
        """End all connections; whoever waits for an answer is told to send again."""
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
                self._yielded.append(requests)
                yield Batch.of(event for request in requests for event in request.events)
            elif not self._server.alive:
                raise Retry("the thread that serves the clients has ended; what it said is in the log")

    def stored(self, batch: Batch) -> None:
        """Tell the clients 200."""
        requests = self._yielded.popleft()
        if self._server is not None:
            self._server.stored(requests)

    def probe(self) -> Iterator[str]:
        """Whether the keystore can be read, and the address and the port can be had."""
        for attempt in (self.config.context, lambda: self._listen().close()):
            try:
                attempt()
            except Retry as e:
                yield str(e)

    def _listen(self) -> socket.socket:
        return listen(self.config.bind, self.config.port, socket.SOCK_STREAM)
