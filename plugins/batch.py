"""Batches of events, as Arrow record batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flafka.plugins.columns import HEADER_TYPE, MAX_HEADER_COLUMNS, OVERFLOW_TYPE, Array, check_events, header_column
from flafka.plugins.errors import ContractViolation
from flafka.plugins.event import Event, EventId
from flafka.plugins.origin import Origin

_BODY_FIELD = pa.field("body", pa.binary())
_OVERFLOW_FIELD = pa.field("headers", OVERFLOW_TYPE)


class Batch:
    """Immutable events in columns. Any thread may use a batch.

    Column 0 of `records` is the body (`binary`, never null). Each further column is one header (dictionary-encoded
    string, null if an event lacks it). If a batch has more than `MAX_HEADER_COLUMNS` names of headers, a last column
    of type `map<string, string>` holds the others. Names of headers are unique, but a header may be named `body`:
    identify columns by position and type, or use `header()`.

    `origin` is the location of the events in a channel; None before the channel. `where`, `slice`, `map` and `with_*`
    preserve the origin of the remaining rows, and so their ids.
    """

    __slots__ = ("origin", "records")

    def __init__(self, records: Any, origin: Origin | None = None) -> None:
        if not isinstance(records, pa.RecordBatch):
            raise ContractViolation(
                f"Batch takes an Arrow RecordBatch, not a {type(records).__name__}; Batch.of([Event(…)]) takes events"
            )
        self.records = records
        self.origin = origin

    @classmethod
    def of(cls, events: Iterable[Event], origin: Origin | None = None) -> Batch:
        """Return a batch of these events, in order. Raises ContractViolation, a TypeError, for an invalid event."""
        events = list(events)
        try:
            return cls._of(events, origin)
        except (AttributeError, TypeError, pa.ArrowException):
            check_events(events)
            raise

    @classmethod
    def _of(cls, events: Sequence[Event], origin: Origin | None) -> Batch:
        names: dict[str, None] = {}
        for event in events:
            if not names.keys() >= event.headers.keys():
                names.update(dict.fromkeys(event.headers))
        columns = dict.fromkeys(list(names)[:MAX_HEADER_COLUMNS])
        headers = {name: [event.headers.get(name) for event in events] for name in columns}
        overflow = None
        if len(names) > MAX_HEADER_COLUMNS:
            overflow = pa.array(
                [[(k, v) for k, v in event.headers.items() if k not in columns] for event in events],
                OVERFLOW_TYPE,
            )
        bodies = pa.array([event.body for event in events], pa.binary())
        if bodies.null_count:
            check_events(events)
        return cls.of_columns(bodies, headers, origin, overflow=overflow)

    @classmethod
    def of_columns(
        cls,
        bodies: Array,
        headers: Mapping[str, Any],
        origin: Origin | None = None,
        *,
        overflow: Array | None = None,
    ) -> Batch:
        """Return a batch of columns.

        `bodies` is a binary array without nulls. Each header is an array, a list, or one text for all rows. Pass at
        most `MAX_HEADER_COLUMNS` headers, and the others as the map column `overflow`. Raises ValueError for a header
        with another number of values than `bodies`.
        """
        columns, fields = [bodies], [_BODY_FIELD]
        for name, values in headers.items():
            columns.append(header_column(values, len(bodies)))
            fields.append(pa.field(name, HEADER_TYPE))
        if overflow is not None:
            columns.append(overflow)
            fields.append(_OVERFLOW_FIELD)
        return cls(pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields)), origin)

    @classmethod
    def concat(cls, batches: Sequence[Batch]) -> Batch:
        """Return one batch of all rows, in order; an empty batch for no batches.

        Raises ValueError unless all origins are of one partition, or all batches are without origin.
        """
        if len(batches) == 1:
            return batches[0]
        origin = None
        if origins := [b.origin for b in batches if b.origin is not None]:
            first = origins[0]
            if len(origins) != len(batches) or len({(o.topic, o.partition, o.id_prefix) for o in origins}) > 1:
                raise ValueError("only batches of one partition can be joined")
            origin = Origin(
                first.topic,
                first.partition,
                np.concatenate([o.offsets for o in origins]),
                np.concatenate([o.indexes for o in origins]),
                np.concatenate([o.timestamps for o in origins]),
                first.id_prefix,
            )
        names = list(dict.fromkeys(name for b in batches for name in b._columns()))
        if len(names) > MAX_HEADER_COLUMNS or any(b._overflow() is not None for b in batches):
            return cls.of([event for b in batches for event in b], origin)
        headers = {
            name: pa.chunked_array([b.header(name) for b in batches], HEADER_TYPE)
            .unify_dictionaries()
            .combine_chunks()
            for name in names
        }
        bodies = pa.concat_arrays([b.bodies for b in batches]) if batches else pa.array([], pa.binary())
        return cls.of_columns(bodies, headers, origin)

    def __len__(self) -> int:
        return int(self.records.num_rows)

    def __iter__(self) -> Iterator[Event]:
        """Yield the events. Changes to an event do not change the batch."""
        if self.is_wide:  # most columns are null in most rows
            for body, pairs in zip(self.bodies.to_pylist(), self.header_maps().to_pylist(), strict=True):
                yield Event(body, dict(pairs))
            return
        names = list(self._columns())
        columns = [self.records.column(i + 1).to_pylist() for i in range(len(names))]
        for row, body in enumerate(self.bodies.to_pylist()):
            headers = {
                name: value for name, column in zip(names, columns, strict=True) if (value := column[row]) is not None
            }
            yield Event(body, headers)

    def __repr__(self) -> str:
        source = f" from {self.origin.topic}-{self.origin.partition}" if self.origin is not None else ""
        return f"<Batch of {len(self)} events, headers {', '.join(self.header_names) or 'none'}{source}>"

    @property
    def nbytes(self) -> int:
        """Size of the rows in memory, headers included, in bytes."""
        return int(self.records.nbytes)

    @property
    def bodies(self) -> Array:
        """Bodies of the events: a binary array without nulls."""
        return self.records.column(0)

    @property
    def header_names(self) -> list[str]:
        """Names of all headers that may occur, in the order of their first occurrence."""
        return [*self._columns(), *self._overflow_names()]

    def header(self, name: str) -> Array:
        """Return one header of each event: a dictionary-encoded string array, null if an event lacks the header."""
        column = self._columns_by_name().get(name)
        if column is not None:
            return column
        overflow = self._overflow()
        if overflow is not None:
            return pc.map_lookup(overflow, name, "last").dictionary_encode()
        return pa.nulls(len(self), pa.string()).dictionary_encode()

    @property
    def is_wide(self) -> bool:
        """True if the batch has more than `MAX_HEADER_COLUMNS` names of headers.

        Use `header_maps()` then: one call of `header()` takes time in proportion to the events, and each event may
        have a name of its own.
        """
        return self._overflow() is not None

    def header_maps(self) -> Array:
        """Return the headers of each event as a map array without nulls, names in the order of `header_names`.

        Takes time in proportion to events and headers, whatever the number of names.
        """
        names, rows = list(self._columns()), len(self)
        columns = [self.records.column(i + 1).dictionary_decode() for i in range(len(names))]
        present = np.zeros((rows, len(names)), bool)
        for index, column in enumerate(columns):
            present[:, index] = column.is_valid().to_numpy(zero_copy_only=False)
        row, number = np.nonzero(present)
        keys = pa.array(names, pa.string()).take(pa.array(number))
        texts = pa.concat_arrays(columns) if columns else pa.array([], pa.string())
        values, counts = texts.take(pa.array(number * rows + row)), present.sum(axis=1)
        overflow = self._overflow()
        if overflow is not None:
            more_keys, more_values, more = _entries(overflow)
            order = pa.array(np.argsort(np.concatenate([row, np.repeat(np.arange(rows), more)]), kind="stable"))
            keys = pa.concat_arrays([keys, more_keys]).take(order)
            values, counts = pa.concat_arrays([values, more_values]).take(order), counts + more
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        return pa.MapArray.from_arrays(pa.array(offsets), keys, values)

    def id(self, row: int) -> EventId:
        """Return the id of the event in that row. Raises ValueError for a batch before the channel."""
        if self.origin is None:
            raise ValueError("events have ids only once a channel holds them")
        return self.origin.id(row)

    def ids(self) -> list[EventId]:
        """Return the ids of all events, in row order. Raises ValueError for a batch before the channel."""
        return [self.id(row) for row in range(len(self))]

    def with_bodies(self, bodies: Array) -> Batch:
        """Return the batch with other bodies: a binary array without nulls, one for each event.

        Raises ValueError for another number of bodies, or a null.
        """
        if len(bodies) != len(self) or bodies.null_count:
            raise ValueError(f"{len(self)} bodies are needed, got {len(bodies)}, {bodies.null_count} of them null")
        columns = self.records.columns
        columns[0] = bodies
        return Batch(pa.RecordBatch.from_arrays(columns, schema=self.records.schema), self.origin)

    def with_header(self, name: str, values: Any, *, preserve_existing: bool = False) -> Batch:
        """Return the batch with a header set to one text, or to an array with null for events without the header.

        With `preserve_existing`, the value of an event that has the header already is unchanged. Raises ValueError
        for another number of values than events.
        """
        column = header_column(values, len(self))
        if preserve_existing:
            present = self.header(name)
            if present.null_count == 0:
                return self
            column = pc.coalesce(present.dictionary_decode(), column.dictionary_decode()).dictionary_encode()
        overflow = self._overflow()
        if overflow is not None and name in self._overflow_names():
            events = list(self)
            for event, value in zip(events, column.to_pylist(), strict=True):
                event.headers.pop(name, None)
                if value is not None:
                    event.headers[name] = value
            return Batch.of(events, self.origin)
        headers = self._columns_by_name()
        headers[name] = column
        return Batch.of_columns(self.bodies, headers, self.origin, overflow=overflow)

    def without_header(self, *names: str) -> Batch:
        """Return the batch without these headers; names that it does not have are ignored."""
        overflow, removed = self._overflow(), set(names)
        if overflow is not None and not removed.isdisjoint(self._overflow_names()):
            events = list(self)
            for event in events:
                event.headers = {name: value for name, value in event.headers.items() if name not in removed}
            return Batch.of(events, self.origin)
        headers = self._columns_by_name()
        remaining = {name: column for name, column in headers.items() if name not in removed}
        if len(remaining) == len(headers):
            return self
        return Batch.of_columns(self.bodies, remaining, self.origin, overflow=overflow)

    def where(self, mask: Array) -> Batch:
        """Return the events for which `mask` is true.

        `mask` is a boolean array with one value for each row; null counts as false.
        """
        if mask.null_count:
            mask = mask.fill_null(False)
        origin = self.origin
        if origin is not None:
            origin = origin.select(mask.to_numpy(zero_copy_only=False))
        return Batch(self.records.filter(mask), origin)

    def slice(self, start: int, length: int | None = None) -> Batch:
        """Return the events from row `start` on, at most `length`, without a copy of the data."""
        stop = len(self) if length is None else start + length
        origin = self.origin.select(slice(start, stop)) if self.origin is not None else None
        return Batch(self.records.slice(start, length), origin)

    def map(self, function: Callable[[Event], Event | None]) -> Batch:
        """Return the results of a function of each event, in order. An event with the result None is dropped.

        A result has the id of the event from which it is made.
        """
        results = [function(event) for event in self]
        rows = [row for row, result in enumerate(results) if result is not None]
        origin = self.origin.select(rows) if self.origin is not None else None
        return Batch.of((result for result in results if result is not None), origin)

    def split(self, max_events: int, max_bytes: int) -> Iterator[Batch]:
        """Yield consecutive parts of at most `max_events`, and of about `max_bytes` at most.

        A larger event is a part of its own. The size of headers is estimated from that of the whole batch. An empty
        batch is one part.
        """
        if len(self) <= 1 or (len(self) <= max_events and self.nbytes <= max_bytes):
            yield self
            return
        sizes = pc.binary_length(self.bodies).to_numpy(zero_copy_only=False).astype(np.int64)
        # The size of headers is known for the whole batch only: it is small, and divided evenly among the rows.
        sizes += max(0, self.nbytes - int(sizes.sum())) // max(1, len(self))
        ends = np.cumsum(sizes)
        start = 0
        while start < len(self):
            base = int(ends[start - 1]) if start else 0
            stop = int(np.searchsorted(ends, base + max_bytes, side="right"))
            stop = min(max(stop, start + 1), start + max_events, len(self))
            yield self.slice(start, stop - start)._with_own_dictionaries()
            start = stop

    def to_ipc(self, compression: str | None = None) -> Any:
        """Return the batch as an Arrow IPC stream, a `pyarrow.Buffer`; `compression` is None, "lz4" or "zstd"."""
        sink = pa.BufferOutputStream()
        options = pa.ipc.IpcWriteOptions(compression=compression, use_threads=False)
        with pa.ipc.new_stream(sink, self.records.schema, options=options) as writer:
            writer.write_batch(self.records)
        return sink.getvalue()

    @classmethod
    def from_ipc(cls, data: Any) -> Batch:
        """Return the batch of an IPC stream, without origin.

        Raises ValueError for data that `to_ipc` has not written.
        """
        try:
            with pa.ipc.open_stream(data) as reader:
                batches = list(reader)
            if len(batches) != 1:
                raise ValueError(f"one record batch expected, found {len(batches)}")
            batches[0].validate(full=True)
            batch = cls(batches[0])
            batch._check()
        except (pa.ArrowException, OSError) as e:
            raise ValueError(f"not an Arrow IPC stream: {e}") from e
        return batch

    def _with_own_dictionaries(self) -> Batch:
        """Return a slice without the header values of other rows, which its dictionaries still hold."""
        columns = [
            column.dictionary_decode().dictionary_encode()
            if column.type == HEADER_TYPE and len(column.dictionary) > 1
            else column
            for column in self.records.columns
        ]
        return Batch(pa.RecordBatch.from_arrays(columns, schema=self.records.schema), self.origin)

    def _check(self) -> None:
        """Raise ValueError unless types and names of the columns are as the class describes them."""
        types = self.records.schema.types
        overflow = self._overflow() if types else None
        headers = types[1:] if overflow is None else types[1:-1]
        names = self.records.schema.names[1 : len(headers) + 1]
        if types[:1] != [pa.binary()] or any(t != HEADER_TYPE for t in headers) or self.bodies.null_count:
            raise ValueError(f"not a batch of events: columns {', '.join(map(str, types))}")
        if overflow is not None:
            names += self._overflow_names()
            if overflow.null_count or overflow.items.null_count:
                raise ValueError("not a batch of events: a header without a value")
        if len(set(names)) != len(names):
            raise ValueError("not a batch of events: a header occurs twice")

    def _columns(self) -> dict[str, None]:
        """Return the names of headers with a column of their own, in order, as keys."""
        schema = self.records.schema
        stop = len(schema) - (self._overflow() is not None)
        return dict.fromkeys(schema.field(i).name for i in range(1, stop))

    def _columns_by_name(self) -> dict[str, Any]:
        return {name: self.records.column(i + 1) for i, name in enumerate(self._columns())}

    def _overflow_names(self) -> list[str]:
        """Return the distinct names of headers in the map column."""
        overflow = self._overflow()
        return [] if overflow is None else list(_entries(overflow)[0].unique().to_pylist())

    def _overflow(self) -> Array | None:
        """Return the map column of further headers; None if there is none."""
        last = self.records.num_columns - 1
        return self.records.column(last) if self.records.schema.types[last] == OVERFLOW_TYPE else None


def _entries(maps: Array) -> tuple[Array, Array, Any]:
    """Return names and values of all entries of a map array, and the number of entries in each row."""
    offsets = maps.offsets.to_numpy(zero_copy_only=False)
    start, length = int(offsets[0]), int(offsets[-1] - offsets[0])  # a slice shares the arrays of the whole column
    return maps.keys.slice(start, length), maps.items.slice(start, length), np.diff(offsets)
