"""Search for single bytes in a buffer, and slices of a buffer as a binary column."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Ints = npt.NDArray[np.int64]

_SAMPLE_BYTES = 8192
"""Size of the head that decides how to search."""
_MAX_RARE_COUNT = 6
"""Most occurrences of a rare byte in the sample. `bytes.find` of one costs as much as numpy's scan of 500 bytes."""


def find_byte(data: npt.NDArray[np.uint8], byte: int) -> Ints:
    """Return the offsets of a byte in `data`, ascending. Fastest if the head of `data` is typical of it."""
    if not is_rare(data, byte):
        return np.flatnonzero(data == byte)
    # numpy reads each byte three times, `bytes.find` once.
    text, wanted, offsets = data.tobytes(), bytes((byte,)), []
    offset = text.find(wanted)
    while offset >= 0:
        offsets.append(offset)
        offset = text.find(wanted, offset + 1)
    return np.array(offsets, np.int64)


def is_rare(data: npt.NDArray[np.uint8], byte: int) -> bool:
    """Return True if the head of a large buffer has a byte so seldom that `bytes.find` is faster than a scan."""
    if len(data) < 4 * _SAMPLE_BYTES:
        return False
    return int(np.count_nonzero(data[:_SAMPLE_BYTES] == byte)) <= _MAX_RARE_COUNT


def bytes_and_bounds(column: Any) -> tuple[npt.NDArray[np.uint8], Ints]:
    """Return the bytes of a binary column, and an array of bounds with one entry more than rows.

    Row n has the bytes from bound n up to bound n + 1, exclusive.
    """
    _, offsets, values = column.buffers()
    bounds = np.frombuffer(offsets, np.int32, len(column) + 1, 4 * column.offset).astype(np.int64)
    return np.frombuffer(values or b"", np.uint8)[bounds[0] : bounds[-1]], bounds - bounds[0]


def rows_of_offsets(bounds: Ints, offsets: Ints) -> Ints:
    """Return the row of each offset into the bytes; `bounds` is that of `bytes_and_bounds`."""
    rows: Ints = np.searchsorted(bounds, offsets, "right") - 1
    return rows


def take_slices(data: Any, starts: Ints, ends: Ints) -> Any:
    """Return slices of a buffer as a binary array, with one copy. The slices must be in order and not overlap."""
    count = len(starts)
    bounds = np.zeros(2 * count + 2, np.int32)
    bounds[1:-1:2], bounds[2:-1:2], bounds[-1] = starts, ends, ends[-1] if count else 0
    pieces = pa.Array.from_buffers(pa.binary(), 2 * count + 1, [None, pa.py_buffer(bounds), pa.py_buffer(data)])
    # Arrow allocates for the average size of a piece, and copies all again if that is too little. Taking the empty
    # last piece once for each omitted piece keeps the average right.
    rows = np.full(2 * count + 1, 2 * count, np.int32)
    rows[:count] = np.arange(1, 2 * count, 2)
    return pieces.take(pa.array(rows))[:count]
