"""Uncompressed content of a spooled file, with a check that the file does not change while it is read."""

from __future__ import annotations

import io
import lzma
import os
import zlib
from typing import IO

import pyarrow as pa

from flafka.plugins import FlafkaError
from flafka.sources.compression import MAGIC_NUMBERS, decompressed
from flafka.sources.spooldir.tracker import FileState

_READ_BYTES = 1 << 20


class SkipFile(FlafkaError):
    """Error that ends the reading of a file. The text is a predicate of the file, such as `has changed …`."""


class FileContent:
    """Open file with its uncompressed content, to which all offsets refer.

    `read` returns fewer bytes than requested only at the end. It raises SkipFile where the file has changed, or
    cannot be uncompressed any further; all bytes before that were returned already.
    """

    def __init__(self, path: str, *, decompress: bool) -> None:
        """Open the file. With `decompress`, its content is uncompressed if it begins with a known magic number.

        Raises OSError.
        """
        self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            self.state = FileState.of_path(self._fd)
            self.is_compressed = decompress and os.pread(self._fd, 16, 0).startswith(MAGIC_NUMBERS)
        except BaseException:
            os.close(self._fd)
            raise
        self._offset = 0
        self._stream: io.BufferedIOBase | None = None
        self._file: IO[bytes] | None = None
        self._failure: Exception | None = None

    def tell(self) -> int:
        """Return the offset of the next read."""
        return self._offset

    def seek(self, offset: int) -> int:
        """Set the offset of the next read, and return it. A compressed file is uncompressed up to that offset again.

        The result is less if the uncompressed content ends before. Raises SkipFile where it cannot be uncompressed,
        OSError where the file cannot be read.
        """
        if not self.is_compressed:
            self._offset = offset
            return offset
        if offset < self._offset:
            self._close_stream()
            self._offset = 0
        while self._offset < offset and self._read_compressed(min(_READ_BYTES, offset - self._offset)):
            pass
        return self._offset

    @property
    def compressed_offset(self) -> int:
        """Number of bytes of the compressed file that were read; 0 where the file is plain."""
        return self._file.tell() if self._file is not None else 0

    def read(self, size: int) -> bytes:
        """Return the next `size` bytes, or fewer at the end or before damaged data; empty only at the end.

        Raises SkipFile where damaged compressed data come next. Raises it as well, instead of returning fewer bytes,
        if the file has changed since it was opened. Raises OSError where the file cannot be read.
        """
        data = self._read_compressed(size) if self.is_compressed else self._read_plain(size)
        if len(data) < size:
            self.check_unchanged()
        return data

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._close_stream()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _read_plain(self, size: int) -> bytes:
        """Return the next `size` bytes of a plain file, or fewer at the end that it had when it was opened."""
        size = max(0, min(size, self.state.size - self._offset))
        pieces = []
        while size:
            piece = os.pread(self._fd, size, self._offset)
            if not piece:
                break
            pieces.append(piece)
            size -= len(piece)
            self._offset += len(piece)
        return b"".join(pieces)

    def _read_compressed(self, size: int) -> bytes:
        """Return the next `size` uncompressed bytes, or fewer at the end or before damaged data.

        Raises SkipFile where damaged data come next, OSError where the file cannot be read.
        """
        if self._stream is None:
            self._file = os.fdopen(os.dup(self._fd), "rb")
            self._file.seek(0)
            self._stream = decompressed(self._file)
        pieces = []
        while size and self._failure is None:
            try:
                # Read pieces: one large read would lose the bytes before damaged ones.
                piece = self._stream.read1(min(size, _READ_BYTES))
            except (OSError, EOFError, zlib.error, lzma.LZMAError, pa.ArrowException) as e:
                if isinstance(e, OSError) and e.errno is not None:
                    raise
                self._failure = e
                break
            if not piece:
                break
            pieces.append(piece)
            size -= len(piece)
            self._offset += len(piece)
        if self._failure is not None and not pieces:
            self.check_unchanged()
            raise SkipFile(f"cannot be unpacked: {self._failure}")
        return b"".join(pieces)

    def check_unchanged(self) -> None:
        """Raise SkipFile if inode, size or modification time have changed since the file was opened."""
        if not self.state.is_unchanged(FileState.of(os.fstat(self._fd))):
            raise SkipFile("has changed since it was put there")

    def _close_stream(self) -> None:
        """Close the stream of uncompressed content; the next read begins at the start of the file."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None
        if self._file is not None:
            self._file.close()
            self._file = None
        self._failure = None
