"""Latest warnings and errors of the log, for the page and `agent top`."""

from __future__ import annotations

import logging
from collections import deque
from typing import NamedTuple

MAX_ENTRIES = 100
MAX_ENTRIES_OF_ONE = 5
"""Number of latest entries of each component that stay, however many others have."""
MAX_COMPONENTS = 100


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
        self._of_one: dict[str, deque[LogEntry]] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Add a log record without its traceback.

        Beyond `MAX_ENTRIES`, the oldest entry is dropped, unless it is among the latest of its component.
        """
        entry = LogEntry(record.created, record.levelname, record.name, record.getMessage())
        self._entries.append(entry)
        latest = self._of_one.pop(record.name, None) or deque(maxlen=MAX_ENTRIES_OF_ONE)
        latest.append(entry)
        self._of_one[record.name] = latest
        if len(self._of_one) > MAX_COMPONENTS:
            del self._of_one[next(iter(self._of_one))]

    def entries(self) -> list[LogEntry]:
        """Return the latest warnings and errors, newest first: `MAX_ENTRIES`, and the latest of each component."""
        kept = {id(entry): entry for latest in [*self._of_one.values(), self._entries] for entry in [*latest]}
        return sorted(kept.values(), key=lambda entry: -entry.at)
