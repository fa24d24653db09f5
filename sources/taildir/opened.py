"""Which of the files that are followed are open: not more than half of what this process may have open."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable

from sources.taildir.tail import Tail


class Opened:
    """The open files. Where there would be too many, it closes others."""

    def __init__(self, forget: Callable[[Tail], None]) -> None:
        """`forget` is told of a file that no name leads to, when it was read to its end and has to be closed."""
        self._forget = forget
        self._open: dict[Tail, None] = {}
        """In order of last use."""
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self.most = 4096 if most == resource.RLIM_INFINITY else max(16, min(most // 2, 4096))

    def open(self, tail: Tail) -> bool:
        """Open it if it is not; whether its mark is another now. Raises as `Tail.open` does."""
        known = tail.mark
        if tail.fd is None:
            self._make_room()
            tail.open()
        self._use(tail)
        return tail.mark is not known

    def hold(self, tail: Tail, fd: int) -> None:
        """It is open already."""
        self._make_room()
        tail.hold(fd)
        self._use(tail)

    def close(self, tail: Tail) -> None:
        """Close it; it is followed still."""
        self._open.pop(tail, None)
        tail.close()

    def close_all(self) -> None:
        """Close every one."""
        for tail in list(self._open):
            self.close(tail)

    def _use(self, tail: Tail) -> None:
        self._open.pop(tail, None)
        self._open[tail] = None

    def _make_room(self) -> None:
        """Where too many are open, close a quarter of them.

        Of those used least recently, first what was read to its end. A file that has no name any more could never be
        opened again: it is forgotten if it was read to its end, though its writer might go on, and kept if not.
        """
        if len(self._open) < self.most:
            return
        for unread in (False, True):
            for tail in list(self._open):
                if len(self._open) <= self.most * 3 // 4:
                    return
                assert tail.fd is not None
                status = os.fstat(tail.fd)
                if bool(tail.held) or status.st_size > tail.position:
                    if unread and status.st_nlink and tail.named:
                        self.close(tail)
                        tail.grown = True
                elif status.st_nlink and tail.named:
                    self.close(tail)
                elif not status.st_nlink:
                    self._forget(tail)
