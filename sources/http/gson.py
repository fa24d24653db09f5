"""JSON as Gson, and so Flume's JSONHandler, reads it: single quotes, names without quotes, comments, `;` and `=`."""

from __future__ import annotations

import re
from collections.abc import Iterator

Parsed = tuple[dict[str, str], str | None]
"""Headers and body."""

_SPACE = re.compile(r"(?:[ \t\r\n]+|//[^\r\n]*|#[^\r\n]*|/\*.*?\*/)*", re.DOTALL)
_BARE = re.compile(r"[^/\\;#={}\[\]:, \t\f\r\n]+")
_QUOTED = {quote: re.compile(rf"(?:[^{quote}\\]|\\.)*", re.DOTALL) for quote in "\"'"}
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_NAMED = {"t": "\t", "b": "\b", "n": "\n", "r": "\r", "f": "\f", "\n": "\n", "'": "'", '"': '"', "\\": "\\", "/": "/"}


class NoEventError(ValueError):
    """An object that is JSON, but no event: all that it holds would be lost."""


HALF = re.compile("[\ud800-\udfff]")
"""Half of a pair of UTF-16, which is no character."""
_PREFIX = ")]}'\n"
"""Prefix that some servers write before JSON, so that no browser runs it."""
DEEPEST = 200
_MOST_SHOWN = 5
"""Names of unknown members that an answer shows."""


def read_events(text: str) -> list[Parsed | None] | None:
    """The events of an array, null ones as None; None for no array at all. ValueError where it is something else."""
    reader = _JsonReader(text)
    reader.space()
    if text.startswith(_PREFIX, reader.at):
        reader.at += len(_PREFIX)
        reader.space()
    if reader.at == len(text):
        return None
    if reader.peek() != "[":
        if reader.scalar() is None and reader.ended():
            return None
        raise ValueError("expected an array of events")
    events: list[Parsed | None] = []
    reader.at += 1
    for _ in reader.elements():
        events.append(_event(reader))
    if not reader.ended(strict=True):
        raise ValueError(f"something follows the array, at character {reader.at}")
    return events


def _event(reader: _JsonReader) -> Parsed | None:
    if reader.peek() != "{":
        if reader.scalar() is None:
            return None
        raise ValueError("an event must be an object")
    headers: dict[str, str] = {}
    body: str | None = None
    others: list[str] = []
    has_body = False
    for name in reader.members():
        if name == "body":
            has_body = True
            body = text if (text := reader.scalar()) is None else _paired(text)
        elif name == "headers" and reader.peek() == "{":
            headers = {}
            for header in reader.members():
                value = reader.scalar()
                if header in headers:
                    raise ValueError(f"header {header[:40]!r} is there twice")
                if value is not None:
                    headers[_text(header)] = _text(value)
        elif name == "headers" and reader.peek() == "[":
            headers = _pairs(reader)
        elif name == "headers":
            if reader.scalar() is not None:
                raise ValueError("headers must be an object")
        else:
            others.append(name)
            reader.skip(0)
    if others and not has_body:
        shown = ", ".join(map(repr, others[:_MOST_SHOWN]))
        raise NoEventError(
            f'an event has no "body", but {shown}: an event is {{"headers": {{…}}, "body": "…"}}. For JSON of any '
            "other form, one object a line, set handler = ndjson"
        )
    return headers, body


def _pairs(reader: _JsonReader) -> dict[str, str]:
    """Headers as an array of pairs, which Gson takes too; PHP writes an empty object as an empty array."""
    headers: dict[str, str] = {}
    reader.at += 1
    for _ in reader.elements():
        if reader.peek() != "[":
            raise ValueError("headers must be an object")
        reader.at += 1
        pair = [reader.scalar() for _ in reader.elements()]
        if len(pair) != 2 or pair[0] is None or pair[0] in headers:
            raise ValueError("headers must be an object, or pairs of names and values")
        if pair[1] is not None:
            headers[_text(pair[0])] = _text(pair[1])
    return headers


class _JsonReader:
    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0

    def space(self) -> None:
        found = _SPACE.match(self.text, self.at)
        assert found is not None
        self.at = found.end()

    def peek(self) -> str:
        """The next character that is no space. ValueError at the end."""
        self.space()
        if self.at >= len(self.text):
            raise ValueError("it ends too early")
        return self.text[self.at]

    def ended(self, *, strict: bool = False) -> bool:
        rest = self.text[self.at :]
        return not (rest.strip(" \t\r\n") if strict else _SPACE.sub("", rest, count=1))

    def elements(self) -> Iterator[None]:
        """Stop at each element of the array whose `[` was read."""
        if self.peek() == "]":
            self.at += 1
            return
        while True:
            yield None
            mark = self.peek()
            self.at += 1
            if mark == "]":
                return
            if mark not in ",;":
                raise ValueError(f"expected , or ] at character {self.at - 1}")

    def members(self) -> Iterator[str]:
        """Stop at the value of each member of the object that begins here, and give its name."""
        self.at += 1
        if self.peek() == "}":
            self.at += 1
            return
        while True:
            mark = self.peek()
            name = self._string(mark) if mark in _QUOTED else self._bare()
            mark = self.peek()
            if mark not in ":=":
                raise ValueError(f"expected : at character {self.at}")
            self.at += 2 if self.text.startswith("=>", self.at) else 1
            if self.peek() in ",;]":
                raise ValueError(f"expected a value at character {self.at}")
            yield name
            mark = self.peek()
            self.at += 1
            if mark == "}":
                return
            if mark not in ",;":
                raise ValueError(f"expected , or }} at character {self.at - 1}")

    def scalar(self) -> str | None:
        """A text, number or truth as text; None for null, which nothing between two commas is too."""
        mark = self.peek()
        if mark in _QUOTED:
            return self._string(mark)
        if mark in ",;]":
            return None
        bare = self._bare()
        return None if bare.lower() == "null" else bare.lower() if bare.lower() in ("true", "false") else bare

    def skip(self, depth: int) -> None:
        """Pass over any value."""
        if depth > DEEPEST:
            raise ValueError("it is nested too deep")
        mark = self.peek()
        if mark == "[":
            self.at += 1
            for _ in self.elements():
                self.skip(depth + 1)
        elif mark == "{":
            for _ in self.members():
                self.skip(depth + 1)
        else:
            self.scalar()

    def _string(self, quote: str) -> str:
        found = _QUOTED[quote].match(self.text, self.at + 1)
        if found is None or found.end() >= len(self.text):
            raise ValueError("a text does not end")
        self.at = found.end() + 1
        return _ESCAPE.sub(_unescape, found[0]) if "\\" in found[0] else found[0]

    def _bare(self) -> str:
        found = _BARE.match(self.text, self.at)
        if found is None:
            raise ValueError(f"unexpected {self.text[self.at]!r} at character {self.at}")
        self.at = found.end()
        return found[0]


def _unescape(found: re.Match[str]) -> str:
    if len(found[1]) == 5:
        return chr(int(found[1][1:], 16))
    if found[1] not in _NAMED:
        raise ValueError(f"there is no escape {found[0]!r}")
    return _NAMED[found[1]]


def _text(text: str) -> str:
    """With a question mark for half of a pair of UTF-16, as Java writes it in UTF-8."""
    return HALF.sub("?", _paired(text))


def _paired(text: str) -> str:
    """With pairs of UTF-16 joined."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
