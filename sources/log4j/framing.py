"""Boundaries of events in what an application sends."""

from __future__ import annotations

import re

_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)')
"""One in JSON; the last one may go on."""
_BEGINNING = re.compile(rb"(?:[\[,]\s*)?\{")
_BRACE = re.compile(rb"\}(?=(?:,\s*+)?\{|\s*+\]?\s*\Z)")
"""One that may end an object: another one or nothing follows."""


class Cut(bytes):
    """The beginning of an event that was longer than the limit."""


class Log4jFramer:
    """Cuts one connection's bytes into events: lines, or objects of JSON where those are not one a line.

    JsonLayout writes objects over many lines, or many on one; ecs-logging-java writes stack traces over many lines;
    GELF ends events with NUL. A line that begins an object ends what came before, so that what was never finished
    costs no other event. `limit`: bytes of an event; the rest of a longer one is dropped.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._pieces: list[bytes] = []
        """The beginning of a line, as it came: pieces are joined only where an event may end, or that would take
        time quadratic in the length of the line."""
        self._held = 0
        """Bytes in these pieces."""
        self._joined = False
        """True where they may hold more than one object."""
        self._incomplete = 0
        """Bytes up to which these pieces are not searched again: their number at the last search, and an eighth."""
        self._skipping = False
        """True while the rest of a line that was cut is dropped."""
        self._object: list[bytes] = []
        """Lines of an unfinished object; `_open` counts its open braces, `_size` its bytes."""
        self._open = 0
        self._size = 0

    def feed(self, data: bytes) -> list[bytes]:
        """Return the events that end in these bytes."""
        events: list[bytes] = []
        *lines, rest = data.replace(b"\0", b"\n").split(b"\n")
        if lines:
            lines[0] = self._release() + lines[0]
            self._incomplete = 0
            if self._skipping:
                self._skipping = False
                del lines[0]
        for line in lines:
            self._line(line, events)
        if self._skipping:
            return events
        self._hold(rest)
        if self._held > self._incomplete and (rest.endswith(b"}") or self._joined):
            objects, rest = _objects(self._release())
            self._hold(rest)
            self._incomplete = len(rest) + len(rest) // 8
            for line in objects:
                self._line(line, events)
        if self._held > self._limit:
            self._line(self._release(), events)
            self._skipping = True
        return events

    def end(self) -> list[bytes]:
        """Return what is left when the connection ends."""
        events: list[bytes] = []
        if self._held:
            self._line(self._release(), events)
        events += self._object
        self._object = []
        return events

    def _hold(self, piece: bytes) -> None:
        """Keep the beginning of a line, or what follows it."""
        if piece:
            last = self._pieces[-1][-1:] if self._pieces else b""
            self._joined = self._joined or b"}{" in last + piece or (not last and _joined(piece))
            self._pieces.append(piece)
            self._held += len(piece)

    def _release(self) -> bytes:
        """Return the pieces as one text, and forget them."""
        text = b"".join(self._pieces)
        self._pieces, self._held, self._joined = [], 0, False
        return text

    def _line(self, line: bytes, events: list[bytes]) -> None:
        if self._open > 0 and not _BEGINNING.match(line):
            self._go_on(line, events)
            return
        events += self._object  # it was never finished: its lines are no JSON
        self._object, self._open = [], 0
        # JsonLayout with complete = true makes an array of all events of its connection.
        joined = _joined(line)
        line = line.strip(b" \t\r,")
        if len(line) > self._limit:
            events.append(Cut(line[: self._limit]))
        elif line.startswith(b"{") and not line.endswith(b"}") and (depth := _depth(line)) > 0:
            self._object, self._open, self._size = [line], depth, len(line)
        elif line:
            objects, rest = _objects(line) if joined else ([], line)
            events += [*objects, *([] if rest in (b"", b"[", b"]") else [rest])]

    def _go_on(self, line: bytes, events: list[bytes]) -> None:
        """Add a line to the object."""
        self._open += _depth(line)
        self._size += 1 + len(line)
        if self._object:
            self._object.append(line)
            if self._size > self._limit:
                events.append(Cut(b"\n".join(self._object)[: self._limit]))
                self._object = []
            elif self._open <= 0:
                events.append(b"\n".join(self._object))
                self._object = []


def _depth(text: bytes) -> int:
    """Return the number of braces it opens, less those it closes."""
    text = _STRING.sub(b"", text)
    return text.count(b"{") - text.count(b"}")


def _objects(text: bytes) -> tuple[list[bytes], bytes]:
    """The objects it begins with, which no newline separates, and what is left. It takes time in proportion."""
    found: list[bytes] = []
    if not _BEGINNING.match(text):
        return found, text
    outside = _STRING.sub(lambda match: b"-" * len(match[0]), text)
    start = looked = depth = 0
    for end in (match.end() for match in _BRACE.finditer(outside)):
        depth += outside.count(b"{", looked, end) - outside.count(b"}", looked, end)
        looked = end
        if depth == 0:
            found.append(text[start:end].lstrip(b"[, \t\r"))
            start = end
    return found, text[start:]


def _joined(text: bytes) -> bool:
    """Return True where more than one object may be in it."""
    return b"}{" in text or text.startswith((b"[", b","))
