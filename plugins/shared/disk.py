"""Directories of this host that files are kept in."""

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


def sync_directory(directory: Path) -> None:
    """Make its list of names durable. Raises OSError."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
