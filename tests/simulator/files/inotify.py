"""Model of inotify, and of the process that opens files by its events.

A queue of names may overflow, as the source's own `Opener` handles. Not every write is reported.
"""

from __future__ import annotations

import errno
import itertools
import math
import os
import stat
import sys
from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.simulator.files.disk import Disk, System, files_of
from tests.simulator.processes import Process, Signal
from tests.simulator.threads import Event
from tests.simulator.world import world

TAILDIR = "cursors discovery groups reading source table tail watcher"
MODULES = ("flafka.plugins.storage", *(f"flafka.sources.taildir.{name}" for name in TAILDIR.split()))
MOST_QUEUED = 60
OVERFLOW, IGNORED = 0x4000, 0x8000
SYNC = -2
"""In place of a watch: a request of `NamesModel.sync`."""


class NamesModel:
    """`NameWatcher`: the kernel's queue, and the process that reads it, which runs the real code of it."""

    def __init__(
        self,
        *,
        on_event: Callable[[Any], None],
        on_overflow: Callable[[], None],
        on_end: Callable[[str], None],
        on_sync: Callable[[int], None],
    ) -> None:
        self._on_event, self._on_overflow, self._on_end, self._on_sync = on_event, on_overflow, on_end, on_sync
        here = world()
        self.world, self.agent = here, here.process
        self.disk: Disk = here.models["disk"]
        self.events: deque[tuple[int, int, int, bytes]] = deque()
        """Watch, mask, cookie and name."""
        self.news, self.inbox = Signal(here), Signal(here)
        self.mail: deque[list[Any]] = deque()
        self.watches: dict[tuple[int, int], int] = {}
        """By device and inode of a directory, which may be moved."""
        self.watched: dict[str, tuple[int, list[str] | None]] = {}
        self._numbers = itertools.count(1)
        self.opener: Any = None
        self.process: Process | None = None
        self.closed = False
        self.since = math.inf
        self.disk.instances.append(self)
        self.agent.ended.append(self._close)
        self._start()
        self.agent.spawn(self._receive, "taildir-names")

    def add(self, directory: str, patterns: Any) -> bool:
        status = Path(directory).stat()
        if not stat.S_ISDIR(status.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        key = status.st_dev, status.st_ino
        watch = self.watches[key] if key in self.watches else next(self._numbers)
        self.watches[key] = watch
        known = self.watched.get(directory)
        if known is not None and known[0] == watch:
            return False
        self.since = min(self.since, self.world.now)
        self.watched[directory] = watch, None if patterns is None else list(patterns)
        self._tell_watches({watch} if known is None else {watch, known[0]})
        if known is not None and all(other != known[0] for other, _ in self.watched.values()):
            self.gone(next((key for key, number in self.watches.items() if number == known[0]), None))
        return True

    def _tell_watches(self, watches: Collection[int]) -> None:
        for watch in sorted(watches):
            self.opener.watch(
                watch, {name: patterns for name, (number, patterns) in self.watched.items() if number == watch}
            )

    def gone(self, key: tuple[int, int] | None) -> None:
        """Report that the directory was deleted, or is not watched any more."""
        if (watch := self.watches.pop(key, None) if key is not None else None) is not None:
            self._queue((watch, IGNORED, 0, b""))

    def sync(self, number: int) -> bool:
        self.events.append((SYNC, 0, number, b""))
        self.news.fire()
        return not self.closed

    def wait_ready(self) -> None:
        """Double of the method in `Opener`."""

    def close(self) -> None:
        self._close()

    def _close(self) -> None:
        if not self.closed:
            self.closed = True
            self.disk.instances.remove(self)
            self._drop()
            self.inbox.fire()
            self.news.fire()

    def _drop(self) -> None:
        for _, fd in (*self.opener.unsent, *itertools.chain.from_iterable(self.mail)):
            if fd is not None:
                os.close(fd)
        self.opener.unsent.clear()
        self.mail.clear()

    def queue(self, directory: tuple[int, int], mask: int, cookie: int, name: bytes) -> None:
        """Something has become of a name in that directory."""
        if (watch := self.watches.get(directory)) is not None:
            self._queue((watch, mask, cookie, name))

    def _queue(self, event: tuple[int, int, int, bytes]) -> None:
        if len(self.events) < MOST_QUEUED:
            self.events.append(event)
        elif all(mask != OVERFLOW for _, mask, _, _ in self.events):  # of these the kernel has one at a time
            self.events.append((-1, OVERFLOW, 0, b""))
        self.news.fire()

    def _start(self) -> None:
        from flafka.sources.taildir.opener import Opener

        self.opener = Opener()
        self._tell_watches({watch for watch, _ in self.watched.values()})
        self.process = Process(self.world, f"{self.agent.name}-opener")
        self.process.spawn(self._open, "main")

    def _open(self) -> None:
        from flafka.sources.taildir.opener import InotifyEvent

        process = self.process
        while not self.closed:
            if not self.events:
                self.news.wait(10)
                continue
            self.world.sleep(self.world.random.choice([0.0005, 0.002, 0.01]))
            for _ in range(min(len(self.events), self.world.random.randint(1, 8))):
                watch, mask, cookie, name = self.events.popleft()
                if watch == SYNC:
                    self.opener.sync(cookie)
                else:
                    self.opener.handle(InotifyEvent(watch, mask, cookie, name))
            if self.world.random.random() < 0.5:
                self.world.sleep(0.001)
            if self.closed or self.process is not process:
                return
            self.mail.append([*self.opener.unsent])
            self.opener.unsent.clear()
            self.inbox.fire()

    def _receive(self) -> None:
        from flafka.sources.taildir.watcher import NameEvent

        while not self.closed:
            if not self.mail:
                self.inbox.wait(10)
                continue
            for (kind, path, cookie, device, inode, _), fd in self.mail.popleft():
                if fd is not None:
                    files_of(self.agent).add(fd)
                if kind == "overflow":
                    self._on_overflow()
                elif kind == "sync":
                    self._on_sync(cookie)
                else:
                    self._on_event(NameEvent(kind, path, cookie, (device, inode) if inode else None, fd))

    def kill(self) -> None:
        """Kill the process with the files that it holds; the agent starts another one."""
        if self.closed or self.process is None:
            return
        self.process.kill()
        for _, fd in self.opener.unsent:
            if fd is not None:
                os.close(fd)
        self.opener.unsent.clear()

        def restart() -> None:
            if not self.closed:
                self._start()
                self._on_end("killed")

        self.world.later(0.1, lambda: self.agent.alive and self.agent.spawn(restart, "restart"))


class WritesModel:
    """Double of `WriteWatcher`, which omits some writes unless idle files are closed soon.

    Only inotify knows that a deleted closed file was written to.
    """

    def __init__(self) -> None:
        self.watching = False
        self.written: list[str] = []
        self.news = Event()
        self.agent, self.disk = world().process, world().models["disk"]
        self.disk.writes.append(self)
        self.agent.ended.append(self.close)

    def add(self, directory: str) -> None:
        self.watching = True

    def clear(self) -> None:
        self.watching = False

    def wait(self, timeout: float) -> bool:
        hinted = self.news.wait(timeout)
        self.news.clear()
        return hinted

    def wake(self) -> None:
        self.news.set()

    def read(self) -> Any:
        from flafka.sources.taildir.writes import Writes

        written, self.written = self.written, []
        return Writes(set(written), len(written), has_overflowed=False)

    def close(self) -> None:
        if self in self.disk.writes:
            self.disk.writes.remove(self)

    def wrote(self, path: str) -> None:
        def tell() -> None:
            self.written.append(path)
            self.wake()

        if self.watching and (self.disk.closed_soon or world().random.random() < 0.8):
            self.agent.spawn(tell, "writes")


@contextmanager
def patched() -> Iterator[None]:
    """The source's modules on the models."""
    from flafka.sources.taildir import tail

    changed: list[tuple[Any, str, Any]] = []

    def change(owner: Any, name: str, value: Any) -> None:
        changed.append((owner, name, getattr(owner, name)))
        setattr(owner, name, value)

    system = System()
    for name in MODULES:
        module = sys.modules[name]
        if "os" in vars(module):
            change(module, "os", system)
    watcher = sys.modules["flafka.sources.taildir.watcher"]
    change(watcher, "NameWatcher", NamesModel)
    change(watcher, "WriteWatcher", WritesModel)
    change(tail.Tail, "__hash__", lambda self: self.id)
    try:
        yield
    finally:
        for owner, name, value in reversed(changed):
            setattr(owner, name, value)
