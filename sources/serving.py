"""What sources share whose clients wait for an answer: a server on a thread of its own."""

from __future__ import annotations

import socket
import ssl
from abc import abstractmethod
from collections import deque
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

from plugins import Batch, Retry, Source, option
from plugins.tls import TlsServerConfig
from sources.listening import listen

MAX_BYTES = 768 * 1024
"""Requests gathered for one batch: it still fits into one Kafka record of the usual size."""
IDLE = 0.2
"""Seconds after which an idle source looks whether it shall stop."""


class ServingConfig(TlsServerConfig):
    """Options of those that serve clients on one TCP port."""

    bind: str = option(name="bind", description="Address or name to listen on; 0.0.0.0 or :: for all addresses.")
    port: int = option(name="port", description="Port to listen on; 0 takes a free one.", ge=0, le=65535)


R = TypeVar("R")


class Server(Protocol[R]):
    """Takes requests from clients, on a thread of its own."""

    def start(self) -> None:
        """Begin to serve."""

    def stop(self) -> None:
        """End all connections; answers given before still leave."""

    @property
    def alive(self) -> bool:
        """Whether it still serves."""

    def take(self, timeout: float, max_bytes: int) -> list[R]:
        """Requests in the order of their arrival: at most so many bytes, or one; none after `timeout` seconds."""


C = TypeVar("C", bound=ServingConfig)
S = TypeVar("S", bound=Server)  # type: ignore[type-arg]  # of R


class ServingSource(Source[C], Generic[C, S, R]):
    """Answers a request when every required channel has stored its events; requests that wait travel together."""

    in_flight = 4

    def __init__(self, config: C, name: str = "") -> None:
        super().__init__(config, name)
        self._listener: socket.socket | None = None
        self._server: S | None = None
        self._yielded: deque[list[R]] = deque()

    @abstractmethod
    def _serve(self, listener: socket.socket, context: ssl.SSLContext | None) -> S:
        """A server for that listener, not started."""

    @abstractmethod
    def _read(self, server: S, requests: list[R]) -> tuple[list[R], Batch]:
        """The requests that can be read, and their events; the others are answered."""

    @abstractmethod
    def _answer(self, server: S, requests: list[R]) -> None:
        """Tell the clients that their events are stored."""

    @property
    def port(self) -> int:
        """The port it listens on: the one configured, or the one it was given for 0."""
        return int(self._listener.getsockname()[1]) if self._listener is not None else self.config.port

    def open(self) -> None:
        """Listen and serve. Retry says why that is not possible."""
        self._yielded.clear()
        context = self.config.context()
        self._listener = self._listen()
        self._server = self._serve(self._listener, context)
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
        """What the clients send."""
        assert self._server is not None
        while not self.stopping.is_set():
            if taken := self._server.take(IDLE, MAX_BYTES):
                requests, batch = self._read(self._server, taken)
                if requests:
                    self._yielded.append(requests)
                    yield batch
            elif not self._server.alive:
                raise Retry("the thread that serves the clients has ended; what it said is in the log")

    def stored(self, batch: Batch) -> None:
        """Answer those whose events these are."""
        requests = self._yielded.popleft()
        if self._server is not None:
            self._answer(self._server, requests)

    def probe(self) -> Iterator[str]:
        """Whether the keystore can be read, and the address and the port can be had."""
        for attempt in (self.config.context, lambda: self._listen().close()):
            try:
                attempt()
            except Retry as e:
                yield str(e)

    def _listen(self) -> socket.socket:
        return listen(self.config.bind, self.config.port, socket.SOCK_STREAM)
