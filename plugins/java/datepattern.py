"""Java's date patterns, such as `yyyy-MM-dd'T'HH:mm`: the syntax common to SimpleDateFormat and Joda-Time."""

from __future__ import annotations

import calendar
import re
from collections.abc import Sequence
from typing import NamedTuple

MONTHS = {name.lower(): n for names in (calendar.month_name, calendar.month_abbr) for n, name in enumerate(names)}
"""English names of months in lower case, full and short, to their number: January is 1."""
DAYS = {name.lower(): n for names in (calendar.day_name, calendar.day_abbr) for n, name in enumerate(names)}
"""English names of weekdays in lower case, full and short, to their number: Monday is 0."""
_TOKEN = re.compile(r"'((?:[^']|'')*)'|([A-Za-z])\2*|[^A-Za-z']+|'")


class Field(NamedTuple):
    """Field of a pattern, such as `yyyy`. SimpleDateFormat and Joda-Time have different fields."""

    letter: str
    width: int

    @property
    def is_numeric(self) -> bool:
        """True if the text of this field consists of digits."""
        return self.letter in "yYdDHhkKmsS" or (self.letter in "ML" and self.width < 3)


def tokenize(pattern: str) -> list[Field | str]:
    """Return the fields of a pattern and the literal text between them, in order.

    Raises ValueError for an open quote.
    """
    parts: list[Field | str] = []
    for token in _TOKEN.finditer(pattern):
        literal, letter = token.groups()
        if literal is not None:
            parts.append(literal.replace("''", "'") or "'")
        elif letter is not None:
            parts.append(Field(letter, len(token[0])))
        elif token[0] == "'":
            raise ValueError("a quote that is not closed")
        else:
            parts.append(token[0])
    return parts


def is_numeric_field(parts: Sequence[Field | str], number: int) -> bool:
    """Return True if part `number`, counted from 0, is a numeric field; False also after the last part.

    The field before it then has a fixed width.
    """
    part = parts[number] if number < len(parts) else ""
    return isinstance(part, Field) and part.is_numeric
