"""Formats of events in Kafka records.

- `arrow`: a record holds a batch, as one Arrow IPC stream.
- `flume`: a record holds one event, as Flume's KafkaChannel writes it; the record's key is the header `key`.
- `raw`: a record's value is one body, its headers are the event's headers, its key is the header `key`.

The record header `flafka.format` names format and version of `arrow` and `raw` records, so that formats may change,
and be mixed, within a topic. Flume's records have no record headers.

A dead letter that is replayed says so behind its format (`arrow/1 replayed`): other record headers name the one
consumer group that it is for, and the event's id.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flafka.plugins import (
    Assignment,
    Batch,
    Event,
    EventId,
    LastRecord,
    OffsetRange,
    Origin,
    PolledBatch,
    Record,
    Undecodable,
)
from flafka.plugins.columns import MAX_HEADER_COLUMNS, OVERFLOW_TYPE
from flafka.plugins.shared import flumeevent

Format = Literal["arrow", "flume", "raw"]

FORMAT = "flafka.format"
ARROW, RAW, FLUME = b"arrow/1", b"raw/1", b"flume"
KEY = "key"
"""The header that is the record's key, in Flume's channel and in ours."""
REPLAYED = b" replayed"
GROUP, ID, ARRIVAL = "flafka.group", "flafka.id", "flafka.arrival"
"""Record headers of a replayed record: its consumer group, the event's id, and its first arrival in the channel."""

IPC_COMPRESSION_BYTES = 64 << 10
"""Smallest batch whose buffers are compressed within the stream, so that brokers decompress little to validate it.
Smaller batches are left to Kafka, which compresses several records together: a small stream alone would not gain."""
IPC_ZSTD_BYTES = 1 << 20
"""Smallest batch that is compressed with Zstandard rather than LZ4, unless somebody chose: logs take 40 % less room
for half as much CPU time again. A smaller stream would take several times as much, as each of its buffers begins with
an empty context."""
MERGE_EVENTS = 10_000
"""Small records are handed out together, up to so many events."""
MERGE_BYTES = 16 << 20
"""… and up to so many bytes."""
FEW = 32
"""Largest number of records that are decoded one by one, which is faster than by columns."""

KafkaHeaders = list[tuple[str, str | bytes | None]]


def encode(batch: Batch, compression: str | None = None) -> bytes:
    """The value of an `arrow` record. `compression` is Kafka's `compression.type`, None where nobody chose one; what
    Arrow has not got is not chosen either.
    """
    codec: str | None = "zstd" if batch.nbytes >= IPC_ZSTD_BYTES else "lz4"
    if batch.nbytes < IPC_COMPRESSION_BYTES or compression == "none":
        codec = None
    elif compression in ("lz4", "zstd"):
        codec = compression
    data: bytes = batch.to_ipc(codec).to_pybytes()
    return data


def raw_headers(batch: Batch) -> list[KafkaHeaders]:
    """The record headers of each event in `raw`."""
    if OVERFLOW_TYPE in batch.records.schema.types:
        return [[(FORMAT, RAW), *event.headers.items()] for event in batch]
    rows: list[KafkaHeaders] = [[(FORMAT, RAW)] for _ in range(len(batch))]
    for name in batch.header_names:
        column = batch.header(name)
        pairs: KafkaHeaders = [(name, value) for value in column.dictionary.cast(pa.binary()).to_pylist()]
        for row, code in zip(rows, column.indices.to_pylist(), strict=True):
            if code is not None:
                row.append(pairs[code])
    return rows


def texts_of(batch: Batch, header: str) -> list[str | None]:
    """Return the value of a header for each event; empty if no event has that header."""
    column = batch.header(header)
    if column.null_count == len(column):
        return []
    # Of a dictionary each text would cost ten times that.
    texts: list[str | None] = column.dictionary_decode().to_pylist()
    return texts


def encode_event(event: Event, format: Format) -> Record:
    """A record that holds this event alone."""
    batch = Batch.of([event])
    key = event.headers.get(KEY, "").encode() or None
    if format == "arrow":
        return Record(-1, -1, None, encode(batch), [(FORMAT, ARROW)])
    if format == "flume":
        return Record(-1, -1, key, flumeevent.encode_event(event), [])
    headers = [(name, text.encode() if isinstance(text, str) else text) for name, text in raw_headers(batch)[0]]
    return Record(-1, -1, key, event.body, headers)


def readdressed(record: Record, id: EventId, arrival: int, group: str) -> Record:
    """Return a copy of the record for one consumer group alone, with that event id and time of arrival."""
    own: list[tuple[str, bytes | None]] = [
        (FORMAT, (format_of(record) or b"") + REPLAYED),
        (GROUP, group.encode()),
        (ID, str(id).encode()),
        (ARRIVAL, b"%d" % arrival),
    ]
    headers = list(record.headers)
    named = next((place for place, (name, _) in enumerate(headers) if name == FORMAT), len(headers))
    return record._replace(headers=[*own, *headers[:named], *headers[named + 1 :]])


def decode(records: Iterator[Record], assignment: Assignment, *, parse_as_flume_event: bool) -> PolledBatch | None:
    """The next records of one partition, joined up to a good size; None when there are no more.

    Each is read by the format it names; one that names none is Flume's, or a mere body without
    `parse_as_flume_event`. What cannot be read comes back as undecodable, never as an error.
    """
    unnamed = FLUME if parse_as_flume_event else RAW
    gathered = _Gathered(assignment, unnamed)
    for record in records:
        gathered.add(record)
        if gathered.events >= MERGE_EVENTS or gathered.size >= MERGE_BYTES:
            break
    return gathered.polled()


def format_of(record: Record) -> bytes | None:
    """Format and version that the record names."""
    for name, value in record.headers:
        if name == FORMAT:
            return value or b""
    return None


class _Gathered:
    """Records of one partition on their way to one batch."""

    def __init__(self, assignment: Assignment, unnamed: bytes) -> None:
        self.assignment, self.unnamed = assignment, unnamed
        self.events = self.size = 0
        self._start = self._end = self._timestamp = -1
        self._parts: list[Batch] = []
        self._undecodable: list[Undecodable] = []
        self._replays: dict[EventId, int] = {}
        self._run: list[Record] = []
        self._run_format = b""

    def add(self, record: Record) -> None:
        written = format_of(record) or self.unnamed
        if self._start < 0:
            self._start = record.offset
        self._end, self._timestamp = record.offset + 1, record.timestamp
        if written != self._run_format:
            self._end_run()
            self._run_format = written
        self.size += len(record.value or b"")
        if written in (FLUME, RAW):
            self._run.append(record)
            self.events += 1
        else:
            self._batch(record, written)

    def polled(self) -> PolledBatch | None:
        if self._start < 0:
            return None
        self._end_run()
        if not self._parts:
            self._single_events(Batch.of([]), [])
        offsets, batch = OffsetRange(self._start, self._end), Batch.concat(self._parts)
        undecodable = tuple(self._undecodable)
        return PolledBatch(self.assignment, offsets, batch, undecodable, self._replays, LastRecord(self._timestamp))

    def _batch(self, record: Record, written: bytes) -> None:
        if written.endswith(REPLAYED):
            self._replayed(record, written.removesuffix(REPLAYED))
            return
        if written != ARROW:
            name = written.decode(errors="replace")
            known = f"{ARROW.decode()} and {RAW.decode()}"
            why = f"the record's format ({FORMAT} header) is {name}, and this agent reads {known}"
            self._reject(record, f"{why}: deliver it with the agent that wrote it, or replay it with a later one")
            return
        try:
            batch = Batch.from_ipc(record.value or b"")
        except ValueError as e:
            self._reject(record, str(e))
            return
        one = self.assignment
        origin = Origin.of_record(
            one.topic, one.partition, record.offset, record.timestamp, len(batch), one.id_prefix
        )
        self._parts.append(Batch(batch.records, origin))
        self.events += len(batch)

    def _replayed(self, record: Record, written: bytes) -> None:
        """Decode it as the record it was, at the place it was, if it is for this group."""
        marks = dict(record.headers[:4])
        try:
            group = (marks[GROUP] or b"").decode()
            arrival = int(marks[ARRIVAL] or b"")
            topic, partition, offset, index = EventId.parse((marks[ID] or b"").decode())
        except (KeyError, ValueError):
            self._reject(record, f"it is marked as replayed, but without a valid {GROUP}, {ID} and {ARRIVAL}")
            return
        if group != self.assignment.group:
            return
        if (topic, partition) != (self.assignment.id_prefix, self.assignment.partition):
            # It was in another topic of this name, or the topic has fewer partitions than it had: an id of its own.
            offset, index = record.offset, 0
        headers = [(FORMAT, written), *record.headers[4:]] if written else record.headers[4:]
        alone = _Gathered(self.assignment, self.unnamed)
        alone.add(record._replace(offset=offset, timestamp=arrival, headers=headers))
        polled = alone.polled()
        assert polled is not None
        self._undecodable += polled.undecodable
        self._replays.update((one.id, record.offset) for one in polled.undecodable)
        if (origin := polled.batch.origin) is not None and len(polled.batch):
            origin = replace(origin, indexes=origin.indexes + np.int32(index))
            batch = Batch(polled.batch.records, origin)
            self._parts.append(batch)
            self._replays.update(dict.fromkeys(batch.ids(), record.offset))
            self.events += len(polled.batch)

    def _end_run(self) -> None:
        records, self._run = self._run, []
        if records:
            decode = self._flume if self._run_format == FLUME else self._raw
            decode(records)

    def _flume(self, records: list[Record]) -> None:
        values = [record.value for record in records]
        if len(values) > FEW and None not in values:
            batch = flumeevent.decode(values)  # type: ignore[arg-type]  # None was looked for
            if batch is not None:
                self._single_events(batch, records)
                return
        events, kept = [], []
        for record in records:
            try:
                events.append(flumeevent.decode_event(record.value or b""))
                kept.append(record)
            except ValueError as e:
                why = f"it has no {FORMAT} header, and is no AvroFlumeEvent either: {e}"
                self._reject(record, f"{why}; `parseAsFlumeEvent = false` takes any record as a body")
        self._single_events(Batch.of(events), kept)

    def _raw(self, records: list[Record]) -> None:
        bodies = pa.array([record.value or b"" for record in records], pa.binary())
        columns: dict[str, list[str | None]] = {}
        for row, record in enumerate(records):
            for name, value in record.headers:
                if value is None or (name == FORMAT and value == RAW):
                    continue
                column = columns.get(name)
                if column is None:
                    columns[name] = column = [None] * len(records)
                column[row] = value.decode(errors="replace")
        if len(columns) <= MAX_HEADER_COLUMNS:
            batch = Batch.of_columns(bodies, columns)
        else:
            events = [Event(body) for body in bodies.to_pylist()]
            for name, values in columns.items():
                for event, text in zip(events, values, strict=True):
                    if text is not None:
                        event.headers[name] = text
            batch = Batch.of(events)
        self._single_events(batch, records)

    def _single_events(self, batch: Batch, records: Sequence[Record]) -> None:
        """Keep events of which each was a record of its own, with their keys and ids."""
        if any(record.key is not None for record in records):
            keys = pa.array([None if r.key is None else r.key.decode(errors="replace") for r in records], pa.string())
            batch = batch.with_header(KEY, pc.coalesce(keys, batch.header(KEY).dictionary_decode()))
        one, offsets, timestamps = self.assignment, [r.offset for r in records], [r.timestamp for r in records]
        origin = Origin.of_records(one.topic, one.partition, offsets, timestamps, one.id_prefix)
        self._parts.append(Batch(batch.records, origin))

    def _reject(self, record: Record, reason: str) -> None:
        id = EventId(self.assignment.id_prefix, self.assignment.partition, record.offset, 0)
        self._undecodable.append(Undecodable(id, record, reason))
