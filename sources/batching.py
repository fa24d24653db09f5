"""Batching policy of sources that gather single events, and the interval of their checks for a stop."""

from __future__ import annotations

import time

STOP_CHECK_SECONDS = 0.2
"""Interval at which a source that waits for input checks for a stop."""
CONNECTION_CHECK_SECONDS = 2.0
"""Interval at which a source of connections checks their timeouts. A stop wakes the source at once."""
LINGER_SECONDS = 0.008
"""Minimum time between two batches of many events. Events that arrive within this time share a batch."""
MANY_EVENTS = 4
"""Number of events from which a batch is one of many. After a smaller one, the minimum time is shorter in proportion:
a longer one would delay events without making their batches much larger."""
MAX_FILL_SECONDS = 0.02
"""Maximum time from the first event of a batch to its end while data arrives without a pause."""
ROUND_TRIP_SECONDS = 0.001
"""Time to wait after a linger and a read for segments that the read released: a round trip of a LAN."""
NO_LINGER_BYTES = 256 * 1024
"""Batch size from which the kernel's receive buffers may fill up within `LINGER_SECONDS`."""


class BatchingPolicy:
    """Policy that decides when a batch is complete, and for how long its source waits for more events.

    An event after an idle period leaves at once. An event within the linger of the previous batch waits for the rest
    of that time: `LINGER_SECONDS` after a batch of `MANY_EVENTS`, and less after a smaller one. While data arrives
    without a pause, a batch that follows one of many events fills for up to `MAX_FILL_SECONDS`.

    A source that reads from sockets calls `linger` when data is ready. One read of all data that arrived within
    `LINGER_SECONDS` takes a fraction of the processor time of many small reads. Two kinds of senders need more:

    - A sender with a small TCP window sends one window per linger, until the kernel enlarges the window. A batch of
      `NO_LINGER_BYTES` therefore switches the next linger off.
    - A sender without TCP_NODELAY withholds small segments until the previous ones are acknowledged (RFC 896). Linux
      acknowledges once data is read. The batch therefore waits `ROUND_TRIP_SECONDS` for one more read.

    Neither is needed after a batch of few events, whose successor ends with the linger.
    """

    def __init__(self) -> None:
        self._batch_started = self._batch_ended = self._linger = 0.0
        self._is_fast = self._has_lingered = self._awaits_released = False

    def start_batch(self) -> None:
        """Record the arrival of the first event of a batch."""
        self._batch_started = time.monotonic()

    def end_batch(self, events: int, size_bytes: int = 0) -> None:
        """Record the end of a batch of this many events, read from this many bytes."""
        self._batch_ended = time.monotonic()
        self._linger = LINGER_SECONDS * min(1.0, events / MANY_EVENTS)
        self._is_fast = size_bytes >= NO_LINGER_BYTES
        self._has_lingered = self._awaits_released = False

    def may_leave(self) -> bool:
        """Return True if events that have just been read are a complete batch: few arrive, and the linger is over."""
        return self._linger < LINGER_SECONDS and not self.timeout()

    def linger(self) -> bool:
        """Sleep for the rest of the linger since the last batch, and return True if there was a rest.

        The next read completes the batch; after a batch of many events, together with one more read of the segments
        that it released.
        """
        if self._is_fast or self._has_lingered or not (seconds := self.timeout()):
            return False
        time.sleep(seconds)
        self._has_lingered = self._linger == LINGER_SECONDS
        return True

    def timeout(self) -> float:
        """Seconds to wait for more data: the rest of the linger since the last batch, at least 0.

        After a linger and a read, `ROUND_TRIP_SECONDS` for one more read.
        """
        if self._awaits_released:
            return ROUND_TRIP_SECONDS
        return max(0.0, self._batch_ended + self._linger - time.monotonic())

    def is_due(self, *, idle: bool) -> bool:
        """Return True if the batch is complete. A source calls this once after each read.

        `idle`: no data arrived within the last `timeout`. After a batch of few events, the batch is complete when
        the linger is over. After one of many it is complete if `idle` as well, or `MAX_FILL_SECONDS` after its first
        event; once `linger` has slept, after the second read.
        """
        if self._has_lingered:  # the first read released the segments of the second
            self._awaits_released = not self._awaits_released
            return not self._awaits_released
        if self.may_leave() or (idle and not self.timeout()):
            return True
        return time.monotonic() >= self._batch_started + MAX_FILL_SECONDS
