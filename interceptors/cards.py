"""Finds and hides payment card numbers.

RE2 and Python look only at bodies that may hold a card, which `may_hold` tells of a whole column by where digits are:
numbers of 13 to 19 digits are in many logs, as times in nanoseconds or ids, and nearly none of them is a card's.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from flafka.plugins.columns import Array
from flafka.plugins.shared.octets import Ints, bytes_of, rows_at

_SEPARATOR = r"\t +./_%\x{a0}\x{ad}\x{2000}-\x{2015}\x{202f}\x{205f}\x{2060}\x{2212}\x{3000}\x{feff}-"
PATTERN = (
    rf"[0-9{_SEPARATOR}]*(?:[0-9]{{13}}|[0-9]{{4}}[{_SEPARATOR}]+[0-9]{{3,8}}[{_SEPARATOR}]+[0-9]{{3}})"
    rf"[0-9{_SEPARATOR}]*"
)
"""Digits and separators as far as they go, with something among them that may be a card: `masked` looks closer."""

_FEWEST, _MOST = 13, 19
"""Digits of a card."""
_GROUPINGS = {
    *((digits,) for digits in range(_FEWEST, _MOST + 1)),
    *((4, 4, 4, last) for last in range(1, 5)),
    *((4, 4, 4, 4, last) for last in range(1, 4)),
    *((4, 4, 5), (4, 3, 3, 3), (4, 6, 4), (4, 6, 5), (6, 13)),
}
_FIRST_GROUPS = {grouping[0] for grouping in _GROUPINGS}
_DIGITS = re.compile("%20|([0-9]+)")
_DOUBLED = bytes.maketrans(b"0123456789", b"0246813579")

_ZERO = np.uint8(ord("0"))
_TWICE = np.array([0, 2, 4, 6, 8, 1, 3, 5, 7, 9], np.int64)
_MAY_SEPARATE = np.zeros(256, np.bool_)
_MAY_SEPARATE[[*b"\t +./_%-", *range(0x80, 0x100)]] = True
"""Bytes that a separator may begin or end with."""


def masked(text: str, substitute: Callable[[str], str]) -> str:
    """The text, which consists of digits and separators, with its card numbers substituted."""
    groups = [match for match in _DIGITS.finditer(text) if match[1]]
    lengths = tuple(len(group[1]) for group in groups)
    out, end = [], 0
    for first, group in enumerate(groups):
        if group.start() < end or lengths[first] not in _FIRST_GROUPS:
            continue
        for last in range(min(first + 5, len(groups)), first, -1):
            if lengths[first:last] in _GROUPINGS:
                number = "".join([part[1] for part in groups[first:last]])
                if _is_card(number):
                    out += [text[end : group.start()], substitute(number)]
                    end = groups[last - 1].end()
                    break
    return "".join(out) + text[end:]


def _is_card(number: str) -> bool:
    """Whether a network may have issued it: by its first digits, and the check digit."""
    if not (number[0] in "3456789" or "22" <= number[:2] <= "27" or (number[0] == "1" and len(number) == 15)):
        return False
    digits = number.encode()
    return (sum(digits[-1::-2]) + sum(digits[-2::-2].translate(_DOUBLED)) - 48 * len(digits)) % 10 == 0


def may_hold(column: Array) -> npt.NDArray[np.bool_]:
    """The rows in which `masked` may find a card, and few others. `column` is binary, without nulls."""
    data, bounds = bytes_of(column)
    starts, ends = _numbers(data, bounds)
    # Of %20, which is a blank, the digits are no part of a number.
    begins = starts + 2 * (
        (_at(data, starts - 1) == ord("%")) & (_at(data, starts) == ord("2")) & (_at(data, starts + 1) == ord("0"))
    )
    if (kept := begins < ends).all():
        kept = slice(None)
    starts, begins, ends = starts[kept], begins[kept], ends[kept]
    lengths = ends - begins
    long = np.flatnonzero((lengths >= _FEWEST) & (lengths <= _MOST))
    found = [begins[long[_are_cards(data, begins[long], ends[long])]]]
    # In groups: of 4, then 3, 4 or 6, then 3 to 5 digits, or of 6 and 13.
    near = _MAY_SEPARATE[_at(data, ends[:-1])] & _MAY_SEPARATE[_at(data, starts[1:] - 1)]
    second = lengths[1:]
    two = near & (lengths[:-1] == 4) & ((second == 3) | (second == 4) | (second == 6))
    third = lengths[2:]
    found.append(begins[:-2][two[:-1] & near[1:] & (third >= 3) & (third <= 5)])
    found.append(begins[:-1][near & (lengths[:-1] == 6) & (second == 13)])
    rows = np.zeros(len(column), np.bool_)
    rows[rows_at(bounds, np.concatenate(found))] = True
    return rows


def _numbers(data: npt.NDArray[np.uint8], bounds: Ints) -> tuple[Ints, Ints]:
    """Where each run of digits starts and ends; none reaches over rows."""
    digit = np.zeros(len(data) + 2, np.bool_)
    digit[1:-1] = data - _ZERO < 10
    edges = np.flatnonzero(digit[1:] != digit[:-1])
    starts, ends = edges[::2], edges[1::2]
    inner = bounds[1:-1]
    if len(within := np.unique(inner[digit[inner] & digit[inner + 1]])):
        starts, ends = np.sort(np.concatenate((starts, within))), np.sort(np.concatenate((ends, within)))
    return starts, ends


def _are_cards(data: npt.NDArray[np.uint8], starts: Ints, ends: Ints) -> npt.NDArray[np.bool_]:
    """`_is_card` of each of these numbers."""
    places = ends[:, None] - np.arange(1, _MOST + 1)
    digits = (_at(data, places) - _ZERO) * (places >= starts[:, None])
    total = digits[:, ::2].sum(axis=1, dtype=np.int64) + _TWICE[digits[:, 1::2]].sum(axis=1)
    first, two = _at(data, starts) - _ZERO, _at(data, starts + 1) - _ZERO
    begins = (first >= 3) | (first == 2) & (two >= 2) & (two <= 7) | (first == 1) & (ends - starts == 15)
    good: npt.NDArray[np.bool_] = begins & (total % 10 == 0)
    return good


def _at(data: npt.NDArray[np.uint8], places: Ints) -> npt.NDArray[np.uint8]:
    """The bytes there; beyond the end, the last one."""
    return data.take(places, mode="clip")
