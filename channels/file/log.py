"""A log on the local disk: numbered entries in segment files, on the disk before they count as stored.

An entry is a header and its payload; the header's checksum covers both. Entries are numbered without gaps, over all
segments. Only the end of the newest segment can be torn, by a crash: it is cut off when the log is opened, and said.
What is damaged elsewhere is passed over when it is read: the gap in the numbers tells how much is lost.

Where entries are small, zeros are written ahead of them: a file system that has nothing but an entry to write, no new
size or place to note, has it on the disk in about half the time. Zeros are no entry, wherever a crash leaves them.
"""

from __future__ import annotations

import contextlib
import os
import re
import struct
import threading
import weakref
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from plugins import FlafkaError
from plugins.shared.disk import replace, sync_directory

_HEADER = struct.Struct("<4sIIHIQq")
"""Magic, checksum of all that follows it, bytes of the payload, partition, events, number, arrival."""
_MAGIC = b"FLE1"
_COVERED = len(_MAGIC) + 4
_NAME = re.compile(r"flafka-(\d{20})\.log")
_SCAN_BYTES = 1 << 20
AHEAD = 1 << 20
"""So many bytes of zeros are written at once."""
_SMALL = AHEAD // 16
"""Bytes of an entry at most for which they are: with larger ones, more is written than is saved."""
RESERVED = 1 << 20
"""So many numbers are reserved at once where entries do not wait for the disk."""

_DAMAGED = "delete it, and new events may get the ids of some that a loss of power took away"


class Entry(NamedTuple):
    """What was appended at once."""

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


class Written(NamedTuple):
    """An entry that may not be on the disk yet."""

    number: int
    failures: int
    """How often the disk had failed before: with each failure, what was not on it is taken back."""


class Segment:
    """One file of the log. It stays open while anyone reads it, also when it is deleted."""

    def __init__(self, path: Path, first: int) -> None:
        self.path, self.first = path, first
        self.descriptor = os.open(path, os.O_RDWR)
        weakref.finalize(self, os.close, self.descriptor)
        self.size = os.fstat(self.descriptor).st_size
        """Bytes of entries. Who writes them has zeros behind, up to `filled`."""
        self.filled = self.size

    def header(self, at: int) -> Entry | None:
        """What the header at that byte says, unchecked; None where there is none."""
        header = os.pread(self.descriptor, _HEADER.size, at)
        if len(header) < _HEADER.size or not header.startswith(_MAGIC):
            return None
        _, _, size, partition, events, number, arrival = _HEADER.unpack(header)
        return Entry(number, partition, arrival, events, size)

    def read(self, at: int) -> tuple[Entry, memoryview] | None:
        """The entry at that byte, and its payload; None where they are not as they were written."""
        entry = self.header(at)
        if entry is None or at + entry.length > self.size:
            return None
        whole = memoryview(os.pread(self.descriptor, entry.length, at))
        (checksum,) = struct.unpack_from("<I", whole, len(_MAGIC))
        return (entry, whole[_HEADER.size :]) if zlib.crc32(whole[_COVERED:]) == checksum else None

    def next_whole(self, at: int) -> int | None:
        """The first byte from `at` on where a whole entry begins; None where none does."""
        while at < self.size:
            if self.read(at) is not None:
                return at
            found = os.pread(self.descriptor, _SCAN_BYTES + len(_MAGIC) - 1, at).find(_MAGIC)
            at += found or 1 if found >= 0 else _SCAN_BYTES
        return None

    def written_behind(self, at: int) -> int:
        """How many bytes from there on anyone has written into, zeros ahead of entries aside."""
        last = at
        for begin in range(at, self.size, _SCAN_BYTES):
            if found := os.pread(self.descriptor, _SCAN_BYTES, begin).rstrip(b"\0"):
                last = begin + len(found)
        return last - at

    def cut(self) -> None:
        """Let the file end where the entries do. Raises OSError."""
        os.ftruncate(self.descriptor, self.size)
        self.filled = self.size

    def fill(self, length: int, limit: int) -> None:
        """Have zeros where an entry of that length comes; `limit` is the size of a whole segment."""
        if self.size + length <= self.filled or length > _SMALL:
            return
        zeros = min(AHEAD, limit - self.size)
        if zeros > length:
            with contextlib.suppress(OSError):  # a full disk: the entry itself may still have room
                self.filled = self.size + os.pwrite(self.descriptor, bytes(zeros), self.size)


class Place:
    """How far a reader has come. Used by one thread."""

    def __init__(self, segment: Segment) -> None:
        self.segment, self.at, self.number = segment, 0, segment.first
        """`number` is that of the entry which has to come next."""


class Log:
    """Appended to by many threads, and read by as many."""

    def __init__(self, directories: Sequence[Path], segment_bytes: int, *, numbers: Path | None = None) -> None:
        """In these directories, by turns.

        With `numbers` an entry counts as stored once it is written, and a loss of power may take it away. That file
        is on the disk before any entry has a number as large as the one that it holds, and the log goes on from there
        when it is opened, so that no number is given twice.
        """
        self._numbers, self._reserved = numbers, 0
        self.directories, self.segment_bytes = directories, segment_bytes
        self.segments: list[Segment] = []
        self.stored = 0
        """Entries of a smaller number are on the disk."""
        self._next = 0
        self._stored_bytes = 0
        """How much of the newest segment is on the disk."""
        self._failures = 0
        self._syncing = False
        self._changed = threading.Condition(threading.Lock())

    # --- life

    def open(self) -> Iterator[str]:
        """Find the segments, and cut off what a crash has left of the last entry: a sentence about that. Raises
        OSError, and FlafkaError where the file of `numbers` is damaged."""
        self.segments = [Segment(path, first) for first, path in files(self.directories)]
        if self.segments:
            yield from self._cut(self.segments[-1])
        else:
            self._begin_segment(0)
        if self._numbers is not None and self._numbers.exists():
            if not (text := self._numbers.read_bytes()).isdigit():
                raise FlafkaError(f"{self._numbers} is damaged: {_DAMAGED}")
            self.skip_to(int(text))

    def _cut(self, newest: Segment) -> Iterator[str]:
        """Cut off what is no whole entry at the end of the newest segment; go on behind those that are."""
        number, end = newest.first, 0
        at = newest.next_whole(0)
        while at is not None and (found := newest.header(at)) is not None:
            number, end = found.number + 1, at + found.length
            at = newest.next_whole(end)
        if torn := newest.written_behind(end):
            whose = "that nobody was told is stored" if self._numbers is None else "of which the disk has only a part"
            yield f"{newest.path} ends in {torn} bytes of a put {whose}: cut off"
        if end < newest.size:
            newest.size = end
            newest.cut()
        os.fdatasync(newest.descriptor)  # who wrote it may have been killed before
        self._next = self.stored = number
        self._stored_bytes = end

    def close(self) -> None:
        """Close the files."""
        with self._changed:
            self._end_segment()
            self.segments = []

    def _end_segment(self) -> None:
        for segment in self.segments[-1:]:
            if segment.filled > segment.size:
                with contextlib.suppress(OSError):  # zeros are no entry
                    segment.cut()

    def _begin_segment(self, number: int) -> None:
        directory = self.directories[len(self.segments) % len(self.directories)]
        path = directory / f"flafka-{number:020d}.log"
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o640))
        sync_directory(directory)
        self._end_segment()
        self.segments.append(Segment(path, number))
        self._stored_bytes = 0

    def skip_to(self, number: int) -> None:
        """Give the entries that come next this number, and larger ones. Raises OSError."""
        with self._changed:
            if number > self._next:
                self._sync_now()
                self._begin_segment(number)
                self._next = self.stored = number

    def begin(self) -> int:
        """Let what comes next begin a segment; its number. Raises OSError."""
        with self._changed:
            if self.segments[-1].size:
                self._sync_now()
                self._begin_segment(self._next)
            return self._next

    # --- writing

    def append(self, partition: int, arrival: int, events: int, payload: Any) -> Written:
        """Write an entry; it is stored once `sync` has returned. Raises OSError."""
        with self._changed:
            if self._numbers is not None and self._next >= self._reserved:
                os.close(replace(self._numbers, b"%d" % (self._next + RESERVED)))
                self._reserved = self._next + RESERVED
            while (segment := self.segments[-1]).size and segment.size + len(payload) > self.segment_bytes:
                self._sync_now()
                if segment is self.segments[-1]:
                    self._begin_segment(self._next)
            header = _HEADER.pack(_MAGIC, 0, len(payload), partition, events, self._next, arrival)
            checksum = zlib.crc32(payload, zlib.crc32(header[_COVERED:]))
            pieces = [_MAGIC + struct.pack("<I", checksum) + header[_COVERED:], payload]
            if self._numbers is None:
                segment.fill(len(header) + len(payload), self.segment_bytes)
            try:
                _write(segment.descriptor, pieces, segment.size)
            except OSError:
                with contextlib.suppress(OSError):  # what is left of it is overwritten, or cut off at the next start
                    segment.cut()
                raise
            segment.size += _HEADER.size + len(payload)
            self._next += 1
            if self._numbers is not None:
                self.stored, self._stored_bytes = self._next, segment.size
                self._changed.notify_all()
            return Written(self._next - 1, self._failures)

    def sync(self, written: Written) -> None:
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
                segment, end, size = self.segments[-1], self._next, self.segments[-1].size
                self._changed.release()
                try:
                    os.fdatasync(segment.descriptor)
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
        """Return when all segments that begin there or behind it are on the disk, also where entries do not wait for
        it. Raises OSError. For the one that opens the log."""
        for segment in self.segments:
            if segment.first >= number:
                os.fdatasync(segment.descriptor)
        self.stored, self._stored_bytes = self._next, self.segments[-1].size

    def _sync_now(self) -> None:
        while self._syncing:
            self._changed.wait()
        if self.stored < self._next:
            try:
                os.fdatasync(self.segments[-1].descriptor)
            except OSError:
                self._forget()
                raise
            self.stored, self._stored_bytes = self._next, self.segments[-1].size
            self._changed.notify_all()

    def _forget(self) -> None:
        """Take back what was written since the last success: after a failure nobody knows what the disk has of it."""
        segment = self.segments[-1]
        segment.size, self._next = self._stored_bytes, self.stored
        with contextlib.suppress(OSError):  # it is written over
            segment.cut()
        self._failures += 1
        self._changed.notify_all()

    # --- reading

    def place(self, number: int) -> Place:
        """The beginning of the segment that has this entry, or of the oldest one."""
        with self._changed:
            return Place(next((s for s in reversed(self.segments) if s.first <= number), self.segments[0]))

    def read(self, place: Place) -> tuple[Entry, memoryview] | None:
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

    def _pass_over(self, place: Place, following: Segment | None) -> None:
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

    def wait(self, place: Place, timeout: float) -> None:
        """Return when there is something to read there, or after so many seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self.stored > place.number, timeout)

    def entries(self) -> Iterator[Entry]:
        """The headers of all entries, from the oldest on, without their payloads. For the one that opens the log."""
        for segment in self.segments:
            at: int | None = 0
            while at is not None and at < segment.size:
                if (entry := segment.header(at)) is None:
                    at = segment.next_whole(at)
                    continue
                yield entry
                at += entry.length

    def drop(self, number: int) -> None:
        """Delete the segments whose entries all have a smaller number."""
        with self._changed:
            while len(self.segments) > 1 and self.segments[1].first <= number:
                self.segments.pop(0).path.unlink(missing_ok=True)


def drop_from(directories: Sequence[Path], number: int) -> None:
    """Delete the segments that begin with this entry or behind it, of a log that is not open. Raises OSError."""
    for first, path in files(directories):
        if first >= number:
            path.unlink()
    for directory in directories:
        sync_directory(directory)


def files(directories: Sequence[Path]) -> list[tuple[int, Path]]:
    """All segments, in order, with their first entries."""
    found = (path for directory in directories for path in directory.iterdir())
    return sorted((int(match[1]), path) for path in found if (match := _NAME.fullmatch(path.name)))


def _write(descriptor: int, pieces: Sequence[Any], at: int) -> None:
    written = os.pwritev(descriptor, pieces, at)
    whole = sum(map(len, pieces))
    while written < whole:  # the disk is nearly full, or the entry is very large
        rest = b"".join(map(bytes, pieces))[written:]
        count = os.pwrite(descriptor, rest, at + written)
        if not count:
            raise OSError(28, os.strerror(28))
        written += count
