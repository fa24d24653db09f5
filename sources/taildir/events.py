"""Conversion of file content to a batch in columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from flafka.plugins import Batch
from flafka.sources import columns
from flafka.sources.taildir.cursors import Mark
from flafka.sources.taildir.multiline import Multiline
from flafka.sources.taildir.tail import Tail

OFFSET_HEADER = "byteoffset"
_NEWLINE = 0x0A
_SHORT = 4096
"""Bytes of text below which `bytes.count` is faster than numpy."""


class Events(NamedTuple):
    """Consecutive events of one file: lines, or several lines each."""

    tail: Tail
    text: bytes
    """Bodies of all events, each followed by a newline."""
    number: int
    """Number of events."""
    ends: npt.NDArray[np.int64] | None
    """Indexes in `text` of the newlines that end events; None where every newline in `text` does."""
    offsets: npt.NDArray[np.int64] | None
    """File offsets at which the events begin; None where `byteOffsetHeader` is false."""
    size: int
    """Number of bytes of the file that the events cover."""
    mark: Mark
    """Mark to commit once the events are stored."""

    @classmethod
    def of(
        cls,
        tail: Tail,
        data: bytes,
        most: int,
        *,
        keep_cr: bool,
        multiline: Multiline | None = None,
        complete: bool = True,
        lost: bool = False,
        byte_offsets: bool = False,
    ) -> Events | None:
        """Return the first `most` events of `data`, or None where no event is complete.

        `data` was just read from the tail's offset: whole lines, or one unfinished line that is not to wait for its
        newline. `complete` says that no later line can continue the last event. `lost` says that the file no longer
        has `data`; the file is read from its start afterwards.
        """
        whole = data.endswith(b"\n")
        text = data if whole else data + b"\n"
        count, ends = _lines(text), None
        if multiline is None and count > most:
            data = text = text[: int(_newlines(text)[most - 1]) + 1]
            count = most
        newlines = _newlines(text) if multiline is not None or byte_offsets else None
        # In an unfinished line a last CR may be content: only CR LF ends a line.
        if whole and not keep_cr and b"\r" in text:
            text = text.replace(b"\r\n", b"\n")
        size = len(data)
        if multiline is not None:
            assert newlines is not None
            ends = _newlines(text)
            last = np.flatnonzero(multiline.last_lines(text, ends, final=complete))[:most]
            count = len(last)
            if not count:
                return None
            newlines, ends = newlines[last], ends[last]
            text = text[: int(ends[-1]) + 1]
            size = min(int(newlines[-1]) + 1, size)
        offsets = None
        if byte_offsets:
            assert newlines is not None
            offsets = np.full(count, tail.position)
            offsets[1:] += newlines[:-1] + 1
        mark = Mark() if lost else tail.mark_behind(data[:size])
        return cls(tail, text, count, ends, offsets, size, mark)


def _lines(text: bytes) -> int:
    """Number of newlines in `text`."""
    if len(text) < _SHORT:
        return text.count(b"\n")
    return int(np.count_nonzero(np.frombuffer(text, np.uint8) == _NEWLINE))


def _newlines(text: bytes) -> npt.NDArray[np.int64]:
    found: npt.NDArray[np.int64] = (np.frombuffer(text, np.uint8) == _NEWLINE).nonzero()[0]
    return found


def batch_of(pieces: Sequence[Events]) -> Batch:
    """Return one batch with the events of several files, each with the headers of its file."""
    text = b"".join(piece.text for piece in pieces)
    inner = [piece.ends for piece in pieces if piece.ends is not None]
    if inner:
        starts = np.cumsum([0, *(len(piece.text) for piece in pieces)])
        ends = np.concatenate([ends + start for ends, start in zip(inner, starts, strict=False)])
        bodies = np.delete(np.frombuffer(text, np.uint8), ends).tobytes()
    else:
        ends = _newlines(text)
        bodies = text.replace(b"\n", b"")
    # Removing the newlines moves each end back by the number of newlines before it.
    ends = ends - np.arange(len(ends))

    headers: dict[str, object] = {}
    offsets = [piece.offsets for piece in pieces if piece.offsets is not None]
    if offsets:
        values = pa.array(np.concatenate(offsets)).cast(pa.string())
        # All offsets differ, so dictionary encoding needs no search for duplicates.
        headers[OFFSET_HEADER] = pa.DictionaryArray.from_arrays(
            pa.array(np.arange(len(ends), dtype=np.int32)), values
        )
    headers |= columns.headers([piece.number for piece in pieces], [piece.tail.headers for piece in pieces])
    return Batch.of_columns(columns.binary(bodies, ends), headers)
