"""Locks of the directories of a file channel."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path
from typing import ClassVar

from flafka.channels.file.bulkload import flume_logs
from flafka.plugins import Retry

LOCK_FILE = "in_use.lock"


class DirectoryLock:
    """Exclusive lock of a directory by one channel. The lock file is Flume's, so that Flume respects the lock."""

    _holders: ClassVar[dict[Path, str]] = {}
    """Name of the channel with the lock, by directory: POSIX locks do not exclude the same process."""

    def __init__(self, directory: Path, name: str) -> None:
        """Lock the directory. Raises Retry if another channel or process has the lock, and OSError."""
        self._directory = directory.resolve()
        if (other := self._holders.get(self._directory)) is not None:
            raise Retry(
                f"{directory} is in use by channel {other}: give each channel its own checkpointDir and dataDirs"
            )
        self._file = (directory / LOCK_FILE).open("a+")
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as e:
            self._file.close()
            raise Retry(f"{directory} is in use by another process{_process_hint(directory)}") from e
        try:
            self._file.truncate(0)
            self._file.write(f"{os.getpid()}\n")
            self._file.flush()
        except OSError:  # after an error, such as a full disk, the next attempt must not find the lock taken
            self._close()
            raise
        self._holders[self._directory] = name

    def release(self) -> None:
        """Release the lock. Raise nothing, so that all locks of a channel are released."""
        del self._holders[self._directory]
        self._close()

    def _close(self) -> None:
        with contextlib.suppress(OSError):  # the file is closed even if its buffer cannot be written
            self._file.close()

    @classmethod
    def holder(cls, directory: Path) -> str:
        """Return a description of the process with the lock; empty if there is none, or if it is this one.

        Raises OSError if the lock file cannot be opened.
        """
        if directory.resolve() in cls._holders or not (directory / LOCK_FILE).exists():
            return ""
        with (directory / LOCK_FILE).open("a") as file:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                return f"another process{_process_hint(directory)}"
        return ""


def _process_hint(directory: Path) -> str:
    """Return the end of an error: the id of a live process from the lock file, or a hint at Flume; else empty."""
    # Flume writes no process id. The id from a killed agent may be stale.
    pid = (directory / LOCK_FILE).read_text().strip()
    if pid.isdigit() and Path("/proc", pid).exists():
        return f" ({pid})"
    return "; stop Flume, if it still runs" if flume_logs([directory]) else ""
