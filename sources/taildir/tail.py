"""One followed file: what proves it to be the same file, and whole lines of it."""

from __future__ import annotations

import errno
import hashlib
import itertools
import os
import time

import msgspec

HEAD = 1024
"""So many first bytes of a file belong to its identity."""
TAIL = 64
"""So many bytes before the position do as well."""
MAX_LINE = 4 << 20
"""A longer line is cut into events of so many bytes: one line must exhaust neither memory nor a Kafka record."""

_PIECE = 1 << 16

Key = tuple[int, int]
"""Device and inode."""

_ids = itertools.count(1)


class ChangedError(Exception):
    """What was read of the file is no longer in it: it was truncated, or another file took its inode."""


class Mark(msgspec.Struct, frozen=True):
    """A place in a file, with fingerprints of what stands before it. Files that are followed only grow."""

    offset: int = 0
    length: int = 0
    """Bytes in the fingerprint of the head: up to `HEAD`, as many as there were."""
    head: str = ""
    tail: str = ""

    @classmethod
    def at(cls, fd: int, offset: int) -> Mark:
        """The mark of that place in the file as it is now."""
        head = os.pread(fd, HEAD, 0)
        return cls(offset, len(head), _fingerprint(head), _fingerprint(_before(fd, offset)))

    def begins(self, head: bytes) -> bool:
        """Whether a file that begins so, with `HEAD` bytes if it has as many, begins as this one."""
        return len(head) >= self.length and _fingerprint(head[: self.length]) == self.head

    def holds(self, fd: int) -> bool:
        """Whether the file still has the same bytes there."""
        head = os.pread(fd, self.length, 0) if self.length else b""
        return self.stands(head, _before(fd, self.offset))

    def stands(self, head: bytes, before: bytes) -> bool:
        """Whether it is that place in a file that begins so, and has these bytes before the offset."""
        return self.begins(head) and _fingerprint(before) == self.tail


def _before(fd: int, offset: int) -> bytes:
    size = min(TAIL, offset)
    return os.pread(fd, size, offset - size) if size else b""


def _fingerprint(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest() if data else ""


class Tail:
    """One file and how far it was stored. It is known by device and inode, whatever it is called.

    `mark` proves that it is still the same; None for a position that Flume wrote.
    """

    def __init__(
        self,
        path: str,
        *,
        inode: int,
        device: int | None,
        position: int = 0,
        mark: Mark | None = None,
        name: str = "",
        real: str = "",
    ) -> None:
        self.id = next(_ids)
        """Names it in the journal of positions."""
        self.device = device
        self.inode = inode
        self.path = path
        self.real = real or path
        """Where it lies, when `path` is a symbolic link to it."""
        self.name = name or path
        """What it was first called: what is read of it later belongs to that log still."""
        self.position = position
        self.mark = mark
        self.headers: dict[str, str] = {}
        self.fd: int | None = None
        self._before = b""
        """What stood before `position` when it was last read from there: all of a head, or `TAIL` bytes."""
        self.held = b""
        """Whole lines behind `position` that were read, but may belong to an event which goes on."""
        self.compressed = False
        """Whether it was found to be a compressed file, which is not read."""
        self.blank = False
        """Whether there was nothing but NULs in it when it was last read."""
        self.holed = False
        """Whether NULs at its beginning were skipped."""
        self.gone = False
        """Whether it is followed no longer."""
        self.deleted = False
        """Whether no name leads to it, though its directory is there: Flume would forget it."""
        self.grown: bool | None = False
        """Whether it was written to since it was closed; None where that may have been another file of its name."""
        self.replaced = False
        """Whether another file came by its name since it was last seen there."""
        self.unpacked = False
        """Whether `fd` is what a compressed copy of it holds."""
        self.refused: set[tuple[int, int, int]] = set()
        """Inode, time and size of files that proved not to be copies of it."""
        self.named = False
        """Whether a name is known that leads to it."""
        self.matched = False
        """Whether that name matches a file group."""
        self.has_left: bool | None = None
        """Whether it was renamed away from the name of its log, as far as that was reported in the kernel's order.

        None until its place among the files of its log is known.
        """
        self.sync = 0
        """Number of the request that reports all files which came between `predecessor` and this one; 0: not made."""
        self.predecessor: Tail | None = None
        """The file whose name this one took over in a rotation. Its lines come first; None once that is ensured."""
        self.seen: tuple[int, int] | None = None
        """Size and modification time when all its whole lines had been read."""
        self.changed_at = time.monotonic()
        """When it was last seen to grow, on the monotonic clock."""

    @property
    def provable(self) -> bool:
        """Whether anything in it is known, so that it can be told from another file with its inode."""
        return self.position > 0 or (self.mark is not None and self.mark.length > 0)

    @property
    def rotated(self) -> bool:
        """Whether its writer has presumably turned to another file."""
        return not self.named or self.path != self.name

    def move(self, path: str) -> None:
        """It goes by that name now."""
        if self.fd is None and not self.provable:
            self.name = path  # another file may have taken its inode
        self.path, self.replaced = path, False
        self.real = os.path.realpath(path) if os.path.islink(path) else path

    def open(self) -> None:
        """Open it. Raises ChangedError where what was read is no longer in it, OSError where it cannot be opened."""
        fd = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            status = os.fstat(fd)
            if (status.st_dev, status.st_ino) != (self.device, self.inode):
                raise FileNotFoundError(f"{self.path} is another file by now")
            if not self.is_in(fd, self.path):
                raise ChangedError
        except BaseException:
            os.close(fd)
            raise
        self.hold(fd)

    def hold(self, fd: int) -> None:
        """That is the file, open: its content was compared.

        A position that Flume's file gave it counts if it is the end of a line, else the one that the mark proves.
        """
        if self.mark is not None and self.position and os.pread(fd, 1, self.position - 1) != b"\n":
            self.position = self.mark.offset
        if self.mark is None or self.mark.offset != self.position or not self.mark.length:
            self.mark = Mark.at(fd, self.position)
        self.fd, self.grown = fd, False

    def former(self) -> Tail:
        """What it was before it was emptied or became another file: the same place, in a file yet to be found."""
        former = Tail(self.path, inode=0, device=None, position=self.position, mark=self.mark, name=self.name)
        former.grown = self.grown if self.replaced else False  # to empty a file is to write to it, too
        return former

    def close(self) -> None:
        """Close it; what is known of it stays."""
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None

    def is_in(self, fd: int, path: str) -> bool:
        """Whether the open file, found under that name, is the one that was read up to `position`."""
        if os.fstat(fd).st_size < self.position:
            return False
        if self.mark is not None:
            return self.mark.holds(fd)
        # Flume left no proof: believe its position under the same name, and else only at the end of a line.
        return path == self.path or not self.position or os.pread(fd, 1, self.position - 1) == b"\n"

    def is_at(self, path: str, fd: int | None = None) -> bool:
        """Whether that name leads to it, as `is_in`; `fd` is what is there, where that is open. Raises OSError where
        that cannot be read."""
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
        """Its size and times; None where its name no longer leads to it."""
        if self.fd is not None:
            return os.fstat(self.fd)
        try:
            status = os.stat(self.path)
        except OSError:
            return None
        return status if (status.st_dev, status.st_ino) == (self.device, self.inode) else None

    def has_changed(self) -> bool:
        """Whether it is open, and has changed since it was last looked at: the source may have had to wait."""
        if self.fd is None:
            return False
        try:
            status = os.fstat(self.fd)
        except OSError:
            return False  # on a network file system it may be gone: it is opened anew by its name
        return self.seen != (status.st_size, status.st_mtime_ns)

    def read(self, limit: int, until: int) -> bytes:
        """Whole lines from `position` up to at most offset `until`: about `limit` bytes, but one line at least.

        Empty where no line is whole yet. A line longer than `MAX_LINE` comes in parts without a newline. Raises
        ChangedError where the file is not the same any more.
        """
        want, end = limit, 0
        data = b""
        while not end and len(data) <= MAX_LINE:
            data = self._following(min(want, until - self.position))
            end = data.rfind(b"\n") + 1
            if len(data) < want:
                break
            want = min(want * 4, MAX_LINE + 1)
        self._check(data)
        if end:
            return data[:end]
        return data[:MAX_LINE] if len(data) > MAX_LINE else b""

    def rest(self, until: int) -> bytes:
        """What stands from `position` up to offset `until`, where no line is whole: an unfinished one."""
        data = self._following(min(MAX_LINE, until - self.position))
        self._check(data)
        return data

    def _following(self, size: int) -> bytes:
        """So many bytes from `position` on. What stands before them is read along with them, as it proves them."""
        assert self.fd is not None
        length = self.position if self.position < HEAD else TAIL
        data = os.pread(self.fd, length + max(0, size), self.position - length)
        self._before = data[:length]
        return data[length:]

    def _check(self, data: bytes) -> None:
        """Whether `data`, which was just read, is of that file. Raises ChangedError where it is not.

        Its head is read with the data, or after them: what was read before a truncation is good.
        """
        assert self.fd is not None
        assert self.mark is not None
        head = self._before + data[:HEAD] if self.position < HEAD else b""
        if len(head) < self.mark.length:  # also where the file has grown between a look at its size and its opening
            head = os.pread(self.fd, self.mark.length, 0)
        if not self.mark.stands(head, self._before[-TAIL:]):
            raise ChangedError

    def first_text(self) -> int | None:
        """Where the NULs end that the file begins with; None where there is nothing else in it."""
        assert self.fd is not None
        offset = 0
        while True:
            try:
                offset = os.lseek(self.fd, offset, os.SEEK_DATA)  # past a hole, at no cost
            except OSError as e:
                if e.errno == errno.ENXIO:
                    return None
            data = os.pread(self.fd, _PIECE, offset)
            text = data.lstrip(b"\0")
            if text or not data:
                return offset + len(data) - len(text) if text else None
            offset += len(data)

    def mark_at(self, offset: int) -> Mark:
        """A mark there, for when all before it is stored."""
        assert self.fd is not None
        return Mark.at(self.fd, offset)

    def mark_behind(self, data: bytes) -> Mark:
        """A mark behind `data`, which was just read from `position` on, for when it is stored.

        It proves what was read, whatever is there by now.
        """
        assert self.mark is not None
        offset, length, head = self.position + len(data), self.mark.length, self.mark.head
        end = data if len(data) >= HEAD else self._before + data
        if length < HEAD and self.position < HEAD:
            begin = (self._before + data[:HEAD])[:HEAD]
            length, head = len(begin), _fingerprint(begin)
        return Mark(offset, length, head, _fingerprint(end[-TAIL:]))

    def advance(self, mark: Mark) -> None:
        """All up to that mark is stored."""
        self.position, self.mark = mark.offset, mark

    def restart(self) -> None:
        """It is another file under the old inode, or was emptied while it was open: read it from its start."""
        if self.fd is None or self.matched:
            self.name = self.path
        mark = Mark() if self.fd is None else Mark.at(self.fd, 0)
        self.position, self.mark, self.seen, self.held = 0, mark, None, b""
