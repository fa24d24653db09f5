"""Files under way: written on the local disk until they are whole."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from flafka.plugins import Retry
from flafka.sinks.serializers import Buffer, FileWriter, Serializer

PREFIX = "flafka-hdfs-"
LOW_BYTES = 256 << 20
"""With less free space than this, or an eighth of a small disk, what is staged had better be delivered."""

HELD_BYTES = 256 << 20
"""With more than this in memory, too: formats with blocks gather them."""

MAKING_SECONDS = 60.0
"""A directory without a lock may still be in the making for so long."""


@dataclass
class Staged:
    """One file under way."""

    path: Path
    bucket: str
    """Directory on HDFS and first part of the name of the final file."""
    kind: str
    """The serializer's kind of this file."""
    writer: FileWriter
    events: int = 0
    size: int = 0
    """Bytes of its events' bodies, which is what rollSize is about."""
    length: int = 0
    touched: float = 0.0
    closed: bool = False


@dataclass
class Partition:
    """The files under way of one partition."""

    since: float
    files: dict[tuple[str, str], Staged] = field(default_factory=dict)
    """By bucket and kind."""


class Staging:
    """A directory of this process's own. Files are opened for each write only, so that thousands can be under way."""

    def __init__(self, parent: Path, format: Serializer, clock: Callable[[], float] = time.monotonic) -> None:
        """Make it under `parent`, and remove directories of processes that died. Raises Retry where it cannot."""
        self._format, self._clock, self._number = format, clock, 0
        self.partitions: dict[int, Partition] = {}
        try:
            parent.mkdir(parents=True, exist_ok=True)
            _remove_abandoned(parent)
            self.directory = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
            self._lock = _lock(self.directory)
        except OSError as e:
            raise Retry(f"cannot use the staging directory {parent}: {e.strerror}") from e

    def close(self) -> None:
        """Remove it with all in it."""
        if self._lock is not None:
            shutil.rmtree(self.directory, ignore_errors=True)
            self._lock.close()
            self._lock = None

    def append(self, partition: int, bucket: str, kind: str, records: Any, events: int, size: int) -> Staged:
        """Add to the partition's file for that bucket. Raises Retry where the disk is full or fails."""
        part = self.partitions.setdefault(partition, Partition(self._clock()))
        file = part.files.get((bucket, kind))
        if file is None:
            self._number += 1
            file = Staged(self.directory / f"{partition}-{self._number}", bucket, kind, self._format.writer(kind))
            part.files[bucket, kind] = file
            self._write(file, file.writer.header)
        self._write(file, file.writer.add(records))
        file.events += events
        file.size += size
        file.touched = self._clock()
        return file

    def close_file(self, file: Staged) -> None:
        """Write the end of a file. Raises Retry where the disk is full or fails."""
        if not file.closed:
            self._write(file, file.writer.close())
            file.closed = True
        try:
            there = file.path.stat().st_size if file.length else 0
        except OSError as e:
            raise self._fails(e) from e
        if there != file.length:
            raise Retry(f"{file.path} was changed by someone: its events are taken again")

    def _write(self, file: Staged, data: Buffer) -> None:
        if not len(data) and file.length:
            return
        try:
            # A file that somebody has removed must not begin anew with what comes now.
            flags = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | (0 if file.length else os.O_CREAT)
            with os.fdopen(os.open(file.path, flags, 0o600), "ab", buffering=0) as out:
                written, view = 0, memoryview(data)
                while written < len(view):
                    written += out.write(view[written:])
        except OSError as e:
            raise self._fails(e) from e
        file.length += len(data)

    def _fails(self, error: OSError) -> Retry:
        """Return the error to raise, and make the directory anew where systemd-tmpfiles or others have removed it."""
        parent = self.directory.parent
        if not isinstance(error, FileNotFoundError):
            full = "is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else f"fails: {error.strerror}"
            return Retry(f"the staging directory {parent} {full}")
        try:
            if not self.directory.exists():
                self.directory.mkdir(mode=0o700, parents=True)
                if self._lock is not None:
                    self._lock.close()
                self._lock = _lock(self.directory)
        except OSError as e:
            return Retry(f"cannot use the staging directory {parent}: {e.strerror}")
        hint = "keep what cleans up away from it, or name another directory with hdfs.stagingDir"
        return Retry(f"files in the staging directory {parent} were removed: their events are taken again; {hint}")

    def is_low(self) -> bool:
        """Return True if the disk is nearly full, or the writers hold much in memory."""
        held = sum(file.writer.held for part in self.partitions.values() for file in part.files.values())
        if held > HELD_BYTES:
            return True
        try:
            disk = shutil.disk_usage(self.directory)
        except OSError:
            return False  # the next write says it better
        return disk.free < min(LOW_BYTES, disk.total // 8)

    def drop(self, partition: int) -> None:
        """Delete the partition's files."""
        part = self.partitions.pop(partition, None)
        for file in part.files.values() if part else ():
            with contextlib.suppress(OSError):
                file.path.unlink()


def _lock(directory: Path) -> IO[bytes] | None:
    """Lock a staging directory, until it is closed or the process dies; None where another process has it."""
    lock = (directory / "lock").open("ab")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        return None
    return lock


def _remove_abandoned(parent: Path) -> None:
    for directory in parent.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):  # another user's, or gone by now
            found = directory.lstat()
            if found.st_uid != os.geteuid() or time.time() - found.st_mtime < MAKING_SECONDS:
                continue
            if (lock := _lock(directory)) is not None:
                with lock:
                    shutil.rmtree(directory)
