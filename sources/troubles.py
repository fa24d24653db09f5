"""What cannot be read at present."""

from __future__ import annotations

import logging

from plugins import Metrics


class Troubles:
    """Troubles with files and directories: told and counted once each, shown until they are over."""

    def __init__(self, log: logging.Logger, metrics: Metrics) -> None:
        self._log = log
        self._metrics = metrics
        self._texts: dict[str, str] = {}

    def report(self, path: str, text: str) -> None:
        """That path cannot be read, for the reason in `text`."""
        if self._texts.get(path) != text:
            self._texts[path] = text
            self._metrics.add("EventReadFail")
            self._metrics.set("UnreadableCount", len(self._texts))
            self._log.warning("%s", text)

    def over(self, path: str) -> None:
        """That path can be read, again or still."""
        if self._texts.pop(path, None) is not None:
            self._metrics.set("UnreadableCount", len(self._texts))
            self._log.info("%s can be read again", path)

    def first(self) -> str:
        """The one that has lasted longest; empty where there is none."""
        return next(iter(self._texts.values()), "")
