"""Events and their ids."""

from __future__ import annotations

from typing import NamedTuple

import msgspec


class Event(msgspec.Struct):
    """A body of bytes with text headers, as in Flume.

    The agent never decodes the body. Bytes that are not UTF-8 arrive unchanged.
    """

    body: bytes
    headers: dict[str, str] = {}  # msgspec copies it for each instance


class EventId(NamedTuple):
    """Location of an event in its channel: unique for ever, and equal on every redelivery."""

    topic: str
    """The topic, with a hash that distinguishes it from topics of the same name: `Assignment.id_prefix`."""
    partition: int
    offset: int
    """Offset of the record that contains the event."""
    index: int  # type: ignore[assignment]  # hides tuple.index, which nothing here needs
    """Position of the event in that record, from 0."""

    @classmethod
    def parse(cls, text: str) -> EventId:
        """Return the id that `str(id)` has written as this text. Raises ValueError for any other text."""
        topic, partition, offset, index = text.rsplit("-", 3)
        return cls(topic, int(partition), int(offset), int(index))

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}-{self.offset}-{self.index}"
