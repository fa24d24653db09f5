"""Metrics of the last hour, in memory: rates, and time series for charts."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from array import array
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from flafka.agent.monitoring.definitions import BATCH
from flafka.agent.monitoring.registry import Registry
from flafka.plugins.errors import ANY_FAILURE
from flafka.plugins.threads import start_thread

log = logging.getLogger(__name__)

SAMPLE_SECONDS = 2.0
HISTORY_SECONDS = 3600.0
RATE_SECONDS = 10.0
"""Period over which rates are averaged, or less at the start."""

CHARTED: Mapping[str, tuple[str, ...]] = {
    "SOURCE": ("EventAcceptedCount", BATCH.name),
    "INTERCEPTOR": ("EventReceivedCount",),
    "ROUTE": (),
    "CHANNEL": ("EventPutSuccessCount", "ChannelSize", BATCH.name),
    "SINK": ("EventDrainSuccessCount", "Lag", "LagSeconds", BATCH.name),
}
"""Metrics with a time series, by kind of component."""
RATED = (
    *("EventReceivedCount", "EventAcceptedCount", "EventPutSuccessCount", "EventTakeSuccessCount"),
    *("EventDrainSuccessCount", "EventRejectedCount", "EventFilteredCount", "KernelDropCount"),
    *("EventRoutedCount", "OverflowEventCount"),
)

Values = Mapping[str, float]


class _Sample(NamedTuple):
    time: float
    """Seconds of `time.monotonic`: a change of the clock must not change a rate."""
    values: Mapping[str, Values]


class History:
    """Sampler of a registry, on its own thread. Any thread may call the public methods."""

    def __init__(self, registry: Registry, now: Callable[[], float] = time.time) -> None:
        self._registry, self._now = registry, now
        self._lock = threading.Lock()
        self._latest: deque[_Sample] = deque(maxlen=int(RATE_SECONDS / SAMPLE_SECONDS) + 1)
        self._capacity = int(HISTORY_SECONDS / SAMPLE_SECONDS)
        self._times: deque[float] = deque(maxlen=self._capacity)
        self._series: dict[tuple[str, str], deque[float]] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="history", daemon=True)

    def start(self) -> None:
        """Start the thread, which samples every `SAMPLE_SECONDS`. Does not block."""
        start_thread(self._thread)

    def stop(self) -> None:
        """Stop the thread. Does not wait for its end."""
        self._stopping.set()

    def _run(self) -> None:
        while not self._stopping.wait(SAMPLE_SECONDS):
            try:
                self.sample()
            except ANY_FAILURE as e:  # such as an error in a gauge of a plugin
                log.debug("a sample of the metrics failed", exc_info=e)

    def sample(self) -> None:
        """Take one sample of all components now. A series without a value at this time gets NaN."""
        values = {f"{c.kind}.{c.name}": c.values() for c in list(self._registry.components)}
        with self._lock:
            self._latest.append(_Sample(time.monotonic(), values))
            self._times.append(self._now())
            for component, metrics in values.items():
                for counter in CHARTED[component.partition(".")[0]]:
                    series = self._series.get((component, counter))
                    if series is None:
                        series = self._series[component, counter] = deque(maxlen=self._capacity)
                        series.extend([float("nan")] * (len(self._times) - 1))
                    series.append(metrics.get(counter, float("nan")))
            for (component, _), series in self._series.items():
                if component not in values:
                    series.append(float("nan"))

    def rates(self) -> dict[str, dict[str, float]]:
        """Return component → counter in `RATED` → events per second, averaged over the last `RATE_SECONDS`.

        Components are named as in `/metrics`, `SINK.k1`. Empty before the second sample.
        """
        with self._lock:
            if len(self._latest) < 2:
                return {}
            first, last = self._latest[0], self._latest[-1]
        seconds = max(last.time - first.time, 1e-3)
        return {
            component: {
                counter: round(max(value - first.values.get(component, {}).get(counter, value), 0.0) / seconds, 1)
                for counter, value in values.items()
                if counter in RATED
            }
            for component, values in last.values.items()
        }

    def series(self, since: float = 0.0) -> dict[str, object]:
        """Return `{"times": […], "series": {"SINK.k1": {"Lag": […]}}}` of the samples after `since`, oldest first.

        Times and `since` are in seconds since the epoch. A value is that of `/metrics` at its time, or None if
        unknown.
        """
        with self._lock:
            new = sum(sampled > since for sampled in self._times)
            times = _latest(self._times, new)
            copied = {key: _latest(series, new) for key, series in self._series.items()}
        by_component: dict[str, dict[str, list[float | None]]] = {}
        for (component, counter), values in copied.items():
            by_component.setdefault(component, {})[counter] = [None if value != value else value for value in values]
        return {"times": [*times], "series": by_component}


def _latest(values: Sequence[float], number: int) -> array[float]:
    """Return a copy of the last `number` values."""
    return array("d", itertools.islice(values, len(values) - number, None))
