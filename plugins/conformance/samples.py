"""The events that components are tried with."""

from __future__ import annotations

from collections.abc import Iterable

from flafka.plugins.batch import Batch
from flafka.plugins.columns import MAX_HEADER_COLUMNS
from flafka.plugins.event import Event
from flafka.plugins.origin import Origin

ARRIVAL_SECONDS = 30.0
"""Maximum time in which a component brings in what was sent, or hands out what was put."""

ODD = b"caf\xe9 \xff\xfe \xc3"
"""A body that is not UTF-8."""


def sample_events() -> list[Event]:
    """Events of every kind that a component has to bear: 1 to 500 bytes, odd bytes, no header, very many headers."""
    many = {f"h{i}": str(i) for i in range(MAX_HEADER_COLUMNS + 20)}
    events = [Event(b"line %d" % i, {"host": f"web-{i % 3}", "é": "ü"} if i % 2 else {}) for i in range(100)]
    return [*events, Event(ODD, {"body": "a header"}), Event(b"x" * 500, many), Event(b"last", {})]


def batch_of(events: list[Event], offset: int) -> Batch:
    """Events as a channel hands them out, in one record."""
    return Batch.of(events, Origin.of_record("conformance", 0, offset, 1_700_000_000_000 + offset, len(events)))


def some_of(bodies: Iterable[bytes]) -> str:
    """Describe bodies by their number and the first three."""
    listed = list(bodies)
    return f"{len(listed)} events, such as {', '.join(map(repr, listed[:3]))}"
