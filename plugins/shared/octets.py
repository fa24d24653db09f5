"""Many bytes: where single ones stand in them, and slices of them as a column."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Ints = npt.NDArray[np.int64]

_HEAD = 8192
"""So many bytes are looked at first."""
_FEW = 6
"""A byte that comes up to so many times among them is rare. To find one by itself costs what numpy takes for 500."""


def places(data: npt.NDArray[np.uint8], byte: int) -> Ints:
    """Where this byte stands in `data`, in order; fastest where its first bytes are like the others."""
    if len(data) < 4 * _HEAD or np.count_nonzero(data[:_HEAD] == byte) > _FEW:
        return np.flatnonzero(data == byte)
    # numpy looks at each byte three times, C's search for the next one once; bytes have that, arrays have not.
    text, wanted, found = data.tobytes(), bytes((byte,)), []
    at = text.find(wanted)
    while at >= 0:
        found.append(at)
        at = text.find(wanted, at + 1)
    return np.array(found, np.int64)


def bytes_of(column: Any) -> tuple[npt.NDArray[np.uint8], Ints]:
    """Return all bytes of a binary column, and the start of each row in them, then the end of the last row."""
    _, offsets, values = column.buffers()
    bounds = np.frombuffer(offsets, np.int32, len(column) + 1, 4 * column.offset).astype(np.int64)
    return np.frombuffer(values or b"", np.uint8)[bounds[0] : bounds[-1]], bounds - bounds[0]


def rows_at(bounds: Ints, places: Ints) -> Ints:
    """Return the row of each of these places; `bounds` is of `bytes_of`."""
    rows: Ints = np.searchsorted(bounds, places, "right") - 1
    return rows


def slices(data: Any, starts: Ints, ends: Ints) -> Any:
    """A binary array of these slices of a buffer, which come in order and do not overlap; one copy."""
    count = len(starts)
    bounds = np.zeros(2 * count + 2, np.int32)
    bounds[1:-1:2], bounds[2:-1:2], bounds[-1] = starts, ends, ends[-1] if count else 0
    pieces = pa.Array.from_buffers(pa.binary(), 2 * count + 1, [None, pa.py_buffer(bounds), pa.py_buffer(data)])
    # Arrow makes room for as many pieces of the usual size as are taken, and copies all again where that was too
    # little: so the last piece, which is empty, is taken once for each piece that is left out.
    rows = np.full(2 * count + 1, 2 * count, np.int32)
    rows[:count] = np.arange(1, 2 * count, 2)
    return pieces.take(pa.array(rows))[:count]
