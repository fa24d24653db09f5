"""Batches from the events of Flume's RPC requests."""

from __future__ import annotations

import struct
from typing import Protocol

import pyarrow as pa

from flafka.plugins.batch import Batch
from flafka.plugins.columns import MAX_HEADER_COLUMNS
from flafka.plugins.event import Event
from flafka.plugins.wire import flumeevent

MAX_ROWWISE_EVENTS = 32
"""Largest number of events whose batch is made of rows, which takes less CPU time for few events than columns."""
MIN_COLUMNAR_HEADERS = 64
"""Distinct headers from which decoding by columns is faster than one by one."""


class EventScanner(Protocol):
    """Function that splits the content of a request into events."""

    def __call__(self, data: bytes, offset: int, *, is_batch: bool) -> tuple[list[bytes], list[bytes]]:
        """Return the headers, encoded by Avro, and the body of each event from `offset` to the end.

        `is_batch` selects a list of events instead of one event. Raises ValueError, IndexError or struct.error for
        malformed data.
        """


class RpcBatchBuilder:
    """Builder of one batch from the events of several requests: of rows for few events, or else by columns."""

    def __init__(self, scan: EventScanner) -> None:
        self._scan = scan
        self._heads: list[bytes] = []
        self._bodies: list[bytes] = []

    def add(self, data: bytes, offset: int, *, is_batch: bool) -> None:
        """Append the event, or the list of events if `is_batch`, from `offset` to the end of `data`.

        Raises ValueError for malformed data, and then appends none of its events.
        """
        try:
            encoded_headers, bodies = self._scan(data, offset, is_batch=is_batch)
        except (IndexError, struct.error):
            raise ValueError("the request ends within an event") from None
        self._heads += encoded_headers
        self._bodies += bodies

    def batch(self) -> Batch:
        """Return one batch of all events added so far, in order."""
        encoded_headers = self._heads
        if len(encoded_headers) <= MAX_ROWWISE_EVENTS:
            headers = {encoded: flumeevent.decode_event(encoded + b"\0").headers for encoded in set(encoded_headers)}
            return Batch.of(
                Event(body, headers[encoded]) for encoded, body in zip(encoded_headers, self._bodies, strict=True)
            )
        bodies = pa.array(self._bodies, pa.binary())
        if encoded_headers.count(encoded_headers[0]) == len(encoded_headers):
            # as of most clients; constant columns are cheap
            event = flumeevent.decode_event(encoded_headers[0] + b"\0")
            if len(event.headers) <= MAX_HEADER_COLUMNS:
                return Batch.of_columns(bodies, event.headers)
        codes: dict[bytes, int] = {}
        rows = [codes.setdefault(encoded, len(codes)) for encoded in encoded_headers]
        batch = _headers(list(codes))
        if len(codes) < len(rows):
            batch = Batch(batch.records.take(pa.array(rows, pa.int32())))
        return batch.with_bodies(bodies)


def _headers(encoded_headers: list[bytes]) -> Batch:
    """Return events with these headers and empty bodies."""
    values = [encoded + b"\0" for encoded in encoded_headers]
    batch = flumeevent.decode(values) if len(values) >= MIN_COLUMNAR_HEADERS else None
    return batch or Batch.of(flumeevent.decode_event(value) for value in values)
