"""The latest warnings and errors of the log, for those who look at the agent rather than at its log."""

from __future__ import annotations

import logging
from collections import deque
from typing import NamedTuple

MOST = 100


class Said(NamedTuple):
    """One of them."""

    at: float
    """Seconds since the epoch."""
    level: str
    component: str
    text: str


class Recent(logging.Handler):
    """Keeps the latest warnings and errors of the whole process."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._said: deque[Said] = deque(maxlen=MOST)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep it, as the log has it but for a traceback."""
        self._said.append(Said(record.created, record.levelname, record.name, record.getMessage()))

    def said(self) -> list[Said]:
        """The newest first."""
        return list(reversed(list(self._said)))
