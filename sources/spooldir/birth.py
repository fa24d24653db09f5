"""Birth times of files, which Python's standard library does not report on Linux: statx(2)."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Callable
from typing import Any

_AT_FDCWD = -100
_AT_EMPTY_PATH = 0x1000
_STATX_BTIME, _STATX_INO = 0x800, 0x100
_MASK, _INODE_OFFSET, _BIRTH_OFFSET = struct.Struct("I"), 32, 80
_TIME = struct.Struct("qI")
_STATX_BYTES = 256
_statx: Callable[..., int] | Any = getattr(ctypes.CDLL(None), "statx", None)


def birth_time(file: str | int, inode: int) -> int:
    """Return the birth time of the file with that path or descriptor, in nanoseconds since the epoch.

    0 where the kernel or the file system does not report birth times, or if the file no longer has that inode.
    """
    if _statx is None:
        return 0
    buffer = ctypes.create_string_buffer(_STATX_BYTES)
    if isinstance(file, int):
        failed = _statx(file, b"", _AT_EMPTY_PATH, _STATX_BTIME | _STATX_INO, buffer)
    else:
        failed = _statx(_AT_FDCWD, os.fsencode(file), 0, _STATX_BTIME | _STATX_INO, buffer)
    (mask,) = _MASK.unpack_from(buffer)
    (actual_inode,) = struct.unpack_from("Q", buffer, _INODE_OFFSET)
    if failed or not mask & _STATX_BTIME or actual_inode != inode:
        return 0
    seconds, nanoseconds = _TIME.unpack_from(buffer, _BIRTH_OFFSET)
    return int(seconds * 1_000_000_000 + nanoseconds)
