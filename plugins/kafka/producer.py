"""Delivery reports of a producer, and detection of one that has stalled."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
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


FIRST_STALL_SECONDS = 60.0
"""Seconds without an acknowledgement after which the brokers are asked whether they could take records. The time
doubles each time that another producer did not help."""
LONGEST_STALL_SECONDS = 600.0
"""Maximum of the seconds that doubling adds to the first stall timeout."""
STALL_CHECK_SECONDS = 30.0
"""Seconds until the brokers are asked once more. A healthy client reconnects within this time to brokers that are
back."""


class Standstill:
    """Detector of a stalled producer, for several concurrent puts.

    A producer has stalled (librdkafka's issues 2978 and 3009) if both conditions hold:

    - Nothing was acknowledged for `FIRST_STALL_SECONDS` plus `patience`, the seconds that the client waits by itself.
    - The brokers have answered twice that they could take records. `writable` asks the brokers.
    """

    def __init__(self, writable: Callable[[], bool], patience: float, stopping: threading.Event) -> None:
        self._writable, self._stopping = writable, stopping
        self._least = self._patience = FIRST_STALL_SECONDS + patience
        self._lock = threading.Lock()
        self._moved = time.monotonic()
        self._well = False
        """True if the brokers could take records at the latest check; False after an acknowledgement or a stall."""
        self._due = 0.0
        self._asking = False

    def moved(self) -> None:
        """Something was acknowledged."""
        with self._lock:
            self._moved, self._well, self._patience = time.monotonic(), False, self._least

    def stuck(self, began: float) -> float:
        """The seconds for which it stands still, given since when a put waits; 0 where it does not, or nobody knows.

        Where it does, another one is to take its place, and has more time than this one had.
        """
        with self._lock:
            now = time.monotonic()
            if self._asking or now < self._due or now - max(began, self._moved) <= self._patience:
                return 0.0
            self._asking, moved = True, self._moved
        try:
            well = self._writable()
        finally:
            self._due, self._asking = time.monotonic() + STALL_CHECK_SECONDS, False
        with self._lock:
            if moved != self._moved or self._stopping.is_set():
                return 0.0
            before, self._well = self._well, well
            if not well:
                self._patience = self._least  # an outage that begins anew says nothing of this client
            if not (before and well):
                return 0.0
            quiet = time.monotonic() - max(began, moved)
            self._moved, self._well = time.monotonic(), False
            self._patience = min(2 * self._patience, self._least + LONGEST_STALL_SECONDS)
            return quiet
