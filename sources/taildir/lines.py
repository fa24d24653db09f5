"""From the bytes of files to a batch, in columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from plugins import Batch
from sources.taildir.tail import Mark, Tail

OFFSET_HEADER = "byteoffset"
_NEWLINE, _RETURN = 0x0A, 0x0D


@dataclass(frozen=True, slots=True)
class Lines:
    """Consecutive lines of one file."""

    tail: Tail
    text: bytes
    """The lines, each with a newline behind it."""
    ends: npt.NDArray[np.int64]
    """Where in `text` the newlines are."""
    starts: npt.NDArray[np.int64]
    """Offset in the file of each line."""
    mark: Mark
    """Where the file stands once they are stored."""

    @classmethod
    def of(cls, tail: Tail, data: bytes, most: int, *, keep_cr: bool) -> Lines:
        """The first `most` lines of what was read from the file's position; one line where no newline ends it."""
        whole = data.endswith(b"\n")
        text = data if whole else data + b"\n"
        bytes_ = np.frombuffer(text, np.uint8)
        ends = np.flatnonzero(bytes_ == _NEWLINE)
        if len(ends) > most:
            ends = ends[:most]
            data = text = text[: int(ends[-1]) + 1]
        starts = np.empty(len(ends), np.int64)
        starts[0] = 0
        starts[1:] = ends[:-1] + 1
        starts += tail.position
        # A carriage return is part of the line's end only where there is such an end.
        if whole and not keep_cr and (bytes_[ends - 1] == _RETURN).any():
            text = text.replace(b"\r\n", b"\n")
            ends = np.flatnonzero(np.frombuffer(text, np.uint8) == _NEWLINE)
        return cls(tail, text, ends, starts, tail.mark_at(tail.position + len(data)))


def batch_of(pieces: Sequence[Lines], *, byte_offsets: bool) -> Batch:
    """One batch of the lines of several files; each line has its file's headers."""
    counts = [len(piece.ends) for piece in pieces]
    total = sum(counts)
    bases = np.cumsum([0, *(len(piece.text) for piece in pieces)])
    ends = np.concatenate([piece.ends + base for piece, base in zip(pieces, bases, strict=False)])
    # Taking all newlines out moves each line's end back by the number of newlines before it.
    offsets = np.zeros(total + 1, np.int32)
    offsets[1:] = ends - np.arange(total)
    text = b"".join(piece.text for piece in pieces).replace(b"\n", b"")
    bodies = pa.Array.from_buffers(pa.binary(), total, [None, pa.py_buffer(offsets), pa.py_buffer(text)])

    headers: dict[str, object] = {}
    if byte_offsets:
        values = pa.array(np.concatenate([piece.starts for piece in pieces])).cast(pa.string())
        # All differ: encoding them as a dictionary needs no search.
        headers[OFFSET_HEADER] = pa.DictionaryArray.from_arrays(pa.array(np.arange(total, dtype=np.int32)), values)
    rows = np.repeat(np.arange(len(pieces)), counts)
    for name in dict.fromkeys(name for piece in pieces for name in piece.tail.headers):
        column = pa.array([piece.tail.headers.get(name) for piece in pieces], pa.string())
        headers[name] = column.dictionary_encode().take(pa.array(rows))
    return Batch.of_columns(bodies, headers)
