"""Which connections a source keeps open, and what happens to the one too many: one rule for all sources."""

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
from flafka.sources.descriptors import EXHAUSTED, most_open

AT_ONCE = 256
"""Connections accepted in a row before those that are open have their turn again."""
CONNECTION_METRICS = (
    Metric("OpenConnectionLimit", "gauge", "connections", "Most connections that may be open at a time.", "known"),
    Metric("ConnectionRefusedCount", "counter", "connections", "Connections refused for lack of room.", "known"),
    Metric(
        *("ConnectionEvictedCount", "counter", "connections"),
        "Connections that never sent anything and were closed to make room.",
        "known",
    ),
)
"""Metrics of a source that takes connections."""

_PAUSE = 0.05
"""Seconds between two attempts to accept while the kernel lacks something for it."""


class ConnectionsConfig(Config):
    """The option of all that take connections."""

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
    """An accepted connection; a source adds what it keeps of one."""

    def __init__(self, taken: socket.socket, address: tuple[str, int]) -> None:
        self.socket, self.address = taken, address
        """The socket, which may be closed already, and whose it is."""
        self.peer = _text(address)
        """Who sends, for the log."""
        self.shaking = False
        """Whether it has yet to agree on TLS."""
        self.opening: bytes | None = b""
        """The first two bytes that came, as far as they have; None once they tell that it is not TLS."""
        self.heard = time.monotonic()
        """When something came last, or when it was let in."""


K = TypeVar("K", bound=Connection)


class Connections(Generic[K]):
    """The open connections of one source. One thread uses it, but for its counters, which any may read.

    No connection waits in the kernel: each is accepted, and kept or reset. At the limit the longest-idle one that
    never sent a byte, or never agreed on TLS, makes room by `end`, which has to close it.

    The limit is the source's `most`, and one of all connections of the process, which leaves some files to the rest
    of it. From one address there may be `most_per_address`; 0 is no such limit.
    """

    def __init__(
        self,
        source: Source[Any],
        most: int,
        begin: Callable[[socket.socket, tuple[str, int]], K],
        end: Callable[[K], None],
        *,
        most_per_address: int = 0,
    ) -> None:
        self._source, self._metrics, self._complain = source, source.metrics, source.warn_rate_limited
        self._most, self._most_per_address, self._begin, self._end = most, most_per_address, begin, end
        self._open: dict[K, None] = {}
        self._silent: dict[K, None] = {}
        """Those that have not sent anything, the oldest first."""
        self._by_address: Counter[str] = Counter()
        self._reserve: int | None = None
        """A file kept open, so that a connection can be accepted, and reset, when there are no more."""
        self.accepted = 0
        """How many the kernel has handed over so far, those included that were reset."""
        self.limit = most
        self._files = self._ceiling = 0

    def open(self) -> None:
        """Find out how many there may be. Before any other call."""
        self._files = most_open()
        self._ceiling = self._files - min(self._files // 2, max(256, self._files // 8))
        self.limit = min(self._most, self._ceiling)
        if self.limit < self._most:
            self._complain(
                "files",
                "at most %d connections at a time, not maxConnections = %d: this process may have %d files open; "
                "raise `ulimit -n`, or LimitNOFILE in its systemd unit",
                self.limit,
                self._most,
                self._files,
            )
        self._keep_reserve()
        self._metrics.set("OpenConnectionLimit", self.limit)
        self._metrics.degraded = self._full

    def close(self) -> None:
        """Let go of what is held beside the connections, which the source ends itself. May be called twice."""
        self._metrics.degraded = lambda: ""
        self._release_reserve()

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[K]:
        """A copy: connections may end meanwhile."""
        return iter(list(self._open))

    def __contains__(self, connection: object) -> bool:
        return connection in self._open

    # --- taking them

    def accept(
        self, listener: socket.socket, admits: Callable[[tuple[str, int], str], bool] = lambda *_: True
    ) -> Iterator[K]:
        """Connections that wait on that listener, without waiting, and at most so many; those without room are reset.

        One that `admits` (by its address, and that as text) does not let in is closed, and costs no other its place.
        """
        for taken, address in self._from_kernel(listener):
            peer = _text(address)
            if not admits(address, peer):
                taken.close()
            elif why := self._why_not(taken, address):
                self._metrics.add("ConnectionRefusedCount")
                self._complain("refused", "%s is refused: %s", peer, why)
                reset_at_close(taken)
                taken.close()
            else:
                try:
                    taken.setblocking(False)
                    taken.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # finds silent senders that have died
                    connection = self._begin(taken, address)
                except OSError as e:  # it has gone already
                    self._source.log.debug("%s: %s", peer, e)
                    taken.close()
                    continue
                self._open[connection] = self._silent[connection] = None
                self._by_address[plain(address[0])] += 1
                self._metrics.set("OpenConnectionCount", len(self._open))
                yield connection

    def _from_kernel(self, listener: socket.socket) -> Iterator[tuple[socket.socket, tuple[str, int]]]:
        self._keep_reserve()
        for _ in range(AT_ONCE):
            try:
                taken, address = listener.accept()
            except BlockingIOError:
                self._keep_reserve()  # where there are no files, the kernel says so before it looks for connections
                return
            except OSError as e:
                if e.errno in EXHAUSTED and self._release_reserve():
                    continue
                if e.errno in (*EXHAUSTED, errno.ENOBUFS, errno.ENOMEM):
                    self._complain("accept", "cannot accept connections for a while: %s", e.strerror)
                    time.sleep(_PAUSE)  # the next try would fail at once
                    return
                continue  # this one has gone already
            self.accepted += 1
            yield taken, address
            self._keep_reserve()

    def heard(self, connection: K) -> None:
        """Something was read from this one."""
        self._silent.pop(connection, None)

    def discard(self, connection: K) -> None:
        """This one has ended; it may have been discarded already."""
        if connection in self._open:
            del self._open[connection]
            self._silent.pop(connection, None)
            host = plain(connection.address[0])
            self._by_address[host] -= 1
            if not self._by_address[host]:
                del self._by_address[host]
            self._metrics.set("OpenConnectionCount", len(self._open))

    # --- the limit

    def _why_not(self, taken: socket.socket, address: tuple[str, int]) -> str:
        """Why there is no room for it, once one that never sent anything was looked for; empty where there is."""
        host, most = plain(address[0]), self._most_per_address
        if most and self._by_address[host] >= most:
            return f"{host} has {most} connections already, the most that maxConnectionsPerAddress allows"
        # The kernel gives the lowest number that is free, or that of the reserve where none was.
        few_files = self._reserve is None or taken.fileno() >= self._ceiling
        full = few_files or len(self._open) >= self.limit
        return self._too_many() if full and not self._make_room(_text(address)) else ""

    def _make_room(self, peer: str) -> bool:
        while self._silent:
            oldest = next(iter(self._silent))
            del self._silent[oldest]
            if oldest.shaking or not unread(oldest.socket):
                self._metrics.add("ConnectionEvictedCount")
                self._complain(
                    "evicted",
                    "%s never sent anything and is closed to make room for %s: %s",
                    oldest.peer,
                    peer,
                    self._too_many(),
                )
                reset_at_close(oldest.socket)
                self._end(oldest)
                self.discard(oldest)
                return True
        return False

    def _too_many(self) -> str:
        return (
            f"{len(self._open)} connections are open, the most that maxConnections = {self._most} and this process's "
            f"limit of {self._files} files (`ulimit -n`) allow"
        )

    def _full(self) -> str:
        """Why a new connection would not simply be taken; empty where it would."""
        return self._too_many() if len(self._open) >= self.limit or _lowest_free() >= self._ceiling else ""

    def _keep_reserve(self) -> None:
        if self._reserve is None:
            with contextlib.suppress(OSError):
                self._reserve = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def _release_reserve(self) -> bool:
        if self._reserve is None:
            return False
        os.close(self._reserve)
        self._reserve = None
        return True


def plain(host: str) -> str:
    """The address, of IPv4 also where an IPv6 socket received it."""
    return host.removeprefix("::ffff:") if "." in host else host


def _text(address: tuple[str, int]) -> str:
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def reset_at_close(taken: socket.socket) -> None:
    """Have the sender told that what it sent is not taken: an orderly end would look as if it were."""
    with contextlib.suppress(OSError):  # it has gone already
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def unread(taken: socket.socket) -> int:
    """Bytes that have come and are not read."""
    try:
        (size,) = struct.unpack("i", fcntl.ioctl(taken.fileno(), termios.FIONREAD, bytes(4)))
        return int(size)
    except (OSError, ValueError):
        return 0  # it is closed


def _lowest_free() -> float:
    """The number that the next file would have."""
    try:
        number = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return float("inf")
    os.close(number)
    return number
