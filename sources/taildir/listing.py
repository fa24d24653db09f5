"""What lies in a directory at present."""

from __future__ import annotations

import os
from contextlib import suppress

from sources.taildir.tail import Key


def key_of(path: str) -> Key | None:
    """Device and inode of what is there; None where there is nothing that can be seen."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def files(directory: str) -> list[os.DirEntry[str]]:
    """Every regular file there; none where the directory cannot be read."""
    found = []
    with suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            with suppress(OSError):
                if entry.is_file():
                    found.append(entry)
    return found


def names(directory: str) -> dict[Key, str]:
    """The name of every regular file there."""
    return {key: entry.path for entry in files(directory) if (key := key_of(entry.path))}
