"""Limit of the process on open file descriptors."""

from __future__ import annotations

import errno
import os
import resource
import sys

EXHAUSTED_ERRNOS = (errno.EMFILE, errno.ENFILE)
"""Error numbers for a process, or a host, that is out of file descriptors."""


def max_descriptors() -> int:
    """Return the limit of this process (RLIMIT_NOFILE); `sys.maxsize` where there is none."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return sys.maxsize if limit == resource.RLIM_INFINITY else limit


def descriptors_exhausted() -> bool:
    """Return True if this process, or the host, is out of file descriptors now."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as e:
        return e.errno in EXHAUSTED_ERRNOS
    return False
