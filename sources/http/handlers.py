"""Handlers: conversion of the content of a request to events."""

from __future__ import annotations

import codecs
import re
import zlib
from collections.abc import Iterable
from urllib.parse import parse_qsl

import msgspec

from flafka.plugins import Event
from flafka.sources.http.gson import SURROGATE, NoEventError, read_events
from flafka.sources.log4j.framing import Log4jFramer
from flafka.sources.log4j.parser import LogEventParser

MAX_PARAMETERS = 1_000
"""Maximum number of URL parameters that the handler `blob` makes headers of."""


class HandlerError(Exception):
    """Error of an invalid request, with the HTTP status and text of the response."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


class _SimpleEvent(msgspec.Struct):
    """Event in the common form, which a fast decoder reads."""

    headers: dict[str, str] | msgspec.UnsetType = msgspec.UNSET
    body: str | msgspec.UnsetType = msgspec.UNSET

    @property
    def quotes(self) -> int:
        """Number of quotation marks around its strings."""
        headers = 2 + 4 * len(self.headers) if isinstance(self.headers, dict) else 0
        return headers + (4 if isinstance(self.body, str) else 0)

    def event(self) -> Event:
        """Return the event; an absent body is empty, absent headers are none."""
        return Event((self.body or "").encode(), self.headers or {})


_simple_events = msgspec.json.Decoder(list[_SimpleEvent])
_any_json = msgspec.json.Decoder()
_ESCAPE = re.compile(rb"\\.", re.DOTALL)


_GZIP_MAGIC = b"\x1f\x8b"
_SLICE_BYTES = 256
"""Number of bytes of a gzip member that are decoded first; each further slice is twice as long."""


def decompress(content: bytes, headers: Iterable[tuple[bytes, bytes]], max_bytes: int) -> bytes:
    """Return the uncompressed content of a request, without a byte order mark of UTF-8.

    Raises HandlerError: 415 for an encoding other than gzip, 413 for more than `max_bytes` bytes, 400 for invalid
    gzip.
    """
    values = b",".join(value for name, value in headers if name == b"content-encoding")
    encodings = [
        name for name in values.decode("latin-1").lower().replace(" ", "").split(",") if name not in ("", "identity")
    ]
    if encodings in (["gzip"], ["x-gzip"]):
        content = _decompress_gzip(content, max_bytes)
    elif encodings:
        raise HandlerError(415, f"Content-Encoding {', '.join(encodings)} cannot be read here: send gzip, or none")
    elif content.startswith(_GZIP_MAGIC):
        raise HandlerError(400, "the body is gzip: send the header Content-Encoding: gzip with it")
    return content.removeprefix(codecs.BOM_UTF8)


def _decompress_gzip(content: bytes, max_bytes: int) -> bytes:
    """Return the uncompressed content of all members of a gzip file.

    Raises HandlerError: 413 for more than `max_bytes` bytes, 400 for an invalid or incomplete file.

    `unused_data` is a copy of the input behind a member. Short slices of input keep that copy short: otherwise a body
    of many small members would take quadratic time.
    """
    pieces, size, start = [], 0, 0
    try:
        while start < len(content):
            decoder, count = zlib.decompressobj(16 + zlib.MAX_WBITS), _SLICE_BYTES
            while not decoder.eof:
                part = content[start : start + count]
                if not part:
                    raise HandlerError(400, "the gzip body ends too early")
                pieces.append(decoder.decompress(part, max_bytes - size + 1))
                size += len(pieces[-1])
                if size > max_bytes:
                    raise HandlerError(413, f"a request may have at most {max_bytes} bytes, uncompressed")
                start, count = start + len(part) - len(decoder.unused_data), 2 * count
    except zlib.error as e:
        raise HandlerError(400, f"the body is not valid gzip, unlike Content-Encoding: {e}") from None
    return b"".join(pieces)


def json(content: bytes, charset: str | None) -> list[Event]:
    """Return the events of a request as Flume's JSONHandler reads it; bodies keep the charset of the request.

    `charset` is from the Content-Type; None means UTF-8. Raises HandlerError: 400 for invalid JSON, 500 for another
    charset than UTF-8, UTF-16 and UTF-32, for null, and for a null event.
    """
    charset = (charset or "utf-8").lower()
    if charset not in ("utf-8", "utf-16", "utf-32"):
        raise HandlerError(500, "JSON is read in UTF-8, UTF-16 and UTF-32 only")
    if charset == "utf-8":
        try:
            plain = _simple_events.decode(content)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            pass  # Gson may accept it: see below
        else:
            # Further strings may be duplicate headers, which Gson refuses.
            unescaped = _ESCAPE.sub(b"", content) if b"\\" in content else content
            if unescaped.count(b'"') == sum(event.quotes for event in plain):
                return [event.event() for event in plain]
    try:
        events = read_events(_decode(content, charset))
    except NoEventError as e:
        raise HandlerError(400, str(e)) from None
    except (ValueError, RecursionError) as e:
        raise HandlerError(400, f"Request has invalid JSON Syntax. {e}") from None
    if events is None or None in events:
        raise HandlerError(500, "there is no array of events, or one of its events is null")
    return [Event(_encode(body or "", charset), headers) for headers, body in filter(None, events)]


def ndjson(content: bytes, charset: str | None) -> list[Event]:
    """Return each line as an event, without blanks around it; skip empty lines. The charset is ignored.

    Raises HandlerError 400 where a line is not JSON.
    """
    events = []
    for number, line in enumerate(content.split(b"\n"), 1):
        if line := line.strip(b"\r \t"):
            try:
                _any_json.decode(line)
            except (msgspec.MsgspecError, UnicodeError, RecursionError) as e:
                raise HandlerError(400, f"line {number} is not JSON: {e}") from None
            events.append(Event(line))
    return events


def log4j(content: bytes, parser: LogEventParser) -> list[Event]:
    """Return the log events of a request, as the layouts of log4j 2 and logback write them.

    Raises HandlerError 400 where an event is not a JSON object.
    """
    framer, events = Log4jFramer(len(content)), []
    for number, text in enumerate([*framer.feed(content), *framer.end()], 1):
        try:
            events.append(parser.event(text))
        except (ValueError, RecursionError) as e:
            raise HandlerError(400, f"event {number} is not JSON: {e}") from None
    return events


def blob(content: bytes, query: str) -> list[Event]:
    """Return the request as one event; its URL parameters are the headers, the first of each name.

    Raises HandlerError for more than 1,000 parameters.
    """
    headers: dict[str, str] = {}
    try:
        parameters = parse_qsl(query, keep_blank_values=True, max_num_fields=MAX_PARAMETERS)
    except ValueError:
        raise HandlerError(400, f"the URL may have at most {MAX_PARAMETERS:,} parameters") from None
    for name, value in parameters:
        headers.setdefault(name, value)
    return [Event(content, headers)]


def _decode(content: bytes, charset: str) -> str:
    """Return the content as text, without its byte order mark, as Java decodes it.

    UTF-16 and UTF-32 without a mark are big-endian. Invalid bytes become U+FFFD.
    """
    if charset == "utf-8":
        return content.decode("utf-8-sig", "replace")
    little, big = {"utf-16": (b"\xff\xfe", b"\xfe\xff"), "utf-32": (b"\xff\xfe\0\0", b"\0\0\xfe\xff")}[charset]
    if content.startswith(little):
        return content[len(little) :].decode(f"{charset}-le", "replace")
    return content.removeprefix(big).decode(f"{charset}-be", "replace")


def _encode(text: str, charset: str) -> bytes:
    """Return the text in a charset as Java encodes it: UTF-16 with a byte order mark, UTF-32 without.

    Unpaired surrogates are replaced: by `?` in UTF-8, or else by U+FFFD.
    """
    if charset == "utf-8":
        return text.encode("utf-8", "replace")
    data = SURROGATE.sub("\ufffd", text).encode(f"{charset}-be")
    return b"\xfe\xff" + data if charset == "utf-16" and text else data
