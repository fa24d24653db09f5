"""Lenient JSON parser of Gson, as in Flume's JSONHandler: single quotes, unquoted names, comments, `;` and `=`."""

from __future__ import annotations

import re
from collections.abc import Iterator

ParsedEvent = tuple[dict[str, str], str | None]
"""Headers and body; the body is None where it is null or absent."""

_SPACE = re.compile(r"(?:[ \t\r\n]+|//[^\r\n]*|#[^\r\n]*|/\*.*?\*/)*", re.DOTALL)
_UNQUOTED = re.compile(r"[^/\\;#={}\[\]:, \t\f\r\n]+")
_QUOTED_TEXT = {quote: re.compile(rf"(?:[^{quote}\\]|\\.)*", re.DOTALL) for quote in "\"'"}
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_NAMED = {"t": "\t", "b": "\b", "n": "\n", "r": "\r", "f": "\f", "\n": "\n", "'": "'", '"': '"', "\\": "\\", "/": "/"}


class NoEventError(ValueError):
    """Error of a JSON object without a body, whose fields would all be lost."""


SURROGATE = re.compile("[\ud800-\udfff]")
"""Unpaired surrogate of UTF-16, which is not a character."""
_PREFIX = ")]}'\n"
"""Prefix that some servers write before JSON, so that no browser runs it."""
MAX_DEPTH = 200
_MAX_SHOWN_NAMES = 5
"""Maximum number of unknown names in an error message."""


def read_events(text: str) -> list[ParsedEvent | None] | None:
    """Return the events of a JSON array, in order, with None for a null element.

    The result is None if the text is empty or null.

    Raises ValueError where the text is anything else.
    """
    reader = _JsonReader(text)
    reader.skip_space()
    if text.startswith(_PREFIX, reader.index):
        reader.index += len(_PREFIX)
        reader.skip_space()
    if reader.index == len(text):
        return None
    if reader.peek() != "[":
        if reader.scalar() is None and reader.at_end():
            return None
        raise ValueError("expected an array of events")
    events: list[ParsedEvent | None] = []
    reader.index += 1
    for _ in reader.elements():
        events.append(_event(reader))
    if not reader.at_end(strict=True):
        raise ValueError(f"unexpected text after the array, at character {reader.index}")
    return events


def _event(reader: _JsonReader) -> ParsedEvent | None:
    """Read one element of the array of events; None for null.

    Raises ValueError where it is no event, NoEventError where it has only fields other than headers and body.
    """
    if reader.peek() != "{":
        if reader.scalar() is None:
            return None
        raise ValueError("an event must be an object")
    headers: dict[str, str] = {}
    body: str | None = None
    unknown_names: list[str] = []
    has_body = False
    for name in reader.members():
        if name == "body":
            has_body = True
            body = text if (text := reader.scalar()) is None else _join_surrogates(text)
        elif name == "headers" and reader.peek() == "{":
            headers = {}
            for header in reader.members():
                value = reader.scalar()
                if header in headers:
                    raise ValueError(f"header {header[:40]!r} is a duplicate")
                if value is not None:
                    headers[_encodable(header)] = _encodable(value)
        elif name == "headers" and reader.peek() == "[":
            headers = _header_pairs(reader)
        elif name == "headers":
            if reader.scalar() is not None:
                raise ValueError("headers must be an object")
        else:
            unknown_names.append(name)
            reader.skip(0)
    if unknown_names and not has_body:
        shown = ", ".join(map(repr, unknown_names[:_MAX_SHOWN_NAMES]))
        raise NoEventError(
            f'an event has no "body", but {shown}: an event is {{"headers": {{…}}, "body": "…"}}. For JSON of any '
            "other form, one object a line, set handler = ndjson"
        )
    return headers, body


def _header_pairs(reader: _JsonReader) -> dict[str, str]:
    """Return headers that are written as an array of pairs, as Gson accepts. PHP encodes an empty object as `[]`."""
    headers: dict[str, str] = {}
    reader.index += 1
    for _ in reader.elements():
        if reader.peek() != "[":
            raise ValueError("headers must be an object")
        reader.index += 1
        pair = [reader.scalar() for _ in reader.elements()]
        if len(pair) != 2 or pair[0] is None or pair[0] in headers:
            raise ValueError("headers must be an object, or pairs of names and values")
        if pair[1] is not None:
            headers[_encodable(pair[0])] = _encodable(pair[1])
    return headers


class _JsonReader:
    def __init__(self, text: str) -> None:
        self.text, self.index = text, 0

    def skip_space(self) -> None:
        """Skip white space and comments."""
        match = _SPACE.match(self.text, self.index)
        assert match is not None
        self.index = match.end()

    def peek(self) -> str:
        """Return the next character that is not a space. Raises ValueError at the end."""
        self.skip_space()
        if self.index >= len(self.text):
            raise ValueError("the text ends too early")
        return self.text[self.index]

    def at_end(self, *, strict: bool = False) -> bool:
        """Return True if nothing follows but white space and, unless `strict`, comments."""
        remaining = self.text[self.index :]
        return not (remaining.strip(" \t\r\n") if strict else _SPACE.sub("", remaining, count=1))

    def elements(self) -> Iterator[None]:
        """Yield None before each element of the array whose `[` was read; the caller must read the element.

        Raises ValueError where the array is invalid.
        """
        if self.peek() == "]":
            self.index += 1
            return
        while True:
            yield None
            character = self.peek()
            self.index += 1
            if character == "]":
                return
            if character not in ",;":
                raise ValueError(f"expected , or ] at character {self.index - 1}")

    def members(self) -> Iterator[str]:
        """Yield the name of each member of the object that begins here; the caller must read the value.

        Raises ValueError where the object is invalid.
        """
        self.index += 1
        if self.peek() == "}":
            self.index += 1
            return
        while True:
            character = self.peek()
            name = self._string(character) if character in _QUOTED_TEXT else self._unquoted()
            character = self.peek()
            if character not in ":=":
                raise ValueError(f"expected : at character {self.index}")
            self.index += 2 if self.text.startswith("=>", self.index) else 1
            if self.peek() in ",;]":
                raise ValueError(f"expected a value at character {self.index}")
            yield name
            character = self.peek()
            self.index += 1
            if character == "}":
                return
            if character not in ",;":
                raise ValueError(f"expected , or }} at character {self.index - 1}")

    def scalar(self) -> str | None:
        """Read a string, number or boolean as text; None for null, or for no value between two commas."""
        character = self.peek()
        if character in _QUOTED_TEXT:
            return self._string(character)
        if character in ",;]":
            return None
        bare = self._unquoted()
        return None if bare.lower() == "null" else bare.lower() if bare.lower() in ("true", "false") else bare

    def skip(self, depth: int) -> None:
        """Skip any value, nested `depth` deep. Raises ValueError beyond `MAX_DEPTH`, and for an invalid value."""
        if depth > MAX_DEPTH:
            raise ValueError("the JSON is nested too deep")
        character = self.peek()
        if character == "[":
            self.index += 1
            for _ in self.elements():
                self.skip(depth + 1)
        elif character == "{":
            for _ in self.members():
                self.skip(depth + 1)
        else:
            self.scalar()

    def _string(self, quote: str) -> str:
        """Read a string in these quotes, with its escapes replaced. Raises ValueError where it does not end."""
        match = _QUOTED_TEXT[quote].match(self.text, self.index + 1)
        if match is None or match.end() >= len(self.text):
            raise ValueError("a string does not end")
        self.index = match.end() + 1
        return _ESCAPE.sub(_unescape, match[0]) if "\\" in match[0] else match[0]

    def _unquoted(self) -> str:
        """Read an unquoted name or value. Raises ValueError where there is none."""
        match = _UNQUOTED.match(self.text, self.index)
        if match is None:
            raise ValueError(f"unexpected {self.text[self.index]!r} at character {self.index}")
        self.index = match.end()
        return match[0]


def _unescape(match: re.Match[str]) -> str:
    """Return the character of an escape such as `\\n`. Raises ValueError for an unknown one."""
    if len(match[1]) == 5:
        return chr(int(match[1][1:], 16))
    if match[1] not in _NAMED:
        raise ValueError(f"there is no escape {match[0]!r}")
    return _NAMED[match[1]]


def _encodable(text: str) -> str:
    """Return the text with question marks for unpaired surrogates, as in Java's UTF-8."""
    return SURROGATE.sub("?", _join_surrogates(text))


def _join_surrogates(text: str) -> str:
    """Return the text with each surrogate pair of UTF-16 joined to one character; unpaired ones stay."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
