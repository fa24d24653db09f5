"""Present read errors of files and directories, and write errors of the store of file offsets."""

from __future__ import annotations

import logging

from flafka.plugins import Metric, Metrics

FILE_METRICS = (
    Metric("FollowedFileCount", "gauge", "files", "Files that the source follows or has still to read.", "known"),
    Metric("UnreadableCount", "gauge", "files", "Files and directories that cannot be read at present.", "known"),
)
"""Metrics of a source that reads files."""


class FileErrors:
    """Read errors by path, each logged and counted once until it is cleared, and the latest write error."""

    def __init__(self, log: logging.Logger, metrics: Metrics) -> None:
        self._log = log
        self._metrics = metrics
        self._texts: dict[str, str] = {}
        self._write_error = ""
        """Error of the latest write of the file offsets; empty where that succeeded."""

    def report(self, path: str, text: str) -> None:
        """Record that `path` cannot be read, for the reason in `text`.

        Log and count the error unless it has the same text as the present error of that path.
        """
        if self._texts.get(path) != text:
            self._texts[path] = text
            self._metrics.add("EventReadFail")
            self._metrics.set("UnreadableCount", len(self._texts))
            self._log.warning("%s", text)

    def clear(self, path: str) -> None:
        """Clear the read error of `path`, and log that it can be read again; no effect without an error."""
        if self._texts.pop(path, None) is not None:
            self._metrics.set("UnreadableCount", len(self._texts))
            self._log.info("%s can be read again", path)

    def report_write(self, text: str) -> None:
        """Show in the health that the file offsets cannot be written, and log `text` unless it is shown already."""
        if self._metrics.last_error != text:
            self._metrics.set_error(text)
            self._log.error("%s", text)
        self._write_error = text

    def clear_write(self) -> None:
        """Clear the error that `report_write` recorded, if there is one."""
        if self._write_error:
            self._log.info("positions can be written again")
            if self._metrics.last_error == self._write_error:
                self._metrics.set_error("")
            self._write_error = ""

    def oldest(self) -> str:
        """Return the read error that has lasted longest; empty where there is none."""
        return next(iter(self._texts.values()), "")
