"""Events of a request, or the reason why it has none."""

from __future__ import annotations

import codecs
import re
import zlib
from collections.abc import Iterable
from urllib.parse import parse_qsl

import msgspec

from flafka.plugins import Event
from flafka.sources.http.gson import HALF, NoEventError, read_events
from flafka.sources.log4j.framing import Log4jFramer
from flafka.sources.log4j.reading import LogEventParser


class HandlerError(Exception):
    """A request that cannot be read."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


class _Plain(msgspec.Struct):
    """An event as almost all are written."""

    headers: dict[str, str] | msgspec.UnsetType = msgspec.UNSET
    body: str | msgspec.UnsetType = msgspec.UNSET

    @property
    def quotes(self) -> int:
        """Marks around its texts."""
        headers = 2 + 4 * len(self.headers) if isinstance(self.headers, dict) else 0
        return headers + (4 if isinstance(self.body, str) else 0)

    def event(self) -> Event:
        return Event((self.body or "").encode(), self.headers or {})


_plain = msgspec.json.Decoder(list[_Plain])
_any = msgspec.json.Decoder()
_ESCAPED = re.compile(rb"\\.", re.DOTALL)


_GZIP = b"\x1f\x8b"
_SLICE_BYTES = 256
"""Bytes of a gzip member that are decoded first; each next slice of it has twice as many."""


def decompressed(content: bytes, headers: Iterable[tuple[bytes, bytes]], largest: int) -> bytes:
    """Return the content of a request without its Content-Encoding, and without a mark of UTF-8.

    HandlerError: 415 for an encoding other than gzip, 413 for more than `largest` bytes, 400 for no gzip.
    """
    named = b",".join(value for name, value in headers if name == b"content-encoding")
    encodings = [
        one for one in named.decode("latin-1").lower().replace(" ", "").split(",") if one not in ("", "identity")
    ]
    if encodings in (["gzip"], ["x-gzip"]):
        content = _unzipped(content, largest)
    elif encodings:
        raise HandlerError(415, f"Content-Encoding {', '.join(encodings)} cannot be read here: send gzip, or none")
    elif content.startswith(_GZIP):
        raise HandlerError(400, "the body is gzip: send the header Content-Encoding: gzip with it")
    return content.removeprefix(codecs.BOM_UTF8)


def _unzipped(content: bytes, largest: int) -> bytes:
    """Decode the members of gzip, one behind another.

    Each `unused_data` is a copy of what is behind a member. Slices keep that short: with the whole rest in it, a body
    of many small members would take quadratic time.
    """
    pieces, size, at = [], 0, 0
    try:
        while at < len(content):
            decoder, count = zlib.decompressobj(16 + zlib.MAX_WBITS), _SLICE_BYTES
            while not decoder.eof:
                part = content[at : at + count]
                if not part:
                    raise HandlerError(400, "the gzip body ends too early")
                pieces.append(decoder.decompress(part, largest - size + 1))
                size += len(pieces[-1])
                if size > largest:
                    raise HandlerError(413, f"a request may have at most {largest} bytes, unpacked")
                at, count = at + len(part) - len(decoder.unused_data), 2 * count
    except zlib.error as e:
        raise HandlerError(400, f"the body is no gzip, as Content-Encoding says: {e}") from None
    return b"".join(pieces)


def json(content: bytes, charset: str | None) -> list[Event]:
    """The events of Flume's JSONHandler: bodies are kept in the charset of the request."""
    charset = (charset or "utf-8").lower()
    if charset not in ("utf-8", "utf-16", "utf-32"):
        raise HandlerError(500, "JSON is read in UTF-8, UTF-16 and UTF-32 only")
    if charset == "utf-8":
        try:
            plain = _plain.decode(content)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            pass  # perhaps it is what Gson reads all the same
        else:
            # More texts than the events have: one has a header twice, perhaps, which Gson refuses.
            texts = _ESCAPED.sub(b"", content) if b"\\" in content else content
            if texts.count(b'"') == sum(event.quotes for event in plain):
                return [event.event() for event in plain]
    try:
        events = read_events(_decoded(content, charset))
    except NoEventError as e:
        raise HandlerError(400, str(e)) from None
    except (ValueError, RecursionError) as e:
        raise HandlerError(400, f"Request has invalid JSON Syntax. {e}") from None
    if events is None or None in events:
        raise HandlerError(500, "there is no array of events, or one of its events is null")
    return [Event(_encoded(body or "", charset), headers) for headers, body in filter(None, events)]


def ndjson(content: bytes, charset: str | None) -> list[Event]:
    """Every line is an event, kept as it was sent; empty lines are none."""
    events = []
    for number, line in enumerate(content.split(b"\n"), 1):
        if line := line.strip(b"\r \t"):
            try:
                _any.decode(line)
            except (msgspec.MsgspecError, UnicodeError, RecursionError) as e:
                raise HandlerError(400, f"line {number} is not JSON: {e}") from None
            events.append(Event(line))
    return events


def log4j(content: bytes, reader: LogEventParser) -> list[Event]:
    """The events of layouts, one or many in a request."""
    framer, events = Log4jFramer(len(content)), []
    for number, text in enumerate([*framer.feed(content), *framer.end()], 1):
        try:
            events.append(reader.event(text))
        except (ValueError, RecursionError) as e:
            raise HandlerError(400, f"event {number} is not JSON: {e}") from None
    return events


def blob(content: bytes, query: str) -> list[Event]:
    """The request is one event; parameters are its headers, the first of each name."""
    headers: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True, max_num_fields=1000):
        headers.setdefault(name, value)
    return [Event(content, headers)]


def _decoded(content: bytes, charset: str) -> str:
    """Decode as Java does: big-endian without a mark, and what is no text is replaced."""
    if charset == "utf-8":
        return content.decode("utf-8-sig", "replace")
    little, big = {"utf-16": (b"\xff\xfe", b"\xfe\xff"), "utf-32": (b"\xff\xfe\0\0", b"\0\0\xfe\xff")}[charset]
    if content.startswith(little):
        return content[len(little) :].decode(f"{charset}-le", "replace")
    return content.removeprefix(big).decode(f"{charset}-be", "replace")


def _encoded(text: str, charset: str) -> bytes:
    """Encode as Java does: UTF-16 with a mark, UTF-32 without; half of a pair becomes what the charset has for it."""
    if charset == "utf-8":
        return text.encode("utf-8", "replace")
    data = HALF.sub("\ufffd", text).encode(f"{charset}-be")
    return b"\xfe\xff" + data if charset == "utf-16" and text else data
