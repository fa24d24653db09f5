"""Figures of the agent's process, from `/proc`: processor time, memory and file descriptors."""

from __future__ import annotations

import contextlib
import os
import resource
import time
from collections.abc import Mapping
from pathlib import Path

DESCRIPTORS_INTERVAL_SECONDS = 10.0
"""Interval at which descriptors are counted, which takes a millisecond for each thousand of them."""
_PAGE_BYTES = resource.getpagesize()


class ProcessFigures:
    """Figures of this process, without its child processes. For one thread."""

    def __init__(self) -> None:
        self._used, self._at = time.process_time(), time.monotonic()
        self._descriptors = 0.0
        self._descriptors_due = 0.0

    def sample(self) -> Mapping[str, float]:
        """Return the present figures by name. A figure that `/proc` does not show is missing.

        - `CpuPercent`: processor time since the call before, in percent of one core
        - `MemoryBytes`: resident memory
        - `OpenFileCount` and `OpenFileLimit`: file descriptors in use, and the process's limit
        """
        now, used = time.monotonic(), time.process_time()
        figures = {"CpuPercent": 100 * (used - self._used) / max(now - self._at, 1e-3)}
        self._used, self._at = used, now
        with contextlib.suppress(OSError, ValueError, IndexError):
            figures["MemoryBytes"] = float(int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES)
        if now >= self._descriptors_due:
            self._descriptors_due = now + DESCRIPTORS_INTERVAL_SECONDS
            with contextlib.suppress(OSError):
                self._descriptors = float(len(os.listdir("/proc/self/fd")) - 1)  # noqa: PTH208  # faster than Path
        if self._descriptors:
            figures["OpenFileCount"] = self._descriptors
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if limit != resource.RLIM_INFINITY:
            figures["OpenFileLimit"] = float(limit)
        return figures
