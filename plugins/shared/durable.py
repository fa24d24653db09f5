"""Files that are whole after a crash, whenever it comes."""

from __future__ import annotations

import os
from pathlib import Path


def replace(path: Path, data: bytes) -> int:
    """Write the file anew, durably; answer it open. Raises OSError, and then the old one is still there."""
    fresh = path.with_name(path.name + ".tmp")
    fd = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(fd, rest) :]
        os.fsync(fd)
        fresh.replace(path)
        sync_directory(path.parent)
    except BaseException:
        os.close(fd)
        raise
    return fd


def sync_directory(path: Path) -> None:
    """Make its list of names durable. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
