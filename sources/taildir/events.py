"""From the bytes of files to a batch, in columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from plugins import Batch
from sources import columns
from sources.taildir.multiline import Multiline
from sources.taildir.tail import Mark, Tail

OFFSET_HEADER = "byteoffset"
_NEWLINE = 0x0A


@dataclass(frozen=True, slots=True)
class Events:
    """Consecutive events of one file: lines, or several lines each."""

    tail: Tail
    bodies: bytes
    """One behind the other."""
    ends: npt.NDArray[np.int64]
    """Where in `bodies` each ends."""
    position: int
    """Offset in the file of the first."""
    newlines: npt.NDArray[np.int64]
    """Where behind that the last line of each ends."""
    size: int
    """Bytes of the file that they are made of."""
    mark: Mark
    """Where the file stands once they are stored."""

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
    ) -> Events | None:
        """The first `most` events of what was read from the file's position; None where none is complete.

        `data` is whole lines, or one unfinished line that shall not wait for its newline. `complete` says that
        its last event will not go on either, `lost` that the file no longer has it and is read from its start then.
        """
        whole = data.endswith(b"\n")
        text = data if whole else data + b"\n"
        newlines = _newlines(text)
        if multiline is None and len(newlines) > most:
            newlines = newlines[:most]
            data = text = text[: int(newlines[-1]) + 1]
        ends = newlines
        # A carriage return is part of the line's end only where there is such an end.
        if whole and not keep_cr and b"\r" in text:
            text = text.replace(b"\r\n", b"\n")
            ends = _newlines(text)
        if multiline is None:
            bodies = text.replace(b"\n", b"")
        else:
            last = np.flatnonzero(multiline.last_lines(text, ends, final=complete))[:most]
            if not len(last):
                return None
            newlines, ends = newlines[last], ends[last]
            kept = np.frombuffer(text, np.uint8, int(ends[-1]) + 1)
            bodies = np.delete(kept, ends).tobytes()
        size = min(int(newlines[-1]) + 1, len(data))
        # Taking all those newlines out moves each end back by the number of them before it.
        ends = ends - np.arange(len(ends))
        mark = Mark() if lost else tail.mark_behind(data[:size])
        return cls(tail, bodies, ends, tail.position, newlines, size, mark)

    def offsets(self) -> npt.NDArray[np.int64]:
        """Where in the file each begins."""
        starts = np.full(len(self.newlines), self.position)
        starts[1:] += self.newlines[:-1] + 1
        return starts


def _newlines(text: bytes) -> npt.NDArray[np.int64]:
    found: npt.NDArray[np.int64] = (np.frombuffer(text, np.uint8) == _NEWLINE).nonzero()[0]
    return found


def batch_of(pieces: Sequence[Events], *, byte_offsets: bool) -> Batch:
    """One batch of the events of several files; each has its file's headers."""
    counts = [len(piece.ends) for piece in pieces]
    total = sum(counts)
    bases = np.cumsum([0, *(len(piece.bodies) for piece in pieces)])
    ends = np.concatenate([piece.ends + base for piece, base in zip(pieces, bases, strict=False)])
    bodies = columns.binary(b"".join(piece.bodies for piece in pieces), ends)

    headers: dict[str, object] = {}
    if byte_offsets:
        values = pa.array(np.concatenate([piece.offsets() for piece in pieces])).cast(pa.string())
        # All differ: encoding them as a dictionary needs no search.
        headers[OFFSET_HEADER] = pa.DictionaryArray.from_arrays(pa.array(np.arange(total, dtype=np.int32)), values)
    headers |= columns.headers(counts, [piece.tail.headers for piece in pieces])
    return Batch.of_columns(bodies, headers)
