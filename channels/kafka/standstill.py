"""Whether a producer stands still for good: after an outage of all brokers librdkafka's may never send again."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

STUCK_SECONDS = 60.0
"""Where nothing was acknowledged for so long, the brokers are asked whether they could take it; twice as long each
time that another producer did not help."""
AGAIN_SECONDS = 30.0
"""They are asked once more after so long, in which a client that is well connects again to brokers that are back."""


class Standstill:
    """Looks after a producer, for several puts at once.

    It stands still (librdkafka's issues 2978 and 3009) where nothing was acknowledged for `STUCK_SECONDS` and those
    that it waits by itself, `linger`, and where the brokers have said twice that they could take it: `writable` asks
    them.
    """

    def __init__(self, writable: Callable[[], bool], linger: float, stopping: threading.Event) -> None:
        self._writable, self._stopping = writable, stopping
        self._least = self._patience = STUCK_SECONDS + linger
        self._moved = time.monotonic()
        self._well = False
        """Whether the brokers could have taken it when they were asked last, since it last moved."""
        self._due = 0.0
        self._asking = threading.Lock()

    def moved(self) -> None:
        """Something was acknowledged."""
        self._moved, self._well, self._patience = time.monotonic(), False, self._least

    def stuck(self, began: float) -> float:
        """The seconds for which it stands still, given since when a put waits; 0 where it does not, or nobody knows.

        Where it does, another one is to take its place, and has more time than this one had.
        """
        now = time.monotonic()
        if now - max(began, self._moved) <= self._patience or now < self._due:
            return 0.0
        if not self._asking.acquire(blocking=False):  # another put asks
            return 0.0
        try:
            moved = self._moved
            well = self._writable()
            if moved != self._moved or self._stopping.is_set():
                return 0.0
            before, self._well, self._due = self._well, well, time.monotonic() + AGAIN_SECONDS
            if not (before and well):
                return 0.0
            quiet = time.monotonic() - max(began, moved)
            self._moved, self._well, self._patience = time.monotonic(), False, 2 * self._patience
            return quiet
        finally:
            self._asking.release()
