"""Where in a channel events came from: what their ids are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from flafka.plugins.event import EventId


@dataclass(frozen=True, slots=True, eq=False)
class Origin:
    """Where in a channel the rows of a batch came from; all of one partition. Arrays have one entry a row."""

    topic: str
    partition: int
    offsets: npt.NDArray[np.int64]
    """Offset of the record each row came in."""
    indexes: npt.NDArray[np.int32]
    """Place of each row within its record."""
    timestamps: npt.NDArray[np.int64]
    """Time of arrival of each record in the channel, milliseconds since the epoch."""
    id_prefix: str = ""
    """What ids begin with, where that is not the topic's bare name: `Assignment.id_prefix`."""

    @classmethod
    def of_records(
        cls, topic: str, partition: int, offsets: Sequence[int], timestamps: Sequence[int], id_prefix: str = ""
    ) -> Origin:
        """The origin of rows of which each was a record of its own."""
        return cls(
            topic,
            partition,
            np.array(offsets, np.int64),
            np.zeros(len(offsets), np.int32),
            np.array(timestamps, np.int64),
            id_prefix,
        )

    @classmethod
    def of_record(
        cls, topic: str, partition: int, offset: int, timestamp: int, events: int, id_prefix: str = ""
    ) -> Origin:
        """The origin of all `events` rows of one record."""
        return cls(
            topic,
            partition,
            np.full(events, offset, np.int64),
            np.arange(events, dtype=np.int32),
            np.full(events, timestamp, np.int64),
            id_prefix,
        )

    def select(self, rows: Any) -> Origin:
        """The origin of the chosen rows: a slice, a boolean mask or row numbers."""
        return Origin(
            self.topic, self.partition, self.offsets[rows], self.indexes[rows], self.timestamps[rows], self.id_prefix
        )

    def id(self, row: int) -> EventId:
        """The id of the event in that row."""
        return EventId(self.id_prefix or self.topic, self.partition, int(self.offsets[row]), int(self.indexes[row]))
