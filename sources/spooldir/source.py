"""The source `spooldir`: the loop that lists, reads, yields, and marks what was read."""

from __future__ import annotations

import fcntl
import os
import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import ClassVar

import pyarrow as pa

from flafka.plugins import Batch, FlafkaError, Metric, Retry, Source, TailedFile, require
from flafka.plugins.shared.disk import make_directory
from flafka.sources import columns
from flafka.sources.spooldir.compatibility import SPOOLDIR
from flafka.sources.spooldir.config import SpooldirConfig
from flafka.sources.spooldir.content import Skip
from flafka.sources.spooldir.deserializers import HASH_HEADER, LITERAL_HEADER, Piece
from flafka.sources.spooldir.directory import Candidate, Directory, problems
from flafka.sources.spooldir.spooled import Spooled, readable, resumed
from flafka.sources.spooldir.tracker import FileOffset, Left, Leftovers, State, Tracker
from flafka.sources.troubles import FILE_METRICS, Troubles

_BATCH_BYTES = 512 << 10
"""A batch is full at so many bytes, or at `batchSize` events."""
_LEAST_BYTES = _BATCH_BYTES // 8
"""With less space than that left in a batch, what comes next waits for the next one."""
_LISTING_SHARE = 10
"""Listing the directories again takes at most about this part of the time."""
_LEAST_PAUSE = 0.01
_RETRY_SECONDS = 1.0


class SpooldirSource(Source[SpooldirConfig]):
    """Reads files that are put into a directory, at least once: a kill repeats at most the one batch not yet stored.
    A loss of power may also take back the marks of the last seconds; such files are read again as a whole.

    A file is put there whole, and does not change then: write it elsewhere on the same disk, or under a name that
    `ignorePattern` matches, and rename it. A file that has changed, that cannot be decoded or unpacked, or
    whose name with the suffix is taken, is left where it is, with what was not read of it. It is counted
    (`FileSkippedCount`) and shown in the agent's health until it is renamed or removed; the other files are read.
    Files compressed with gzip, bzip2, xz or zstd are unpacked, but for `BLOB`.
    """

    type_name = "spooldir"
    aliases = ("org.apache.flume.source.SpoolDirectorySource",)
    compatibility_notes = SPOOLDIR
    declared_metrics = (
        *FILE_METRICS,
        Metric("FileReadCount", "counter", "files", "Files that were read to their end.", "known"),
        Metric("FileSkippedCount", "counter", "files", "Files that were left unread in whole or in part.", "known"),
        Metric("SkippedFileCount", "gauge", "files", "Files that are left unread in whole or in part now.", "known"),
    )
    libraries: ClassVar = {"fastavro": "avro"}

    @classmethod
    def libraries_for(cls, config: SpooldirConfig) -> Mapping[str, str]:
        """Return the library for Avro files, where these are read."""
        return cls.libraries if config.deserializer == "AVRO" else {}

    def __init__(self, config: SpooldirConfig, name: str = "") -> None:
        super().__init__(config, name)
        self._held = ExitStack()
        self._waiting: deque[Candidate] = deque()
        """Files to read, the next one first."""
        self._reading: TailedFile | None = None
        """How far the file that is being read is stored, for whoever looks."""
        self.metrics.set_function("FollowedFileCount", lambda: len(self._waiting) + (self._reading is not None))

    def open(self) -> None:
        """Lock `trackerDir` and read it. Raises Retry while a directory is missing or cannot be written."""
        config = self.config
        if config.deserializer == "AVRO":
            require("fastavro", "avro")
        if trouble := next(iter(problems(self.config)), None):
            raise Retry(trouble)
        trackers = config.tracker_directory
        try:
            make_directory(trackers)
            self._lock(trackers)
            self._left = Leftovers(trackers)
        except OSError as e:
            raise Retry(f"trackerDir {trackers} cannot be used: {e.strerror or e}") from e
        except ValueError as e:
            raise FlafkaError(
                f"{trackers} holds a list of skipped files that cannot be read: {e}. Repair it, or remove it to read "
                "these files from their start"
            ) from e
        self._tracker = Tracker(trackers)
        self._held.callback(self._tracker.close)
        self._resume = self._last_position()
        self._troubles = Troubles(self.log, self.metrics)
        self._directory = Directory(config, self._troubles)
        self._waiting.clear()
        self._list_at = 0.0
        self._current: Spooled | None = None
        self._held.callback(self._close_current)
        self._pieces: list[tuple[Spooled, Piece]] = []
        """Of the batch that is gathered."""
        self._last: Spooled | None = None
        """The last file of the batch that is on its way."""
        self._ended: dict[str, Spooled] = {}
        """By path, files that were read to their end and are not marked yet."""
        self._unsaved: FileOffset | None = None
        """What the tracker has to say."""
        self._show()

    def close(self) -> None:
        """Let go of the directories."""
        self._held.close()
        self._waiting.clear()
        self._reading = None
        self.metrics.degraded = str

    def exclusive_resources(self) -> Mapping[Path, str]:
        """Where it keeps what it has read."""
        return {self.config.tracker_directory: "trackerDir"}

    def check_connectivity(self) -> Iterator[str]:
        """What is wrong with the directories."""
        yield from problems(self.config)

    def sets_headers(self) -> Collection[str]:
        """Those that its options name, and the one of the schema."""
        config = self.config
        names = [config.file_header_key] * config.file_header + [config.basename_header_key] * config.basename_header
        if config.deserializer == "AVRO":
            names.append(HASH_HEADER if config.schema_type == "HASH" else LITERAL_HEADER)
        return names

    def batches(self) -> Iterator[Batch]:
        """Read what there is, and wait for more, until stopping."""
        while not self.stopping.is_set():
            yield from self.look()
            self.stopping.wait(max(_LEAST_PAUSE, self.config.poll_delay / 1000))

    def stored(self, batch: Batch) -> None:
        """Mark the files that were read to their end, and save how far the one that was not is stored."""
        last, self._last = self._last, None
        begun = self._ended.get(self._tracker.target)
        if begun is not None and last is not self._current:
            # A loss of power may take its mark back: reading must not go on within it then.
            with suppress(OSError):  # what cannot be saved is told of when the next position is
                self._tracker.save(begun.position)
        for file in list(self._ended.values()):
            self._retire(file)
        if last is not None and last is self._current:
            self._unsaved = last.position
            self._reading = TailedFile(last.path, last.taken)
        self._save()

    def tailed_files(self) -> list[TailedFile]:
        """The file that is being read, and those that wait for it; none of those that were read or are left."""
        reading, waiting = self._reading, self._waiting.copy()
        return [*([reading] if reading else ()), *(TailedFile(one.path, 0) for one in waiting)]

    # --- reading

    def look(self) -> Iterator[Batch]:
        """All that there is to read now."""
        room, space = self.config.batch_size, _BATCH_BYTES
        while not self.stopping.is_set():
            file = self._current = self._current or self._next()
            if file is None:
                if not self._pieces:
                    return
                yield from self._offer()
                room, space = self.config.batch_size, _BATCH_BYTES
                continue
            piece = self._read(file, room, space)
            if piece is not None:
                self._pieces.append((file, piece))
                room -= len(piece.bodies)
                space -= piece.bodies.nbytes
            # A file whose last events fill the batch is marked with them: a stop may come before another look at it.
            if self._current is not None and (piece is None or file.ended):
                self._end(file)
            if room <= 0 or space < _LEAST_BYTES:
                yield from self._offer()
                room, space = self.config.batch_size, _BATCH_BYTES

    def _read(self, file: Spooled, room: int, space: int) -> Piece | None:
        try:
            return file.read(room, space)
        except OSError as e:
            # All that was read is in the pieces: it goes on there when the file can be read again.
            self._troubles.report(file.path, f"{file.path} cannot be read, it is tried again: {e.strerror or e}")
            self._resume[file.path] = file.position
            self._close_current()
            return None

    def _end(self, file: Spooled) -> None:
        """It was read as far as possible. It is marked once its events are stored."""
        self._close_current()
        self._ended[file.path] = file
        if not any(one is file for one, _ in self._pieces[-1:]):
            # Its last events are stored already. What is to be saved waits for the next batch or listing: saving the
            # list of thousands of damaged files once for each of them would take hours.
            self._retire(file)

    def _offer(self) -> Iterator[Batch]:
        while not self._save():
            if self.stopping.wait(_RETRY_SECONDS):
                return
        counts = [len(piece.bodies) for _, piece in self._pieces]
        headers = columns.headers(counts, [{**piece.headers, **file.headers} for file, piece in self._pieces])
        bodies = pa.concat_arrays([piece.bodies for _, piece in self._pieces])
        self._last, self._pieces = self._pieces[-1][0], []
        yield Batch.of_columns(bodies, headers)

    # --- files

    def _next(self) -> Spooled | None:
        """The next file, open; None where there is none at present."""
        self._list()
        while self._waiting:
            candidate = self._waiting.popleft()
            path = candidate.path
            if path in self._ended or self._left.holds(path, candidate.state):
                continue
            try:
                file = resumed(self.config, path, self._resume.get(path), self.log)
            except FileNotFoundError:
                continue  # somebody has removed it in between
            except Skip as e:
                self._leave(path, candidate.state.with_birth(path), str(e))
            except OSError as e:
                self._troubles.report(path, f"{path} cannot be read, it is tried again: {e.strerror or e}")
            else:
                self._reading = TailedFile(path, file.taken)
                self._resume.pop(path, None)
                self._troubles.over(path)
                return file
        return None

    def _list(self) -> None:
        """List the directories, unless that was done a moment ago."""
        now = time.monotonic()
        if self._waiting and (now < self._list_at or self.config.consume_order == "random"):
            return
        self._finish_left()
        files = self._directory.candidates()
        if self._resume:
            # What was begun is ended first: the tracker knows of one file only.
            paths = {file.path for file in files}
            self._resume = {
                path: position
                for path, position in self._resume.items()
                if path in paths or position.state is not None
            }
            files.sort(key=lambda file: file.path not in self._resume)
        took = time.monotonic() - now
        self._list_at = now + took + max(self.config.poll_delay / 1000, _LISTING_SHARE * took)
        self._waiting = deque(files)
        self._show()

    def _retire(self, file: Spooled) -> None:
        """All that could be read of it is stored."""
        path, state = file.path, file.state
        del self._ended[path]
        if file.reason:
            self._leave(path, state, file.reason)
            return
        try:
            now = State.at(path)
        except FileNotFoundError:
            self.log.warning("%s was removed by somebody else while it was read", path)
            self._forget(path)
            return
        except OSError as e:
            self._leave(path, state, f"was read, and cannot be marked so: {e.strerror}", done=True)
            return
        if not now.same_file(state):
            self.log.warning("%s was replaced while it was read; what has come in its place is read, too", path)
            self._forget(path)
        elif not now.unchanged(state):
            self._leave(path, state, "has changed since it was put there")
        elif reason := self._mark(path):
            self._leave(path, state, reason, done=True)
        elif self.config.delete_policy == "never" and self.config.tracking_policy == "tracker_dir":
            self._unsaved = file.position  # Flume keeps it then
        else:
            self._forget(path)

    def _forget(self, path: str) -> None:
        """The tracker need not know of it."""
        if self._tracker.target == path:
            with suppress(OSError):  # it says nothing of any other file
                self._tracker.remove()
        if self._unsaved is not None and self._unsaved.path == path:
            self._unsaved = None

    def _mark(self, path: str) -> str:
        reason = self._directory.mark(path)
        if not reason:
            self.metrics.add("FileReadCount")
        return reason

    # --- files that are left

    def _leave(self, path: str, state: State, reason: str, *, done: bool = False) -> None:
        self._left.add(path, Left(state, reason, done))
        self.metrics.add("FileSkippedCount")
        remedy = "" if done else "; under another name it is read from its start"
        self.log.warning("%s %s: it is left where it is%s", readable(path), reason, remedy)
        self._show()

    def _finish_left(self) -> None:
        """Mark what could not be marked so far, and forget what was renamed, replaced or removed."""
        for path, left in [*self._left.files.items()]:
            try:
                now = State.at(path)
            except FileNotFoundError:
                self._left.remove(path)
                continue
            except OSError:
                continue
            if not now.same_file(left.state):
                self._left.remove(path)
            elif left.done and now.unchanged(left.state) and not self._mark(path):
                self.log.info("%s is marked as read now", path)
                self._left.remove(path)
        self._save()

    def _show(self) -> None:
        files = self._left.files
        self.metrics.set("SkippedFileCount", len(files))
        text = self._troubles.first()
        if files:
            path, left = next(iter(files.items()))
            count = "1 file is" if len(files) == 1 else f"{len(files)} files are"
            directory = self.config.directory
            text = f"{count} left unread or unmarked in {directory}, such as {readable(path)}, which {left.reason}"
        self.metrics.degraded = lambda: text

    # --- positions

    def _last_position(self) -> dict[str, FileOffset]:
        """Where the last run, or Flume, has stopped."""
        try:
            position = self._tracker.read()
        except OSError as e:
            raise Retry(f"{self._tracker.path} cannot be read: {e.strerror or e}") from e
        except ValueError as e:
            self.log.warning(
                "%s does not hold a position (%s): the file that it was about is read from its start",
                self._tracker.path,
                e,
            )
            return {}
        return {position.path: position} if position is not None else {}

    def _save(self) -> bool:
        """Make durable what changed; False where that fails, which stops the reading until it works."""
        try:
            self._left.save()  # first: what is left must not be known to nobody
            if self._unsaved is not None:
                self._tracker.save(self._unsaved)
        except OSError as e:
            directory = self.config.tracker_directory
            with suppress(OSError):
                directory.mkdir()  # somebody may have removed it
            text = f"trackerDir {directory} cannot be written, so nothing is read: {e.strerror or e}"
            self._troubles.unwritable(text)
            return False
        self._unsaved = None
        self._troubles.written()
        return True

    def _close_current(self) -> None:
        if self._current is not None:
            self._current.close()
            self._current = None
            self._reading = None

    # --- directories

    def _lock(self, directory: Path) -> None:
        """Keep other sources away. Raises Retry where one is there already, OSError."""
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._held.callback(os.close, fd)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Retry(f"trackerDir {directory} is in use by another spooldir source: give each its own") from None
        except OSError as e:
            self.log.info("%s cannot be locked (%s): nothing keeps other sources away", directory, e.strerror)
