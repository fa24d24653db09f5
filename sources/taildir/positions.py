"""Positions on disk: Flume's position file, and beside it what proves each file to be the same."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from plugins import FlafkaError, Retry
from sources.taildir.tail import Mark, Tail


class _Position(msgspec.Struct):
    """An entry of Flume's position file."""

    inode: int
    pos: int
    file: str


class _Identity(msgspec.Struct):
    """An entry of the file beside it."""

    inode: int
    file: str
    device: int
    offset: int
    length: int
    head: str
    tail: str
    name: str
    real: str


E = TypeVar("E", _Position, _Identity)


class PositionFile:
    """Flume's position file, `[{"inode":N,"pos":N,"file":"/abs"}]`, so that Flume and this source can take turns.

    Flume reads no other field, so device and fingerprints lie beside it in `<positionFile>.identity`. When the two
    disagree, the position file is right: Flume, or an operator, may have changed it meanwhile. It is therefore
    replaced first; a crash in between leaves fingerprints of an earlier place in the file, which still prove it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._identity_path = path.with_name(path.name + ".identity")
        self._lock: int | None = None
        self._texts: dict[Tail, tuple[object, str, str]] = {}

    def open(self) -> list[Tail]:
        """Lock it and read it: the files it names, none of them found yet.

        Raises Retry where another source has it or it cannot be written, FlafkaError where it makes no sense.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if self.path.exists() and not os.access(self.path, os.W_OK, effective_ids=True):
                raise PermissionError("it is read-only")
            lock = self.path.with_name(self.path.name + ".lock")
            self._lock = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Retry(f"positionFile {self.path} is in use by another taildir source: give each its own") from None
        except OSError as e:
            raise Retry(self.unwritable(e)) from e
        return self.read()

    def read(self) -> list[Tail]:
        """The files it names, without locking it. FlafkaError where it makes no sense."""
        identities = {(i.inode, i.file): i for i in _entries(self._identity_path, _Identity)}
        return [_tail(entry, identities.get((entry.inode, entry.file))) for entry in _entries(self.path, _Position)]

    def save(self, tails: Iterable[Tail]) -> None:
        """Replace it, durably. Raises OSError."""
        texts = {tail: self._text(tail) for tail in tails}
        self._texts = texts
        _replace(self.path, [position for _, position, _ in texts.values()])
        _replace(self._identity_path, [identity for _, _, identity in texts.values() if identity])
        directory = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def problems(self) -> Iterator[str]:
        """What would keep it from being opened, without touching anything."""
        try:
            self.read()
        except FlafkaError as e:
            yield str(e)
        directory = self.path.parent
        while not directory.exists():
            directory = directory.parent
        for place in (self.path, directory):
            if place.exists() and not os.access(place, os.W_OK, effective_ids=True):
                yield self.unwritable(PermissionError(f"{place} is not writable"))
        if not directory.is_dir():
            yield self.unwritable(NotADirectoryError(f"{directory} is not a directory"))

    def _text(self, tail: Tail) -> tuple[object, str, str]:
        # Thousands of files stand still while one grows: their entries are not written out anew each time.
        state = (tail.path, tail.real, tail.name, tail.device, tail.position, tail.mark)
        known = self._texts.get(tail)
        if known is not None and known[0] == state:
            return known
        head = {"inode": tail.inode, "pos": tail.position, "file": tail.path}
        mark, identity = tail.mark, ""
        if mark is not None and tail.device is not None:
            identity = json.dumps(
                {
                    "inode": tail.inode,
                    "file": tail.path,
                    "device": tail.device,
                    "offset": mark.offset,
                    "length": mark.length,
                    "head": mark.head,
                    "tail": mark.tail,
                    "name": tail.name,
                    "real": tail.real,
                }
            )
        return state, json.dumps(head, separators=(",", ":")), identity

    def unwritable(self, error: OSError) -> str:
        """What to tell of it when it cannot be written."""
        return f"positionFile {self.path} cannot be written, so nothing is read: {error.strerror or error}"

    def close(self) -> None:
        """Give up the lock."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _entries(path: Path, kind: type[E]) -> list[E]:
    try:
        data = path.read_bytes()
        # Flume leaves an empty file where nothing matches. The standard library reads names that are not UTF-8.
        return msgspec.convert(json.loads(data), list[kind]) if data.strip() else []  # type: ignore[valid-type]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as e:
        raise Retry(f"{path} cannot be read: {e.strerror}") from e
    except (ValueError, RecursionError) as e:
        raise FlafkaError(
            f"{path} does not hold positions of files: {e}. Repair it, or remove it to read every file from its start"
        ) from e


def _tail(position: _Position, identity: _Identity | None) -> Tail:
    if identity is None:
        return Tail(position.file, inode=position.inode, device=None, position=max(0, position.pos))
    return Tail(
        position.file,
        inode=position.inode,
        device=identity.device,
        position=max(0, position.pos),
        mark=Mark(identity.offset, identity.length, identity.head, identity.tail),
        name=identity.name,
        real=identity.real,
    )


def _replace(path: Path, entries: list[str]) -> None:
    fresh = path.with_name(path.name + ".tmp")
    with fresh.open("w") as file:
        file.write("[" + ",".join(entries) + "]")
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
