"""Directories of this host that files are kept in, and files that are whole after a crash, whenever it comes."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def existing(path: Path) -> Path:
    """It, or what is nearest above it."""
    return next(one for one in (path, *path.parents) if one.exists())


def writable(directory: Path) -> bool:
    """Whether files can be created there, the directory itself included."""
    found = existing(directory)
    return found.is_dir() and os.access(found, os.W_OK | os.X_OK)


def make_directory(directory: Path) -> None:
    """Make it, and what is missing above it, durably. Raises OSError.

    Who made one that is there already may have been killed before its name was durable: it is made so again.
    """
    made = [one for one in (directory, *directory.parents) if not one.exists()]
    directory.mkdir(parents=True, exist_ok=True)
    for one in (directory, *directory.parents):
        if one.is_mount():
            break
        with contextlib.suppress(*[] if one in made else [OSError]):  # one that is not ours need not be readable
            sync_directory(one.parent)


def room(directory: Path) -> int:
    """Bytes that may still be written there. Raises OSError."""
    found = os.statvfs(directory)
    return found.f_bavail * found.f_frsize


def least_room(*directories: Path) -> int | None:
    """The least of theirs; where one is missing, of what is nearest above. None: it cannot be told."""
    try:
        return min(room(existing(directory)) for directory in directories)
    except OSError:
        return None


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


def append(fd: int, data: bytes, size: int) -> int:
    """Append durably to a file of which `size` bytes count; return their new number. Raises OSError.

    Bytes behind these, which a failed attempt may have left, are cut off.
    """
    os.ftruncate(fd, size)
    write_at(fd, data, size)
    os.fdatasync(fd)
    return size + len(data)


def write_at(fd: int, data: bytes, offset: int) -> None:
    """Write all of the data at an offset of a file, not durably. Raises OSError."""
    rest = memoryview(data)
    while rest:
        written = os.pwrite(fd, rest, offset)
        offset += written
        rest = rest[written:]


def sync_directory(directory: Path) -> None:
    """Make its list of names durable. Raises OSError."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
