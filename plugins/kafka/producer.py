"""Delivery reports of a producer, and detection of a stalled producer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, Producer


class DeliveryReports:
    """Delivery reports of the records of one put, sent by one producer.

    The client may report on any thread. A report takes no lock, as appending to a list is atomic.
    """

    def __init__(self, producer: Producer, events: int) -> None:
        self.producer, self.events = producer, events
        self.record_events = events
        """Maximum number of events in a record; lower after brokers have refused a larger record."""
        self._expected = 0
        self._reported: list[None] = []
        self._is_complete = threading.Event()
        self._refused = 0
        self.failed: list[tuple[Sequence[int], KafkaError]] = []
        """Rows and error of each failed record."""

    def callback(self, rows: Sequence[int]) -> partial[None]:
        """Return the delivery callback of the record with these rows of the batch."""
        return partial(self._report, rows)

    def expect(self, records: int) -> None:
        """Expect reports of more records. Only the putting thread may call, before `wait`."""
        self._expected += records

    def record_refusal(self, rows: Sequence[int], error: KafkaError) -> None:
        """Count a record that the client itself has refused as failed; no report of it is expected."""
        self._refused += 1
        self.failed.append((rows, error))

    def _report(self, rows: Sequence[int], error: KafkaError | None, _: Any) -> None:
        """Count the report of a record, which has failed if there is an error."""
        if error is not None:
            self.failed.append((rows, error))
        self._reported.append(None)
        if len(self._reported) == self._expected:
            self._is_complete.set()

    @property
    def reported(self) -> int:
        """Number of records that brokers have stored or refused."""
        return len(self._reported)

    @property
    def has_stored(self) -> bool:
        """True if a broker has acknowledged at least one of the records."""
        return len(self._reported) > len(self.failed) - self._refused

    def wait(self, timeout: float) -> bool:
        """Return True if all records are reported within `timeout` seconds, else False.

        `expect` must not be called afterwards.
        """
        self._is_complete.clear()  # set too early if all records so far were reported while more were to come
        if len(self._reported) < self._expected:
            self._is_complete.wait(timeout)
        return len(self._reported) >= self._expected


FIRST_STALL_SECONDS = 60.0
"""Time without an acknowledgement after which the brokers are checked. It doubles each time that the replacement of
the producer did not help."""
LONGEST_STALL_SECONDS = 600.0
"""Longest time that doubling adds to the first stall timeout."""
STALL_CHECK_SECONDS = 30.0
"""Interval between checks of the brokers. Within this time, a healthy client reconnects to restarted brokers."""


class StallDetector:
    """Detector of a stalled producer. Thread-safe, for several concurrent puts.

    A producer has stalled (librdkafka's issues 2978 and 3009) if both conditions hold:

    - No record was acknowledged for `FIRST_STALL_SECONDS` plus `client_seconds`, the delays of the client's
      properties.
    - The brokers could take records at two checks in a row. `is_writable` checks the brokers.
    """

    def __init__(self, is_writable: Callable[[], bool], client_seconds: float, stopping: threading.Event) -> None:
        self._is_writable, self._stopping = is_writable, stopping
        self._min_timeout = self._timeout = FIRST_STALL_SECONDS + client_seconds
        self._lock = threading.Lock()
        self._last_progress = time.monotonic()
        self._was_writable = False
        """True if the brokers could take records at the latest check; False after an acknowledgement or a stall."""
        self._next_check = 0.0
        self._is_checking = False

    def record_progress(self) -> None:
        """Record the acknowledgement of a record: the stall timeout starts anew, at its initial length."""
        with self._lock:
            self._last_progress, self._was_writable, self._timeout = time.monotonic(), False, self._min_timeout

    def stalled_seconds(self, waiting_since: float) -> float:
        """Return the seconds since the last acknowledgement if the producer has stalled; 0 if not, or if unknown.

        `waiting_since` is the start of a waiting put (`time.monotonic`). The caller replaces a stalled producer; the
        next one has a longer timeout. Blocks while `is_writable` checks the brokers, at most every
        `STALL_CHECK_SECONDS`.
        """
        with self._lock:
            now = time.monotonic()
            is_early = now < self._next_check or now - max(waiting_since, self._last_progress) <= self._timeout
            if self._is_checking or is_early:
                return 0.0
            self._is_checking, progress = True, self._last_progress
        try:
            is_writable = self._is_writable()
        finally:
            self._next_check, self._is_checking = time.monotonic() + STALL_CHECK_SECONDS, False
        with self._lock:
            if progress != self._last_progress or self._stopping.is_set():
                return 0.0
            was_writable, self._was_writable = self._was_writable, is_writable
            if not is_writable:
                self._timeout = self._min_timeout  # a new outage does not indicate a faulty client
            if not (was_writable and is_writable):
                return 0.0
            seconds = time.monotonic() - max(waiting_since, progress)
            self._last_progress, self._was_writable = time.monotonic(), False
            self._timeout = min(2 * self._timeout, self._min_timeout + LONGEST_STALL_SECONDS)
            return seconds
