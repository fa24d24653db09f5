"""Writes to files of watched directories, as inotify reports them."""

from __future__ import annotations

import ctypes
import os
import select
import struct
from typing import NamedTuple

from watchdog.observers.inotify_c import (
    InotifyConstants,
    Mask,
    WatchDescriptor,
    inotify_add_watch,
    inotify_init,
    inotify_rm_watch,
)

_MASK = Mask(InotifyConstants.IN_MODIFY | InotifyConstants.IN_ONLYDIR)
_OVERFLOW, _IGNORED = InotifyConstants.IN_Q_OVERFLOW, InotifyConstants.IN_IGNORED
_READ_BYTES = 1 << 16
_HEADER_BYTES = 16
_MAX_EVENT_BYTES = _HEADER_BYTES + 256
_unpack_header = struct.Struct("iIII").unpack_from


class Writes(NamedTuple):
    """Writes since the previous call of `WriteWatcher.read`."""

    paths: set[str]
    """Paths of files that were written to."""
    events: int
    """Number of inotify events, several for a file that was written to again and again."""
    has_overflowed: bool
    """True if the kernel dropped events, so any file may have been written to."""


class WriteWatcher:
    """Inotify instance for writes. Only the thread of the source uses it, apart from `wake`."""

    def __init__(self) -> None:
        """Start without watches. Raises OSError where inotify is unavailable."""
        self._watched: dict[str, WatchDescriptor] = {}
        self._directories: dict[int, list[str]] = {}
        """Directories by watch; there are several where links lead to the same one."""
        self._inotify = inotify_init()
        if self._inotify == -1:
            raise last_error()
        os.set_inheritable(self._inotify, False)
        os.set_blocking(self._inotify, False)
        self._woken = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self._inotify, select.POLLIN)
        self._poll.register(self._woken, select.POLLIN)

    def add(self, directory: str) -> None:
        """Watch writes to the files of a directory. Idempotent.

        Raises OSError where the directory is missing or cannot be watched.
        """
        watch = inotify_add_watch(self._inotify, os.fsencode(directory), _MASK)
        if watch == -1:
            raise last_error()
        if self._watched.get(directory) != watch:
            if directory in self._watched:
                self._remove(directory)  # the directory was replaced by another one
            self._watched[directory] = watch
            self._directories.setdefault(watch, []).append(directory)

    def clear(self) -> None:
        """Remove all watches."""
        for directory in list(self._watched):
            self._remove(directory)

    def _remove(self, directory: str) -> None:
        """Stop watching a watched directory, which may not exist any more."""
        watch = self._watched.pop(directory)
        directories = self._directories.get(watch, [])
        if directory in directories:
            directories.remove(directory)
            if not directories:
                del self._directories[watch]
                inotify_rm_watch(self._inotify, watch)

    def wait(self, timeout: float) -> bool:
        """Block until `read` has something to return, or `wake` is called, or `timeout` seconds have passed.

        Return False after the timeout.
        """
        ready = self._poll.poll(timeout * 1000)
        if any(fd == self._woken for fd, _ in ready):
            os.eventfd_read(self._woken)
        return bool(ready)

    def wake(self) -> None:
        """End the present call of `wait`, or else the next one. Thread-safe."""
        os.eventfd_write(self._woken, 1)

    def read(self) -> Writes:
        """Return the writes that the kernel has reported since the previous call."""
        paths: set[str] = set()
        events, has_overflowed, size = 0, False, _READ_BYTES
        while size > _READ_BYTES - _MAX_EVENT_BYTES:  # there may be more
            try:
                data = os.read(self._inotify, _READ_BYTES)
            except BlockingIOError:
                break
            size = len(data)
            end = 0
            while end < size:  # one event after another, as in inotify(7)
                watch, mask, _, length = _unpack_header(data, end)
                start, end = end + _HEADER_BYTES, end + _HEADER_BYTES + length
                if mask & _OVERFLOW:
                    has_overflowed = True
                elif mask & _IGNORED:  # a directory that is watched again has another watch
                    self._directories.pop(watch, None)
                elif length:
                    name = os.fsdecode(data[start:end].rstrip(b"\0"))
                    events += 1
                    for directory in self._directories.get(watch, ()):
                        paths.add(os.path.join(directory, name))
        return Writes(paths, events, has_overflowed)

    def close(self) -> None:
        """Close the inotify instance. No other method may be called afterwards."""
        os.close(self._inotify)
        os.close(self._woken)


def last_error() -> OSError:
    """Return the error of the latest inotify call on this thread."""
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))
