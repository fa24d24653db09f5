"""One event, as a plugin author sees it."""

from __future__ import annotations

from typing import NamedTuple

import msgspec


class Event(msgspec.Struct):
    """A body of bytes with text headers: Flume's event.

    The body is never decoded by the agent; bytes that are not UTF-8 arrive as they were sent.
    """

    body: bytes
    headers: dict[str, str] = {}  # msgspec copies it for each instance


class EventId(NamedTuple):
    """Where an event lies in its channel: unique for ever, and the same on every redelivery."""

    topic: str
    """The topic, and what tells it from others of that name, in other clusters or made before: see
    `Assignment.id_prefix`."""
    partition: int
    offset: int
    """Offset of the record that holds the event."""
    index: int  # type: ignore[assignment]  # the design's word; tuple.index is not needed here
    """Place of the event within that record."""

    @classmethod
    def parse(cls, text: str) -> EventId:
        """The id of which that is the text. ValueError for any other."""
        topic, partition, offset, index = text.rsplit("-", 3)
        return cls(topic, int(partition), int(offset), int(index))

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}-{self.offset}-{self.index}"
