"""The figures of the last hour, in memory: rates, and series for charts."""

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
KEPT_SECONDS = 3600.0
RATE_SECONDS = 10.0
"""Rates are means over so long, or over what there is."""

CHARTED: Mapping[str, tuple[str, ...]] = {
    "SOURCE": ("EventAcceptedCount", BATCH.name),
    "INTERCEPTOR": ("EventReceivedCount",),
    "ROUTE": (),
    "CHANNEL": ("EventPutSuccessCount", "ChannelSize", BATCH.name),
    "SINK": ("EventDrainSuccessCount", "Lag", "LagSeconds", BATCH.name),
}
"""By kind of component: what is kept for charts."""
RATED = (
    *("EventReceivedCount", "EventAcceptedCount", "EventPutSuccessCount", "EventTakeSuccessCount"),
    *("EventDrainSuccessCount", "EventRejectedCount", "EventFilteredCount", "KernelDropCount"),
    *("EventRoutedCount", "OverflowEventCount"),
)

Values = Mapping[str, float]


class _Sample(NamedTuple):
    at: float
    """Seconds of `time.monotonic`, which clocks that are set do not move."""
    values: Mapping[str, Values]


class History:
    """Samples a registry on a thread of its own."""

    def __init__(self, registry: Registry, now: Callable[[], float] = time.time) -> None:
        self._registry, self._now = registry, now
        self._lock = threading.Lock()
        self._latest: deque[_Sample] = deque(maxlen=int(RATE_SECONDS / SAMPLE_SECONDS) + 1)
        self._most = int(KEPT_SECONDS / SAMPLE_SECONDS)
        self._times: deque[float] = deque(maxlen=self._most)
        self._series: dict[tuple[str, str], deque[float]] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="history", daemon=True)

    def start(self) -> None:
        """Begin; returns at once."""
        start_thread(self._thread)

    def stop(self) -> None:
        """End."""
        self._stopping.set()

    def _run(self) -> None:
        while not self._stopping.wait(SAMPLE_SECONDS):
            try:
                self.sample()
            except ANY_FAILURE as e:  # such as a gauge of a plugin that raises
                log.debug("a sample of the metrics failed", exc_info=e)

    def sample(self) -> None:
        """Take one sample now."""
        values = {f"{c.kind}.{c.name}": c.values() for c in list(self._registry.components)}
        with self._lock:
            self._latest.append(_Sample(time.monotonic(), values))
            self._times.append(self._now())
            for component, found in values.items():
                for counter in CHARTED[component.partition(".")[0]]:
                    series = self._series.get((component, counter))
                    if series is None:
                        series = self._series[component, counter] = deque(maxlen=self._most)
                        series.extend([float("nan")] * (len(self._times) - 1))
                    series.append(found.get(counter, float("nan")))
            for (component, _), series in self._series.items():
                if component not in values:
                    series.append(float("nan"))

    def rates(self) -> dict[str, dict[str, float]]:
        """By component and counter of `RATED`: how many a second, lately; empty until there are two samples."""
        with self._lock:
            if len(self._latest) < 2:
                return {}
            first, last = self._latest[0], self._latest[-1]
        seconds = max(last.at - first.at, 1e-3)
        return {
            component: {
                counter: round(max(value - first.values.get(component, {}).get(counter, value), 0.0) / seconds, 1)
                for counter, value in values.items()
                if counter in RATED
            }
            for component, values in last.values.items()
        }

    def series(self, since: float = 0.0) -> dict[str, object]:
        """`{"times": […], "series": {"SINK.k1": {"Lag": […]}}}`: seconds since the epoch, and the values that
        `/metrics` had then; None where a value was not known. Only what came after `since`."""
        with self._lock:
            new = sum(at > since for at in self._times)
            times = _latest(self._times, new)
            copied = {key: _latest(series, new) for key, series in self._series.items()}
        found: dict[str, dict[str, list[float | None]]] = {}
        for (component, counter), values in copied.items():
            found.setdefault(component, {})[counter] = [None if value != value else value for value in values]
        return {"times": [*times], "series": found}


def _latest(values: Sequence[float], number: int) -> array[float]:
    return array("d", itertools.islice(values, len(values) - number, None))
