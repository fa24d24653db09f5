"""What the kernel says of directories: names that changed, their files held open, and files that grew."""

# Paths are text here, as in all that looks at thousands of files.
# ruff: noqa: PTH116, PTH118

from __future__ import annotations

import logging
import os
import stat
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, NamedTuple

from watchdog.observers.inotify_c import (
    CallbackId,
    InotifyConstants,
    InotifyEvent,
    InotifyFD,
    Mask,
    WatchCallback,
    WatchDescriptor,
)

from sources.taildir.tail import Key

_NAMES = Mask(
    InotifyConstants.IN_CREATE | InotifyConstants.IN_MOVE | InotifyConstants.IN_DELETE | InotifyConstants.IN_ONLYDIR
)
_WRITES = Mask(InotifyConstants.IN_MODIFY | InotifyConstants.IN_ONLYDIR)
_BUSY_EVENTS = 256
"""So many writes between two takes mean a busy writer: looking is cheaper than being told."""
_BUSY_SECONDS = 1.0
_BUSY_LOOK = 0.01
_MOST_CHANGES = 1 << 16
"""So many changes of names may wait to be taken: more are not kept, as when the kernel's own queue overflows."""
_MOST_MOVES = 1024
_SWITCH_SECONDS = 0.0005
"""A file that lives for milliseconds cannot wait until another thread has had Python's usual turn of 5 ms: opening it
takes a turn for each call of the system."""


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

    kind: Literal["created", "left", "arrived", "deleted"]
    """`left` and `arrived` are the two halves of a rename, with one `cookie`."""
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
    overflow: bool
    """Whether changes of names were dropped."""


@dataclass(eq=False)
class _Directory(WatchCallback):
    """One watched directory."""

    path: str
    tell: Callable[[InotifyEvent, str], None]
    overflow: Callable[[], None]

    def on_event(self, event: InotifyEvent) -> None:
        """An event about a file in it."""
        if event.name and not event.is_directory:
            self.tell(event, os.path.join(self.path, os.fsdecode(event.name)))

    def on_watch_deleted(self, wd: WatchDescriptor) -> None:
        """The directory went; the periodic look finds the one that comes in its place."""

    def on_queue_overflow(self) -> None:
        """The kernel dropped events."""
        self.overflow()


class _Instance:
    """An inotify instance of watchdog's with its thread, and the directories that it watches."""

    def __init__(self, mask: Mask, tell: Callable[[InotifyEvent, str], None], overflow: Callable[[], None]) -> None:
        self._mask, self._tell, self._overflow = mask, tell, overflow
        self._watched: dict[str, tuple[Key, WatchDescriptor, _Directory]] = {}
        self._inotify = InotifyFD()
        self._inotify.start()

    def add(self, directory: str, identity: Key) -> None:
        """Watch it, unless it is watched. Raises OSError."""
        known = self._watched.get(directory)
        if known is not None and known[0] == identity:
            return
        if known is not None:  # another directory has come in its place
            self._remove(directory)
        callback = _Directory(directory, self._tell, self._overflow)
        path = os.fsencode(directory)
        wd = self._inotify.add_callback(path, self._mask, callback, CallbackId(id(callback)))
        if wd == -1:  # watchdog raises for every reason but this one
            raise PermissionError("Permission denied")
        self._watched[directory] = identity, wd, callback

    def clear(self) -> None:
        """Watch nothing."""
        for directory in list(self._watched):
            self._remove(directory)

    def _remove(self, directory: str) -> None:
        _, wd, callback = self._watched.pop(directory)
        with suppress(OSError):
            self._inotify.remove_callbacks([(wd, CallbackId(id(callback)))])

    def close(self) -> None:
        """Stop; its thread has ended on return."""
        self._inotify.stop()
        self._inotify.join()


class Watch:
    """Two inotify instances: one for names, which is never given up, and one for writes, which is while many come.

    A file that comes or is renamed is opened at once on a thread of the watch, whatever its reader is waiting for:
    an open file can be read after it was renamed and deleted. This reads watchdog's inotify instances themselves, as
    its observer holds back whatever follows a rename for up to half a second.
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
        self._leaving: dict[int, str] = {}
        """By cookie, names of files whose rename is half told."""
        self._moved: dict[str, str] = {}
        """By path that nobody wants, the names of the files that were renamed to it."""
        self._grown: set[str] = set()
        self._count = 0
        self._busy: set[str] | None = None
        """While writes are not watched: files that were being written to when that began, and new ones."""
        self._busy_until = 0.0
        self._names: _Instance | None = None
        self._writes: _Instance | None = None
        if not inotify:
            return
        try:
            self._names = _Instance(_NAMES, self._on_name, self._on_overflow)
            self._writes = _Instance(_WRITES, self._on_write, self._hinted.set)
            sys.setswitchinterval(min(sys.getswitchinterval(), _SWITCH_SECONDS))
        except OSError as e:
            self.close()
            log.warning("the kernel gives no hints (%s): new lines are found by looking periodically", e)

    def add(self, directory: str) -> None:
        """Watch that directory, if it is there; doing so again costs a stat."""
        if self._names is None or self._writes is None:
            return
        try:
            status = os.stat(directory)
        except OSError:
            return
        identity = (status.st_dev, status.st_ino)
        try:
            self._names.add(directory, identity)
            with self._lock:
                if self._busy is None:
                    self._writes.add(directory, identity)
        except OSError as e:
            if not self._told:
                self._told = True
                self._log.warning(
                    "%s cannot be watched (%s): new lines are found by looking periodically", directory, e
                )

    def wait(self, timeout: float) -> bool:
        """Whether there are hints, at the latest after `timeout` seconds."""
        if self._busy is not None:
            self._hinted.wait(min(timeout, _BUSY_LOOK))
            return True
        return self._hinted.wait(timeout)

    def take(self) -> Hints:
        """All hints until now. The opened files in them are the caller's."""
        with self._lock:
            self._hinted.clear()
            grown, self._grown = self._grown, set()
            changes, self._changes = self._changes, []
            self._opened = {}
            overflow, self._overflow = self._overflow, False
            self._count = 0
            everywhere = overflow
            if self._busy is not None:
                self._busy |= {change.path for change in changes}
                grown |= self._busy
                if time.monotonic() >= self._busy_until:
                    self._busy = None
                    everywhere = True
        return Hints(grown, changes, everywhere, overflow)

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

    def _on_write(self, event: InotifyEvent, path: str) -> None:
        with self._lock:
            self._grown.add(path)
            self._count += 1
            if self._count > _BUSY_EVENTS and self._busy is None and self._writes is not None:
                self._writes.clear()
                self._busy, self._busy_until = set(self._grown), time.monotonic() + _BUSY_SECONDS
        self._hinted.set()

    def _on_overflow(self) -> None:
        with self._lock:
            self._overflow = True
        self._leaving.clear()
        self._moved.clear()
        self._hinted.set()

    def _on_name(self, event: InotifyEvent, path: str) -> None:
        name = self._wanted(path)
        own = name is not None
        name = name or self._moved.get(path)
        if event.is_moved_from:
            self._moved.pop(path, None)
            if name is not None:
                self._leaving[event.cookie] = name
                if len(self._leaving) > _MOST_MOVES:  # their other halves are in directories that nobody watches
                    del self._leaving[next(iter(self._leaving))]
                self._note(Change("left", path, name, event.cookie))
        elif event.is_moved_to:
            self._moved.pop(path, None)
            name = self._leaving.pop(event.cookie, name if own else None)
            if name is not None:
                if not own:
                    self._moved[path] = name
                self._came("arrived", path, name, event.cookie)
        elif event.is_create:
            if own and name is not None:
                self._came("created", path, name, 0)
        elif event.is_delete:
            self._moved.pop(path, None)
            if name is not None:
                self._note(Change("deleted", path, name))

    def _came(self, kind: Literal["created", "arrived"], path: str, name: str, cookie: int) -> None:
        key, opened = None, None
        try:
            if kind == "arrived":
                key = _key(os.stat(path))
            if key is None or not (key in self._opened or self._held(key)):
                key, opened = self._open(path, key)
        except FileNotFoundError:
            if os.path.lexists(path):
                return  # a link that leads nowhere yet
        except OSError:
            pass  # it may be read later; its reader says why it cannot
        else:
            if key is None:
                return  # no regular file
        self._note(Change(kind, path, name, cookie, key, opened))

    def _open(self, path: str, key: Key | None) -> tuple[Key | None, Opened | None]:
        if len(self._opened) >= self._most:
            return key or _key(os.stat(path)), None
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        key = _key(os.fstat(fd))
        with self._lock:
            if key is None or key in self._opened:
                os.close(fd)
                return key, None
            opened = self._opened[key] = Opened(fd)
        return key, opened

    def _note(self, change: Change) -> None:
        with self._lock:
            if len(self._changes) < _MOST_CHANGES:
                self._changes.append(change)
            else:
                self._overflow = True
                if change.opened is not None and (fd := change.opened.take()) is not None:
                    os.close(fd)
        self._hinted.set()


def _key(status: os.stat_result) -> Key | None:
    """Device and inode of a regular file."""
    return (status.st_dev, status.st_ino) if stat.S_ISREG(status.st_mode) else None
