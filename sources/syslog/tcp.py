"""Syslog over TCP: RFC 3164 and RFC 5424, in lines or octet-counted (RFC 6587)."""

from __future__ import annotations

import errno
import selectors
import socket
import time
from collections.abc import Iterator

import numpy as np

from plugins import Batch, option
from sources.syslog.base import FAREWELL, READ_SIZE, SyslogConfig, SyslogSource
from sources.syslog.framing import COUNTED_MAX, Framer
from sources.syslog.parser import CUT


class SyslogTcpConfig(SyslogConfig):
    """Options of syslogtcp."""

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
    frame_timeout: float = option(
        300.0,
        name="frameTimeout",
        description="A connection that leaves a message unfinished for so long is closed, and what came of it is "
        "marked Incomplete.",
        unit="s",
        gt=0,
    )


class _Connection:
    """One sender."""

    __slots__ = ("framer", "held", "peer", "since", "socket")

    def __init__(self, sender: socket.socket, peer: str, framer: Framer) -> None:
        self.socket, self.peer, self.framer = sender, peer, framer
        self.held = b""
        """The beginning of a frame that has not come to its end."""
        self.since = 0.0
        """When that began."""


class SyslogTcp(SyslogSource[SyslogTcpConfig]):
    """Receives syslog over TCP: what it has read is never dropped, and while channels are full it does not read.

    Plain syslog has no acknowledgement: what is on its way when the sender, the network or the agent dies is lost.
    """

    type_name = "syslogtcp"
    aliases = ("org.apache.flume.source.SyslogTcpSource",)
    kind = socket.SOCK_STREAM

    def __init__(self, config: SyslogTcpConfig, name: str = "") -> None:
        self._event_size = max(config.event_size, 10)
        super().__init__(config, name, reserve=max(self._event_size, COUNTED_MAX))
        self._selector: selectors.BaseSelector | None = None
        self._connections: set[_Connection] = set()
        self._accepting = False
        self._accept_after = 0.0
        self._inspected = 0.0

    def open(self) -> None:
        """Listen. Retry says why that is not possible."""
        super().open()
        self._selector = selectors.DefaultSelector()

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
            self._accept(
                len(self._connections) < self.config.max_connections and time.monotonic() > self._accept_after
            )
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

    def _accept(self, wanted: bool) -> None:
        """Whether to accept connections; those not accepted wait in the kernel."""
        assert self._selector is not None
        if wanted != self._accepting and self._socket is not None:
            self._accepting = wanted
            if wanted:
                self._selector.register(self._socket, selectors.EVENT_READ)
            else:
                self._selector.unregister(self._socket)

    def _ready(self, timeout: float) -> list[_Connection]:
        """The connections that have something to read; new ones are welcomed on the way."""
        assert self._selector is not None
        ready = [key.data for key, _ in self._selector.select(timeout)]
        if None in ready:
            ready.remove(None)
            self._welcome()
        return ready

    def _welcome(self) -> None:
        assert self._socket is not None
        assert self._selector is not None
        while len(self._connections) < self.config.max_connections:
            try:
                sender, address = self._socket.accept()
            except BlockingIOError:
                break
            except OSError as e:
                if e.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    self._complain("accept", "cannot accept connections for a while: %s", e.strerror)
                    self._accept_after = time.monotonic() + 1
                break
            sender.setblocking(False)
            sender.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # finds out that a silent sender has died
            connection = _Connection(sender, _text(address), Framer(self._event_size))
            self._connections.add(connection)
            self._selector.register(sender, selectors.EVENT_READ, connection)
        else:
            self._complain("full", "%d connections, as many as maxConnections: new ones wait", len(self._connections))
        self.metrics.set("OpenConnectionCount", len(self._connections))

    def _read(self, connection: _Connection) -> Iterator[Batch]:
        """Read once from a connection that has something to read, and cut what came into frames."""
        held = len(connection.held)
        if len(self._intake.room) < held + READ_SIZE:
            yield from self._flush()
        room = self._intake.room
        room[:held] = connection.held
        try:
            size = connection.socket.recv_into(room[held:])
        except BlockingIOError:
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
            self._complain(
                "cut",
                "%s sends messages that are too long, they are cut: lines at eventSize = %d bytes, others at %d",
                connection.peer,
                self._event_size,
                max(self._event_size, COUNTED_MAX),
            )
        done = self._intake.add(ends, marks)
        connection.held = bytes(arrived[done:])
        if done or not held:
            connection.since = time.monotonic()
        if connection.framer.fault:
            self.metrics.add("EventReadFail")
            self._complain("framing", "%s is not in step, closed: %s", connection.peer, connection.framer.fault)
            self._drop(connection)

    def _overdue(self) -> list[_Connection]:
        """Connections that have left a message unfinished for too long."""
        now = time.monotonic()
        if now < self._inspected + 1:
            return []
        self._inspected = now
        limit = self.config.frame_timeout
        overdue = [c for c in self._connections if c.held and now > c.since + limit]
        for connection in overdue:
            self._complain("unfinished", "%s left a message unfinished for %g s, closed", connection.peer, limit)
        return overdue

    def _end(self, connection: _Connection) -> Iterator[Batch]:
        """End a connection; what it left unfinished is a frame."""
        if size := len(connection.held):
            if len(self._intake.room) < size:
                yield from self._flush()
            self._intake.room[:size] = connection.held
            self._intake.add(np.array([size]), np.array([connection.framer.end()], np.uint8))
        self._drop(connection)

    def _drop(self, connection: _Connection) -> None:
        assert self._selector is not None
        self._selector.unregister(connection.socket)
        connection.socket.close()
        self._connections.discard(connection)
        self.metrics.set("OpenConnectionCount", len(self._connections))


def _text(address: tuple[str, int]) -> str:
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
