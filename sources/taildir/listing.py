"""What lies in a directory at present. That it cannot be seen is an error: it does not mean that nothing is there."""

from __future__ import annotations

import errno
import os
from contextlib import suppress

from sources.taildir.tail import Key

_NOTHING = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


def nothing_there(error: OSError) -> bool:
    """Whether it says that there is no such file or directory, rather than that it cannot be seen."""
    return error.errno in _NOTHING


def key_of(path: str) -> Key | None:
    """Device and inode of what is there; None where there is nothing. Raises OSError where that cannot be seen."""
    try:
        status = os.stat(path)
    except OSError as e:
        if nothing_there(e):
            return None
        raise
    return status.st_dev, status.st_ino


def opened_as(path: str, key: Key) -> tuple[int | None, os.stat_result] | None:
    """The file of that name, open where it can be opened, and its status. None where that is no longer that file."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        fd = None
    try:
        status = os.stat(path) if fd is None else os.fstat(fd)
    except OSError:
        return None  # a file that could not be opened has gone
    if (status.st_dev, status.st_ino) == key:
        return fd, status
    if fd is not None:
        os.close(fd)
    return None


def files(directory: str) -> list[os.DirEntry[str]]:
    """Every regular file there; none where there is no such directory. Raises OSError where it cannot be seen.

    A symbolic link to what cannot be seen is none.
    """
    found = []
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                with suppress(OSError):  # only what a link leads to is asked for anew
                    if entry.is_file():
                        found.append(entry)
    except OSError as e:
        if not nothing_there(e):
            raise
    return found


def names(directory: str) -> dict[Key, str]:
    """The name of every regular file there. Raises as `files` does."""
    found = {}
    for entry in files(directory):
        try:
            status = entry.stat()
        except OSError as e:
            if entry.is_symlink() or nothing_there(e):
                continue
            raise
        found[status.st_dev, status.st_ino] = entry.path
    return found
