"""Texts with references to fields: `@{field}`."""

from __future__ import annotations

import itertools
import re
from typing import Any

from flafka.plugins.morphline.hocon import Scalar
from flafka.plugins.morphline.record import MorphlineRecord, to_java_string

_FIELD = re.compile(r"@\{([^}]*)\}")


class Expression:
    """A text with references: `@{field}` is each value of a field in turn, `@{}` the whole record.

    Raises ValueError for an unclosed reference.
    """

    def __init__(self, source: str) -> None:
        pieces = _FIELD.split(source)
        if any("@{" in piece for piece in pieces[::2]):
            raise ValueError(f"has {source!r} without the closing }}")
        self._literals, self._fields = pieces[::2], pieces[1::2]
        self._is_single_reference = len(self._fields) == 1 and self._fields[0] != "" and self._literals == ["", ""]

    def values(self, record: MorphlineRecord) -> list[Any]:
        """Return a text for each combination of the fields' values; none if a field has no values.

        A reference to one field alone returns the values of that field unchanged.
        """
        if self._is_single_reference:
            return list(record[self._fields[0]])
        field_texts = [[to_java_string(value) for value in self._values_of(name, record)] for name in self._fields]
        return [
            self._literals[0] + "".join(map("".join, zip(values, self._literals[1:], strict=True)))
            for values in itertools.product(*field_texts)
        ]

    def _values_of(self, name: str, record: MorphlineRecord) -> list[Any]:
        if not name:
            return [str(record)]
        return record[name]


class FieldValues:
    """Values for a field, from a list of constants or one expression.

    Raises ValueError for any other definition.
    """

    def __init__(self, definition: Any) -> None:
        self._constants = [_scalar_value(item) for item in definition] if isinstance(definition, list) else None
        self._expression = Expression(to_java_string(_scalar_value(definition))) if self._constants is None else None

    def of(self, record: MorphlineRecord) -> list[Any]:
        """Return the values for this record: a copy of the constants, or the result of the expression."""
        if self._expression is not None:
            return self._expression.values(record)
        assert self._constants is not None
        return list(self._constants)


def _scalar_value(definition: Any) -> Any:
    if not isinstance(definition, Scalar):
        raise ValueError("has a value that is neither a text nor a list of texts")
    return definition.value
