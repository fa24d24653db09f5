"""Serializers of lines."""

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
    by_value,
    joined,
    joined_entries,
    joined_present,
    serialized,
)

_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}


class Text(Serializer):
    """The bodies, each with a newline behind it where asked for."""

    def __init__(self, newline: bool) -> None:
        self._newline = newline

    def records(self, batch: Batch) -> Serialized:
        """The bodies; without newlines nothing is copied."""
        return serialized(joined(batch.bodies, b"\n") if self._newline else batch.bodies)


class HeaderAndText(Serializer):
    """`{name=value, name=value} body`, as Java writes a map."""

    def __init__(self, newline: bool) -> None:
        self._newline = b"\n" if newline else b""

    def records(self, batch: Batch) -> Serialized:
        """Headers and bodies; headers come in the order of the batch."""
        if batch.is_wide:
            headers = joined_entries(
                batch.header_maps(), lambda names: joined(names, b"="), lambda texts: texts, b", "
            )
            return serialized(joined(b"{", headers, b"} ", batch.bodies, self._newline))
        pairs = [
            by_value(batch.header(name), functools.partial(joined, name.encode() + b"="))
            for name in batch.header_names
        ]
        headers = joined_present(pairs, b", ", len(batch))
        return serialized(joined(b"{", headers, b"} ", batch.bodies, self._newline))


class Json(Serializer):
    """A line of JSON an event: `{"headers":{…},"body":"…"}`.

    A body that is not UTF-8 is written in Base64, as `bodyBase64`.
    """

    suffix = ".json"

    def records(self, batch: Batch) -> Serialized:
        """Headers and bodies."""
        if batch.is_wide:
            headers = joined_entries(
                batch.header_maps(), lambda names: joined(_json_texts(names), b":"), _json_texts, b","
            )
            return serialized(joined(b'{"headers":{', headers, b"},", _bodies(batch.bodies), b"}\n"))
        pairs = [
            by_value(batch.header(name), functools.partial(_pair, msgspec.json.encode(name) + b":"))
            for name in batch.header_names
        ]
        headers = joined_present(pairs, b",", len(batch))
        return serialized(joined(b'{"headers":{', headers, b"},", _bodies(batch.bodies), b"}\n"))


def _pair(name: bytes, values: Any) -> Any:
    return joined(name, _json_texts(values))


def _json_texts(texts: Any) -> Any:
    return _quoted(texts.cast(pa.string()))


def _bodies(bodies: Any) -> Any:
    try:
        return joined(b'"body":', _quoted(bodies.cast(pa.string())))
    except pa.ArrowInvalid:
        return pa.array([_body(body) for body in bodies.to_pylist()], pa.binary())


def _body(body: bytes) -> bytes:
    try:
        return b'"body":' + msgspec.json.encode(body.decode())
    except UnicodeDecodeError:
        return b'"bodyBase64":"' + base64.b64encode(body) + b'"'


def _quoted(texts: Any) -> Any:
    """Strings of JSON, as a binary array."""
    if pc.any(pc.match_substring_regex(texts, r'[\x00-\x1f"\\]')).as_py():
        if pc.any(pc.match_substring_regex(texts, r"[\x00-\x08\x0b\x0c\x0e-\x1f]")).as_py():
            return pa.array([msgspec.json.encode(text) for text in texts.to_pylist()], pa.binary())
        for character, escape in _ESCAPES.items():
            texts = pc.replace_substring(texts, character, escape)
    return joined(b'"', texts.cast(pa.binary()), b'"')
