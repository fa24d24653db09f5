"""Base of request-response sources, whose server runs on an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
import threading
import time
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

REQUEST_FILL_SECONDS = 0.008
"""Time for which clients that are sending a request may go on while another request waits to be taken."""
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


class Server(ABC, Generic[R]):
    """Server of one source, on an event loop that one thread at a time runs: whoever has the turn.

    The source's thread runs the loop while it waits for requests. So a request that this thread delivers passes no
    other thread. While that thread is away for longer than `STOP_CHECK_SECONDS`, as a channel takes no events, a
    second thread runs the loop. A thread that answers requests while nobody runs the loop sends the answers itself.
    """

    def __init__(self, source: Source[Any]) -> None:
        self.failure: BaseException | None = None
        """Exception that ended the server."""
        self._log = source.log
        self._loop = asyncio.new_event_loop()
        self._serving: asyncio.Task[None] | None = None
        self._turn = threading.Lock()
        """Held by the thread that runs the loop, or that uses what belongs to the loop."""
        self._calls: deque[tuple[Callable[..., object], tuple[object, ...]]] = deque()
        """Calls of other threads, for the thread that has the turn."""
        self._requests: deque[R] = deque()
        """Requests for the source's thread. They belong to the loop."""
        self.partial_bytes = 0
        """Total size of incomplete requests, in bytes."""
        self._piece_received = -math.inf
        """Time of the latest piece of an incomplete request, in seconds of the monotonic clock."""
        self._fill_timer: asyncio.TimerHandle | None = None
        """Timer that ends a `take`, while there are requests and clients are sending more."""
        self._is_source_waiting = False
        """True while the source's thread runs the loop, or waits for its turn."""
        self._take_count = 0
        self._is_stopping = threading.Event()
        self._thread = threading.Thread(target=self._stand_in, name=f"{source.member}-server", daemon=True)

    @abstractmethod
    async def _serve(self) -> None:
        """Serve clients until `_end` is called."""

    @abstractmethod
    def _end(self) -> None:
        """Start to shut down: answers given before are still sent. Called with the turn."""

    def _check(self) -> None:
        """Check timeouts. Called on the loop every `STOP_CHECK_SECONDS`."""

    @abstractmethod
    def stored(self, requests: Sequence[R]) -> None:
        """Answer that the events of these requests are stored. Thread-safe."""

    # --- on the source's thread

    def start(self) -> None:
        """Start to serve. Raises RuntimeError if the system refuses a thread."""
        self._serving = self._loop.create_task(self._serve_until_end())
        self._loop.call_soon(self._tick)
        start_thread(self._thread)

    def stop(self) -> None:
        """Shut down and block until all connections are closed. Answers given before are still sent. Idempotent."""
        self._is_stopping.set()
        self._begin_turn()
        try:
            if self._serving is not None and not self._loop.is_closed():
                self._run_calls()  # answers, which `_end` would give otherwise
                self._end()
                self._run_until_done(self._serving)
                remaining = asyncio.all_tasks(self._loop)
                for task in remaining:
                    task.cancel()
                if remaining:
                    self._run_until_done(asyncio.gather(*remaining, return_exceptions=True))
            self._loop.close()
        finally:
            self._turn.release()
        if self._thread.ident is not None:
            self._thread.join()

    @property
    def is_serving(self) -> bool:
        """True until the server has ended or failed."""
        return self.failure is None and self._serving is not None and not self._serving.done()

    def take(self, max_bytes: int) -> list[R]:
        """Remove and return requests in order; an empty list after about `STOP_CHECK_SECONDS` without a request.

        The requests have at most `max_bytes` in total, but for the first, which may be larger. Requests that have an
        answer already, such as a timeout's, are removed and left out; so the list may be empty earlier.
        """
        self._is_source_waiting = True
        self._take_count += 1
        self._begin_turn()
        try:
            if not self._loop.is_closed():
                if self._requests:
                    self._stop_soon()  # no backlog of requests delays other clients, nor timeouts
                self._loop.run_forever()  # until `notify_source` or `_tick`
                if self._fill_timer is not None:
                    self._fill_timer.cancel()
                    self._fill_timer = None
            taken: list[R] = []
            size = 0
            while self._requests and (not taken or size + self._requests[0].size <= max_bytes):
                request = self._requests.popleft()
                if not request.is_answered:
                    taken.append(request)
                    size += request.size
            return taken
        finally:
            self._is_source_waiting = False
            self._end_turn()

    def wake(self) -> None:
        """End the present `take` early, or else the next one. Thread-safe."""
        self._wake(self._loop.stop)

    # --- turns

    def _begin_turn(self) -> None:
        """Block until the thread has the turn; a second thread that runs the loop meanwhile stops that soon."""
        if not self._turn.acquire(blocking=False):
            self.wake()
            self._turn.acquire()

    def _end_turn(self) -> None:
        """Pass the turn on, after the calls that other threads have left."""
        while True:
            self._run_calls()
            self._turn.release()
            # A call that was left just before the release would otherwise wait for the next turn.
            if not self._calls or not self._turn.acquire(blocking=False):
                return

    def _call(self, function: Callable[..., object], *arguments: object) -> None:
        """Call a function with the turn: at once if no thread has it, or else on that thread, soon. Thread-safe.

        It is not called once the loop is closed, and with it all connections.
        """
        self._calls.append((function, arguments))
        if self._turn.acquire(blocking=False):
            self._end_turn()
        else:
            self._wake(self._run_calls)

    def _run_calls(self) -> None:
        """Run the calls that threads without the turn have left. An error is logged, as of any call of the loop."""
        while self._calls:
            function, arguments = self._calls.popleft()
            if not self._loop.is_closed():
                try:
                    function(*arguments)
                except Exception as e:  # noqa: BLE001  # the other calls and the turn go on
                    self._loop.call_exception_handler({"message": "a client is not answered", "exception": e})

    def _wake(self, function: Callable[[], object]) -> None:
        """Have the loop call a function, at once if it runs. No effect on a closed loop. Thread-safe."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(function)

    def _stand_in(self) -> None:
        """Run the loop while the source's thread is away for longer than `STOP_CHECK_SECONDS`, until `stop`."""
        take_count = -1
        while not self._is_stopping.wait(STOP_CHECK_SECONDS):
            is_away = not self._is_source_waiting and take_count == self._take_count
            take_count = self._take_count
            if is_away and self._turn.acquire(blocking=False):
                try:
                    while not self._is_source_waiting and not self._is_stopping.is_set():
                        self._loop.run_forever()  # until `_tick`, or until another thread begins its turn
                except ANY_FAILURE as e:
                    self.failure = e
                    return
                finally:
                    self._end_turn()

    # --- on the event loop

    async def _serve_until_end(self) -> None:
        """Serve; keep the exception that ends it in `failure`, which the source's thread raises."""
        try:
            await self._serve()
        except ANY_FAILURE as e:
            self.failure = e

    def _run_until_done(self, future: asyncio.Future[Any]) -> None:
        """Run the loop until a future is done."""
        future.add_done_callback(lambda _: self._loop.stop())
        while not future.done():
            self._loop.run_forever()

    def _tick(self) -> None:
        """Check timeouts, and have the thread that runs the loop check for a stop."""
        self._loop.call_later(STOP_CHECK_SECONDS, self._tick)
        self._loop.stop()
        self._check()

    def _enqueue(self, request: R) -> None:
        """Append a request for `take`, which `notify_source` ends."""
        self._requests.append(request)

    def notify_source(self) -> None:
        """Have `take` return the requests, if the source's thread waits."""
        if self._is_source_waiting:
            self._stop_soon()

    def add_partial(self, size_bytes: int) -> None:
        """Add to the total size of incomplete requests, or subtract from it."""
        self.partial_bytes += size_bytes
        if size_bytes > 0:
            self._piece_received = time.monotonic()

    def _stop_soon(self) -> None:
        """Stop the loop after its present iteration; `REQUEST_FILL_SECONDS` later while clients are sending requests.

        Otherwise a large request would arrive in pieces of 256 KiB, with a put of other clients' events after each. A
        client that has stopped in the midst of a request delays nobody.
        """
        if not self.partial_bytes or time.monotonic() > self._piece_received + REQUEST_FILL_SECONDS:
            self._loop.stop()
        elif self._fill_timer is None:
            self._fill_timer = self._loop.call_later(REQUEST_FILL_SECONDS, self._loop.stop)

    def _forget_answered(self) -> None:
        """Remove answered requests from the head of the queue, up to the first request without an answer."""
        while self._requests and self._requests[0].is_answered:
            self._requests.popleft()


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
        """Stop the server and close all connections.

        Clients that wait for an answer retry, here or at another agent.
        """
        if self._server is not None:
            self._server.stop()
            self._server = None
        self._endpoint.close()

    def wake(self) -> None:
        """End a wait for requests early."""
        if (server := self._server) is not None:
            server.wake()

    def batches(self) -> Iterator[Batch]:
        """Yield the events of waiting requests, about `MAX_BATCH_BYTES` a batch, until `stopping`.

        Raises `Retry` if the server has ended.
        """
        assert self._server is not None
        while not self.stopping.is_set():
            if taken := self._server.take(MAX_BATCH_BYTES):
                requests, batch = self._read(self._server, taken)
                if requests:
                    self._yielded.append(requests)
                    yield batch
            elif not self._server.is_serving:
                failure = self._server.failure
                reason = describe_exception(type(failure), failure) if failure is not None else "it has ended"
                raise Retry(f"the server of the clients failed: {reason}") from failure

    def stored(self, batch: Batch) -> None:
        """Answer the requests of the batch that was yielded first among the batches without an answer."""
        requests = self._yielded.popleft()
        if self._server is not None:
            self._server.stored(requests)
