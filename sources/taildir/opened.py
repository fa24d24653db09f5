"""Open files: a bounded set of descriptors, at most half of the process's limit."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable

from flafka.sources.descriptors import EXHAUSTED, exhausted, most_open
from flafka.sources.taildir.tail import Tail


class OpenFiles:
    """Open files, which are closed in least-recently-used order where there are too many."""

    def __init__(self, forget: Callable[[Tail], None], log: logging.Logger) -> None:
        """Call `forget` for a file without a name that was read to its end and has to be closed."""
        self._forget = forget
        self._log = log
        self._open: dict[Tail, None] = {}
        """Open files, the least recently used first."""
        self._relieved = False
        self.most = max(16, min(most_open() // 2, 16_384))
        """Maximum number of open files. It decreases when the process runs out of descriptors."""

    def open(self, tail: Tail) -> bool:
        """Open the file unless it is open; return True if that changed its cursor.

        Raises as `Tail.open` does.
        """
        known = tail.position, tail.mark
        if tail.fd is None:
            self._make_room()
            try:
                tail.open()
            except OSError as e:
                if e.errno not in EXHAUSTED or not self.relieve():
                    raise
                tail.open()
        self._use(tail)
        return (tail.position, tail.mark) != known

    def hold(self, tail: Tail, fd: int) -> None:
        """Take the open descriptor `fd` for the file."""
        self._make_room()
        tail.hold(fd)
        self._use(tail)

    def relieve(self) -> bool:
        """Close files while the process is out of descriptors; return True if it can open files now.

        The maximum shrinks each time by a quarter, permanently.
        """
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
        """Close the file, but keep tracking it."""
        self._open.pop(tail, None)
        tail.close()

    def close_all(self) -> None:
        """Close all open files."""
        for tail in list(self._open):
            self.close(tail)

    def _use(self, tail: Tail) -> None:
        self._open.pop(tail, None)
        self._open[tail] = None

    def _make_room(self) -> None:
        """Close a quarter of the files where too many are open.

        Files read to their end are closed first, the least recently used first. A file without a name could not be
        opened again. It is forgotten if it was read to its end, even though its writer may continue; else it stays
        open.
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
