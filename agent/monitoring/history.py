"""Metrics of the last day: rates, and time series for charts, in bounded memory and in a file of the agent."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import threading
import time
import zipfile
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from flafka.agent.monitoring.definitions import BATCH, LATENCY, RECEIVED_BYTES, TAKEN_BYTES
from flafka.agent.monitoring.process import ProcessFigures
from flafka.agent.monitoring.registry import Registry
from flafka.plugins.errors import ANY_FAILURE
from flafka.plugins.threads import start_thread

log = logging.getLogger(__name__)

SAMPLE_SECONDS = 2.0
RATE_SECONDS = 10.0
"""Period over which rates are averaged, or less at the start."""
SAVE_INTERVAL_SECONDS = 600.0
"""Interval at which the file is written. A killed agent loses the charts of this time."""
LEAST_RUN_SECONDS = 60.0
"""Time before which an agent that stops leaves the file as it is."""
MAX_SERIES = 1000
"""Maximum number of series. Further ones are not kept."""
PROCESS = "PROCESS"
"""Component with the figures of the process, which are not among the metrics."""

RATED = (
    *("EventReceivedCount", "EventAcceptedCount", "EventPutSuccessCount", "EventTakeSuccessCount"),
    *("EventDrainSuccessCount", "EventRejectedCount", "EventFilteredCount", "KernelDropCount"),
    *("EventRoutedCount", "OverflowEventCount", RECEIVED_BYTES.name, TAKEN_BYTES.name),
)
"""Counters whose series are rates a second."""
_LATENCIES = tuple(metric.name for metric in LATENCY)
CHARTED: Mapping[str, tuple[str, ...]] = {
    "SOURCE": ("EventAcceptedCount", *_LATENCIES),
    "INTERCEPTOR": ("EventReceivedCount", BATCH.name),
    "ROUTE": (),
    "CHANNEL": ("EventPutSuccessCount", "ChannelSize", "OverflowSize", BATCH.name),
    "SINK": ("EventDrainSuccessCount", "Lag", "LagSeconds", *_LATENCIES),
    PROCESS: ("CpuPercent", "MemoryBytes", "OpenFileCount", RECEIVED_BYTES.name, TAKEN_BYTES.name),
}
"""Metrics with a time series, by kind of component. The first one is that of the component's card on the page."""

Values = Mapping[str, float]
_Key = tuple[str, str]
"""Component and metric."""


class _Sample(NamedTuple):
    time: float
    """Seconds of `time.monotonic`: a change of the clock must not change a rate."""
    values: Mapping[str, Values]


class Resolution(NamedTuple):
    """Length of the slots of a ring, and their number."""

    seconds: int
    slots: int

    @property
    def span(self) -> int:
        """Length of the ring in seconds."""
        return self.seconds * self.slots


RESOLUTIONS = (Resolution(2, 300), Resolution(10, 360), Resolution(60, 1500))
"""Ten minutes, an hour, and 25 hours."""
SERIES_BYTES = 4 * sum(resolution.slots for resolution in RESOLUTIONS)
"""Memory of one series: a number of four bytes for each slot."""


class _Ring:
    """Series of one resolution. A slot has the number `time // seconds`, and its place is that number modulo `slots`.

    So a gap, as of an agent that was down, takes no work, and an old value is never taken for a new one.
    """

    def __init__(self, resolution: Resolution) -> None:
        self.resolution = resolution
        self.numbers = np.full(resolution.slots, -1, np.int64)
        """Number of the slot in each place; -1 for none."""
        self.series: dict[_Key, npt.NDArray[np.float32]] = {}
        self.before: _Sample | None = None
        """Sample of the latest slot, from which rates begin."""

    def add(self, now: float, sample: _Sample) -> None:
        """Add a sample unless its slot has one. A counter's value is its rate since the slot before."""
        number = int(now // self.resolution.seconds)
        place = number % self.resolution.slots
        if self.numbers[place] == number:
            return
        self.numbers[place] = number
        row = dict(self._row(sample))
        for key in row.keys() - self.series.keys():
            if len(self.series) < MAX_SERIES:
                self.series[key] = np.full(self.resolution.slots, np.nan, np.float32)
        for key, series in self.series.items():
            series[place] = row.get(key, math.nan)
        self.before = sample

    def _row(self, sample: _Sample) -> Iterable[tuple[_Key, float]]:
        for component, values in sample.values.items():
            before = self.before.values.get(component, {}) if self.before is not None else {}
            for metric in CHARTED[component.partition(".")[0]]:
                value = values.get(metric)
                if value is not None and metric in RATED:
                    if self.before is None or metric not in before:
                        continue
                    value = max(value - before[metric], 0.0) / max(sample.time - self.before.time, 1e-3)
                if value is not None:
                    yield (component, metric), value

    def places(self, now: float, since: float = 0.0) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return numbers and places of the slots with a sample after `since` and up to `now`, oldest first."""
        last = int(now // self.resolution.seconds)
        first = max(last - self.resolution.slots + 1, int(since // self.resolution.seconds) + 1)
        numbers = np.arange(first, last + 1, dtype=np.int64)
        places = numbers % self.resolution.slots
        known = self.numbers[places] == numbers
        return numbers[known], places[known]

    def prune(self) -> None:
        """Drop the series without any value, as of components that a reload removed a day ago."""
        self.series = {key: values for key, values in self.series.items() if not np.isnan(values).all()}


class History:
    """Sampler of a registry and of the process, on its own thread. Any thread may call the public methods.

    Memory: `SERIES_BYTES` for each series, at most `MAX_SERIES` of them.
    """

    def __init__(
        self,
        registry: Registry,
        now: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = lambda: time.monotonic(),
    ) -> None:
        """`now` returns seconds since the epoch, `monotonic` seconds that no change of the clock affects."""
        self._registry, self._now, self._monotonic = registry, now, monotonic
        self._process = ProcessFigures()
        self._lock = threading.Lock()
        self._latest: deque[_Sample] = deque(maxlen=int(RATE_SECONDS / SAMPLE_SECONDS) + 1)
        self._rings = tuple(map(_Ring, RESOLUTIONS))
        self._file: Path | None = None
        self._began = math.inf
        self._save_due = math.inf
        self._saving = threading.Lock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="history", daemon=True)

    def start(self, file: Path | None = None) -> None:
        """Start the thread, which samples every `SAMPLE_SECONDS`. Does not block.

        The series continue those in `file`, which is written every `SAVE_INTERVAL_SECONDS` and by `stop`. Without a
        file, or if it cannot be read or written, they are in memory only.
        """
        self._file, self._began = file, self._monotonic()
        if file is not None:
            self._load(file)
            self._save_due = self._monotonic() + SAVE_INTERVAL_SECONDS
        start_thread(self._thread)

    def stop(self) -> None:
        """Stop the thread, without waiting for its end, and write the file after `LEAST_RUN_SECONDS` of samples."""
        self._stopping.set()
        if self._monotonic() - self._began >= LEAST_RUN_SECONDS:
            self._save()

    def _run(self) -> None:
        while not self._stopping.wait(SAMPLE_SECONDS):
            try:
                self.sample()
                if self._monotonic() >= self._save_due:
                    self._save_due = self._monotonic() + SAVE_INTERVAL_SECONDS
                    self._save()
            except ANY_FAILURE as e:  # such as an error in a gauge of a plugin
                log.debug("a sample of the metrics failed", exc_info=e)

    def sample(self) -> None:
        """Take one sample of all components and of the process now."""
        values: dict[str, Values] = dict(self._registry.values())
        values[PROCESS] = {
            **self._process.sample(),
            RECEIVED_BYTES.name: sum(one.get(RECEIVED_BYTES.name, 0.0) for one in values.values()),
            TAKEN_BYTES.name: sum(one.get(TAKEN_BYTES.name, 0.0) for one in values.values()),
        }
        with self._lock:
            now, sample = self._now(), _Sample(self._monotonic(), values)
            self._latest.append(sample)
            for ring in self._rings:
                ring.add(now, sample)

    def process(self) -> dict[str, float]:
        """Return the latest figures of the process; empty before the first sample."""
        with self._lock:
            return dict(self._latest[-1].values[PROCESS]) if self._latest else {}

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

    def growth(self, component: str, metric: str, seconds: float = 60.0) -> float | None:
        """Return the change of a gauge a second, over about the last `seconds`; None if it is not known.

        It is known for gauges in `CHARTED`, from ten seconds of samples on.
        """
        ring = self._rings[0]
        with self._lock:
            series = ring.series.get((component, metric))
            if series is None:
                return None
            now = self._now()
            numbers, places = ring.places(now, now - seconds)
            values = series[places]
        known = ~np.isnan(values)
        numbers, values = numbers[known], values[known]
        if len(numbers) < 2 or not known[-1] or (numbers[-1] - numbers[0]) * ring.resolution.seconds < RATE_SECONDS:
            return None
        return float(values[-1] - values[0]) / float((numbers[-1] - numbers[0]) * ring.resolution.seconds)

    def series(
        self, span: float = 3600.0, since: float = 0.0, components: Iterable[str] | None = None
    ) -> dict[str, Any]:
        """Return `{"every": 10, "span": 3600, "now": …, "times": […], "series": {"SINK.k1": {"Lag": […]}}}`.

        The samples, oldest first, are those after `since`, in seconds since the epoch, and of about the last `span`
        seconds. They are `every` seconds apart. A value is None if it is unknown. Counters have rates a second. With
        `components` None, each component has the first series of `CHARTED`.
        """
        ring = next((ring for ring in self._rings if ring.resolution.span >= span), self._rings[-1])
        chosen = None if components is None else {*components}
        with self._lock:
            now = self._now()
            numbers, places = ring.places(now, max(since, now - span))
            copied = {
                (component, metric): values[places]
                for (component, metric), values in ring.series.items()
                if (component in chosen if chosen is not None else metric == _main_metric(component))
            }
        by_component: dict[str, dict[str, list[float | None]]] = {}
        for (component, metric), values in copied.items():
            by_component.setdefault(component, {})[metric] = [*map(_rounded, values.tolist())]
        times = (numbers * ring.resolution.seconds).tolist()
        return {"every": ring.resolution.seconds, "span": span, "now": now, "times": times, "series": by_component}

    # --- the file

    def _save(self) -> None:
        """Write the series of an hour and of a day. An OSError is logged once, and ends the writing."""
        with self._saving:
            if self._file is not None:
                self._write(self._file)

    def _write(self, target: Path) -> None:
        temporary = target.with_suffix(".tmp")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with temporary.open("wb") as file:
                np.savez_compressed(file, **self._stored())
            temporary.replace(target)
        except OSError as e:
            log.info(
                "the history of the dashboard is in memory only: %s cannot be written: %s", target, e.strerror or e
            )
            self._file, self._save_due = None, math.inf
            with contextlib.suppress(OSError):
                temporary.unlink()

    def _stored(self) -> dict[str, Any]:
        """Return the arrays of the file by name."""
        arrays: dict[str, Any] = {}
        with self._lock:
            for ring in self._rings[1:]:
                ring.prune()
                name = str(ring.resolution.seconds)
                arrays[f"numbers{name}"] = ring.numbers.copy()
                arrays[f"keys{name}"] = np.array(json.dumps([*ring.series]))
                arrays[f"values{name}"] = np.array([*ring.series.values()], np.float32)
        return arrays

    def _load(self, file: Path) -> None:
        """Continue the series in the file. A missing file, a damaged one and one of another version are ignored."""
        try:
            with np.load(file, allow_pickle=False) as stored:
                for ring in self._rings[1:]:
                    name, slots = str(ring.resolution.seconds), ring.resolution.slots
                    keys = [
                        (str(component), str(metric)) for component, metric in json.loads(str(stored["keys" + name]))
                    ]
                    numbers, values = stored[f"numbers{name}"], stored[f"values{name}"]
                    if numbers.shape != (slots,) or len(values) != len(keys) or (keys and values.shape[1] != slots):
                        raise ValueError("another resolution")
                    with self._lock:
                        ring.numbers[:] = numbers
                        ring.series = dict(zip(keys[:MAX_SERIES], np.array(values, np.float32), strict=False))
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as e:
            log.info("the history in %s cannot be read, and begins anew: %s", file, e)


def _main_metric(component: str) -> str:
    """Return the first charted metric of a component's kind; empty if the kind has none."""
    return next(iter(CHARTED.get(component.partition(".")[0], ())), "")


def _rounded(value: float) -> float | None:
    """Return a number with five digits; None for NaN."""
    return None if math.isnan(value) else float(f"{value:.5g}")
