"""Changes in directories by inotify: names, with descriptors of new files, and writes."""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from watchdog.observers.inotify_c import (
    CallbackId,
    InotifyConstants,
    InotifyEvent,
    InotifyFD,
    Mask,
    WatchCallback,
    WatchDescriptor,
)

from flafka.sources.taildir.names import Named, Names
from flafka.sources.taildir.opener import ARRIVED, CREATED, LEFT
from flafka.sources.taildir.tail import Key

_WRITES = Mask(InotifyConstants.IN_MODIFY | InotifyConstants.IN_ONLYDIR)
_BUSY_EVENTS = 256
"""Number of writes between two calls of `take` from which polling is cheaper than inotify."""
_BUSY_SECONDS = 1.0
_MOST_CHANGES = 1 << 16
"""Maximum number of changes of names that wait for `take`.

Further ones are dropped, and reported as an overflow, as of the kernel's own queue.
"""
_MOST_MOVES = 1024


@dataclass(slots=True)
class OpenDescriptor:
    """Descriptor of a file that was opened as soon as inotify reported it."""

    fd: int | None

    def take(self) -> int | None:
        """Return the descriptor to the first caller, which owns it from then on; None to later callers."""
        fd, self.fd = self.fd, None
        return fd


class Change(NamedTuple):
    """Change of one name, in the kernel's order."""

    kind: str
    """Kind of the event, as in `opener`."""
    path: str
    name: str
    """Name under which the file is tracked: `path`, or its name before a rename."""
    cookie: int = 0
    key: Key | None = None
    """Device and inode of the file found at `path`; None where there was none.

    The lookup follows the event, so the file may be a later one.
    """
    opened: OpenDescriptor | None = None


class Hints(NamedTuple):
    """Changes since the previous call of `take`."""

    grown: set[str]
    """Paths of files that were written to."""
    changes: list[Change]
    """Changes of names, in the kernel's order."""
    everywhere: bool
    """True if a full scan is needed."""
    busy: bool
    """True if writes are not watched now, so any file may have grown."""
    overflow: bool
    """True if changes of names were dropped."""
    synced: int
    """Number of the latest `Watch.sync` that is answered; changes before it are in `changes`."""
    ended: str
    """Reason for a restart of the opener process, empty where it did not restart.

    A restart may lose events.
    """


def _explained(error: OSError) -> str:
    """Return the text of an inotify error, with the kernel limit to raise if one is exhausted."""
    if error.errno == errno.ENOSPC:
        return "too many directories are watched on this host: raise fs.inotify.max_user_watches with sysctl"
    if error.errno == errno.EMFILE:
        return (
            "this user has too many inotify instances, or this process too many open files: raise "
            "fs.inotify.max_user_instances with sysctl, or LimitNOFILE of the service (ulimit -n)"
        )
    return error.strerror or str(error)


@dataclass(eq=False)
class _Directory(WatchCallback):
    """Watched directory."""

    path: str
    identity: Key
    tell: Callable[[str], None]
    overflow: Callable[[], None]
    gone: bool = False

    def on_event(self, event: InotifyEvent) -> None:
        """Report a write to a file in the directory."""
        if event.name and not event.is_directory:
            self.tell(os.path.join(self.path, os.fsdecode(event.name)))

    def on_watch_deleted(self, wd: WatchDescriptor) -> None:
        """Mark the directory as gone; the next full scan watches the one that replaces it."""
        self.gone = True

    def on_queue_overflow(self) -> None:
        """Report that the kernel dropped events."""
        self.overflow()


class _Writes:
    """Inotify instance of watchdog with its thread, and the directories that it watches."""

    def __init__(self, tell: Callable[[str], None], overflow: Callable[[], None]) -> None:
        self._tell, self._overflow = tell, overflow
        self._watched: dict[str, tuple[WatchDescriptor, _Directory]] = {}
        self._inotify = InotifyFD()
        self._inotify.start()

    def add(self, directory: str) -> None:
        """Watch a directory. Idempotent. Raises OSError."""
        status = os.stat(directory)
        identity = (status.st_dev, status.st_ino)
        if directory in self._watched:
            known = self._watched[directory][1]
            if known.identity == identity and not known.gone:
                return
            self._remove(directory)  # the directory was replaced by another one
        callback = _Directory(directory, identity, self._tell, self._overflow)
        wd = self._inotify.add_callback(os.fsencode(directory), _WRITES, callback, CallbackId(id(callback)))
        if wd == -1:  # watchdog raises for every error but EACCES
            raise PermissionError("Permission denied")
        self._watched[directory] = wd, callback

    def clear(self) -> None:
        """Remove all watches."""
        for directory in list(self._watched):
            self._remove(directory)

    def _remove(self, directory: str) -> None:
        wd, callback = self._watched.pop(directory)
        with suppress(OSError):
            self._inotify.remove_callbacks([(wd, CallbackId(id(callback)))])

    def close(self) -> None:
        """Stop the inotify instance. Blocks until its thread has ended."""
        self._inotify.stop()
        self._inotify.join()


class Watch:
    """Two inotify instances: one for names, always active, and one for writes, paused while many come.

    A separate process (`Names`) opens created and renamed files at once: an open file can be read after it was
    renamed and deleted. Writes come from watchdog's inotify instance itself, as its observer delays events by up to
    0.5 s.
    """

    def __init__(
        self,
        log: logging.Logger,
        *,
        inotify: bool,
        wanted: Callable[[str], str | None],
        held: Callable[[Key], bool],
        most: int,
    ) -> None:
        """Start without watches. Where inotify is unavailable, log a warning and report nothing.

        `wanted` returns the name under which the file of a path is tracked, `held` True if a file is open already.
        The watch's threads call both. At most `most` files are held open until `take`.
        """
        self._log = log
        self._wanted, self._held, self._most = wanted, held, most
        self._told = False
        self._lock = threading.Lock()
        self._hinted = threading.Event()
        self._changes: list[Change] = []
        self._opened: dict[Key, OpenDescriptor] = {}
        self._overflow = False
        self._ended = ""
        self._requested = self._synced = 0
        """Number of the latest request of `sync`, and of the latest that is answered."""
        self._leaving: dict[int, str] = {}
        """Names of files by inotify cookie, for renames whose second half is not reported yet."""
        self._moved: dict[str, str] = {}
        """Names of renamed files by their new, untracked paths."""
        self._grown: set[str] = set()
        self._count = 0
        self._busy_until = 0.0
        """Monotonic time until which writes are not watched; 0 while they are watched."""
        self._names: Names | None = None
        self._writes: _Writes | None = None
        if not inotify:
            return
        try:
            self._names = Names(
                tell=self._on_name, overflow=self._on_overflow, ended=self._on_end, synced=self._on_sync
            )
            self._writes = _Writes(self._on_write, self._hinted.set)
        except OSError as e:
            self.close()
            log.warning(
                "the kernel cannot report changes (%s): files are checked periodically instead", _explained(e)
            )

    def add(self, directory: str, patterns: Sequence[str] | None) -> bool:
        """Watch a directory, if it exists; return True if its names were not watched before. Idempotent.

        A repeated call costs two system calls. New files whose names match one of the patterns are opened, or all
        files where `patterns` is None. Errors are logged once.
        """
        if self._names is None or self._writes is None:
            return False
        new = False
        try:
            new = self._names.add(directory, patterns)
            with self._lock:
                if not self.busy:
                    self._writes.add(directory)
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError as e:
            if not self._told:
                self._told = True
                self._log.warning(
                    "%s cannot be watched (%s): its files are checked periodically instead", directory, _explained(e)
                )
        return new

    def settle(self) -> None:
        """Block until the opener process is ready, at most 5 s."""
        if self._names is not None:
            self._names.wait()

    def sync(self) -> int:
        """Request all changes that the kernel has queued by now; return the number for `Hints.synced`.

        Without inotify, the request counts as answered at once.
        """
        with self._lock:
            self._requested += 1
            number = self._requested
        if self._names is None or not self._names.sync(number):
            self._on_sync(number)
        return number

    @property
    def busy(self) -> bool:
        """True if writes are not watched now."""
        return self._busy_until > 0

    def wait(self, timeout: float) -> bool:
        """Block until there are hints, or `timeout` seconds have passed; return True if there are hints."""
        return self._hinted.wait(timeout)

    def take(self) -> Hints:
        """Return and clear all hints. The caller owns the descriptors in them."""
        with self._lock:
            self._hinted.clear()
            grown, self._grown = self._grown, set()
            changes, self._changes = self._changes, []
            self._opened = {}
            overflow, self._overflow = self._overflow, False
            ended, self._ended = self._ended, ""
            synced = self._synced
            self._count = 0
            everywhere = overflow or bool(ended)
            if self.busy and time.monotonic() >= self._busy_until:
                self._busy_until = 0.0
                everywhere = True
            busy = self.busy
        return Hints(grown, changes, everywhere, busy, overflow, synced, ended)

    def close(self) -> None:
        """Stop watching, and close the descriptors that were not taken. Blocks until the threads have ended."""
        for instance in (self._names, self._writes):
            if instance is not None:
                instance.close()
        self._names = self._writes = None
        for change in self.take().changes:
            if change.opened is not None and (fd := change.opened.take()) is not None:
                os.close(fd)

    # --- on the threads of the watch

    def _on_write(self, path: str) -> None:
        with self._lock:
            self._grown.add(path)
            self._count += 1
            if self._count > _BUSY_EVENTS and not self.busy and self._writes is not None:
                self._writes.clear()
                self._busy_until = time.monotonic() + _BUSY_SECONDS
        self._hinted.set()

    def _on_overflow(self) -> None:
        with self._lock:
            self._overflow = True
        self._forget_moves()

    def _on_end(self, reason: str) -> None:
        with self._lock:
            self._ended = reason
            self._synced = self._requested
        self._forget_moves()

    def _on_sync(self, number: int) -> None:
        with self._lock:
            self._synced = max(self._synced, number)
        self._hinted.set()

    def _forget_moves(self) -> None:
        self._leaving.clear()
        self._moved.clear()
        self._hinted.set()

    def _on_name(self, named: Named) -> None:
        path = named.path
        name = self._wanted(path)
        own = name is not None
        name = name or self._moved.pop(path, None)
        if named.kind == LEFT:
            if name is not None:
                self._leaving[named.cookie] = name
                if len(self._leaving) > _MOST_MOVES:  # files moved to unwatched directories have no second event
                    del self._leaving[next(iter(self._leaving))]
        elif named.kind == ARRIVED:
            name = self._leaving.pop(named.cookie, name if own else None)
            if name is not None and not own:
                self._moved[path] = name
        elif named.kind == CREATED and not own:
            name = None
        if name is None:
            if named.fd is not None:
                os.close(named.fd)
            return
        self._note(Change(named.kind, path, name, named.cookie, named.key, self._keep(named)))

    def _keep(self, named: Named) -> OpenDescriptor | None:
        """Keep the descriptor of an event, unless the file is open already or too many files are."""
        key, fd = named.key, named.fd
        if key is None or fd is None:
            return None
        with self._lock:
            if len(self._opened) < self._most and key not in self._opened and not self._held(key):
                self._opened[key] = OpenDescriptor(fd)
                return self._opened[key]
        os.close(fd)
        return None

    def _note(self, change: Change) -> None:
        with self._lock:
            if len(self._changes) < _MOST_CHANGES:
                self._changes.append(change)
            else:
                self._overflow = True
                if change.opened is not None and (fd := change.opened.take()) is not None:
                    os.close(fd)
        self._hinted.set()
