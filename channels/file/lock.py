"""Directories that one channel has to itself, and the room on their disks."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path
from typing import ClassVar

from flafka.channels.file import loading
from flafka.plugins import Retry

LOCK = "in_use.lock"


class Lock:
    """A directory that is one channel's. Flume's own lock file, so that a Flume keeps out, too."""

    _held: ClassVar[dict[Path, str]] = {}
    """Of this process, by whom: the system's locks do not keep a process from itself."""

    def __init__(self, directory: Path, name: str) -> None:
        """Raises Retry where it is another's, and OSError."""
        self._directory = directory.resolve()
        if (other := self._held.get(self._directory)) is not None:
            raise Retry(
                f"{directory} is used by channel {other} already: give each a checkpointDir and dataDirs of its own"
            )
        self._file = (directory / LOCK).open("a+")
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as e:
            self._file.close()
            raise Retry(f"{directory} is used by another process{_named(directory)}") from e
        try:
            self._file.truncate(0)
            self._file.write(f"{os.getpid()}\n")
            self._file.flush()
        except OSError:  # the disk may be full: whoever opens again must not find it locked by itself
            self._close()
            raise
        self._held[self._directory] = name

    def release(self) -> None:
        """Let another channel have the directory. Raises nothing, so that all locks of a channel are released."""
        del self._held[self._directory]
        self._close()

    def _close(self) -> None:
        with contextlib.suppress(OSError):  # it closes the file also where what is buffered cannot be written
            self._file.close()

    @classmethod
    def held(cls, directory: Path) -> str:
        """Whose it is at present, in words; empty where it is nobody's."""
        if directory.resolve() in cls._held or not (directory / LOCK).exists():
            return ""
        with (directory / LOCK).open("a") as file:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                return f"another process{_named(directory)}"
        return ""


def _named(directory: Path) -> str:
    """Flume's lock names no process, and what is left of ours may name one that is gone."""
    pid = (directory / LOCK).read_text().strip()
    if pid.isdigit() and Path("/proc", pid).exists():
        return f" ({pid})"
    return "; stop Flume, if it still runs" if loading.of_flume([directory]) else ""
