"""Delivery reports of a producer, and detection of a stalled producer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, Producer

from flafka.plugins.kafka.errors import FATAL_EXCEPTIONS


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
        self._wake = threading.Event()
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
            self._wake.set()

    @property
    def reported(self) -> int:
        """Number of records that brokers have stored or refused."""
        return len(self._reported)

    @property
    def has_stored(self) -> bool:
        """True if a broker has acknowledged at least one of the records."""
        return len(self._reported) > len(self.failed) - self._refused

    @property
    def is_complete(self) -> bool:
        """True if all expected records are reported."""
        return len(self._reported) >= self._expected

    def sleep(self, timeout: float) -> None:
        """Block until all records are reported, or `wake` is called, or for `timeout` seconds."""
        self._wake.wait(timeout)
        self._wake.clear()

    def wake(self) -> None:
        """End the present `sleep`, or else the next one."""
        self._wake.set()


class ReportPoller:
    """Polls producers for delivery reports on the threads that wait for these. Thread-safe.

    Of the threads that wait for reports of one producer, one polls, and wakes another one to go on when it has its
    own reports. A put that is in flight alone thus needs no second thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._polled: list[Producer] = []
        """Producers that a thread polls."""
        self._sleeping: list[DeliveryReports] = []

    def wait(self, delivery: DeliveryReports, timeout: float) -> bool:
        """Return True if all records are reported within `timeout` seconds, else False."""
        deadline = time.monotonic() + timeout
        was_woken = False
        while not delivery.is_complete and (rest := deadline - time.monotonic()) > 0:
            with self._lock:
                if is_poller := delivery.producer not in self._polled:
                    self._polled.append(delivery.producer)
                else:
                    self._sleeping.append(delivery)
            if is_poller:
                self._poll(delivery, deadline)
            else:
                delivery.sleep(rest)
            was_woken = not is_poller and self._end_sleep(delivery)
        if was_woken:  # to poll, which the next one does instead
            self._wake_next(delivery.producer)
        return delivery.is_complete

    def _poll(self, delivery: DeliveryReports, deadline: float) -> None:
        """Poll the producer until all records of `delivery` are reported, or until `deadline`."""
        try:
            while not delivery.is_complete and (rest := deadline - time.monotonic()) > 0:
                try:
                    delivery.producer.poll(rest)
                except FATAL_EXCEPTIONS:  # delivery reports fail, and the put replaces the producer
                    delivery.sleep(min(rest, 0.02))
        finally:
            with self._lock:
                self._polled.remove(delivery.producer)
            self._wake_next(delivery.producer)

    def _end_sleep(self, delivery: DeliveryReports) -> bool:
        """Return True if the thread was woken to poll, rather than by its last report or its timeout."""
        with self._lock:
            is_sleeping = delivery in self._sleeping
            if is_sleeping:
                self._sleeping.remove(delivery)
        return not is_sleeping

    def _wake_next(self, producer: Producer) -> None:
        """Wake the next thread that waits for reports of a producer, unless a thread polls that producer."""
        with self._lock:
            if producer in self._polled:
                return
            for delivery in self._sleeping:
                if delivery.producer is producer:
                    self._sleeping.remove(delivery)
                    delivery.wake()
                    return


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
