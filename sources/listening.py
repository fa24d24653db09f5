"""Where a source listens, and how it takes connections: sockets, TLS handshakes, reading, and the end."""

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
from flafka.plugins.shared.tls import TlsServerConfig, handshake, refusal
from flafka.sources.connections import AT_ONCE, Connection, Connections, ConnectionsConfig, unread

MAX_BYTES = 3 << 20
"""Bytes gathered for one batch: with its headers it is one record of the Kafka channel still."""
READ_SIZE = 256 * 1024
"""Bytes of one read."""
RECORD_SIZE = 16 * 1024
"""The most that a record of TLS holds."""
_HELLO = b"\x16\x03"
"""Beginning of a TLS connection: a handshake record of TLS 1.x."""
FAREWELL = 1.0
"""Seconds that a stopping source goes on reading what is sent only now."""


class TcpConfig(ConnectionsConfig):
    """Options of those that listen on one TCP port."""

    section = "Connections"
    bind: str = option(name="bind", description="Address or name to listen on; 0.0.0.0 or :: for all addresses.")
    port: int = option(name="port", description="TCP port to listen on; 0 takes a free one.", ge=0, le=65535)


class HandshakeConfig(TlsServerConfig):
    """Options of those that may speak TLS on the thread that reads."""

    section = "TLS"
    handshake_timeout: float = option(
        10.0,
        name="handshakeTimeout",
        description="A connection whose TLS handshake takes longer is closed.",
        unit="s",
        gt=0,
    )


class Endpoint:
    """Where a source listens: while it is open, a socket for each port, and the certificate for TLS."""

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
        """For TLS; None where it is not spoken."""
        self._expiry: float | None = None

    @property
    def ports(self) -> list[int]:
        """The ports it listens on: those configured, or those it was given for 0."""
        return [int(listener.getsockname()[1]) for listener in self.sockets] or list(self._ports)

    def open(self, log: logging.Logger) -> None:
        """Load the certificate, and listen. Retry says why that is not possible."""
        if self._tls:
            self.context, self._expiry = self._tls.context_until()
        for port in self._ports:
            self.sockets.append(listen(self._host, port, self._kind))
        log.info("listening on %s port %s", self._host, " ".join(map(str, self.ports)))

    def certificate_seconds_left(self) -> float | None:
        """For how long clients accept the certificate yet; None without TLS, and before it was open."""
        return None if self._expiry is None else round(self._expiry - time.time())

    def close(self) -> None:
        """Stop listening. May be called twice."""
        for listener in self.sockets:
            listener.close()
        self.sockets.clear()

    def check_connectivity(self) -> Iterator[str]:
        """Whether the certificate can be used, and the address and the ports be had."""
        try:
            if self._tls:
                self._tls.context()
        except Retry as e:
            yield str(e)
        for port in self._ports:
            try:
                listen(self._host, port, self._kind).close()
            except Retry as e:
                taken = isinstance(e.__cause__, OSError) and e.__cause__.errno == errno.EADDRINUSE
                yield PortOccupied(str(e), port, udp=self._kind == socket.SOCK_DGRAM) if taken else str(e)


def listen(host: str, port: int, kind: socket.SocketKind) -> socket.socket:
    """A non-blocking socket bound to that address, listening where it is TCP. Retry says why that is not possible."""
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
    if error.errno == errno.EADDRINUSE:
        return "another program listens there; stop it or choose another port"
    if error.errno == errno.EACCES:
        return "ports below 1024 need root or the capability CAP_NET_BIND_SERVICE; choose a higher one"
    if error.errno == errno.EADDRNOTAVAIL:
        return "this machine has no such address"
    return error.strerror or os.strerror(error.errno or 0)


C = TypeVar("C", bound=Config)
K = TypeVar("K", bound=Connection)


CERTIFICATE = Metric(
    *("CertificateSecondsLeft", "gauge", "seconds"),
    "Time until the certificate of the source expires.",
    "known",
)
"""Metric of a source that speaks TLS."""
HANDSHAKES = Metric(
    *("TlsHandshakeFail", "counter", "connections"),
    "Connections that were closed because their TLS handshake failed.",
    "known",
)
"""Metric of a source that speaks TLS through a `Listener`."""


class EndpointSource(Source[C]):
    """A source that listens."""

    def __init__(self, config: C, name: str, endpoint: Endpoint) -> None:
        super().__init__(config, name)
        self._endpoint = endpoint
        self.metrics.set_function("CertificateSecondsLeft", endpoint.certificate_seconds_left)

    @property
    def ports(self) -> list[int]:
        """The ports it listens on: those configured, or those it was given for 0."""
        return self._endpoint.ports

    @property
    def port(self) -> int:
        """The first of them."""
        return self.ports[0]

    def check_connectivity(self) -> Iterator[str]:
        """Whether the certificate can be used, and the address and the ports be had."""
        return self._endpoint.check_connectivity()


class Listener(Generic[K]):
    """Takes connections at an endpoint and tells which can be read, all on the thread of the source that holds it.

    `begin` makes a source's own connection of an accepted socket. Over TLS, a connection can be read once it has
    agreed on that; it is closed when that takes longer than `handshake_timeout` seconds.
    """

    def __init__(
        self,
        source: Source[Any],
        endpoint: Endpoint,
        begin: Callable[[socket.socket, tuple[str, int]], K],
        *,
        most: int,
        most_per_address: int = 0,
        handshake_timeout: float = 0,
    ) -> None:
        self.endpoint = endpoint
        self.connections = Connections(source, most, self._begin, self.drop, most_per_address=most_per_address)
        self._source, self._make, self._handshake_timeout = source, begin, handshake_timeout
        self._selector: selectors.BaseSelector
        self._shaking: dict[K, None] = {}
        """Those that have yet to agree on TLS, the oldest first."""
        self._owed: dict[K, int] = {}
        """Bytes that the kernel held for each when the source was told to stop."""
        self._ended = set[K]()
        """Those of which the end has come behind what was read last."""
        self._room = memoryview(bytearray(READ_SIZE))
        self._opened = contextlib.ExitStack()

    def open(self) -> None:
        """Load the certificate, and listen. Retry says why that is not possible."""
        self._opened.callback(self.connections.close)
        self.connections.open()
        self._opened.callback(self.endpoint.close)
        self.endpoint.open(self._source.log)
        self._selector = self._opened.enter_context(selectors.DefaultSelector())
        self._opened.callback(self._drop_all)
        for listener in self.endpoint.sockets:
            self._selector.register(listener, selectors.EVENT_READ)

    def close(self) -> None:
        """Stop listening and end all connections. May be called twice."""
        self._opened.close()

    def ready(self, timeout: float, rest: Callable[[], bool] = lambda: False) -> list[tuple[K, int]]:
        """The connections for which selectors' events have come; new ones are taken on the way.

        `rest` is called as soon as there are some; where it has waited, those that came meanwhile are among them.
        """
        selected = self._selector.select(0 if self._ended else timeout)
        if selected and rest():
            selected = self._selector.select(0)
        for key, _ in selected:
            if key.data is None:
                self._accept(key.fileobj)  # type: ignore[arg-type]  # a socket
        if self._shaking:
            for connection in [key.data for key, _ in selected if key.data in self._shaking]:
                self._shake(connection)
            self._refuse_overdue()
        # One that has just agreed on TLS is among them: what it sends first may have come with the handshake's end.
        found = [
            (key.data, events)
            for key, events in selected
            if key.data in self.connections and key.data not in self._shaking
        ]
        if self._ended:
            told = {connection for connection, _ in found}
            found += [(connection, selectors.EVENT_READ) for connection in self._ended if connection not in told]
        return found

    def last(self) -> Iterator[list[tuple[K, int]]]:
        """After `stopping`: what is to be read before the end, in turns, with selectors' events as in `ready`.

        That is all that the kernel holds by now, in connections not accepted yet too, and a little more. What comes
        once the listening sockets are closed is reset by the kernel.
        """
        for _ in range(socket.SOMAXCONN // AT_ONCE + 1):
            before = self.connections.accepted
            yield self.ready(0)
            if self.connections.accepted == before:
                break
        for listener in self.endpoint.sockets:
            self._selector.unregister(listener)
        self.endpoint.close()
        self._owed = {c: unread(c.socket) for c in self.connections if not c.shaking}
        deadline = time.monotonic() + FAREWELL
        while due := self.ready(0):
            if time.monotonic() > deadline:
                due = [entry for entry in due if self._owed.get(entry[0], 0) > 0]
                if not due:
                    return
            yield due

    def read_into(self, connection: K, room: memoryview) -> int | None:
        """How many bytes have come, into `room`; None for nothing yet, and 0 at the end."""
        if connection in self._ended:
            self._ended.discard(connection)
            return 0
        size = self._receive(connection, room)
        if size and connection.opening is not None and self._speaks_tls(connection, room[:size]):
            return 0
        if size and isinstance(connection.socket, ssl.SSLSocket):
            # A call brings one record, which of many senders holds one line.
            most = min(len(room), READ_SIZE) - RECORD_SIZE
            while size <= most and (more := self._receive(connection, room[size:])) is not None:
                if not more:
                    self._ended.add(connection)  # nothing of its socket tells that again
                    break
                size += more
        if size:
            connection.heard = time.monotonic()
            self.connections.heard(connection)
            if connection in self._owed:
                self._owed[connection] -= size
        return size

    def _speaks_tls(self, connection: K, data: memoryview) -> bool:
        """Return True for a connection that opens with the hello of TLS where none is expected; log that."""
        assert connection.opening is not None
        opening = connection.opening + bytes(data[: len(_HELLO)])
        hello = self.endpoint.context is None and opening.startswith(_HELLO)
        connection.opening = opening if len(opening) < len(_HELLO) else None
        if hello:
            self._source.metrics.add("EventReadFail")
            has_tls = isinstance(self._source.config, TlsServerConfig)
            self._source.warn_rate_limited(
                "hello",
                "%s speaks TLS and is closed, as plain text is expected: %s",
                connection.peer,
                "set ssl = true for TLS" if has_tls else "this source has no TLS",
            )
        return hello

    def _receive(self, connection: K, room: memoryview) -> int | None:
        try:
            return connection.socket.recv_into(room)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return None
        except OSError as e:
            self._source.log.debug("%s: %s", connection.peer, e)
            return 0

    def read(self, connection: K) -> bytes | None:
        """What has come; None for nothing yet, and no bytes at the end."""
        size = self.read_into(connection, self._room)
        return None if size is None else bytes(self._room[:size])

    def wait_for(self, connection: K, events: int) -> None:
        """Have `ready` tell of these of selectors' events from now on."""
        self._selector.modify(connection.socket, events, connection)

    def drop(self, connection: K) -> None:
        """End a connection."""
        self._selector.unregister(connection.socket)
        if isinstance(connection.socket, ssl.SSLSocket) and not connection.shaking:
            with contextlib.suppress(OSError, ValueError):  # TLS asks for a farewell, not for waiting for one
                connection.socket.unwrap()
        connection.socket.close()
        self._shaking.pop(connection, None)
        self._owed.pop(connection, None)
        self._ended.discard(connection)
        self.connections.discard(connection)

    def _drop_all(self) -> None:
        for connection in self.connections:
            self.drop(connection)

    # --- new ones

    def _accept(self, listener: socket.socket) -> None:
        for connection in self.connections.accept(listener):
            self._selector.register(connection.socket, selectors.EVENT_READ, connection)
            if connection.shaking:
                self._shaking[connection] = None

    def _begin(self, taken: socket.socket, address: tuple[str, int]) -> K:
        context = self.endpoint.context
        if context is not None:
            taken = context.wrap_socket(taken, server_side=True, do_handshake_on_connect=False)
        connection = self._make(taken, address)
        connection.shaking = context is not None
        return connection

    def _shake(self, connection: K) -> None:
        """Go on agreeing on TLS."""
        assert isinstance(connection.socket, ssl.SSLSocket)
        try:
            awaited = handshake(connection.socket)
        except OSError as e:
            self._refuse(connection, refusal(e))
            return
        self.wait_for(connection, awaited or selectors.EVENT_READ)
        if not awaited:
            del self._shaking[connection]
            connection.shaking = False
            connection.heard = time.monotonic()

    def _refuse_overdue(self) -> None:
        limit = time.monotonic() - self._handshake_timeout
        while (oldest := next(iter(self._shaking), None)) is not None and oldest.heard < limit:
            self._refuse(oldest, f"it took longer than handshakeTimeout = {self._handshake_timeout:g} s")

    def _refuse(self, connection: K, why: str) -> None:
        self._source.metrics.add("TlsHandshakeFail")
        self._source.warn_rate_limited("tls", "%s is refused, its TLS handshake failed: %s", connection.peer, why)
        self.drop(connection)
