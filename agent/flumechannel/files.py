"""Reader of the file channel of Apache Flume 1.3 to 1.11.

The reader yields the events that were put and not taken, in order.

Flume appends puts, takes, rollbacks and commits to files `log-N`; several directories alternate. A record is a marker
byte, its length, and three messages of Protocol Buffers. The first message has the kind of record, its transaction,
and its position in the order over all files. A file ends with fill bytes after its last record.

A checkpoint has the queue at one position in that order, as pointers to puts. It also has the puts and takes of the
transactions that were open then. The records after that position give the present queue. Without a complete
checkpoint, all records are replayed. The checkpoint is more than an optimization: Flume deletes log files that the
checkpoint does not need. The takes in such a file are then missing, while their puts may remain in another file.

A transaction without a commit has no effect, as in Flume.
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

from flafka.agent.flumechannel.messages import (
    POINTER,
    CorruptRecord,
    commit_kind,
    decode_event,
    delimited_message,
    message_fields,
    read_varint,
    take_pointer,
)
from flafka.plugins import Event, FlafkaError, Retry

_LOG_FILE = re.compile(r"log-(\d+)")
_CHANNEL_FILE = re.compile(
    r"log-\d+(\.meta(\.tmp|\.old)?)?|(checkpoint(\.meta(\.tmp)?)?|inflight(puts|takes))(\.snappy)?"
)
_OTHER_FILES = ("queueset", "backupComplete")
_RECORD, _SKIPPED, _FILL = 0x7F, 0x00, 0x80
_PUT, _TAKE, _ROLLBACK, _COMMIT = 1, 2, 3, 4
_LENGTH = struct.Struct(">BI")
_HEADER = struct.Struct("<BBiBqBq")
"""First message of a record: its length, then kind, transaction and order, each after its tag."""
_TAGS = (23, 0x0D, 0x11, 0x19)
_SIZES = {_TAKE: POINTER.size, _ROLLBACK: 1, _COMMIT: 6}
_RECORD_START = re.compile(rb"\x7f[\x00-\x7f].{3}\x17\x0d[\x01-\x04]\x00\x00\x00\x11", re.DOTALL)
"""Start of a record. A body may contain the same bytes."""
_READ_BYTES = 1 << 16
_MAX_LOSS_MESSAGES = 100
"""Maximum number of messages about lost events: a missing file may have had a million of them."""
_VERSION_INDEX, _ORDER_INDEX, _OPEN_INDEX, _FIRST_SLOT_INDEX = 0, 1, 4, 1029
"""Indices in a checkpoint file, which is an array of 64-bit numbers."""


class _Record(NamedTuple):
    order: int
    pointer: int
    kind: int
    transaction: int
    payload: bytes
    """Second message of the record, with its length."""


class _Checkpoint(NamedTuple):
    order: int
    queue: list[int]
    puts: dict[int, list[int]]
    """Pointers by open transaction."""
    takes: dict[int, list[int]]


_NO_CHECKPOINT = _Checkpoint(-1, [], {}, {})


def log_files(directories: Sequence[Path]) -> list[Path]:
    """Return the log files of a Flume channel in these directories, sorted by path. Raises OSError."""
    paths = [path for directory in directories if directory.is_dir() for path in directory.iterdir()]
    return sorted(path for path in paths if _LOG_FILE.fullmatch(path.name))


def check_log_files(paths: Sequence[Path]) -> None:
    """Raise Retry if a running Flume writes to one of these files.

    Raises FlafkaError if one is encrypted or older than Flume 1.3, and OSError if one cannot be read.
    """
    for path in paths:
        if _Log(path).is_written():
            raise Retry(f"{path} is open for writing in another process: stop Flume first")


def channel_files(directory: Path) -> list[Path]:
    """Return all files of a Flume channel in a directory, except its lock file, sorted. Raises OSError."""
    if not directory.is_dir():
        return []
    return sorted(
        path for path in directory.iterdir() if _CHANNEL_FILE.fullmatch(path.name) or path.name in _OTHER_FILES
    )


class FlumeChannel:
    """Undelivered events in the directories of a Flume channel. Flume must not be running."""

    def __init__(self, checkpoints: Path, backup: Path | None, directories: Sequence[Path]) -> None:
        """Read the queue: checkpoint in `checkpoints`, else in `backup`, and logs in `directories`.

        Raises OSError, and FlafkaError if files are encrypted or older than Flume 1.3.
        """
        self.damages: list[str] = []
        """Messages about unreadable data; at most 100 about lost events."""
        self.lost = 0
        """Number of events of the channel that could not be read."""
        self._logs = {log.number: log for log in map(_Log, log_files(directories))}
        self._queue = self._replay(self._read_checkpoint(checkpoints, backup))

    def __len__(self) -> int:
        """Return the number of undelivered events."""
        return len(self._queue)

    def events(self) -> Iterator[Event]:
        """Yield the undelivered events in order. Unreadable ones are counted in `lost`. Raises OSError."""
        for pointer in self._queue:
            number, offset = pointer >> 32, pointer & 0xFFFFFFFF
            if (log := self._logs.get(number)) is None:
                self._count_lost(f"log-{number} is missing: the event at its byte {offset} is lost")
                continue
            try:
                record = log.record(offset)
                if record is not None:
                    yield decode_event(record.payload)
            except (CorruptRecord, EOFError):
                self._count_lost(f"{log.path} is damaged at byte {offset}: the event there is lost")

    def _count_lost(self, message: str) -> None:
        """Count a lost event, and keep the message for the first 100."""
        self.lost += 1
        if self.lost <= _MAX_LOSS_MESSAGES:
            self.damages.append(message)

    def _read_checkpoint(self, directory: Path, backup: Path | None) -> _Checkpoint:
        """Return the checkpoint if it is complete, else a complete backup, else an empty one, as Flume does."""
        with contextlib.suppress(CorruptRecord, OSError):
            return _read_checkpoint(directory)
        if backup is not None and (backup / "backupComplete").exists():
            with contextlib.suppress(CorruptRecord, OSError):
                return _read_checkpoint(backup)
        return _NO_CHECKPOINT

    def _replay(self, checkpoint: _Checkpoint) -> list[int]:
        """Return pointers to the undelivered events, in order: the checkpoint's queue, changed by later records."""
        queue = dict.fromkeys(checkpoint.queue)
        open_pointers = {transaction: list(pointers) for transaction, pointers in checkpoint.puts.items()}
        open_takes = dict(checkpoint.takes)
        taken_early: set[int] = set()
        """Events whose take is committed, but which were not in the queue at that time."""
        records = [log.records(checkpoint.order, self.damages) for log in self._logs.values()]
        for record in heapq.merge(*records):
            if record.order <= checkpoint.order:
                continue
            if record.kind == _PUT:
                open_pointers.setdefault(record.transaction, []).append(record.pointer)
            elif record.kind == _TAKE:
                open_pointers.setdefault(record.transaction, []).append(take_pointer(record.payload))
            elif record.kind == _ROLLBACK:
                open_pointers.pop(record.transaction, None)
            elif record.kind == _COMMIT:
                pointers = open_pointers.pop(record.transaction, [])
                if commit_kind(record.payload) == _TAKE:
                    for pointer in (*pointers, *open_takes.pop(record.transaction, ())):
                        if pointer in queue:
                            del queue[pointer]
                        else:
                            taken_early.add(pointer)
                else:
                    queue.update(dict.fromkeys(pointer for pointer in pointers if pointer not in taken_early))
        # Takes without a commit are rolled back. Flume redelivers these events even if another take followed.
        rolled_back = [
            pointer for pointers in open_takes.values() for pointer in pointers if pointer not in taken_early
        ]
        return [*rolled_back, *queue]


class _Log:
    """Log file of a Flume channel, open for reading."""

    def __init__(self, path: Path) -> None:
        self.path, self.number = path, int(path.name[len("log-") :])
        self.descriptor = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self.descriptor)
        self.size = os.fstat(self.descriptor).st_size
        metadata_files = (path.with_name(path.name + end) for end in (".meta", ".meta.tmp", ".meta.old"))
        self.metadata: dict[int, list[int | bytes]] = {}
        with contextlib.suppress(CorruptRecord, StopIteration):
            metadata = next(file for file in metadata_files if file.exists()).read_bytes()
            self.metadata = message_fields(delimited_message(metadata))
        if 5 in self.metadata:
            raise FlafkaError(
                f"{path} is encrypted, which only Flume can read: let Flume deliver the events of its channel, "
                "without sources, or move its files to another directory"
            )
        if self._bytes(0, 4) == b"\0\0\0\2":
            raise FlafkaError(f"{path} is of a Flume before 1.3: start Flume 1.11 on it once, which converts it")

    def is_written(self) -> bool:
        """Return True if a process has the file open for writing, as far as the file system supports leases.

        Flume's lock file is no proof: Flume locks it twice, and closing the second descriptor releases the first
        lock (POSIX). But the kernel refuses a read lease on a file with a writer (fcntl(2), F_SETLEASE).
        """
        try:
            fcntl.fcntl(
                self.descriptor, fcntl.F_SETSIG, signal.SIGURG
            )  # SIGURG is ignored by default; SIGIO would kill the process
            fcntl.fcntl(self.descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
            fcntl.fcntl(self.descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        except OSError as e:
            # Other errors: the file system has no leases, or the file belongs to another user.
            return e.errno == errno.EAGAIN
        return False

    def _bytes(self, offset: int, count: int) -> bytes:
        """Return `count` bytes at an offset, or fewer at the end of the file. Raises OSError."""
        data = os.pread(self.descriptor, max(count, 0), offset)
        while len(data) < count and (more := os.pread(self.descriptor, count - len(data), offset + len(data))):
            data += more
        return data

    def record(self, offset: int) -> _Record | None:
        """Return the record at an offset; None if Flume's integrity tool has removed it.

        Raises CorruptRecord for a damaged record, and EOFError after the last one.
        """
        return self._next(offset)[0]

    def _next(self, offset: int) -> tuple[_Record | None, int]:
        """Return the record at an offset, None if removed, and the offset of the next one.

        Raises CorruptRecord, and EOFError after the last record.
        """
        head = self._bytes(offset, _LENGTH.size)
        if not head or head[0] == _FILL:
            raise EOFError
        if len(head) < _LENGTH.size or head[0] not in (_RECORD, _SKIPPED):
            raise CorruptRecord
        length = _LENGTH.unpack(head)[1]
        end = offset + _LENGTH.size + length
        if end > self.size:
            raise CorruptRecord
        if head[0] == _SKIPPED:
            return None, end
        content = self._bytes(offset + _LENGTH.size, length)
        if len(content) <= _HEADER.size or content[-1] != 0:  # the third message is empty
            raise CorruptRecord
        size, tag, kind, second, transaction, third, order = _HEADER.unpack_from(content)
        payload = content[_HEADER.size : -1]
        if (size, tag, second, third) != _TAGS or len(payload) != _SIZES.get(kind, len(payload)):
            raise CorruptRecord
        return _Record(order, self.number << 32 | offset, kind, transaction, payload), end

    def records(self, since: int, damages: list[str]) -> Iterator[_Record]:
        """Yield all records after position `since` in the order, and perhaps earlier ones. Raises OSError.

        Corrupt parts are skipped, with a message in `damages` for each.
        """
        offset = self._start(since)
        while offset < self.size:
            try:
                record, offset = self._next(offset)
                if record is not None:
                    yield record
            except EOFError:
                return
            except CorruptRecord:
                if (following := self._find_record(offset + 1)) is None:
                    damages.append(f"{self.path} ends at byte {offset} with an incomplete record")
                    return
                damages.append(
                    f"{self.path} is damaged from byte {offset} to {following}: puts, takes and commits there "
                    "are lost"
                )
                offset = following

    def _start(self, since: int) -> int:
        """Return the size of the file at its latest checkpoint that is not after `since`; 0 if none of two is."""
        for position, order in ((3, 4), (6, 7)):
            size, at_order = self.metadata.get(position, [0])[0], self.metadata.get(order, [0])[0]
            if isinstance(size, int) and isinstance(at_order, int) and size > 0 and at_order <= since:
                return size
        return 0

    def _find_record(self, offset: int) -> int | None:
        """Return the offset of the first valid record from `offset` on; None if there is none."""
        while offset < self.size:
            chunk = self._bytes(offset, _READ_BYTES + 64)
            for match in _RECORD_START.finditer(chunk):
                with contextlib.suppress(CorruptRecord, EOFError):
                    self._next(offset + match.start())
                    return offset + match.start()
            offset += _READ_BYTES
        return None


def _read_checkpoint(directory: Path) -> _Checkpoint:
    """Return the checkpoint in a directory. Raises CorruptRecord if it is incomplete or damaged, and OSError."""
    metadata = message_fields(delimited_message(_uncompressed(directory / "checkpoint.meta")))
    if not all(isinstance(metadata.get(field, [None])[0], int) for field in (1, 2, 3, 4)):
        raise CorruptRecord
    version, order, size, head = (int(metadata[field][0]) for field in (1, 2, 3, 4))
    data = _uncompressed(directory / "checkpoint")
    slots = _numbers(data)
    capacity = len(slots) - _FIRST_SLOT_INDEX
    if (
        version != 3
        or capacity < 1
        or (slots[_VERSION_INDEX], slots[_ORDER_INDEX], slots[_OPEN_INDEX]) != (3, order, 0)
        or not (0 <= size <= capacity and 0 <= head < capacity)
    ):
        raise CorruptRecord
    queue = [slots[_FIRST_SLOT_INDEX + (head + index) % capacity] for index in range(size)]
    return _Checkpoint(order, queue, _in_flight(directory / "inflightputs"), _in_flight(directory / "inflighttakes"))


def _in_flight(path: Path) -> dict[int, list[int]]:
    """Return transaction → pointers of the open transactions in a file. Raises CorruptRecord and OSError."""
    data = _uncompressed(path)
    if not data:
        return {}
    if hashlib.md5(data[16:], usedforsecurity=False).digest() != data[:16]:
        raise CorruptRecord
    numbers = iter(_numbers(data[16:]))
    by_transaction: dict[int, list[int]] = {}
    for transaction in numbers:
        count = next(numbers, 0)
        pointers = [pointer for _, pointer in zip(range(count), numbers, strict=False)]
        if pointers:
            by_transaction.setdefault(transaction, []).extend(pointers)
    return by_transaction


def _uncompressed(path: Path) -> bytes:
    """Return the content of a file, or else of its compressed copy. Raises CorruptRecord and OSError."""
    compressed = path.with_name(path.name + ".snappy")
    if path.exists() or not compressed.exists():
        return path.read_bytes()
    data, offset, parts = compressed.read_bytes(), 16, []  # after a magic number and two versions
    while offset < len(data):
        block = data[offset + 4 : offset + 4 + int.from_bytes(data[offset : offset + 4], "big")]
        try:
            parts.append(pa.decompress(block, read_varint(block, 0)[0], codec="snappy", asbytes=True))
        except (OSError, pa.ArrowException) as e:
            raise CorruptRecord from e
        offset += 4 + len(block)
    return b"".join(parts)


def _numbers(data: bytes) -> tuple[int, ...]:
    """Return the 64-bit numbers in these bytes, big-endian."""
    return struct.unpack_from(f">{len(data) // 8}q", data)
