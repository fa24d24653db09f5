"""Serializers of text and JSON lines."""

from __future__ import annotations

import base64
import functools
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from flafka.plugins import Batch
from flafka.sinks.serializers.base import (
    Serialized,
    Serializer,
    as_records,
    encode_values,
    join_columns,
    join_entries,
    join_present,
)

_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}


class Text(Serializer):
    """Serializer of bodies, with a newline behind each if configured."""

    def __init__(self, newline: bool) -> None:
        self._newline = newline

    def records(self, batch: Batch) -> Serialized:
        """Return the bodies, with a newline behind each if configured. Without newlines nothing is copied."""
        return as_records(join_columns(batch.bodies, b"\n") if self._newline else batch.bodies)


class HeaderAndText(Serializer):
    """Serializer of `{name=value, name=value} body`, with Java's text of a map."""

    def __init__(self, newline: bool) -> None:
        self._newline = b"\n" if newline else b""

    def records(self, batch: Batch) -> Serialized:
        """Return each event as `{name=value, name=value} body`, with its headers in the order of the batch."""
        if batch.is_wide:
            headers = join_entries(
                batch.header_maps(), lambda names: join_columns(names, b"="), lambda texts: texts, b", "
            )
            return as_records(join_columns(b"{", headers, b"} ", batch.bodies, self._newline))
        pairs = [
            encode_values(batch.header(name), functools.partial(join_columns, name.encode() + b"="))
            for name in batch.header_names
        ]
        headers = join_present(pairs, b", ", len(batch))
        return as_records(join_columns(b"{", headers, b"} ", batch.bodies, self._newline))


class Json(Serializer):
    """Serializer of events as lines of JSON: `{"headers":{…},"body":"…"}`.

    A body that is not UTF-8 is written in Base64, as `bodyBase64`.
    """

    suffix = ".json"

    def records(self, batch: Batch) -> Serialized:
        """Return each event as an object in JSON, with a newline, and with its headers in the order of the batch."""
        if batch.is_wide:
            headers = join_entries(
                batch.header_maps(), lambda names: join_columns(_json_texts(names), b":"), _json_texts, b","
            )
            return as_records(join_columns(b'{"headers":{', headers, b"},", _bodies(batch.bodies), b"}\n"))
        pairs = [
            encode_values(batch.header(name), functools.partial(_pair, msgspec.json.encode(name) + b":"))
            for name in batch.header_names
        ]
        headers = join_present(pairs, b",", len(batch))
        return as_records(join_columns(b'{"headers":{', headers, b"},", _bodies(batch.bodies), b"}\n"))


def _pair(name: bytes, values: Any) -> Any:
    """Return `name`, which ends with a colon, and each value as a JSON string."""
    return join_columns(name, _json_texts(values))


def _json_texts(texts: Any) -> Any:
    """Return binary texts of UTF-8 as JSON strings, a binary array."""
    return _quoted(texts.cast(pa.string()))


def _bodies(bodies: Any) -> Any:
    """Return the member `body`, or `bodyBase64` if a body is not UTF-8, for each body."""
    try:
        return join_columns(b'"body":', _quoted(bodies.cast(pa.string())))
    except pa.ArrowInvalid:
        return pa.array([_body(body) for body in bodies.to_pylist()], pa.binary())


def _body(body: bytes) -> bytes:
    try:
        return b'"body":' + msgspec.json.encode(body.decode())
    except UnicodeDecodeError:
        return b'"bodyBase64":"' + base64.b64encode(body) + b'"'


def _quoted(texts: Any) -> Any:
    """Return texts as JSON strings, a binary array."""
    if pc.any(pc.match_substring_regex(texts, r'[\x00-\x1f"\\]')).as_py():
        if pc.any(pc.match_substring_regex(texts, r"[\x00-\x08\x0b\x0c\x0e-\x1f]")).as_py():
            return pa.array([msgspec.json.encode(text) for text in texts.to_pylist()], pa.binary())
        for character, escape in _ESCAPES.items():
            texts = pc.replace_substring(texts, character, escape)
    return join_columns(b'"', texts.cast(pa.binary()), b'"')
