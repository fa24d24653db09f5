"""Lookup of one event in the files of a channel, beside the agent or without it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from flafka.channels.file.log import Segment, files
from flafka.plugins import (
    Assignment,
    Batch,
    EventId,
    EventLocation,
    OffsetRange,
    Origin,
    PolledBatch,
    Record,
    Undecodable,
)


def find(
    directories: Sequence[Path], run: str, id: EventId, committed: Assignment, groups: Collection[str | None]
) -> EventLocation:
    """Return the location of an event of that run, given the run's committed offset. Raises OSError."""
    path, polled = _read(directories, run, id, committed)
    place: dict[str, str | int] = {"file": str(path) if path is not None else "", "entry": id.offset}
    if polled is not None:
        events = len(polled.batch)
        missing = f"entry {id.offset} holds {events} events, numbered from 0" if id.index >= events > 0 else ""
    elif id.offset < (committed.next_offset or 0):
        missing = "it was delivered, and its file was deleted"
    else:
        missing = f"its files have no entry {id.offset}"
    return EventLocation(place, polled, missing, dict.fromkeys(groups or [None], committed))


def _read(
    directories: Sequence[Path], run: str, id: EventId, committed: Assignment
) -> tuple[Path | None, PolledBatch | None]:
    for first, of_run, path in reversed(files([one for one in directories if one.is_dir()])):
        if first > id.offset or of_run != run:
            continue
        segment = Segment(path, first, run)
        at: int | None = 0
        while at is not None and (found := segment.header(at)) is not None and found.number <= id.offset:
            if (found.number, found.partition) == (id.offset, id.partition) and (entry := segment.read(at)):
                return path, _polled(id, committed, entry[0].arrival, bytes(entry[1]))
            at = segment.next_whole(at + found.length)
        return path, None
    return None, None


def _polled(id: EventId, committed: Assignment, arrival: int, payload: bytes) -> PolledBatch:
    offsets = OffsetRange(id.offset, id.offset + 1)
    try:
        batch = Batch.from_ipc(payload)
    except ValueError as e:
        record = Record(id.offset, arrival, None, payload, [])
        undecodable = Undecodable(id._replace(index=0), record, str(e))
        return PolledBatch(committed, offsets, Batch.of([]), (undecodable,))
    topic, prefix = committed.topic, committed.id_prefix
    origin = Origin.of_record(topic, id.partition, id.offset, arrival, len(batch), prefix)
    return PolledBatch(committed, offsets, Batch(batch.records, origin))
