"""Conversion of file content to events, of one or several lines each, in rows or columns."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from flafka.plugins import Batch, Event
from flafka.plugins.java.regex import Regex
from flafka.sources import columns
from flafka.sources.taildir.cursors import FileCheckpoint
from flafka.sources.taildir.tail import Tail

OFFSET_HEADER = "byteoffset"
_NEWLINE = 0x0A
_MAX_ROWS = 64
"""Number of events up to which rows are faster than columns."""
_SHORT_BYTES = 4096
"""Bytes of text below which `bytes.count` is faster than numpy."""


class Multiline:
    """Rule that joins lines by a pattern, as in Filebeat.

    Lines that match are continuation lines; with `negate`, lines that do not match. With `after`, a continuation line
    belongs to the line before it, else to the line after it. A longer event than `max_lines` lines or `max_bytes`
    bytes is split. A single line is never split here.
    """

    def __init__(self, pattern: Regex, *, negate: bool, after: bool, max_lines: int, max_bytes: int) -> None:
        self._pattern = pattern
        self._negate = negate
        self._after = after
        self._max_lines = max_lines
        self._max_bytes = max_bytes

    def last_lines(self, text: bytes, ends: npt.NDArray[np.int64], *, final: bool) -> npt.NDArray[np.bool_]:
        """Return a mask of the lines of `text` that end an event.

        `ends` are the indexes of the newlines. The text begins with an event. Its last event may continue beyond the
        text, unless `final`.
        """
        lines = columns.binary_array(text.replace(b"\n", b""), ends - np.arange(len(ends)))
        is_continuation = self._pattern.matches(lines).to_numpy(zero_copy_only=False) != self._negate
        last = np.append(~is_continuation[1:], False) if self._after else ~is_continuation
        last[-1] = last[-1] or final
        self._split_long(last, ends)
        return last

    def _split_long(self, last: npt.NDArray[np.bool_], ends: npt.NDArray[np.int64]) -> None:
        """Set further ends in the mask `last`, so that no event exceeds the limits on lines and bytes."""
        stops = np.flatnonzero(last)
        if not last[-1]:
            stops = np.append(stops, len(last) - 1)
        starts = np.append(0, stops[:-1] + 1)
        before = np.append(-1, ends[:-1])  # the newline before each line
        too_long = (stops - starts >= self._max_lines - 1) | (ends[stops] - before[starts] > self._max_bytes)
        for start, stop in zip(starts[too_long].tolist(), stops[too_long].tolist(), strict=True):
            first = start
            for line in range(start, stop + 1):
                # The size of an event includes all its newlines.
                if line > first and ends[line] - before[first] > self._max_bytes:
                    last[line - 1] = True
                    first = line
                if line - first + 1 == self._max_lines:
                    last[line] = True
                    first = line + 1


class Events(msgspec.Struct, frozen=True, gc=False):
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
    checkpoint: FileCheckpoint
    """Checkpoint to commit once the events are stored."""

    @classmethod
    def of(
        cls,
        tail: Tail,
        data: bytes,
        max_events: int,
        *,
        keep_cr: bool,
        multiline: Multiline | None = None,
        is_complete: bool = True,
        is_lost: bool = False,
        byte_offsets: bool = False,
    ) -> Events | None:
        """Return the first `max_events` events of `data`, or None where no event is complete.

        `data` was just read from the tail's offset: whole lines, or one unfinished line that counts as a line.
        `is_complete`: no later line can continue the last event. `is_lost`: the file no longer has `data`, and is
        read from its start afterwards.
        """
        ends_line = data.endswith(b"\n")
        text = data if ends_line else data + b"\n"
        count, ends = _count_lines(text), None
        if multiline is None and count > max_events:
            data = text = text[: int(_newlines(text)[max_events - 1]) + 1]
            count = max_events
        newlines = _newlines(text) if multiline is not None or byte_offsets else None
        # In an unfinished line a last CR may be content: only CR LF ends a line.
        if ends_line and not keep_cr and b"\r" in text:
            text = text.replace(b"\r\n", b"\n")
        size = len(data)
        if multiline is not None:
            assert newlines is not None
            ends = _newlines(text)
            last = np.flatnonzero(multiline.last_lines(text, ends, final=is_complete))[:max_events]
            count = len(last)
            if not count:
                return None
            newlines, ends = newlines[last], ends[last]
            text = text[: int(ends[-1]) + 1]
            size = min(int(newlines[-1]) + 1, size)
        offsets = None
        if byte_offsets:
            assert newlines is not None
            offsets = np.full(count, tail.offset)
            offsets[1:] += newlines[:-1] + 1
        checkpoint = FileCheckpoint() if is_lost else tail.checkpoint_after(data[:size])
        return cls(tail, text, count, ends, offsets, size, checkpoint)


def _count_lines(text: bytes) -> int:
    """Return the number of newlines in `text`."""
    if len(text) < _SHORT_BYTES:
        return text.count(b"\n")
    return int(np.count_nonzero(np.frombuffer(text, np.uint8) == _NEWLINE))


def _newlines(text: bytes) -> npt.NDArray[np.int64]:
    """Return the indexes of the newlines in `text`, ascending."""
    indexes: npt.NDArray[np.int64] = (np.frombuffer(text, np.uint8) == _NEWLINE).nonzero()[0]
    return indexes


def batch_of(pieces: Sequence[Events]) -> Batch:
    """Return one batch with the events of several files, in the order of `pieces`, with the headers of each file."""
    if sum(piece.number for piece in pieces) <= _MAX_ROWS and all(
        piece.ends is None and piece.offsets is None for piece in pieces
    ):
        return Batch.of(
            [Event(line, piece.tail.headers) for piece in pieces for line in piece.text[:-1].split(b"\n")]
        )
    text = b"".join([piece.text for piece in pieces])
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
    headers |= columns.header_columns([piece.number for piece in pieces], [piece.tail.headers for piece in pieces])
    return Batch.of_columns(columns.binary_array(bodies, ends), headers)
