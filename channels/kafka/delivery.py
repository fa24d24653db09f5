"""Delivery reports of one put into the channel's topic."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, Producer


class DeliveryReports:
    """Delivery reports of the records that one put has handed to one producer.

    A report takes a few hundred nanoseconds, on any thread and without a lock: appending to a list is atomic.
    """

    def __init__(self, producer: Producer, events: int) -> None:
        self.producer, self.events = producer, events
        self.record_events = events
        """Most events that one record may hold; fewer after brokers have refused a larger one."""
        self._expected = 0
        self._reported: list[None] = []
        self._all = threading.Event()
        self._refused = 0
        self.failed: list[tuple[Sequence[int], KafkaError]] = []
        """Rows of each record that failed, and the reason."""

    def of(self, rows: Sequence[int]) -> partial[None]:
        """Return the delivery callback of the record that holds these rows of the batch."""
        return partial(self._report, rows)

    def expect(self, records: int) -> None:
        """Count so many records more. Only the putting thread may call it, before `wait`."""
        self._expected += records

    def refuse(self, rows: Sequence[int], error: KafkaError) -> None:
        """Record that the client itself has refused a record, which was not expected."""
        self._refused += 1
        self.failed.append((rows, error))

    def _report(self, rows: Sequence[int], error: KafkaError | None, _: Any) -> None:
        if error is not None:
            self.failed.append((rows, error))
        self._reported.append(None)
        if len(self._reported) == self._expected:
            self._all.set()

    @property
    def reported(self) -> int:
        """Number of records that are stored or have failed at a broker."""
        return len(self._reported)

    @property
    def stored(self) -> bool:
        """True if a broker has acknowledged at least one of the records."""
        return len(self._reported) > len(self.failed) - self._refused

    def wait(self, timeout: float) -> bool:
        """Return True if all records are reported within `timeout` seconds. No more may be expected afterwards."""
        self._all.clear()  # the records expected so far may all be reported, although more were to come
        if len(self._reported) < self._expected:
            self._all.wait(timeout)
        return len(self._reported) >= self._expected
