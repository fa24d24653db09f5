"""Connections that send syslog: taken, agreed on TLS, read, timed out."""

from __future__ import annotations

import contextlib
import selectors
import socket
import ssl
import time
from collections import Counter
from collections.abc import Iterator
from typing import TypeVar

import numpy as np

from plugins import Batch, Retry, option
from plugins.tls import TlsServerConfig, handshake, refusal
from sources.connections import Connections, ConnectionsConfig
from sources.syslog.base import READ_SIZE, SyslogConfig, SyslogSource
from sources.syslog.framing import COUNTED_MAX, Framer
from sources.syslog.names import Sender, plain
from sources.syslog.parser import CUT


class SyslogStreamConfig(SyslogConfig, TlsServerConfig, ConnectionsConfig):
    """Options of those that take connections, over TLS (RFC 5425) where that is wished."""

    handshake_timeout: float = option(
        10.0,
        name="handshakeTimeout",
        description="A connection that has not agreed on TLS after so long is closed.",
        unit="s",
        gt=0,
    )

    event_size: int = option(
        2500,
        name="eventSize",
        description="A line that reaches this size is cut there and marked Incomplete, what follows Invalid. "
        "Octet-counted frames may have 64 KiB, or this if it is more. Less than 10 counts as 10.",
        unit="bytes",
        ge=0,
        le=9_999_999,
    )
    max_connections_per_address: int = option(
        0,
        name="maxConnectionsPerAddress",
        description="Connections at a time from one address; further ones are refused. 0: no such limit.",
        ge=0,
    )
    frame_timeout: float = option(
        300.0,
        name="frameTimeout",
        description="A connection that leaves a message unfinished for so long is closed, and what came of it is "
        "marked Incomplete.",
        unit="s",
        gt=0,
    )
    idle_timeout: float = option(
        0.0,
        name="idleTimeout",
        description="A connection that sends nothing for so long is closed; 0: never. Senders that open one for good "
        "may lose the message with which they find out.",
        unit="s",
        ge=0,
    )


C = TypeVar("C", bound=SyslogStreamConfig)


class _Connection:
    """One sender."""

    __slots__ = ("framer", "heard", "held", "peer", "sender", "shaking", "since", "socket")

    def __init__(self, taken: socket.socket, peer: str, sender: Sender, framer: Framer) -> None:
        self.socket, self.peer, self.sender, self.framer = taken, peer, sender, framer
        self.shaking = isinstance(taken, ssl.SSLSocket)
        """Whether it has yet to agree on TLS."""
        self.held = b""
        """The beginning of a frame that has not come to its end."""
        self.since = self.heard = time.monotonic()
        """When that began, and when something came last."""


class SyslogStream(SyslogSource[C]):
    """Listening sockets and the connections taken from them, all on one thread."""

    kind = socket.SOCK_STREAM

    def __init__(self, config: C, name: str = "") -> None:
        self._event_size = max(config.event_size, 10)
        super().__init__(config, name, reserve=max(self._event_size, COUNTED_MAX))
        self._tls: ssl.SSLContext | None = None
        self._selector: selectors.BaseSelector | None = None
        self._connections: Connections[_Connection] = Connections(
            config.max_connections, self.metrics, self.complain, self._drop
        )
        self._by_address: Counter[str] = Counter()
        self._inspected = 0.0

    def open(self) -> None:
        """Load the certificate, and listen. Retry says why that is not possible."""
        self._tls = self.config.context()
        self._connections.open()
        super().open()
        self._selector = selectors.DefaultSelector()
        for listener in self._sockets:
            self._selector.register(listener, selectors.EVENT_READ)

    def probe(self) -> Iterator[str]:
        """Whether the certificate can be used, and the address and the ports be had."""
        try:
            self.config.context()
        except Retry as e:
            yield str(e)
        yield from super().probe()

    def close(self) -> None:
        """Stop listening and end all connections."""
        for connection in self._connections:
            self._drop(connection)
        if self._selector is not None:
            self._selector.close()
            self._selector = None
        self._connections.close()
        super().close()

    def batches(self) -> Iterator[Batch]:
        """What the senders send; after `stopping`, also what had arrived by then."""
        while not self.stopping.is_set():
            for connection, _ in self._ready(self._patience()):
                yield from self._read(connection)
            for connection in self._overdue():
                yield from self._end(connection)
            if not self._patience():
                yield from self._flush()
        for ready in self._connections.last(self._ready, self._stop_listening):
            for connection, _ in ready:
                yield from self._read(connection)
        for connection in self._connections:
            yield from self._end(connection)
        yield from self._flush()

    # --- connections

    def _stop_listening(self) -> None:
        assert self._selector is not None
        for listener in self._sockets:
            self._selector.unregister(listener)
        super().close()

    def _ready(self, timeout: float) -> list[tuple[_Connection, int]]:
        """The connections that have something to read; new ones are taken on the way."""
        assert self._selector is not None
        selected = self._selector.select(timeout)
        if any(key.data is None for key, _ in selected):
            for listener in self._sockets:
                port = int(listener.getsockname()[1])
                for taken, address in self._connections.accept(listener):
                    self._take(taken, address, port)
        return [(key.data, events) for key, events in selected if key.data in self._connections]

    def _take(self, taken: socket.socket, address: tuple[str, int], port: int) -> None:
        assert self._selector is not None
        sender, limit = Sender(plain(address[0]), port), self.config.max_connections_per_address
        if limit and self._by_address[sender.address] >= limit:
            why = f"{sender.address} has {limit} connections already, as many as maxConnectionsPerAddress"
            self._connections.refuse(taken, _text(address), why)
            return
        if not self._connections.admit(taken, _text(address)):
            return
        try:
            taken.setblocking(False)
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # finds out that a silent sender has died
            if self._tls is not None:
                taken = self._tls.wrap_socket(taken, server_side=True, do_handshake_on_connect=False)
        except OSError as e:  # it has gone already
            self.log.debug("%s: %s", sender.address, e)
            taken.close()
            return
        connection = _Connection(taken, _text(address), sender, Framer(self._event_size))
        self._connections.add(connection)
        self._by_address[sender.address] += 1
        self._selector.register(taken, selectors.EVENT_READ, connection)

    def _shake(self, connection: _Connection) -> None:
        """Go on agreeing on TLS."""
        assert self._selector is not None
        assert isinstance(connection.socket, ssl.SSLSocket)
        try:
            awaited = handshake(connection.socket)
        except OSError as e:
            self._refuse(connection, refusal(e))
            return
        if not awaited:
            connection.shaking = False
            connection.since = connection.heard = time.monotonic()
        self._selector.modify(connection.socket, awaited or selectors.EVENT_READ, connection)

    def _refuse(self, connection: _Connection, why: str) -> None:
        self.metrics.add("TlsHandshakeFail")
        self.complain("tls", "%s is not let in, no TLS: %s", connection.peer, why)
        self._drop(connection)

    def _read(self, connection: _Connection) -> Iterator[Batch]:
        """Read once from a connection that has something to read, and cut what came into frames."""
        if connection.shaking:
            self._shake(connection)
            return
        held = len(connection.held)
        if len(self._intake.room) < held + READ_SIZE:
            yield from self._flush()
        room = self._intake.room
        room[:held] = connection.held
        try:
            size = connection.socket.recv_into(room[held:])
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return
        except OSError as e:
            self.log.debug("%s: %s", connection.peer, e)
            size = 0
        if not size:
            yield from self._end(connection)
            return
        self._connections.heard(connection, size)
        arrived = room[: held + size]
        ends, marks = connection.framer.cut(arrived)
        if (marks & CUT).any():
            self.complain(
                "cut",
                "%s sends messages that are too long, they are cut: lines at eventSize = %d bytes, others at %d",
                connection.peer,
                self._event_size,
                max(self._event_size, COUNTED_MAX),
            )
        senders = [connection.sender] * len(ends) if self._tells_senders else None
        done = self._intake.add(ends, marks, senders)
        connection.held = bytes(arrived[done:])
        connection.heard = time.monotonic()
        if done or not held:
            connection.since = connection.heard
        if connection.framer.fault:
            self.metrics.add("EventReadFail")
            self.complain("framing", "%s is not in step, closed: %s", connection.peer, connection.framer.fault)
            self._drop(connection)

    def _overdue(self) -> list[_Connection]:
        """Connections that have left a message unfinished, or have been silent, for too long."""
        now = time.monotonic()
        if now < self._inspected + 1:
            return []
        self._inspected = now
        config, overdue = self.config, []
        for connection in self._connections:
            if connection.shaking:
                if now > connection.since + config.handshake_timeout:
                    self._refuse(connection, f"not agreed on within {config.handshake_timeout:g} s")
            elif connection.held and now > connection.since + config.frame_timeout:
                overdue.append(connection)
                self.complain(
                    "unfinished",
                    "%s left a message unfinished for %g s, closed",
                    connection.peer,
                    config.frame_timeout,
                )
            elif config.idle_timeout and now > connection.heard + config.idle_timeout:
                overdue.append(connection)
                self.log.info("%s sent nothing for %g s, closed", connection.peer, config.idle_timeout)
        return overdue

    def _end(self, connection: _Connection) -> Iterator[Batch]:
        """End a connection; what it left unfinished is a frame."""
        if size := len(connection.held):
            if len(self._intake.room) < size:
                yield from self._flush()
            self._intake.room[:size] = connection.held
            senders = [connection.sender] if self._tells_senders else None
            self._intake.add(np.array([size]), np.array([connection.framer.end()], np.uint8), senders)
        self._drop(connection)

    def _drop(self, connection: _Connection) -> None:
        assert self._selector is not None
        self._selector.unregister(connection.socket)
        if isinstance(connection.socket, ssl.SSLSocket) and not connection.shaking:
            with contextlib.suppress(OSError, ValueError):  # RFC 5425 asks for a farewell, not for waiting for one
                connection.socket.unwrap()
        connection.socket.close()
        self._connections.discard(connection)
        self._by_address[connection.sender.address] -= 1
        if not self._by_address[connection.sender.address]:
            del self._by_address[connection.sender.address]


def _text(address: tuple[str, int]) -> str:
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
