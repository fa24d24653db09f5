"""A log on the local disk: numbered entries in segment files, synced before they count as stored.

An entry is a header and its payload; the header's checksum covers both. Numbers grow over all segments, without gaps
within a run. A run is the time between two opens of the log. Each run has a random id, and the names of its segments
carry it. A disk that was copied or set back therefore never gives an id of a past event to a new one.

Only the end of the newest segment can be torn, by a crash. The next open moves that end into a file of its own.
Readers skip damage elsewhere, and the gap in the numbers shows how many entries are lost.

Zeros are written ahead of small entries. A file system that has only an entry to write, no new size and no new block,
needs about half the time for a sync. Zeros are no entry, wherever a crash leaves them.
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

from flafka.channels.file.positions import of_version
from flafka.plugins.shared.disk import sync_directory

_HEADER = struct.Struct("<4sIIHIQq")
"""Magic, checksum of all that follows it, bytes of the payload, partition, events, number, arrival."""
_MAGIC = b"FLE1"
_ANY_MAGIC = re.compile(rb"FLE(\d)")
"""The digit is the version of the segment."""
_COVERED = len(_MAGIC) + 4
_NAME = re.compile(r"flafka-(\d{20})-([0-9a-f]{12})\.log")
"""First number and run."""
DAMAGED = ".damaged"
"""Suffix of files that nothing reads any more, kept for an operator."""
_SCAN_BYTES = 1 << 20
AHEAD = 1 << 20
"""Bytes of zeros that are written at once."""
_SMALL = AHEAD // 16
"""Bytes of an entry at most for which they are: with larger ones, more is written than is saved."""


class Entry(NamedTuple):
    """Events that were appended at once."""

    number: int
    partition: int
    arrival: int
    """Milliseconds since the epoch."""
    events: int
    size: int
    """Bytes of the payload."""

    @property
    def length(self) -> int:
        """Bytes of the whole entry."""
        return _HEADER.size + self.size


class UnsyncedEntry(NamedTuple):
    """An entry that may not be on the disk yet."""

    number: int
    failures: int
    """Failures of the disk before. With each failure, entries that were not synced are taken back."""


class Segment:
    """One file of the log. The file stays open while anyone reads it, also after its deletion."""

    def __init__(self, path: Path, first: int, run: str) -> None:
        self.path, self.first, self.run = path, first, run
        self.damaged = False
        """True if entries in it are lost. Such a file is kept when its other entries are delivered."""
        self.descriptor = os.open(path, os.O_RDWR)
        weakref.finalize(self, os.close, self.descriptor)
        self.size = os.fstat(self.descriptor).st_size
        """Bytes of entries. The writer has zeros behind them, up to `filled`."""
        self.filled = self.size

    def header(self, at: int) -> Entry | None:
        """Return the entry whose header is at that byte, unchecked; None if no header is there."""
        header = os.pread(self.descriptor, _HEADER.size, at)
        if len(header) < _HEADER.size or not header.startswith(_MAGIC):
            return None
        _, _, size, partition, events, number, arrival = _HEADER.unpack(header)
        return Entry(number, partition, arrival, events, size)

    def read(self, at: int) -> tuple[Entry, memoryview] | None:
        """Return the entry at that byte and its payload; None if they are not as they were written."""
        entry = self.header(at)
        if entry is None or at + entry.length > self.size:
            return None
        whole = memoryview(os.pread(self.descriptor, entry.length, at))
        (checksum,) = struct.unpack_from("<I", whole, len(_MAGIC))
        return (entry, whole[_HEADER.size :]) if zlib.crc32(whole[_COVERED:]) == checksum else None

    def next_whole(self, at: int) -> int | None:
        """Return the first byte from `at` on at which a whole entry begins; None if none does."""
        while at < self.size:
            if self.read(at) is not None:
                return at
            found = os.pread(self.descriptor, _SCAN_BYTES + len(_MAGIC) - 1, at).find(_MAGIC)
            at += found or 1 if found >= 0 else _SCAN_BYTES
        return None

    def written_behind(self, at: int) -> int:
        """Return the number of bytes from there to the last one that is not zero."""
        last = at
        for begin in range(at, self.size, _SCAN_BYTES):
            if found := os.pread(self.descriptor, _SCAN_BYTES, begin).rstrip(b"\0"):
                last = begin + len(found)
        return last - at

    def cut(self) -> None:
        """Let the file end where the entries do. Raises OSError."""
        os.ftruncate(self.descriptor, self.size)
        self.filled = self.size

    def refuse_deleted(self) -> None:
        """Raise OSError if the file was deleted: the disk would keep it only until it is closed."""
        if not os.fstat(self.descriptor).st_nlink:
            why = "it was deleted while the channel was open; restart the agent once sinks have what is left in it"
            raise FileNotFoundError(errno.ENOENT, why, str(self.path))

    def fill(self, length: int, limit: int) -> None:
        """Have zeros where an entry of that length comes; `limit` is the size of a whole segment."""
        if self.size + length <= self.filled or length > _SMALL:
            return
        zeros = min(AHEAD, limit - self.size)
        if zeros > length:
            with contextlib.suppress(OSError):  # a full disk: the entry itself may still have room
                self.filled = self.size + os.pwrite(self.descriptor, bytes(zeros), self.size)


class Cursor:
    """Cursor of one reader. Used by one thread."""

    def __init__(self, segment: Segment) -> None:
        self.segment, self.at, self.number = segment, 0, segment.first
        """`number` is the number of the next entry."""


class Log:
    """Appended to by many threads, and read by as many."""

    def __init__(
        self, directories: Sequence[Path], segment_bytes: int, run: str = "", *, synced: bool = True
    ) -> None:
        """Keep segments in these directories, by turns; `run` is the id of this run.

        Without `synced` an entry counts as stored once it is written, and a loss of power may take it away.
        """
        self.directories, self.segment_bytes, self.run, self._synced = directories, segment_bytes, run, synced
        self.segments: list[Segment] = []
        self.stored = 0
        """Entries of a smaller number are on the disk."""
        self.end = 0
        """Number of the next entry."""
        self._stored_bytes = 0
        """Bytes of the newest segment that are on the disk."""
        self._failures = 0
        self._syncing = False
        self._changed = threading.Condition(threading.Lock())
        self.empty: list[Path] = []
        """Files of earlier runs without entries."""
        self._ended = False

    # --- life

    def open(self) -> Iterator[str]:
        """Find the segments, and set aside the torn end of the newest one: yield a sentence about that.

        Raises OSError, and FlafkaError for a segment of another version. `begin_run` has to come next.
        """
        self.segments = [Segment(path, first, run) for first, run, path in files(self.directories)]
        for segment in self.segments:
            # A segment with an entry of this version is damaged in its first bytes.
            found = _ANY_MAGIC.match(os.pread(segment.descriptor, len(_MAGIC), 0))
            if found is not None and found[0] != _MAGIC and segment.next_whole(0) is None:
                raise of_version(segment.path, "segment", int(found[1]))
        for segment in self.segments:
            if segment.first == self.segments[-1].first:  # a run that was killed at once leaves one without entries
                yield from self._cut(segment)
        # One that is followed by another of its run had entries: they were cut away.
        latest = {segment.run: segment.first for segment in self.segments}
        self.empty = [one.path for one in self.segments if not one.size and one.first == latest[one.run]]
        self.segments = [one for one in self.segments if one.size or one.first < latest[one.run]]

    def _cut(self, newest: Segment) -> Iterator[str]:
        """Let a newest segment end behind its last whole entry, and continue the numbers from there."""
        number, end = newest.first, 0
        at = newest.next_whole(0)
        while at is not None and (found := newest.header(at)) is not None:
            number, end = found.number + 1, at + found.length
            at = newest.next_whole(end)
        if torn := newest.written_behind(end):
            kept = _set_aside(newest, end, torn)
            yield (
                f"{newest.path} ends in {torn} bytes that are no whole put, as a kill or a loss of power leaves of a "
                f"put that no source was told is stored; {kept}"
            )
        if end < newest.size:
            newest.size = end
            newest.cut()
        os.fdatasync(newest.descriptor)  # who wrote it may have been killed before
        self.end = self.stored = max(self.end, number)

    def begin_run(self, number: int) -> None:
        """Begin the first segment of this run, with entry `number`, or a later one. Raises OSError."""
        with self._changed:
            self.end = self.stored = max(number, self.end)
            self._begin_segment(self.end)

    def remove_empty(self) -> None:
        """Delete the files `empty`. Raises OSError."""
        while self.empty:
            self.empty.pop().unlink(missing_ok=True)

    def end_run(self) -> None:
        """Take no more entries, and return when all are on the disk. Raises OSError."""
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
        """Close the files; after a `clean` end of the run, without a segment that has no entries."""
        with self._changed:
            self._end_segment()
            self._ended = True
            if clean and self.segments and not self.segments[-1].size:
                self.segments[-1].path.unlink(missing_ok=True)
            self.segments = []

    def _end_segment(self) -> None:
        for segment in self.segments[-1:]:
            if segment.filled > segment.size:
                with contextlib.suppress(OSError):  # zeros are no entry
                    segment.cut()

    def _begin_segment(self, number: int) -> None:
        directory = self.directories[len(self.segments) % len(self.directories)]
        path = directory / f"flafka-{number:020d}-{self.run}.log"
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o640))
        sync_directory(directory)
        self._end_segment()
        self.segments.append(Segment(path, number, self.run))
        self._stored_bytes = 0

    def begin(self) -> int:
        """Begin a segment with the next entry, and return the number of that entry. Raises OSError."""
        with self._changed:
            if self.segments[-1].size:
                self._sync_now()
                self._begin_segment(self.end)
            return self.end

    # --- writing

    def append(self, partition: int, arrival: int, events: int, payload: Any) -> UnsyncedEntry:
        """Write an entry; it is stored once `sync` has returned. Raises OSError."""
        with self._changed:
            if self._ended:
                raise OSError(errno.ESHUTDOWN, "the channel is closed")
            while (segment := self.segments[-1]).size and segment.size + len(payload) > self.segment_bytes:
                self._sync_now()
                if segment is self.segments[-1]:
                    self._begin_segment(self.end)
            header = _HEADER.pack(_MAGIC, 0, len(payload), partition, events, self.end, arrival)
            checksum = zlib.crc32(payload, zlib.crc32(header[_COVERED:]))
            pieces = [_MAGIC + struct.pack("<I", checksum) + header[_COVERED:], payload]
            if self._synced:
                segment.fill(len(header) + len(payload), self.segment_bytes)
            try:
                _write(segment.descriptor, pieces, segment.size)
            except OSError:
                with contextlib.suppress(OSError):  # what is left of it is overwritten, or cut off at the next start
                    segment.cut()
                raise
            segment.size += _HEADER.size + len(payload)
            self.end += 1
            if not self._synced:
                self.stored, self._stored_bytes = self.end, segment.size
                self._changed.notify_all()
            return UnsyncedEntry(self.end - 1, self._failures)

    def sync(self, written: UnsyncedEntry) -> None:
        """Return when that entry is on the disk: one call for all that wait at a time.

        Raises OSError where the disk fails: then neither that entry nor any after it is in the log.
        """
        with self._changed:
            while self.stored <= written.number or self._failures != written.failures:
                if self._failures != written.failures:
                    raise OSError("another thread could not store what was written before")
                if self._syncing:
                    self._changed.wait()
                    continue
                self._syncing = True
                segment, end, size = self.segments[-1], self.end, self.segments[-1].size
                self._changed.release()
                try:
                    os.fdatasync(segment.descriptor)
                    segment.refuse_deleted()
                    failed = None
                except OSError as e:
                    failed = e
                finally:
                    self._changed.acquire()
                    self._syncing = False
                    self._changed.notify_all()
                if failed is not None:
                    self._forget()
                    raise failed
                if segment is self.segments[-1]:  # else all of it was stored when the next one began
                    self.stored, self._stored_bytes = max(self.stored, end), max(self._stored_bytes, size)

    def sync_from(self, number: int) -> None:
        """Return when all segments that begin there or behind it are on the disk, also without `synced`.

        Raises OSError. For the thread that opens the log.
        """
        for segment in self.segments:
            if segment.first >= number:
                os.fdatasync(segment.descriptor)
        self.stored, self._stored_bytes = self.end, self.segments[-1].size

    def _sync_now(self) -> None:
        while self._syncing:
            self._changed.wait()
        if self.stored < self.end:
            try:
                os.fdatasync(self.segments[-1].descriptor)
                self.segments[-1].refuse_deleted()
            except OSError:
                self._forget()
                raise
            self.stored, self._stored_bytes = self.end, self.segments[-1].size
            self._changed.notify_all()

    def _forget(self) -> None:
        """Take back what was written since the last success: after a failure nobody knows what the disk has of it."""
        segment = self.segments[-1]
        segment.size, self.end = self._stored_bytes, self.stored
        with contextlib.suppress(OSError):  # it is written over
            segment.cut()
        self._failures += 1
        self._changed.notify_all()

    # --- reading

    def place(self, number: int) -> Cursor:
        """The beginning of the segment that has this entry, or of the oldest one."""
        with self._changed:
            return Cursor(next((s for s in reversed(self.segments) if s.first <= number), self.segments[0]))

    def read(self, place: Cursor) -> tuple[Entry, memoryview] | None:
        """The entry there, and its payload; `place` is behind it then. None at the end of what is stored.

        What is damaged is passed over: the number of the entry, or that of `place` at the end, jumps then.
        """
        while True:
            with self._changed:
                if place.number >= self.stored:
                    return None
                following = next((s for s in self.segments if s.first > place.segment.first), None)
            found = place.segment.read(place.at)
            if found is not None and found[0].number == place.number:
                place.at += found[0].length
                place.number += 1
                return found
            self._pass_over(place, following)

    def _pass_over(self, place: Cursor, following: Segment | None) -> None:
        """Go on behind the end of the segment, or behind what is damaged."""
        segment = place.segment
        whole = segment.next_whole(place.at + 1)
        if whole is not None and (entry := segment.header(whole)) is not None:
            place.at, place.number = whole, entry.number
        elif following is not None:
            place.segment, place.at, place.number = following, 0, following.first
        else:
            with self._changed:
                place.at, place.number = self._stored_bytes, self.stored

    def wait(self, place: Cursor, timeout: float) -> None:
        """Return when there is something to read there, or after so many seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self.stored > place.number, timeout)

    def entries(self) -> Iterator[tuple[Segment, Entry]]:
        """Yield headers of all entries, from the oldest on, with their segments. For the thread that opens the log.

        A payload is not checked. A header is, where its number is not the next one.
        """
        for segment in self.segments:
            at: int | None = 0
            expected = segment.first
            while at is not None and at < segment.size:
                entry = segment.header(at)
                if entry is None or (entry.number != expected and segment.read(at) is None):
                    at = segment.next_whole(at + 1)
                    continue
                yield segment, entry
                at += entry.length
                expected = entry.number + 1

    def needed(self, number: int) -> list[Segment]:
        """Segments that `drop(number)` would leave."""
        with self._changed:
            first = max((at for at, one in enumerate(self.segments) if one.first <= number), default=0)
            return self.segments[first:]

    def drop(self, number: int) -> None:
        """Delete the segments whose entries all have a smaller number; rename the damaged ones. Raises OSError."""
        with self._changed:
            while len(self.segments) > 1 and self.segments[1].first <= number:
                path = self.segments[0].path
                if self.segments[0].damaged:
                    with contextlib.suppress(FileNotFoundError):  # an operator has moved it away
                        path.replace(path.with_name(path.name + DAMAGED))
                else:
                    path.unlink(missing_ok=True)
                self.segments.pop(0)


def _set_aside(segment: Segment, begin: int, count: int) -> str:
    """Copy these bytes into a file of their own; return a clause that says where they are."""
    path = segment.path.with_name(f"{segment.path.name}.{begin}{DAMAGED}")
    try:
        with path.open("wb") as file:
            for at in range(begin, begin + count, _SCAN_BYTES):
                file.write(os.pread(segment.descriptor, min(_SCAN_BYTES, begin + count - at), at))
            file.flush()
            os.fsync(file.fileno())
        sync_directory(path.parent)
    except OSError as e:  # a full disk must not keep sinks from making room on it
        return f"they are cut off, and could not be kept in {path}: {e.strerror}"
    return f"they are in {path} now"


def drop_from(directories: Sequence[Path], number: int) -> None:
    """Delete the segments that begin with this entry or behind it, of a log that is not open. Raises as `files`."""
    for first, _, path in files(directories):
        if first >= number:
            path.unlink()
    for directory in directories:
        sync_directory(directory)


def files(directories: Sequence[Path]) -> list[tuple[int, str, Path]]:
    """Return first number, run and path of each segment, in the order of their entries. Raises OSError."""
    found = (path for directory in directories for path in directory.iterdir())
    return sorted((int(match[1]), match[2], path) for path in found if (match := _NAME.fullmatch(path.name)))


def _write(descriptor: int, pieces: Sequence[Any], at: int) -> None:
    written = os.pwritev(descriptor, pieces, at)
    whole = sum(map(len, pieces))
    while written < whole:  # the disk is nearly full, or the entry is very large
        rest = b"".join(map(bytes, pieces))[written:]
        count = os.pwrite(descriptor, rest, at + written)
        if not count:
            raise OSError(28, os.strerror(28))
        written += count
