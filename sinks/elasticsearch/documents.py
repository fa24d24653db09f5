"""Documents of Flume's serializers, as values for JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import numpy as np

from flafka.sinks.bucketpath import parse_milliseconds
from flafka.sinks.templates import decode_text

JSON_DETECTION_BYTES = 20
"""Length of the beginning of a text in which Flume searches for a brace, to detect JSON."""


def _logstash(body: bytes, headers: Mapping[str, str]) -> dict[str, Any]:
    """Return the document of Flume's ElasticSearchLogStashEventSerializer. Raises ValueError for a wrong time."""
    document: dict[str, Any] = {"@message": _bytes_value(body)}
    if _has_header(headers, "timestamp") and not _has_header(headers, "@timestamp"):
        document["@timestamp"] = f"{np.datetime64(event_time(headers, 'timestamp', default=0), 'ms')}Z"
    for name, field in _HEADER_FIELDS:
        if _has_header(headers, name) and not _has_header(headers, field):
            document[field] = _text_value(headers[name])
    document["@fields"] = {name: _text_value(value) for name, value in headers.items()}
    return document


def _dynamic(body: bytes, headers: Mapping[str, str]) -> dict[str, Any]:
    """Return the document of Flume's ElasticSearchDynamicSerializer; a header `body` is a second value of `body`."""
    document = {name: _text_value(value) for name, value in headers.items()}
    text = _bytes_value(body)
    return {**document, "body": [text, document["body"]] if "body" in document else text}


SERIALIZERS: dict[str, Callable[[bytes, Mapping[str, str]], dict[str, Any]]] = {
    "ElasticSearchLogStashEventSerializer": _logstash,
    "ElasticSearchDynamicSerializer": _dynamic,
}
_HEADER_FIELDS = (("source", "@source"), ("type", "@type"), ("host", "@source_host"), ("src_path", "@source_path"))


def _bytes_value(data: bytes) -> str | msgspec.Raw:
    r"""Return a body as JSON or text; a body that is not UTF-8 has `\xff` for each invalid byte."""
    try:
        return _text_value(data.decode())
    except UnicodeDecodeError:
        return decode_text(data)


def _text_value(text: str) -> str | msgspec.Raw:
    """Return a text that begins like JSON and is valid JSON as it is, without line ends; any other as text."""
    if "{" in text[:JSON_DETECTION_BYTES] and b"{" in (data := text.encode())[:JSON_DETECTION_BYTES]:
        try:
            return msgspec.Raw(msgspec.json.format(data, indent=-1))
        except (msgspec.DecodeError, RecursionError):
            pass
    return text


def _has_header(headers: Mapping[str, str], name: str) -> bool:
    """Return True if the event has this header, and it is not blank."""
    return bool(headers.get(name, "").strip())


def event_time(headers: Mapping[str, str], *names: str, default: int) -> int:
    """Return the time in the first of these headers that is not blank, in milliseconds; `default` if all are.

    Raises ValueError, with a sentence about the event, for a header that is no number.
    """
    name = next((name for name in names if _has_header(headers, name)), None)
    return default if name is None else parse_milliseconds(headers[name], name)
