"""Rotated copies, plain or compressed, of tracked files that are gone."""

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

from flafka.plugins.shared.disk import write_at
from flafka.sources.compressed import COMPRESSED, unpacked
from flafka.sources.taildir.cursors import HEAD, TAIL
from flafka.sources.taildir.tail import Key, Tail
from flafka.sources.troubles import Troubles

_PIECE = 1 << 20
_MOST = 100
"""Maximum number of files, the most recently modified, that are compared with a lost file."""


class Copy(NamedTuple):
    """Rotated copy of a tracked file."""

    path: str
    key: Key
    """Device and inode of the copy, or of the temporary file with its uncompressed content."""
    unpacked: int | None
    """Descriptor of the uncompressed content; None where the copy is plain."""


class Copies:
    """Search for rotated copies of tracked files that are gone."""

    def __init__(self, room: str, troubles: Troubles, stopping: threading.Event) -> None:
        """Use the directory `room` for uncompressed content; stop unpacking once `stopping` is set."""
        self._room, self._troubles, self._stopping = room, troubles, stopping

    def find(self, tail: Tail, entries: Iterable[os.DirEntry[str]], followed: Collection[Key]) -> Copy | None:
        """Return the latest of the files in `entries` that proves to be a rotated copy of the tail's file.

        None where there is no copy. Files in `followed` do not count: they are tracked already. Errors of one file
        are logged as rate-limited warnings, and that file is tried again at the next scan.
        """
        for path, status in _latest(entries, tail):
            identity = (status.st_ino, status.st_mtime_ns, status.st_size)
            if identity in tail.refused or self._stopping.is_set():
                continue
            try:
                fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            except OSError:
                continue  # the next scan tries to open it again
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
        if os.pread(fd, 16, 0).startswith(COMPRESSED):
            content = unpack(tail, fd, self._room, self._stopping)
            return None if content is None else Copy(path, _key(content), content)
        return Copy(path, _key(fd), None) if _key(fd) not in followed and tail.is_in(fd, path) else None


def _key(fd: int) -> Key:
    status = os.fstat(fd)
    return status.st_dev, status.st_ino


def _latest(entries: Iterable[os.DirEntry[str]], tail: Tail) -> list[tuple[str, os.stat_result]]:
    """Return up to `_MOST` possible copies of the tail's file, the latest first."""
    found = []
    for entry in entries:
        if may_be_copy(tail, entry.path):
            with suppress(OSError):
                found.append((entry.path, entry.stat()))
    found.sort(key=lambda entry: (-entry[1].st_mtime_ns, entry[0]))
    return found[:_MOST]


def may_be_copy(tail: Tail, path: str) -> bool:
    """Return True if a rotation of the tail's log may have given a file that name.

    `access.log` becomes `access.log.1`, `access.log-20261122.gz` or `access-2026-11-22.1.log.gz`.
    """
    return path not in (tail.name, tail.path) and Path(path).name.startswith(Path(tail.name).stem)


def unpack(tail: Tail, fd: int, directory: str, stopping: threading.Event) -> int | None:
    """Uncompress a rotated copy of the tail's file; return a descriptor of its content.

    The content lies in an unnamed file in `directory`, at the original offsets. Bytes before the tail's offset are
    left out, except those that prove the identity of the file. None where the copy is of another file, is incomplete,
    or `stopping` is set. Raises OSError where `directory` cannot hold the content.
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
                write_at(out.fileno(), data, 0)
            elif offset + len(data) > first - TAIL:
                write_at(out.fileno(), data, offset)
            offset += len(data)
            if not proved and offset >= last:
                if not mark.holds(out.fileno()):
                    return None
                proved = True
            if not data:
                return os.dup(out.fileno()) if proved else None
    return None
