"""Base of request-response sources, whose server runs on a thread with an event loop."""

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
from flafka.plugins.net.tls import TlsServerConfig, connection_error_reason
from flafka.plugins.threads import describe_exception, start_thread
from flafka.sources.batching import STOP_CHECK_SECONDS
from flafka.sources.connections import CONNECTION_METRICS, Connection, Connections
from flafka.sources.ipfilter import IpFilter
from flafka.sources.listening import CERTIFICATE_METRIC, MAX_BATCH_BYTES, Endpoint, EndpointSource, TcpConfig

REQUEST_OVERHEAD_BYTES = 1024
"""Approximate memory of a request beside its content."""


class ServingConfig(TlsServerConfig, TcpConfig):
    """Options of sources that serve clients on one TCP port."""


class Client(Connection):
    """Connection of one client, from its accept."""

    handshake_task: asyncio.Task[None]
    transport: asyncio.Transport

    def __init__(self, accepted: socket.socket, address: tuple[str, int]) -> None:
        super().__init__(accepted, address)
        self.handshake_pending = True

    def record_transport(self, transport: asyncio.Transport) -> None:
        """Record the transport of the established connection; its TLS handshake is complete."""
        self.transport, self.handshake_pending = transport, False


C = TypeVar("C", bound=ServingConfig)


class Acceptor(Generic[C]):
    """Acceptor of clients, on the running event loop: checks IP filter rules, runs TLS handshakes, creates protocols.

    A protocol notifies `connections` when data arrives and when its client disconnects. `handshake_timeout` limits a
    TLS handshake, in seconds. `hint` is appended to the warning about a client that does not speak TLS.
    """

    def __init__(
        self,
        source: Source[C],
        endpoint: Endpoint,
        handshake_timeout: float,
        create_protocol: Callable[[Client], asyncio.Protocol],
        ip_filter: IpFilter | None = None,
        hint: str = "",
    ) -> None:
        self.connections: Connections[Client] = Connections(
            source, source.config.max_connections, Client, self._abort
        )
        self._source, self._create_protocol, self._hint = source, create_protocol, hint
        self._ip_filter = ip_filter or IpFilter()
        self._listener, self._tls = endpoint.sockets[0], endpoint.context
        self._handshake_timeout = handshake_timeout if self._tls else None
        self._handshake_tasks: set[asyncio.Task[None]] = set()

    def open(self) -> None:
        """Start to accept clients. Call it on the event loop."""
        self.connections.open()
        asyncio.get_running_loop().add_reader(self._listener, self._accept)

    async def close(self) -> None:
        """Stop accepting, and cancel pending handshakes. Protocols close the established connections."""
        asyncio.get_running_loop().remove_reader(self._listener)
        for task in self._handshake_tasks:
            task.cancel()
        await asyncio.gather(*self._handshake_tasks, return_exceptions=True)
        self.connections.close()

    def _accept(self) -> None:
        """Accept the clients that wait, each with a task that establishes its connection."""
        for client in self.connections.accept(self._listener, self._admits):
            client.handshake_task = asyncio.get_running_loop().create_task(self._establish(client))
            self._handshake_tasks.add(client.handshake_task)
            client.handshake_task.add_done_callback(self._handshake_tasks.discard)

    def _admits(self, address: tuple[str, int], peer: str) -> bool:
        """Return False, and log a warning, if the IP filter rules deny the address."""
        if denied := self._ip_filter.denies(address):
            self._warn_denied(peer)
        return not denied

    async def _establish(self, client: Client) -> None:
        """Check the rules by host name, run the TLS handshake, and create the protocol; close a refused client."""
        try:
            if not await self._ip_filter.denies_name(client.address):
                client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                await asyncio.get_running_loop().connect_accepted_socket(
                    lambda: self._create_protocol(client),
                    client.socket,
                    ssl=self._tls,
                    ssl_handshake_timeout=self._handshake_timeout,
                )
                return
            self._warn_denied(client.peer)
        except OSError as e:
            self._source.metrics.add("EventReadFail")
            if any(sign in str(e) for sign in ("HTTP_REQUEST", "WRONG_VERSION_NUMBER")):
                text = "%s does not speak TLS, which ssl = true requires%s"
                self._source.warn_rate_limited("tls", text, client.peer, self._hint)
            else:
                self._source.warn_rate_limited(
                    "tls", "%s is refused, its TLS handshake failed: %s", client.peer, connection_error_reason(e)
                )
        except asyncio.CancelledError:
            self._close(client)
            raise
        self._close(client)

    def _close(self, client: Client) -> None:
        """Close the socket of a client that has no transport yet, and forget the client."""
        client.socket.close()
        self.connections.discard(client)

    def _warn_denied(self, peer: str) -> None:
        """Log that the IP filter rules refuse a client."""
        self._source.warn_rate_limited("filtered", "%s is refused by ipFilterRules", peer)

    def _abort(self, client: Client) -> None:
        """Cancel the pending handshake of a client, or abort its established connection."""
        if client.handshake_pending:
            client.handshake_task.cancel()
        else:
            client.transport.abort()


class Request(Protocol):
    """Events that a client sends in one call."""

    size: int
    """Size in memory, in bytes."""

    @property
    def is_answered(self) -> bool:
        """True if the request has an answer, which a timeout may send before the request is read."""


R = TypeVar("R", bound=Request)


class RequestQueue(Generic[R]):
    """Queue of requests from the server's thread to the source's thread."""

    def __init__(self) -> None:
        self._not_empty = threading.Condition()
        self._requests: deque[R] = deque()

    def put(self, request: R) -> None:
        """Append a request and wake a waiting `take`. Thread-safe."""
        with self._not_empty:
            self._requests.append(request)
            self._not_empty.notify()

    def take(self, timeout: float, max_bytes: int) -> list[R]:
        """Remove and return requests in the order of `put`; an empty list after `timeout` seconds without a request.

        The requests have at most `max_bytes` in total, but for the first, which may be larger. Requests that have an
        answer already, such as a timeout's, are removed and left out; so the list may be empty earlier.
        """
        with self._not_empty:
            if not self._requests:
                self._not_empty.wait(timeout)
            taken: list[R] = []
            size = 0
            while self._requests and (not taken or size + self._requests[0].size <= max_bytes):
                request = self._requests.popleft()
                if not request.is_answered:
                    taken.append(request)
                    size += request.size
            return taken

    def forget_answered(self) -> None:
        """Remove answered requests from the head of the queue, up to the first request without an answer."""
        with self._not_empty:
            while self._requests and self._requests[0].is_answered:
                self._requests.popleft()


class Server(ABC, Generic[R]):
    """Server of one source, on a thread with an event loop."""

    def __init__(self, source: Source[Any]) -> None:
        self.request_queue: RequestQueue[R] = RequestQueue()
        """Requests for the source's thread."""
        self.failure: BaseException | None = None
        """Exception that ended the thread."""
        self._log = source.log
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._serve_until_end, name=f"{source.member}-server", daemon=True)

    def _serve_until_end(self) -> None:
        """Run the server; keep the exception that ends it in `failure`."""
        try:
            self._run()
        except ANY_FAILURE as e:  # the source's thread raises it
            self.failure = e

    @abstractmethod
    def _run(self) -> None:
        """Serve clients until `_end` is called."""

    @abstractmethod
    def _end(self) -> None:
        """Start to shut down: answers given before are still sent. Thread-safe."""

    @abstractmethod
    def stored(self, requests: Sequence[R]) -> None:
        """Answer that the events of these requests are stored. Thread-safe."""

    def _call(self, function: Callable[..., object], *arguments: object) -> None:
        """Call a function on the event loop, soon; never if the loop has not started or is closed. Thread-safe."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed, and so are all connections
                self._loop.call_soon_threadsafe(function, *arguments)

    def start(self) -> None:
        """Start the thread."""
        start_thread(self._thread)

    def stop(self) -> None:
        """Shut down and block until the thread has ended. Answers given before are still sent."""
        self._end()
        self._thread.join()

    @property
    def is_alive(self) -> bool:
        """True while the thread runs."""
        return self._thread.is_alive()


S = TypeVar("S", bound=Server[Any])


class ServingSource(EndpointSource[C], Generic[C, S, R]):
    """Source that answers a request once every required channel has stored its events.

    Requests that wait share a batch.
    """

    in_flight = 4
    declared_metrics: ClassVar[tuple[Metric, ...]] = (*CONNECTION_METRICS, CERTIFICATE_METRIC)

    def __init__(self, config: C, name: str = "") -> None:
        super().__init__(config, name, Endpoint(config.bind, [config.port], config))
        self._server: S | None = None
        self._yielded: deque[list[R]] = deque()

    @abstractmethod
    def _serve(self, endpoint: Endpoint) -> S:
        """Return a server for an open endpoint; `open` starts it."""

    @abstractmethod
    def _read(self, server: S, requests: list[R]) -> tuple[list[R], Batch]:
        """Return the readable requests and a batch of their events; answer unreadable requests with an error."""

    def open(self) -> None:
        """Listen and start the server. Raises `Retry` if listening is impossible or the certificate is unusable."""
        self._yielded.clear()
        self._endpoint.open(self.log)
        self._server = self._serve(self._endpoint)
        self._server.start()

    def close(self) -> None:
        """Stop the server and close all connections; blocks until its thread has ended.

        Clients that wait for an answer retry, here or at another agent.
        """
        if self._server is not None:
            self._server.stop()
            self._server = None
        self._endpoint.close()

    def batches(self) -> Iterator[Batch]:
        """Yield the events of waiting requests, about `MAX_BATCH_BYTES` a batch, until `stopping`.

        Raises `Retry` if the server's thread has ended.
        """
        assert self._server is not None
        while not self.stopping.is_set():
            if taken := self._server.request_queue.take(STOP_CHECK_SECONDS, MAX_BATCH_BYTES):
                requests, batch = self._read(self._server, taken)
                if requests:
                    self._yielded.append(requests)
                    yield batch
            elif not self._server.is_alive:
                failure = self._server.failure
                reason = describe_exception(type(failure), failure) if failure is not None else "it has ended"
                raise Retry(f"the thread that serves the clients failed: {reason}") from failure

    def stored(self, batch: Batch) -> None:
        """Answer the requests of the batch that was yielded first among the batches without an answer."""
        requests = self._yielded.popleft()
        if self._server is not None:
            self._server.stored(requests)
