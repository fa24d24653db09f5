"""Scratch directory of a Spark driver, which is removed once no process uses it any more."""

from __future__ import annotations

import fcntl
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PREFIX = "flafka-spark-"
_OWNER = "owner"
"""File in a scratch directory on which each process that uses the directory holds a shared lock."""
_END_SECONDS = 10.0
"""Longest wait for the end of the processes that use a scratch directory."""


@contextmanager
def scratch_directory() -> Iterator[str]:
    """Create a scratch directory for the block, yield its path, and remove it once no process uses it.

    Directories of killed agents are removed first. The removal waits up to 10 s for processes that hold
    `lock_scratch_directory`.
    """
    for owner in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*/{_OWNER}"):
        if _is_abandoned(owner):
            shutil.rmtree(owner.parent, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True) as directory:
        owner = Path(directory, _OWNER)
        try:
            with owner.open("wb") as file:
                fcntl.flock(file, fcntl.LOCK_SH)
                yield directory
        finally:
            # The JVM of a killed driver outlives the driver by a moment, and recreates files that are removed.
            deadline = time.monotonic() + _END_SECONDS
            while not _is_abandoned(owner) and time.monotonic() < deadline:
                time.sleep(0.02)


@contextmanager
def lock_scratch_directory() -> Iterator[list[int]]:
    """Hold a shared lock on the scratch directory of this process, and yield the file descriptors that hold it.

    A child process that inherits these keeps the directory. The list is empty without a scratch directory.
    """
    owner = Path(tempfile.gettempdir(), _OWNER)
    if not (owner.parent.name.startswith(_PREFIX) and owner.exists()):
        yield []
        return
    with owner.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        yield [file.fileno()]


def _is_abandoned(owner: Path) -> bool:
    """Return True if no process uses the scratch directory, or if the cleanup of /tmp has removed the file."""
    try:
        with owner.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return not owner.exists()
    return True
