"""What Flume's RPCs share: the events of requests as batches."""

from __future__ import annotations

import struct
from typing import Protocol

import pyarrow as pa

from flafka.plugins.batch import Batch
from flafka.plugins.columns import MAX_HEADER_COLUMNS
from flafka.plugins.shared import flumeevent

FEW = 64
"""Different headers that are decoded one by one: columns pay from there on."""


class Scan(Protocol):
    """Finds events in the content of a request."""

    def __call__(self, data: bytes, at: int, *, many: bool) -> tuple[list[bytes], list[bytes]]:
        """Headers as Avro encodes them, and body, of the event or the events from `at` to the end.

        ValueError, IndexError or struct.error for what is damaged.
        """


class RpcBatchBuilder:
    """Gathers the events of several requests into one batch, column by column."""

    def __init__(self, scan: Scan) -> None:
        self._scan = scan
        self._heads: list[bytes] = []
        self._bodies: list[bytes] = []

    def add(self, data: bytes, at: int, *, many: bool) -> None:
        """The event, or with `many` the events, from `at` to the end. ValueError adds nothing."""
        try:
            heads, bodies = self._scan(data, at, many=many)
        except (IndexError, struct.error):
            raise ValueError("the request ends within an event") from None
        self._heads += heads
        self._bodies += bodies

    def batch(self) -> Batch:
        """All of them, in their order."""
        heads, bodies = self._heads, pa.array(self._bodies, pa.binary())
        if heads and heads.count(heads[0]) == len(heads):  # as of most clients: no column has to be made row by row
            event = flumeevent.decode_event(heads[0] + b"\0")
            if len(event.headers) <= MAX_HEADER_COLUMNS:
                return Batch.of_columns(bodies, event.headers)
        codes: dict[bytes, int] = {}
        rows = [codes.setdefault(head, len(codes)) for head in heads]
        headers = _headers(list(codes))
        if len(codes) < len(rows):
            headers = Batch(headers.records.take(pa.array(rows, pa.int32())))
        return headers.with_bodies(bodies)


def _headers(heads: list[bytes]) -> Batch:
    """Events without bodies that have these headers."""
    values = [head + b"\0" for head in heads]
    batch = flumeevent.decode(values) if len(values) >= FEW else None
    return batch or Batch.of(flumeevent.decode_event(value) for value in values)
