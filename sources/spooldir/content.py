"""The bytes of one spooled file, unpacked where they are compressed, as long as it does not change."""

from __future__ import annotations

import io
import lzma
import os
import zlib
from typing import IO

import pyarrow as pa

from flafka.plugins import FlafkaError
from flafka.sources.compressed import COMPRESSED, unpacked
from flafka.sources.spooldir.tracker import State

_PIECE = 1 << 20


class Skip(FlafkaError):
    """The file cannot be read any further; the text says why, as what the file does: `has changed …`."""


class Content:
    """An open file. Offsets are those of the unpacked bytes.

    `read` answers fewer bytes than asked for at the end only. It raises Skip where the file has changed, or cannot be
    unpacked any further; what precedes that place was answered before.
    """

    def __init__(self, path: str, *, unpack: bool) -> None:
        """Open it. Raises OSError."""
        self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            self.state = State.at(self._fd)
            self.packed = unpack and os.pread(self._fd, 16, 0).startswith(COMPRESSED)
        except BaseException:
            os.close(self._fd)
            raise
        self._at = 0
        self._stream: io.BufferedIOBase | None = None
        self._file: IO[bytes] | None = None
        self._failure: Exception | None = None

    def tell(self) -> int:
        """Where the next read begins."""
        return self._at

    def seek(self, offset: int) -> int:
        """Let the next read begin there; of a compressed file, all before it is unpacked again."""
        if not self.packed:
            self._at = offset
            return offset
        if offset < self._at:
            self._let_go()
            self._at = 0
        while self._at < offset and self._read_packed(min(_PIECE, offset - self._at)):
            pass
        return self._at

    @property
    def unpacked_of(self) -> int:
        """How many bytes of a compressed file were unpacked so far."""
        return self._file.tell() if self._file is not None else 0

    def read(self, size: int) -> bytes:
        """The next bytes."""
        data = self._read_packed(size) if self.packed else self._read_plain(size)
        if len(data) < size:
            self.check()
        return data

    def close(self) -> None:
        """Let go of the file."""
        self._let_go()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _read_plain(self, size: int) -> bytes:
        size = max(0, min(size, self.state.size - self._at))
        pieces = []
        while size:
            piece = os.pread(self._fd, size, self._at)
            if not piece:
                break
            pieces.append(piece)
            size -= len(piece)
            self._at += len(piece)
        return b"".join(pieces)

    def _read_packed(self, size: int) -> bytes:
        if self._stream is None:
            self._file = os.fdopen(os.dup(self._fd), "rb")
            self._file.seek(0)
            self._stream = unpacked(self._file)
        pieces = []
        while size and self._failure is None:
            try:
                # One piece at a time: what precedes a damage must not get lost with it.
                piece = self._stream.read1(min(size, _PIECE))
            except (OSError, EOFError, zlib.error, lzma.LZMAError, pa.ArrowException) as e:
                if isinstance(e, OSError) and e.errno is not None:
                    raise
                self._failure = e
                break
            if not piece:
                break
            pieces.append(piece)
            size -= len(piece)
            self._at += len(piece)
        if self._failure is not None and not pieces:
            self.check()
            raise Skip(f"cannot be unpacked: {self._failure}")
        return b"".join(pieces)

    def check(self) -> None:
        """Raises Skip where it has changed since it was opened."""
        if not self.state.unchanged(State.of(os.fstat(self._fd))):
            raise Skip("has changed since it was put there")

    def _let_go(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None
        if self._file is not None:
            self._file.close()
            self._file = None
        self._failure = None
