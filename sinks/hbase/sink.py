"""HBase sink."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pyarrow as pa

from flafka.plugins import Assignment, Batch, Event, EventId, FlafkaError, Origin, Retry
from flafka.plugins.java.regex import RegexTimeout
from flafka.sinks.bulk import BulkSink, split_items
from flafka.sinks.hbase.compatibility import HBASE
from flafka.sinks.hbase.config import HBaseConfig
from flafka.sinks.hbase.thrift import Cells, HBase, TableMissing
from flafka.sinks.templates import decode_text

MAX_KEY_BYTES = 32_767
"""HBase's limit of a row key."""
MIN_ROWS_PER_CALL = 100
"""Minimum number of rows in a call when rows are divided among connections."""


class Row(NamedTuple):
    """Row of one event."""

    origin: Origin
    row: int
    """Row of the event in its batch."""
    key: bytes
    cells: Cells
    time: int
    """Timestamp of the cells, in milliseconds: the time of arrival in the channel."""

    @property
    def id(self) -> EventId:
        """Id of the event."""
        return self.origin.id(self.row)

    @property
    def size(self) -> int:
        """Number of bytes of key, columns and values."""
        size = len(self.key)
        for column, value in self.cells.items():
            size += len(column) + len(value)
        return size


class HBaseSink(BulkSink[HBaseConfig, Row]):
    """Writes each event to a row of an HBase table exactly once, as a redelivery overwrites it.

    The row key contains the event's id, and the timestamp of the cells is the time of arrival in the channel. So a
    redelivery writes the same cells. With a rowKey without `%[id]`, events with the same key share a row, and the
    cells of the latest event remain. Rows that HBase can never accept, and events without a header of rowKey, are
    rejected.
    """

    type_name = "hbase"
    max_size = 4 << 20
    refusal = "HBase refuses its row"
    libraries: ClassVar = {"happybase": "hbase", "thriftpy2.thrift": "hbase"}
    compatibility_notes = HBASE
    aliases = (
        "hbase2",
        "asynchbase",
        "org.apache.flume.sink.hbase.HBaseSink",
        "org.apache.flume.sink.hbase.AsyncHBaseSink",
        "org.apache.flume.sink.hbase2.HBase2Sink",
    )

    def __init__(self, config: HBaseConfig, name: str = "") -> None:
        super().__init__(config, name)
        self._template = config.key_template()
        self._regex = config.pattern() if config.serializer == "regex" else None
        self._has_row_key_group = self._regex is not None and config.row_key_index >= 0
        names = config.columns if self._regex is not None else [config.payload_column]
        self._columns = [self._column(name) for name in names]
        if self._has_row_key_group:
            self._columns[config.row_key_index] = _KEY
        self._hbase: HBase | None = None

    # --- lifecycle

    def open(self) -> None:
        """Connect to the Thrift server and check the table. Create it if createTable is set.

        Raises Retry if no server answers, or the table or its column family is missing.
        """
        self._hbase = self._connect()
        self._ensure_table(self._hbase)

    def close(self) -> None:
        """Drop what was not flushed, wait for running requests, and close the connections."""
        super().close()
        if self._hbase is not None:
            self._hbase.close()
            self._hbase = None

    def check_connectivity(self) -> Iterator[str]:
        """Yield the error if no Thrift server answers, or the table or its column family is missing.

        A missing table is no error with createTable.
        """
        hbase = self._connect()
        try:
            if self.config.create_table and hbase.families(self.config.table) is None:
                return
            if error := self._table_error(hbase):
                yield error
        except FlafkaError as e:
            yield str(e)
        finally:
            hbase.close()

    def _connect(self) -> HBase:
        config = self.config
        return HBase(
            config.hosts,
            transport=config.thrift_transport,
            protocol=config.thrift_protocol,
            timeout=config.timeout,
            metrics=self.metrics,
        )

    def _ensure_table(self, hbase: HBase) -> None:
        """Create the table if createTable is set. Raises Retry if the table or its family is missing."""
        if self.config.create_table and hbase.families(self.config.table) is None:
            hbase.create(self.config.table, self.config.column_family)
            self.log.info("created table %s", self.config.table)
        if error := self._table_error(hbase):
            raise Retry(error)

    def _table_error(self, hbase: HBase) -> str | None:
        """Return a sentence if the table or its column family is missing, else None. Raises Retry."""
        table, family = self.config.table, self.config.column_family
        families = hbase.families(table)
        if families is None:
            return (
                f"HBase has no table {table!r}: add createTable = true, or run in its shell: "
                f"create '{table}', '{family}'"
            )
        if family not in families:
            return (
                f"HBase's table {table!r} has no column family {family!r}, only {', '.join(sorted(families))}: run "
                f"in its shell: alter '{table}', '{family}'"
            )
        return None

    # --- writing

    def uses_headers(self) -> dict[str, set[str]]:
        """Return the headers in the escapes of rowKey, by this option."""
        return {"rowKey": self._template.headers}

    def _concurrency(self) -> int:
        return self.config.connections

    def _key(self, row: Row) -> tuple[bytes, int]:
        """Return the row key and the timestamp, by which HBase replaces cells."""
        return row.key, row.time

    def _make_items(self, batch: Batch) -> dict[EventId, str]:
        rejected: dict[EventId, str] = {}
        batch, all_cells = self._matched(batch, rejected)
        origin = batch.origin
        assert origin is not None
        headers = self._header_cells(batch) if self.config.deposit_headers else None
        texts, times = self._template.texts(batch), origin.timestamps.tolist()
        for row, (key, cells, arrival) in enumerate(zip(texts, all_cells, times, strict=True)):
            if cells is None:
                rejected[batch.id(row)] = "its body does not match serializer.regex"
                continue
            if self._has_row_key_group:
                key = cells.pop(_KEY, b"").decode()
            if isinstance(key, ValueError):
                rejected[batch.id(row)] = str(key)
                continue
            encoded = key.encode("utf-8", "surrogateescape")
            if not 0 < len(encoded) <= MAX_KEY_BYTES:
                rejected[batch.id(row)] = f"its row key has {len(encoded)} bytes; HBase accepts 1 to {MAX_KEY_BYTES}"
                continue
            if headers is not None:
                cells |= headers[row]
            if not cells:  # HBase would accept it, and store nothing
                rejected[batch.id(row)] = "only the row key matches a group of serializer.regex: its row has no cells"
                continue
            self._items.append(Row(origin, row, encoded, cells, arrival))
        return rejected

    def destinations(self, batch: Batch) -> list[dict[str, Any]]:
        """Return `table`, `row` and `cells` of each event, or `rejected` if it has no row."""
        rejected = self._make_items(batch)
        destinations: dict[EventId, dict[str, Any]] = {id: {"rejected": why} for id, why in rejected.items()}
        for row in self._items:
            cells = {name.decode(errors="replace"): text.decode(errors="replace") for name, text in row.cells.items()}
            destinations[row.id] = {
                "table": self.config.table,
                "row": row.key.decode(errors="replace"),
                "cells": cells,
            }
        self.reset()
        return [destinations[id] for id in batch.ids()]

    def trace(self, assignment: Assignment, id: EventId, batch: Batch | None) -> list[dict[str, Any]]:
        """Return the event's row in HBase, or `missing` if there is none, or it lacks the event's cells.

        Without `batch`, the result is `unknown` unless the row key depends on nothing but the id. Raises Retry.
        """
        cells: Cells = {}
        if batch is not None:
            if rejected := self._make_items(batch):
                return [{"missing": f"it has no row: {reason}"} for reason in rejected.values()]
            key, cells = self._items[0].key, self._items[0].cells
            self.reset()
        elif self._has_row_key_group or {kind for kind, _ in self._template.parts} - {"text", "id"}:
            return [{"unknown": f"its row key, rowKey {self._template.pattern}, depends on the event itself"}]
        else:
            offsets, indexes, times = np.array([id.offset]), np.array([id.index], np.int32), np.zeros(1, np.int64)
            origin = Origin(assignment.topic, id.partition, offsets, indexes, times, id.topic)
            key = str(next(self._template.texts(Batch.of([Event(b"")], origin)))).encode()
        with closing(self._connect()) as hbase:
            stored = hbase.row(self.config.table, key)
        name = key.decode("utf-8", "replace")
        if not stored:
            return [{"missing": f"HBase's table {self.config.table!r} has no row {name}"}]
        if any(stored.get(column) != value for column, value in cells.items()):
            return [{"missing": f"row {name} of HBase's table {self.config.table!r} does not have its cells"}]
        texts = {column.decode("utf-8", "replace"): decode_text(value) for column, value in stored.items()}
        return [{"table": self.config.table, "row": name, "cells": texts}]

    def duplicate_risk(self, assignment: Assignment) -> str:
        """Return an empty text: a redelivery overwrites the row, with the same timestamps."""
        return ""

    def _split(self, rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
        """Yield the rows of each call, which have one timestamp, as Thrift requires.

        The rows of a timestamp are divided among the connections, with at least `MIN_ROWS_PER_CALL` in a call.
        """
        by_time: dict[int, list[Row]] = {}
        for row in rows:
            by_time.setdefault(row.time, []).append(row)
        for same_time in by_time.values():
            max_rows = max(MIN_ROWS_PER_CALL, min(self.max_items, -(-len(same_time) // self.config.connections)))
            yield from split_items(same_time, max_rows, self.max_size)

    def _send_items(self, rows: Sequence[Row]) -> dict[EventId, str]:
        assert self._hbase is not None
        cells = [(row.key, row.cells) for row in rows]
        put = partial(self._hbase.put, self.config.table, rows[0].time, cells, wal=self.config.enable_wal)
        try:
            put()
        except TableMissing:  # dropped while the sink is open: `createTable` applies again
            self._ensure_table(self._hbase)
            put()
        if self.verify_writes:
            self._verify_visible(self._hbase, rows)
        return {}

    def _verify_visible(self, hbase: HBase, rows: Sequence[Row]) -> None:
        """Raise Retry, with the remedy, unless HBase returns these rows, which were written.

        A deletion hides all older cells, also those written after it, until a major compaction (HBase's reference
        guide, "Deletes mask Puts"). A later cell in the same row and column is right, too: it has replaced this one.
        """
        config = self.config
        times = hbase.times(config.table, list({row.key for row in rows}))
        hidden = [row for row in rows if any(times.get(row.key, {}).get(name, -1) < row.time for name in row.cells)]
        if not hidden:
            return
        message = (
            f"HBase's table {config.table!r} does not return {len(hidden):,} of {len(rows):,} rows written, such as "
            f"{hidden[0].key.decode('utf-8', 'replace')}"
        )
        seconds = hbase.time_to_live(config.table, config.column_family)
        if seconds and hidden[0].time < (time.time() - seconds) * 1000:
            raise Retry(
                f"{message}: their events are older than the TTL of family {config.column_family!r}, {seconds} s: "
                "replay later events, or alter the TTL"
            )
        raise Retry(
            f"{message}: they were deleted, and the deletion hides the older time of their events. In HBase's shell, "
            f"flush '{config.table}' and major_compact '{config.table}' remove the tombstone"
        )

    # --- cells

    def _matched(self, batch: Batch, rejected: dict[EventId, str]) -> tuple[Batch, list[Cells | None]]:
        """Return the batch without events whose match timed out, and the cells of each remaining event.

        The cells are None if the body does not match. The events that timed out are added to `rejected`.
        """
        while True:
            try:
                return batch, list(self._cells(batch))
            except RegexTimeout as e:
                rejected |= {batch.id(row): e.reason for row in e.rows}
                batch = batch.where(pa.array([row not in e.rows for row in range(len(batch))], pa.bool_()))

    def _cells(self, batch: Batch) -> Iterator[Cells | None]:
        """Yield the cells of each event; None if its body does not match. Raises RegexTimeout."""
        if self._regex is None:
            (column,) = self._columns
            yield from ({column: body} for body in batch.bodies.to_pylist())
            return
        matches, groups = self._regex.extract(batch.bodies)
        for matched, *texts in zip(matches.to_pylist(), *(group.to_pylist() for group in groups), strict=True):
            pairs = zip(self._columns, texts, strict=True)
            yield {column: text.encode() for column, text in pairs if text is not None} if matched else None

    def _header_cells(self, batch: Batch) -> list[Cells]:
        """Return the cells of each event's headers, without the columns of the body.

        Senders choose the names of headers: one with the name of payloadColumn would replace the body.
        """
        body_columns, rows = set(self._columns), []
        for event in batch:
            cells = {self._column(name): value.encode() for name, value in event.headers.items()}
            rows.append({column: value for column, value in cells.items() if column not in body_columns})
        return rows

    def _column(self, qualifier: str) -> bytes:
        return f"{self.config.column_family}:{qualifier}".encode()


_KEY = b""
"""Column, among the cells of a row, of the group with the row key."""
