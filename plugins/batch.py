"""Batches of events: Arrow record batches, and rows as long as a batch of few events needs no columns."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from flafka.plugins.columns import (
    HEADER_TYPE,
    MAX_HEADER_COLUMNS,
    OVERFLOW_TYPE,
    Array,
    check_events,
    header_column,
)
from flafka.plugins.errors import ContractViolation
from flafka.plugins.event import Event, EventId
from flafka.plugins.origin import Origin
from flafka.plugins.rows import MAX_ROWS, EventRows

_MIN_SHARE = 16
"""A wide batch has a column for a header if at least one in this many events has that header."""
_BODY_FIELD = pa.field("body", pa.binary())
_OVERFLOW_FIELD = pa.field("headers", OVERFLOW_TYPE)


class Batch:
    """Immutable events in columns. Any thread may use a batch.

    Column 0 of `records` is the body (`binary`, never null). Each further column is one header (dictionary-encoded
    string, null if an event lacks it). If a batch has more than `MAX_HEADER_COLUMNS` names of headers, a last column
    of type `map<string, string>` holds those that few events have. Names of headers are unique, but a header may be
    named `body`: identify columns by position and type, or use `header()`.

    A batch that `of` makes of few events has these as `rows`, and makes columns when they are first used: these take
    as long for one event as for hundreds. Both views are equal, and all methods give the same results, apart from
    `nbytes` and the parts of `split`, which depends on it.

    `origin` is the location of the events in a channel; None before the channel. `where`, `slice`, `map` and `with_*`
    preserve the origin of the remaining rows, and so their ids.
    """

    __slots__ = ("_records", "_rows", "origin")

    def __init__(self, records: Any, origin: Origin | None = None) -> None:
        if not isinstance(records, pa.RecordBatch):
            raise ContractViolation(
                f"Batch takes an Arrow RecordBatch, not a {type(records).__name__}; Batch.of([Event(…)]) takes events"
            )
        self._records: Any = records
        self._rows: EventRows | None = None
        self.origin = origin

    @property
    def records(self) -> Any:
        """Arrow record batch with all events."""
        if self._records is None:
            rows = self._rows
            assert rows is not None
            # Two threads may make equal records at once.
            self._records = Batch.of_columns(rows.bodies(), {name: rows.header(name) for name in rows.names}).records
        return self._records

    @property
    def rows(self) -> Sequence[Event] | None:
        """Events of a batch that was made of few events, for reading only; None for a batch of columns."""
        return None if self._rows is None else self._rows.events

    @classmethod
    def of(cls, events: Iterable[Event], origin: Origin | None = None) -> Batch:
        """Return a batch of these events, in order. Raises ContractViolation, a TypeError, for an invalid event.

        Later changes to the events do not change the batch.
        """
        events = list(events)
        if (rows := EventRows.copy(events)) is not None:
            return cls._of_rows(rows, origin)
        try:
            return cls._of(events, origin)
        except (AttributeError, TypeError, pa.ArrowException):
            check_events(events)
            raise

    @classmethod
    def _of_rows(cls, rows: EventRows, origin: Origin | None) -> Batch:
        batch = cls.__new__(cls)
        batch._records, batch._rows, batch.origin = None, rows, origin
        return batch

    @classmethod
    def _of(cls, events: Sequence[Event], origin: Origin | None) -> Batch:
        names: dict[str, None] = {}
        for event in events:
            if not names.keys() >= event.headers.keys():
                names.update(dict.fromkeys(event.headers))
        bodies = pa.array([event.body for event in events], pa.binary())
        if bodies.null_count:
            check_events(events)
        if len(names) <= MAX_HEADER_COLUMNS:
            return cls.of_columns(bodies, {n: [event.headers.get(n) for event in events] for n in names}, origin)
        keys = pa.array([name for event in events for name in event.headers], pa.string())
        values = pa.array([value for event in events for value in event.headers.values()], pa.string())
        rows = np.repeat(np.arange(len(events)), [len(event.headers) for event in events])
        if values.null_count:  # a header without a value is none
            is_present = values.is_valid()
            rows = rows[is_present.to_numpy(zero_copy_only=False)]
            keys, values = keys.filter(is_present), values.drop_null()
        return cls.of_entries(bodies, rows, keys, values, origin)

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
    def of_entries(
        cls, bodies: Array, rows: npt.NDArray[np.int64], names: Array, values: Array, origin: Origin | None = None
    ) -> Batch:
        """Return a batch of bodies and headers, given as row, name and value (`string`, never null) of each header.

        Headers of an event keep their order. The last of duplicate names counts. Takes time in proportion to events
        and headers, whatever the number of names. Raises ArrowInvalid for a binary name that is not UTF-8.
        """
        named = names.dictionary_encode()
        distinct = named.dictionary.cast(pa.string()).to_pylist()
        codes = named.indices.to_numpy(zero_copy_only=False)
        has_column = np.ones(len(distinct), np.bool_)
        if len(distinct) > MAX_HEADER_COLUMNS:
            has_column = np.bincount(codes) * _MIN_SHARE >= len(bodies)
            has_column[np.flatnonzero(has_column)[MAX_HEADER_COLUMNS:]] = False
        columns = {}
        for code in np.flatnonzero(has_column).tolist():
            entries = np.flatnonzero(codes == code)
            indices = np.full(len(bodies), -1, np.int64)
            indices[rows[entries]] = entries
            columns[distinct[code]] = values.take(pa.array(indices, mask=indices < 0))
        if len(columns) == len(distinct):
            return cls.of_columns(bodies, columns, origin)
        rest = np.flatnonzero(~has_column[codes])
        _, last = np.unique((rows * len(distinct) + codes)[rest][::-1], return_index=True)
        if len(last) < len(rest):  # duplicate names
            rest = rest[np.sort(len(rest) - 1 - last)]
        rest = rest[np.argsort(rows[rest], kind="stable")]
        order, counts = pa.array(rest), np.bincount(rows[rest], minlength=len(bodies))
        overflow = _maps(counts, names.take(order).cast(pa.string()), values.take(order))
        return cls.of_columns(bodies, columns, origin, overflow=overflow)

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
        names = dict.fromkeys(name for b in batches for name in b._columns())
        is_wide = len(names) > MAX_HEADER_COLUMNS or any(b.is_wide for b in batches)
        parts: list[Batch] = []
        for has_rows, run in itertools.groupby(batches, lambda b: b._rows is not None):
            if not has_rows:
                parts += run
                continue
            # One part, as columns of each batch would take as long as columns of all.
            rows = EventRows.concat([b._rows for b in run if b._rows is not None], keeps_order=is_wide)
            parts.append(cls._of_rows(rows, None))
        if is_wide:
            keys, values, counts = _entries(pa.concat_arrays([b.header_maps() for b in parts]))
            bodies = pa.concat_arrays([b.bodies for b in parts])
            return cls.of_entries(bodies, np.repeat(np.arange(len(bodies)), counts), keys, values, origin)
        if len(parts) == 1 and parts[0]._rows is not None and len(parts[0]) <= MAX_ROWS:
            return parts[0].with_origin(origin)
        headers = {
            name: pa.chunked_array([b.header(name) for b in parts], HEADER_TYPE).unify_dictionaries().combine_chunks()
            for name in names
        }
        bodies = pa.concat_arrays([b.bodies for b in parts]) if parts else pa.array([], pa.binary())
        return cls.of_columns(bodies, headers, origin)

    def __len__(self) -> int:
        return int(self.records.num_rows) if self._rows is None else len(self._rows.events)

    def __iter__(self) -> Iterator[Event]:
        """Yield the events. Changes to an event do not change the batch."""
        if self._rows is not None:
            for event in self._rows.events:
                yield Event(event.body, event.headers.copy())
            return
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
        return int(self.records.nbytes) if self._rows is None else self._rows.nbytes()

    @property
    def bodies(self) -> Array:
        """Bodies of the events: a binary array without nulls."""
        if self._rows is not None and self._records is None:
            return self._rows.bodies()
        return self.records.column(0)

    @property
    def header_names(self) -> list[str]:
        """Names of all headers that may occur, in the order of their first occurrence."""
        return [*self._columns(), *self._overflow_names()]

    def header(self, name: str) -> Array:
        """Return one header of each event: a dictionary-encoded string array, null if an event lacks the header."""
        if self._rows is not None and self._records is None:
            return self._rows.header(name)
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
        if self._rows is not None:
            return self._rows.header_maps()
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
        return _maps(counts, keys, values)

    def id(self, row: int) -> EventId:
        """Return the id of the event in that row. Raises ValueError for a batch before the channel."""
        if self.origin is None:
            raise ValueError("events have ids only once a channel holds them")
        return self.origin.id(row)

    def ids(self) -> list[EventId]:
        """Return the ids of all events, in row order. Raises ValueError for a batch before the channel."""
        return [self.id(row) for row in range(len(self))]

    def with_origin(self, origin: Origin | None) -> Batch:
        """Return the same events with another origin, which has an entry for each of them."""
        return Batch(self.records, origin) if self._rows is None else Batch._of_rows(self._rows, origin)

    def with_bodies(self, bodies: Array) -> Batch:
        """Return the batch with other bodies: a binary array without nulls, one for each event.

        Raises ValueError for another number of bodies, or a null; TypeError for anything but an array.
        """
        if not isinstance(bodies, pa.Array):
            raise TypeError(f"bodies are an Arrow array, not a {type(bodies).__name__}")
        if len(bodies) != len(self) or bodies.null_count:
            raise ValueError(f"{len(self)} bodies are needed, got {len(bodies)}, {bodies.null_count} of them null")
        if self._rows is not None:
            return Batch._of_rows(self._rows.with_bodies(bodies.cast(pa.binary())), self.origin)
        columns = self.records.columns
        columns[0] = bodies
        return Batch(pa.RecordBatch.from_arrays(columns, schema=self.records.schema), self.origin)

    def with_header(self, name: str, values: Any, *, preserve_existing: bool = False) -> Batch:
        """Return the batch with a header set to one text, or to an array with null for events without the header.

        With `preserve_existing`, the value of an event that has the header already is unchanged. Raises ValueError
        for another number of values than events.
        """
        if self._rows is not None:
            texts = values
            if not isinstance(values, str):
                texts = header_column(values, len(self)).dictionary_decode().to_pylist()
            rows = self._rows.with_header(name, texts, preserve_existing=preserve_existing)
            return self if rows is self._rows else Batch._of_rows(rows, self.origin)
        column = header_column(values, len(self))
        if preserve_existing:
            present = self.header(name)
            if present.null_count == 0:
                return self
            column = pc.coalesce(present.dictionary_decode(), column.dictionary_decode()).dictionary_encode()
        headers = self._columns_by_name()
        headers[name] = column
        overflow = _without_entries(self._overflow(), {name})
        return Batch.of_columns(self.bodies, headers, self.origin, overflow=overflow)

    def without_header(self, *names: str) -> Batch:
        """Return the batch without these headers; names that it does not have are ignored."""
        removed = set(names)
        if self._rows is not None:
            if removed.isdisjoint(self._rows.names):
                return self
            return Batch._of_rows(self._rows.without_headers(removed), self.origin)
        headers, overflow = self._columns_by_name(), self._overflow()
        remaining = {name: column for name, column in headers.items() if name not in removed}
        others = _without_entries(overflow, removed)
        if len(remaining) == len(headers) and others is overflow:
            return self
        return Batch.of_columns(self.bodies, remaining, self.origin, overflow=others)

    def where(self, mask: Array) -> Batch:
        """Return the events for which `mask` is true.

        `mask` is a boolean array with one value for each row; null counts as false. Raises TypeError for an array of
        another type.
        """
        if mask.type != pa.bool_():
            raise TypeError(f"a mask is a boolean array, not one of {mask.type}")
        if mask.null_count:
            mask = mask.fill_null(False)
        origin = self.origin
        if origin is not None:
            origin = origin.select(mask.to_numpy(zero_copy_only=False))
        if self._rows is not None:
            return Batch._of_rows(self._rows.where(mask.to_pylist()), origin)
        return Batch(self.records.filter(mask), origin)

    def slice(self, start: int, length: int | None = None) -> Batch:
        """Return the events from row `start` on, at most `length`, without a copy of the data.

        Raises IndexError for a negative `start` or `length`.
        """
        if start < 0 or (length is not None and length < 0):
            raise IndexError(f"a slice from {start} with length {length}")
        stop = len(self) if length is None else start + length
        origin = self.origin.select(slice(start, stop)) if self.origin is not None else None
        if self._rows is not None:
            return Batch._of_rows(EventRows(self._rows.events[start:stop], self._rows.names), origin)
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
        if self._rows is not None:
            return self
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

    def _columns(self) -> Mapping[str, None]:
        """Return the names of headers with a column of their own, in order, as keys."""
        if self._rows is not None:
            return self._rows.names
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
        if self._rows is not None:
            return None
        last = self.records.num_columns - 1
        return self.records.column(last) if self.records.schema.types[last] == OVERFLOW_TYPE else None


def _maps(counts: Any, keys: Array, values: Array) -> Array:
    """Return a map array from the number of entries in each row, and names and values of all entries."""
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    return pa.MapArray.from_arrays(pa.array(offsets), keys, values)


def _entries(maps: Array) -> tuple[Array, Array, Any]:
    """Return names and values of all entries of a map array, and the number of entries in each row."""
    offsets = maps.offsets.to_numpy(zero_copy_only=False)
    start, length = int(offsets[0]), int(offsets[-1] - offsets[0])  # a slice shares the arrays of the whole column
    return maps.keys.slice(start, length), maps.items.slice(start, length), np.diff(offsets)


def _without_entries(overflow: Array | None, names: set[str]) -> Array | None:
    """Return a map column without entries of these names: the column itself if it has none, None for an empty one."""
    if overflow is None:
        return None
    keys, values, counts = _entries(overflow)
    removed = names.intersection(keys.unique().to_pylist())
    if not removed:
        return overflow
    is_removed = pc.is_in(keys, pa.array(removed, pa.string())).to_numpy(zero_copy_only=False)
    kept = np.flatnonzero(~is_removed)
    if not len(kept):
        return None
    rows, order = np.repeat(np.arange(len(counts)), counts)[kept], pa.array(kept)
    return _maps(np.bincount(rows, minlength=len(counts)), keys.take(order), values.take(order))
