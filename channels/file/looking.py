"""Lookup of one event in the files of a channel, beside the agent or without it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from flafka.channels.file.log import Segment, files
from flafka.plugins import Batch, EventId, Origin, PartitionClaim, Record, Taken, Undecodable, Whereabouts


def find(
    directories: Sequence[Path],
    run: str,
    id: EventId,
    claim: PartitionClaim,
    position: int,
    groups: Collection[str | None],
) -> Whereabouts:
    """Return the location of an event of that run; the run is delivered up to `position`. Raises OSError."""
    path, taken = _read(directories, run, id, claim)
    place: dict[str, str | int] = {"file": str(path) if path is not None else "", "entry": id.offset}
    if taken is not None:
        events = len(taken.batch)
        missing = f"entry {id.offset} holds {events} events, numbered from 0" if id.index >= events > 0 else ""
    elif id.offset < position:
        missing = "it was delivered, and its file was deleted"
    else:
        missing = f"its files have no entry {id.offset}"
    return Whereabouts(place, taken, missing, dict.fromkeys(groups or [None], (claim, position)))


def _read(
    directories: Sequence[Path], run: str, id: EventId, claim: PartitionClaim
) -> tuple[Path | None, Taken | None]:
    for first, of_run, path in reversed(files([one for one in directories if one.is_dir()])):
        if first > id.offset or of_run != run:
            continue
        segment = Segment(path, first, run)
        at: int | None = 0
        while at is not None and (found := segment.header(at)) is not None and found.number <= id.offset:
            if (found.number, found.partition) == (id.offset, id.partition) and (entry := segment.read(at)):
                return path, _taken(id, claim, entry[0].arrival, bytes(entry[1]))
            at = segment.next_whole(at + found.length)
        return path, None
    return None, None


def _taken(id: EventId, claim: PartitionClaim, arrival: int, payload: bytes) -> Taken:
    start, end = id.offset, id.offset + 1
    try:
        batch = Batch.from_ipc(payload)
    except ValueError as e:
        record = Record(id.offset, arrival, None, payload, [])
        undecodable = Undecodable(id._replace(index=0), record, str(e))
        return Taken(id.partition, start, end, Batch.of([]), (undecodable,))
    origin = Origin.of_record(claim.topic, id.partition, id.offset, arrival, len(batch), claim.stem)
    return Taken(id.partition, start, end, Batch(batch.records, origin))
