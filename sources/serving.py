"""Sources whose clients wait for an answer: their server, on a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from flafka.plugins import Batch, Metric, Retry, Source
from flafka.plugins.errors import ANY_FAILURE
from flafka.plugins.shared.tls import TlsServerConfig, refusal
from flafka.plugins.threads import in_words, start_thread
from flafka.sources.connections import CONNECTION_METRICS, Connection, Connections
from flafka.sources.ipfilter import IpFilter
from flafka.sources.listening import CERTIFICATE, MAX_BYTES, Endpoint, EndpointSource, TcpConfig
from flafka.sources.pace import STOP_CHECK_SECONDS

OVERHEAD = 1024
"""Bytes that a request takes beside its content, roughly."""


class ServingConfig(TlsServerConfig, TcpConfig):
    """Options of those that serve clients on one TCP port."""


class Client(Connection):
    """One connection, from when it is accepted."""

    welcome: asyncio.Task[None]
    transport: asyncio.Transport

    def __init__(self, taken: socket.socket, address: tuple[str, int]) -> None:
        super().__init__(taken, address)
        self.shaking = True

    def begin(self, transport: asyncio.Transport) -> None:
        """Record the transport: the connection is established, TLS included."""
        self.transport, self.shaking = transport, False


C = TypeVar("C", bound=ServingConfig)


class Reception(Generic[C]):
    """Lets clients in, on the event loop that runs: each is admitted, agrees on TLS, and gets a protocol.

    The protocol reports to `connections` when data arrives and when the client disconnects. `patience`, in seconds,
    limits the TLS handshake. `hint` is added to the message about a client that does not speak TLS.
    """

    def __init__(
        self,
        source: Source[C],
        endpoint: Endpoint,
        patience: float,
        protocol: Callable[[Client], asyncio.Protocol],
        admission: IpFilter | None = None,
        hint: str = "",
    ) -> None:
        self.connections: Connections[Client] = Connections(source, source.config.max_connections, Client, self._end)
        self._source, self._protocol, self._hint = source, protocol, hint
        self._admission = admission or IpFilter()
        self._listener, self._tls = endpoint.sockets[0], endpoint.context
        self._patience = patience if self._tls else None
        self._welcomes: set[asyncio.Task[None]] = set()

    def open(self) -> None:
        """Begin to accept."""
        self.connections.open()
        asyncio.get_running_loop().add_reader(self._listener, self._accept)

    async def close(self) -> None:
        """Accept no more, and end those that have not come about; the others are their protocols' to end."""
        asyncio.get_running_loop().remove_reader(self._listener)
        for task in self._welcomes:
            task.cancel()
        await asyncio.gather(*self._welcomes, return_exceptions=True)
        self.connections.close()

    def _accept(self) -> None:
        for client in self.connections.accept(self._listener, self._admits):
            client.welcome = asyncio.get_running_loop().create_task(self._welcome(client))
            self._welcomes.add(client.welcome)
            client.welcome.add_done_callback(self._welcomes.discard)

    def _admits(self, address: tuple[str, int], peer: str) -> bool:
        if denied := self._admission.denies(address):
            self._filtered(peer)
        return not denied

    async def _welcome(self, client: Client) -> None:
        try:
            if not await self._admission.denies_name(client.address):
                client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                await asyncio.get_running_loop().connect_accepted_socket(
                    lambda: self._protocol(client),
                    client.socket,
                    ssl=self._tls,
                    ssl_handshake_timeout=self._patience,
                )
                return
            self._filtered(client.peer)
        except OSError as e:
            self._source.metrics.add("EventReadFail")
            if any(sign in str(e) for sign in ("HTTP_REQUEST", "WRONG_VERSION_NUMBER")):
                told = "%s does not speak TLS, which ssl = true requires%s"
                self._source.warn_rate_limited("tls", told, client.peer, self._hint)
            else:
                self._source.warn_rate_limited(
                    "tls", "%s is refused, its TLS handshake failed: %s", client.peer, refusal(e)
                )
        except asyncio.CancelledError:
            self._close(client)
            raise
        self._close(client)

    def _close(self, client: Client) -> None:
        client.socket.close()
        self.connections.discard(client)

    def _filtered(self, peer: str) -> None:
        self._source.warn_rate_limited("filtered", "%s is refused by ipFilterRules", peer)

    def _end(self, client: Client) -> None:
        if client.shaking:
            client.welcome.cancel()
        else:
            client.transport.abort()


class Request(Protocol):
    """Events that a client sends in one call."""

    size: int
    """Bytes that it takes."""

    @property
    def answered(self) -> bool:
        """True once the request has been answered, perhaps before it was taken."""


R = TypeVar("R", bound=Request)


class Arrivals(Generic[R]):
    """Requests on their way from the thread that serves clients to the one that reads requests."""

    def __init__(self) -> None:
        self._arrived = threading.Condition()
        self._waiting: deque[R] = deque()

    def put(self, request: R) -> None:
        """One more."""
        with self._arrived:
            self._waiting.append(request)
            self._arrived.notify()

    def take(self, timeout: float, max_bytes: int) -> list[R]:
        """Requests in the order of their arrival: at most so many bytes, or one; none after `timeout` seconds."""
        with self._arrived:
            if not self._waiting:
                self._arrived.wait(timeout)
            taken: list[R] = []
            size = 0
            while self._waiting and (not taken or size + self._waiting[0].size <= max_bytes):
                request = self._waiting.popleft()
                if not request.answered:
                    taken.append(request)
                    size += request.size
            return taken

    def forget_answered(self) -> None:
        """Let go of those at the head that have been answered."""
        with self._arrived:
            while self._waiting and self._waiting[0].answered:
                self._waiting.popleft()


class Server(ABC, Generic[R]):
    """Takes requests from clients, on a thread of its own with an event loop."""

    def __init__(self, source: Source[Any]) -> None:
        self.arrivals: Arrivals[R] = Arrivals()
        """The requests that wait to be read."""
        self.failure: BaseException | None = None
        """Error that has ended the thread."""
        self._log = source.log
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._serve_until_end, name=f"{source.member}-server", daemon=True)

    def _serve_until_end(self) -> None:
        try:
            self._run()
        except ANY_FAILURE as e:  # the source raises it
            self.failure = e

    @abstractmethod
    def _run(self) -> None:
        """Serve, until `_end` is called."""

    @abstractmethod
    def _end(self) -> None:
        """End all connections; answers given before still leave. Any thread."""

    @abstractmethod
    def stored(self, requests: Sequence[R]) -> None:
        """Answer that the events of these requests are stored. Any thread."""

    def _call(self, function: Callable[..., object], *arguments: object) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended, and all connections with it
                self._loop.call_soon_threadsafe(function, *arguments)

    def start(self) -> None:
        """Begin to serve."""
        start_thread(self._thread)

    def stop(self) -> None:
        """End all connections; answers given before still leave."""
        self._end()
        self._thread.join()

    @property
    def alive(self) -> bool:
        """True while the thread serves."""
        return self._thread.is_alive()


S = TypeVar("S", bound=Server[Any])


class ServingSource(EndpointSource[C], Generic[C, S, R]):
    """Answers a request when every required channel has stored its events; requests that wait travel together."""

    in_flight = 4
    declared_metrics: ClassVar[tuple[Metric, ...]] = (*CONNECTION_METRICS, CERTIFICATE)

    def __init__(self, config: C, name: str = "") -> None:
        super().__init__(config, name, Endpoint(config.bind, [config.port], config))
        self._server: S | None = None
        self._yielded: deque[list[R]] = deque()

    @abstractmethod
    def _serve(self, endpoint: Endpoint) -> S:
        """A server for that endpoint, which is open; not started."""

    @abstractmethod
    def _read(self, server: S, requests: list[R]) -> tuple[list[R], Batch]:
        """The requests that can be read, and their events; the others are answered."""

    def open(self) -> None:
        """Listen and serve. Retry says why that is not possible."""
        self._yielded.clear()
        self._endpoint.open(self.log)
        self._server = self._serve(self._endpoint)
        self._server.start()

    def close(self) -> None:
        """End all connections; whoever waits for an answer sends again, here or elsewhere."""
        if self._server is not None:
            self._server.stop()
            self._server = None
        self._endpoint.close()

    def batches(self) -> Iterator[Batch]:
        """Yield the events that clients send."""
        assert self._server is not None
        while not self.stopping.is_set():
            if taken := self._server.arrivals.take(STOP_CHECK_SECONDS, MAX_BYTES):
                requests, batch = self._read(self._server, taken)
                if requests:
                    self._yielded.append(requests)
                    yield batch
            elif not self._server.alive:
                failure = self._server.failure
                why = in_words(type(failure), failure) if failure is not None else "it has ended"
                raise Retry(f"the thread that serves the clients failed: {why}") from failure

    def stored(self, batch: Batch) -> None:
        """Answer those whose events these are."""
        requests = self._yielded.popleft()
        if self._server is not None:
            self._server.stored(requests)
