"""What survives a crash: how far the present file was read, and which files are left alone."""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path
from typing import NamedTuple

import msgspec

from flafka.plugins.shared.disk import append, replace
from flafka.plugins.shared.flumeevent import long_at, varint
from flafka.sources.spooldir.birth import birth

NAME = ".flumespool-main.meta"
"""Flume's file, in `trackerDir`."""
LEFT_NAME = ".flafka-skipped.json"
"""Ours, in `trackerDir`; there are none in it where no file is skipped."""
_SCHEMA = (
    b'{"type":"record","name":"TransferStateFileMeta","namespace":"org.apache.flume.serialization",'
    b'"fields":[{"name":"offset","type":"long"}]}'
)
_MAGIC = b"Obj\x01"
_SYNC = 16
_LONGEST = 1 << 20
"""Of so many bytes, the file is written anew."""


class State(msgspec.Struct, frozen=True):
    """What tells that a file has not changed."""

    inode: int
    device: int
    size: int
    modified: int
    """Nanoseconds."""
    born: int = 0
    """When it was created, in nanoseconds; 0 where that was not asked for, or the file system does not tell."""

    @classmethod
    def of(cls, status: os.stat_result) -> State:
        """The state of a file as the system describes it."""
        return cls(status.st_ino, status.st_dev, status.st_size, status.st_mtime_ns)

    @classmethod
    def at(cls, path: str | int) -> State:
        """The state of the file of that name, or of that descriptor, and when it was born. Raises OSError."""
        return cls.of(os.stat(path)).with_birth(path)  # noqa: PTH116  (no object for each of thousands)

    def with_birth(self, path: str | int) -> State:
        """It, and when the file of that name, or of that descriptor, was born."""
        return msgspec.structs.replace(self, born=birth(path, self.inode))

    def same_file(self, other: State) -> bool:
        """Whether it is the same file, changed or not: another one may have got the number of one that is gone."""
        born = self.born == other.born or not (self.born and other.born)
        return born and (self.inode, self.device) == (other.inode, other.device)

    def unchanged(self, other: State) -> bool:
        """Whether it is the same file, and holds the same."""
        return self.same_file(other) and self.same_content(other)

    def same_content(self, other: State) -> bool:
        """Whether it holds the same, though it may have been moved to another disk and back."""
        return (self.size, self.modified) == (other.size, other.modified)


class FileOffset(NamedTuple):
    """How far a file was read."""

    path: str
    offset: int
    state: State | None
    """The file then; None where Flume wrote it."""


class Tracker:
    """Flume's durable position tracker: an Avro file whose last record is how far the file that it names was read.

    Its header also has the state of that file, which Flume does not look at and does not keep.
    """

    def __init__(self, directory: Path) -> None:
        self.path = directory / NAME
        self._fd: int | None = None
        self.target = ""
        """The file that it names; empty where it says nothing."""
        self._sync = b""
        self._size = 0

    def read(self) -> FileOffset | None:
        """What it says; None where it says nothing. ValueError where it makes no sense, OSError."""
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return None
        if not data:
            return None  # as a crash of Flume's leaves it, before the first position
        header, at = _header(data)
        if "file" not in header:
            raise ValueError("it names no file")
        offset = 0
        sync = data[at - _SYNC : at]
        while at < len(data):
            # What a crash has cut short at the end does not count.
            try:
                count, at = long_at(data, at)
                size, at = long_at(data, at)
                block = data[at : at + size]
                at += size + _SYNC
                if data[at - _SYNC : at] != sync or len(block) != size:
                    break
                inner = 0
                for _ in range(count):
                    offset, inner = long_at(block, inner)
            except (IndexError, ValueError):
                break
        state = None
        if "flafka.file" in header:
            state = msgspec.json.decode(header["flafka.file"], type=State)
        self.target = os.fsdecode(header["file"])
        return FileOffset(self.target, max(0, offset), state)

    def save(self, position: FileOffset) -> None:
        """Make it durable. Raises OSError, and then what was saved before counts."""
        record = varint(position.offset)
        block = varint(1) + varint(len(record)) + record
        if self._fd is None or self.target != position.path or self._size > _LONGEST:
            self._rewrite(position, block)
            return
        self._size = append(self._fd, block + self._sync, self._size)

    def _rewrite(self, position: FileOffset, block: bytes) -> None:
        sync = secrets.token_bytes(_SYNC)
        entries = {b"avro.schema": _SCHEMA, b"file": os.fsencode(position.path)}
        if position.state is not None:
            entries[b"flafka.file"] = msgspec.json.encode(position.state)
        pairs = b"".join(varint(len(part)) + part for pair in entries.items() for part in pair)
        data = _MAGIC + varint(len(entries)) + pairs + varint(0) + sync + block + sync
        self.close()
        self._fd = replace(self.path, data)
        self.target, self._sync, self._size = position.path, sync, len(data)

    def remove(self) -> None:
        """It says nothing any more. Raises OSError."""
        self.close()
        self.target = ""
        self.path.unlink(missing_ok=True)

    def close(self) -> None:
        """Let go of the file."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def _header(data: bytes) -> tuple[dict[str, bytes], int]:
    """Return the entries of an Avro file's header, and the header's size. Raises ValueError where it is none."""
    if not data.startswith(_MAGIC):
        raise ValueError("it does not begin as an Avro file")
    entries: dict[str, bytes] = {}
    at = len(_MAGIC)
    try:
        while True:
            count, at = long_at(data, at)
            if count == 0:
                break
            if count < 0:
                _, at = long_at(data, at)
            for _ in range(abs(count)):
                key, at = _sized(data, at)
                value, at = _sized(data, at)
                entries[key.decode()] = value
    except IndexError:
        raise ValueError("its header is cut short") from None
    if len(data) < at + _SYNC:
        raise ValueError("its header is cut short")
    return entries, at + _SYNC


def _sized(data: bytes, at: int) -> tuple[bytes, int]:
    size, at = long_at(data, at)
    if size < 0 or at + size > len(data):
        raise IndexError
    return data[at : at + size], at + size


class Left(msgspec.Struct):
    """A file that stays where it is."""

    state: State
    reason: str
    done: bool = False
    """Whether all of it was delivered, and only its mark is missing."""


class Leftovers:
    """The files that are left alone until they are renamed or replaced, durably."""

    def __init__(self, directory: Path) -> None:
        """Read the list. Raises ValueError where it is invalid, and OSError."""
        self._path = directory / LEFT_NAME
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            data = b"{}"
        # The standard library reads names that are not UTF-8.
        self.files = msgspec.convert(json.loads(data), dict[str, Left])
        """Files by path, those first that were left first; `add` and `remove` change them."""
        self._changed = False

    def holds(self, path: str, state: State) -> bool:
        """Whether that file is one of them: it may have changed since."""
        left = self.files.get(path)
        return left is not None and left.state.same_file(state) and left.state.same_file(state.with_birth(path))

    def add(self, path: str, left: Left) -> None:
        """One more; not yet durable."""
        self.files[path] = left
        self._changed = True

    def remove(self, path: str) -> None:
        """It is left alone no longer; not yet durable."""
        del self.files[path]
        self._changed = True

    def save(self) -> None:
        """Make them durable. Raises OSError, and then it has to be called again."""
        if not self._changed:
            return
        if self.files:
            data = json.dumps(msgspec.to_builtins(self.files), indent=1).encode()
            os.close(replace(self._path, data))
        else:
            self._path.unlink(missing_ok=True)
        self._changed = False
