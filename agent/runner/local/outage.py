"""Outage of a channel, during which puts go into its overflow: reason, start and end."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import NamedTuple

from flafka.agent.runner.local.channels import ChannelRunner, PendingPut
from flafka.plugins import Metrics, PolledBatch, Reader

BARRIER_SECONDS = 1.0
"""Longest time for which puts are blocked while the forwarder ends an outage."""
COUNTERS = ("OverflowEventCount", "OverflowForwardedCount", "OverflowRepeatedCount")
"""Counters of events stored in the overflow, forwarded from it, and possibly duplicated."""


class InDoubtPut(NamedTuple):
    """Put into the channel that is not acknowledged within `overflowTimeout`, and may still succeed."""

    put: Future[int]
    pending: PendingPut

    def release(self, put: Future[int]) -> None:
        """Drop the batch from memory after the end of `put`, unless only its dead letters are still to be stored."""
        if put.exception() is None or self.pending.result is None:
            self.pending.batch, self.pending.result = self.pending.batch.slice(0, 0), None


class Outage:
    """State shared by the puts into a channel and the forwarder of its overflow. Thread-safe.

    A put into the overflow counts as in flight from `enter`, or `enter_in_doubt`, until `leave`. The forwarder, a
    single thread, reports the outcomes of its puts, and alone ends the outage. It ends while the overflow is empty
    and no put into it is in flight.
    """

    def __init__(self, metrics: Metrics, log: logging.Logger, overflow: ChannelRunner, seconds: float) -> None:
        """`metrics` and `log` are of the channel in Kafka; `seconds` is `overflowTimeout`."""
        self._metrics, self._log, self._overflow, self._seconds = metrics, log, overflow, seconds
        self._changed = threading.Condition()
        self._reason = ""
        """Reason why puts go into the overflow; empty while they do not."""
        self._began, self._counted = 0.0, (0.0, 0.0, 0.0)
        """Monotonic time at which the outage began, and the values of `COUNTERS` at that time."""
        self._healthy_since: float | None = None
        """Monotonic time since which all puts are acknowledged in time; None while one is not."""
        self._barrier = False
        """True while puts are blocked, as the outage is about to end."""
        self._storing = 0
        """Number of puts into the overflow that are in flight."""
        self._in_flight = 0
        """Number of events in puts into the channel itself that are in flight."""
        self._in_doubt: dict[str, InDoubtPut] = {}
        """In-doubt puts by correlation ID. Their batches are in the overflow, too."""

    @property
    def overflowing(self) -> bool:
        """True while puts go into the overflow."""
        return bool(self._reason)

    def overflow_size(self) -> float:
        """Return the number of events in the overflow."""
        return self._overflow.metrics.get("ChannelSize")

    def describe(self) -> str:
        """Return reason and duration of the outage and size of the overflow, for the health check.

        Empty while puts go into the channel.
        """
        if not self._reason:
            return ""
        seconds = time.monotonic() - self._began
        size = self.overflow_size()
        return (
            f"overflows into {self._overflow.path} for {seconds:.0f} s, which holds {size:.0f} events: {self._reason}"
        )

    # --- for puts

    def start(self, reason: str) -> None:
        """Start the outage: from now on puts go into the overflow. No effect during an outage, whose reason stays."""
        with self._changed:
            self._start(reason)

    def enter(self, start_reason: Callable[[], str]) -> bool:
        """Return True, and count a put as in flight, if it has to go into the overflow.

        Return False for a put into Kafka. Blocks while the barrier is closed. Without an outage, `start_reason` is
        called: a reason that is not empty starts the outage. Raises the errors of `start_reason`.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._barrier)
            if not self._reason and (reason := start_reason()):
                self._start(reason)
            self._storing += bool(self._reason)
            return bool(self._reason)

    def enter_in_doubt(self, correlation_id: str, in_doubt: InDoubtPut) -> bool:
        """Start the outage for an in-doubt put, count the put of its batch into the overflow, and return True.

        Return False, without effect, if the in-doubt put has ended meanwhile. Does not wait for the barrier.
        """
        with self._changed:
            if in_doubt.put.done():
                return False
            self._start(f"no acknowledgement for {self._seconds:.0f} s")
            self._in_doubt[correlation_id] = in_doubt
            in_doubt.put.add_done_callback(in_doubt.release)
            self._storing += 1
            return True

    def leave(self) -> None:
        """Count a put into the overflow, for which `enter` or `enter_in_doubt` returned True, as ended."""
        with self._changed:
            self._storing -= 1
            self._changed.notify_all()

    def add_in_flight(self, change: int) -> None:
        """Add `change` to the number of events that are being put into Kafka; negative at the end of a put."""
        with self._changed:
            self._in_flight += change

    # --- for the forwarder

    def wait(self, ending: threading.Event) -> bool:
        """Block until an outage starts or `ending` is set, and return True; return False after `BARRIER_SECONDS`.

        The caller of `ending.set` has to call `wake`.
        """
        with self._changed:
            return bool(self._changed.wait_for(lambda: self._reason or ending.is_set(), BARRIER_SECONDS))

    def wake(self) -> None:
        """Wake the thread that blocks in `wait`. Call it after `ending` was set."""
        with self._changed:
            self._changed.notify_all()

    def in_doubt_put(self, correlation_id: str) -> InDoubtPut | None:
        """Return the in-doubt put with this correlation ID; None if it is not of this outage, or for an empty ID."""
        with self._changed:
            return self._in_doubt.get(correlation_id)

    def report_success(self) -> None:
        """Record that Kafka takes events in time.

        The time since the first report without a failure decides the end.
        """
        with self._changed:
            if self._healthy_since is None:
                self._healthy_since = time.monotonic()

    def report_failure(self, reason: str) -> None:
        """Record that Kafka does not take events in time, and lift the barrier.

        An empty reason keeps the present one.
        """
        with self._changed:
            self._healthy_since = None
            self._reason = reason or self._reason
        self.lift_barrier()

    def lift_barrier(self) -> None:
        """Unblock the puts that wait in `enter`. No effect without a barrier."""
        with self._changed:
            self._barrier = False
            self._changed.notify_all()

    def end_or_take(self, reader: Reader) -> PolledBatch | None:
        """End the outage if that is possible, and return None; otherwise return the overflow's next records, if any.

        It is possible once Kafka has taken events for `overflowTimeout`, the overflow is empty, and no put into it is
        in flight. Before that time, return None without a read.

        Closes the barrier: while sources put without a pause, the overflow would never be empty. The barrier stays
        closed if records are returned, and otherwise is lifted.
        """
        with self._changed:
            if self._healthy_since is None or time.monotonic() - self._healthy_since < self._seconds:
                return None
            self._barrier = True
            self._changed.wait_for(lambda: not self._storing, BARRIER_SECONDS)
            taken = None if self._storing else reader.take(0)
            if taken is None:
                if not self._storing and self._reason:
                    self._end()
                self._barrier = False
                self._changed.notify_all()
            return taken

    # --- with the lock held

    def _start(self, reason: str) -> None:
        """Start the outage with its gauges and a warning; no-op during an outage."""
        if self._reason:
            return
        self._reason, self._began, self._healthy_since = reason, time.monotonic(), None
        self._counted = self._counts()
        self._metrics.set("Overflowing", 1)
        self._metrics.is_covered = True
        self._changed.notify_all()
        self._log.warning(
            "overflows into %s, which holds %d events: %s; %d events are in flight. Until the brokers take events "
            "again, only one disk of this host has the new ones",
            *(self._overflow.path, self.overflow_size(), reason, self._in_flight),
        )

    def _end(self) -> None:
        """End the outage, and log its duration and its numbers of events."""
        stored, forwarded, duplicated = (
            now - before for now, before in zip(self._counts(), self._counted, strict=True)
        )
        seconds = time.monotonic() - self._began
        self._reason = ""
        self._in_doubt.clear()
        self._metrics.set("Overflowing", 0)
        self._metrics.is_covered = False
        self._log.info(
            "takes events again after %.0f s: %d events went into %s, %d were forwarded, and %d may be duplicates",
            *(seconds, stored, self._overflow.path, forwarded, duplicated),
        )

    def _counts(self) -> tuple[float, float, float]:
        """Return the present values of `COUNTERS`."""
        stored, forwarded, repeated = (self._metrics.get(name) for name in COUNTERS)
        return stored, forwarded, repeated
