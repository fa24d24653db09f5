"""Record of a morphline: fields with any number of values each, and their text in Java."""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

BODY = "_attachment_body"
MIME_TYPE = "_attachment_mimetype"
CHARSET = "_attachment_charset"
NAME = "_attachment_name"
MESSAGE = "message"
_ESCAPED = re.compile(r'[\x00-\x1f"\\]')
_SHORT = {"\b": r"\b", "\t": r"\t", "\n": r"\n", "\f": r"\f", "\r": r"\r", '"': r"\"", "\\": r"\\"}


class MorphlineRuntimeError(Exception):
    """Error of a command for this record, with the reason as text."""


@dataclass(frozen=True)
class JsonNode:
    """A JSON object or array, unparsed into fields."""

    value: Any

    def __str__(self) -> str:
        try:
            return _json(self.value)
        except RecursionError:
            raise MorphlineRuntimeError("a value of JSON is nested too deeply") from None


class MorphlineRecord:
    """Fields with any number of values each. A field without values does not exist.

    Values are text, bytes, numbers, booleans and `JsonNode`.
    """

    __slots__ = ("_fields",)

    def __init__(self, fields: dict[str, list[Any]] | None = None) -> None:
        self._fields = fields or {}

    def copy(self) -> MorphlineRecord:
        """Return a copy with the same values."""
        return MorphlineRecord({name: list(values) for name, values in self._fields.items() if values})

    def __contains__(self, name: str) -> bool:
        return bool(self._fields.get(name))

    def __iter__(self) -> Iterator[str]:
        """Return an iterator over a copy of the field names."""
        return iter([name for name, values in self._fields.items() if values])

    def __getitem__(self, name: str) -> list[Any]:
        """Return the mutable list of values of a field."""
        return self._fields.setdefault(name, [])

    def __setitem__(self, name: str, values: Iterable[Any]) -> None:
        self._fields[name] = list(values)

    def __delitem__(self, name: str) -> None:
        self._fields.pop(name, None)

    def __str__(self) -> str:
        return f"{{{', '.join(f'{name}={to_java_list(self[name])}' for name in sorted(self))}}}"


def to_java_list(values: Iterable[Any]) -> str:
    """Return values as Java prints a list, such as `[a, b]`."""
    return f"[{', '.join(map(to_java_string, values))}]"


def to_java_string(value: Any) -> str:
    """Return a value as Java prints it; bytes as `[B@` and a part of them, where Java prints an address."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return _double(value)
    if isinstance(value, bytes):
        return f"[B@{base64.b16encode(value[:4]).decode().lower()}"
    return str(value)


def _double(value: float) -> str:
    """Return a float as Java's `Double.toString`."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        shortest = repr(value)
        return shortest if "e" not in shortest else f"{value:f}".rstrip("0")
    digits, _, exponent = f"{value!r}".partition("e")
    if not exponent:
        digits, _, exponent = f"{value:.{len(digits.strip('-0').replace('.', '').rstrip('0')) - 1}e}".partition("e")
    return f"{digits if '.' in digits else f'{digits}.0'}E{int(exponent)}"


def _json(value: Any) -> str:
    """Return a value of JSON as Jackson prints it."""
    if isinstance(value, dict):
        return f"{{{','.join(f'{_quoted(name)}:{_json(field)}' for name, field in value.items())}}}"
    if isinstance(value, list):
        return f"[{','.join(map(_json, value))}]"
    if isinstance(value, str):
        return _quoted(value)
    return "null" if value is None else to_java_string(value)


def _quoted(value: str) -> str:
    escaped = _ESCAPED.sub(lambda match: _SHORT.get(match[0]) or f"\\u{ord(match[0]):04X}", value)
    return f'"{escaped}"'
