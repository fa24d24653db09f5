"""Error texts for values with units, such as `5m`, of options that take a plain number."""

from __future__ import annotations

import re
from fractions import Fraction

_QUANTITY = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]+)")
_SECONDS = {
    **dict.fromkeys(("ms", "msec", "millis", "millisecond", "milliseconds"), Fraction(1, 1000)),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), Fraction(1)),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), Fraction(60)),
    **dict.fromkeys(("h", "hr", "hour", "hours"), Fraction(3600)),
    **dict.fromkeys(("d", "day", "days"), Fraction(86400)),
}
_TIMES = {"ms": Fraction(1, 1000), "s": Fraction(1), "h": Fraction(3600)}
"""Seconds by the unit of an option."""
_NAMES = {"ms": "milliseconds", "s": "seconds", "h": "hours"}
_BYTES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_COUNTS = {"k": 1000, "m": 1_000_000, "g": 1_000_000_000}


def not_in_unit(text: str, unit: str) -> str:
    """Return the end of an error about a value that is no number.

    For a quantity, such as `5m`, it names the unit and the number to write. The number is omitted if it is not whole,
    or if the quantity is of another dimension. Multiples of bytes are powers of 1024.
    """
    match = _QUANTITY.fullmatch(text.strip())
    if match is None or not (_size(suffix := match[2].lower()) in _BYTES or suffix in _SECONDS):
        return f", not {text!r}"
    named = f" of {_NAMES.get(unit, unit)}" if unit else ""
    number = _in_unit(Fraction(match[1]), suffix, unit)
    return f"{named}, not {text!r}" + (f": write {number}" if number else "")


def _size(suffix: str) -> str:
    """Return a unit in lower case without the ending for bytes: `k` for `kib`, empty for `bytes`."""
    return re.sub(r"(ib|b|bytes?)$", "", suffix)


def _in_unit(amount: Fraction, suffix: str, unit: str) -> str:
    """Return a quantity as a whole number of an option's unit; empty if there is none."""
    if unit in _TIMES:
        factor = _SECONDS.get(suffix, Fraction(0)) / _TIMES[unit]
    elif unit == "bytes":
        factor = Fraction(_BYTES.get(_size(suffix), 0))
    else:
        factor = Fraction(_COUNTS.get(suffix, 0))
    number = amount * factor
    return str(number) if number and number.denominator == 1 else ""
