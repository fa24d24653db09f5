"""Lookup of an event in the segments of a channel, which may be open in an agent."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from flafka.channels.file.log import Segment, segment_files
from flafka.plugins import (
    Assignment,
    Batch,
    EventId,
    EventLocation,
    OffsetRange,
    Origin,
    PolledBatch,
    Record,
    UndecodableRecord,
)


def find_event(
    directories: Sequence[Path], run: str, id: EventId, committed: Assignment, groups: Collection[str | None]
) -> EventLocation:
    """Return the location of an event of a run, given the committed offset of its partition.

    An event that is not found has the reason in `missing`. `groups` all get the offset `committed`. Raises OSError.
    """
    path, polled = _read_entry(directories, run, id, committed)
    location: dict[str, str | int] = {"file": str(path) if path is not None else "", "entry": id.offset}
    if polled is not None:
        events = len(polled.batch)
        missing = f"entry {id.offset} has {events} events, numbered from 0" if id.index >= events > 0 else ""
    elif id.offset < (committed.next_offset or 0):
        missing = "the event was delivered, and its file was deleted"
    else:
        missing = f"the files of its run have no entry {id.offset}"
    return EventLocation(location, polled, missing, dict.fromkeys(groups or [None], committed))


def _read_entry(
    directories: Sequence[Path], run: str, id: EventId, committed: Assignment
) -> tuple[Path | None, PolledBatch | None]:
    """Return the path of the segment that should have the event's entry, and the decoded entry.

    Both are None if no segment can have it, and the second if the segment lacks it. Raises OSError.
    """
    for first, segment_run, path in reversed(segment_files([d for d in directories if d.is_dir()])):
        if first > id.offset or segment_run != run:
            continue
        segment = Segment(path, first, run)
        offset: int | None = 0
        while offset is not None and (header := segment.header(offset)) is not None and header.number <= id.offset:
            if (header.number, header.partition) == (id.offset, id.partition) and (entry := segment.read(offset)):
                return path, _decode(id, committed, entry[0].arrival, bytes(entry[1]))
            offset = segment.find_entry(offset + header.length)
        return path, None
    return None, None


def _decode(id: EventId, committed: Assignment, arrival: int, payload: bytes) -> PolledBatch:
    """Return an entry as a batch with ids; one that cannot be decoded is in `undecodable`."""
    offsets = OffsetRange(id.offset, id.offset + 1)
    try:
        batch = Batch.from_ipc(payload)
    except ValueError as e:
        record = Record(id.offset, arrival, None, payload, [])
        undecodable = UndecodableRecord(id._replace(index=0), record, str(e))
        return PolledBatch(committed, offsets, Batch.of([]), (undecodable,))
    topic, prefix = committed.topic, committed.id_prefix
    origin = Origin.of_record(topic, id.partition, id.offset, arrival, len(batch), prefix)
    return PolledBatch(committed, offsets, batch.with_origin(origin))
