"""Bulk load into the log of a channel that no agent uses: all batches become part of it exactly once, or none.

A marker file in the first data directory has the number of the first loaded entry and, at the end, that the load is
complete. After a kill, the next load deletes the entries of an incomplete load and begins again.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from flafka.channels.file.log import Log, delete_from
from flafka.plugins import Batch
from flafka.plugins.storage import replace_file, sync_directory

MARKER = "flafka.takeover"
_FLUME = re.compile(r"log-\d+")


def flume_logs(directories: Sequence[Path]) -> list[Path]:
    """Return the log files of Flume's file channel in these directories, sorted by path. Raises OSError."""
    paths = (path for directory in directories if directory.is_dir() for path in directory.iterdir())
    return sorted(path for path in paths if _FLUME.fullmatch(path.name))


def load_markers(directories: Sequence[Path]) -> list[Path]:
    """Return the marker files in these directories of a load that was killed; empty if there is none."""
    return [path for directory in directories if (path := directory / MARKER).exists()]


def import_error(directories: Sequence[Path], channel: str) -> str:
    """Return the error if a channel must not open before an import from Flume; else an empty text. Raises OSError."""
    files = [*flume_logs(directories), *load_markers(directories)]
    if not files:
        return ""
    return (
        f"{files[0].parent} has events of Flume's file channel: import them by `agent migrate --import-channel "
        f"{channel} FILE`, where FILE is the configuration of the agent"
    )


class BulkLoad:
    """Bulk load of the log in some directories. For one thread, which holds the locks of the directories."""

    def __init__(
        self, directories: Sequence[Path], batches: Callable[[], Iterator[Batch]], on_complete: Callable[[int], None]
    ) -> None:
        """Prepare a load of `batches`, with a call of `on_complete(first entry)` once all batches are durable.

        `batches` must return the same batches again, for a load after a kill. A kill may repeat the call of
        `on_complete`, which must be idempotent.
        """
        self._directories, self._batches, self._on_complete = directories, batches, on_complete
        self.first: int | None = None
        """Number of the first loaded entry; None before a load has begun."""
        self._is_complete = False

    def resume(self) -> None:
        """Read the marker of a killed load, and delete the entries of an incomplete one.

        To be called before the log is opened. Raises OSError.
        """
        markers = load_markers(self._directories)
        if not markers:
            return
        marker = json.loads(markers[0].read_bytes())
        self.first, self._is_complete = marker["first"], marker["complete"]
        if not self._is_complete:
            delete_from(self._directories, marker["first"])

    def run(self, log: Log, append: Callable[[Batch], None]) -> None:
        """Append the batches unless an earlier load is complete, call `on_complete`, and delete the marker.

        Raises OSError, and the errors of `append`, `batches` and `on_complete`.
        """
        if not self._is_complete or self.first is None:
            batches = self._batches()
            self.first = log.begin_segment()
            self._write_marker(self.first, complete=False)
            for batch in batches:
                append(batch)
            log.sync_from(self.first)
            self._write_marker(self.first, complete=True)
        self._on_complete(self.first)
        for marker in load_markers(self._directories):
            marker.unlink()
            sync_directory(marker.parent)

    def _write_marker(self, first: int, *, complete: bool) -> None:
        """Replace the marker, durably. Raises OSError."""
        text = json.dumps({"first": first, "complete": complete})
        os.close(replace_file(self._directories[0] / MARKER, text.encode()))
