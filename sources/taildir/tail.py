"""Tracked file: its identity, its offset, and reads of whole lines."""

from __future__ import annotations

import enum
import errno
import os
import time

from flafka.sources.taildir.cursors import HEAD_BYTES, TAIL_BYTES, FileCheckpoint, FileCursor, fingerprint

MAX_LINE_BYTES = 4 << 20
"""Maximum size of a line, in bytes; a longer line becomes several events.

Otherwise one line could exhaust memory, or exceed the size limit of a Kafka record.
"""

_READ_BYTES = 1 << 16
_NOT_FOUND_ERRNOS = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)

Key = tuple[int, int]
"""Device and inode."""


def is_not_found(error: OSError) -> bool:
    """Return True if the error means that the file does not exist, rather than that the file is unreadable."""
    return error.errno in _NOT_FOUND_ERRNOS


def key_of(path: str) -> Key | None:
    """Return device and inode of the file at `path`; None where there is no file.

    Raises OSError where the file cannot be accessed.
    """
    try:
        status = os.stat(path)
    except OSError as e:
        if is_not_found(e):
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
    WRITTEN = enum.auto()
    """Written to."""
    UNCERTAIN = enum.auto()
    """Written to, unless that was another file of the same name."""


class Tail:
    """Tracked file with its committed offset. Device and inode identify it, whatever its name is.

    `checkpoint` identifies the content that was read; None for an offset that Flume wrote.
    """

    __slots__ = (
        "__weakref__",
        "_before",
        "_hashed",
        "_verified_head",
        "buffered",
        "changed_at",
        "checked_state",
        "checkpoint",
        "device",
        "fd",
        "growth",
        "has_only_nuls",
        "has_skipped_nuls",
        "headers",
        "id",
        "inode",
        "is_compressed",
        "is_unpacked_copy",
        "location",
        "name",
        "offset",
        "path",
        "predecessor",
        "real",
        "rejected_copies",
        "replaced",
        "sync_number",
        "was_renamed_away",
    )

    def __init__(
        self,
        path: str,
        *,
        id: int,
        inode: int,
        device: int | None,
        offset: int = 0,
        checkpoint: FileCheckpoint | None = None,
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
        self.checkpoint = checkpoint
        self.headers: dict[str, str] = {}
        self.fd: int | None = None
        self._before = b""
        """Bytes before `offset` at the latest read.

        All bytes from the start of the file where `offset` is less than `HEAD_BYTES`, else `TAIL_BYTES` bytes.
        """
        self._hashed = (b"", "")
        """Bytes of which the fingerprint was computed last, with the fingerprint."""
        self._verified_head = ("", 0)
        """Fingerprint of the head that was verified last, with Python's hash of those bytes."""
        self.buffered = b""
        """Whole lines behind `offset` that wait for continuation lines."""
        self.is_compressed = False
        """True if the file is compressed, and therefore not read."""
        self.has_only_nuls = False
        """True if the file had nothing but NULs at the latest read."""
        self.has_skipped_nuls = False
        """True if NULs at the beginning of the file were skipped."""
        self.location = FileLocation.UNSEEN
        self.growth = Growth.NONE
        self.replaced = False
        """True if another file took the path since this file was last seen there."""
        self.is_unpacked_copy = False
        """True if `fd` is the uncompressed content of a compressed copy."""
        self.rejected_copies: frozenset[tuple[int, int, int]] = frozenset()
        """Inode, modification time and size of files that proved not to be copies of this file."""
        self.was_renamed_away: bool | None = None
        """True if the file was renamed away from the name of its log, as far as inotify reported in order.

        None until the order of the file in its log is known.
        """
        self.sync_number = 0
        """Number of the sync request after which all files before this one are reported.

        0 until the request is made.
        """
        self.predecessor: Tail | None = None
        """File whose name this file took over in a rotation, and whose lines come first.

        None once that order is ensured.
        """
        self.checked_state: tuple[int, int] | None = None
        """Size and modification time (ns) when all whole lines had been read."""
        self.changed_at = time.monotonic()
        """Monotonic time of the latest change that was noticed."""

    @classmethod
    def of(cls, cursor: FileCursor) -> Tail:
        """Return the file of a cursor, with its last known path and the offset to read from.

        Its `location` is `UNSEEN` until a scan finds the file.
        """
        return cls(
            cursor.path,
            id=cursor.id,
            inode=cursor.inode,
            device=cursor.device,
            offset=cursor.offset,
            checkpoint=cursor.checkpoint,
            name=cursor.name,
            real=cursor.real,
        )

    def cursor(self) -> FileCursor:
        """Return the cursor to store: paths, committed offset, and identity of the file at present."""
        return FileCursor(
            id=self.id,
            inode=self.inode,
            device=self.device,
            path=self.path,
            name=self.name,
            real=self.real,
            offset=self.offset,
            checkpoint=self.checkpoint,
            deleted=self.location is FileLocation.DELETED,
        )

    @property
    def key(self) -> Key:
        """Device and inode; device 0 where it is unknown."""
        return self.device or 0, self.inode

    @property
    def has_known_content(self) -> bool:
        """True if the offset is above 0 or there is a fingerprint, which distinguishes files with the same inode."""
        return self.offset > 0 or (self.checkpoint is not None and self.checkpoint.length > 0)

    @property
    def has_name(self) -> bool:
        """True if the latest scan found the file under a name, whether or not a group matches the name."""
        return self.location is FileLocation.MATCHED or self.location is FileLocation.RENAMED

    @property
    def is_rotated(self) -> bool:
        """True if the file has no name or another path than its first: its writer presumably uses a new file."""
        return not self.has_name or self.path != self.name

    def move(self, path: str) -> None:
        """Set the path of the file after a rename, and `real` to the target if the path is a symbolic link.

        A closed file without known content takes the path as its `name`, too.
        """
        if self.fd is None and not self.has_known_content:
            self.name = path  # the inode may have been reused
        self.path, self.replaced = path, False
        self.real = os.path.realpath(path) if os.path.islink(path) else path

    def open(self) -> None:
        """Open the file by its path.

        Raises ChangedError where the content that was read is no longer in it. Raises FileNotFoundError where the
        path leads to another file, OSError where the file cannot be read. The file stays closed then.
        """
        fd = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            status = os.fstat(fd)
            if (status.st_dev, status.st_ino) != (self.device, self.inode):
                raise FileNotFoundError(f"{self.path} is another file by now")
            if not self.matches(fd, self.path):
                raise ChangedError
            self.attach(fd)
        except BaseException:
            os.close(fd)
            raise

    def attach(self, fd: int) -> None:
        """Take ownership of an open descriptor, whose content was compared already.

        An offset that no newline precedes, as Flume's may be, is replaced by the checkpoint's offset if there is a
        checkpoint. A missing or outdated checkpoint is computed from the file. Raises OSError where the file cannot
        be read; the caller keeps the descriptor then.
        """
        offset, checkpoint = self.offset, self.checkpoint
        if checkpoint is not None and offset and os.pread(fd, 1, offset - 1) != b"\n":
            offset = checkpoint.offset
        if checkpoint is None or checkpoint.offset != offset or not checkpoint.length:
            checkpoint = FileCheckpoint.of_file(fd, offset)
        self.offset, self.checkpoint = offset, checkpoint
        self.fd, self.growth = fd, Growth.NONE

    def former_state(self, id: int) -> Tail:
        """Return the state of a file before it was truncated or replaced, with the cursor ID `id` and no inode.

        Scans search for a rotated copy that has the former content.
        """
        former = Tail(
            self.path, id=id, inode=0, device=None, offset=self.offset, checkpoint=self.checkpoint, name=self.name
        )
        if self.replaced:  # otherwise the write was the truncation
            former.growth = self.growth
        return former

    def close(self) -> None:
        """Close the file; its state stays."""
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None

    def matches(self, fd: int, path: str) -> bool:
        """Return True if the open file, found at `path`, is the one that was read up to `offset`.

        The file must have at least `offset` bytes and match the checkpoint. Without a checkpoint, the same path or a
        newline before `offset` is enough. Raises OSError where the file cannot be read.
        """
        if os.fstat(fd).st_size < self.offset:
            return False
        if self.checkpoint is not None:
            return self.checkpoint.matches_file(fd)
        # Flume left no fingerprint: trust its offset under the same name, else only at the end of a line.
        return path == self.path or not self.offset or os.pread(fd, 1, self.offset - 1) == b"\n"

    def matches_path(self, path: str, fd: int | None = None) -> bool:
        """Return True if `matches` is true of the file at `path`; False where there is no such file.

        `fd` is a descriptor of that file, if it is open. Raises OSError where the file is unreadable.
        """
        if fd is not None:
            return self.matches(fd, path)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            return self.matches(fd, path)
        finally:
            os.close(fd)

    def status(self) -> os.stat_result | None:
        """Return the status of the file; None where it is closed and its path does not lead to it.

        Raises OSError where the status of an open file cannot be read.
        """
        if self.fd is not None:
            return os.fstat(self.fd)
        try:
            status = os.stat(self.path)
        except OSError:
            return None
        return status if (status.st_dev, status.st_ino) == (self.device, self.inode) else None

    def has_changed(self) -> bool:
        """Return True if the file is open, and its size or modification time differs from `checked_state`."""
        if self.fd is None:
            return False
        try:
            status = os.fstat(self.fd)
        except OSError:
            return False  # stale on a network file system (ESTALE): the file is opened again by its name
        return self.checked_state != (status.st_size, status.st_mtime_ns)

    def read(self, limit: int, until: int) -> bytes:
        """Return whole lines from `offset` up to offset `until` (exclusive).

        The size is about `limit` bytes, but at least one line. Empty where no line is complete yet. A line longer
        than `MAX_LINE_BYTES` is returned in parts without a newline. Raises ChangedError where the file was truncated
        or replaced, OSError where it cannot be read.
        """
        size, end = limit, 0
        data = b""
        while not end and len(data) <= MAX_LINE_BYTES:
            data = self._read_from_offset(min(size, until - self.offset))
            end = data.rfind(b"\n") + 1
            if len(data) < size:
                break
            size = min(size * 4, MAX_LINE_BYTES + 1)
        self._check(data)
        if end:
            return data[:end]
        return data[:MAX_LINE_BYTES] if len(data) > MAX_LINE_BYTES else b""

    def read_unfinished(self, until: int) -> bytes:
        """Return the bytes from `offset` up to offset `until` (exclusive), even if no newline ends them.

        At most `MAX_LINE_BYTES` bytes. Raises ChangedError where the file was truncated or replaced, OSError where it
        cannot be read.
        """
        data = self._read_from_offset(min(MAX_LINE_BYTES, until - self.offset))
        self._check(data)
        return data

    def _read_from_offset(self, size: int) -> bytes:
        """Return at most `size` bytes from `offset`; set `_before` to the bytes before `offset`, for `_check`."""
        assert self.fd is not None
        length = self.offset if self.offset < HEAD_BYTES else TAIL_BYTES
        data = os.pread(self.fd, length + max(0, size), self.offset - length)
        self._before = data[:length]
        return data[length:]

    def _check(self, data: bytes) -> None:
        """Check that `data`, which was just read, is of this file. Raises ChangedError where it is not.

        The head is read with the data or after them, so a check that passes proves data read before a truncation.
        """
        assert self.fd is not None
        assert self.checkpoint is not None
        head = self._before + data[:HEAD_BYTES] if self.offset < HEAD_BYTES else b""
        if len(head) < self.checkpoint.length:  # also where the file grew between stat() and open()
            head = os.pread(self.fd, self.checkpoint.length, 0)
        if self._fingerprint(self._before[-TAIL_BYTES:]) != self.checkpoint.tail:
            raise ChangedError
        self._check_head(head[: self.checkpoint.length], self.checkpoint)

    def _check_head(self, head: bytes, checkpoint: FileCheckpoint) -> None:
        """Raise ChangedError unless the checkpoint has the fingerprint of `head`.

        Bytes with the hash of the bytes that were verified last are equal to them. Python's hash has 64 bits and a
        secret key, and takes a twentieth of the time of a fingerprint.
        """
        verified = checkpoint.head, hash(head)
        if verified != self._verified_head:
            if len(head) < checkpoint.length or not checkpoint.matches_head(head):
                raise ChangedError
            self._verified_head = verified

    def _fingerprint(self, data: bytes) -> str:
        """Return the fingerprint of bytes before an offset; bytes equal to the previous ones are not hashed again."""
        if data != self._hashed[0]:
            self._hashed = data, fingerprint(data)
        return self._hashed[1]

    def text_offset(self) -> int | None:
        """Return the offset of the first byte that is not NUL; None where the file has no such byte."""
        assert self.fd is not None
        offset = 0
        while True:
            try:
                offset = os.lseek(self.fd, offset, os.SEEK_DATA)  # skips holes without reading them
            except OSError as e:
                if e.errno == errno.ENXIO:
                    return None
            data = os.pread(self.fd, _READ_BYTES, offset)
            text = data.lstrip(b"\0")
            if text or not data:
                return offset + len(data) - len(text) if text else None
            offset += len(data)

    def checkpoint_at(self, offset: int) -> FileCheckpoint:
        """Return a checkpoint at an offset of the open file, to commit once all data before it are stored."""
        assert self.fd is not None
        return FileCheckpoint.of_file(self.fd, offset)

    def checkpoint_after(self, data: bytes) -> FileCheckpoint:
        """Return a checkpoint behind `data`, which was just read from `offset`, to commit once it is stored.

        Its fingerprints are of the bytes that were read, even if the file has changed since.
        """
        assert self.checkpoint is not None
        offset, length, head = self.offset + len(data), self.checkpoint.length, self.checkpoint.head
        end = data if len(data) >= HEAD_BYTES else self._before + data
        if length < HEAD_BYTES and self.offset < HEAD_BYTES:
            begin = (self._before + data[:HEAD_BYTES])[:HEAD_BYTES]
            length, head = len(begin), fingerprint(begin)
        return FileCheckpoint(offset, length, head, self._fingerprint(end[-TAIL_BYTES:]))

    def advance(self, checkpoint: FileCheckpoint) -> None:
        """Commit a checkpoint: set its offset and fingerprints, as all data before it are stored or skipped."""
        self.offset, self.checkpoint = checkpoint.offset, checkpoint

    def restart(self) -> None:
        """Reset the offset to 0 and drop buffered lines: the file was truncated while open, or its inode was reused.

        A closed file, or one whose path matches a group, takes that path as its `name`.
        """
        if self.fd is None or self.location is FileLocation.MATCHED:
            self.name = self.path
        checkpoint = FileCheckpoint() if self.fd is None else FileCheckpoint.of_file(self.fd, 0)
        self.offset, self.checkpoint, self.checked_state, self.buffered = 0, checkpoint, None, b""
