"""Open connections of a source: accepting, the limit on their number, and eviction of silent ones."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import struct
import termios
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from flafka.plugins import Config, Metric, Source, option
from flafka.sources.descriptors import EXHAUSTED_ERRNOS, max_descriptors

MAX_CONSECUTIVE_ACCEPTS = 256
"""Connections accepted in a row before the open connections are read again."""
CONNECTION_METRICS = (
    Metric("OpenConnectionLimit", "gauge", "connections", "Most connections that may be open at a time.", "known"),
    Metric("ConnectionRefusedCount", "counter", "connections", "Connections refused for lack of room.", "known"),
    Metric(
        *("ConnectionEvictedCount", "counter", "connections"),
        "Connections that never sent anything and were closed to make room.",
        "known",
    ),
)
"""Metrics of a source that accepts connections."""

_ACCEPT_RETRY_SECONDS = 0.05
"""Time between two attempts to accept while the kernel lacks memory, buffers or files."""


class ConnectionsConfig(Config):
    """Option of all sources that accept connections."""

    section = "Connections"
    max_connections: int = option(
        16_384,
        name="maxConnections",
        description="Maximum number of open connections; fewer if the process may not open that many files. At the "
        "limit, the longest-idle connection that never sent data is closed, or else the new one is refused. Either "
        "way the sender gets a connection reset.",
        ge=1,
    )


class Connection:
    """An accepted connection. Sources subclass it to add their state of a connection."""

    def __init__(self, accepted: socket.socket, address: tuple[str, int]) -> None:
        self.socket, self.address = accepted, address
        """The socket, which may be closed already, and the remote host and port."""
        self.peer = _format_address(address)
        """Remote address as text, for log lines."""
        self.handshake_pending = False
        """True until the TLS handshake is complete."""
        self.first_bytes: bytes | None = b""
        """First two bytes received, or fewer so far; None once they prove that the client does not speak TLS."""
        self.last_activity = time.monotonic()
        """Time of the last received data, or of the accept, in seconds of the monotonic clock."""


K = TypeVar("K", bound=Connection)


class Connections(Generic[K]):
    """The open connections of one source. One thread uses it; any thread may read its counters.

    Every waiting connection is accepted, then kept or reset. At the limit the oldest connection that never sent a
    byte, or never completed its TLS handshake, is evicted: `close_connection` has to close it.

    The limit is `max_connections`, or fewer if the process may not open that many files. A part of the files is
    reserved for the rest of the process. `max_per_address` limits the connections of one IP address; 0 sets no limit.
    """

    def __init__(
        self,
        source: Source[Any],
        max_connections: int,
        create_connection: Callable[[socket.socket, tuple[str, int]], K],
        close_connection: Callable[[K], None],
        *,
        max_per_address: int = 0,
    ) -> None:
        self._source, self._metrics, self._warn = source, source.metrics, source.warn_rate_limited
        self._max_connections, self._max_per_address = max_connections, max_per_address
        self._create_connection, self._close_connection = create_connection, close_connection
        self._open: dict[K, None] = {}
        self._silent: dict[K, None] = {}
        """Connections that have not sent anything, the oldest first."""
        self._by_address: Counter[str] = Counter()
        self._reserved_descriptor: int | None = None
        """A file kept open. Its release lets one more connection be accepted and reset when files run out."""
        self.accepted_count = 0
        """Number of connections accepted so far, including those that were reset."""
        self.limit = max_connections
        self._max_files = self._max_descriptor = 0

    def open(self) -> None:
        """Determine the limit on connections, and reserve a file descriptor. Required before any other call.

        Log a warning if the process may open fewer files than `max_connections` requires.
        """
        self._max_files = max_descriptors()
        self._max_descriptor = self._max_files - min(self._max_files // 2, max(256, self._max_files // 8))
        self.limit = min(self._max_connections, self._max_descriptor)
        if self.limit < self._max_connections:
            self._warn(
                "files",
                "at most %d connections at a time, not maxConnections = %d: this process may have %d files open; "
                "raise `ulimit -n`, or LimitNOFILE in its systemd unit",
                self.limit,
                self._max_connections,
                self._max_files,
            )
        self._reserve_descriptor()
        self._metrics.set("OpenConnectionLimit", self.limit)
        self._metrics.degradation = self._limit_reached

    def close(self) -> None:
        """Release the reserved file. The source closes the connections itself. Idempotent."""
        self._metrics.degradation = lambda: ""
        self._release_descriptor()

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[K]:
        """Iterate over a copy of the open connections, as connections may end meanwhile."""
        return iter(list(self._open))

    def __contains__(self, connection: object) -> bool:
        return connection in self._open

    # --- accepting

    def accept(
        self, listener: socket.socket, admits: Callable[[tuple[str, int], str], bool] = lambda *_: True
    ) -> Iterator[K]:
        """Yield the connections that wait on `listener`, at most `MAX_CONSECUTIVE_ACCEPTS`, without blocking.

        A connection beyond the limit is reset unless another one can be evicted. `admits` gets the address and its
        text; if it returns False, the connection is closed and evicts no other.
        """
        for accepted, address in self._accept_waiting(listener):
            peer = _format_address(address)
            if not admits(address, peer):
                accepted.close()
            elif reason := self._refusal_reason(accepted, address):
                self._metrics.add("ConnectionRefusedCount")
                self._warn("refused", "%s is refused: %s", peer, reason)
                reset_on_close(accepted)
                accepted.close()
            else:
                try:
                    accepted.setblocking(False)
                    accepted.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # detects dead silent senders
                    connection = self._create_connection(accepted, address)
                except OSError as e:  # the client has disconnected already
                    self._source.log.debug("%s: %s", peer, e)
                    accepted.close()
                    continue
                self._open[connection] = self._silent[connection] = None
                self._by_address[unmap_ipv4(address[0])] += 1
                self._metrics.set("OpenConnectionCount", len(self._open))
                yield connection

    def _accept_waiting(self, listener: socket.socket) -> Iterator[tuple[socket.socket, tuple[str, int]]]:
        """Yield the accepted sockets and their addresses, at most `MAX_CONSECUTIVE_ACCEPTS`.

        Without a free descriptor, accept by the reserved one; where the kernel lacks memory, log and sleep briefly.
        """
        self._reserve_descriptor()
        for _ in range(MAX_CONSECUTIVE_ACCEPTS):
            try:
                accepted, address = listener.accept()
            except BlockingIOError:
                # The kernel reports missing files before missing connections: the descriptor may be released.
                self._reserve_descriptor()
                return
            except OSError as e:
                if e.errno in EXHAUSTED_ERRNOS and self._release_descriptor():
                    continue
                if e.errno in (*EXHAUSTED_ERRNOS, errno.ENOBUFS, errno.ENOMEM):
                    self._warn("accept", "cannot accept connections for a while: %s", e.strerror)
                    time.sleep(_ACCEPT_RETRY_SECONDS)  # an immediate retry fails again
                    return
                continue  # the client has disconnected already
            self.accepted_count += 1
            yield accepted, address
            self._reserve_descriptor()

    def record_activity(self, connection: K) -> None:
        """Record that data was read from a connection, so that it is not evicted."""
        self._silent.pop(connection, None)

    def discard(self, connection: K) -> None:
        """Remove a closed connection. Idempotent."""
        if connection in self._open:
            del self._open[connection]
            self._silent.pop(connection, None)
            host = unmap_ipv4(connection.address[0])
            self._by_address[host] -= 1
            if not self._by_address[host]:
                del self._by_address[host]
            self._metrics.set("OpenConnectionCount", len(self._open))

    # --- limit

    def _refusal_reason(self, accepted: socket.socket, address: tuple[str, int]) -> str:
        """Return why an accepted connection must be refused; empty if it may stay.

        At the limit on all connections, a silent connection is evicted if there is one. The limit of one address
        evicts none.
        """
        host, limit = unmap_ipv4(address[0]), self._max_per_address
        if limit and self._by_address[host] >= limit:
            return f"{host} has {limit} connections already, the most that maxConnectionsPerAddress allows"
        # The kernel assigns the lowest free descriptor, or the reserved one if no other was free.
        few_files = self._reserved_descriptor is None or accepted.fileno() >= self._max_descriptor
        full = few_files or len(self._open) >= self.limit
        return self._limit_text() if full and not self._evict_for(_format_address(address)) else ""

    def _evict_for(self, peer: str) -> bool:
        """Close the oldest connection that never sent anything to make room for `peer`; return False without one."""
        while self._silent:
            oldest = next(iter(self._silent))
            del self._silent[oldest]
            if oldest.handshake_pending or not unread_bytes(oldest.socket):
                self._metrics.add("ConnectionEvictedCount")
                self._warn(
                    "evicted",
                    "%s never sent anything and is closed to make room for %s: %s",
                    oldest.peer,
                    peer,
                    self._limit_text(),
                )
                reset_on_close(oldest.socket)
                self._close_connection(oldest)
                self.discard(oldest)
                return True
        return False

    def _limit_text(self) -> str:
        """Return the number of open connections and the limits, as a sentence for the log."""
        return (
            f"{len(self._open)} connections are open, the most that maxConnections = {self._max_connections} and "
            f"this process's limit of {self._max_files} files (`ulimit -n`) allow"
        )

    def _limit_reached(self) -> str:
        """Return why a new connection requires an eviction; empty if it does not."""
        full = len(self._open) >= self.limit or _lowest_free_descriptor() >= self._max_descriptor
        return self._limit_text() if full else ""

    def _reserve_descriptor(self) -> None:
        """Open the reserved file unless it is open; no effect without a free descriptor."""
        if self._reserved_descriptor is None:
            with contextlib.suppress(OSError):
                self._reserved_descriptor = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def _release_descriptor(self) -> bool:
        """Close the reserved file; return False if it was closed already."""
        if self._reserved_descriptor is None:
            return False
        os.close(self._reserved_descriptor)
        self._reserved_descriptor = None
        return True


def unmap_ipv4(host: str) -> str:
    """Return the IPv4 address of an IPv4-mapped IPv6 address (RFC 4291, 2.5.5.2), or else the address itself."""
    return host.removeprefix("::ffff:") if "." in host else host


def _format_address(address: tuple[str, int]) -> str:
    """Return `host:port`, with an IPv6 address in brackets."""
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def reset_on_close(connection: socket.socket) -> None:
    """Make the next close of this socket a TCP reset: a FIN would let the sender believe that its data was read."""
    with contextlib.suppress(OSError):  # the client has disconnected already
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def unread_bytes(connection: socket.socket) -> int:
    """Return the number of bytes in the kernel's receive buffer; 0 for a closed socket."""
    try:
        (size,) = struct.unpack("i", fcntl.ioctl(connection.fileno(), termios.FIONREAD, bytes(4)))
        return int(size)
    except (OSError, ValueError):
        return 0


def _lowest_free_descriptor() -> float:
    """Return the descriptor that the next opened file gets; infinity if no file can be opened."""
    try:
        number = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return float("inf")
    os.close(number)
    return number
