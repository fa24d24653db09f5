"""A socket that listens, or why it cannot; and what sources share that take connections and read lines from them."""

from __future__ import annotations

import errno
import os
import selectors
import socket
import ssl
from abc import abstractmethod
from collections.abc import Iterator
from typing import Generic, TypeVar

from plugins import Retry, Source, option
from sources.connections import Connections, ConnectionsConfig

READ_SIZE = 256 * 1024
"""Bytes of one read."""


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


class TcpConfig(ConnectionsConfig):
    """Options of those that listen on one TCP port."""

    bind: str = option(name="bind", description="Address or name to listen on; 0.0.0.0 or :: for all addresses.")
    port: int = option(name="port", description="Port to listen on; 0 takes a free one.", ge=0, le=65535)


class Connection:
    """One sender."""

    def __init__(self, taken: socket.socket, peer: str) -> None:
        self.socket, self.peer = taken, peer
        self.shaking = isinstance(taken, ssl.SSLSocket)
        """Whether it has yet to agree on TLS."""
        self.held = b""
        """The beginning of a line."""


C = TypeVar("C", bound=TcpConfig)
K = TypeVar("K", bound=Connection)


class TcpSource(Source[C], Generic[C, K]):
    """A listening socket and the connections taken from it, all on one thread."""

    def __init__(self, config: C, name: str = "") -> None:
        super().__init__(config, name)
        self._listener: socket.socket | None = None
        self._selector: selectors.BaseSelector | None = None
        self._connections: Connections[K] = Connections(
            config.max_connections, self.metrics, self.complain, self._close
        )

    @abstractmethod
    def _connection(self, taken: socket.socket, peer: str) -> K:
        """A new connection. It may raise OSError."""

    @property
    def port(self) -> int:
        """The port it listens on: the one configured, or the one it was given for 0."""
        return int(self._listener.getsockname()[1]) if self._listener is not None else self.config.port

    def open(self) -> None:
        """Listen. Retry says why that is not possible."""
        self._connections.open()
        self._listener = self._listen()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self.log.info("listening on %s port %d", self.config.bind, self.port)

    def close(self) -> None:
        """Stop listening and end all connections."""
        for connection in self._connections:
            self._drop(connection)
        self._stop_listening()
        if self._selector is not None:
            self._selector.close()
            self._selector = None
        self._connections.close()

    def _stop_listening(self) -> None:
        if self._listener is not None:
            if self._selector is not None:
                self._selector.unregister(self._listener)
            self._listener.close()
            self._listener = None

    def probe(self) -> Iterator[str]:
        """Whether the address and the port can be had."""
        try:
            self._listen().close()
        except Retry as e:
            yield str(e)

    def _listen(self) -> socket.socket:
        return listen(self.config.bind, self.config.port, socket.SOCK_STREAM)

    def _last(self) -> Iterator[list[tuple[K, int]]]:
        """After `stopping`: what had arrived by then, in turns, those included that are not accepted yet."""
        return self._connections.last(self._ready, self._stop_listening)

    def _ready(self, timeout: float) -> list[tuple[K, int]]:
        """The connections for which selectors' events have come; new ones are taken on the way."""
        assert self._selector is not None
        selected = self._selector.select(timeout)
        if any(key.data is None for key, _ in selected):
            self._accept()
        return [(key.data, events) for key, events in selected if key.data in self._connections]

    def _await(self, connection: K, events: int) -> None:
        """Wait for these of selectors' events from now on."""
        assert self._selector is not None
        self._selector.modify(connection.socket, events, connection)

    def _receive(self, connection: K) -> bytes | None:
        """What has come; None for nothing yet, and no bytes at the end."""
        try:
            data = connection.socket.recv(READ_SIZE)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return None
        except OSError as e:
            self.log.debug("%s: %s", connection.peer, e)
            return b""
        self._connections.heard(connection, len(data))
        return data

    def _accept(self) -> None:
        assert self._selector is not None
        assert self._listener is not None
        for taken, address in self._connections.accept(self._listener):
            peer = f"{address[0]}:{address[1]}"
            if not self._connections.admit(taken, peer):
                continue
            try:
                taken.setblocking(False)
                taken.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # finds out that a silent sender has died
                connection = self._connection(taken, peer)
            except OSError as e:  # it has gone already
                self.log.debug("%s: %s", peer, e)
                taken.close()
                continue
            self._connections.add(connection)
            self._selector.register(connection.socket, selectors.EVENT_READ, connection)

    def _drop(self, connection: K) -> None:
        """End a connection."""
        self._close(connection)

    def _close(self, connection: K) -> None:
        assert self._selector is not None
        self._selector.unregister(connection.socket)
        connection.socket.close()
        self._connections.discard(connection)
