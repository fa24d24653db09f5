"""Which of the files that are followed are open: not more than half of what this process may have open."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable

from sources.descriptors import EXHAUSTED, exhausted, most_open
from sources.taildir.tail import Tail


class Opened:
    """The open files. Where there would be too many, it closes others."""

    def __init__(self, forget: Callable[[Tail], None], log: logging.Logger) -> None:
        """`forget` is told of a file that no name leads to, when it was read to its end and has to be closed."""
        self._forget = forget
        self._log = log
        self._open: dict[Tail, None] = {}
        """In order of last use."""
        self._relieved = False
        self.most = max(16, min(most_open() // 2, 16_384))
        """Less once others were found to need more than the other half."""

    def open(self, tail: Tail) -> bool:
        """Open it if it is not; whether its mark is another now. Raises as `Tail.open` does."""
        known = tail.mark
        if tail.fd is None:
            self._make_room()
            try:
                tail.open()
            except OSError as e:
                if e.errno not in EXHAUSTED or not self.relieve():
                    raise
                tail.open()
        self._use(tail)
        return tail.mark is not known

    def hold(self, tail: Tail, fd: int) -> None:
        """It is open already."""
        self._make_room()
        tail.hold(fd)
        self._use(tail)

    def relieve(self) -> bool:
        """Where this process can open no more, keep a quarter less from now on; whether it can now."""
        while exhausted():
            before = len(self._open)
            self.most = min(self.most, before)
            self._make_room()
            if len(self._open) == before:
                return False
            self.most = max(1, len(self._open))
            if not self._relieved:
                self._relieved = True
                self._log.warning(
                    "this process has all %d files open that it may have, so fewer are kept open here from now on,"
                    " which costs time: raise `ulimit -n`, or LimitNOFILE in its systemd unit",
                    most_open(),
                )
        return True

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
