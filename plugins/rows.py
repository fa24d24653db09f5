"""Row view of a batch of few events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat
from typing import Any

import pyarrow as pa

from flafka.plugins.columns import HEADER_TYPE, MAX_HEADER_COLUMNS, OVERFLOW_TYPE, Array
from flafka.plugins.event import Event

MAX_ROWS = 64
"""Largest number of events that a batch keeps as rows."""
OFFSET_BYTES = 4
"""Size of the offset of each text in a column, which rows count as well."""


class EventRows:
    """Few events, and the names of their headers. Immutable: batches and threads share events, dicts and names.

    Each event has its headers in the order of `names`, as columns have. No event needs to have a name.
    """

    __slots__ = ("events", "names")

    def __init__(self, events: Sequence[Event], names: Mapping[str, None]) -> None:
        self.events, self.names = events, names

    @classmethod
    def copy(cls, events: Sequence[Any]) -> EventRows | None:
        """Return copies of events, with the names of their headers in the order of their first occurrence.

        None for more than `MAX_ROWS` events or `MAX_HEADER_COLUMNS` names, and if an event is not plain: columns
        convert or refuse it.
        """
        if len(events) > MAX_ROWS:
            return None
        names: dict[str, None] = {}
        for event in events:
            if type(event) is not Event or type(event.body) is not bytes or type(event.headers) is not dict:
                return None
            for name, value in event.headers.items():
                if not (type(name) is str and type(value) is str and _is_unicode(name) and _is_unicode(value)):
                    return None
                names[name] = None
        if len(names) > MAX_HEADER_COLUMNS:
            return None
        order = list(names)
        return cls([Event(event.body, _ordered(event.headers.copy(), order)) for event in events], names)

    @classmethod
    def concat(cls, parts: Sequence[EventRows], *, keeps_order: bool = False) -> EventRows:
        """Return all events, in order, and all names, however many.

        With `keeps_order`, the headers of each event keep their order, as a column of maps has them.
        """
        names = {name: None for part in parts for name in part.names}
        events = [event for part in parts for event in part.events]
        if not keeps_order:
            order = list(names)
            events = [Event(event.body, _ordered(event.headers, order)) for event in events]
        return cls(events, names)

    def bodies(self) -> Array:
        """Return the bodies as a binary array."""
        return pa.array([event.body for event in self.events], pa.binary())

    def header(self, name: str) -> Array:
        """Return one header of each event as a dictionary-encoded array, null if an event lacks the header."""
        return pa.array([event.headers.get(name) for event in self.events], HEADER_TYPE)

    def header_maps(self) -> Array:
        """Return the headers of each event as a map array without nulls."""
        return pa.array([list(event.headers.items()) for event in self.events], OVERFLOW_TYPE)

    def nbytes(self) -> int:
        """Return the size of bodies and headers in bytes of UTF-8, with the offset that a column has for each."""
        return sum(map(_event_bytes, self.events))

    def with_bodies(self, bodies: Array) -> EventRows:
        """Return the events with other bodies: a binary array without nulls, one for each event."""
        pairs = zip(self.events, bodies.to_pylist(), strict=True)
        return EventRows([Event(body, event.headers) for event, body in pairs], self.names)

    def with_header(self, name: str, values: str | Iterable[str | None], *, preserve_existing: bool) -> EventRows:
        """Return the events with a header set to one text, or to one value for each event, None to remove it.

        With `preserve_existing`, the value of an event that has the header already is unchanged. Raises
        UnicodeEncodeError for a text with a lone surrogate.
        """
        name = _plain(name)
        texts = repeat(_plain(values), len(self.events)) if isinstance(values, str) else values
        names = self.names if name in self.names else {**self.names, name: None}
        if preserve_existing and all(name in event.headers for event in self.events):
            return self
        order = list(names)
        events = []
        for event, text in zip(self.events, texts, strict=True):
            headers = event.headers
            if not (preserve_existing and name in headers):
                if text is not None:
                    headers = _ordered(headers | {name: text}, order)
                elif name in headers:
                    headers = {other: value for other, value in headers.items() if other != name}
            events.append(Event(event.body, headers))
        return EventRows(events, names)

    def without_headers(self, removed: Iterable[str]) -> EventRows:
        """Return the events without these headers."""
        names = {name: None for name in self.names if name not in removed}
        order = list(names)
        return EventRows([Event(event.body, _ordered(event.headers, order)) for event in self.events], names)

    def where(self, mask: Iterable[bool]) -> EventRows:
        """Return the events for which `mask` is true. Raises ValueError if it has another number of values."""
        pairs = zip(self.events, mask, strict=True)
        return EventRows([event for event, is_chosen in pairs if is_chosen], self.names)


def _ordered(headers: dict[str, str], order: list[str]) -> dict[str, str]:
    """Return the headers that `order` names, in that order; the dict itself if nothing changes."""
    if list(headers) == order:
        return headers
    return {name: headers[name] for name in order if name in headers}


def _event_bytes(event: Event) -> int:
    """Return the size of body and headers in bytes of UTF-8, and of an offset for each text."""
    size = len(event.body) + OFFSET_BYTES
    for name, value in event.headers.items():
        size += OFFSET_BYTES + _text_bytes(name) + _text_bytes(value)
    return size


def _text_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def _is_unicode(text: str) -> bool:
    """Return True if a text has no lone surrogate, which UTF-8 cannot encode."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _plain(text: str) -> str:
    """Return a text, also of a subclass, as columns return it. Raises UnicodeEncodeError for a lone surrogate."""
    return str.encode(text).decode()
