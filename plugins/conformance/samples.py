"""Sample events for the conformance checks."""

from __future__ import annotations

from collections.abc import Iterable

from flafka.plugins.batch import Batch
from flafka.plugins.columns import MAX_HEADER_COLUMNS
from flafka.plugins.event import Event
from flafka.plugins.origin import Origin

ARRIVAL_SECONDS = 30.0
"""Longest time in which a source yields sent events, or a channel hands out stored ones."""

NON_UTF8_BODY = b"caf\xe9 \xff\xfe \xc3"
"""A body that is not UTF-8."""


def sample_events() -> list[Event]:
    """Return events of every kind: 4 to 500 bytes, bytes that are not UTF-8, no headers, very many headers."""
    many = {f"h{i}": str(i) for i in range(MAX_HEADER_COLUMNS + 20)}
    events = [Event(b"line %d" % i, {"host": f"web-{i % 3}", "é": "ü"} if i % 2 else {}) for i in range(100)]
    return [*events, Event(NON_UTF8_BODY, {"body": "a header"}), Event(b"x" * 500, many), Event(b"last", {})]


def make_batch(events: list[Event], offset: int) -> Batch:
    """Return events as the batch of one record of a channel, at that offset."""
    return Batch.of(events, Origin.of_record("conformance", 0, offset, 1_700_000_000_000 + offset, len(events)))


def describe_bodies(bodies: Iterable[bytes]) -> str:
    """Return the number of bodies and the first three, as text."""
    listed = list(bodies)
    return f"{len(listed)} events, such as {', '.join(map(repr, listed[:3]))}"
