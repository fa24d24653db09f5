"""Hints that something changed in a directory, from the kernel."""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import select
import struct
import time
from typing import NamedTuple

_MODIFY, _MOVED_FROM, _MOVED_TO, _CREATE, _DELETE = 0x2, 0x40, 0x80, 0x100, 0x200
_OVERFLOW, _IGNORED, _ONLYDIR = 0x4000, 0x8000, 0x01000000
_MASK = _MODIFY | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE | _ONLYDIR
_EVENT = struct.Struct("iIII")  # watch, mask, cookie, length of the name that follows


class Hints(NamedTuple):
    """What seems to have changed since they were last taken."""

    grown: set[str]
    """Paths of files written to."""
    renamed: set[str]
    """Paths that came, went or now mean another file."""
    overflow: bool
    """Some were dropped: look everywhere."""


class Watch:
    """Inotify on directories. It only shortens the wait; what it misses, the periodic look finds.

    It has no thread and reads nothing while the source is busy: the kernel keeps the queue short by merging equal
    events. (A library that reads every event as it comes took a whole core beside one busy writer.)
    """

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._directories: dict[int, set[str]] = {}
        self._told = False
        self._fd = -1
        try:
            self._libc = ctypes.CDLL(None, use_errno=True)
            self._fd = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        except (OSError, AttributeError):
            pass
        if self._fd < 0:
            self._unavailable(ctypes.get_errno())
            return
        self._poll = select.poll()
        self._poll.register(self._fd, select.POLLIN)

    def add(self, directory: str) -> None:
        """Watch that directory, if it is there; doing so again costs nothing."""
        if self._fd < 0:
            return
        number = self._libc.inotify_add_watch(self._fd, os.fsencode(directory), _MASK)
        if number >= 0:
            self._directories.setdefault(number, set()).add(directory)
        elif (error := ctypes.get_errno()) not in (errno.ENOENT, errno.ENOTDIR, errno.EACCES):
            self._unavailable(error)

    def _unavailable(self, error: int) -> None:
        if not self._told:
            self._told = True
            reason = os.strerror(error) if error else "not on this system"
            self._log.warning("inotify is not available (%s): new lines are found by looking periodically", reason)

    def wait(self, timeout: float) -> bool:
        """Whether there are hints, at the latest after `timeout` seconds."""
        if self._fd < 0:
            time.sleep(timeout)
            return False
        return bool(self._poll.poll(timeout * 1000))

    def take(self) -> Hints:
        """All hints until now."""
        grown: set[str] = set()
        renamed: set[str] = set()
        overflow = False
        seen: set[tuple[int, bytes, int]] = set()
        for _ in range(16 if self._fd >= 0 else 0):  # a queue that fills as fast as it is read must not hold us
            try:
                data = os.read(self._fd, 1 << 16)
            except BlockingIOError:
                break
            at = 0
            while at < len(data):
                number, mask, _, length = _EVENT.unpack_from(data, at)
                at += _EVENT.size + length
                event = (number, data[at - length : at], mask)
                if event in seen:
                    continue
                seen.add(event)
                overflow = overflow or bool(mask & _OVERFLOW)
                name = os.fsdecode(event[1].rstrip(b"\0"))
                paths = {f"{directory}/{name}" for directory in self._directories.get(number, ())}
                (grown if mask & _MODIFY else renamed).update(paths)
                if mask & _IGNORED:
                    self._directories.pop(number, None)
        return Hints(grown, renamed, overflow)

    def close(self) -> None:
        """Stop watching."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
