"""Events that Flume's file channel has left are taken into the log of ours: all of them, once, whenever it is killed.

It happens before the channel takes or gives anything. A mark is beside the events as long as it goes on: it says from
which entry on the log has Flume's events, and, at last, that it has them all. A start that finds the mark without the
latter drops those entries and begins again; one that finds it with that only moves what is left of Flume's files.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from channels.file import flume
from channels.file.log import Log, drop_from
from plugins import Batch, Caution, Event, FlafkaError, Retry
from plugins.shared.disk import replace, sync_directory

MARK = "flafka.takeover"
BATCH_EVENTS, BATCH_BYTES = 10_000, 16 << 20


class TakeOver:
    """From directories of Flume's channel, which are ours, too."""

    def __init__(self, directories: Sequence[Path], checkpoints: Path, backup: Path | None) -> None:
        self._directories, self._checkpoints, self._backup = directories, checkpoints, backup
        self.first: int | None = None
        """The entry with which Flume's events begin; None where nothing is, or was, taken over."""
        self._complete = False
        self.events = 0
        """So many were taken over by this process."""
        self.lost = 0
        """So many more could not be read."""
        self.damages: list[str] = []
        """What could not be read, a sentence for each place."""

    def resume(self) -> None:
        """Drop what a killed take-over has left in the log, before that is opened. Raises OSError."""
        mark = next((path for path in self._marks() if path.exists()), None)
        if mark is None:
            return
        said = json.loads(mark.read_bytes())
        self.first, self._complete = said["first"], said["complete"]
        if not self._complete:
            drop_from(self._directories, said["first"])

    def run(self, log: Log, append: Callable[[Batch], None]) -> bool:
        """Take over what there is; whether there was anything. `append` is given the events, and raises what keeps it
        from storing them. Raises what `flume.check` does."""
        if self.first is None and not flume.logs(self._directories):
            return False
        if not self._complete:
            flume.check(flume.logs(self._directories))
            left = flume.FlumeChannel(self._checkpoints, self._backup, self._directories)
            self.first = log.begin()
            self._say(complete=False)
            for batch in _batches(left.events()):
                append(batch)
                self.events += len(batch)
            log.sync_from(self.first)
            self._say(complete=True)
            self.damages, self.lost = left.damages, left.lost
        self._move()
        return True

    def foreseen(self) -> Iterator[str]:
        """For `agent check`: what a start would do, or why it could not. Raises OSError."""
        if logs := flume.logs(self._directories):
            try:
                flume.check(logs)
            except FlafkaError as e:
                yield str(e)
            size = sum(path.stat().st_size for path in logs)
            yield Caution(
                f"dataDirs holds {len(logs)} files of Flume's file channel, {size >> 20} MiB: the start takes over "
                "the events that Flume has not delivered, and moves its files into directories flume-… there"
            )

    def left(self) -> Iterator[str]:
        """For `agent migrate`: how many events there are to be taken over, and what becomes of them."""
        try:
            if not (logs := flume.logs(self._directories)):
                return
            flume.check(logs)
            events = len(flume.FlumeChannel(self._checkpoints, self._backup, self._directories))
        except Retry:
            yield Caution(
                "dataDirs belongs to a Flume that runs: stop it before the agent starts, which then takes over the "
                "events that Flume has not delivered, and delivers them first"
            )
        except FlafkaError as e:
            yield str(e)
        except OSError as e:
            yield Caution(f"whether dataDirs holds events of Flume is not known: {e.filename}: {e.strerror}")
        else:
            yield Caution(
                f"dataDirs holds {events:,} events that Flume has not delivered: the first start takes them over and "
                "delivers them before any other; Flume's files are kept in directories flume-… there"
            )

    @property
    def name(self) -> str:
        """That of the directories that Flume's files are in afterwards, one in each of Flume's own."""
        return f"flume-{self.first}"

    def _marks(self) -> Iterator[Path]:
        return (directory / MARK for directory in self._directories)

    def _say(self, *, complete: bool) -> None:
        self._complete = complete
        text = json.dumps({"first": self.first, "complete": complete})
        os.close(replace(next(self._marks()), text.encode()))

    def _move(self) -> None:
        for directory in dict.fromkeys([*self._directories, self._checkpoints, *filter(None, [self._backup])]):
            found = flume.files(directory)
            to = directory / self.name
            if found:
                to.mkdir(exist_ok=True)
            for path in found:
                path.rename(to / path.name)
            if found:
                sync_directory(to)
                sync_directory(directory)
        for mark in self._marks():
            mark.unlink(missing_ok=True)
            sync_directory(mark.parent)


def _batches(events: Iterator[Event]) -> Iterator[Batch]:
    gathered: list[Event] = []
    size = 0
    for event in events:
        gathered.append(event)
        size += len(event.body)
        if len(gathered) == BATCH_EVENTS or size >= BATCH_BYTES:
            yield Batch.of(gathered)
            gathered, size = [], 0
    if gathered:
        yield Batch.of(gathered)
