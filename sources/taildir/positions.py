"""File offsets on disk: Flume's position file, and a journal with fingerprints of each file."""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
import re
import time
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from flafka.plugins import FlafkaError, Retry
from flafka.plugins.shared.disk import append, existing, make_directory, replace
from flafka.sources.taildir.tail import Mark, Tail

VERSION = 2
"""Version of the journal."""
_HEADER = b'{"journal":%d}\n' % VERSION
_ANY_HEADER = re.compile(rb'\{"journal":(\d{1,9})\}\n?')
_LINE = re.compile(rb"(\d{1,15}) ([0-9a-f]{8}) (\{.*\})\n?")
_SMALL = 1 << 20
"""Minimum growth of the journal before it is rewritten, in bytes."""


class _Position(msgspec.Struct):
    """Entry of Flume's position file."""

    inode: int
    pos: int
    file: str


class _Entry(msgspec.Struct, tag_field="is", tag="file"):
    """Journal line: the present state of a file. The last line of each `id` counts."""

    id: int
    inode: int
    pos: int
    file: str
    device: int | None
    name: str
    real: str
    mark: Mark | None

    def tail(self) -> Tail:
        """Return the file as a `Tail` that is not found yet."""
        return Tail(
            self.file,
            inode=self.inode,
            device=self.device,
            position=self.pos,
            mark=self.mark,
            name=self.name,
            real=self.real,
        )


class _Gone(msgspec.Struct, tag_field="is", tag="gone"):
    """Journal line: the file is no longer tracked."""

    id: int


class _Wrote(msgspec.Struct, tag_field="is", tag="wrote"):
    """Journal line: fingerprints of the present position file, and of the one to be written next."""

    old: str
    new: str


_Line = _Entry | _Gone | _Wrote


class PositionFile:
    """Flume's position file, `[{"inode":N,"pos":N,"file":"/abs"}]`, with a journal.

    Flume and this source can use the file in turn. It is replaced every `interval` seconds, and at the end. Changes
    are appended to `<positionFile>.journal` and synced; the cost does not depend on the number of files.

    The journal counts while the position file is one that this class wrote. Otherwise Flume or an operator changed or
    removed the position file: then its offsets count, and the journal only identifies the files.

    Each line of the journal has a number and a checksum. Damaged or missing lines are skipped and logged; their files
    are read again from an earlier offset. Deleted files are in the journal only.

    At most one source can open a position file: `<positionFile>.lock` is locked with flock(2).
    """

    def __init__(self, path: Path, interval: float = 0.0) -> None:
        self.path = path
        self._interval = interval
        self._journal_path = path.with_name(path.name + ".journal")
        self._lock: int | None = None
        self._journal: int | None = None
        self._size = self._most = 0
        """Size of the journal in bytes, and the size from which it is rewritten."""
        self._wrote = _Wrote("", "")
        """Fingerprints of the position file that count if this process ends now."""
        self._behind = True
        """True if the journal is newer than the position file."""
        self._written_at = -math.inf
        self._number = 0
        """Number of the last line of the journal."""
        self.notes: list[str] = []
        """Warnings about the content that was read, as sentences for the log."""

    def open(self) -> list[Tail]:
        """Lock and read the position file; return its files, none of them found yet.

        Raises Retry where another source has locked it or it cannot be written, FlafkaError where its content is
        invalid.
        """
        try:
            self._take_directory()
        except BlockingIOError:
            raise Retry(f"positionFile {self.path} is in use by another taildir source: give each its own") from None
        except OSError as e:
            raise Retry(self.unwritable(e)) from e
        return self.read()

    def _take_directory(self) -> None:
        """Create the directory and lock the position file.

        Raises BlockingIOError where another source has locked it, OSError where it cannot be written.
        """
        make_directory(self.path.parent)
        if self.path.exists() and not os.access(self.path, os.W_OK, effective_ids=True):
            raise PermissionError("it is read-only")
        self._unlock()
        lock = self.path.with_name(self.path.name + ".lock")
        self._lock = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def read(self) -> list[Tail]:
        """Read the position file without locking; return its files, none of them found yet.

        Raises FlafkaError where the content is invalid, Retry where a file cannot be read.
        """
        data = _content(self.path)
        entries = self._read_journal()
        if entries and _is_wiped(data):
            self.notes.append(
                f"{self.path} holds zeros, as a loss of power leaves them: {self._journal_path} is used"
            )
            return [entry.tail() for entry in entries]
        try:
            # Flume leaves an empty file where nothing matches. The json module accepts names that are not UTF-8.
            positions = msgspec.convert(json.loads(data), list[_Position]) if data.strip() else []
        except (ValueError, RecursionError) as e:
            raise _senseless(self.path, str(e)) from e
        if _fingerprint(data) in (self._wrote.old, self._wrote.new):
            self._wrote.old = _fingerprint(data)
            return [entry.tail() for entry in entries]
        if entries:
            self.notes.append(
                f"{self.path} was changed by Flume or by hand since this agent wrote it: its positions are used"
            )
        known = {(entry.inode, entry.file): entry for entry in entries}
        tails = []
        for found in positions:
            entry = known.get((found.inode, found.file))
            tail = entry.tail() if entry else Tail(found.file, inode=found.inode, device=None)
            if entry and found.pos > entry.pos:
                self.notes.append(
                    f"{found.file} is read from byte {found.pos} on, as {self.path} says, if a line ends there: bytes"
                    f" {entry.pos} to {found.pos} were not read here"
                )
            tail.position = max(0, found.pos)
            if tail.position and tail.mark is not None and not tail.mark.length:
                tail.mark = None  # a fingerprint of an empty file proves nothing about data that Flume read since
            tails.append(tail)
        return tails

    def _read_journal(self) -> list[_Entry]:
        data = _content(self._journal_path)
        lines = data.splitlines(keepends=True)
        if _is_wiped(data):
            self.notes.append(f"{self._journal_path} holds zeros, as a loss of power leaves them: it is begun anew")
            return []
        if not lines:
            return []
        header = lines.pop(0)
        if header != _HEADER:
            if other := _ANY_HEADER.fullmatch(header):
                raise self._of_version(int(other[1]))
            raise _senseless(self._journal_path, "it does not begin as one")
        entries: dict[int, _Entry] = {}
        damaged, last = False, 0
        for line in lines:
            try:
                number, found = _decoded(line)
            except ValueError:
                damaged = True
                continue
            damaged = damaged or number != last + 1
            last = number
            match found:
                case _Entry():
                    entries[found.id] = found
                case _Gone():
                    entries.pop(found.id, None)
                case _Wrote():
                    self._wrote = found
        if damaged:
            self.notes.append(
                f"{self._journal_path}: lines are damaged or missing. They are skipped; what they said was stored may"
                " be read again"
            )
        return list(entries.values())

    def _of_version(self, version: int) -> FlafkaError:
        """Return the error for a journal of another version, with the way out."""
        return FlafkaError(
            f"{self._journal_path} is a journal of version {version}, and this source reads version {VERSION}: stop "
            f"the agent that wrote it by SIGTERM, so that {self.path} has all positions, then remove the journal"
        )

    def save(self, changed: Iterable[Tail], tails: Iterable[Tail], *, last: bool = False) -> None:
        """Commit the offsets of the changed files durably. Raises OSError, and then nothing counts as saved.

        Flume's file is written too if its interval has passed, or if this is the `last` call.
        """
        changed = list(changed)
        if changed:
            self._append(map(_line, changed), tails)
            self._behind = True
        now = time.monotonic()
        if self._behind and (last or now - self._written_at >= self._interval):
            data = _json([_Position(tail.inode, tail.position, tail.path) for tail in tails if not tail.deleted])
            if not data.isascii():  # Flume reads the file in the default charset of its host
                data = json.dumps(json.loads(data), separators=(",", ":")).encode()
            self._wrote.new = _fingerprint(data)
            self._append([self._wrote], tails)
            os.close(replace(self.path, data))
            self._wrote.old = self._wrote.new
            self._behind, self._written_at = False, now

    def _append(self, lines: Iterable[_Line], tails: Iterable[Tail]) -> None:
        if self._journal is None or self._size > self._most or not _is(self._journal, self._journal_path):
            self._rewrite(tails)
            return
        data, number = _encoded(lines, self._number)
        self._size, self._number = append(self._journal, data, self._size), number

    def _rewrite(self, tails: Iterable[Tail]) -> None:
        lines, self._number = _encoded([self._wrote, *map(_line, tails)], 0)
        data = _HEADER + lines
        self._release()
        if not self.path.parent.exists():  # the directory was removed while the agent runs
            self._take_directory()
        self._journal = replace(self._journal_path, data)
        self._size = len(data)
        self._most = _SMALL + 3 * self._size

    def problems(self) -> Iterator[str]:
        """Yield every reason why the position file cannot be opened. Without side effects."""
        try:
            self.read()
        except FlafkaError as e:
            yield str(e)
        directory = existing(self.path.parent)
        for place in (self.path, directory):
            if place.exists() and not os.access(place, os.W_OK, effective_ids=True):
                yield self.unwritable(PermissionError(f"{place} is not writable"))
        if not directory.is_dir():
            yield self.unwritable(NotADirectoryError(f"{directory} is not a directory"))

    def unwritable(self, error: OSError) -> str:
        """Return the error text for a position file that cannot be written."""
        return f"positionFile {self.path} cannot be written, so nothing is read: {error.strerror or error}"

    def close(self) -> None:
        """Close the journal and release the lock."""
        self._release()
        self._unlock()

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _release(self) -> None:
        if self._journal is not None:
            os.close(self._journal)
            self._journal = None


def _line(tail: Tail) -> _Line:
    if tail.gone:
        return _Gone(tail.id)
    return _Entry(tail.id, tail.inode, tail.position, tail.path, tail.device, tail.name, tail.real, tail.mark)


def _encoded(lines: Iterable[_Line], number: int) -> tuple[bytes, int]:
    """Encode lines of the journal, numbered from `number` + 1; return the bytes and the last number."""
    encoded = []
    for line in lines:
        number += 1
        text = _json(line)
        encoded.append(b"%d %08x %s\n" % (number, _checksum(number, text), text))
    return b"".join(encoded), number


def _json(found: _Line | list[_Position]) -> bytes:
    try:
        return msgspec.json.encode(found)
    except UnicodeEncodeError:  # the name is not UTF-8: json accepts it, ten times as slowly
        return json.dumps(msgspec.to_builtins(found), separators=(",", ":")).encode()


def _decoded(line: bytes) -> tuple[int, _Line]:
    """Decode a journal line; return its number and content. Raises ValueError where it is damaged."""
    parts = _LINE.fullmatch(line)
    if parts is None or int(parts[2], 16) != _checksum(int(parts[1]), parts[3]):
        raise ValueError("it is damaged")
    return int(parts[1]), msgspec.convert(json.loads(parts[3]), _Entry | _Gone | _Wrote)


def _checksum(number: int, text: bytes) -> int:
    return zlib.crc32(b"%d %s" % (number, text))


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return b""
    except OSError as e:
        raise Retry(f"{path} cannot be read: {e.strerror}") from e


def _is_wiped(data: bytes) -> bool:
    """Return True if the data are only zeros, as a file system may leave them after a power loss."""
    return bool(data) and not data.strip(b"\0")


def _senseless(path: Path, reason: str) -> FlafkaError:
    return FlafkaError(
        f"{path} does not hold positions of files: {reason}. "
        "Repair it, or remove it to read every file from its start"
    )


def _fingerprint(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _is(fd: int, path: Path) -> bool:
    """Return True if the open file is the one at that path."""
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False
