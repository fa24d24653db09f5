"""What the kernel says of directories: names that changed, their files held open, and files that grew."""

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

from sources.taildir.names import Named, Names
from sources.taildir.opener import ARRIVED, CREATED, LEFT
from sources.taildir.tail import Key

_WRITES = Mask(InotifyConstants.IN_MODIFY | InotifyConstants.IN_ONLYDIR)
_BUSY_EVENTS = 256
"""So many writes between two takes mean a busy writer: looking is cheaper than being told."""
_BUSY_SECONDS = 1.0
_MOST_CHANGES = 1 << 16
"""So many changes of names may wait to be taken: more are not kept, as when the kernel's own queue overflows."""
_MOST_MOVES = 1024


@dataclass(slots=True)
class Opened:
    """A file that was opened as soon as the kernel named it."""

    fd: int | None

    def take(self) -> int | None:
        """The open file, whoever asks first; it is that one's to close."""
        fd, self.fd = self.fd, None
        return fd


class Change(NamedTuple):
    """What became of one name, in the order in which the kernel saw it."""

    kind: str
    """As `opener` has them."""
    path: str
    name: str
    """The name for which the file is followed: `path`, or what it was called before it was renamed."""
    cookie: int = 0
    key: Key | None = None
    """The file found under that name, a little later: it may be another one by then. None where there was none."""
    opened: Opened | None = None


class Hints(NamedTuple):
    """What has changed since they were last taken."""

    grown: set[str]
    """Paths of files that were written to."""
    changes: list[Change]
    """Names that came, went or mean another file now."""
    everywhere: bool
    """Whether to look everywhere."""
    busy: bool
    """Whether writes are not watched now, so that any file may have grown."""
    overflow: bool
    """Whether changes of names were dropped."""
    synced: int
    """Number of the latest `Watch.sync` that is answered: the changes before it are among those taken."""
    ended: str
    """Why the process that opens files had to be started again, which may have cost some; empty where it had not."""


def _explained(error: OSError) -> str:
    """Return the text of an error of inotify, with the limit of the kernel that it names in other words."""
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
    """One watched directory."""

    path: str
    identity: Key
    tell: Callable[[str], None]
    overflow: Callable[[], None]
    gone: bool = False

    def on_event(self, event: InotifyEvent) -> None:
        """A file in it was written to."""
        if event.name and not event.is_directory:
            self.tell(os.path.join(self.path, os.fsdecode(event.name)))

    def on_watch_deleted(self, wd: WatchDescriptor) -> None:
        """The directory went; the periodic look finds the one that comes in its place."""
        self.gone = True

    def on_queue_overflow(self) -> None:
        """The kernel dropped events."""
        self.overflow()


class _Writes:
    """An inotify instance of watchdog's with its thread, and the directories that it watches."""

    def __init__(self, tell: Callable[[str], None], overflow: Callable[[], None]) -> None:
        self._tell, self._overflow = tell, overflow
        self._watched: dict[str, tuple[WatchDescriptor, _Directory]] = {}
        self._inotify = InotifyFD()
        self._inotify.start()

    def add(self, directory: str) -> None:
        """Watch it, unless it is watched. Raises OSError."""
        status = os.stat(directory)
        identity = (status.st_dev, status.st_ino)
        if directory in self._watched:
            known = self._watched[directory][1]
            if known.identity == identity and not known.gone:
                return
            self._remove(directory)  # another directory has come in its place
        callback = _Directory(directory, identity, self._tell, self._overflow)
        wd = self._inotify.add_callback(os.fsencode(directory), _WRITES, callback, CallbackId(id(callback)))
        if wd == -1:  # watchdog raises for every reason but this one
            raise PermissionError("Permission denied")
        self._watched[directory] = wd, callback

    def clear(self) -> None:
        """Watch nothing."""
        for directory in list(self._watched):
            self._remove(directory)

    def _remove(self, directory: str) -> None:
        wd, callback = self._watched.pop(directory)
        with suppress(OSError):
            self._inotify.remove_callbacks([(wd, CallbackId(id(callback)))])

    def close(self) -> None:
        """Stop; its thread has ended on return."""
        self._inotify.stop()
        self._inotify.join()


class Watch:
    """Two inotify instances: one for names, which is never given up, and one for writes, which is while many come.

    A file that comes or is renamed is opened at once by a process of its own (`Names`), whatever this one is doing:
    an open file can be read after it was renamed and deleted. Writes come from watchdog's inotify instance itself,
    as its observer would hold them back for up to half a second.
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
        """Watch nothing yet.

        `wanted` answers the name for which the file of that path is followed, `held` whether that file is open
        already; the watch's threads call both. At most `most` files are held open until they are taken.
        """
        self._log = log
        self._wanted, self._held, self._most = wanted, held, most
        self._told = False
        self._lock = threading.Lock()
        self._hinted = threading.Event()
        self._changes: list[Change] = []
        self._opened: dict[Key, Opened] = {}
        self._overflow = False
        self._ended = ""
        self._requested = self._synced = 0
        """Numbers of the latest request of `sync`, and of the latest that is answered."""
        self._leaving: dict[int, str] = {}
        """By cookie, names of files whose rename is half told."""
        self._moved: dict[str, str] = {}
        """By path that nobody wants, the names of the files that were renamed to it."""
        self._grown: set[str] = set()
        self._count = 0
        self._busy_until = 0.0
        """So long writes are not watched, on the monotonic clock; 0 while they are."""
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
        """Watch that directory, if it is there; doing so again costs two calls of the system.

        New files whose names match one of the patterns are opened; all, where there are none. Whether its names were
        not watched before.
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
        """Wait until files are opened as they come, but not for long."""
        if self._names is not None:
            self._names.wait()

    def sync(self) -> int:
        """Ask for all changes that the kernel knows of by now; return the number that `Hints.synced` will have.

        Where nothing watches, the request counts as answered.
        """
        with self._lock:
            self._requested += 1
            number = self._requested
        if self._names is None or not self._names.sync(number):
            self._on_sync(number)
        return number

    @property
    def busy(self) -> bool:
        """Whether writes are not watched now."""
        return self._busy_until > 0

    def wait(self, timeout: float) -> bool:
        """Whether there are hints, at the latest after `timeout` seconds."""
        return self._hinted.wait(timeout)

    def take(self) -> Hints:
        """All hints until now. The opened files in them are the caller's."""
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
        """Stop watching, and let go of what was not taken; its threads have ended on return."""
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
                if len(self._leaving) > _MOST_MOVES:  # their other halves are in directories that nobody watches
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

    def _keep(self, named: Named) -> Opened | None:
        """The file that came along, unless it is open already or too many are."""
        key, fd = named.key, named.fd
        if key is None or fd is None:
            return None
        with self._lock:
            if len(self._opened) < self._most and key not in self._opened and not self._held(key):
                self._opened[key] = Opened(fd)
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
