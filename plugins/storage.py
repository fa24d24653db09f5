"""Durable files: directories that survive a crash, and files that a crash leaves complete."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def nearest_existing(path: Path) -> Path:
    """Return the path, or its nearest parent that exists."""
    return next(candidate for candidate in (path, *path.parents) if candidate.exists())


def is_writable(directory: Path) -> bool:
    """Return True if this user may create files in the directory, which need not exist yet."""
    nearest = nearest_existing(directory)
    return nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)


def make_directory(directory: Path) -> None:
    """Create the directory and its missing parents durably. Raises OSError.

    The name of an existing directory is synced too: its creator may have been killed before that.
    """
    created = [path for path in (directory, *directory.parents) if not path.exists()]
    directory.mkdir(parents=True, exist_ok=True)
    for path in (directory, *directory.parents):
        if path.is_mount():
            break
        # The parent of a directory of another user may be unreadable.
        with contextlib.suppress(*[] if path in created else [OSError]):
            sync_directory(path.parent)


def free_bytes(directory: Path) -> int:
    """Return the free bytes of the directory's file system. Raises OSError."""
    status = os.statvfs(directory)
    return status.f_bavail * status.f_frsize


def least_free_bytes(*directories: Path) -> int | None:
    """Return the free bytes of the fullest file system of these directories; None if it cannot be found out.

    A directory that does not exist yet counts by its nearest existing parent.
    """
    try:
        return min(free_bytes(nearest_existing(directory)) for directory in directories)
    except OSError:
        return None


def replace_file(path: Path, data: bytes) -> int:
    """Replace the file durably and atomically; return its descriptor, open for reading and writing.

    Raises OSError. Then the old file stays, unless only the last step failed, the sync of the directory.
    """
    fresh = path.with_name(path.name + ".tmp")
    fd = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        unwritten = memoryview(data)
        while unwritten:
            unwritten = unwritten[os.write(fd, unwritten) :]
        os.fsync(fd)
        fresh.replace(path)
        sync_directory(path.parent)
    except BaseException:
        os.close(fd)
        raise
    return fd


def append_to_file(fd: int, data: bytes, size: int) -> int:
    """Write `data` durably after the first `size` bytes of a file; return the new size in bytes. Raises OSError.

    Truncates bytes after `size`, which a failed attempt may have left.
    """
    os.ftruncate(fd, size)
    write_at(fd, data, size)
    os.fdatasync(fd)
    return size + len(data)


def write_at(fd: int, data: bytes, offset: int) -> None:
    """Write all of the data at a byte offset of a file, without a sync. Raises OSError."""
    unwritten = memoryview(data)
    while unwritten:
        written = os.pwrite(fd, unwritten, offset)
        offset += written
        unwritten = unwritten[written:]


def sync_directory(directory: Path) -> None:
    """Sync the entries of a directory to the disk. Raises OSError."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
