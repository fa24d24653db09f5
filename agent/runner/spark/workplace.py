"""The temporary directory of a Spark driver: it is removed once nothing runs any more that uses it."""

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
"""The file in a workplace that all who use it keep locked, together, as long as they live."""
_END_SECONDS = 10.0
"""A process that was killed ends within moments."""


@contextmanager
def workplace() -> Iterator[str]:
    """A temporary directory; those that killed agents left behind are removed first."""
    for owner in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*/{_OWNER}"):
        if _is_left(owner):
            shutil.rmtree(owner.parent, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True) as directory:
        owner = Path(directory, _OWNER)
        try:
            with owner.open("wb") as file:
                fcntl.flock(file, fcntl.LOCK_SH)
                yield directory
        finally:
            # The JVM of a driver that was killed outlives it by a moment, and makes again what is removed under it.
            deadline = time.monotonic() + _END_SECONDS
            while not _is_left(owner) and time.monotonic() < deadline:
                time.sleep(0.02)


@contextmanager
def used() -> Iterator[list[int]]:
    """Descriptors to hand on to a process that uses the workplace which this one is in; none where it is in none."""
    owner = Path(tempfile.gettempdir(), _OWNER)
    if not (owner.parent.name.startswith(_PREFIX) and owner.exists()):
        yield []
        return
    with owner.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        yield [file.fileno()]


def _is_left(owner: Path) -> bool:
    """Whether nobody uses the workplace any more; true where what cleans up /tmp has removed the file, too."""
    try:
        with owner.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return not owner.exists()
    return True
