"""Tracked file: its identity, its offset, and reads of whole lines."""

from __future__ import annotations

import enum
import errno
import os
import time

from flafka.sources.taildir.cursors import HEAD, TAIL, FileCursor, Mark, fingerprint

MAX_LINE = 4 << 20
"""Maximum size of a line, in bytes; a longer line becomes several events.

Otherwise one line could exhaust memory, or exceed the size limit of a Kafka record.
"""

_PIECE = 1 << 16
_NOTHING = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)

Key = tuple[int, int]
"""Device and inode."""


def nothing_there(error: OSError) -> bool:
    """Return True if the error means that the file does not exist, rather than that it is unreadable."""
    return error.errno in _NOTHING


def key_of(path: str) -> Key | None:
    """Return device and inode of the file at `path`; None where there is no file.

    Raises OSError where that cannot be determined.
    """
    try:
        status = os.stat(path)
    except OSError as e:
        if nothing_there(e):
            return None
        raise
    return status.st_dev, status.st_ino


class ChangedError(Exception):
    """Content that was read is no longer in the file: it was truncated, or its inode was reused."""


class FileLocation(enum.Enum):
    """Location of a tracked file, as of the latest scan."""

    MATCHED = enum.auto()
    """Under a name that matches a file group."""
    RENAMED = enum.auto()
    """Under a name that matches no file group."""
    UNSEEN = enum.auto()
    """Under no name that a scan has seen. The file may be new, or its file system not mounted."""
    DELETED = enum.auto()
    """No name leads to the file, though its directory is there."""
    FORGOTTEN = enum.auto()
    """No longer tracked."""


class Growth(enum.Enum):
    """Growth of a file since it was closed."""

    NONE = enum.auto()
    SEEN = enum.auto()
    """Written to."""
    UNCERTAIN = enum.auto()
    """Written to, unless that was another file of the same name."""


class Tail:
    """Tracked file with its committed offset. Device and inode identify it, whatever its name is.

    `proof` shows that its content is still the same; None for an offset that Flume wrote.
    """

    def __init__(
        self,
        path: str,
        *,
        id: int,
        inode: int,
        device: int | None,
        offset: int = 0,
        proof: Mark | None = None,
        name: str = "",
        real: str = "",
    ) -> None:
        self.id = id
        """ID of the file's cursor."""
        self.device = device
        self.inode = inode
        self.path = path
        self.real = real or path
        """Target of `path` where that is a symbolic link, else `path`."""
        self.name = name or path
        """First path of the file, which names the log that its events belong to."""
        self.offset = offset
        self.proof = proof
        self.headers: dict[str, str] = {}
        self.fd: int | None = None
        self._before = b""
        """Bytes before `offset` at the latest read.

        All bytes from the start of the file where `offset` is less than `HEAD`, else `TAIL` bytes.
        """
        self.held = b""
        """Buffered whole lines behind `offset`, which wait for continuation lines."""
        self.compressed = False
        """True if the file is compressed, and therefore not read."""
        self.blank = False
        """True if the file had nothing but NULs at the latest read."""
        self.holed = False
        """True if NULs at the beginning of the file were skipped."""
        self.location = FileLocation.UNSEEN
        self.growth = Growth.NONE
        self.replaced = False
        """True if another file took the path since this file was last seen there."""
        self.unpacked = False
        """True if `fd` is the uncompressed content of a compressed copy."""
        self.refused: set[tuple[int, int, int]] = set()
        """Inode, modification time and size of files that proved not to be copies of this file."""
        self.has_left: bool | None = None
        """True if the file was renamed away from the name of its log, as far as inotify reported in order.

        None until the order of the file in its log is known.
        """
        self.sync = 0
        """Number of the sync request after which all files before this one are reported.

        0 until the request is made.
        """
        self.predecessor: Tail | None = None
        """File whose name this file took over in a rotation, and whose lines come first.

        None once that order is ensured.
        """
        self.seen: tuple[int, int] | None = None
        """Size and modification time (ns) when all whole lines had been read."""
        self.changed_at = time.monotonic()
        """Monotonic time of the latest change that was noticed."""

    @classmethod
    def of(cls, cursor: FileCursor) -> Tail:
        """Return the file of a cursor, not found yet."""
        return cls(
            cursor.path,
            id=cursor.id,
            inode=cursor.inode,
            device=cursor.device,
            offset=cursor.offset,
            proof=cursor.proof,
            name=cursor.name,
            real=cursor.real,
        )

    def cursor(self) -> FileCursor:
        """Return the present cursor."""
        return FileCursor(
            id=self.id,
            inode=self.inode,
            device=self.device,
            path=self.path,
            name=self.name,
            real=self.real,
            offset=self.offset,
            proof=self.proof,
            deleted=self.location is FileLocation.DELETED,
        )

    @property
    def key(self) -> Key:
        """Device and inode; device 0 where it is unknown."""
        return self.device or 0, self.inode

    @property
    def provable(self) -> bool:
        """True if known content can distinguish this file from another one with the same inode."""
        return self.offset > 0 or (self.proof is not None and self.proof.length > 0)

    @property
    def has_name(self) -> bool:
        """True if a known name leads to the file."""
        return self.location is FileLocation.MATCHED or self.location is FileLocation.RENAMED

    @property
    def rotated(self) -> bool:
        """True if the writer has presumably switched to another file."""
        return not self.has_name or self.path != self.name

    def move(self, path: str) -> None:
        """Set the path of the file after a rename."""
        if self.fd is None and not self.provable:
            self.name = path  # the inode may have been reused
        self.path, self.replaced = path, False
        self.real = os.path.realpath(path) if os.path.islink(path) else path

    def open(self) -> None:
        """Open the file by its path.

        Raises ChangedError where the content that was read is no longer in it, OSError where it cannot be opened.
        """
        fd = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            status = os.fstat(fd)
            if (status.st_dev, status.st_ino) != (self.device, self.inode):
                raise FileNotFoundError(f"{self.path} is another file by now")
            if not self.is_in(fd, self.path):
                raise ChangedError
            self.hold(fd)
        except BaseException:
            os.close(fd)
            raise

    def hold(self, fd: int) -> None:
        """Take an open descriptor, whose content was compared already.

        An offset of Flume's position file counts if it is the end of a line, else the offset of the proof.
        """
        offset, proof = self.offset, self.proof
        if proof is not None and offset and os.pread(fd, 1, offset - 1) != b"\n":
            offset = proof.offset
        if proof is None or proof.offset != offset or not proof.length:
            proof = Mark.at(fd, offset)
        self.offset, self.proof = offset, proof
        self.fd, self.growth = fd, Growth.NONE

    def former(self, id: int) -> Tail:
        """Return the former state of a truncated or replaced file: its offset, in a file yet to be found."""
        former = Tail(self.path, id=id, inode=0, device=None, offset=self.offset, proof=self.proof, name=self.name)
        if self.replaced:  # otherwise the write was the truncation
            former.growth = self.growth
        return former

    def close(self) -> None:
        """Close the file; its state stays."""
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None

    def is_in(self, fd: int, path: str) -> bool:
        """Return True if the open file, found at `path`, is the one that was read up to `offset`."""
        if os.fstat(fd).st_size < self.offset:
            return False
        if self.proof is not None:
            return self.proof.holds(fd)
        # Flume left no fingerprint: trust its offset under the same name, else only at the end of a line.
        return path == self.path or not self.offset or os.pread(fd, 1, self.offset - 1) == b"\n"

    def is_at(self, path: str, fd: int | None = None) -> bool:
        """Return True if the path leads to this file, as `is_in` does.

        `fd` is a descriptor of the file at `path`, if it is open. Raises OSError where the file is unreadable.
        """
        if fd is not None:
            return self.is_in(fd, path)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            return self.is_in(fd, path)
        finally:
            os.close(fd)

    def status(self) -> os.stat_result | None:
        """Return the status of the file; None where its path no longer leads to it."""
        if self.fd is not None:
            return os.fstat(self.fd)
        try:
            status = os.stat(self.path)
        except OSError:
            return None
        return status if (status.st_dev, status.st_ino) == (self.device, self.inode) else None

    def has_changed(self) -> bool:
        """Return True if the file is open, and has changed since the latest check: the source may have waited."""
        if self.fd is None:
            return False
        try:
            status = os.fstat(self.fd)
        except OSError:
            return False  # stale on a network file system (ESTALE): the file is opened again by its name
        return self.seen != (status.st_size, status.st_mtime_ns)

    def read(self, limit: int, until: int) -> bytes:
        """Return whole lines from `offset` up to offset `until` (exclusive).

        The size is about `limit` bytes, but at least one line. Empty where no line is whole yet. A line longer than
        `MAX_LINE` comes in parts without a newline. Raises ChangedError where the file was truncated or replaced.
        """
        want, end = limit, 0
        data = b""
        while not end and len(data) <= MAX_LINE:
            data = self._following(min(want, until - self.offset))
            end = data.rfind(b"\n") + 1
            if len(data) < want:
                break
            want = min(want * 4, MAX_LINE + 1)
        self._check(data)
        if end:
            return data[:end]
        return data[:MAX_LINE] if len(data) > MAX_LINE else b""

    def read_unfinished(self, until: int) -> bytes:
        """Return the unfinished line from `offset` up to offset `until` (exclusive).

        At most `MAX_LINE` bytes. Raises ChangedError where the file was truncated or replaced.
        """
        data = self._following(min(MAX_LINE, until - self.offset))
        self._check(data)
        return data

    def _following(self, size: int) -> bytes:
        """Read `size` bytes from `offset`, and the bytes before it, which prove the identity of the file."""
        assert self.fd is not None
        length = self.offset if self.offset < HEAD else TAIL
        data = os.pread(self.fd, length + max(0, size), self.offset - length)
        self._before = data[:length]
        return data[length:]

    def _check(self, data: bytes) -> None:
        """Check that `data`, which was just read, is of this file. Raises ChangedError where it is not.

        The head is read with the data, or after them: data read before a truncation are good.
        """
        assert self.fd is not None
        assert self.proof is not None
        head = self._before + data[:HEAD] if self.offset < HEAD else b""
        if len(head) < self.proof.length:  # also where the file grew between stat() and open()
            head = os.pread(self.fd, self.proof.length, 0)
        if not self.proof.stands(head, self._before[-TAIL:]):
            raise ChangedError

    def text_offset(self) -> int | None:
        """Return the offset where the NULs at the beginning end; None where the file has nothing else."""
        assert self.fd is not None
        offset = 0
        while True:
            try:
                offset = os.lseek(self.fd, offset, os.SEEK_DATA)  # skips holes without reading them
            except OSError as e:
                if e.errno == errno.ENXIO:
                    return None
            data = os.pread(self.fd, _PIECE, offset)
            text = data.lstrip(b"\0")
            if text or not data:
                return offset + len(data) - len(text) if text else None
            offset += len(data)

    def mark_at(self, offset: int) -> Mark:
        """Return a mark at an offset, to commit once all data before it are stored."""
        assert self.fd is not None
        return Mark.at(self.fd, offset)

    def mark_behind(self, data: bytes) -> Mark:
        """Return a mark behind `data`, which was just read from `offset`, to commit once it is stored.

        The mark proves what was read, even if the file has changed since.
        """
        assert self.proof is not None
        offset, length, head = self.offset + len(data), self.proof.length, self.proof.head
        end = data if len(data) >= HEAD else self._before + data
        if length < HEAD and self.offset < HEAD:
            begin = (self._before + data[:HEAD])[:HEAD]
            length, head = len(begin), fingerprint(begin)
        return Mark(offset, length, head, fingerprint(end[-TAIL:]))

    def advance(self, mark: Mark) -> None:
        """Commit the offset of a mark: all data before it are stored."""
        self.offset, self.proof = mark.offset, mark

    def restart(self) -> None:
        """Reset the offset to 0: the file was truncated while open, or its inode was reused."""
        if self.fd is None or self.location is FileLocation.MATCHED:
            self.name = self.path
        mark = Mark() if self.fd is None else Mark.at(self.fd, 0)
        self.offset, self.proof, self.seen, self.held = 0, mark, None, b""
