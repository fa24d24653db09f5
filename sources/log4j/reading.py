"""Events of what log4j 2, logback and others write as JSON.

Encoders name the same things differently. What `encoders.py` knows becomes the body or a header of one name. The
rest becomes headers of their own, such as what the application put into its thread context (MDC).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import tzinfo
from typing import Any

import msgspec

from flafka.plugins import Batch, Event
from flafka.sources.log4j import times, traces
from flafka.sources.log4j.encoders import LEVEL_NAMES, LEVELS, Names, extended
from flafka.sources.log4j.framing import Cut

STATUS = "log4j.status"
"""Header of what is no event in JSON: `Invalid`, or `Incomplete` where it was cut."""
TIMESTAMP = "log4j.timestamp"
"""Header of a field `timestamp` that is not understood."""
CONTEXT = "mdc."
"""Prefix of headers that would have the name of another one."""
_OURS = frozenset(("level", "logger", "thread", "timestamp", STATUS))
"""Names that no other field's header has."""
_MOST_PREFIXES = 1000
"""Prefixes `mdc.` in the headers of one event. Each repetition of a name gets one more than that before. Without
a limit, many of them would take time in the third power of their number."""
_PLACE = re.compile(r"(\\{0,2})\{\}")


class _Object(dict[str, Any]):
    """A JSON object with the first of each member; those that repeat a name are beside it.

    Encoders that put the thread context among their own fields write these first.
    """

    again: Sequence[tuple[str, Any]] = ()


def _object(members: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(members)
    if len(fields) == len(members):
        return fields
    first, again = _Object(), []
    for name, value in members:
        if name in first:
            again.append((name, value))
        else:
            first[name] = value
    first.again = again
    return first


class Number:
    """A number whose digits are kept as they were written: a fraction, or one that no JSON has, such as NaN."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def __str__(self) -> str:
        return self._text


def _integer(text: str) -> int | Number:
    return int(text) if len(text) < _LONG_INTEGER else Number(text)


_LONG_INTEGER = 20
"""Digits from which on an integer may be too long for Python or msgspec to write it again."""
_fast = msgspec.json.Decoder(float_hook=Number)
_exact = json.JSONDecoder(object_pairs_hook=_object, parse_float=Number, parse_int=_integer, parse_constant=Number)
_encode = msgspec.json.Encoder(enc_hook=lambda number: msgspec.Raw(str(number).encode())).encode


def _decoded(text: bytes) -> Any:
    """ValueError for what is no JSON."""
    try:
        fields = _fast.decode(text)
        # A name that is there twice is lost. That is rare, and looking for it takes long.
        if text.count(b'":') + text.count(b'" :') <= _encode(fields).count(b'":'):
            return fields
    except (ValueError, OverflowError):
        pass  # half a character, perhaps, or a number that is not a number
    return _exact.decode(text.decode())


class LogEventParser:
    """Makes events of JSON.

    `fields`: names of fields by part, looked for before those that are known. `zone`: of times that name none, else
    this machine's.
    """

    def __init__(self, fields: Mapping[str, str] | None = None, zone: tzinfo | None = None) -> None:
        self._encoders = extended(fields or {})
        self._marked = [
            ({*row["marks"], *(mark.partition(".")[0] for mark in row["marks"])}, row) for row in self._encoders
        ]
        self._level_fields = tuple((fields or {}).get("level", "").split())
        self._zone = zone

    def batch(self, objects: Sequence[bytes]) -> tuple[Batch, int]:
        """Return their events, and the number of texts that are no JSON object."""
        events, invalid = [], 0
        for text in objects:
            try:
                if isinstance(text, Cut):
                    raise ValueError("cut")
                events.append(self.event(text))
            except (ValueError, RecursionError):
                invalid += 1
                events.append(Event(bytes(text), {STATUS: "Incomplete" if isinstance(text, Cut) else "Invalid"}))
        return Batch.of(events), invalid

    def event(self, text: bytes) -> Event:
        """One event. ValueError for what is no JSON object."""
        fields = _decoded(text)
        if not isinstance(fields, dict):
            raise ValueError("no object")
        again = fields.again if isinstance(fields, _Object) else ()
        names = next(
            row
            for roots, row in self._marked
            if not roots or (not fields.keys().isdisjoint(roots) and any(_has(fields, mark) for mark in row["marks"]))
        )
        headers: dict[str, str] = {}
        if (level := self._level(fields, names["level"])) is not None:
            headers["level"] = LEVELS.get(level, level)
        for part in ("logger", "thread"):
            if (value := _take(fields, names[part], _scalar)) is not None:
                headers[part] = value
        if (millis := _take(fields, names["timestamp"], lambda value: times.millis(value, self._zone))) is not None:
            headers["timestamp"] = str(millis)
        elif "timestamp" in names["timestamp"] and "timestamp" in fields:
            fields[TIMESTAMP] = fields.pop("timestamp")
        body = _body(fields, names)
        context = [entry for name in names["mdc"] for entry in _take(fields, (name,), _entries) or ()]
        for name in names["ignored"]:
            _take(fields, (name,), bool)  # whatever it is
        prefix, prefixes = "".join(names["prefix"]), 0
        for name, value in (*fields.items(), *again, *context):
            if value is not None:
                header = _text(name.removeprefix(prefix))
                while header in headers or header in _OURS:
                    header, prefixes = CONTEXT + header, prefixes + 1
                    if prefixes > _MOST_PREFIXES:
                        raise ValueError("too many members repeat a name")
                headers[header] = _text(value)
        return Event(text if body is None else body.encode(errors="replace"), headers)

    def _level(self, fields: dict[str, Any], names: Iterable[str]) -> str | None:
        """Return the level, of several candidates one that is a level: an entry of the thread context may have such a
        name, too."""
        for candidates, read in (
            (self._level_fields, _scalar),
            (names, _level_name),
            (names, _scalar),
            (self._encoders[-1]["level"], _level_name),
            (self._encoders[-1]["level"], _scalar),
        ):
            if (level := _take(fields, candidates, read)) is not None:
                return str(level)
        return None


def _has(fields: dict[str, Any], name: str) -> bool:
    """Return True for a field of that name, or one within an object where the name has a dot."""
    if name in fields:
        return True
    outer, dot, inner = name.partition(".")
    return bool(dot) and isinstance(within := fields.get(outer), dict) and inner in within


def _take(fields: dict[str, Any], names: Iterable[str], read: Callable[[Any], Any]) -> Any:
    """Remove the first of these fields that can be read, and return what was read of it."""
    for name in names:
        if (value := fields.get(name)) is not None:
            if (found := read(value)) is not None:
                del fields[name]
                return found
        elif "." in name:
            outer, _, inner = name.partition(".")
            if isinstance(within := fields.get(outer), dict) and (found := _take(within, (inner,), read)) is not None:
                if not within:
                    del fields[outer]
                return found
    return None


def _body(fields: dict[str, Any], names: Names) -> str | None:
    """Message and stack trace; None where there is neither."""
    arguments = None
    if "formattedMessage" not in fields:
        arguments = _take(fields, names["arguments"], lambda value: value if isinstance(value, list) else None)
    message = _take(fields, names["message"], _text)
    if message is not None and arguments:
        message = _filled(message, arguments)
    if arguments:  # there were more of them than places
        fields["arguments"] = arguments
    trace = _take(fields, names["stackTrace"], traces.text)
    if whole := _take(fields, names["whole"], _text):
        trace = whole.removeprefix(message or "").strip("\n")
    if message and trace and message.rstrip().endswith(trace):  # it is there already
        message = message.rstrip()[: -len(trace)].rstrip()
    parts = [part for part in (message, trace) if part is not None]
    return "\n".join(filter(None, parts)) if parts else None


def _filled(message: str, arguments: list[Any]) -> str:
    """The message with these in the places of their `{}`, as slf4j does it; they are taken from the list."""

    arguments.reverse()  # to take the first of many from a list moves all others

    def place(match: re.Match[str]) -> str:
        if len(match[1]) == 1:
            return "{}"
        return match[1][1:] + _text(arguments.pop()) if arguments else match[0]

    filled = _PLACE.sub(place, message)
    arguments.reverse()
    return filled


def _text(value: Any) -> str:
    if isinstance(value, str):
        # Half a character, which is no UTF-8, becomes a question mark.
        return value if value.isascii() else value.encode(errors="replace").decode()
    if isinstance(value, Number):
        return str(value)
    try:
        return _encode(value).decode()
    except ValueError:
        return _encode(_whole_characters(value)).decode()


def _whole_characters(value: Any) -> Any:
    """Return a JSON value with question marks for halves of characters."""
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    if isinstance(value, dict):
        return {_whole_characters(name): _whole_characters(inner) for name, inner in value.items()}
    return [_whole_characters(inner) for inner in value] if isinstance(value, list) else value


def _scalar(value: Any) -> str | None:
    return None if isinstance(value, dict | list) else _text(value)


def _level_name(value: Any) -> str | None:
    text = _scalar(value)
    return text if text is not None and text.upper() in LEVEL_NAMES else None


def _entries(value: Any) -> list[tuple[str, Any]] | None:
    """Keys and values of an object, of a list of objects, or of one of `key` and `value`."""
    if isinstance(value, dict):
        return list(value.items())
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        return None
    pairs = [[(one["key"], one["value"])] if one.keys() == {"key", "value"} else one.items() for one in value]
    return [entry for pair in pairs for entry in pair]
