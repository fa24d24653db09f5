"""Framing of JSON events in the stream of an application."""

from __future__ import annotations

import re

_JSON_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)')
"""JSON string, which may be incomplete at the end of the text."""
_OBJECT_START = re.compile(rb"(?:[\[,]\s*)?\{")
_OBJECT_END = re.compile(rb"\}(?=(?:,\s*+)?\{|\s*+\]?\s*\Z)")
"""Brace that may end an object: another object or nothing follows."""


class TruncatedEvent(bytes):
    """Beginning of an event that exceeded the limit."""


class Log4jFramer:
    """Framer of one connection: events are lines, or JSON objects that span lines or share one.

    JsonLayout writes objects over many lines, or many on one line; ecs-logging-java writes stack traces over many
    lines; GELF ends events with NUL. A line that begins an object ends an unfinished object before it, whose loss
    then affects no other event. `limit`: maximum size of an event, in bytes; the rest of a longer one is dropped.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._pending: list[bytes] = []
        """Received parts of an incomplete line, joined only where an event may end.

        Joining them at each read would take quadratic time.
        """
        self._pending_bytes = 0
        """Size of `_pending`."""
        self._is_splittable = False
        """True if `_pending` may hold more than one object."""
        self._scanned_bytes = 0
        """Size up to which `_pending` is not scanned again: 9/8 of its size at the last scan."""
        self._is_skipping = False
        """True while the rest of a truncated line is dropped."""
        self._object_lines: list[bytes] = []
        """Lines of an unfinished object, with `_open_braces` open braces and `_object_bytes` bytes."""
        self._open_braces = 0
        self._object_bytes = 0

    def feed(self, data: bytes) -> list[bytes]:
        """Return the events that `data` completes, in order; an event beyond the limit as a `TruncatedEvent`."""
        events: list[bytes] = []
        *lines, remainder = data.replace(b"\0", b"\n").split(b"\n")
        if lines:
            lines[0] = self._release() + lines[0]
            self._scanned_bytes = 0
            if self._is_skipping:
                self._is_skipping = False
                del lines[0]
        for line in lines:
            self._add_line(line, events)
        if self._is_skipping:
            return events
        self._append(remainder)
        if self._pending_bytes > self._scanned_bytes and (remainder.endswith(b"}") or self._is_splittable):
            objects, remainder = _split_objects(self._release())
            self._append(remainder)
            self._scanned_bytes = len(remainder) + len(remainder) // 8
            for line in objects:
                self._add_line(line, events)
        if self._pending_bytes > self._limit:
            self._add_line(self._release(), events)
            self._is_skipping = True
        return events

    def end(self) -> list[bytes]:
        """Return the remaining data at the end of the connection, as events.

        Each line of an unfinished object is one event.
        """
        events: list[bytes] = []
        if self._pending_bytes:
            self._add_line(self._release(), events)
        events += self._object_lines
        self._object_lines = []
        return events

    def _append(self, piece: bytes) -> None:
        """Append received bytes to the incomplete line; note if it may hold several objects."""
        if piece:
            last = self._pending[-1][-1:] if self._pending else b""
            self._is_splittable = (
                self._is_splittable or b"}{" in last + piece or (not last and _has_several_objects(piece))
            )
            self._pending.append(piece)
            self._pending_bytes += len(piece)

    def _release(self) -> bytes:
        """Remove and return the incomplete line."""
        text = b"".join(self._pending)
        self._pending, self._pending_bytes, self._is_splittable = [], 0, False
        return text

    def _add_line(self, line: bytes, events: list[bytes]) -> None:
        """Append the events of a complete line to `events`, or begin or continue an object of several lines."""
        if self._open_braces > 0 and not _OBJECT_START.match(line):
            self._continue_object(line, events)
            return
        events += self._object_lines  # an unfinished object is no JSON
        self._object_lines, self._open_braces = [], 0
        # JsonLayout with complete = true writes all events of a connection as one array.
        is_splittable = _has_several_objects(line)
        line = line.strip(b" \t\r,")
        if len(line) > self._limit:
            events.append(TruncatedEvent(line[: self._limit]))
        elif line.startswith(b"{") and not line.endswith(b"}") and (depth := _depth(line)) > 0:
            self._object_lines, self._open_braces, self._object_bytes = [line], depth, len(line)
        elif line:
            objects, remainder = _split_objects(line) if is_splittable else ([], line)
            events += [*objects, *([] if remainder in (b"", b"[", b"]") else [remainder])]

    def _continue_object(self, line: bytes, events: list[bytes]) -> None:
        """Add a line to the unfinished object; append the object to `events` once it is complete or too long."""
        self._open_braces += _depth(line)
        self._object_bytes += 1 + len(line)
        if self._object_lines:
            self._object_lines.append(line)
            if self._object_bytes > self._limit:
                events.append(TruncatedEvent(b"\n".join(self._object_lines)[: self._limit]))
                self._object_lines = []
            elif self._open_braces <= 0:
                events.append(b"\n".join(self._object_lines))
                self._object_lines = []


def _depth(text: bytes) -> int:
    """Return the number of opening braces less that of closing ones, outside of strings."""
    text = _JSON_STRING.sub(b"", text)
    return text.count(b"{") - text.count(b"}")


def _split_objects(text: bytes) -> tuple[list[bytes], bytes]:
    """Return the complete objects at the start of a line, and the text behind the last of them. Takes linear time."""
    objects: list[bytes] = []
    if not _OBJECT_START.match(text):
        return objects, text
    outside = _JSON_STRING.sub(lambda match: b"-" * len(match[0]), text)
    start = counted = depth = 0
    for end in (match.end() for match in _OBJECT_END.finditer(outside)):
        depth += outside.count(b"{", counted, end) - outside.count(b"}", counted, end)
        counted = end
        if depth == 0:
            objects.append(text[start:end].lstrip(b"[, \t\r"))
            start = end
    return objects, text[start:]


def _has_several_objects(text: bytes) -> bool:
    """Return True if a line contains `}{`, or begins with `[` or `,`: it may hold several JSON objects.

    Objects with other characters between them count only in an array.
    """
    return b"}{" in text or text.startswith((b"[", b","))
