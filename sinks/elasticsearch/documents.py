"""What Flume's serializers make of an event, as values for JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import numpy as np

from flafka.sinks.bucketpath import milliseconds
from flafka.sinks.templates import readable

GUESSED = 20
"""Bytes of a text in which Flume looks for a brace, to find out whether it may be JSON."""


def _logstash(body: bytes, headers: Mapping[str, str]) -> dict[str, Any]:
    """What Flume's ElasticSearchLogStashEventSerializer makes of an event."""
    document: dict[str, Any] = {"@message": _of_bytes(body)}
    if _given(headers, "timestamp") and not _given(headers, "@timestamp"):
        document["@timestamp"] = f"{np.datetime64(time_of(headers, 'timestamp', default=0), 'ms')}Z"
    for name, field in _NAMED:
        if _given(headers, name) and not _given(headers, field):
            document[field] = _of_text(headers[name])
    document["@fields"] = {name: _of_text(value) for name, value in headers.items()}
    return document


def _dynamic(body: bytes, headers: Mapping[str, str]) -> dict[str, Any]:
    """What Flume's ElasticSearchDynamicSerializer makes of an event; a header `body` is one more value of `body`."""
    document = {name: _of_text(value) for name, value in headers.items()}
    text = _of_bytes(body)
    return {**document, "body": [text, document["body"]] if "body" in document else text}


SERIALIZERS: dict[str, Callable[[bytes, Mapping[str, str]], dict[str, Any]]] = {
    "ElasticSearchLogStashEventSerializer": _logstash,
    "ElasticSearchDynamicSerializer": _dynamic,
}
_NAMED = (("source", "@source"), ("type", "@type"), ("host", "@source_host"), ("src_path", "@source_path"))


def _of_bytes(data: bytes) -> str | msgspec.Raw:
    try:
        return _of_text(data.decode())
    except UnicodeDecodeError:
        return readable(data)


def _of_text(text: str) -> str | msgspec.Raw:
    """JSON as it is, without line ends; everything else as text."""
    if "{" in text[:GUESSED] and b"{" in (data := text.encode())[:GUESSED]:
        try:
            return msgspec.Raw(msgspec.json.format(data, indent=-1))
        except (msgspec.DecodeError, RecursionError):
            pass
    return text


def _given(headers: Mapping[str, str], name: str) -> bool:
    return bool(headers.get(name, "").strip())


def time_of(headers: Mapping[str, str], *names: str, default: int) -> int:
    """The first of these headers that is not blank, in ms. Raises ValueError, a sentence about the event."""
    name = next((name for name in names if _given(headers, name)), None)
    return default if name is None else milliseconds(headers[name], name)
