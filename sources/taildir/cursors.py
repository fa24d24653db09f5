"""Cursors: file offsets with the identity of their files, and their store on disk.

The store is Flume's position file with a journal.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import re
import time
import zlib
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Protocol

import msgspec

from flafka.plugins import FlafkaError, Retry
from flafka.plugins.storage import append_to_file, make_directory, nearest_existing, replace_file

HEAD_BYTES = 1024
"""Number of bytes at the start of a file that are fingerprinted to identify it."""
TAIL_BYTES = 64
"""Number of bytes before the file offset that are fingerprinted, too."""
VERSION = 2
"""Version of the journal."""
_HEADER = b'{"journal":%d}\n' % VERSION
_ANY_HEADER = re.compile(rb'\{"journal":(\d{1,9})\}\n?')
_LINE = re.compile(rb"(\d{1,15}) ([0-9a-f]{8}) (\{.*\})\n?")
_MIN_REWRITE_BYTES = 1 << 20
"""Minimum growth of the journal before it is rewritten, in bytes."""


class FileCheckpoint(msgspec.Struct, frozen=True, gc=False):
    """File offset, with fingerprints of bytes before it. Tracked files only grow."""

    offset: int = 0
    length: int = 0
    """Number of bytes in the fingerprint of the head, at most `HEAD_BYTES`."""
    head: str = ""
    tail: str = ""

    @classmethod
    def of_file(cls, fd: int, offset: int) -> FileCheckpoint:
        """Return a checkpoint at an offset, with fingerprints of the open file as it is now."""
        head = os.pread(fd, HEAD_BYTES, 0)
        return cls(offset, len(head), fingerprint(head), fingerprint(_before(fd, offset)))

    def matches_head(self, head: bytes) -> bool:
        """Return True if `head` begins with the fingerprinted head.

        `head` is the first `HEAD_BYTES` bytes of a file, or all of a shorter file.
        """
        return len(head) >= self.length and fingerprint(head[: self.length]) == self.head

    def matches_file(self, fd: int) -> bool:
        """Return True if the open file has the fingerprinted bytes, at its start and before `offset`."""
        head = os.pread(fd, self.length, 0) if self.length else b""
        return self.matches(head, _before(fd, self.offset))

    def matches(self, head: bytes, before: bytes) -> bool:
        """Return True if the fingerprints match the head of a file, and `before`, the bytes before its offset.

        `before` has the last `TAIL_BYTES` bytes before the offset, or all if there are fewer.
        """
        return fingerprint(before) == self.tail and self.matches_head(head)


def _before(fd: int, offset: int) -> bytes:
    """Return the bytes before `offset` in the open file, at most `TAIL_BYTES`."""
    size = min(TAIL_BYTES, offset)
    return os.pread(fd, size, offset - size) if size else b""


def fingerprint(data: bytes) -> str:
    """Return the BLAKE2b hash of file content as 32 hex digits; empty for no content."""
    return blake2b(data, digest_size=16).hexdigest() if data else ""


class FileCursor(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """File offset up to which the events of a file are stored, with the identity of the file."""

    id: int
    """Number of the cursor, unique in its store."""
    inode: int
    """Inode of the file; 0 for the former content of a truncated or replaced file."""
    device: int | None
    """Device of the file; None where only Flume's position file names it."""
    path: str
    name: str
    """First path of the file, which names its log."""
    real: str
    """Target of `path` where that is a symbolic link, else `path`."""
    offset: int
    checkpoint: FileCheckpoint | None
    """Fingerprints of the content before the offset; None for an offset that Flume wrote."""
    deleted: bool = False
    """True if no name leads to the file. Flume's position file leaves it out; a journal does not store this."""


class CursorStore(Protocol):
    """Durable store of cursors. Only the thread of the source calls it."""

    def load(self) -> list[FileCursor]:
        """Return the stored cursors.

        Raises Retry where another source has locked the store, FlafkaError where its content is invalid.
        """
        ...

    def save(self, changed: Sequence[FileCursor], removed: Sequence[int], *, final: bool = False) -> None:
        """Store the changed cursors durably, and remove those with the IDs `removed`.

        `final` marks the last call. Raises OSError, and then nothing counts as saved.
        """
        ...


class _Position(msgspec.Struct):
    """Entry of Flume's position file."""

    inode: int
    pos: int
    file: str


class _Entry(msgspec.Struct, tag_field="is", tag="file", gc=False):
    """Journal line: the present state of a file. The last line of each `id` counts."""

    id: int
    inode: int
    pos: int
    file: str
    device: int | None
    name: str
    real: str
    mark: FileCheckpoint | None

    @classmethod
    def of(cls, cursor: FileCursor) -> _Entry:
        """Return the journal line for a cursor."""
        return cls(
            cursor.id,
            cursor.inode,
            cursor.offset,
            cursor.path,
            cursor.device,
            cursor.name,
            cursor.real,
            cursor.checkpoint,
        )

    def cursor(self) -> FileCursor:
        """Return the cursor that this journal line holds."""
        return FileCursor(
            id=self.id,
            inode=self.inode,
            device=self.device,
            path=self.file,
            name=self.name,
            real=self.real,
            offset=self.pos,
            checkpoint=self.mark,
        )


class _Removal(msgspec.Struct, tag_field="is", tag="gone"):
    """Journal line: the file is no longer tracked."""

    id: int


class _PositionFileState(msgspec.Struct, tag_field="is", tag="wrote"):
    """Journal line: fingerprints of the present position file, and of the one to be written next."""

    old: str
    new: str


_Line = _Entry | _Removal | _PositionFileState


class PositionFile(CursorStore):
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
        self._size = self._max_size = 0
        """Size of the journal in bytes, and the size from which it is rewritten."""
        self._state = _PositionFileState("", "")
        """Fingerprints of the position file that count if this process ends now."""
        self._is_outdated = True
        """True if the journal is newer than the position file."""
        self._written_at = -math.inf
        self._number = 0
        """Number of the last line of the journal."""
        self._cursors: dict[int, FileCursor] = {}
        """Cursors by ID, as of the latest call of `load` or `save`."""
        self.warnings: list[str] = []
        """Warnings about the content that was read, as sentences for the log."""

    def load(self) -> list[FileCursor]:
        """Lock and read the position file; return its cursors.

        Raises Retry where another source has locked it or it cannot be read or written, FlafkaError where its content
        is invalid.
        """
        try:
            self._lock_directory()
        except BlockingIOError:
            raise Retry(f"positionFile {self.path} is in use by another taildir source: give each its own") from None
        except OSError as e:
            raise Retry(self.write_error_text(e)) from e
        cursors = self.read()
        self._cursors = {cursor.id: cursor for cursor in cursors}
        return cursors

    def _lock_directory(self) -> None:
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

    def read(self) -> list[FileCursor]:
        """Read the position file and its journal without locking; return the cursors.

        The journal's offsets count if the position file is the one last written here, or holds zeros. Otherwise the
        position file's offsets count. Anything unusual is appended to `warnings`. Raises FlafkaError where the
        content is invalid, Retry where a file cannot be read.
        """
        data = _read_bytes(self.path)
        entries = self._read_journal()
        if entries and _is_zeros(data):
            self.warnings.append(
                f"{self.path} holds zeros, as a loss of power leaves them: {self._journal_path} is used"
            )
            return [entry.cursor() for entry in entries]
        try:
            # Flume leaves an empty file where nothing matches. The json module accepts names that are not UTF-8.
            positions = msgspec.convert(json.loads(data), list[_Position]) if data.strip() else []
        except (ValueError, RecursionError) as e:
            raise _invalid_error(self.path, str(e)) from e
        if _digest(data) in (self._state.old, self._state.new):
            self._state.old = _digest(data)
            return [entry.cursor() for entry in entries]
        if entries:
            self.warnings.append(
                f"{self.path} was changed by Flume or by hand since this agent wrote it: its positions are used"
            )
        known = {(entry.inode, entry.file): entry for entry in entries}
        cursors = []
        for number, position in enumerate(positions, 1):  # the first save replaces the journal with its IDs
            entry = known.get((position.inode, position.file))
            if entry and position.pos > entry.pos:
                self.warnings.append(
                    f"{position.file} is read from byte {position.pos} on, as {self.path} says, if a line ends there:"
                    f" bytes {entry.pos} to {position.pos} were not read here"
                )
            offset = max(0, position.pos)
            checkpoint = entry.mark if entry else None
            if offset and checkpoint is not None and not checkpoint.length:
                checkpoint = None  # a fingerprint of an empty file proves nothing about data that Flume read since
            cursors.append(
                FileCursor(
                    id=number,
                    inode=position.inode,
                    device=entry.device if entry else None,
                    path=position.file,
                    name=(entry and entry.name) or position.file,
                    real=(entry and entry.real) or position.file,
                    offset=offset,
                    checkpoint=checkpoint,
                )
            )
        return cursors

    def _read_journal(self) -> list[_Entry]:
        """Return the latest entry of each tracked file; empty where there is no journal, or only zeros.

        Damaged lines are skipped with a warning. Raises FlafkaError where the journal has another version or does not
        begin as a journal, Retry where it cannot be read.
        """
        data = _read_bytes(self._journal_path)
        lines = data.splitlines(keepends=True)
        if _is_zeros(data):
            self.warnings.append(
                f"{self._journal_path} holds zeros, as a loss of power leaves them: a new one is begun"
            )
            return []
        if not lines:
            return []
        header = lines.pop(0)
        if header != _HEADER:
            if match := _ANY_HEADER.fullmatch(header):
                raise self._version_error(int(match[1]))
            raise _invalid_error(self._journal_path, "it does not begin as one")
        entries: dict[int, _Entry] = {}
        damaged, last = False, 0
        for line in lines:
            try:
                number, entry = _decode(line)
            except ValueError:
                damaged = True
                continue
            damaged = damaged or number != last + 1
            last = number
            match entry:
                case _Entry():
                    entries[entry.id] = entry
                case _Removal():
                    entries.pop(entry.id, None)
                case _PositionFileState():
                    self._state = entry
        if damaged:
            self.warnings.append(
                f"{self._journal_path}: lines are damaged or missing. They are skipped; events whose offsets they"
                " held may be read again"
            )
        return list(entries.values())

    def _version_error(self, version: int) -> FlafkaError:
        """Return the error for a journal of another version, with the remedy."""
        return FlafkaError(
            f"{self._journal_path} is a journal of version {version}, and this source reads version {VERSION}: stop "
            f"the agent that wrote it by SIGTERM, so that {self.path} has all positions, then remove the journal"
        )

    def save(self, changed: Sequence[FileCursor], removed: Sequence[int], *, final: bool = False) -> None:
        """Store the changed cursors durably, and remove those with the IDs `removed`.

        The journal is appended to. Flume's position file is replaced, too, if its interval has passed, or if this is
        the `final` call. Raises OSError; then the caller must save the same cursors again.
        """
        self._cursors.update((cursor.id, cursor) for cursor in changed)
        for id in removed:
            self._cursors.pop(id, None)
        if changed or removed:
            self._append([*map(_Entry.of, changed), *map(_Removal, removed)])
            self._is_outdated = True
        now = time.monotonic()
        if self._is_outdated and (final or now - self._written_at >= self._interval):
            data = _json([_Position(c.inode, c.offset, c.path) for c in self._cursors.values() if not c.deleted])
            if not data.isascii():  # Flume reads the file in the default charset of its host
                data = json.dumps(json.loads(data), separators=(",", ":")).encode()
            self._state.new = _digest(data)
            self._append([self._state])
            os.close(replace_file(self.path, data))
            self._state.old = self._state.new
            self._is_outdated, self._written_at = False, now

    def _append(self, lines: Iterable[_Line]) -> None:
        """Append lines to the journal and sync it; rewrite it instead where it is missing, replaced or too large.

        Raises OSError.
        """
        if (
            self._journal is None
            or self._size > self._max_size
            or not _is_same_file(self._journal, self._journal_path)
        ):
            self._rewrite()
            return
        data, number = _encode(lines, self._number)
        self._size, self._number = append_to_file(self._journal, data, self._size), number

    def _rewrite(self) -> None:
        """Replace the journal by a new one with the present cursors. Raises OSError."""
        lines, self._number = _encode([self._state, *map(_Entry.of, self._cursors.values())], 0)
        data = _HEADER + lines
        self._close_journal()
        if not self.path.parent.exists():  # removed while the agent runs
            self._lock_directory()
        self._journal = replace_file(self._journal_path, data)
        self._size = len(data)
        self._max_size = _MIN_REWRITE_BYTES + 3 * self._size

    def problems(self) -> Iterator[str]:
        """Yield every reason why the position file cannot be read or written, apart from locks of other sources.

        Nothing is locked or written.
        """
        try:
            self.read()
        except FlafkaError as e:
            yield str(e)
        directory = nearest_existing(self.path.parent)
        for path in (self.path, directory):
            if path.exists() and not os.access(path, os.W_OK, effective_ids=True):
                yield self.write_error_text(PermissionError(f"{path} is not writable"))
        if not directory.is_dir():
            yield self.write_error_text(NotADirectoryError(f"{directory} is not a directory"))

    def write_error_text(self, error: OSError) -> str:
        """Return the error text for a position file that cannot be written because of `error`."""
        return f"positionFile {self.path} cannot be written, so nothing is read: {error.strerror or error}"

    def close(self) -> None:
        """Close the journal and release the lock, without saving. Idempotent."""
        self._close_journal()
        self._unlock()

    def _unlock(self) -> None:
        """Release the lock, if it is held."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _close_journal(self) -> None:
        if self._journal is not None:
            os.close(self._journal)
            self._journal = None


def _encode(lines: Iterable[_Line], number: int) -> tuple[bytes, int]:
    """Encode lines of the journal, numbered from `number` + 1; return the bytes and the last number."""
    encoded = []
    for line in lines:
        number += 1
        text = _json(line)
        encoded.append(b"%d %08x %s\n" % (number, _checksum(number, text), text))
    return b"".join(encoded), number


def _json(content: _Line | list[_Position]) -> bytes:
    """Return the content as JSON; file names that are not UTF-8 are escaped as surrogates."""
    try:
        return msgspec.json.encode(content)
    except UnicodeEncodeError:  # the name is not UTF-8: json accepts it, ten times as slowly
        return json.dumps(msgspec.to_builtins(content), separators=(",", ":")).encode()


def _decode(line: bytes) -> tuple[int, _Line]:
    """Decode a journal line; return its number and content. Raises ValueError where it is damaged."""
    parts = _LINE.fullmatch(line)
    if parts is None or int(parts[2], 16) != _checksum(int(parts[1]), parts[3]):
        raise ValueError("the line is damaged")
    return int(parts[1]), msgspec.convert(json.loads(parts[3]), _Entry | _Removal | _PositionFileState)


def _checksum(number: int, text: bytes) -> int:
    """Return the CRC-32 of a journal line: its number, a blank and its JSON."""
    return zlib.crc32(text, zlib.crc32(b"%d " % number))


def _read_bytes(path: Path) -> bytes:
    """Return the content of a file; empty where there is no file. Raises Retry where it cannot be read."""
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return b""
    except OSError as e:
        raise Retry(f"{path} cannot be read: {e.strerror}") from e


def _is_zeros(data: bytes) -> bool:
    """Return True if the data are only zeros, as a file system may leave them after a power loss."""
    return bool(data) and not data.strip(b"\0")


def _invalid_error(path: Path, reason: str) -> FlafkaError:
    """Return the error for a position file or journal with invalid content, with the remedy."""
    return FlafkaError(
        f"{path} does not hold positions of files: {reason}. "
        "Repair it, or remove it to read every file from its start"
    )


def _digest(data: bytes) -> str:
    """Return the fingerprint of the position file's content."""
    return blake2b(data, digest_size=16).hexdigest()


def _is_same_file(fd: int, path: Path) -> bool:
    """Return True if the open file is the one at that path; False where there is no file."""
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False
