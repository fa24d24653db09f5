"""Hints that something changed in a directory, from the kernel."""

from __future__ import annotations

import logging
import os
import threading
import time
from pathlib import Path
from typing import NamedTuple

from watchdog.events import (
    FileCreatedEvent,
    FileDeletedEvent,
    FileModifiedEvent,
    FileMovedEvent,
    FileSystemEvent,
    FileSystemEventHandler,
)
from watchdog.observers import Observer
from watchdog.observers.api import BaseObserver, ObservedWatch

_EVENTS: list[type[FileSystemEvent]] = [FileModifiedEvent, FileCreatedEvent, FileDeletedEvent, FileMovedEvent]
_BUSY_EVENTS = 256
"""So many hints between two takes mean a busy writer: looking is cheaper than being told."""
_BUSY_SECONDS = 1.0
_BUSY_LOOK = 0.01


class Hints(NamedTuple):
    """What seems to have changed since they were last taken."""

    grown: set[str]
    """Paths of files written to."""
    renamed: set[str]
    """Paths that came, went or now mean another file."""
    overflow: bool
    """Some were dropped: look everywhere."""


class Watch(FileSystemEventHandler):
    """Watchdog on directories. It only shortens the wait; what it misses, the periodic look finds.

    Watchdog reads every single event, which beside one busy writer takes a whole core. So when many come at once,
    the watches end for a second, in which the files that were written to are simply looked at often.
    """

    def __init__(self, log: logging.Logger, *, inotify: bool) -> None:
        self._log = log
        self._told = False
        self._lock = threading.Lock()
        self._hinted = threading.Event()
        self._grown: set[str] = set()
        self._renamed: set[str] = set()
        self._count = 0
        self._busy: set[str] = set()
        self._busy_until = 0.0
        self._watches: dict[str, tuple[ObservedWatch, tuple[int, int]]] = {}
        self._observer: BaseObserver | None = None
        if not inotify:
            return
        try:
            self._observer = Observer()  # takes one of the user's inotify instances at once
            self._observer.daemon = True
            self._observer.start()
        except OSError as e:
            self._observer = None
            log.warning("the kernel gives no hints (%s): new lines are found by looking periodically", e)

    def on_any_event(self, event: FileSystemEvent) -> None:
        """Note what an event is about, on watchdog's thread."""
        with self._lock:
            self._count += 1
            if isinstance(event, FileModifiedEvent):
                self._grown.add(os.fsdecode(event.src_path))
            else:
                self._renamed.update(os.fsdecode(path) for path in (event.src_path, event.dest_path) if path)
        self._hinted.set()

    def add(self, directory: str) -> None:
        """Watch that directory, if it is there; doing so again costs a stat."""
        if self._busy or self._observer is None:
            return
        try:
            status = Path(directory).stat()
        except OSError:
            return
        identity = (status.st_dev, status.st_ino)
        known = self._watches.get(directory)
        if known is not None and known[1] == identity:
            return
        try:
            if known is not None:  # another directory has come in its place
                self._observer.unschedule(known[0])
            watch = self._observer.schedule(self, directory, event_filter=_EVENTS)
            self._watches[directory] = (watch, identity)
        except (OSError, KeyError) as e:
            self._watches.pop(directory, None)
            if not self._told:
                self._told = True
                self._log.warning(
                    "%s cannot be watched (%s): new lines are found by looking periodically", directory, e
                )

    def wait(self, timeout: float) -> bool:
        """Whether there are hints, at the latest after `timeout` seconds."""
        if self._busy:
            time.sleep(min(timeout, _BUSY_LOOK))
            return True
        return self._hinted.wait(timeout)

    def take(self) -> Hints:
        """All hints until now."""
        if self._busy:
            if time.monotonic() < self._busy_until:
                return Hints(self._busy, set(), False)
            self._busy = set()
            return Hints(set(), set(), True)
        with self._lock:
            grown, self._grown = self._grown, set()
            renamed, self._renamed = self._renamed, set()
            count, self._count = self._count, 0
            self._hinted.clear()
        if count > _BUSY_EVENTS and grown and self._observer is not None:
            self._observer.unschedule_all()
            self._watches.clear()
            self._busy, self._busy_until = grown, time.monotonic() + _BUSY_SECONDS
        return Hints(grown, renamed, False)

    def close(self) -> None:
        """Stop watching; its threads have ended on return."""
        if self._observer is not None:
            self._observer.stop()
            self._observer.join()
