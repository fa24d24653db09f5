"""One event, as a plugin author sees it."""

from typing import NamedTuple

import msgspec


class Event(msgspec.Struct):
    """A body of bytes with text headers: Flume's event.

    The body is never decoded by the agent; bytes that are not UTF-8 arrive as they were sent.
    """

    body: bytes
    headers: dict[str, str] = {}  # msgspec copies it for each instance


class EventId(NamedTuple):
    """Where an event lies in its channel: unique for ever within one topic, and the same on every redelivery."""

    topic: str
    partition: int
    offset: int
    """Offset of the record that holds the event."""
    index: int  # type: ignore[assignment]  # the design's word; tuple.index is not needed here
    """Place of the event within that record."""

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}-{self.offset}-{self.index}"
