"""Lag of the sinks on a channel that is not in Kafka, from the channel's own counters."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from flafka.plugins import Metrics

MAX_SAMPLES = 10_000
"""Maximum number of samples of one channel; beyond it, every second sample is dropped."""


class ChannelLag:
    """Number and age of the undelivered events of one channel. Thread-safe.

    Each call of `seconds` takes a sample of the number of puts, so ages are as exact as calls are frequent. The
    history of the metrics calls it every two seconds.
    """

    def __init__(self, metrics: Metrics, now: Callable[[], float] = time.monotonic) -> None:
        self._metrics, self._now = metrics, now
        self._lock = threading.Lock()
        self._samples: deque[tuple[float, float]] = deque()
        """Events put since the start, and the monotonic time at which that number was first seen."""

    def events(self) -> float | None:
        """Return the number of undelivered events, taken and uncommitted ones included; None if it is not known.

        It is not known while the channel is not open.
        """
        return self._metrics.snapshot().get("ChannelSize")

    def seconds(self) -> float | None:
        """Return the age of the oldest undelivered event in seconds, to a tenth; 0 for an empty channel.

        None if the channel is not open. None also while an undelivered event was in the channel before the agent
        started.
        """
        with self._lock:
            values = self._metrics.snapshot()
            size, put, now = values.get("ChannelSize"), values.get("EventPutSuccessCount", 0.0), self._now()
            if size is None:
                return None
            if not self._samples or put > self._samples[-1][0]:
                self._samples.append((put, now))
            if not size:
                return 0.0
            delivered = put - size
            while len(self._samples) > 1 and self._samples[0][0] <= delivered:
                self._samples.popleft()
            if len(self._samples) > MAX_SAMPLES:
                self._samples = deque([*self._samples][1::2])
            return None if delivered < 0 else round(now - self._samples[0][1], 1)
