"""How many files this process may have open."""

from __future__ import annotations

import errno
import os
import resource
import sys

EXHAUSTED = (errno.EMFILE, errno.ENFILE)
"""Errors that say that no more files can be opened."""


def most_open() -> int:
    """The process's own limit; `sys.maxsize` where there is none."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return sys.maxsize if limit == resource.RLIM_INFINITY else limit


def exhausted() -> bool:
    """Whether not even one more can be opened now."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as e:
        return e.errno in EXHAUSTED
    return False
