"""Finds IPv4 addresses in a column of bodies by where the dots are.

RE2 looks at each byte in turn, and begins anew behind each match: it takes longer, most of all where there is no
address. What is found is the same; the few rows in which addresses would overlap are left to it.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from flafka.plugins.columns import Array
from flafka.plugins.shared.octets import Ints, bytes_of, places, rows_at

OCTET = "[0-2]?[0-9]{1,2}"
PATTERN = rf"{OCTET}\.{OCTET}\.{OCTET}\.{OCTET}"
"""What is found, as a regular expression."""
FEW_BYTES = 2048
"""So many bytes of bodies are looked at one by one in less time than by columns, whatever is in them."""
_COMPILED = re.compile(PATTERN.encode())


def find(column: Array) -> tuple[Ints, Ints, npt.NDArray[np.bool_]]:
    """Where in the column's bytes each address starts and ends, and the rows for the regular expression, of which no
    address is told. `column` is binary, without nulls."""
    data, bounds = bytes_of(column)
    dots = places(data, ord("."))
    gaps = np.diff(dots)
    near = (gaps > 1) & (gaps <= 4)
    first = np.flatnonzero(near[:-1] & near[1:])
    before, second, behind = dots[first], dots[first + 1], dots[first + 2]
    row = rows_at(bounds, before)
    start, stop = bounds[row], bounds[row + 1]

    def digit(places: Ints) -> npt.NDArray[np.uint8]:
        """The digit there, 10 or more where none is."""
        return data.take(places, mode="clip") - np.uint8(ord("0"))

    good = (before > start) & (behind + 1 < stop) & (digit(before - 1) < 10) & (digit(behind + 1) < 10)
    for left, right in ((before, second), (second, behind)):
        good &= (digit(left + 1) < 10) & (digit(left + (right - left) // 2) < 10) & (digit(right - 1) < 10)
        good &= (right - left < 4) | (digit(left + 1) < 3)
    two = (before - 2 >= start) & (digit(before - 2) < 10)
    starts = before - 1 - two - (two & (before - 3 >= start) & (digit(before - 3) < 3))
    two = (behind + 2 < stop) & (digit(behind + 2) < 10)
    ends = behind + 2 + two + (two & (behind + 3 < stop) & (digit(behind + 3) < 10) & (digit(behind + 1) < 3))

    starts, ends, row = starts[good], ends[good], row[good]
    unclear = np.zeros(len(column), np.bool_)
    if len(overlap := np.flatnonzero(starts[1:] < ends[:-1])):
        unclear[row[overlap]] = True
        clear = ~unclear[row]
        starts, ends = starts[clear], ends[clear]
    return starts, ends, unclear


def each(column: Array, instead: Callable[[bytes], bytes]) -> Array:
    """The column with every address replaced by what the function says: for a few bodies, one by one."""
    before = column.to_pylist()
    after = [_COMPILED.sub(lambda match: instead(match[0]), body) for body in before]
    return column if after == before else pa.array(after, pa.binary())


def replaced(column: Array, starts: Ints, ends: Ints, instead: list[bytes]) -> Array:
    """The column with these places, none of which reaches over rows, replaced by texts: one each, or one for all."""
    data, bounds = bytes_of(column)
    pieces = _pieces(data, bounds, starts, ends)
    written = pa.array(instead, pa.binary())
    if len(written) == 1:
        beside = written[0]
    else:
        beside = written.take(pa.array(np.minimum(np.arange(len(pieces)) // 2, len(written) - 1)))
    joined = pc.if_else(pa.array(np.arange(len(pieces)) % 2 == 1), beside, pieces)
    lengths = np.fromiter(map(len, instead), np.int64, len(instead))
    longer = np.concatenate(([0], np.cumsum(lengths - (ends - starts))))
    moved = bounds + longer[np.searchsorted(ends, bounds, "right")]
    offsets, values = pa.py_buffer(moved.astype(np.int32)), joined.buffers()[2]
    return pa.Array.from_buffers(pa.binary(), len(column), [None, offsets, values])


def _pieces(data: npt.NDArray[np.uint8], bounds: Ints, starts: Ints, ends: Ints) -> Array:
    """The bytes of all rows, divided at these places: every second piece is one of them."""
    offsets = np.empty(2 * len(starts) + 2, np.int32)
    offsets[0], offsets[1:-1:2], offsets[2:-1:2], offsets[-1] = bounds[0], starts, ends, bounds[-1]
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
