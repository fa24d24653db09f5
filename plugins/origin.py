"""Locations of a batch's events in a channel, from which their ids are derived."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from flafka.plugins.event import EventId


@dataclass(frozen=True, slots=True, eq=False)
class Origin:
    """Locations of a batch's rows in a channel, all in one partition. Each array has one entry for each row."""

    topic: str
    partition: int
    offsets: npt.NDArray[np.int64]
    """Offset of the record that contains the row."""
    indexes: npt.NDArray[np.int32]
    """Position of the row in its record, from 0."""
    timestamps: npt.NDArray[np.int64]
    """Time of arrival of the record in the channel, in milliseconds since the epoch."""
    id_prefix: str = ""
    """Prefix of ids, as `Assignment.id_prefix`; empty for the bare name of the topic."""

    @classmethod
    def of_records(
        cls, topic: str, partition: int, offsets: Sequence[int], timestamps: Sequence[int], id_prefix: str = ""
    ) -> Origin:
        """Return the origin of rows that are one record each."""
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
        """Return the origin of the rows of one record, `events` in number."""
        return cls(
            topic,
            partition,
            np.full(events, offset, np.int64),
            np.arange(events, dtype=np.int32),
            np.full(events, timestamp, np.int64),
            id_prefix,
        )

    def select(self, rows: Any) -> Origin:
        """Return the origin of some rows, given as a slice, a boolean mask or row numbers."""
        return Origin(
            self.topic, self.partition, self.offsets[rows], self.indexes[rows], self.timestamps[rows], self.id_prefix
        )

    def id(self, row: int) -> EventId:
        """Return the id of the event in that row."""
        return EventId(self.id_prefix or self.topic, self.partition, int(self.offsets[row]), int(self.indexes[row]))
