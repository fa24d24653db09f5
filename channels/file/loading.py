"""Load of a log from elsewhere, while no agent uses the channel: all batches become part of it once, or none does.

A mark beside the events says from which entry on the log has what is loaded and, at last, that it has all of it.
A load that finds the mark of a killed one drops those entries and begins again, unless the log has all of them.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from flafka.channels.file.log import Log, drop_from
from flafka.plugins import Batch
from flafka.plugins.shared.disk import replace, sync_directory

MARK = "flafka.takeover"
_FLUME = re.compile(r"log-\d+")


def of_flume(directories: Sequence[Path]) -> list[Path]:
    """Return the files of events that Flume's file channel has left in these directories. Raises OSError."""
    found = (path for directory in directories if directory.is_dir() for path in directory.iterdir())
    return sorted(path for path in found if _FLUME.fullmatch(path.name))


def begun(directories: Sequence[Path]) -> list[Path]:
    """Return the marks of a load that was killed."""
    return [path for directory in directories if (path := directory / MARK).exists()]


def refusal(directories: Sequence[Path], channel: str) -> str:
    """Return why a channel with these directories must not open before an import; empty if it may. Raises OSError."""
    left = [*of_flume(directories), *begun(directories)]
    if not left:
        return ""
    return (
        f"{left[0].parent} holds events of Flume's file channel: `agent migrate --import-channel {channel} FILE`, "
        "with the agent's configuration, moves them into this channel"
    )


class BulkLoad:
    """One load of the log in these directories. Used by one thread, which holds the locks of the directories."""

    def __init__(
        self, directories: Sequence[Path], batches: Callable[[], Iterator[Batch]], finished: Callable[[int], None]
    ) -> None:
        """Call `finished` with the number of the first entry once all batches are durable.

        After a kill `batches` is called again, and has to give the same, until the log has all of them. A kill may
        repeat the call of `finished`.
        """
        self._directories, self._batches, self._finished = directories, batches, finished
        self.first: int | None = None
        """Number of the first entry that is loaded; None before a load has begun."""
        self._complete = False

    def resume(self) -> None:
        """Drop what a killed load has left in the log, before that is opened. Raises OSError."""
        marks = begun(self._directories)
        if not marks:
            return
        written = json.loads(marks[0].read_bytes())
        self.first, self._complete = written["first"], written["complete"]
        if not self._complete:
            drop_from(self._directories, written["first"])

    def run(self, log: Log, append: Callable[[Batch], None]) -> None:
        """Append the batches. Raises OSError, and what `append`, `batches` and `finished` raise."""
        if not self._complete or self.first is None:
            batches = self._batches()
            self.first = log.begin()
            self._write(self.first, complete=False)
            for batch in batches:
                append(batch)
            log.sync_from(self.first)
            self._write(self.first, complete=True)
        self._finished(self.first)
        for mark in begun(self._directories):
            mark.unlink()
            sync_directory(mark.parent)

    def _write(self, first: int, *, complete: bool) -> None:
        text = json.dumps({"first": first, "complete": complete})
        os.close(replace(self._directories[0] / MARK, text.encode()))
