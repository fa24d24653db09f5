"""Source `spooldir`: the loop that lists, reads, yields batches, and marks files that were read."""

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
from flafka.plugins.storage import make_directory
from flafka.sources import columns
from flafka.sources.file_errors import FILE_METRICS, FileErrors
from flafka.sources.spooldir.compatibility import SPOOLDIR
from flafka.sources.spooldir.config import SpooldirConfig
from flafka.sources.spooldir.content import SkipFile
from flafka.sources.spooldir.deserializers import HASH_HEADER, LITERAL_HEADER, FileEvents
from flafka.sources.spooldir.directory import Candidate, SpoolDirectory, problems
from flafka.sources.spooldir.spooled import SpooledFile, open_spooled, path_text
from flafka.sources.spooldir.tracker import FileOffset, FileState, SkippedFile, SkippedFiles, Tracker

_BATCH_BYTES = 512 << 10
"""Size from which a batch is full, in bytes; `batchSize` limits its events."""
_MIN_SPACE_BYTES = _BATCH_BYTES // 8
"""Remaining space of a batch, in bytes, below which further events go to the next batch."""
_LISTING_SHARE = 10
"""Minimum ratio of the time between two listings to the time that a listing takes."""
_MIN_POLL_SECONDS = 0.01
_RETRY_SECONDS = 1.0


class SpooldirSource(Source[SpooldirConfig]):
    """Read files that are put into a directory, at least once.

    A kill repeats at most one batch, the one not stored yet. A loss of power may also undo the marks of the last
    seconds; such files are read again from their start.

    A file must be complete when it is put there, and must not change afterwards. Write it elsewhere on the same disk,
    or under a name that `ignorePattern` matches, then rename it.

    A file is skipped, in whole or in part, if it has changed, or cannot be decoded or uncompressed. The same holds if
    its name with the suffix exists already. A skipped file is counted (`FileSkippedCount`) and degrades the agent's
    health until it is renamed or removed. The other files are read.

    Files compressed with gzip, bzip2, xz or zstd are uncompressed, except with deserializer `BLOB`.
    """

    type_name = "spooldir"
    aliases = ("org.apache.flume.source.SpoolDirectorySource",)
    compatibility_notes = SPOOLDIR
    declared_metrics = (
        *FILE_METRICS,
        Metric("FileReadCount", "counter", "files", "Files that were read to their end.", "known"),
        Metric("FileSkippedCount", "counter", "files", "Files that were skipped, in whole or in part.", "known"),
        Metric("SkippedFileCount", "gauge", "files", "Files that are skipped now, in whole or in part.", "known"),
    )
    libraries: ClassVar = {"fastavro": "avro"}

    @classmethod
    def libraries_for(cls, config: SpooldirConfig) -> Mapping[str, str]:
        """Return the library that deserializer `AVRO` needs, with its extra; empty for other deserializers."""
        return cls.libraries if config.deserializer == "AVRO" else {}

    def __init__(self, config: SpooldirConfig, name: str = "") -> None:
        super().__init__(config, name)
        self._exit_stack = ExitStack()
        self._waiting: deque[Candidate] = deque()
        """Files to read, the next one first."""
        self._reading: TailedFile | None = None
        """Present file with its stored file offset, for `tailed_files`."""
        self.metrics.set_function("FollowedFileCount", lambda: len(self._waiting) + (self._reading is not None))

    def open(self) -> None:
        """Lock and read `trackerDir`.

        Raises Retry while a directory is missing or not writable, or another source has locked `trackerDir`. Raises
        FlafkaError where the list of skipped files is invalid.
        """
        config = self.config
        if config.deserializer == "AVRO":
            require("fastavro", "avro")
        if text := next(iter(problems(self.config)), None):
            raise Retry(text)
        tracker_directory = config.tracker_directory
        try:
            make_directory(tracker_directory)
            self._lock(tracker_directory)
            self._skipped = SkippedFiles(tracker_directory)
        except OSError as e:
            raise Retry(f"trackerDir {tracker_directory} cannot be used: {e.strerror or e}") from e
        except ValueError as e:
            raise FlafkaError(
                f"{tracker_directory} holds a list of skipped files that cannot be read: {e}. Repair it, or "
                "remove it to read these files from their start"
            ) from e
        self._tracker = Tracker(tracker_directory)
        self._exit_stack.callback(self._tracker.close)
        self._unfinished = self._read_tracker()
        self._file_errors = FileErrors(self.log, self.metrics)
        self._directory = SpoolDirectory(config, self._file_errors)
        self._waiting.clear()
        self._next_listing = 0.0
        self._current: SpooledFile | None = None
        self._exit_stack.callback(self._close_current)
        self._pieces: list[tuple[SpooledFile, FileEvents]] = []
        """Events of the next batch."""
        self._last: SpooledFile | None = None
        """Last file of the batch that was yielded and is not stored yet."""
        self._finished: dict[str, SpooledFile] = {}
        """Files by path that were read to their end and are not marked yet."""
        self._unsaved: FileOffset | None = None
        """File offset that the tracker has to store; None where there is none."""
        self._update_health()

    def close(self) -> None:
        """Release the lock of `trackerDir`, and close all files, without saving. Idempotent."""
        self._exit_stack.close()
        self._waiting.clear()
        self._reading = None
        self.metrics.degradation = str

    def exclusive_resources(self) -> Mapping[Path, str]:
        """Return the path of `trackerDir`, which no other source may use, with the name of its option."""
        return {self.config.tracker_directory: "trackerDir"}

    def check_connectivity(self) -> Iterator[str]:
        """Yield every reason why `spoolDir` or `trackerDir` cannot be used."""
        yield from problems(self.config)

    def sets_headers(self) -> Collection[str]:
        """Return the headers for path and file name, if set, and the header for the schema with `AVRO`."""
        config = self.config
        names = [config.file_header_key] * config.file_header + [config.basename_header_key] * config.basename_header
        if config.deserializer == "AVRO":
            names.append(HASH_HEADER if config.schema_type == "HASH" else LITERAL_HEADER)
        return names

    def batches(self) -> Iterator[Batch]:
        """Yield batches of all unread files, then list the directories every `pollDelay`, until `stopping` is set."""
        while not self.stopping.is_set():
            yield from self.poll()
            self.stopping.wait(max(_MIN_POLL_SECONDS, self.config.poll_delay / 1000))

    def stored(self, batch: Batch) -> None:
        """Mark the files that were read to their end, and save the offset of the present file. Blocking.

        An error is reported, and the next batch waits until saving succeeds. A file that cannot be marked counts as
        skipped.
        """
        last, self._last = self._last, None
        tracked = self._finished.get(self._tracker.tracked_path)
        if tracked is not None and last is not self._current:
            # A loss of power may undo its mark. With an offset within the file, its last events would be read again.
            with suppress(OSError):  # the next save reports the error
                self._tracker.save(tracked.file_offset)
        for file in list(self._finished.values()):
            self._finish(file)
        if last is not None and last is self._current:
            self._unsaved = last.file_offset
            self._reading = TailedFile(last.path, last.bytes_read)
        self._save()

    def tailed_files(self) -> list[TailedFile]:
        """Return the present file with its stored offset, then the files to be read. Thread-safe.

        Skipped files are left out.
        """
        reading, waiting = self._reading, self._waiting.copy()
        return [*([reading] if reading else ()), *(TailedFile(candidate.path, 0) for candidate in waiting)]

    # --- reading

    def poll(self) -> Iterator[Batch]:
        """Yield batches of all files that can be read now; a batch may span files.

        Once `stopping` is set, events since the last batch are not yielded; the next start reads them again.
        """
        room, space = self.config.batch_size, _BATCH_BYTES
        while not self.stopping.is_set():
            file = self._current = self._current or self._next()
            if file is None:
                if not self._pieces:
                    return
                yield from self._yield_batch()
                room, space = self.config.batch_size, _BATCH_BYTES
                continue
            piece = self._read(file, room, space)
            if piece is not None:
                self._pieces.append((file, piece))
                room -= len(piece.bodies)
                space -= piece.bodies.nbytes
            # Mark a file together with its last events, even if they fill the batch: the source may stop afterwards.
            if self._current is not None and (piece is None or file.is_at_end):
                self._end(file)
            if room <= 0 or space < _MIN_SPACE_BYTES:
                yield from self._yield_batch()
                room, space = self.config.batch_size, _BATCH_BYTES

    def _read(self, file: SpooledFile, room: int, space: int) -> FileEvents | None:
        """Return the next events; None at the end, and on a read error, which is reported and closes the file."""
        try:
            return file.read(room, space)
        except OSError as e:
            # Reading continues at this offset once the file can be read again.
            self._file_errors.report(file.path, f"{file.path} cannot be read, it is tried again: {e.strerror or e}")
            self._unfinished[file.path] = file.file_offset
            self._close_current()
            return None

    def _end(self, file: SpooledFile) -> None:
        """End the reading of a file, which is marked once its events are stored."""
        self._close_current()
        self._finished[file.path] = file
        if not any(last is file for last, _ in self._pieces[-1:]):
            # Its last events are stored already. The next batch or listing saves the changes: saving the list of
            # thousands of damaged files once for each of them would take hours.
            self._finish(file)

    def _yield_batch(self) -> Iterator[Batch]:
        """Yield a batch of the events that were read, once changes are saved; none if the agent stops before."""
        while not self._save():
            if self.stopping.wait(_RETRY_SECONDS):
                return
        counts = [len(piece.bodies) for _, piece in self._pieces]
        headers = columns.header_columns(counts, [{**piece.headers, **file.headers} for file, piece in self._pieces])
        bodies = pa.concat_arrays([piece.bodies for _, piece in self._pieces])
        self._last, self._pieces = self._pieces[-1][0], []
        yield Batch.of_columns(bodies, headers)

    # --- files

    def _next(self) -> SpooledFile | None:
        """Open and return the next file, at its stored offset; None where no file can be read at present.

        A file that was skipped before is passed over. A file that cannot be read at all is skipped from now on.
        """
        self._update_waiting()
        while self._waiting:
            candidate = self._waiting.popleft()
            path = candidate.path
            if path in self._finished or self._skipped.contains(path, candidate.state):
                continue
            try:
                file = open_spooled(self.config, path, self._unfinished.get(path), self.log)
            except FileNotFoundError:
                continue  # removed since it was listed
            except SkipFile as e:
                self._skip(path, candidate.state.with_birth_time(path), str(e))
            except OSError as e:
                self._file_errors.report(path, f"{path} cannot be read, it is tried again: {e.strerror or e}")
            else:
                self._reading = TailedFile(path, file.bytes_read)
                self._unfinished.pop(path, None)
                self._file_errors.clear(path)
                return file
        return None

    def _update_waiting(self) -> None:
        """List the unread files, partly read ones first, unless files wait and the latest listing is recent.

        With `consumeOrder = random`, a listing counts until all of its files are read. Failed marks are retried.
        """
        now = time.monotonic()
        if self._waiting and (now < self._next_listing or self.config.consume_order == "random"):
            return
        self._retry_marks()
        files = self._directory.candidates()
        if self._unfinished:
            # Files that were read in part come first: the tracker stores one file offset only.
            paths = {file.path for file in files}
            self._unfinished = {
                path: stored for path, stored in self._unfinished.items() if path in paths or stored.state is not None
            }
            files.sort(key=lambda file: file.path not in self._unfinished)
        took = time.monotonic() - now
        self._next_listing = now + took + max(self.config.poll_delay / 1000, _LISTING_SHARE * took)
        self._waiting = deque(files)
        self._update_health()

    def _finish(self, file: SpooledFile) -> None:
        """Mark a file whose events are all stored as read.

        A file that has changed, ended early or cannot be marked is skipped. A file that was removed or replaced
        meanwhile is neither.
        """
        path, state = file.path, file.state
        del self._finished[path]
        if file.skip_reason:
            self._skip(path, state, file.skip_reason)
            return
        try:
            now = FileState.of_path(path)
        except FileNotFoundError:
            self.log.warning("%s was removed by another process while it was read", path)
            self._forget(path)
            return
        except OSError as e:
            self._skip(path, state, f"was read, and cannot be marked as read: {e.strerror}", done=True)
            return
        if not now.is_same_file(state):
            self.log.warning("%s was replaced while it was read; the new file is read, too", path)
            self._forget(path)
        elif not now.is_unchanged(state):
            self._skip(path, state, "has changed since it was put there")
        elif reason := self._mark_as_read(path):
            self._skip(path, state, reason, done=True)
        elif self.config.delete_policy == "never" and self.config.tracking_policy == "tracker_dir":
            self._unsaved = file.file_offset  # as in Flume
        else:
            self._forget(path)

    def _forget(self, path: str) -> None:
        """Delete the stored offset of a file that needs none."""
        if self._tracker.tracked_path == path:
            with suppress(OSError):  # a leftover offset has no effect on other files
                self._tracker.remove()
        if self._unsaved is not None and self._unsaved.path == path:
            self._unsaved = None

    def _mark_as_read(self, path: str) -> str:
        """Mark a file and count it; return the reason of a failure, as a predicate, or else ""."""
        reason = self._directory.mark_as_read(path)
        if not reason:
            self.metrics.add("FileReadCount")
        return reason

    # --- skipped files

    def _skip(self, path: str, state: FileState, reason: str, *, done: bool = False) -> None:
        """Skip a file from now on, count it, and log the reason. `done`: only its mark is missing."""
        self._skipped.add(path, SkippedFile(state, reason, done))
        self.metrics.add("FileSkippedCount")
        remedy = "" if done else "; under another name it is read from its start"
        self.log.warning("%s %s: it is left where it is%s", path_text(path), reason, remedy)
        self._update_health()

    def _retry_marks(self) -> None:
        """Retry marks that failed, and take renamed, replaced and removed files off the list of skipped files.

        The list is saved.
        """
        for path, skipped in [*self._skipped.files.items()]:
            try:
                now = FileState.of_path(path)
            except FileNotFoundError:
                self._skipped.remove(path)
                continue
            except OSError:
                continue
            if not now.is_same_file(skipped.state):
                self._skipped.remove(path)
            elif skipped.done and now.is_unchanged(skipped.state) and not self._mark_as_read(path):
                self.log.info("%s is marked as read now", path)
                self._skipped.remove(path)
        self._save()

    def _update_health(self) -> None:
        """Show the number of skipped files in the health, with one of them, or else the oldest read error."""
        files = self._skipped.files
        self.metrics.set("SkippedFileCount", len(files))
        text = self._file_errors.oldest()
        if files:
            path, skipped = next(iter(files.items()))
            count = "1 file is" if len(files) == 1 else f"{len(files)} files are"
            directory = self.config.directory
            text = f"{count} skipped or unmarked in {directory}, such as {path_text(path)}, which {skipped.reason}"
        self.metrics.degradation = lambda: text

    # --- tracker

    def _read_tracker(self) -> dict[str, FileOffset]:
        """Return the offset that the last run, or Flume, stored, by path; empty where there is none.

        An invalid tracker file is logged and counts as empty. Raises Retry where the file cannot be read.
        """
        try:
            stored = self._tracker.read()
        except OSError as e:
            raise Retry(f"{self._tracker.path} cannot be read: {e.strerror or e}") from e
        except ValueError as e:
            self.log.warning(
                "%s does not hold a position (%s): its file is read from its start",
                self._tracker.path,
                e,
            )
            return {}
        return {stored.path: stored} if stored is not None else {}

    def _save(self) -> bool:
        """Save the list of skipped files and the file offset durably.

        Return False, and report the error, where that fails.
        """
        try:
            self._skipped.save()  # first: the tracker may drop the only record of a skipped file
            if self._unsaved is not None:
                self._tracker.save(self._unsaved)
        except OSError as e:
            directory = self.config.tracker_directory
            with suppress(OSError):
                directory.mkdir()  # it may have been removed
            text = f"trackerDir {directory} cannot be written, so nothing is read: {e.strerror or e}"
            self._file_errors.report_write(text)
            return False
        self._unsaved = None
        self._file_errors.clear_write()
        return True

    def _close_current(self) -> None:
        if self._current is not None:
            self._current.close()
            self._current = None
            self._reading = None

    # --- directories

    def _lock(self, directory: Path) -> None:
        """Lock a directory against other sources, until `close`.

        Raises Retry where another source holds the lock, OSError where the directory cannot be opened. A file system
        without locks is logged only.
        """
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._exit_stack.callback(os.close, fd)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Retry(f"trackerDir {directory} is in use by another spooldir source: give each its own") from None
        except OSError as e:
            self.log.info(
                "%s cannot be locked (%s): other sources are not prevented from using it", directory, e.strerror
            )
