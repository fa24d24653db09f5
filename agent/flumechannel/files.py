"""What the file channel of Apache Flume 1.3 to 1.11 holds on the disk: events that were put and not taken, in order.

Flume appends puts, takes, rollbacks and commits to files `log-N`, in turns where there are several directories: a
byte that says there is a record, its length, and three messages of Protocol Buffers, of which the first has the kind
of record, its transaction and its place in the order over all files. Behind the last record a file is filled up. A
checkpoint has the queue as it was at one place in that order, as pointers to puts, and what transactions had put and
taken that were open then; with what was appended since it gives the queue of now. Without a checkpoint, or with one
that was not completed, all records give it. Flume deletes files that the checkpoint does not need, so the checkpoint
is not only a shorter way: takes may have gone with a file while their puts are still in another one.

What a transaction did that has no commit counts as not done, as in Flume.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import heapq
import os
import re
import signal
import struct
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from flafka.agent.flumechannel.messages import POINTER, Damaged, committed, delimited, event, fields, pointed, varint
from flafka.plugins import Event, FlafkaError, Retry

_LOG = re.compile(r"log-(\d+)")
_BESIDE = re.compile(r"log-\d+(\.meta(\.tmp|\.old)?)?|(checkpoint(\.meta(\.tmp)?)?|inflight(puts|takes))(\.snappy)?")
_MORE = ("queueset", "backupComplete")
_RECORD, _SKIPPED, _FILL = 0x7F, 0x00, 0x80
_PUT, _TAKE, _ROLLBACK, _COMMIT = 1, 2, 3, 4
_LENGTH = struct.Struct(">BI")
_HEAD = struct.Struct("<BBiBqBq")
"""Length, and with their tags: kind, transaction, order."""
_TAGS = (23, 0x0D, 0x11, 0x19)
_SIZES = {_TAKE: POINTER.size, _ROLLBACK: 1, _COMMIT: 6}
_BEGIN = re.compile(rb"\x7f[\x00-\x7f].{3}\x17\x0d[\x01-\x04]\x00\x00\x00\x11", re.DOTALL)
"""How a record begins, but for the chance that a body has the same bytes."""
_READ_BYTES = 1 << 16
_SENTENCES = 100
"""A file that is missing may have had a million events."""
_VERSION, _ORDER, _OPEN, _SLOTS = 0, 1, 4, 1029
"""Places in a file of a checkpoint, in numbers of eight bytes."""


class _Record(NamedTuple):
    order: int
    pointer: int
    kind: int
    transaction: int
    payload: bytes
    """The record's second message, with its length."""


class _Checkpoint(NamedTuple):
    order: int
    queue: list[int]
    puts: dict[int, list[int]]
    """By transaction that was open."""
    takes: dict[int, list[int]]


NOTHING = _Checkpoint(-1, [], {}, {})


def logs(directories: Sequence[Path]) -> list[Path]:
    """The files of Flume's channel in these directories. Raises OSError."""
    found = [path for directory in directories if directory.is_dir() for path in directory.iterdir()]
    return sorted(path for path in found if _LOG.fullmatch(path.name))


def check(paths: Sequence[Path]) -> None:
    """Raises Retry where a Flume still writes into one of these files, FlafkaError where one is encrypted or older
    than Flume 1.3, and OSError."""
    for path in paths:
        if _Log(path).is_written():
            raise Retry(f"{path} is open in another process, as a running Flume has it: stop that first")


def files(directory: Path) -> list[Path]:
    """All that Flume's channel keeps in such a directory, its lock aside. Raises OSError."""
    if not directory.is_dir():
        return []
    return sorted(path for path in directory.iterdir() if _BESIDE.fullmatch(path.name) or path.name in _MORE)


class FlumeChannel:
    """What a Flume that does not run any more has left in the directories of its channel."""

    def __init__(self, checkpoints: Path, backup: Path | None, directories: Sequence[Path]) -> None:
        """Raises OSError, and FlafkaError where the files are encrypted or older than Flume 1.3."""
        self.damages: list[str] = []
        """What could not be read, a sentence for each place; of events, for the first ones."""
        self.lost = 0
        """Events that the channel held, and that could not be read."""
        self._logs = {log.number: log for log in map(_Log, logs(directories))}
        self._queue = self._replayed(self._checkpoint(checkpoints, backup))

    def __len__(self) -> int:
        """How many events it held."""
        return len(self._queue)

    def events(self) -> Iterator[Event]:
        """All events in order. Raises OSError."""
        for pointer in self._queue:
            number, offset = pointer >> 32, pointer & 0xFFFFFFFF
            if (log := self._logs.get(number)) is None:
                self._lose(f"log-{number} is missing: the event at its byte {offset} is lost")
                continue
            try:
                found = log.record(offset)
                if found is not None:
                    yield event(found.payload)
            except (Damaged, EOFError):
                self._lose(f"{log.path} is damaged at byte {offset}: the event there is lost")

    def _lose(self, sentence: str) -> None:
        self.lost += 1
        if self.lost <= _SENTENCES:
            self.damages.append(sentence)

    def _checkpoint(self, directory: Path, backup: Path | None) -> _Checkpoint:
        """As Flume chooses: the one that is complete, else the backup, else none."""
        with contextlib.suppress(Damaged, OSError):
            return _read_checkpoint(directory)
        if backup is not None and (backup / "backupComplete").exists():
            with contextlib.suppress(Damaged, OSError):
                return _read_checkpoint(backup)
        return NOTHING

    def _replayed(self, checkpoint: _Checkpoint) -> list[int]:
        """Pointers to the events that are in the channel, in order."""
        queue = dict.fromkeys(checkpoint.queue)
        done = {transaction: list(pointers) for transaction, pointers in checkpoint.puts.items()}
        taken = dict(checkpoint.takes)
        over: set[int] = set()
        """Taken for good, though they were not in the queue then."""
        read = [log.records(checkpoint.order, self.damages) for log in self._logs.values()]
        for record in heapq.merge(*read):
            if record.order <= checkpoint.order:
                continue
            if record.kind == _PUT:
                done.setdefault(record.transaction, []).append(record.pointer)
            elif record.kind == _TAKE:
                done.setdefault(record.transaction, []).append(pointed(record.payload))
            elif record.kind == _ROLLBACK:
                done.pop(record.transaction, None)
            elif record.kind == _COMMIT:
                pointers = done.pop(record.transaction, [])
                if committed(record.payload) == _TAKE:
                    for pointer in (*pointers, *taken.pop(record.transaction, ())):
                        if pointer in queue:
                            del queue[pointer]
                        else:
                            over.add(pointer)
                else:
                    queue.update(dict.fromkeys(pointer for pointer in pointers if pointer not in over))
        # What was being taken and was given back. Flume delivers it again also where it was taken again meanwhile.
        back = [pointer for pointers in taken.values() for pointer in pointers if pointer not in over]
        return [*back, *queue]


class _Log:
    def __init__(self, path: Path) -> None:
        self.path, self.number = path, int(path.name[len("log-") :])
        self.descriptor = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self.descriptor)
        self.size = os.fstat(self.descriptor).st_size
        beside = (path.with_name(path.name + end) for end in (".meta", ".meta.tmp", ".meta.old"))
        self.about: dict[int, list[int | bytes]] = {}
        with contextlib.suppress(Damaged, StopIteration):
            self.about = fields(delimited(next(one for one in beside if one.exists()).read_bytes()))
        if 5 in self.about:
            raise FlafkaError(
                f"{path} is encrypted, which only Flume can read: let Flume deliver what its channel holds, with no "
                "sources, or move its files away from here"
            )
        if self._bytes(0, 4) == b"\0\0\0\2":
            raise FlafkaError(f"{path} is of a Flume before 1.3: start Flume 1.11 with it once, which converts it")

    def is_written(self) -> bool:
        """Whether a process has it open to write into it, as far as the kernel tells us.

        Flume's lock does not say it: Flume tries it twice, and as the second try closes the file again, the first
        one's lock is gone. But nobody gets a lease on a file that has a writer.
        """
        try:
            fcntl.fcntl(self.descriptor, fcntl.F_SETSIG, signal.SIGURG)  # which is ignored, where SIGIO would kill
            fcntl.fcntl(self.descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
            fcntl.fcntl(self.descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        except OSError as e:
            return e.errno == errno.EAGAIN  # else the file system has no leases, or the file is another user's
        return False

    def _bytes(self, at: int, count: int) -> bytes:
        found = os.pread(self.descriptor, max(count, 0), at)
        while len(found) < count and (more := os.pread(self.descriptor, count - len(found), at + len(found))):
            found += more
        return found

    def record(self, at: int) -> _Record | None:
        """The record there; None where Flume's tool has taken it out. Raises Damaged, and EOFError at the end."""
        return self._next(at)[0]

    def _next(self, at: int) -> tuple[_Record | None, int]:
        """The record there, and where the next one is."""
        head = self._bytes(at, _LENGTH.size)
        if not head or head[0] == _FILL:
            raise EOFError
        if len(head) < _LENGTH.size or head[0] not in (_RECORD, _SKIPPED):
            raise Damaged
        length = _LENGTH.unpack(head)[1]
        end = at + _LENGTH.size + length
        if end > self.size:
            raise Damaged
        if head[0] == _SKIPPED:
            return None, end
        whole = self._bytes(at + _LENGTH.size, length)
        if len(whole) <= _HEAD.size or whole[-1] != 0:  # the third message is empty
            raise Damaged
        size, tag, kind, second, transaction, third, order = _HEAD.unpack_from(whole)
        payload = whole[_HEAD.size : -1]
        if (size, tag, second, third) != _TAGS or len(payload) != _SIZES.get(kind, len(payload)):
            raise Damaged
        return _Record(order, self.number << 32 | at, kind, transaction, payload), end

    def records(self, since: int, damages: list[str]) -> Iterator[_Record]:
        """All records that come behind this place in the order, and perhaps some before; sentences for what is
        damaged. Raises OSError."""
        at = self._start(since)
        while at < self.size:
            try:
                record, at = self._next(at)
                if record is not None:
                    yield record
            except EOFError:
                return
            except Damaged:
                if (whole := self._begin(at + 1)) is None:
                    damages.append(f"{self.path} ends at byte {at} in something that is no whole record")
                    return
                damages.append(
                    f"{self.path} is damaged from byte {at} to {whole}: puts, takes and commits there are lost"
                )
                at = whole

    def _start(self, since: int) -> int:
        """Where the file was when the last checkpoint was made, or the one before, if that is not behind `since`."""
        for position, order in ((3, 4), (6, 7)):
            found = self.about.get(position, [0])[0], self.about.get(order, [0])[0]
            if isinstance(found[0], int) and isinstance(found[1], int) and found[0] > 0 and found[1] <= since:
                return found[0]
        return 0

    def _begin(self, at: int) -> int | None:
        """The first place from there on where a record begins."""
        while at < self.size:
            piece = self._bytes(at, _READ_BYTES + 64)
            for match in _BEGIN.finditer(piece):
                with contextlib.suppress(Damaged, EOFError):
                    self._next(at + match.start())
                    return at + match.start()
            at += _READ_BYTES
        return None


def _read_checkpoint(directory: Path) -> _Checkpoint:
    """Raises Damaged where it is incomplete or damaged, and OSError."""
    about = fields(delimited(_plain(directory / "checkpoint.meta")))
    if not all(isinstance(about.get(field, [None])[0], int) for field in (1, 2, 3, 4)):
        raise Damaged
    version, order, size, head = (int(about[field][0]) for field in (1, 2, 3, 4))
    data = _plain(directory / "checkpoint")
    slots = _numbers(data)
    capacity = len(slots) - _SLOTS
    if (
        version != 3
        or capacity < 1
        or (slots[_VERSION], slots[_ORDER], slots[_OPEN]) != (3, order, 0)
        or not (0 <= size <= capacity and 0 <= head < capacity)
    ):
        raise Damaged
    queue = [slots[_SLOTS + (head + at) % capacity] for at in range(size)]
    return _Checkpoint(order, queue, _in_flight(directory / "inflightputs"), _in_flight(directory / "inflighttakes"))


def _in_flight(path: Path) -> dict[int, list[int]]:
    """Pointers by transaction. Raises Damaged, and OSError."""
    data = _plain(path)
    if not data:
        return {}
    if hashlib.md5(data[16:], usedforsecurity=False).digest() != data[:16]:
        raise Damaged
    numbers = iter(_numbers(data[16:]))
    found: dict[int, list[int]] = {}
    for transaction in numbers:
        count = next(numbers, 0)
        pointers = [pointer for _, pointer in zip(range(count), numbers, strict=False)]
        if pointers:
            found.setdefault(transaction, []).extend(pointers)
    return found


def _plain(path: Path) -> bytes:
    """The file, or what its compressed copy holds. Raises Damaged, and OSError."""
    packed = path.with_name(path.name + ".snappy")
    if path.exists() or not packed.exists():
        return path.read_bytes()
    data, at, parts = packed.read_bytes(), 16, []  # a magic number and two versions
    while at < len(data):
        piece = data[at + 4 : at + 4 + int.from_bytes(data[at : at + 4], "big")]
        try:
            parts.append(pa.decompress(piece, varint(piece, 0)[0], codec="snappy", asbytes=True))
        except (OSError, pa.ArrowException) as e:
            raise Damaged from e
        at += 4 + len(piece)
    return b"".join(parts)


def _numbers(data: bytes) -> tuple[int, ...]:
    return struct.unpack_from(f">{len(data) // 8}q", data)
