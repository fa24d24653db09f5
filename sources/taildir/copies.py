"""Rotated copies: files that hold what a file that is gone held, compressed or not."""

from __future__ import annotations

import lzma
import os
import tempfile
import threading
import zlib
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from sources.compressed import COMPRESSED, unpacked
from sources.taildir.tail import HEAD, TAIL, Key, Tail
from sources.troubles import Troubles

_PIECE = 1 << 20
_MOST = 100
"""So many files, the latest, are looked into for what a file that is gone held."""


class Copy(NamedTuple):
    """A file that holds what another one held."""

    path: str
    key: Key
    """Of the copy, or of what it holds unpacked."""
    unpacked: int | None
    """Descriptor of what a compressed copy holds; None where the copy is plain."""


class Copies:
    """Looks for what files that are gone held."""

    def __init__(self, room: str, troubles: Troubles, stopping: threading.Event) -> None:
        """`room` is a directory for what compressed copies hold; unpacking ends when `stopping` is set."""
        self._room, self._troubles, self._stopping = room, troubles, stopping

    def find(self, tail: Tail, entries: Iterable[os.DirEntry[str]], followed: Collection[Key]) -> Copy | None:
        """The latest of these files that proves to hold what the tail's file held, and is not `followed` itself."""
        for path, status in _latest(entries, tail):
            identity = (status.st_ino, status.st_mtime_ns, status.st_size)
            if identity in tail.refused or self._stopping.is_set():
                continue
            try:
                fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            except OSError:
                continue  # perhaps it can be opened at the next look
            try:
                copy = self._look_into(tail, fd, path, followed)
            except OSError as e:
                self._troubles.report(path, f"{path} cannot be unpacked, it is tried again: {e.strerror or e}")
                continue
            finally:
                os.close(fd)
            self._troubles.over(path)
            if copy is not None:
                return copy
            tail.refused.add(identity)
        return None

    def _look_into(self, tail: Tail, fd: int, path: str, followed: Collection[Key]) -> Copy | None:
        if compressed(fd):
            content = unpack(tail, fd, self._room, self._stopping)
            return None if content is None else Copy(path, _key(content), content)
        return Copy(path, _key(fd), None) if _key(fd) not in followed and tail.is_in(fd, path) else None


def _key(fd: int) -> Key:
    status = os.fstat(fd)
    return status.st_dev, status.st_ino


def _latest(entries: Iterable[os.DirEntry[str]], tail: Tail) -> list[tuple[str, os.stat_result]]:
    """Those that may be copies of it, the latest first."""
    found = []
    for entry in entries:
        if may_be_copy(tail, entry.path):
            with suppress(OSError):
                found.append((entry.path, entry.stat()))
    found.sort(key=lambda entry: (-entry[1].st_mtime_ns, entry[0]))
    return found[:_MOST]


def may_be_copy(tail: Tail, path: str) -> bool:
    """Whether a rotation of that log may have given the file such a name.

    `access.log` becomes `access.log.1`, `access.log-20261122.gz` or `access-2026-11-22.1.log.gz`.
    """
    return path not in (tail.name, tail.path) and Path(path).name.startswith(Path(tail.name).stem)


def compressed(fd: int) -> bool:
    """Whether the open file begins as a compressed one does."""
    return os.pread(fd, 16, 0).startswith(COMPRESSED)


def unpack(tail: Tail, fd: int, directory: str, stopping: threading.Event) -> int | None:
    """Where the compressed file goes on behind the tail's position, answer it unpacked.

    That is an open file without a name in `directory`, in which all that was read before is left out but for what
    proves it. None where it is the copy of another file, is not complete, or `stopping` is set. Raises OSError where
    `directory` cannot hold it.
    """
    mark = tail.mark
    assert mark is not None
    with os.fdopen(fd, "rb", closefd=False) as packed, tempfile.TemporaryFile(dir=directory) as out:
        packed.seek(0)
        stream = unpacked(packed)
        offset, proved = 0, False
        first, last = sorted((mark.offset, tail.position))
        while not stopping.is_set():
            try:
                data = stream.read(_PIECE if offset else HEAD)
            except (OSError, EOFError, zlib.error, lzma.LZMAError):
                return None
            if not offset:
                if not mark.begins(data):
                    return None
                _write(out.fileno(), data, 0)
            elif offset + len(data) > first - TAIL:
                _write(out.fileno(), data, offset)
            offset += len(data)
            if not proved and offset >= last:
                if not mark.holds(out.fileno()):
                    return None
                proved = True
            if not data:
                return os.dup(out.fileno()) if proved else None
    return None


def _write(fd: int, data: bytes, offset: int) -> None:
    rest = memoryview(data)
    while rest:
        written = os.pwrite(fd, rest, offset)
        offset += written
        rest = rest[written:]
