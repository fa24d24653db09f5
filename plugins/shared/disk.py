"""Directories of this host that files are kept in, and files that are whole after a crash, whenever it comes."""

from __future__ import annotations

import os
from pathlib import Path


def existing(path: Path) -> Path:
    """It, or what is nearest above it."""
    return next(one for one in (path, *path.parents) if one.exists())


def writable(directory: Path) -> bool:
    """Whether files can be created there, the directory itself included."""
    found = existing(directory)
    return found.is_dir() and os.access(found, os.W_OK | os.X_OK)


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


def sync_directory(directory: Path) -> None:
    """Make its list of names durable. Raises OSError."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
