"""When a file was created, which the standard library does not tell on Linux."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Callable
from typing import Any

_FDCWD = -100
_EMPTY_PATH = 0x1000
_BIRTH, _INODE = 0x800, 0x100
_MASK, _INODE_AT, _BIRTH_AT = struct.Struct("I"), 32, 80
_TIME = struct.Struct("qI")
_SIZE = 256
_statx: Callable[..., int] | Any = getattr(ctypes.CDLL(None), "statx", None)


def birth(file: str | int, inode: int) -> int:
    """When the file of that name, or of that descriptor, was created, in nanoseconds.

    0 where the file system or the system does not tell, and where it is not the file with that number any more.
    """
    if _statx is None:
        return 0
    buffer = ctypes.create_string_buffer(_SIZE)
    if isinstance(file, int):
        failed = _statx(file, b"", _EMPTY_PATH, _BIRTH | _INODE, buffer)
    else:
        failed = _statx(_FDCWD, os.fsencode(file), 0, _BIRTH | _INODE, buffer)
    (told,) = _MASK.unpack_from(buffer)
    (found,) = struct.unpack_from("Q", buffer, _INODE_AT)
    if failed or not told & _BIRTH or found != inode:
        return 0
    seconds, nanoseconds = _TIME.unpack_from(buffer, _BIRTH_AT)
    return int(seconds * 1_000_000_000 + nanoseconds)
