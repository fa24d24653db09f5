"""A log on the local disk: numbered entries in segment files, synced before they count as stored.

An entry is a header and its payload; the header's checksum covers both. Numbers grow over all segments, without gaps
within a run. A run is the time between two opens of the log. Each run has a random id, which is part of the names of
its segments. Therefore, on a disk that was copied or restored, no new event gets the id of a past one.

Only the end of the newest segment can be torn, by a crash. The next open moves that end into another file. Readers
skip damage elsewhere, and the gap in the numbers shows how many entries are lost.

Before small entries, the file is extended by zeros: a sync takes about half the time if it has to write neither a new
file size nor new blocks. Zeros are never an entry, even if a crash leaves them in a segment.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import struct
import threading
import weakref
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from flafka.channels.file.checkpoint import version_error
from flafka.plugins.storage import sync_directory

_HEADER = struct.Struct("<4sIIHIQq")
"""Magic, checksum of the remainder, bytes of the payload, partition, events, number, arrival in ms."""
_MAGIC = b"FLE1"
_ANY_MAGIC = re.compile(rb"FLE(\d)")
"""Magic of any version; the digit is the version of the segment."""
_CHECKSUM_END = len(_MAGIC) + 4
_FILE_NAME = re.compile(r"flafka-(\d{20})-([0-9a-f]{12})\.log")
"""File name of a segment: number of its first entry, and run."""
DAMAGED_SUFFIX = ".damaged"
"""Suffix of files that the channel no longer reads, and keeps for the operator."""
_SCAN_BYTES = 1 << 20
PREALLOCATED_BYTES = 1 << 20
"""Number of zeros by which a segment is extended."""
_MAX_PREALLOCATED_ENTRY_BYTES = PREALLOCATED_BYTES // 16
"""Maximum size of an entry with preallocation: for larger ones, the zeros cost more than they save."""


class Entry(NamedTuple):
    """Header of an entry: the events of one append."""

    number: int
    partition: int
    arrival: int
    """Milliseconds since the epoch."""
    events: int
    size: int
    """Size of the payload, in bytes."""

    @property
    def length(self) -> int:
        """Size of header and payload, in bytes."""
        return _HEADER.size + self.size


class UnsyncedEntry(NamedTuple):
    """Entry that may not be on the disk yet."""

    number: int
    failures: int
    """Number of earlier disk failures. Each failure rolls back the unsynced entries."""


class Segment:
    """File of the log. Stays open while a reader uses it, even after its deletion."""

    def __init__(self, path: Path, first: int, run: str) -> None:
        self.path, self.first, self.run = path, first, run
        self.damaged = False
        """True if entries in it are lost. Once its other entries are delivered, the file is renamed, not deleted."""
        self.descriptor = os.open(path, os.O_RDWR)
        weakref.finalize(self, os.close, self.descriptor)
        self.size = os.fstat(self.descriptor).st_size
        """Size of the entries, in bytes. Preallocated zeros follow, up to `allocated`."""
        self.allocated = self.size

    def header(self, offset: int) -> Entry | None:
        """Return the header at an offset, without a check of its checksum; None if there is none."""
        header = os.pread(self.descriptor, _HEADER.size, offset)
        if len(header) < _HEADER.size or not header.startswith(_MAGIC):
            return None
        _, _, size, partition, events, number, arrival = _HEADER.unpack(header)
        return Entry(number, partition, arrival, events, size)

    def read(self, offset: int) -> tuple[Entry, memoryview] | None:
        """Return the header and the payload at an offset; None if there is no entry, or its checksum is wrong."""
        entry = self.header(offset)
        if entry is None or offset + entry.length > self.size:
            return None
        content = memoryview(os.pread(self.descriptor, entry.length, offset))
        (checksum,) = struct.unpack_from("<I", content, len(_MAGIC))
        return (entry, content[_HEADER.size :]) if zlib.crc32(content[_CHECKSUM_END:]) == checksum else None

    def find_entry(self, offset: int) -> int | None:
        """Return the byte offset of the first valid entry from byte `offset` on; None if there is none."""
        while offset < self.size:
            if self.read(offset) is not None:
                return offset
            distance = os.pread(self.descriptor, _SCAN_BYTES + len(_MAGIC) - 1, offset).find(_MAGIC)
            offset += distance or 1 if distance >= 0 else _SCAN_BYTES
        return None

    def torn_bytes(self, offset: int) -> int:
        """Return the number of bytes from `offset` through the last one that is not zero; 0 if all are zero."""
        end = offset
        for start in range(offset, self.size, _SCAN_BYTES):
            if content := os.pread(self.descriptor, _SCAN_BYTES, start).rstrip(b"\0"):
                end = start + len(content)
        return end - offset

    def truncate(self) -> None:
        """Truncate the file after the last entry, without the preallocated zeros. Raises OSError."""
        os.ftruncate(self.descriptor, self.size)
        self.allocated = self.size

    def check_not_deleted(self) -> None:
        """Raise OSError if the file was deleted: closing it would lose its events."""
        if not os.fstat(self.descriptor).st_nlink:
            message = (
                "it was deleted while the channel was open; restart the agent after sinks have delivered its events"
            )
            raise FileNotFoundError(errno.ENOENT, message, str(self.path))

    def preallocate(self, length: int, limit: int) -> None:
        """Extend the file by zeros before an entry of that length, if it is small and the zeros do not suffice.

        `limit` is the maximum size of a segment, in bytes. Best-effort: no error on a full disk.
        """
        if self.size + length <= self.allocated or length > _MAX_PREALLOCATED_ENTRY_BYTES:
            return
        zeros = min(PREALLOCATED_BYTES, limit - self.size)
        if zeros > length:
            with contextlib.suppress(OSError):  # on a nearly full disk, there may still be space for the entry
                self.allocated = self.size + os.pwrite(self.descriptor, bytes(zeros), self.size)


class Cursor:
    """Cursor of one reader. For one thread."""

    def __init__(self, segment: Segment) -> None:
        self.segment, self.offset, self.number = segment, 0, segment.first
        """Segment, byte offset, and number of the next entry."""


class Log:
    """Log of the channel. Any number of threads may append and read."""

    def __init__(
        self, directories: Sequence[Path], segment_bytes: int, run: str = "", *, synced: bool = True
    ) -> None:
        """Create a closed log, whose segments alternate over these directories; `run` is the id of this run.

        A segment is closed at `segment_bytes`. Without `synced`, an entry counts as stored once it is written, and a
        power failure may lose it.
        """
        self.directories, self.segment_bytes, self.run, self._synced = directories, segment_bytes, run, synced
        self.segments: list[Segment] = []
        self.stored = 0
        """Number after the last stored entry."""
        self.end = 0
        """Number of the next entry."""
        self._stored_bytes = 0
        """Size of the stored entries of the newest segment."""
        self._failures = 0
        self._syncing = False
        self._changed = threading.Condition(threading.Lock())
        self.empty: list[Path] = []
        """Files of earlier runs without entries."""
        self._ended = False

    # --- life

    def open(self) -> Iterator[str]:
        """Open the segments, and cut off the torn end of the newest one: yield a message about that.

        Raises OSError, and FlafkaError for a segment of another version. The iterator has to be exhausted;
        `begin_run` must follow.
        """
        self.segments = [Segment(path, first, run) for first, run, path in segment_files(self.directories)]
        for segment in self.segments:
            # With a valid entry of this version in the segment, its first bytes are damaged.
            magic = _ANY_MAGIC.match(os.pread(segment.descriptor, len(_MAGIC), 0))
            if magic is not None and magic[0] != _MAGIC and segment.find_entry(0) is None:
                raise version_error(segment.path, "segment", int(magic[1]))
        for segment in self.segments:
            # Several, if a run was killed before its first entry.
            if segment.first == self.segments[-1].first:
                yield from self._truncate_torn_end(segment)
        # An empty segment that another one of its run follows had entries, which were cut off.
        latest = {segment.run: segment.first for segment in self.segments}
        self.empty = [s.path for s in self.segments if not s.size and s.first == latest[s.run]]
        self.segments = [s for s in self.segments if s.size or s.first < latest[s.run]]

    def _truncate_torn_end(self, newest: Segment) -> Iterator[str]:
        """Truncate the newest segment after its last valid entry, and continue the numbers from there.

        Yields a message if bytes of an incomplete entry follow, which are moved into another file. Raises OSError.
        """
        number, end = newest.first, 0
        offset = newest.find_entry(0)
        while offset is not None and (header := newest.header(offset)) is not None:
            number, end = header.number + 1, offset + header.length
            offset = newest.find_entry(end)
        if torn := newest.torn_bytes(end):
            outcome = _save_torn_bytes(newest, end, torn)
            yield (
                f"{newest.path} ends in {torn} bytes of an incomplete put, for which no source got an "
                f"acknowledgement, as after a kill or a power failure; {outcome}"
            )
        if end < newest.size:
            newest.size = end
            newest.truncate()
        os.fdatasync(newest.descriptor)  # its writer may have been killed before the sync
        self.end = self.stored = max(self.end, number)

    def begin_run(self, number: int) -> None:
        """Begin the first segment of this run, with the entry after the last one, or `number` if that is greater.

        Raises OSError.
        """
        with self._changed:
            self.end = self.stored = max(number, self.end)
            self._begin_segment(self.end)

    def remove_empty(self) -> None:
        """Delete the files in `empty`. Raises OSError."""
        while self.empty:
            self.empty.pop().unlink(missing_ok=True)

    def end_run(self) -> None:
        """Refuse further entries, and return when all entries of this run are on the disk. Raises OSError."""
        with self._changed:
            while self._syncing:
                self._changed.wait()
            for segment in self.segments:
                if segment.run == self.run:
                    os.fdatasync(segment.descriptor)
            self._end_segment()
            self.stored = self.end
            self._ended = True

    def close(self, *, clean: bool = False) -> None:
        """Refuse further entries, and close the files.

        After a `clean` end, delete the newest segment if it is empty.
        """
        with self._changed:
            self._end_segment()
            self._ended = True
            if clean and self.segments and not self.segments[-1].size:
                self.segments[-1].path.unlink(missing_ok=True)
            self.segments = []

    def _end_segment(self) -> None:
        """Cut off the preallocated zeros of the newest segment, best-effort."""
        for segment in self.segments[-1:]:
            if segment.allocated > segment.size:
                with contextlib.suppress(OSError):  # zeros after the entries are harmless
                    segment.truncate()

    def _begin_segment(self, number: int) -> None:
        """Create the segment that begins with entry `number`, in the next directory. Raises OSError."""
        directory = self.directories[len(self.segments) % len(self.directories)]
        path = directory / f"flafka-{number:020d}-{self.run}.log"
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o640))
        sync_directory(directory)
        self._end_segment()
        self.segments.append(Segment(path, number, self.run))
        self._stored_bytes = 0

    def begin_segment(self) -> int:
        """Begin a segment with the next entry, unless the newest one is empty; return the number of that entry.

        Raises OSError.
        """
        with self._changed:
            if self.segments[-1].size:
                self._sync_newest()
                self._begin_segment(self.end)
            return self.end

    # --- writing

    def append(self, partition: int, arrival: int, events: int, payload: Any) -> UnsyncedEntry:
        """Write an entry, which is stored once `sync` has returned for the result.

        `arrival` is in milliseconds since the epoch, and `events` the number of events in the payload. A full segment
        is synced before, and the next one begun. Raises OSError, also after `end_run`.
        """
        with self._changed:
            if self._ended:
                raise OSError(errno.ESHUTDOWN, "the channel is closed")
            while (segment := self.segments[-1]).size and segment.size + len(payload) > self.segment_bytes:
                self._sync_newest()
                if segment is self.segments[-1]:
                    self._begin_segment(self.end)
            header = _HEADER.pack(_MAGIC, 0, len(payload), partition, events, self.end, arrival)
            checksum = zlib.crc32(payload, zlib.crc32(header[_CHECKSUM_END:]))
            parts = [_MAGIC + struct.pack("<I", checksum) + header[_CHECKSUM_END:], payload]
            if self._synced:
                segment.preallocate(len(header) + len(payload), self.segment_bytes)
            try:
                _write(segment.descriptor, parts, segment.size)
            except OSError:
                with contextlib.suppress(
                    OSError
                ):  # otherwise, the next entry or the next start removes the partial entry
                    segment.truncate()
                raise
            segment.size += _HEADER.size + len(payload)
            self.end += 1
            if not self._synced:
                self.stored, self._stored_bytes = self.end, segment.size
                self._changed.notify_all()
            return UnsyncedEntry(self.end - 1, self._failures)

    def sync(self, written: UnsyncedEntry) -> None:
        """Return when the entry is on the disk, or written if the log is not synced. Concurrent calls share one sync.

        Raises OSError if the disk fails: then neither this entry nor any later one is in the log.
        """
        with self._changed:
            while self.stored <= written.number or self._failures != written.failures:
                if self._failures != written.failures:
                    raise OSError("the disk failed in the sync of an earlier entry")
                if self._syncing:
                    self._changed.wait()
                    continue
                self._syncing = True
                segment, end, size = self.segments[-1], self.end, self.segments[-1].size
                self._changed.release()
                try:
                    os.fdatasync(segment.descriptor)
                    segment.check_not_deleted()
                    failed = None
                except OSError as e:
                    failed = e
                finally:
                    self._changed.acquire()
                    self._syncing = False
                    self._changed.notify_all()
                if failed is not None:
                    self._roll_back()
                    raise failed
                if segment is self.segments[-1]:  # else the begin of the next segment has synced this one
                    self.stored, self._stored_bytes = max(self.stored, end), max(self._stored_bytes, size)

    def sync_from(self, number: int) -> None:
        """Return when all segments that begin with entry `number` or later are on the disk, even without `synced`.

        Raises OSError. For the thread that opens the log.
        """
        for segment in self.segments:
            if segment.first >= number:
                os.fdatasync(segment.descriptor)
        self.stored, self._stored_bytes = self.end, self.segments[-1].size

    def _sync_newest(self) -> None:
        """Return when all entries are on the disk, or roll them back and raise OSError."""
        while self._syncing:
            self._changed.wait()
        if self.stored < self.end:
            try:
                os.fdatasync(self.segments[-1].descriptor)
                self.segments[-1].check_not_deleted()
            except OSError:
                self._roll_back()
                raise
            self.stored, self._stored_bytes = self.end, self.segments[-1].size
            self._changed.notify_all()

    def _roll_back(self) -> None:
        """Remove the entries since the last successful sync: after a failure, their state on disk is unknown.

        Waiting calls of `sync` then raise OSError.
        """
        segment = self.segments[-1]
        segment.size, self.end = self._stored_bytes, self.stored
        with contextlib.suppress(OSError):  # otherwise, the next entries overwrite them
            segment.truncate()
        self._failures += 1
        self._changed.notify_all()

    # --- reading

    def cursor(self, number: int) -> Cursor:
        """Return a cursor at the start of the segment that contains entry `number`, before its earlier entries.

        The segment is the newest one if the entry is not stored yet, and the oldest one if the entry was deleted.
        """
        with self._changed:
            return Cursor(next((s for s in reversed(self.segments) if s.first <= number), self.segments[0]))

    def read(self, cursor: Cursor) -> tuple[Entry, memoryview] | None:
        """Return the entry at the cursor with its payload, and advance the cursor. None behind the last stored entry.

        Damage is skipped: then the number of the returned entry, or of the cursor if None is returned, is not the
        expected one.
        """
        while True:
            with self._changed:
                if cursor.number >= self.stored:
                    return None
                following = next((s for s in self.segments if s.first > cursor.segment.first), None)
            entry = cursor.segment.read(cursor.offset)
            if entry is not None and entry[0].number == cursor.number:
                cursor.offset += entry[0].length
                cursor.number += 1
                return entry
            self._skip_damage(cursor, following)

    def _skip_damage(self, cursor: Cursor, following: Segment | None) -> None:
        """Move the cursor to the next valid entry of its segment, else to `following`, else to the end."""
        segment = cursor.segment
        offset = segment.find_entry(cursor.offset + 1)
        if offset is not None and (entry := segment.header(offset)) is not None:
            cursor.offset, cursor.number = offset, entry.number
        elif following is not None:
            cursor.segment, cursor.offset, cursor.number = following, 0, following.first
        else:
            with self._changed:
                cursor.offset, cursor.number = self._stored_bytes, self.stored

    def wait(self, cursor: Cursor, timeout: float) -> None:
        """Return when a stored entry is at the cursor, or after `timeout` seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self.stored > cursor.number, timeout)

    def entries(self) -> Iterator[tuple[Segment, Entry]]:
        """Yield the headers of all entries, oldest first, with their segments. For the thread that opens the log.

        To save time, a checksum is verified only after a gap in the numbers. Damaged entries are left out.
        """
        for segment in self.segments:
            offset: int | None = 0
            expected = segment.first
            while offset is not None and offset < segment.size:
                entry = segment.header(offset)
                if entry is None or (entry.number != expected and segment.read(offset) is None):
                    offset = segment.find_entry(offset + 1)
                    continue
                yield segment, entry
                offset += entry.length
                expected = entry.number + 1

    def needed_segments(self, number: int) -> list[Segment]:
        """Return the segments that `delete_before(number)` would keep."""
        with self._changed:
            first = max((index for index, s in enumerate(self.segments) if s.first <= number), default=0)
            return self.segments[first:]

    def delete_before(self, number: int) -> None:
        """Delete the segments whose entries all have numbers smaller than `number`; rename damaged ones.

        The newest segment stays. Raises OSError.
        """
        with self._changed:
            while len(self.segments) > 1 and self.segments[1].first <= number:
                path = self.segments[0].path
                if self.segments[0].damaged:
                    with contextlib.suppress(FileNotFoundError):  # an operator has moved it
                        path.replace(path.with_name(path.name + DAMAGED_SUFFIX))
                else:
                    path.unlink(missing_ok=True)
                self.segments.pop(0)


def _save_torn_bytes(segment: Segment, start: int, count: int) -> str:
    """Copy `count` bytes from offset `start` into a separate file.

    Return a clause about the outcome for the log.
    """
    path = segment.path.with_name(f"{segment.path.name}.{start}{DAMAGED_SUFFIX}")
    try:
        with path.open("wb") as file:
            for offset in range(start, start + count, _SCAN_BYTES):
                file.write(os.pread(segment.descriptor, min(_SCAN_BYTES, start + count - offset), offset))
            file.flush()
            os.fsync(file.fileno())
        sync_directory(path.parent)
    except OSError as e:  # on a full disk, the channel must open, so that sinks can free space
        return f"the bytes are deleted, as {path} cannot be written: {e.strerror}"
    return f"the bytes are moved to {path}"


def delete_from(directories: Sequence[Path], number: int) -> None:
    """Delete the segments that begin with entry `number` or later. The log must not be open. Raises OSError."""
    for first, _, path in segment_files(directories):
        if first >= number:
            path.unlink()
    for directory in directories:
        sync_directory(directory)


def segment_files(directories: Sequence[Path]) -> list[tuple[int, str, Path]]:
    """Return first number, run and path of each segment, in the order of their entries. Raises OSError."""
    paths = (path for directory in directories for path in directory.iterdir())
    return sorted((int(match[1]), match[2], path) for path in paths if (match := _FILE_NAME.fullmatch(path.name)))


def _write(descriptor: int, parts: Sequence[Any], offset: int) -> None:
    """Write all parts at an offset, one behind the other. Raises OSError."""
    written = os.pwritev(descriptor, parts, offset)
    size = sum(map(len, parts))
    while written < size:  # the disk is nearly full, or the entry is very large
        remainder = b"".join(map(bytes, parts))[written:]
        count = os.pwrite(descriptor, remainder, offset + written)
        if not count:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written += count
