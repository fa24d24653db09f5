"""Batching policy of sources that gather single events, and the interval of their checks for a stop."""

from __future__ import annotations

import time

STOP_CHECK_SECONDS = 0.2
"""Interval at which a source that waits for input checks for a stop."""
LINGER_SECONDS = 0.008
"""Minimum time between two batches. Events that arrive within this time share a batch."""
MAX_FILL_SECONDS = 0.02
"""Maximum time from the first event of a batch to its end while data arrives without a pause."""
ROUND_TRIP_SECONDS = 0.001
"""Time to wait after a linger and a read for segments that the read released: a round trip of a LAN."""
NO_LINGER_BYTES = 256 * 1024
"""Batch size from which the kernel's receive buffers may fill up within `LINGER_SECONDS`."""


class BatchingPolicy:
    """Policy that decides when a batch is complete, and for how long its source waits for more events.

    An event after an idle period leaves at once. An event within `LINGER_SECONDS` of the previous batch waits for the
    rest of that time. While data arrives without a pause, a batch fills for up to `MAX_FILL_SECONDS`.

    A source that reads from sockets calls `linger` when data is ready. One read of all data that arrived within
    `LINGER_SECONDS` takes a fraction of the processor time of many small reads. Two kinds of senders need more:

    - A sender with a small TCP window sends one window per linger, until the kernel enlarges the window. A batch of
      `NO_LINGER_BYTES` therefore switches the next linger off.
    - A sender without TCP_NODELAY withholds small segments until the previous ones are acknowledged (RFC 896). Linux
      acknowledges once data is read. The batch therefore waits `ROUND_TRIP_SECONDS` for one more read.
    """

    def __init__(self) -> None:
        self._batch_started = self._batch_ended = 0.0
        self._is_fast = self._has_lingered = self._awaits_released = False

    def start_batch(self) -> None:
        """Record the arrival of the first event of a batch."""
        self._batch_started = time.monotonic()

    def end_batch(self, size_bytes: int = 0) -> None:
        """Record the end of a batch that was read from this many bytes."""
        self._batch_ended = time.monotonic()
        self._is_fast = size_bytes >= NO_LINGER_BYTES
        self._has_lingered = self._awaits_released = False

    def linger(self) -> bool:
        """Sleep for the rest of `LINGER_SECONDS` since the last batch, and return True if there was a rest.

        The next read completes the batch, together with one more read of the segments that it released.
        """
        if self._is_fast or self._has_lingered or not (seconds := self.timeout()):
            return False
        time.sleep(seconds)
        self._has_lingered = True
        return True

    def timeout(self) -> float:
        """Seconds to wait for more data: the rest of `LINGER_SECONDS` since the last batch, at least 0.

        After a linger and a read, `ROUND_TRIP_SECONDS` for one more read.
        """
        if self._awaits_released:
            return ROUND_TRIP_SECONDS
        return max(0.0, self._batch_ended + LINGER_SECONDS - time.monotonic())

    def is_due(self, *, idle: bool) -> bool:
        """Return True if the batch is complete. A source calls this once after each read.

        `idle`: no data arrived within the last `timeout`. After a linger, the batch is complete after the second
        read. Otherwise it is if `idle` and `LINGER_SECONDS` are over, or `MAX_FILL_SECONDS` after its first event.
        """
        if self._has_lingered:  # the first read released the segments of the second
            self._awaits_released = not self._awaits_released
            return not self._awaits_released
        return (idle and not self.timeout()) or time.monotonic() >= self._batch_started + MAX_FILL_SECONDS
