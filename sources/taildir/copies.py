"""Rotated copies: files that hold what a file that is gone held, compressed or not."""

from __future__ import annotations

import lzma
import os
import tempfile
import threading
import zlib
from pathlib import Path

from sources.compressed import COMPRESSED, unpacked
from sources.taildir.tail import HEAD, TAIL, Tail

_PIECE = 1 << 20


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
