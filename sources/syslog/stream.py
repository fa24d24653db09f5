"""Connections that send syslog: taken, agreed on TLS, read, timed out."""

from __future__ import annotations

import contextlib
import errno
import resource
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
from sources.syslog.base import FAREWELL, READ_SIZE, SyslogConfig, SyslogSource
from sources.syslog.framing import COUNTED_MAX, Framer
from sources.syslog.names import Sender, plain
from sources.syslog.parser import CUT


class SyslogStreamConfig(SyslogConfig, TlsServerConfig):
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
    max_connections: int = option(
        1000,
        name="maxConnections",
        description="Connections at a time; further ones wait until one of these ends.",
        ge=1,
    )
    max_connections_per_address: int = option(
        0,
        name="maxConnectionsPerAddress",
        description="Connections at a time from one address; further ones are closed. 0: no such limit.",
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

_OTHER_FILES = 128
"""Open files that the rest of the agent needs beside the connections."""
_AT_ONCE = 256
"""Connections taken in a row before those that are open have their turn again."""


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
        self._connections: set[_Connection] = set()
        self._by_address: Counter[str] = Counter()
        self._accepting = False
        self._accept_after = 0.0
        self._inspected = 0.0
        self._most = config.max_connections

    def open(self) -> None:
        """Load the certificate, and listen. Retry says why that is not possible."""
        self._tls = self.config.context()
        self._most = self._connections_at_most()
        super().open()
        self._selector = selectors.DefaultSelector()

    def probe(self) -> Iterator[str]:
        """Whether the certificate can be used, and the address and the ports be had."""
        try:
            self.config.context()
        except Retry as e:
            yield str(e)
        yield from super().probe()

    def close(self) -> None:
        """Stop listening and end all connections."""
        for connection in list(self._connections):
            self._drop(connection)
        if self._selector is not None:
            self._accept(False)
            self._selector.close()
            self._selector = None
        super().close()

    def batches(self) -> Iterator[Batch]:
        """What the senders send; after `stopping`, also what had arrived by then."""
        while not self.stopping.is_set():
            self._accept(len(self._connections) < self._most and time.monotonic() > self._accept_after)
            for connection in self._ready(self._patience()):
                yield from self._read(connection)
            for connection in self._overdue():
                yield from self._end(connection)
            if not self._patience():
                yield from self._flush()
        self._accept(False)
        self._welcome()
        super().close()
        deadline = time.monotonic() + FAREWELL
        while time.monotonic() < deadline and (ready := self._ready(0)):
            for connection in ready:
                yield from self._read(connection)
        for connection in list(self._connections):
            yield from self._end(connection)
        yield from self._flush()

    # --- connections

    def _connections_at_most(self) -> int:
        """`maxConnections`, or less where this process may not have so many open files; it asks for what it may."""
        most = self.config.max_connections
        limit, allowed = resource.getrlimit(resource.RLIMIT_NOFILE)
        if limit == resource.RLIM_INFINITY or limit >= most + _OTHER_FILES:
            return most
        limit = most + _OTHER_FILES if allowed == resource.RLIM_INFINITY else min(most + _OTHER_FILES, allowed)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, allowed))
        if (fitting := min(most, max(limit - _OTHER_FILES, limit // 2))) < most:
            self.log.warning(
                "%d connections at a time, not maxConnections = %d: this process may have %d files open; raise "
                "`ulimit -n`, or LimitNOFILE of its systemd unit",
                fitting,
                most,
                limit,
            )
        return fitting

    def _accept(self, wanted: bool) -> None:
        """Whether to accept connections; those not accepted wait in the kernel."""
        assert self._selector is not None
        if wanted != self._accepting:
            self._accepting = wanted
            for listener in self._sockets:
                if wanted:
                    self._selector.register(listener, selectors.EVENT_READ)
                else:
                    self._selector.unregister(listener)

    def _ready(self, timeout: float) -> list[_Connection]:
        """The connections that have something to read; new ones are welcomed on the way."""
        assert self._selector is not None
        ready = [key.data for key, _ in self._selector.select(timeout)]
        if None in ready:
            ready = [connection for connection in ready if connection is not None]
            self._welcome()
        return ready

    def _welcome(self) -> None:
        for listener in self._sockets:
            port = int(listener.getsockname()[1])
            for _ in range(_AT_ONCE):
                if len(self._connections) >= self._most:
                    self.complain(
                        "full",
                        "%d connections, as many as maxConnections and `ulimit -n` allow: new ones wait",
                        self._most,
                    )
                    break
                try:
                    taken, address = listener.accept()
                except BlockingIOError:
                    break
                except OSError as e:
                    if e.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                        self.complain("accept", "cannot accept connections for a while: %s", e.strerror)
                        self._accept_after = time.monotonic() + 1
                    break
                self._take(taken, address, port)
        self.metrics.set("OpenConnectionCount", len(self._connections))

    def _take(self, taken: socket.socket, address: tuple[str, int], port: int) -> None:
        assert self._selector is not None
        sender, limit = Sender(plain(address[0]), port), self.config.max_connections_per_address
        if limit and self._by_address[sender.address] >= limit:
            taken.close()
            self.metrics.add("ConnectionRefusedCount")
            self.complain(
                "refused", "%s has %d connections already, as many as maxConnectionsPerAddress", sender.address, limit
            )
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
        for connection in list(self._connections):
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
        self.metrics.set("OpenConnectionCount", len(self._connections))


def _text(address: tuple[str, int]) -> str:
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
