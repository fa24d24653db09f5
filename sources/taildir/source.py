"""Source `taildir`: the loop that scans, reads, yields batches and commits offsets."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Generator, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import msgspec

from flafka.plugins import Batch, Metric, Retry, Source, TailedFile
from flafka.sources.file_errors import FILE_METRICS, FileErrors
from flafka.sources.taildir.compatibility import TAILDIR
from flafka.sources.taildir.config import TaildirConfig
from flafka.sources.taildir.cursors import PositionFile
from flafka.sources.taildir.discovery import Discovery
from flafka.sources.taildir.events import OFFSET_HEADER, Events, batch_of
from flafka.sources.taildir.groups import FileGroups
from flafka.sources.taildir.reading import BATCH_BYTES, MAX_READ_BYTES, EventReader, PendingRead
from flafka.sources.taildir.table import FileTable
from flafka.sources.taildir.tail import FileLocation, Growth, Tail
from flafka.sources.taildir.watcher import FileCounters, Watcher

_MIN_SPACE_BYTES = BATCH_BYTES // 8
"""Remaining space of a batch, in bytes, below which lines of the next file go to the next batch."""
_LINGER_SECONDS = 0.008
"""Minimum time between two reads, while files grow by single lines.

Lines of many files then share a batch, whose cost, with cold caches at each wake-up, is many times that of a line.
"""
_LINGER_SECONDS_PER_FILE = 0.0001
"""Minimum time between two reads for each file of the first one, a few times as long as one file takes."""
_MAX_LINGER_SECONDS = 0.1
"""Longest such time: what a program truncates before it is read is lost."""
STOPPING_SECONDS = 0.2
"""Maximum delay until a waiting source notices that the agent stops."""
_SCANNED_AT_ONCE = 100
"""Number of files up to which full scans are as frequent as configured. A scan takes about 10 µs for each file."""
_SCAN_PAUSE_SECONDS_PER_FILE = 0.005
"""Minimum time between two full scans for each further file, at most `maxBackoffSleep`.

Inotify does not report changes through a hard link in another directory, nor by another host of a network's file
system.
"""
_ORDER_SECONDS = 1.0
"""Maximum time that a new file waits until all events about its predecessors are handled."""
_MISSED_SECONDS = 600.0
"""Time for which the agent's health shows that files were, or may have been, missed."""


class TaildirSource(Source[TaildirConfig]):
    """Tail growing files through rotation, at least once.

    A kill repeats at most one batch, the one not stored yet. A line is read once a newline ends it, or once its file
    was renamed or deleted and has been idle.

    A separate process opens files as soon as inotify reports them, so that they can be read after a deletion. A file
    that was deleted even earlier is counted (`FileMissedCount`) and degrades the agent's health for ten minutes. The
    same holds for a file that was closed as idle, grew, and was deleted before it was opened again.

    If a closed file is gone, or has other content, reading continues in its rotated copy. The copy must be in the
    same directory and contain what was read. It may be plain or compressed with gzip, bzip2, xz or zstd. Other
    compressed files are not read. Data written to a file after it was copied are lost, and the log says so. A copy
    that was found while its file was still there counts as a separate file.

    When `copytruncate` truncates an open file, unread data are lost. A writer that does not append leaves NULs at the
    beginning of such a file, which are skipped and counted (`NulByteCount`).
    """

    type_name = "taildir"
    aliases = ("TAILDIR", "org.apache.flume.source.taildir.TaildirSource")
    compatibility_notes = TAILDIR
    declared_metrics = (
        *FILE_METRICS,
        Metric("FileMissedCount", "counter", "files", "Files deleted before they could be opened.", "known"),
        Metric("FileRestartCount", "counter", "files", "Truncated or replaced files, read anew.", "known"),
        Metric("LineSplitCount", "counter", "cuts", "Times that a line was too long for one event.", "known"),
        Metric("NulByteCount", "counter", "bytes", "NUL bytes that were skipped at the beginning of files.", "known"),
        Metric(
            *("WatchOverflowCount", "counter", "overflows"),
            "Times that more files changed than the kernel could report.",
            "known",
        ),
        Metric(
            *("WatchRestartCount", "counter", "restarts"),
            "Restarts of the process that opens new files.",
            "known",
        ),
    )

    def __init__(self, config: TaildirConfig, name: str = "") -> None:
        super().__init__(config, name)
        self._exit_stack = ExitStack()
        self._opened_table: FileTable | None = None
        """Tracked files for `tailed_files`, which other threads may call at any time."""

    def open(self) -> None:
        """Lock and load the position file, watch the directories, and scan them for files.

        The cursors of all files are stored before the first read. Raises Retry while another source has locked the
        position file, or it cannot be read or written. Raises FlafkaError where its content is invalid.
        """
        config = self.config
        self._file_errors = FileErrors(self.log, self.metrics)
        self._positions = PositionFile(config.position_path, config.write_position_interval / 1000)
        self._exit_stack.callback(self._positions.close)
        groups = FileGroups(config.groups(), self._file_errors, cache=config.cache_pattern_matching)
        self._counters = FileCounters()
        self._table = FileTable(
            self._positions.load(),
            groups,
            self._counters,
            self._file_errors,
            self.metrics,
            self.log,
            file_header=config.file_header_key if config.file_header else None,
        )
        self._discovery = Discovery(
            self._table,
            groups,
            self._counters,
            self._file_errors,
            self.log,
            idle=config.idle_timeout / 1000,
            unpack_directory=str(config.position_path.parent),
            stopping=self.stopping,
        )
        self._opened_table = self._table
        for text in self._positions.warnings:
            self.log.warning("%s", text)
        self._exit_stack.callback(self._table.close_all)
        self._watcher = Watcher(
            self.log,
            inotify=config.inotify,
            tracked_name=self._discovery.tracked_name,
            is_open=self._table.is_open,
            max_open=self._table.max_untracked_open,
        )
        self._exit_stack.callback(self._watcher.close)
        self._reader = EventReader(config, self._table, self._file_errors, self.metrics, self.log)
        self._next_read = 0.0
        """Monotonic time until which the source lingers."""
        self._pause = 0.0
        self._next_scan = self._next_poll = 0.0
        self._is_active = False
        self._degraded_texts: dict[str, tuple[str, float]] = {}
        """Health messages by kind, each with the monotonic time until which it is shown."""
        self._postponed: dict[Tail, float] = {}
        """New files that wait for their predecessors, each with the monotonic time of its deadline."""
        self._watch_directories()  # before the first scan, or files created in between would be missed
        self._watcher.wait_ready()
        self._discovery.scan(skip_to_end=config.skip_to_end)
        try:
            # Commit before reading: after a crash, skipToEnd must not skip lines written since this start.
            self._table.unsaved.update(self._table)
            self._table.save(self._positions)
        except OSError as e:
            raise Retry(self._positions.write_error_text(e)) from e
        self._yielded: list[Events] = []
        self._exit_stack.callback(lambda: self._save(final=True))

    def tailed_files(self) -> list[TailedFile]:
        """Return the present path and the committed offset of each tracked file that was found since the start.

        Empty before `open`. Thread-safe.
        """
        tails = self._opened_table.tracked if self._opened_table is not None else []
        return [TailedFile(tail.path, tail.offset) for tail in tails]

    def close(self) -> None:
        """Store the offsets in both journal and position file, close all files and watches, and release the lock.

        A write error is logged.
        """
        self._exit_stack.close()

    def exclusive_resources(self) -> Mapping[Path, str]:
        """Return the path of the position file, which no other source may use, with the name of its option."""
        return {self.config.position_path: "positionFile"}

    def check_connectivity(self) -> Iterator[str]:
        """Yield a text for each error of the position file, and each directory or matching file that is unreadable.

        A missing directory counts as unreadable. Nothing is locked or written.
        """
        yield from PositionFile(self.config.position_path).problems()
        for group in self.config.groups():
            try:
                paths = sorted(p for p in Path(group.directory).iterdir() if group.pattern.fullmatch(p.name))
            except OSError as e:
                yield f"directory {group.directory} cannot be read: {e.strerror}"
                continue
            for path in paths:
                if path.is_file() and not os.access(path, os.R_OK, effective_ids=True):
                    yield f"{path} cannot be read: Permission denied"

    def sets_headers(self) -> Collection[str]:
        """Return the names of the headers that `headers.`, `fileHeader` and `byteOffsetHeader` set."""
        config = self.config
        names = [key.partition(".")[2] for key in config.headers]
        names += [config.file_header_key] * config.file_header + [OFFSET_HEADER] * config.byte_offset_header
        return names

    def batches(self) -> Iterator[Batch]:
        """Yield batches of all changed files, then wait for the next change or scan, until `stopping` is set."""
        while not self.stopping.is_set():
            yield from self.poll()
            if not self._reader.unfinished:
                self._wait()

    def stored(self, batch: Batch) -> None:
        """Commit durably the offsets behind the latest batch that was yielded. Blocking.

        A write error is logged. The next batch is then yielded only after these offsets have been written.
        """
        for events in self._yielded:
            events.tail.advance(events.checkpoint)
            self._table.unsaved.add(events.tail)
        self._yielded = []
        self._save()

    # --- reading

    def poll(self) -> Generator[Batch, None, bool]:
        """Read each file that may have grown, once, and yield batches of the events; a batch may span files.

        A file is left for a later call while its predecessor has unread lines. Once `stopping` is set, events that
        were read but not yielded are dropped; the next start reads them again. The generator returns True if
        `maxBatchCount` ended the reading of a file.
        """
        reached_limit = False
        pieces: list[Events] = []
        room, space = self.config.batch_size, BATCH_BYTES
        reads = self._pending_reads()
        unfinished = {*self._postponed}
        for pending in reads:
            tail = pending.tail
            batches, first_offset = 0, tail.offset
            has_events = False
            if tail.predecessor in unfinished:  # its lines would overtake lines of its predecessor
                unfinished.add(tail)
                if (until := self._postponed.get(tail.predecessor)) is not None:
                    self._postponed[tail], tail.checked_state = until, None  # polling at once would be a busy loop
                else:
                    self._reader.poll_again(tail)
                continue
            while not self.stopping.is_set():
                if batches == self.config.max_batch_count:
                    self._reader.poll_again(tail)
                    unfinished.add(tail)
                    reached_limit = True
                    break
                events = self._reader.read(pending, room, space)
                if events is None:
                    break
                pieces.append(events)
                has_events = True
                tail.predecessor = None
                exceeds_batch = tail.offset + space < pending.until
                room -= events.number
                space -= events.size
                if not exceeds_batch and room and space > _MIN_SPACE_BYTES:
                    break  # no complete event is left in this file, and the batch has space for the next file
                yield from self._yield_batch(pieces)
                pieces, room, space = [], self.config.batch_size, BATCH_BYTES
                batches += 1
            # Without progress (NULs only, compressed, unreadable), polling at once would be a busy loop.
            if pending.has_more and (has_events or tail.offset != first_offset):
                self._reader.poll_again(tail)
                unfinished.add(tail)
        if pieces and not self.stopping.is_set():
            yield from self._yield_batch(pieces)
        return reached_limit

    def _pending_reads(self) -> list[PendingRead]:
        """Return the files to read, in the order of their modification times, but each after its predecessor.

        Take the hints of inotify. Scan all directories if a scan is due or inotify lost events; otherwise only what
        the hints name.
        """
        now = time.monotonic()
        hints = self._watcher.take()
        tails: Mapping[Tail, os.stat_result | None]
        if hints.needs_full_scan or now >= self._next_scan:
            self._discovery.adopt(hints)
            if hints.has_overflowed:
                self.metrics.add("WatchOverflowCount")
                self.warn_rate_limited(
                    "overflow", "more names changed than the kernel could report: some files may have been missed"
                )
            if hints.restart_reason:
                self.metrics.add("WatchRestartCount")
                self.warn_rate_limited(
                    "ended",
                    "the process that opens new files ended (%s) and is started again: files that were created and"
                    " deleted meanwhile may have been missed",
                    hints.restart_reason,
                )
                self._show_degraded(
                    "ended",
                    "the process that opens new files ended"
                    f" {self.metrics.get('WatchRestartCount'):.0f} times ({hints.restart_reason}): files that were"
                    " created and deleted meanwhile may have been missed",
                )
            if hints.has_overflowed or hints.restart_reason:
                self._counters.reset()
                self._discovery.exclude_present(self._discovery.directories)
            tails = self._scan_all(now)
        else:
            grown, changed = self._discovery.apply_hints(hints)
            quiet = {tail for tail in self._reader.buffering if self._is_quiet(tail, now)}
            if hints.writes_unwatched and now >= self._next_poll:
                grown.update(self._table.tracked)
            tails = dict.fromkeys(grown | changed | self._reader.unfinished | quiet | self._postponed.keys())
        self._report_missed()
        self._reader.unfinished = set()
        reads: list[tuple[int, str, PendingRead]] = []
        for tail, status in tails.items():
            if pending := self._pending_read(tail, status, now):
                reads.append((pending.modified_ns, tail.path, pending))
        if hints.writes_unwatched and now >= self._next_poll:
            self._next_poll = now + _linger_seconds(len(tails))
        if reads:
            self._next_read = now + _linger_seconds(len(reads))
        reads.sort(key=lambda entry: entry[:2])
        self._is_active = self._is_active or bool(reads)
        return self._order_reads([pending for _, _, pending in reads], now, hints.synced)

    def _pending_read(
        self, tail: Tail, status: os.stat_result | None, now: float, *, has_successor: bool = False
    ) -> PendingRead | None:
        """Return the range of a file to read now; None where it is unchanged, unreadable or not found.

        An unchanged file is read all the same once its unfinished last line, or its last event, counts as complete.
        `status` is the status of the file, or None to look it up; `now` is monotonic. `has_successor`: lines of a
        successor wait, so no continuation line follows the last event of this file.
        """
        if tail.location is FileLocation.FORGOTTEN:
            self._reader.buffering.discard(tail)
            return None
        try:
            status = status or tail.status()
        except OSError as e:
            self._reader.report_unreadable(tail, e)
            return None
        if status is None:
            if tail.location is FileLocation.DELETED:
                self._reader.buffering.discard(tail)  # no file has the buffered event any more
            return None  # the next full scan finds the file
        if status.st_size <= tail.offset:
            tail.growth = Growth.NONE
        state = (status.st_size, status.st_mtime_ns)
        is_unchanged = state == tail.checked_state
        is_final = is_unchanged and tail.is_rotated and self._discovery.is_idle(tail, now)
        is_complete = is_final or (
            is_unchanged and bool(tail.buffered) and (has_successor or self._is_quiet(tail, now))
        )
        if not is_unchanged:
            tail.changed_at = now
        elif not is_complete or status.st_size <= tail.offset:
            return None
        tail.checked_state = state
        until = min(status.st_size, tail.offset + MAX_READ_BYTES)
        return PendingRead(tail, until, until < status.st_size, is_complete, is_final, status.st_mtime_ns)

    def _order_reads(self, reads: list[PendingRead], now: float, synced: int) -> list[PendingRead]:
        """Return the reads in an order in which the rest of a rotated file comes before its successor.

        Predecessors that have unread data are added. Files that `_postpone` postpones are left out. `synced` is the
        number in `Hints.synced`.

        The predecessor's size is read after the successor's: data written before the rotation are visible by then.
        Modification times do not show the order, because the kernel's clock for them ticks every few milliseconds.
        """
        deadlines, self._postponed = self._postponed, {}
        if all(pending.tail.predecessor is None for pending in reads):
            return reads
        by_tail = {pending.tail: pending for pending in reads}
        chains: dict[Tail, list[Tail]] = {}
        for pending in reads:
            chain = chains[pending.tail] = [pending.tail]
            while pending.until > pending.tail.offset and (earlier := chain[-1].predecessor) is not None:
                if earlier.location is FileLocation.FORGOTTEN or earlier in chain:
                    break
                chain.append(earlier)
        predecessors = {tail for chain in chains.values() for tail in chain[1:]}
        ordered: list[PendingRead] = []
        for newest in [pending.tail for pending in reads if pending.tail not in predecessors]:
            for tail in reversed(chains[newest]):
                current = by_tail.get(tail)
                if tail in predecessors:
                    current = self._pending_read(tail, None, now, has_successor=True) or current
                if current is None:
                    continue
                if self._postpone(current, now, synced, deadlines.get(tail, now + _ORDER_SECONDS)):
                    tail.checked_state = None
                else:
                    is_complete = current.is_complete or (tail in predecessors and not current.has_more)
                    ordered.append(msgspec.structs.replace(current, is_complete=is_complete))
        return ordered

    def _postpone(self, pending: PendingRead, now: float, synced: int, until: float) -> bool:
        """Postpone a file while inotify events about files between its predecessor and it may be pending.

        Return True if the file is postponed. That ends once `Watcher.sync` is answered and the predecessor is not
        postponed itself, at the latest at the monotonic time `until`. A file without a predecessor or without unread
        data is never postponed.
        """
        tail, earlier = pending.tail, pending.tail.predecessor
        if earlier is None or earlier.location is FileLocation.FORGOTTEN or pending.until <= tail.offset:
            return False
        if not tail.sync_number:
            tail.sync_number = self._watcher.sync()
        if now >= until or (tail.sync_number <= synced and earlier not in self._postponed):
            return False
        self._postponed[tail] = until
        return True

    def _scan_all(self, now: float) -> dict[Tail, os.stat_result | None]:
        """Scan all directories, close idle files, and save the cursors; return the status of every tracked file.

        The status is None where no matching name led to the file. The pause before the next scan grows by
        `backoffSleepIncrement` while no file changes. It is longer with many files if all directories are watched.
        """
        increment = self.config.backoff_sleep_increment / 1000
        self._pause = (
            increment if self._is_active else min(self._pause + increment, self.config.max_backoff_sleep / 1000)
        )
        self._is_active = False
        pause = self._pause
        if self._watcher.is_complete:
            minimum = (len(self._table.by_key) - _SCANNED_AT_ONCE) * _SCAN_PAUSE_SECONDS_PER_FILE
            pause = max(pause, min(minimum, self.config.max_backoff_sleep / 1000))
        self._next_scan = now + pause
        self._watch_directories()
        self._table.release_descriptors()
        statuses = self._discovery.scan().statuses
        self._counters.update_missed()
        self._discovery.close_idle(now)
        self._save()
        tracked = self._table.tracked
        self.metrics.set("FollowedFileCount", len(tracked))
        return {tail: statuses.get(tail) for tail in tracked}

    def _watch_directories(self) -> None:
        """Watch all directories; files that are in a newly watched directory never count as missed."""
        for directory, patterns in self._discovery.directories.items():
            if self._watcher.add(directory, patterns):
                self._discovery.exclude_present([directory])

    def _report_missed(self) -> None:
        """Count and log the files missed since the last call, and show them in the agent's health for ten minutes."""
        if missed := self._counters.missed:
            self.metrics.add("FileMissedCount", len(missed))
            text = (
                "files were gone before they could be opened, and their content is not read:"
                f" {self.metrics.get('FileMissedCount'):.0f} so far, the latest {missed[-1]}"
            )
            self.warn_rate_limited("missed", "%s", text)
            self._show_degraded("missed", text)
            missed.clear()

    def _show_degraded(self, kind: str, text: str) -> None:
        """Show a text in the agent's health for `_MISSED_SECONDS`, in place of the earlier text of that kind."""
        shown = {**self._degraded_texts, kind: (text, time.monotonic() + _MISSED_SECONDS)}
        self._degraded_texts = shown
        self.metrics.degradation = lambda: "; ".join(
            text for text, until in shown.values() if time.monotonic() < until
        )

    def _is_quiet(self, tail: Tail, now: float) -> bool:
        """Return True if the file has not changed for `multiline.timeout`, so that its last event is complete."""
        return now - tail.changed_at >= self.config.multiline_timeout / 1000

    def _wait(self) -> None:
        """Block until inotify reports a change, a scan, poll or timeout is due, or the agent stops."""
        until = min(self._next_scan, self._next_poll) if self._watcher.writes_unwatched else self._next_scan
        if self._reader.buffering:
            quiet = min(tail.changed_at for tail in self._reader.buffering) + self.config.multiline_timeout / 1000
            until = min(until, quiet)
        until = min(until, *self._postponed.values(), until)
        while not self.stopping.is_set() and (timeout := until - time.monotonic()) > 0:
            if self._watcher.wait(min(timeout, STOPPING_SECONDS)):
                # Linger, so that lines written one by one do not become batches of one event.
                self.stopping.wait(self._next_read - time.monotonic())
                return

    # --- yielding batches and committing offsets

    def _yield_batch(self, pieces: list[Events]) -> Iterator[Batch]:
        """Yield one batch once all outdated cursors are saved; no batch if the agent stops before."""
        while self._table.unsaved and not self._save():
            if self.stopping.wait(1):
                return
            self._table.release_descriptors()
        batch = batch_of(pieces)
        self._yielded = pieces
        yield batch

    def _save(self, *, final: bool = False) -> bool:
        """Store the outdated cursors; return False, and log an error, where that fails.

        `final` also replaces Flume's position file, whatever its interval.
        """
        try:
            self._table.save(self._positions, final=final)
        except OSError as e:
            self._file_errors.report_write(self._positions.write_error_text(e))
            return False
        self._file_errors.clear_write()
        return True


def _linger_seconds(files: int) -> float:
    """Return the time in seconds to wait before the next read, after one of that many files."""
    return min(max(_LINGER_SECONDS, files * _LINGER_SECONDS_PER_FILE), _MAX_LINGER_SECONDS)
