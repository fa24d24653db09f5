"""Texts with the values of fields in them: `@{field}`."""

from __future__ import annotations

import itertools
import re
from typing import Any

from flafka.plugins.morphline.hocon import Scalar
from flafka.plugins.morphline.record import MorphlineRecord, text

_FIELD = re.compile(r"@\{([^}]*)\}")


class Expression:
    """A text in which `@{field}` stands for each value of a field in turn, and `@{}` for the whole record.

    ValueError for one that is not closed.
    """

    def __init__(self, written: str) -> None:
        pieces = _FIELD.split(written)
        if any("@{" in piece for piece in pieces[::2]):
            raise ValueError(f"has {written!r} without the closing }}")
        self._literals, self._fields = pieces[::2], pieces[1::2]
        self._alone = len(self._fields) == 1 and self._fields[0] != "" and self._literals == ["", ""]

    def values(self, record: MorphlineRecord) -> list[Any]:
        """All texts that come about; a field alone keeps its values as they are."""
        if self._alone:
            return list(record[self._fields[0]])
        each = [[text(value) for value in self._of(name, record)] for name in self._fields]
        return [
            self._literals[0] + "".join(map("".join, zip(values, self._literals[1:], strict=True)))
            for values in itertools.product(*each)
        ]

    def _of(self, name: str, record: MorphlineRecord) -> list[Any]:
        if not name:
            return [str(record)]
        return record[name]


class Values:
    """What stands behind a field: a list of values, or an expression."""

    def __init__(self, written: Any) -> None:
        self._given = [_value(one) for one in written] if isinstance(written, list) else None
        self._expression = Expression(text(_value(written))) if self._given is None else None

    def of(self, record: MorphlineRecord) -> list[Any]:
        """The values for this record."""
        if self._expression is not None:
            return self._expression.values(record)
        assert self._given is not None
        return list(self._given)


def _value(written: Any) -> Any:
    if not isinstance(written, Scalar):
        raise ValueError("has a value that is neither a text nor a list of texts")
    return written.value
