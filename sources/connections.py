"""Which connections a source keeps open, and what happens to the one too many: one rule for all sources."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import resource
import socket
import struct
import sys
import termios
import time
from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar

from plugins import Config, Metrics, option

AT_ONCE = 256
"""Connections accepted in a row before those that are open have their turn again."""
FAREWELL = 1.0
"""Seconds that a stopping source goes on reading what is sent only now."""
LIMIT = "OpenConnectionLimit"
REFUSED = "ConnectionRefusedCount"
EVICTED = "ConnectionEvictedCount"

_EXHAUSTED = (errno.EMFILE, errno.ENFILE)
_PAUSE = 0.05
"""Seconds between two attempts to accept while the kernel lacks something for it."""


class ConnectionsConfig(Config):
    """The option of all that take connections."""

    max_connections: int = option(
        16_384,
        name="maxConnections",
        description="Connections at a time, or as many as the process may open files for. At the limit, the "
        "longest-idle connection that never sent data is closed, else the new one is refused; either is reset, so "
        "that its sender gets an error.",
        ge=1,
    )


class Connected(Protocol):
    """A connection, whatever a source makes of it."""

    @property
    def socket(self) -> socket.socket:
        """Its socket, which may be closed already."""

    @property
    def peer(self) -> str:
        """Who sends, for the log."""

    @property
    def shaking(self) -> bool:
        """Whether it has yet to agree on TLS."""


K = TypeVar("K", bound=Connected)


class Connections(Generic[K]):
    """The open connections of one source. One thread uses it, but for `metrics`, which any may read.

    No connection waits in the kernel: each is accepted, and kept or reset. At the limit the longest-idle one that
    never sent a byte, or never agreed on TLS, makes room by `end`, which has to close it.

    The limit is that of the source, and one of all together: they leave some files to the rest of the process.
    """

    def __init__(self, most: int, metrics: Metrics, complain: Callable[..., None], end: Callable[[K], None]) -> None:
        self._most, self._metrics, self._complain, self._end = most, metrics, complain, end
        self._open: dict[K, None] = {}
        self._silent: dict[K, None] = {}
        """Those that have not sent anything, the oldest first."""
        self._owed: dict[K, int] = {}
        """Bytes that the kernel held for each when the source was told to stop."""
        self._reserve: int | None = None
        """A file kept open, so that a connection can be accepted, and reset, when there are no more."""
        self._accepted = 0
        self.limit = most
        self._files = self._ceiling = 0

    def open(self) -> None:
        """Find out how many there may be. Before any other call."""
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._files = sys.maxsize if limit == resource.RLIM_INFINITY else limit
        self._ceiling = self._files - min(self._files // 2, max(256, self._files // 8))
        self.limit = min(self._most, self._ceiling)
        if self.limit < self._most:
            self._complain(
                "files",
                "%d connections at a time, not maxConnections = %d: this process may have %d files open; raise "
                "`ulimit -n`, or LimitNOFILE of its systemd unit",
                self.limit,
                self._most,
                self._files,
            )
        self._keep_reserve()
        self._metrics.set(LIMIT, self.limit)
        self._metrics.degraded = self._full

    def close(self) -> None:
        """Let go of what is held beside the connections, which the source ends itself. May be called twice."""
        self._metrics.degraded = lambda: ""
        self._release_reserve()
        self._owed.clear()

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[K]:
        """A copy: connections may end meanwhile."""
        return iter(list(self._open))

    def __contains__(self, connection: object) -> bool:
        return connection in self._open

    # --- taking them

    def accept(self, listener: socket.socket) -> Iterator[tuple[socket.socket, tuple[str, int]]]:
        """What the kernel has accepted on that listener, without waiting, and at most so many; yet to be admitted."""
        self._keep_reserve()
        for _ in range(AT_ONCE):
            try:
                taken, address = listener.accept()
            except BlockingIOError:
                self._keep_reserve()  # where there are no files, the kernel says so before it looks for connections
                return
            except OSError as e:
                if e.errno in _EXHAUSTED and self._release_reserve():
                    continue
                if e.errno in (*_EXHAUSTED, errno.ENOBUFS, errno.ENOMEM):
                    self._complain("accept", "cannot accept connections for a while: %s", e.strerror)
                    time.sleep(_PAUSE)  # the next try would fail at once
                    return
                continue  # this one has gone already
            self._accepted += 1
            yield taken, address
            self._keep_reserve()

    def admit(self, taken: socket.socket, peer: str) -> bool:
        """Whether there is room for it; else it is reset. The caller adds or closes it before it admits another."""
        # The kernel gives the lowest number that is free, or that of the reserve where none was.
        few_files = self._reserve is None or taken.fileno() >= self._ceiling
        if (few_files or len(self._open) >= self.limit) and not self._make_room(peer):
            self.refuse(taken, peer, self._too_many())
            return False
        return True

    def refuse(self, taken: socket.socket, peer: str, why: str) -> None:
        """Reset a connection that was accepted and not added, and count it."""
        self._metrics.add(REFUSED)
        self._complain("refused", "%s is refused: %s", peer, why)
        reset_at_close(taken)
        taken.close()

    def add(self, connection: K) -> None:
        """Keep this one from now on."""
        self._open[connection] = self._silent[connection] = None
        self._metrics.set("OpenConnectionCount", len(self._open))

    def heard(self, connection: K, size: int) -> None:
        """So many bytes were read from this one."""
        self._silent.pop(connection, None)
        if connection in self._owed:
            self._owed[connection] -= size

    def discard(self, connection: K) -> None:
        """This one has ended; it may have been discarded already."""
        self._open.pop(connection, None)
        self._silent.pop(connection, None)
        self._owed.pop(connection, None)
        self._metrics.set("OpenConnectionCount", len(self._open))

    # --- the end

    def last(
        self, ready: Callable[[float], list[tuple[K, int]]], stop_listening: Callable[[], None]
    ) -> Iterator[list[tuple[K, int]]]:
        """What is to be read before the end, in turns: all that the kernel holds by now, and a little more.

        `ready(0)` accepts what there is to accept, and tells which connections can be read, without waiting.
        `stop_listening` closes the listeners; the kernel resets what comes between.
        """
        for _ in range(socket.SOMAXCONN // AT_ONCE + 1):
            before = self._accepted
            yield ready(0)
            if self._accepted == before:
                break
        stop_listening()
        self._owed = {connection: _unread(connection.socket) for connection in self if not connection.shaking}
        deadline = time.monotonic() + FAREWELL
        while due := ready(0):
            if time.monotonic() > deadline:
                due = [entry for entry in due if self._owed.get(entry[0], 0) > 0]
                if not due:
                    return
            yield due

    # --- the limit

    def _make_room(self, peer: str) -> bool:
        while self._silent:
            oldest = next(iter(self._silent))
            del self._silent[oldest]
            if oldest.shaking or not _unread(oldest.socket):
                self._metrics.add(EVICTED)
                self._complain(
                    "evicted",
                    "%s, which never sent anything, is closed for %s: %s",
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
            f"as many connections are open ({len(self._open)}) as maxConnections = {self._most} and this process's "
            f"limit of {self._files} files (`ulimit -n`) allow"
        )

    def _full(self) -> str:
        """Why a new connection would not simply be taken; empty where it would."""
        return self._too_many() if len(self._open) >= self.limit or _lowest_free() >= self._ceiling else ""

    def _keep_reserve(self) -> None:
        if self._reserve is None:
            try:
                self._reserve = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                self._reserve = None

    def _release_reserve(self) -> bool:
        if self._reserve is None:
            return False
        os.close(self._reserve)
        self._reserve = None
        return True


def reset_at_close(taken: socket.socket) -> None:
    """Have the sender told that what it sent is not taken: an orderly end would look as if it were."""
    with contextlib.suppress(OSError):  # it has gone already
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def _unread(taken: socket.socket) -> int:
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
