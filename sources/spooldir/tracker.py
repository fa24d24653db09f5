"""Durable state of a spool directory: the file offset in the present file, and the skipped files."""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path
from typing import NamedTuple

import msgspec

from flafka.plugins.storage import append_to_file, replace_file
from flafka.plugins.wire.flumeevent import decode_long, encode_long
from flafka.sources.spooldir.birth import birth_time

TRACKER_NAME = ".flumespool-main.meta"
"""Name of Flume's tracker file in `trackerDir`."""
SKIPPED_FILES_NAME = ".flafka-skipped.json"
"""Name of the list of skipped files in `trackerDir`. Absent while no file is skipped; Flume has no such file."""
_SCHEMA = (
    b'{"type":"record","name":"TransferStateFileMeta","namespace":"org.apache.flume.serialization",'
    b'"fields":[{"name":"offset","type":"long"}]}'
)
_MAGIC = b"Obj\x01"
_SYNC_BYTES = 16
_MAX_TRACKER_BYTES = 1 << 20
"""Size of the tracker file from which it is rewritten, in bytes."""


class FileState(msgspec.Struct, frozen=True):
    """Identity of a file, with the size and modification time that show changes. Stored in the tracker as JSON."""

    inode: int
    device: int
    size: int
    modified: int
    """Modification time, in nanoseconds since the epoch."""
    born: int = 0
    """Birth time, in nanoseconds since the epoch; 0 where it was not read, or is not reported."""

    @classmethod
    def of(cls, status: os.stat_result) -> FileState:
        """Return the state of a file from its stat result, without a birth time."""
        return cls(status.st_ino, status.st_dev, status.st_size, status.st_mtime_ns)

    @classmethod
    def of_path(cls, path: str | int) -> FileState:
        """Return the state, with the birth time, of the file with that path or descriptor.

        Raises OSError where there is no file.
        """
        return cls.of(os.stat(path)).with_birth_time(path)  # noqa: PTH116  (no object for each of thousands)

    def with_birth_time(self, path: str | int) -> FileState:
        """Return this state with the birth time of the file at that path or descriptor.

        0 where the birth time is not reported, or the file there has another inode.
        """
        return msgspec.structs.replace(self, born=birth_time(path, self.inode))

    def is_same_file(self, other: FileState) -> bool:
        """Return True if both states are of one file, changed or not.

        The birth times differ where the inode of a deleted file was reused.
        """
        is_same_birth = self.born == other.born or not (self.born and other.born)
        return is_same_birth and (self.inode, self.device) == (other.inode, other.device)

    def is_unchanged(self, other: FileState) -> bool:
        """Return True if both states are of one file, which did not change between them."""
        return self.is_same_file(other) and self.has_same_content(other)

    def has_same_content(self, other: FileState) -> bool:
        """Return True if size and modification time agree, even if the file was moved to another disk and back."""
        return (self.size, self.modified) == (other.size, other.modified)


class FileOffset(NamedTuple):
    """File offset up to which the events of a file are stored."""

    path: str
    offset: int
    state: FileState | None
    """State of the file when it was read; None where Flume stored the offset."""


class Tracker:
    """Flume's durable position tracker: an Avro file with the path of one file, whose last record is its file offset.

    The header also has the state of that file, which Flume ignores and does not preserve.
    """

    def __init__(self, directory: Path) -> None:
        self.path = directory / TRACKER_NAME
        self._fd: int | None = None
        self.tracked_path = ""
        """Path of the file whose offset is stored; empty where there is none."""
        self._sync = b""
        self._size = 0

    def read(self) -> FileOffset | None:
        """Return the stored offset; None where no offset is stored.

        Raises ValueError where the content is invalid, OSError where the file cannot be read.
        """
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return None
        if not data:
            return None  # Flume leaves an empty file if it crashes before the first offset
        header, index = _header(data)
        if "file" not in header:
            raise ValueError("its header has no path of a file")
        offset = 0
        sync = data[index - _SYNC_BYTES : index]
        while index < len(data):
            # A block that a crash cut short does not count.
            try:
                count, index = decode_long(data, index)
                size, index = decode_long(data, index)
                block = data[index : index + size]
                index += size + _SYNC_BYTES
                if data[index - _SYNC_BYTES : index] != sync or len(block) != size:
                    break
                inner = 0
                for _ in range(count):
                    offset, inner = decode_long(block, inner)
            except (IndexError, ValueError):
                break
        state = None
        if "flafka.file" in header:
            state = msgspec.json.decode(header["flafka.file"], type=FileState)
        self.tracked_path = os.fsdecode(header["file"])
        return FileOffset(self.tracked_path, max(0, offset), state)

    def save(self, file_offset: FileOffset) -> None:
        """Store a file offset durably. Raises OSError; the offset saved before then stays stored."""
        record = encode_long(file_offset.offset)
        block = encode_long(1) + encode_long(len(record)) + record
        if self._fd is None or self.tracked_path != file_offset.path or self._size > _MAX_TRACKER_BYTES:
            self._rewrite(file_offset, block)
            return
        self._size = append_to_file(self._fd, block + self._sync, self._size)

    def _rewrite(self, file_offset: FileOffset, block: bytes) -> None:
        """Replace the tracker file by a new one for that file, with `block` as its only record. Raises OSError."""
        sync = secrets.token_bytes(_SYNC_BYTES)
        entries = {b"avro.schema": _SCHEMA, b"file": os.fsencode(file_offset.path)}
        if file_offset.state is not None:
            entries[b"flafka.file"] = msgspec.json.encode(file_offset.state)
        pairs = b"".join(encode_long(len(part)) + part for pair in entries.items() for part in pair)
        data = _MAGIC + encode_long(len(entries)) + pairs + encode_long(0) + sync + block + sync
        self.close()
        self._fd = replace_file(self.path, data)
        self.tracked_path, self._sync, self._size = file_offset.path, sync, len(data)

    def remove(self) -> None:
        """Delete the tracker file, if it exists. Raises OSError."""
        self.close()
        self.tracked_path = ""
        self.path.unlink(missing_ok=True)

    def close(self) -> None:
        """Close the tracker file. Idempotent."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def _header(data: bytes) -> tuple[dict[str, bytes], int]:
    """Return the entries of an Avro file's header, and the header's size. Raises ValueError where it is invalid."""
    if not data.startswith(_MAGIC):
        raise ValueError("it does not begin as an Avro file")
    entries: dict[str, bytes] = {}
    index = len(_MAGIC)
    try:
        while True:
            count, index = decode_long(data, index)
            if count == 0:
                break
            if count < 0:
                _, index = decode_long(data, index)
            for _ in range(abs(count)):
                key, index = _decode_bytes(data, index)
                value, index = _decode_bytes(data, index)
                entries[key.decode()] = value
    except IndexError:
        raise ValueError("its header is truncated") from None
    if len(data) < index + _SYNC_BYTES:
        raise ValueError("its header is truncated")
    return entries, index + _SYNC_BYTES


def _decode_bytes(data: bytes, index: int) -> tuple[bytes, int]:
    """Return the Avro bytes at `index`, and the index behind them. Raises IndexError where the data end before."""
    size, index = decode_long(data, index)
    if size < 0 or index + size > len(data):
        raise IndexError
    return data[index : index + size], index + size


class SkippedFile(msgspec.Struct):
    """Skipped file: read in part or not at all, or read but not marked. Stored as JSON."""

    state: FileState
    reason: str
    done: bool = False
    """True if all events of the file are stored, and only its mark is missing."""


class SkippedFiles:
    """Durable list of the files that are skipped until they are renamed or replaced."""

    def __init__(self, directory: Path) -> None:
        """Read the list; a missing file is an empty list. Raises ValueError where it is invalid, OSError."""
        self._path = directory / SKIPPED_FILES_NAME
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            data = b"{}"
        # The standard library reads names that are not UTF-8.
        self.files = msgspec.convert(json.loads(data), dict[str, SkippedFile])
        """Skipped files by path, in the order in which they were added. Changed by `add` and `remove` only."""
        self._changed = False

    def contains(self, path: str, state: FileState) -> bool:
        """Return True if the file with that path and state is skipped, even if it has changed since then.

        A new file of the same path is not skipped.
        """
        skipped = self.files.get(path)
        # Birth times take a system call: compare them only where device and inode agree.
        return (
            skipped is not None
            and skipped.state.is_same_file(state)
            and skipped.state.is_same_file(state.with_birth_time(path))
        )

    def add(self, path: str, skipped: SkippedFile) -> None:
        """Add a file; durable once `save` returns."""
        self.files[path] = skipped
        self._changed = True

    def remove(self, path: str) -> None:
        """Remove a file; durable once `save` returns. Raises KeyError for a file that is not skipped."""
        del self.files[path]
        self._changed = True

    def save(self) -> None:
        """Save changes durably, if there are any; delete the file of an empty list.

        Raises OSError; the caller must then call `save` again.
        """
        if not self._changed:
            return
        if self.files:
            data = json.dumps(msgspec.to_builtins(self.files), indent=1).encode()
            os.close(replace_file(self._path, data))
        else:
            self._path.unlink(missing_ok=True)
        self._changed = False
