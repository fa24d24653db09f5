"""Staging of the HDFS sink: files are written on the local disk until they are complete."""

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
LOW_DISK_BYTES = 256 << 20
"""Free space below which all files are closed; on a small disk, an eighth of it."""

MAX_BUFFERED_BYTES = 256 << 20
"""Memory of the buffered blocks of all files, above which all files are closed."""

UNLOCKED_GRACE_SECONDS = 60.0
"""Age up to which a directory without a lock may belong to a process that has not locked it yet."""


@dataclass
class OpenFile:
    """One file that is being written."""

    path: Path
    bucket: str
    """Directory on HDFS, and prefix of the final file's name."""
    kind: str
    """Kind of the file, as `Serializer.kinds` returns it."""
    writer: FileWriter
    events: int = 0
    size: int = 0
    """Bytes of its events' bodies, which rollSize limits."""
    length: int = 0
    """Bytes written to `path`."""
    last_write: float = 0.0
    """Time of the latest write, on the clock of `Staging`."""
    closed: bool = False


@dataclass
class OpenFiles:
    """Files of one partition that are being written."""

    since: float
    """Time of the first write, on the clock of `Staging`."""
    files: dict[tuple[str, str], OpenFile] = field(default_factory=dict)
    """Files by bucket and kind."""


class Staging:
    """Staging directory of one process. A file is open only during a write, so that there can be thousands."""

    def __init__(self, parent: Path, format: Serializer, clock: Callable[[], float] = time.monotonic) -> None:
        """Create a directory in `parent`, and remove directories of dead processes. Raises Retry if that fails."""
        self._format, self._clock, self._number = format, clock, 0
        self.partitions: dict[int, OpenFiles] = {}
        try:
            parent.mkdir(parents=True, exist_ok=True)
            _remove_abandoned(parent)
            self.directory = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
            self._lock = _lock(self.directory)
        except OSError as e:
            raise Retry(f"cannot use the staging directory {parent}: {e.strerror}") from e

    def close(self) -> None:
        """Remove the directory and its files."""
        if self._lock is not None:
            shutil.rmtree(self.directory, ignore_errors=True)
            self._lock.close()
            self._lock = None

    def append(self, partition: int, bucket: str, kind: str, records: Any, events: int, size: int) -> OpenFile:
        """Append records to the partition's file of that bucket and kind, and return the file.

        `events` and `size`, the bytes of their bodies, are added to its counts. Raises Retry if the disk is full or
        fails.
        """
        part = self.partitions.setdefault(partition, OpenFiles(self._clock()))
        file = part.files.get((bucket, kind))
        if file is None:
            self._number += 1
            file = OpenFile(self.directory / f"{partition}-{self._number}", bucket, kind, self._format.writer(kind))
            part.files[bucket, kind] = file
            self._write(file, file.writer.header)
        self._write(file, file.writer.add(records))
        file.events += events
        file.size += size
        file.last_write = self._clock()
        return file

    def close_file(self, file: OpenFile) -> None:
        """Write the end of a file. Idempotent.

        Raises Retry if the disk is full or fails, or if the file has another length than was written.
        """
        if not file.closed:
            self._write(file, file.writer.close())
            file.closed = True
        try:
            size = file.path.stat().st_size if file.length else 0
        except OSError as e:
            raise self._failure(e) from e
        if size != file.length:
            raise Retry(f"{file.path} was changed by someone: its events are redelivered")

    def _write(self, file: OpenFile, data: Buffer) -> None:
        """Append bytes to a file, which the first write creates. Raises Retry."""
        if not len(data) and file.length:
            return
        try:
            # Without O_CREAT a file that someone has removed fails, rather than begin with the events of this write.
            flags = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | (0 if file.length else os.O_CREAT)
            with os.fdopen(os.open(file.path, flags, 0o600), "ab", buffering=0) as out:
                written, view = 0, memoryview(data)
                while written < len(view):
                    written += out.write(view[written:])
        except OSError as e:
            raise self._failure(e) from e
        file.length += len(data)

    def _failure(self, error: OSError) -> Retry:
        """Return the error to raise for `error`, with the reason.

        If the staging directory was removed, as by systemd-tmpfiles or a user, create and lock it again.
        """
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
        hint = "exclude it from clean-up, or name another directory with hdfs.stagingDir"
        return Retry(f"files in the staging directory {parent} were removed: their events are redelivered; {hint}")

    def is_low(self) -> bool:
        """Return True if the disk has less free than `LOW_DISK_BYTES`, or than an eighth of a small disk.

        Also return True if the writers buffer more than `MAX_BUFFERED_BYTES`.
        """
        buffered = sum(
            file.writer.buffered_bytes for part in self.partitions.values() for file in part.files.values()
        )
        if buffered > MAX_BUFFERED_BYTES:
            return True
        try:
            disk = shutil.disk_usage(self.directory)
        except OSError:
            return False  # the next write raises the error, with its reason
        return disk.free < min(LOW_DISK_BYTES, disk.total // 8)

    def drop(self, partition: int) -> None:
        """Delete the partition's files, best-effort."""
        part = self.partitions.pop(partition, None)
        for file in part.files.values() if part else ():
            with contextlib.suppress(OSError):
                file.path.unlink()


def _lock(directory: Path) -> IO[bytes] | None:
    """Lock a staging directory, until the returned file is closed or the process dies. Return None if it is locked.

    Raises OSError.
    """
    lock = (directory / "lock").open("ab")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        return None
    return lock


def _remove_abandoned(parent: Path) -> None:
    """Remove staging directories of this user that no process has locked, if older than `UNLOCKED_GRACE_SECONDS`."""
    for directory in parent.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):  # another user's directory, or one that was removed meanwhile
            status = directory.lstat()
            if status.st_uid != os.geteuid() or time.time() - status.st_mtime < UNLOCKED_GRACE_SECONDS:
                continue
            if (lock := _lock(directory)) is not None:
                with lock:
                    shutil.rmtree(directory)
