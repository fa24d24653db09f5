"""Open files of a source."""

from __future__ import annotations

from pathlib import Path


def open_files(directory: Path) -> list[str]:
    """Return the open files of this process under that directory, deleted ones included."""
    targets = []
    for fd in Path("/proc/self/fd").iterdir():
        try:
            target = str(fd.readlink())
        except OSError:
            continue
        if target.startswith(str(directory)) or "inotify" in target:
            targets.append(target)
    return targets
