"""Search and replacement of IPv4 addresses in a column of bodies, by the positions of dots.

RE2 reads each byte and restarts after each match, which is slower, above all without an address. Both find the same
addresses. RE2 handles the few rows with overlapping candidates.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from flafka.plugins.columns import Array
from flafka.plugins.wire.octets import Ints, bytes_and_bounds, find_byte, rows_of_offsets

OCTET = "[0-2]?[0-9]{1,2}"
PATTERN = rf"{OCTET}\.{OCTET}\.{OCTET}\.{OCTET}"
"""Regular expression of the addresses."""
MAX_ONE_BY_ONE_BYTES = 2048
"""Size of a column up to which `replace_each` is faster than replacing by columns."""
_COMPILED = re.compile(PATTERN.encode())


def find_addresses(column: Array) -> tuple[Ints, Ints, npt.NDArray[np.bool_]]:
    """Return start and exclusive end of each address in the column's bytes, and a mask of ambiguous rows.

    An ambiguous row has overlapping candidates and is left to the regular expression: none of its addresses is
    returned. `column` is binary, without nulls.
    """
    data, bounds = bytes_and_bounds(column)
    dots = find_byte(data, ord("."))
    gaps = np.diff(dots)
    is_octet_gap = (gaps > 1) & (gaps <= 4)
    first = np.flatnonzero(is_octet_gap[:-1] & is_octet_gap[1:])
    before, second, third = dots[first], dots[first + 1], dots[first + 2]
    row = rows_of_offsets(bounds, before)
    start, stop = bounds[row], bounds[row + 1]

    def digits_at(offsets: Ints) -> npt.NDArray[np.uint8]:
        """Return the digits at these offsets; 10 or more for another byte."""
        return data.take(offsets, mode="clip") - np.uint8(ord("0"))

    is_valid = (before > start) & (third + 1 < stop) & (digits_at(before - 1) < 10) & (digits_at(third + 1) < 10)
    for left, right in ((before, second), (second, third)):
        is_valid &= (
            (digits_at(left + 1) < 10) & (digits_at(left + (right - left) // 2) < 10) & (digits_at(right - 1) < 10)
        )
        is_valid &= (right - left < 4) | (digits_at(left + 1) < 3)
    two = (before - 2 >= start) & (digits_at(before - 2) < 10)
    starts = before - 1 - two - (two & (before - 3 >= start) & (digits_at(before - 3) < 3))
    two = (third + 2 < stop) & (digits_at(third + 2) < 10)
    ends = third + 2 + two + (two & (third + 3 < stop) & (digits_at(third + 3) < 10) & (digits_at(third + 1) < 3))

    starts, ends, row = starts[is_valid], ends[is_valid], row[is_valid]
    is_ambiguous = np.zeros(len(column), np.bool_)
    if len(overlap := np.flatnonzero(starts[1:] < ends[:-1])):
        is_ambiguous[row[overlap]] = True
        is_unambiguous = ~is_ambiguous[row]
        starts, ends = starts[is_unambiguous], ends[is_unambiguous]
    return starts, ends, is_ambiguous


def replace_each(column: Array, substitute: Callable[[bytes], bytes]) -> Array:
    """Return the column with every address replaced by `substitute`, body by body; `column` itself without one."""
    before = column.to_pylist()
    after = [_COMPILED.sub(lambda match: substitute(match[0]), body) for body in before]
    return column if after == before else pa.array(after, pa.binary())


def replace_slices(column: Array, starts: Ints, ends: Ints, replacements: list[bytes]) -> Array:
    """Return the column with slices of its bytes replaced, each by its own text, or all by one.

    The slices from `starts` to `ends`, exclusive, are ascending and disjoint. No slice may span rows.
    """
    data, bounds = bytes_and_bounds(column)
    pieces = _split_at_slices(data, bounds, starts, ends)
    texts = pa.array(replacements, pa.binary())
    if len(texts) == 1:
        aligned = texts[0]
    else:
        aligned = texts.take(pa.array(np.minimum(np.arange(len(pieces)) // 2, len(texts) - 1)))
    joined = pc.if_else(pa.array(np.arange(len(pieces)) % 2 == 1), aligned, pieces)
    lengths = np.fromiter(map(len, replacements), np.int64, len(replacements))
    growth = np.concatenate(([0], np.cumsum(lengths - (ends - starts))))
    new_bounds = bounds + growth[np.searchsorted(ends, bounds, "right")]
    offsets, values = pa.py_buffer(new_bounds.astype(np.int32)), joined.buffers()[2]
    return pa.Array.from_buffers(pa.binary(), len(column), [None, offsets, values])


def _split_at_slices(data: npt.NDArray[np.uint8], bounds: Ints, starts: Ints, ends: Ints) -> Array:
    """Return the bytes of all rows in pieces: every second piece, from the second on, is a slice."""
    offsets = np.empty(2 * len(starts) + 2, np.int32)
    offsets[0], offsets[1:-1:2], offsets[2:-1:2], offsets[-1] = bounds[0], starts, ends, bounds[-1]
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
