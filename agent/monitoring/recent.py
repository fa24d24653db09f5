"""Latest warnings and errors of the log, for the page and `agent top`."""

from __future__ import annotations

import logging
from collections import deque
from typing import NamedTuple

MAX_ENTRIES = 100


class LogEntry(NamedTuple):
    """One line of the log."""

    at: float
    """Seconds since the epoch."""
    level: str
    component: str
    text: str


class RecentLog(logging.Handler):
    """Log handler that holds the latest warnings and errors of the whole process. Any thread may call."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._entries: deque[LogEntry] = deque(maxlen=MAX_ENTRIES)

    def emit(self, record: logging.LogRecord) -> None:
        """Add a log record without its traceback. Beyond `MAX_ENTRIES`, the oldest entry is dropped."""
        self._entries.append(LogEntry(record.created, record.levelname, record.name, record.getMessage()))

    def entries(self) -> list[LogEntry]:
        """Return the latest warnings and errors, at most `MAX_ENTRIES`, newest first."""
        return list(reversed(list(self._entries)))
