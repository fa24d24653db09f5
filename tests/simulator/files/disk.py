"""The disk of the simulation: real files in memory, whose every call is one that an agent may be paused or killed at.

Open files belong to a process, as the kernel has it; what the world does to files is said to `inotify.py`.
"""

from __future__ import annotations

import fcntl
import gzip
import itertools
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from greenlet import GreenletExit

from tests.simulator.processes import Process
from tests.simulator.world import START_SECONDS_SINCE_EPOCH, World, world

if TYPE_CHECKING:
    from tests.simulator.files.inotify import NamesModel, WritesModel

ROOM = Path("/dev/shm/flafka-simulated")
CALLS = ("open", "pread", "pwrite", "write", "ftruncate", "fdatasync", "fsync")
CREATE, FROM, TO, DELETE, DIRECTORY = 0x100, 0x40, 0x80, 0x200, 0x40000000


class System:
    """In place of `os` in the source's modules: each call may be the last one, and files are a process's own."""

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        if name not in CALLS and name not in ("close", "dup", "fstat"):
            return real

        def call(*arguments: Any, **options: Any) -> Any:
            process = world().process
            if name == "fstat" and not process.alive:
                raise GreenletExit
            if name == "close":
                if arguments[0] in files_of(process):
                    files_of(process).remove(arguments[0])
                    os.close(arguments[0])
                return None
            fault = world().call(f"os.{name}") if name in CALLS else None
            if name == "pwrite" and world().random.random() < 0.3:  # it may write less than was asked
                arguments = (arguments[0], bytes(arguments[1])[: len(arguments[1]) // 2 + 1], arguments[2])
            answer = real(*arguments, **options)
            if name in ("open", "dup"):
                files_of(process).add(answer)
            world().answered(fault)
            return answer

        return call


_open = WeakKeyDictionary[Process, set[int]]()


def files_of(process: Process) -> set[int]:
    """Return the file descriptors that a process has open; the kernel closes them when it ends."""
    descriptors = _open.get(process)
    if descriptors is None:
        descriptors = _open[process] = set()

        def close() -> None:
            for fd in descriptors:
                os.close(fd)
            descriptors.clear()

        process.ended.append(close)
    return descriptors


def is_open(process: Process, inode: int) -> bool:
    """Return True if a process has that file open."""
    return any(os.fstat(fd).st_ino == inode for fd in files_of(process))


class Disk:
    """Changes of files by programs other than the agent, and the inotify events of them."""

    def __init__(self, here: World, logs: Path) -> None:
        self.world, self.logs = here, logs
        self.closed_soon = False
        self.instances: list[NamesModel] = []
        self.writes: list[WritesModel] = []
        self.cookies = itertools.count(1)

    def stamp(self, *paths: Path) -> None:
        """Times that a replay has, too."""
        when = int((START_SECONDS_SINCE_EPOCH + self.world.now) * 1e9)
        for path in (self.logs, *paths):
            os.utime(path, ns=(when, when))

    def say(self, mask: int, path: Path, cookie: int = 0) -> None:
        directory = path.parent.stat()
        for instance in self.instances:
            instance.queue((directory.st_dev, directory.st_ino), mask, cookie, os.fsencode(path.name))

    def create(self, path: Path) -> None:
        path.touch()
        self.stamp(path)
        self.say(CREATE, path)

    def append(self, path: Path, data: bytes) -> None:
        if not path.exists():
            self.create(path)
        with path.open("ab") as file:
            file.write(data)
        self._wrote(path)

    def truncate(self, path: Path) -> None:
        os.truncate(path, 0)
        self._wrote(path)

    def _wrote(self, path: Path) -> None:
        self.stamp(path)
        for instance in self.writes:
            instance.wrote(str(path))

    def rename(self, path: Path, to: Path) -> Path:
        path.rename(to)
        self.stamp()
        cookie, kind = next(self.cookies), DIRECTORY if to.is_dir() else 0
        self.say(FROM | kind, path, cookie)
        self.say(TO | kind, to, cookie)
        return to

    def mkdir(self, path: Path) -> None:
        path.mkdir()
        self.say(CREATE | DIRECTORY, path)

    def rmdir(self, path: Path) -> None:
        status = path.stat()
        path.rmdir()
        for instance in self.instances:
            instance.gone((status.st_dev, status.st_ino))
        self.say(DELETE | DIRECTORY, path)

    def unlink(self, path: Path) -> None:
        path.unlink()
        self.stamp()
        self.say(DELETE, path)

    def copy(self, path: Path, to: Path, *, pack: bool) -> None:
        self.create(to)
        to.write_bytes(gzip.compress(path.read_bytes(), mtime=0) if pack else path.read_bytes())
        self.stamp(to)


@contextmanager
def room() -> Iterator[Path]:
    """An empty directory, of one name wherever no other simulation has it: names decide the order of sets."""
    for number in itertools.count():
        home = ROOM.with_name(f"{ROOM.name}-{number}")
        home.mkdir(exist_ok=True)
        lock = os.open(home, os.O_RDONLY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            continue
        try:
            shutil.rmtree(home / "run", ignore_errors=True)
            (home / "run").mkdir()
            yield home / "run"
        finally:
            shutil.rmtree(home / "run", ignore_errors=True)
            os.close(lock)
        return
