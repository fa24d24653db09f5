"""What sources share whose clients wait for an answer: a server on a thread of its own."""

from __future__ import annotations

import asyncio
import socket
import ssl
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar

from plugins import Batch, Metrics, Retry, Source, option
from plugins.tls import TlsServerConfig, refusal
from sources.connections import Connections, ConnectionsConfig
from sources.listening import listen

MAX_BYTES = 768 * 1024
"""Requests gathered for one batch: it still fits into one Kafka record of the usual size."""
IDLE = 0.2
"""Seconds after which an idle source looks whether it shall stop."""


class ServingConfig(TlsServerConfig, ConnectionsConfig):
    """Options of those that serve clients on one TCP port."""

    bind: str = option(name="bind", description="Address or name to listen on; 0.0.0.0 or :: for all addresses.")
    port: int = option(name="port", description="Port to listen on; 0 takes a free one.", ge=0, le=65535)


class Client:
    """One connection, from when it is accepted."""

    def __init__(self, taken: socket.socket, peer: str) -> None:
        self.socket, self.peer = taken, peer
        self.welcome: asyncio.Task[None]
        self.transport: asyncio.Transport | None = None
        """Its protocol sets this when the connection has come about."""

    @property
    def shaking(self) -> bool:
        """Whether it has yet to come about."""
        return self.transport is None


class Reception:
    """Lets clients in, on the event loop that runs: each is admitted, agrees on TLS, and gets a protocol.

    The protocol tells `connections` what it has heard, and when the client has gone. `patience`, in seconds, is for
    TLS. `hint` is added for a client that does not speak it.
    """

    def __init__(
        self,
        config: ServingConfig,
        listener: socket.socket,
        tls: ssl.SSLContext | None,
        patience: float,
        metrics: Metrics,
        complain: Callable[..., None],
        protocol: Callable[[Client], asyncio.Protocol],
        hint: str = "",
    ) -> None:
        self.connections: Connections[Client] = Connections(config.max_connections, metrics, complain, self._end)
        self._listener, self._tls, self._patience = listener, tls, patience if tls else None
        self._metrics, self._complain, self._protocol, self._hint = metrics, complain, protocol, hint
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

    def denies(self, address: tuple[str, int]) -> bool:
        """Whether a client with this address is not let in."""
        return False

    async def denies_name(self, address: tuple[str, int]) -> bool:
        """The same, where the client's name has to be looked up for it."""
        return False

    def _accept(self) -> None:
        for taken, address in self.connections.accept(self._listener):
            peer = f"{address[0]}:{address[1]}"
            if self.denies(address):
                self._filtered(peer)
                taken.close()
            elif self.connections.admit(taken, peer):
                taken.setblocking(False)
                client = Client(taken, peer)
                self.connections.add(client)
                client.welcome = asyncio.get_running_loop().create_task(self._welcome(client, address))
                self._welcomes.add(client.welcome)
                client.welcome.add_done_callback(self._welcomes.discard)

    async def _welcome(self, client: Client, address: tuple[str, int]) -> None:
        try:
            if not await self.denies_name(address):
                client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                await asyncio.get_running_loop().connect_accepted_socket(
                    lambda: self._protocol(client),
                    client.socket,
                    ssl=self._tls,
                    ssl_handshake_timeout=self._patience,
                )
                return
            self._filtered(client.peer)
        except OSError as e:
            self._metrics.add("EventReadFail")
            if any(sign in str(e) for sign in ("HTTP_REQUEST", "WRONG_VERSION_NUMBER")):
                self._complain("tls", "%s does not speak TLS, as ssl = true asks for%s", client.peer, self._hint)
            else:
                self._complain("tls", "%s is not let in, no TLS: %s", client.peer, refusal(e))
        except asyncio.CancelledError:
            self._close(client)
            raise
        self._close(client)

    def _close(self, client: Client) -> None:
        client.socket.close()
        self.connections.discard(client)

    def _filtered(self, peer: str) -> None:
        self._complain("filtered", "%s is not let in by ipFilterRules", peer)

    def _end(self, client: Client) -> None:
        if client.transport is None:
            client.welcome.cancel()
        else:
            client.transport.abort()


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
