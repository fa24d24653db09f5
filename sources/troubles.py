"""What cannot be read at present."""

from __future__ import annotations

import logging

from flafka.plugins import Metric, Metrics

FILE_METRICS = (
    Metric("FollowedFileCount", "gauge", "files", "Files that the source follows or has still to read.", "known"),
    Metric("UnreadableCount", "gauge", "files", "Files and directories that cannot be read at present.", "known"),
)
"""Metrics of a source that reads files."""


class Troubles:
    """Troubles with files and directories: told and counted once each, shown until they are over."""

    def __init__(self, log: logging.Logger, metrics: Metrics) -> None:
        self._log = log
        self._metrics = metrics
        self._texts: dict[str, str] = {}
        self._unwritable = ""
        """Error of the latest write of positions; empty where that succeeded."""

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

    def unwritable(self, text: str) -> None:
        """Show and log that positions cannot be written, for the reason in `text`."""
        if self._metrics.last_error != text:
            self._metrics.error(text)
            self._log.error("%s", text)
        self._unwritable = text

    def written(self) -> None:
        """End the error that `unwritable` reported, if there is one."""
        if self._unwritable:
            self._log.info("positions can be written again")
            if self._metrics.last_error == self._unwritable:
                self._metrics.error("")
            self._unwritable = ""

    def first(self) -> str:
        """The one that has lasted longest; empty where there is none."""
        return next(iter(self._texts.values()), "")
