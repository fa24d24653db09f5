"""Endpoints of sources that listen, and their TCP listener: accepting, TLS handshakes, reading, draining."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import selectors
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from flafka.plugins import Config, Metric, PortOccupied, Retry, Source, option
from flafka.plugins.net.tls import TlsServerConfig, connection_error_reason, continue_handshake
from flafka.sources.connections import (
    MAX_CONSECUTIVE_ACCEPTS,
    Connection,
    Connections,
    ConnectionsConfig,
    unread_bytes,
)

MAX_BATCH_BYTES = 3 << 20
"""Limit of the data gathered for one batch. With its headers, such a batch still fits one Kafka record."""
READ_BYTES = 256 * 1024
"""Size of one read."""
TLS_RECORD_BYTES = 16 * 1024
"""Maximum plaintext of a TLS record (RFC 8446, 5.1)."""
_WAKER = object()
"""Data of the waker in the selector."""
_CLIENT_HELLO = b"\x16\x03"
"""First bytes of a TLS connection: a handshake record of TLS 1.x."""
DRAIN_READ_SECONDS = 1.0
"""Time for which a stopping source still reads data that arrives after the stop."""


class TcpConfig(ConnectionsConfig):
    """Options of sources that listen on one TCP port."""

    section = "Connections"
    bind: str = option(name="bind", description="Address or name to listen on; 0.0.0.0 or :: for all addresses.")
    port: int = option(name="port", description="TCP port to listen on; 0 takes a free one.", ge=0, le=65535)


class HandshakeConfig(TlsServerConfig):
    """Options of sources whose reading thread also runs TLS handshakes."""

    section = "TLS"
    handshake_timeout: float = option(
        10.0,
        name="handshakeTimeout",
        description="A connection whose TLS handshake takes longer is closed.",
        unit="s",
        gt=0,
    )


class Endpoint:
    """Address and ports of a source: while open, a listening socket for each port, and the TLS certificate."""

    def __init__(
        self,
        host: str,
        ports: Sequence[int],
        tls: TlsServerConfig | None = None,
        kind: socket.SocketKind = socket.SOCK_STREAM,
    ) -> None:
        self._host, self._ports, self._tls, self._kind = host, ports, tls, kind
        self.sockets: list[socket.socket] = []
        self.context: ssl.SSLContext | None = None
        """TLS context; None without TLS."""
        self._expiry: float | None = None
        self.waker: socket.socket | None = None
        """Socket that is readable after `wake`; None while closed."""
        self._waking: socket.socket | None = None

    @property
    def ports(self) -> list[int]:
        """Ports of the open sockets, with the kernel's choice for 0; the configured ports while closed."""
        return [int(listener.getsockname()[1]) for listener in self.sockets] or list(self._ports)

    def open(self, log: logging.Logger) -> None:
        """Load the certificate and listen at every port. Raises `Retry` if either is impossible.

        Sockets that listen already stay open then, until `close`.
        """
        if self._tls:
            self.context, self._expiry = self._tls.context_and_expiry()
        for port in self._ports:
            self.sockets.append(listen(self._host, port, self._kind))
        self.waker, self._waking = socket.socketpair()
        log.info("listening on %s port %s", self._host, " ".join(map(str, self.ports)))

    def certificate_seconds_left(self) -> float | None:
        """Return the seconds until the certificate expires; None without TLS, and before `open`."""
        return None if self._expiry is None else round(self._expiry - time.time())

    def close(self) -> None:
        """Close the listening sockets. Idempotent."""
        for listener in (*self.sockets, self.waker, self._waking):
            if listener is not None:
                listener.close()
        self.sockets.clear()
        self.waker = self._waking = None

    def wake(self) -> None:
        """Make `waker` readable until `close`. Any thread may call; no effect while closed."""
        if (waking := self._waking) is not None:
            with contextlib.suppress(OSError):  # closed meanwhile
                waking.send(b"\0")

    def check_connectivity(self) -> Iterator[str]:
        """Yield a message for an unusable certificate, and for each address and port that cannot be bound.

        The message is a `PortOccupied` if another program listens at the port.
        """
        try:
            if self._tls:
                self._tls.context()
        except Retry as e:
            yield str(e)
        for port in self._ports:
            try:
                listen(self._host, port, self._kind).close()
            except Retry as e:
                in_use = isinstance(e.__cause__, OSError) and e.__cause__.errno == errno.EADDRINUSE
                yield PortOccupied(str(e), port, udp=self._kind == socket.SOCK_DGRAM) if in_use else str(e)


def listen(host: str, port: int, kind: socket.SocketKind) -> socket.socket:
    """Return a non-blocking socket bound to an address; a TCP socket also listens. Raises `Retry` on failure."""
    listener = None
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=kind, flags=socket.AI_PASSIVE)[0]
        listener = socket.socket(family, kind)
        listener.setblocking(False)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        if kind == socket.SOCK_STREAM:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        if kind == socket.SOCK_STREAM:
            listener.listen(socket.SOMAXCONN)
    except OSError as e:
        if listener is not None:
            listener.close()
        protocol = "TCP" if kind == socket.SOCK_STREAM else "UDP"
        raise Retry(f"cannot listen on {host}:{port} ({protocol}): {_reason(e)}") from e
    return listener


def _reason(error: OSError) -> str:
    """Return the reason why an address cannot be bound, with the remedy where there is one."""
    if error.errno == errno.EADDRINUSE:
        return "another program listens there; stop it or choose another port"
    if error.errno == errno.EACCES:
        return "ports below 1024 need root or the capability CAP_NET_BIND_SERVICE; choose a higher one"
    if error.errno == errno.EADDRNOTAVAIL:
        return "this machine has no such address"
    return error.strerror or os.strerror(error.errno or 0)


C = TypeVar("C", bound=Config)
K = TypeVar("K", bound=Connection)


CERTIFICATE_METRIC = Metric(
    *("CertificateSecondsLeft", "gauge", "seconds"),
    "Time until the certificate of the source expires.",
    "known",
)
"""Metric of a source with TLS."""
HANDSHAKE_METRIC = Metric(
    *("TlsHandshakeFail", "counter", "connections"),
    "Connections that were closed because their TLS handshake failed.",
    "known",
)
"""Metric of a source with TLS through a `Listener`."""


class EndpointSource(Source[C]):
    """A source that listens at an endpoint."""

    def __init__(self, config: C, name: str, endpoint: Endpoint) -> None:
        super().__init__(config, name)
        self._endpoint = endpoint
        self.metrics.set_function("CertificateSecondsLeft", endpoint.certificate_seconds_left)

    @property
    def ports(self) -> list[int]:
        """Ports of the open sockets, with the kernel's choice for 0; the configured ports while closed."""
        return self._endpoint.ports

    @property
    def port(self) -> int:
        """First of `ports`."""
        return self.ports[0]

    def wake(self) -> None:
        """End a wait for input early."""
        self._endpoint.wake()

    def check_connectivity(self) -> Iterator[str]:
        """Yield a message for an unusable certificate, and for each address and port that cannot be bound."""
        return self._endpoint.check_connectivity()


class Listener(Generic[K]):
    """TCP listener that accepts connections at an endpoint and polls them, all on the thread of its source.

    `create_connection` turns an accepted socket into the source's own connection. Over TLS, a connection is readable
    after its handshake. A handshake that takes longer than `handshake_timeout` seconds closes the connection.
    """

    def __init__(
        self,
        source: Source[Any],
        endpoint: Endpoint,
        create_connection: Callable[[socket.socket, tuple[str, int]], K],
        *,
        max_connections: int,
        max_per_address: int = 0,
        handshake_timeout: float = 0,
    ) -> None:
        self.endpoint = endpoint
        self.connections = Connections(
            source, max_connections, self._create, self.drop, max_per_address=max_per_address
        )
        self._source, self._create_connection = source, create_connection
        self._handshake_timeout = handshake_timeout
        self._selector: selectors.BaseSelector
        self._pending_handshakes: dict[K, None] = {}
        """Connections with an incomplete TLS handshake, the oldest first."""
        self._unread_at_stop: dict[K, int] = {}
        """Bytes of each connection that were unread when the source stopped, less those read since."""
        self._at_end = set[K]()
        """Connections whose last read has also met the end of the stream."""
        self._buffer = memoryview(bytearray(READ_BYTES))
        self._resources = contextlib.ExitStack()

    def open(self) -> None:
        """Load the certificate, listen, and determine the limit on connections.

        Raises `Retry` if listening is impossible or the certificate is unusable.
        """
        self._resources.callback(self.connections.close)
        self.connections.open()
        self._resources.callback(self.endpoint.close)
        self.endpoint.open(self._source.log)
        self._selector = self._resources.enter_context(selectors.DefaultSelector())
        self._resources.callback(self._drop_all)
        for listener in self.endpoint.sockets:
            self._selector.register(listener, selectors.EVENT_READ)
        assert self.endpoint.waker is not None
        self._selector.register(self.endpoint.waker, selectors.EVENT_READ, _WAKER)

    def close(self) -> None:
        """Stop listening and close all connections. Idempotent."""
        self._resources.close()

    def poll(self, timeout: float, linger: Callable[[], bool] = lambda: False) -> list[tuple[K, int]]:
        """Return the connections that are ready, with their `selectors` events, and accept new connections.

        Also continue TLS handshakes, and close connections whose handshake is overdue. Blocks for at most `timeout`
        seconds, and not at all while `read_into` has yet to report the end of a stream. `linger` is called when the
        first events arrive. If it returns True, it has slept, and the result includes the events that arrived
        meanwhile.
        """
        selected = self._selector.select(0 if self._at_end else timeout)
        if selected and linger():
            selected = self._selector.select(0)
        for key, _ in selected:
            if key.data is None:
                self._accept(key.fileobj)  # type: ignore[arg-type]  # a socket
        if self._pending_handshakes:
            for connection in [key.data for key, _ in selected if key.data in self._pending_handshakes]:
                self._continue_handshake(connection)
            self._refuse_overdue()
        # A handshake that has just ended makes its connection ready: its last segment may carry application data.
        ready = [
            (key.data, events)
            for key, events in selected
            if key.data in self.connections and key.data not in self._pending_handshakes
        ]
        if self._at_end:
            selected_connections = {connection for connection, _ in ready}
            ready += [
                (connection, selectors.EVENT_READ)
                for connection in self._at_end
                if connection not in selected_connections
            ]
        return ready

    def drain(self) -> Iterator[list[tuple[K, int]]]:
        """Yield the connections to read after `stopping`, with their `selectors` events, until all are drained.

        First accept the connections that wait in the kernel, then close the listening sockets: the kernel resets new
        connections. Data that has arrived by then is read completely, later data for at most `DRAIN_READ_SECONDS`.
        The caller must read each yielded connection once. Open connections stay open.
        """
        for _ in range(socket.SOMAXCONN // MAX_CONSECUTIVE_ACCEPTS + 1):
            before = self.connections.accepted_count
            yield self.poll(0)
            if self.connections.accepted_count == before:
                break
        for registered in (*self.endpoint.sockets, self.endpoint.waker):
            assert registered is not None
            self._selector.unregister(registered)
        self.endpoint.close()
        self._unread_at_stop = {c: unread_bytes(c.socket) for c in self.connections if not c.handshake_pending}
        deadline = time.monotonic() + DRAIN_READ_SECONDS
        while ready := self.poll(0):
            if time.monotonic() > deadline:
                ready = [entry for entry in ready if self._unread_at_stop.get(entry[0], 0) > 0]
                if not ready:
                    return
            yield ready

    def read_into(self, connection: K, buffer: memoryview) -> int | None:
        """Read into `buffer` and return the number of bytes; None if no data is available.

        0 means that the caller must drop the connection: its stream or its socket has ended, or a client speaks TLS
        at a port without TLS. Over TLS, several records are read at once. The connection counts as active.
        """
        if connection in self._at_end:
            self._at_end.discard(connection)
            return 0
        size = self._receive(connection, buffer)
        if size and connection.first_bytes is not None and self._speaks_tls(connection, buffer[:size]):
            return 0
        if size and isinstance(connection.socket, ssl.SSLSocket):
            # One call returns one TLS record, which from many senders holds a single line.
            limit = min(len(buffer), READ_BYTES) - TLS_RECORD_BYTES
            while size <= limit and (more := self._receive(connection, buffer[size:])) is not None:
                if not more:
                    self._at_end.add(connection)  # the selector does not report the end a second time
                    break
                size += more
        if size:
            connection.last_activity = time.monotonic()
            self.connections.record_activity(connection)
            if connection in self._unread_at_stop:
                self._unread_at_stop[connection] -= size
        return size

    def _speaks_tls(self, connection: K, data: memoryview) -> bool:
        """Return True, and log a warning, for a TLS client hello at a port without TLS."""
        assert connection.first_bytes is not None
        first_bytes = connection.first_bytes + bytes(data[: len(_CLIENT_HELLO)])
        is_hello = self.endpoint.context is None and first_bytes.startswith(_CLIENT_HELLO)
        connection.first_bytes = first_bytes if len(first_bytes) < len(_CLIENT_HELLO) else None
        if is_hello:
            self._source.metrics.add("EventReadFail")
            has_tls = isinstance(self._source.config, TlsServerConfig)
            self._source.warn_rate_limited(
                "hello",
                "%s speaks TLS and is closed, as plain text is expected: %s",
                connection.peer,
                "set ssl = true for TLS" if has_tls else "this source has no TLS",
            )
        return is_hello

    def _receive(self, connection: K, buffer: memoryview) -> int | None:
        """Return the number of bytes that one call received; None if none is available, 0 at the end or an error."""
        try:
            return connection.socket.recv_into(buffer)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return None
        except OSError as e:
            self._source.log.debug("%s: %s", connection.peer, e)
            return 0

    def read(self, connection: K) -> bytes | None:
        """Return the data received, at most `READ_BYTES`; None if no data is available.

        Empty where `read_into` returns 0: the caller must drop the connection.
        """
        size = self.read_into(connection, self._buffer)
        return None if size is None else bytes(self._buffer[:size])

    def wait_for(self, connection: K, events: int) -> None:
        """Set the `selectors` events on which `poll` returns this connection."""
        self._selector.modify(connection.socket, events, connection)

    def drop(self, connection: K) -> None:
        """Close an open connection and forget it; over TLS, after a close_notify alert."""
        self._selector.unregister(connection.socket)
        if isinstance(connection.socket, ssl.SSLSocket) and not connection.handshake_pending:
            # Without close_notify the client may report truncated data (RFC 8446, 6.1). Its own is not awaited.
            with contextlib.suppress(OSError, ValueError):
                connection.socket.unwrap()
        connection.socket.close()
        self._pending_handshakes.pop(connection, None)
        self._unread_at_stop.pop(connection, None)
        self._at_end.discard(connection)
        self.connections.discard(connection)

    def _drop_all(self) -> None:
        for connection in self.connections:
            self.drop(connection)

    # --- new connections

    def _accept(self, listener: socket.socket) -> None:
        """Accept the connections that wait on a listening socket, and poll them from now on."""
        for connection in self.connections.accept(listener):
            self._selector.register(connection.socket, selectors.EVENT_READ, connection)
            if connection.handshake_pending:
                self._pending_handshakes[connection] = None

    def _create(self, accepted: socket.socket, address: tuple[str, int]) -> K:
        """Return the source's connection of an accepted socket; with TLS, before its handshake."""
        context = self.endpoint.context
        if context is not None:
            accepted = context.wrap_socket(accepted, server_side=True, do_handshake_on_connect=False)
        connection = self._create_connection(accepted, address)
        connection.handshake_pending = context is not None
        return connection

    def _continue_handshake(self, connection: K) -> None:
        """Continue the TLS handshake of a connection without blocking; close the connection if it fails."""
        assert isinstance(connection.socket, ssl.SSLSocket)
        try:
            awaited = continue_handshake(connection.socket)
        except OSError as e:
            self._refuse(connection, connection_error_reason(e))
            return
        self.wait_for(connection, awaited or selectors.EVENT_READ)
        if not awaited:
            del self._pending_handshakes[connection]
            connection.handshake_pending = False
            connection.last_activity = time.monotonic()

    def _refuse_overdue(self) -> None:
        """Close the connections whose TLS handshake takes longer than `handshake_timeout` seconds."""
        limit = time.monotonic() - self._handshake_timeout
        while (oldest := next(iter(self._pending_handshakes), None)) is not None and oldest.last_activity < limit:
            self._refuse(oldest, f"it took longer than handshakeTimeout = {self._handshake_timeout:g} s")

    def _refuse(self, connection: K, reason: str) -> None:
        """Close a connection whose TLS handshake failed; count it and log the reason."""
        self._source.metrics.add("TlsHandshakeFail")
        self._source.warn_rate_limited("tls", "%s is refused, its TLS handshake failed: %s", connection.peer, reason)
        self.drop(connection)
