"""Formats of events in Kafka records.

- `arrow`: a record holds a batch, as one Arrow IPC stream. A batch of few small events is `rows`: their number
  as a long of Avro, and one AvroFlumeEvent after the other. A stream takes as long for one event as for hundreds, and
  ten times as much space.
- `flume`: a record holds one event, as Flume's KafkaChannel writes it; the record's key is the header `key`.
- `raw`: a record's value is one body, its headers are the event's headers, its key is the header `key`.

The record header `flafka.format` names format and version of `arrow`, `rows` and `raw` records, so that a topic may
contain several formats. Flume's records have no record headers.

A replayed dead letter is marked after its format (`arrow/1 replayed`). Further record headers name its consumer
group, which alone reads it, and the event's id.
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
    UndecodableRecord,
)
from flafka.plugins.columns import MAX_HEADER_COLUMNS, OVERFLOW_TYPE
from flafka.plugins.wire import flumeevent

Format = Literal["arrow", "flume", "raw"]

FORMAT = "flafka.format"
ARROW, ROWS, RAW, FLUME = b"arrow/1", b"rows/1", b"raw/1", b"flume"
KEY = "key"
"""Event header that is the record's key, as in Flume's channel."""
REPLAYED = b" replayed"
GROUP, ID, ARRIVAL = "flafka.group", "flafka.id", "flafka.arrival"
"""Record headers of a replayed record: its consumer group, the event's id, and its first arrival in the channel."""

IPC_COMPRESSION_BYTES = 64 << 10
"""Smallest batch whose buffers are compressed within the stream, so that brokers decompress little for validation.
Kafka compresses smaller batches, several records together, as a small stream compresses badly."""
IPC_ZSTD_BYTES = 1 << 20
"""Smallest batch that is compressed with Zstandard instead of LZ4, unless a compression is configured. Logs take 40 %
less space for 50 % more CPU time. A smaller stream would need several times as much CPU time, as each of its buffers
begins with an empty context."""
MERGE_EVENTS = 10_000
"""Maximum number of events of small records that are joined."""
MERGE_BYTES = 16 << 20
"""Maximum size of small records that are joined."""
ROWWISE_RECORDS = 32
"""Largest number of records that are decoded one by one, which is faster for few records than by columns."""

MAX_ROWS_OF_RECORD = 32
"""Largest number of events of a `rows` record: an Arrow stream of more takes less CPU time."""

KafkaHeaders = list[tuple[str, str | bytes | None]]


def encode_batch(batch: Batch, compression: str | None = None) -> tuple[bytes, bytes]:
    """Return format and value of a record with this batch: `rows` for few small events, else `arrow`."""
    if batch.rows and len(batch.rows) <= MAX_ROWS_OF_RECORD and batch.nbytes < IPC_COMPRESSION_BYTES:
        return ROWS, flumeevent.encode_events(batch.rows)
    return ARROW, encode(batch, compression)


def decode_batch(format: bytes, value: bytes) -> Batch:
    """Return the events of a record of this format, `arrow` or `rows`. Raises ValueError for any other value."""
    return Batch.of(flumeevent.decode_events(value)) if format == ROWS else Batch.from_ipc(value)


def encode(batch: Batch, compression: str | None = None) -> bytes:
    """Return the value of an `arrow` record.

    `compression` is Kafka's `compression.type`, or None if it is not configured. A type that Arrow lacks counts as
    None.
    """
    codec: str | None = "zstd" if batch.nbytes >= IPC_ZSTD_BYTES else "lz4"
    if batch.nbytes < IPC_COMPRESSION_BYTES or compression == "none":
        codec = None
    elif compression in ("lz4", "zstd"):
        codec = compression
    data: bytes = batch.to_ipc(codec).to_pybytes()
    return data


def raw_headers(batch: Batch) -> list[KafkaHeaders]:
    """Return the record headers of each event, in the format `raw`."""
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


def header_values(batch: Batch, header: str) -> list[str | None]:
    """Return the value of a header for each event, None if an event lacks it; empty if no event has that header."""
    column = batch.header(header)
    if column.null_count == len(column):
        return []
    # Conversion of the dictionary array would take ten times as long.
    texts: list[str | None] = column.dictionary_decode().to_pylist()
    return texts


def encode_event(event: Event, format: Format) -> Record:
    """Return a record with one event in that format, with unknown offset and timestamp (-1)."""
    batch = Batch.of([event])
    key = event.headers.get(KEY, "").encode() or None
    if format == "arrow":
        name, value = encode_batch(batch)
        return Record(-1, -1, None, value, [(FORMAT, name)])
    if format == "flume":
        return Record(-1, -1, key, flumeevent.encode_event(event), [])
    headers = [(name, text.encode() if isinstance(text, str) else text) for name, text in raw_headers(batch)[0]]
    return Record(-1, -1, key, event.body, headers)


def address_to_group(record: Record, id: EventId, arrival: int, group: str) -> Record:
    """Return a copy of the record for one consumer group only, with that event id and time of arrival (ms).

    Its first four headers mark it as replayed.
    """
    own: list[tuple[str, bytes | None]] = [
        (FORMAT, (format_of(record) or b"") + REPLAYED),
        (GROUP, group.encode()),
        (ID, str(id).encode()),
        (ARRIVAL, b"%d" % arrival),
    ]
    headers = list(record.headers)
    index = next((index for index, (name, _) in enumerate(headers) if name == FORMAT), len(headers))
    return record._replace(headers=[*own, *headers[:index], *headers[index + 1 :]])


def decode(records: Iterator[Record], assignment: Assignment, *, parse_as_flume_event: bool) -> PolledBatch | None:
    """Return the next records of one partition, joined up to `MERGE_EVENTS` or `MERGE_BYTES`; None if there are none.

    Each record is decoded by the format that it names. A record without format is Flume's, or a body if
    `parse_as_flume_event` is False. Undecodable records are in the result, and raise no error. Records beyond the
    limit stay in the iterator.
    """
    default_format = FLUME if parse_as_flume_event else RAW
    builder = _BatchBuilder(assignment, default_format)
    for record in records:
        builder.add(record)
        if builder.events >= MERGE_EVENTS or builder.size >= MERGE_BYTES:
            break
    return builder.polled()


def format_of(record: Record) -> bytes | None:
    """Return format and version that the record names, empty for a header without value; None without the header."""
    for name, value in record.headers:
        if name == FORMAT:
            return value or b""
    return None


class _BatchBuilder:
    """Builder of one batch from records of one partition."""

    def __init__(self, assignment: Assignment, default_format: bytes) -> None:
        self.assignment, self.default_format = assignment, default_format
        self.events = self.size = 0
        self._start = self._end = self._timestamp = -1
        self._parts: list[Batch] = []
        self._undecodable: list[UndecodableRecord] = []
        self._replays: dict[EventId, int] = {}
        self._run: list[Record] = []
        self._run_format = b""

    def add(self, record: Record) -> None:
        """Append a record. Records of one event are decoded together, once a record of another format follows."""
        format = format_of(record) or self.default_format
        if self._start < 0:
            self._start = record.offset
        self._end, self._timestamp = record.offset + 1, record.timestamp
        if format != self._run_format:
            self._end_run()
            self._run_format = format
        self.size += len(record.value or b"")
        if format in (FLUME, RAW):
            self._run.append(record)
            self.events += 1
        else:
            self._add_batch(record, format)

    def polled(self) -> PolledBatch | None:
        """Return the batch of all appended records; None without any."""
        if self._start < 0:
            return None
        self._end_run()
        if not self._parts:
            self._add_single_events(Batch.of([]), [])
        offsets, batch = OffsetRange(self._start, self._end), Batch.concat(self._parts)
        undecodable = tuple(self._undecodable)
        return PolledBatch(self.assignment, offsets, batch, undecodable, self._replays, LastRecord(self._timestamp))

    def _add_batch(self, record: Record, format: bytes) -> None:
        """Decode an `arrow`, `rows` or replayed record; any other format is undecodable."""
        if format.endswith(REPLAYED):
            self._add_replayed(record, format.removesuffix(REPLAYED))
            return
        if format not in (ARROW, ROWS):
            name = format.decode(errors="replace")
            known = f"{ARROW.decode()}, {ROWS.decode()} and {RAW.decode()}"
            reason = f"the record's format ({FORMAT} header) is {name}, and this agent reads {known}"
            self._reject(record, f"{reason}: deliver it with the agent that wrote it, or replay it with a later one")
            return
        try:
            batch = decode_batch(format, record.value or b"")
        except ValueError as e:
            self._reject(record, str(e))
            return
        assignment = self.assignment
        origin = Origin.of_record(
            assignment.topic, assignment.partition, record.offset, record.timestamp, len(batch), assignment.id_prefix
        )
        self._parts.append(batch.with_origin(origin))
        self.events += len(batch)

    def _add_replayed(self, record: Record, format: bytes) -> None:
        """Decode a replayed record, with its original offset and time, if it is for this group."""
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
            # The topic was recreated, or had more partitions: the event gets a new id.
            offset, index = record.offset, 0
        headers = [(FORMAT, format), *record.headers[4:]] if format else record.headers[4:]
        original = _BatchBuilder(self.assignment, self.default_format)
        original.add(record._replace(offset=offset, timestamp=arrival, headers=headers))
        polled = original.polled()
        assert polled is not None
        self._undecodable += polled.undecodable
        self._replays.update((undecodable.id, record.offset) for undecodable in polled.undecodable)
        if (origin := polled.batch.origin) is not None and len(polled.batch):
            origin = replace(origin, indexes=origin.indexes + np.int32(index))
            batch = polled.batch.with_origin(origin)
            self._parts.append(batch)
            self._replays.update(dict.fromkeys(batch.ids(), record.offset))
            self.events += len(polled.batch)

    def _end_run(self) -> None:
        """Decode the waiting records of one event each, all of one format."""
        records, self._run = self._run, []
        if records:
            add = self._add_flume_records if self._run_format == FLUME else self._add_raw_records
            add(records)

    def _add_flume_records(self, records: list[Record]) -> None:
        """Decode records of one AvroFlumeEvent each, by columns if there are many."""
        values = [record.value for record in records]
        if len(values) > ROWWISE_RECORDS and None not in values:
            batch = flumeevent.decode(values)  # type: ignore[arg-type]  # no value is None
            if batch is not None:
                self._add_single_events(batch, records)
                return
        events, decoded = [], []
        for record in records:
            try:
                events.append(flumeevent.decode_event(record.value or b""))
                decoded.append(record)
            except ValueError as e:
                reason = f"it has no {FORMAT} header, and is no AvroFlumeEvent either: {e}"
                self._reject(record, f"{reason}; `parseAsFlumeEvent = false` takes any record as a body")
        self._add_single_events(Batch.of(events), decoded)

    def _add_raw_records(self, records: list[Record]) -> None:
        """Decode records whose values are bodies, and whose record headers are headers of the event."""
        self._add_single_events(_raw_columns(records) or Batch.of(map(_raw_event, records)), records)

    def _add_single_events(self, batch: Batch, records: Sequence[Record]) -> None:
        """Append events that are one record each; a record's key becomes the header `key`."""
        if any(record.key is not None for record in records):
            keys = pa.array([None if r.key is None else r.key.decode(errors="replace") for r in records], pa.string())
            batch = batch.with_header(KEY, pc.coalesce(keys, batch.header(KEY).dictionary_decode()))
        assignment, offsets, timestamps = self.assignment, [r.offset for r in records], [r.timestamp for r in records]
        origin = Origin.of_records(assignment.topic, assignment.partition, offsets, timestamps, assignment.id_prefix)
        self._parts.append(batch.with_origin(origin))

    def _reject(self, record: Record, reason: str) -> None:
        """Append an undecodable record with the reason."""
        id = EventId(self.assignment.id_prefix, self.assignment.partition, record.offset, 0)
        self._undecodable.append(UndecodableRecord(id, record, reason))


def _raw_columns(records: Sequence[Record]) -> Batch | None:
    """Return the events of `raw` records; None beyond `MAX_HEADER_COLUMNS` names: each takes room for each record."""
    columns: dict[str, list[str | None]] = {}
    for row, record in enumerate(records):
        for name, value in record.headers:
            if value is None or (name == FORMAT and value == RAW):
                continue
            column = columns.get(name)
            if column is None:
                if len(columns) == MAX_HEADER_COLUMNS:
                    return None
                columns[name] = column = [None] * len(records)
            column[row] = value.decode(errors="replace")
    return Batch.of_columns(pa.array([record.value or b"" for record in records], pa.binary()), columns)


def _raw_event(record: Record) -> Event:
    """Return the event of a `raw` record."""
    pairs = [(name, value) for name, value in record.headers if (name, value) != (FORMAT, RAW)]
    return Event(record.value or b"", {n: value.decode(errors="replace") for n, value in pairs if value is not None})
