"""Search and masking of payment card numbers.

`rows_with_candidates` selects rows of a column by the positions of digits, and only these go through RE2 and Python.
Many logs contain numbers of 13 to 19 digits, such as ids and times in nanoseconds, and hardly any is a card number.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from flafka.plugins.columns import Array
from flafka.plugins.wire.octets import Ints, bytes_and_bounds, rows_of_offsets

_SEPARATOR = r"\t +./_%\x{a0}\x{ad}\x{2000}-\x{2015}\x{202f}\x{205f}\x{2060}\x{2212}\x{3000}\x{feff}-"
PATTERN = (
    rf"[0-9{_SEPARATOR}]*(?:[0-9]{{13}}|[0-9]{{4}}[{_SEPARATOR}]+[0-9]{{3,8}}[{_SEPARATOR}]+[0-9]{{3}})"
    rf"[0-9{_SEPARATOR}]*"
)
"""Longest run of digits and separators that may contain a card number. `mask_cards` checks it."""
SMALL_COLUMN_BYTES = 2048
"""Size of a column up to which `_CANDIDATE` is searched first: it takes less time for few rows than arithmetic."""
_CANDIDATE = re.compile(rb"[0-9]{4}(?:[0-9]{9}|[\t +./_%\x80-\xff-]+[0-9]{3})")
"""Regular expression, on bytes, that matches somewhere in each text that `PATTERN` matches."""

_MIN_DIGITS, _MAX_DIGITS = 13, 19
_GROUPINGS = {
    *((digits,) for digits in range(_MIN_DIGITS, _MAX_DIGITS + 1)),
    *((4, 4, 4, last) for last in range(1, 5)),
    *((4, 4, 4, 4, last) for last in range(1, 4)),
    *((4, 4, 5), (4, 3, 3, 3), (4, 6, 4), (4, 6, 5), (6, 13)),
}
_FIRST_GROUPS = {grouping[0] for grouping in _GROUPINGS}
_DIGITS = re.compile("%20|([0-9]+)")
_DOUBLED = bytes.maketrans(b"0123456789", b"0246813579")

_ZERO = np.uint8(ord("0"))
_DOUBLED_DIGIT_SUMS = np.array([0, 2, 4, 6, 8, 1, 3, 5, 7, 9], np.int64)
_MAY_SEPARATE = np.zeros(256, np.bool_)
_MAY_SEPARATE[[*b"\t +./_%-", *range(0x80, 0x100)]] = True
"""Index: byte; True if a separator may begin or end with it."""


def mask_cards(text: str, substitute: Callable[[str], str]) -> str:
    """Return a text of digits and separators with its card numbers replaced.

    `substitute` gets the digits of a card number, without separators, and returns the replacement.
    """
    groups = [match for match in _DIGITS.finditer(text) if match[1]]
    lengths = tuple(len(group[1]) for group in groups)
    pieces, end = [], 0
    for first, group in enumerate(groups):
        if group.start() < end or lengths[first] not in _FIRST_GROUPS:
            continue
        for last in range(min(first + 5, len(groups)), first, -1):
            if lengths[first:last] in _GROUPINGS:
                number = "".join([part[1] for part in groups[first:last]])
                if _is_card(number):
                    pieces += [text[end : group.start()], substitute(number)]
                    end = groups[last - 1].end()
                    break
    return "".join(pieces) + text[end:]


def _is_card(number: str) -> bool:
    """Return True if the first digits belong to a card network and the Luhn check digit is right."""
    if not (number[0] in "3456789" or "22" <= number[:2] <= "27" or (number[0] == "1" and len(number) == 15)):
        return False
    digits = number.encode()
    return (sum(digits[-1::-2]) + sum(digits[-2::-2].translate(_DOUBLED)) - 48 * len(digits)) % 10 == 0


def rows_with_candidates(column: Array) -> npt.NDArray[np.bool_]:
    """Return a mask of the rows that may contain a card number. `column` is binary, without nulls.

    No row with a card number is missing, and few others are included.
    """
    if column.nbytes <= SMALL_COLUMN_BYTES and not any(map(_CANDIDATE.search, column.to_pylist())):
        return np.zeros(len(column), np.bool_)
    data, bounds = bytes_and_bounds(column)
    starts, ends = _digit_runs(data, bounds)
    # The digits of %20, an encoded blank, belong to no number.
    number_starts = starts + 2 * (
        (_bytes_at(data, starts - 1) == ord("%"))
        & (_bytes_at(data, starts) == ord("2"))
        & (_bytes_at(data, starts + 1) == ord("0"))
    )
    if (is_number := number_starts < ends).all():
        is_number = slice(None)
    starts, number_starts, ends = starts[is_number], number_starts[is_number], ends[is_number]
    lengths = ends - number_starts
    long = np.flatnonzero((lengths >= _MIN_DIGITS) & (lengths <= _MAX_DIGITS))
    candidates = [number_starts[long[_are_cards(data, number_starts[long], ends[long])]]]
    # Groups of 4, then 3, 4 or 6, then 3 to 5 digits; or groups of 6 and 13 digits.
    adjacent = _MAY_SEPARATE[_bytes_at(data, ends[:-1])] & _MAY_SEPARATE[_bytes_at(data, starts[1:] - 1)]
    second = lengths[1:]
    two_groups = adjacent & (lengths[:-1] == 4) & ((second == 3) | (second == 4) | (second == 6))
    third = lengths[2:]
    candidates.append(number_starts[:-2][two_groups[:-1] & adjacent[1:] & (third >= 3) & (third <= 5)])
    candidates.append(number_starts[:-1][adjacent & (lengths[:-1] == 6) & (second == 13)])
    rows = np.zeros(len(column), np.bool_)
    rows[rows_of_offsets(bounds, np.concatenate(candidates))] = True
    return rows


def _digit_runs(data: npt.NDArray[np.uint8], bounds: Ints) -> tuple[Ints, Ints]:
    """Return start and exclusive end of each run of digits. A run ends at the end of its row."""
    is_digit = np.zeros(len(data) + 2, np.bool_)
    is_digit[1:-1] = data - _ZERO < 10
    edges = np.flatnonzero(is_digit[1:] != is_digit[:-1])
    starts, ends = edges[::2], edges[1::2]
    inner = bounds[1:-1]
    if len(splits := np.unique(inner[is_digit[inner] & is_digit[inner + 1]])):
        starts, ends = np.sort(np.concatenate((starts, splits))), np.sort(np.concatenate((ends, splits)))
    return starts, ends


def _are_cards(data: npt.NDArray[np.uint8], starts: Ints, ends: Ints) -> npt.NDArray[np.bool_]:
    """Return a mask of the numbers that `_is_card` accepts; `starts` and `ends` bound their digits in `data`."""
    offsets = ends[:, None] - np.arange(1, _MAX_DIGITS + 1)
    digits = (_bytes_at(data, offsets) - _ZERO) * (offsets >= starts[:, None])
    total = digits[:, ::2].sum(axis=1, dtype=np.int64) + _DOUBLED_DIGIT_SUMS[digits[:, 1::2]].sum(axis=1)
    first, second = _bytes_at(data, starts) - _ZERO, _bytes_at(data, starts + 1) - _ZERO
    is_network = (first >= 3) | (first == 2) & (second >= 2) & (second <= 7) | (first == 1) & (ends - starts == 15)
    result: npt.NDArray[np.bool_] = is_network & (total % 10 == 0)
    return result


def _bytes_at(data: npt.NDArray[np.uint8], offsets: Ints) -> npt.NDArray[np.uint8]:
    """Return the bytes at these offsets; the first byte for a negative offset, the last for one after the end."""
    return data.take(offsets, mode="clip")
