"""Latency of batches: the duration of the latest one, and quantiles of the last one to two minutes."""

from __future__ import annotations

import functools
import math
import threading
import time
from collections.abc import Callable

import numpy as np

from flafka.agent.monitoring.definitions import BATCH, LATENCY
from flafka.plugins import Metrics

WINDOW_SECONDS = 60.0
"""Quantiles cover the present minute and the one before."""
_LEAST_SECONDS, _GROWTH, _BUCKETS = 1e-5, 1.1, 260
"""Bounds of the buckets: 10 µs, and each 10 % above the one before, up to six days."""
_LOGARITHM = math.log(_GROWTH)


def record_batch_duration(metrics: Metrics, since: float) -> None:
    """Set the gauge BatchMilliseconds to the time since `since`, in seconds of `time.monotonic`."""
    metrics.set(BATCH.name, round(1000 * (time.monotonic() - since), 2))


class LatencyWindow:
    """Histogram of the latencies of one component, with an error of at most 5 %, as its gauges `LATENCY`.

    Thread-safe. Takes 4 KB of memory. The quantiles are of batches, not of events.
    """

    def __init__(self, metrics: Metrics, now: Callable[[], float] = time.monotonic) -> None:
        """`metrics` get the gauges. `now` returns monotonic seconds."""
        self._now = now
        self._lock = threading.Lock()
        self._began = now()
        self._present, self._previous = [0] * _BUCKETS, [0] * _BUCKETS
        for metric, share in zip(LATENCY, (0.5, 0.99), strict=True):
            metrics.set_function(metric.name, functools.partial(self.quantile, share))

    def add(self, seconds: float) -> None:
        """Add the latency of one batch."""
        bucket = int(math.log(max(seconds, _LEAST_SECONDS) / _LEAST_SECONDS) / _LOGARITHM)
        with self._lock:
            self._rotate()
            self._present[min(bucket, _BUCKETS - 1)] += 1

    def quantile(self, share: float) -> float | None:
        """Return a quantile in milliseconds, `share` between 0 and 1; None without a batch in the window."""
        with self._lock:
            self._rotate()
            counts = [present + previous for present, previous in zip(self._present, self._previous, strict=True)]
        rank = share * sum(counts)
        if not rank:
            return None
        bucket = int(np.searchsorted(np.cumsum(counts), rank))
        return float(f"{1000 * _LEAST_SECONDS * _GROWTH ** (bucket + 0.5):.3g}")

    def _rotate(self) -> None:
        """Begin a new minute if the present one is over. The caller holds the lock."""
        minutes = int((self._now() - self._began) / WINDOW_SECONDS)
        if minutes:
            self._previous = self._present if minutes == 1 else [0] * _BUCKETS
            self._present = [0] * _BUCKETS
            self._began += minutes * WINDOW_SECONDS
