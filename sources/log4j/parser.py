"""Parser of JSON log events of log4j 2, logback and other encoders.

Encoders name equal fields differently. Fields in the table of `encoders.py` become the body or a header of one name.
Other fields, such as entries of the thread context (MDC), become headers of their own names.
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
from flafka.sources.log4j.encoders import LEVEL_NAMES, LEVELS_BY_SEVERITY, EncoderRow, encoder_rows
from flafka.sources.log4j.framing import TruncatedEvent

STATUS = "log4j.status"
"""Header of an event that is no JSON object: `Invalid`, or `Incomplete` if it was truncated."""
TIMESTAMP = "log4j.timestamp"
"""Header for an unreadable field `timestamp`."""
CONTEXT = "mdc."
"""Prefix of headers whose name is taken."""
_RESERVED_HEADERS = frozenset(("level", "logger", "thread", "timestamp", STATUS))
"""Header names that other fields cannot use."""
_MAX_PREFIXES = 1000
"""Maximum number of prefixes `mdc.` in the headers of one event.

Each repetition of a name gets one more prefix than the one before. Without a limit, many repetitions would take cubic
time.
"""
_PLACEHOLDER = re.compile(r"(\\{0,2})\{\}")


class _ObjectWithRepeats(dict[str, Any]):
    """JSON object with the first member of each name, and the members that repeat a name.

    Encoders that write the thread context among their own fields write their own fields first.
    """

    repeated: Sequence[tuple[str, Any]] = ()


def _make_object(members: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object with the first member of each name; repetitions are kept in an `_ObjectWithRepeats`."""
    fields = dict(members)
    if len(fields) == len(members):
        return fields
    first, repeated = _ObjectWithRepeats(), []
    for name, value in members:
        if name in first:
            repeated.append((name, value))
        else:
            first[name] = value
    first.repeated = repeated
    return first


class Number:
    """Number that keeps its digits as they were written: a fraction, or a value outside JSON, such as NaN."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def __str__(self) -> str:
        return self._text


def _integer(text: str) -> int | Number:
    return int(text) if len(text) < _LONG_INTEGER_DIGITS else Number(text)


_LONG_INTEGER_DIGITS = 20
"""Number of digits from which an integer may be too long for Python or msgspec to encode."""
_fast_decoder = msgspec.json.Decoder(float_hook=Number)
_exact_decoder = json.JSONDecoder(
    object_pairs_hook=_make_object, parse_float=Number, parse_int=_integer, parse_constant=Number
)
_encode = msgspec.json.Encoder(enc_hook=lambda number: msgspec.Raw(str(number).encode())).encode


def _decode(text: bytes) -> Any:
    """Return a JSON value. Raises ValueError if `text` is no JSON."""
    try:
        fields = _fast_decoder.decode(text)
        # The fast decoder drops repeated names. Fewer members in the encoded result reveal them.
        if text.count(b'":') + text.count(b'" :') <= _encode(fields).count(b'":'):
            return fields
    except (ValueError, OverflowError):
        pass  # an unpaired surrogate or NaN, which the exact decoder accepts
    return _exact_decoder.decode(text.decode())


class LogEventParser:
    """Parser of JSON log events.

    `fields` maps parts to field names, which count before the known ones. `zone` applies to times without a zone;
    None is the zone of this machine.
    """

    def __init__(self, fields: Mapping[str, str] | None = None, zone: tzinfo | None = None) -> None:
        self._encoders = encoder_rows(fields or {})
        self._encoders_by_marker = [
            ({*row["markers"], *(mark.partition(".")[0] for mark in row["markers"])}, row) for row in self._encoders
        ]
        self._level_fields = tuple((fields or {}).get("level", "").split())
        self._zone = zone

    def batch(self, objects: Sequence[bytes]) -> tuple[Batch, int]:
        """Return one event per text, in order, and the number of texts that are no JSON object.

        Such a text is the body of an event with the header `STATUS`: Incomplete if it was truncated, or else Invalid.
        """
        events, invalid = [], 0
        for text in objects:
            try:
                if isinstance(text, TruncatedEvent):
                    raise ValueError("cut")
                events.append(self.event(text))
            except (ValueError, RecursionError):
                invalid += 1
                events.append(
                    Event(bytes(text), {STATUS: "Incomplete" if isinstance(text, TruncatedEvent) else "Invalid"})
                )
        return Batch.of(events), invalid

    def event(self, text: bytes) -> Event:
        """Return the event of a JSON object: message and stack trace as its body, other fields as headers.

        Without both, the text is the body. Raises ValueError if `text` is no JSON object, RecursionError if it is
        nested too deep.
        """
        fields = _decode(text)
        if not isinstance(fields, dict):
            raise ValueError("no object")
        repeated = fields.repeated if isinstance(fields, _ObjectWithRepeats) else ()
        names = next(
            row
            for roots, row in self._encoders_by_marker
            if not roots
            or (not fields.keys().isdisjoint(roots) and any(_has(fields, mark) for mark in row["markers"]))
        )
        headers: dict[str, str] = {}
        if (level := self._level(fields, names["level"])) is not None:
            headers["level"] = LEVELS_BY_SEVERITY.get(level, level)
        for part in ("logger", "thread"):
            if (value := _take(fields, names[part], _scalar)) is not None:
                headers[part] = value
        if (
            millis := _take(fields, names["timestamp"], lambda value: times.epoch_millis(value, self._zone))
        ) is not None:
            headers["timestamp"] = str(millis)
        elif "timestamp" in names["timestamp"] and "timestamp" in fields:
            fields[TIMESTAMP] = fields.pop("timestamp")
        body = _body(fields, names)
        context = [entry for name in names["mdc"] for entry in _take(fields, (name,), _entries) or ()]
        for name in names["ignored"]:
            _take(fields, (name,), bool)
        prefix, prefixes = "".join(names["prefix"]), 0
        for name, value in (*fields.items(), *repeated, *context):
            if value is not None:
                header = _text(name.removeprefix(prefix))
                while header in headers or header in _RESERVED_HEADERS:
                    header, prefixes = CONTEXT + header, prefixes + 1
                    if prefixes > _MAX_PREFIXES:
                        raise ValueError("too many members repeat a name")
                headers[header] = _text(value)
        return Event(text if body is None else body.encode(errors="replace"), headers)

    def _level(self, fields: dict[str, Any], names: Iterable[str]) -> str | None:
        """Remove and return the level; None without one.

        A configured field comes first, then the encoder's fields, then the default encoder's. Among the fields of an
        encoder, one whose value is the name of a level comes first, as others may be thread context.
        """
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
    """Return True if a field exists. `a.b` is the field of that name, or else the field `b` of the object `a`."""
    if name in fields:
        return True
    outer, dot, inner = name.partition(".")
    return bool(dot) and isinstance(within := fields.get(outer), dict) and inner in within


def _take(fields: dict[str, Any], names: Iterable[str], read: Callable[[Any], Any]) -> Any:
    """Remove the first field of `names` for which `read` does not return None, and return that result.

    None without such a field. A dot in a name denotes a nested field; an object that becomes empty is removed, too.
    """
    for name in names:
        if (value := fields.get(name)) is not None:
            if (result := read(value)) is not None:
                del fields[name]
                return result
        elif "." in name:
            outer, _, inner = name.partition(".")
            if (
                isinstance(within := fields.get(outer), dict)
                and (result := _take(within, (inner,), read)) is not None
            ):
                if not within:
                    del fields[outer]
                return result
    return None


def _body(fields: dict[str, Any], names: EncoderRow) -> str | None:
    """Remove message, arguments and stack trace from `fields`; return message and trace, joined by a newline.

    None without either.
    """
    arguments = None
    if "formattedMessage" not in fields:
        arguments = _take(fields, names["arguments"], lambda value: value if isinstance(value, list) else None)
    message = _take(fields, names["message"], _text)
    if message is not None and arguments:
        message = _fill_placeholders(message, arguments)
    if arguments:  # more arguments than placeholders
        fields["arguments"] = arguments
    trace = _take(fields, names["stackTrace"], traces.format_trace)
    if combined := _take(fields, names["message_and_trace"], _text):
        trace = combined.removeprefix(message or "").strip("\n")
    if message and trace and message.rstrip().endswith(trace):  # the message contains the trace already
        message = message.rstrip()[: -len(trace)].rstrip()
    parts = [part for part in (message, trace) if part is not None]
    return "\n".join(filter(None, parts)) if parts else None


def _fill_placeholders(message: str, arguments: list[Any]) -> str:
    """Return the message with arguments in place of its `{}`, as in slf4j; remove used arguments from the list."""
    arguments.reverse()  # popping the first element of a list moves all others

    def substitute(match: re.Match[str]) -> str:
        if len(match[1]) == 1:
            return "{}"
        return match[1][1:] + _text(arguments.pop()) if arguments else match[0]

    filled = _PLACEHOLDER.sub(substitute, message)
    arguments.reverse()
    return filled


def _text(value: Any) -> str:
    """Return a text unchanged, any other value as JSON; unpaired surrogates become question marks."""
    if isinstance(value, str):
        # An unpaired surrogate, which UTF-8 cannot encode, becomes a question mark.
        return value if value.isascii() else value.encode(errors="replace").decode()
    if isinstance(value, Number):
        return str(value)
    try:
        return _encode(value).decode()
    except ValueError:
        return _encode(_replace_surrogates(value)).decode()


def _replace_surrogates(value: Any) -> Any:
    """Return a JSON value with question marks for unpaired surrogates."""
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    if isinstance(value, dict):
        return {_replace_surrogates(name): _replace_surrogates(inner) for name, inner in value.items()}
    return [_replace_surrogates(inner) for inner in value] if isinstance(value, list) else value


def _scalar(value: Any) -> str | None:
    """Return a value as text; None for an object or an array."""
    return None if isinstance(value, dict | list) else _text(value)


def _level_name(value: Any) -> str | None:
    """Return a value as text if it is the name of a level, in any case; else None."""
    text = _scalar(value)
    return text if text is not None and text.upper() in LEVEL_NAMES else None


def _entries(value: Any) -> list[tuple[str, Any]] | None:
    """Return the keys and values of an object, of a list of objects, or of a list of `key` and `value` pairs.

    None for any other value.
    """
    if isinstance(value, dict):
        return list(value.items())
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        return None
    entries = [[(pair["key"], pair["value"])] if pair.keys() == {"key", "value"} else pair.items() for pair in value]
    return [entry for group in entries for entry in group]
