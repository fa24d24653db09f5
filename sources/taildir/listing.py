"""Content of directories.

An unreadable directory raises an error: it must not count as empty, or its files would count as deleted.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress

from flafka.sources.taildir.tail import Key

_NOTHING = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


def nothing_there(error: OSError) -> bool:
    """Return True if the error means that the file does not exist, rather than that it is unreadable."""
    return error.errno in _NOTHING


def key_of(path: str) -> Key | None:
    """Return device and inode of the file at `path`; None where there is no file.

    Raises OSError where that cannot be determined.
    """
    try:
        status = os.stat(path)
    except OSError as e:
        if nothing_there(e):
            return None
        raise
    return status.st_dev, status.st_ino


def opened_as(path: str, key: Key) -> tuple[int | None, os.stat_result] | None:
    """Return a descriptor and the status of the file at `path`; None where it has another key by now.

    The descriptor is None where the file cannot be opened.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        fd = None
    try:
        status = os.stat(path) if fd is None else os.fstat(fd)
    except OSError:
        return None  # the file could not be opened, and is gone
    if (status.st_dev, status.st_ino) == key:
        return fd, status
    if fd is not None:
        os.close(fd)
    return None


def files(directory: str) -> list[os.DirEntry[str]]:
    """Return the regular files in a directory, and symbolic links to regular files.

    Empty where there is no such directory. Raises OSError where it is unreadable. A link with an unreadable target is
    left out.
    """
    found = []
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                with suppress(OSError):  # is_file() calls stat() for a link, whose target may be unreadable
                    if entry.is_file():
                        found.append(entry)
    except OSError as e:
        if not nothing_there(e):
            raise
    return found


def names(directory: str) -> dict[Key, str]:
    """Return the path of every regular file in a directory, by key. Raises OSError as `files` does."""
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
