"""The HBase sink."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pyarrow as pa

from flafka.plugins import Assignment, Batch, Event, EventId, FlafkaError, Origin, Retry
from flafka.plugins.shared.regex import TooSlow
from flafka.sinks.bulk import BulkSink, pieces
from flafka.sinks.hbase.compatibility import HBASE
from flafka.sinks.hbase.config import HBaseConfig
from flafka.sinks.hbase.thrift import Cells, HBase, TableMissing
from flafka.sinks.templates import readable

LONGEST_KEY = 32_767
"""Bytes of a row's key, in HBase."""
LEAST_ROWS = 100
"""Minimum number of rows in a call, where rows are divided among connections."""


class Row(NamedTuple):
    """An event, as HBase gets it."""

    origin: Origin
    place: int
    """Row of the event in its batch."""
    key: bytes
    cells: Cells
    time: int
    """Timestamp of the cells, in ms: when the channel took the event."""

    @property
    def id(self) -> EventId:
        """The event's."""
        return self.origin.id(self.place)

    @property
    def size(self) -> int:
        """Bytes."""
        size = len(self.key)
        for column, value in self.cells.items():
            size += len(column) + len(value)
        return size


class HBaseSink(BulkSink[HBaseConfig, Row]):
    """Writes each event into a row of an HBase table, exactly once: a redelivery overwrites itself.

    The row's key holds the event's id, and its cells have the time at which the channel took the event. So a
    redelivery is the same cells once more. With a rowKey without `%[id]`, events of one key share a row, the latest
    event last. Rows that HBase can never take, and events without a header that rowKey needs, are rejected.
    """

    type_name = "hbase"
    most_size = 4 << 20
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
        self._keyed = self._regex is not None and config.row_key_index >= 0
        names = config.columns if self._regex is not None else [config.payload_column]
        self._columns = [self._column(name) for name in names]
        if self._keyed:
            self._columns[config.row_key_index] = _KEY
        self._hbase: HBase | None = None

    # --- life

    def open(self) -> None:
        """Reach the Thrift server and look at the table; create it where that is asked for."""
        self._hbase = self._connect()
        self._ensure_table(self._hbase)

    def close(self) -> None:
        """Drop what was not flushed, and close the connections."""
        super().close()
        if self._hbase is not None:
            self._hbase.close()
            self._hbase = None

    def check_connectivity(self) -> Iterator[str]:
        """Check that the Thrift server answers, and has the table with its column family."""
        hbase = self._connect()
        try:
            if self.config.create_table and hbase.families(self.config.table) is None:
                return
            if trouble := self._trouble(hbase):
                yield trouble
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
        """Create the table where createTable asks for it. Raises Retry if the table or its family is missing."""
        if self.config.create_table and hbase.families(self.config.table) is None:
            hbase.create(self.config.table, self.config.column_family)
            self.log.info("created table %s", self.config.table)
        if trouble := self._trouble(hbase):
            raise Retry(trouble)

    def _trouble(self, hbase: HBase) -> str | None:
        table, family = self.config.table, self.config.column_family
        families = hbase.families(table)
        if families is None:
            return (
                f"HBase has no table {table!r}: add createTable = true, or run in its shell: "
                f"create '{table}', '{family}'"
            )
        if family not in families:
            return (
                f"HBase's table {table!r} has no column family {family!r}, only {', '.join(sorted(families))}: write "
                f"into its shell: alter '{table}', '{family}'"
            )
        return None

    # --- writing

    def uses_headers(self) -> dict[str, set[str]]:
        """By option: the headers that its escapes need."""
        return {"rowKey": self._template.headers}

    def _at_once(self) -> int:
        return self.config.connections

    def _key(self, row: Row) -> tuple[bytes, int]:
        return row.key, row.time

    def _make(self, batch: Batch) -> dict[EventId, str]:
        rejected: dict[EventId, str] = {}
        batch, made = self._with_cells(batch, rejected)
        origin = batch.origin
        assert origin is not None
        headers = self._headers(batch) if self.config.deposit_headers else None
        texts, times = self._template.texts(batch), origin.timestamps.tolist()
        for row, (key, cells, arrival) in enumerate(zip(texts, made, times, strict=True)):
            if cells is None:
                rejected[batch.id(row)] = "its body does not match serializer.regex"
                continue
            if self._keyed:
                key = cells.pop(_KEY, b"").decode()
            if isinstance(key, ValueError):
                rejected[batch.id(row)] = str(key)
                continue
            encoded = key.encode("utf-8", "surrogateescape")
            if not 0 < len(encoded) <= LONGEST_KEY:
                rejected[batch.id(row)] = (
                    f"the key of its row has {len(encoded)} bytes; HBase takes 1 to {LONGEST_KEY}"
                )
                continue
            if headers is not None:
                cells |= headers[row]
            if not cells:  # HBase would take it, and keep nothing
                rejected[batch.id(row)] = "no group of serializer.regex matches but the key: its row has no cell"
                continue
            self._made.append(Row(origin, row, encoded, cells, arrival))
        return rejected

    def destinations(self, batch: Batch) -> list[dict[str, Any]]:
        """The table, the row's key and its cells for each event."""
        told: dict[EventId, dict[str, Any]] = {id: {"rejected": reason} for id, reason in self._make(batch).items()}
        for row in self._made:
            cells = {name.decode(errors="replace"): text.decode(errors="replace") for name, text in row.cells.items()}
            told[row.id] = {"table": self.config.table, "row": row.key.decode(errors="replace"), "cells": cells}
        self.reset()
        return [told[id] for id in batch.ids()]

    def trace(self, assignment: Assignment, id: EventId, batch: Batch | None) -> list[dict[str, Any]]:
        """Find the row that HBase has now; without the event, only if the key needs nothing but the id."""
        cells: Cells = {}
        if batch is not None:
            if rejected := self._make(batch):
                return [{"missing": f"it makes no row: {reason}"} for reason in rejected.values()]
            key, cells = self._made[0].key, self._made[0].cells
            self.reset()
        elif self._keyed or {kind for kind, _ in self._template.parts} - {"text", "id"}:
            return [{"unknown": f"the key of its row, rowKey {self._template.pattern}, needs the event itself"}]
        else:
            offsets, indexes, times = np.array([id.offset]), np.array([id.index], np.int32), np.zeros(1, np.int64)
            origin = Origin(assignment.topic, id.partition, offsets, indexes, times, id.topic)
            key = str(next(self._template.texts(Batch.of([Event(b"")], origin)))).encode()
        with closing(self._connect()) as hbase:
            found = hbase.row(self.config.table, key)
        name = key.decode("utf-8", "replace")
        if not found:
            return [{"missing": f"HBase's table {self.config.table!r} has no row {name}"}]
        if any(found.get(column) != value for column, value in cells.items()):
            return [{"missing": f"row {name} of HBase's table {self.config.table!r} has other cells than its own"}]
        told = {column.decode("utf-8", "replace"): readable(value) for column, value in found.items()}
        return [{"table": self.config.table, "row": name, "cells": told}]

    def duplicate_risk(self, assignment: Assignment) -> str:
        """Rows are overwritten by themselves, with the times that their cells had."""
        return ""

    def _parts(self, rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
        """A call of Thrift's takes one timestamp for all its rows; each connection gets a part of these."""
        by_time: dict[int, list[Row]] = {}
        for row in rows:
            by_time.setdefault(row.time, []).append(row)
        for alike in by_time.values():
            most = max(LEAST_ROWS, min(self.most, -(-len(alike) // self.config.connections)))
            yield from pieces(alike, most, self.most_size)

    def _put(self, rows: Sequence[Row]) -> dict[EventId, str]:
        assert self._hbase is not None
        cells = [(row.key, row.cells) for row in rows]
        put = partial(self._hbase.put, self.config.table, rows[0].time, cells, wal=self.config.enable_wal)
        try:
            put()
        except TableMissing:  # dropped since the sink was opened, which nothing but a restart would open again
            self._ensure_table(self._hbase)
            put()
        if self.read_back:
            self._check_shown(self._hbase, rows)
        return {}

    def _check_shown(self, hbase: HBase, rows: Sequence[Row]) -> None:
        """Raise Retry unless HBase returns these rows, which it has taken.

        A deletion hides all older cells, also those written after it, until a major compaction (HBase's reference
        guide, "Deletes mask Puts"). A later cell in the same row and column is as good: the latest of a key stays.
        """
        config = self.config
        shown = hbase.times(config.table, list({row.key for row in rows}))
        hidden = [row for row in rows if any(shown.get(row.key, {}).get(name, -1) < row.time for name in row.cells)]
        if not hidden:
            return
        what = (
            f"HBase's table {config.table!r} does not show {len(hidden):,} of {len(rows):,} rows written, such as "
            f"{hidden[0].key.decode('utf-8', 'replace')}"
        )
        seconds = hbase.time_to_live(config.table, config.column_family)
        if seconds and hidden[0].time < (time.time() - seconds) * 1000:
            raise Retry(
                f"{what}: their events are older than the TTL of family {config.column_family!r}, {seconds} s: "
                "replay later events, or alter the TTL"
            )
        raise Retry(
            f"{what}: they were deleted, and the deletion hides the older time of their events. In HBase's shell, "
            f"flush '{config.table}' and major_compact '{config.table}' remove the deletion's mark"
        )

    # --- cells

    def _with_cells(self, batch: Batch, rejected: dict[EventId, str]) -> tuple[Batch, list[Cells | None]]:
        """Without the events that are rejected, as the pattern is not done with them."""
        while True:
            try:
                return batch, list(self._cells(batch))
            except TooSlow as e:
                rejected |= {batch.id(row): e.reason for row in e.rows}
                batch = batch.where(pa.array([row not in e.rows for row in range(len(batch))], pa.bool_()))

    def _cells(self, batch: Batch) -> Iterator[Cells | None]:
        """Cells of each event; None where the body does not match. Raises TooSlow."""
        if self._regex is None:
            (column,) = self._columns
            yield from ({column: body} for body in batch.bodies.to_pylist())
            return
        found, groups = self._regex.extract(batch.bodies)
        for matched, *texts in zip(found.to_pylist(), *(group.to_pylist() for group in groups), strict=True):
            held = zip(self._columns, texts, strict=True)
            yield {column: text.encode() for column, text in held if text is not None} if matched else None

    def _headers(self, batch: Batch) -> list[Cells]:
        """Return the cells of each event's headers, without the columns that the body fills.

        Senders choose the names of headers: one with the name of payloadColumn would replace the body.
        """
        own, made = set(self._columns), []
        for event in batch:
            cells = {self._column(name): value.encode() for name, value in event.headers.items()}
            made.append({column: value for column, value in cells.items() if column not in own})
        return made

    def _column(self, qualifier: str) -> bytes:
        return f"{self.config.column_family}:{qualifier}".encode()


_KEY = b""
"""Column of the group that is a row's key, among its cells."""
