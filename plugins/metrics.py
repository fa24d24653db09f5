"""Metrics: how a component declares them, and the values that it counts."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Metric:
    """Declaration of a counter or gauge, for `/metrics`, Prometheus, `agent explain` and the documentation."""

    name: str
    """Flume's name where Flume has one, and otherwise one in the same spelling: `EventReceivedCount`."""
    kind: Literal["counter", "gauge"]
    """A counter only grows; `Metrics.set` and `Metrics.set_function` make a gauge."""
    unit: str
    """`events`, `bytes`, `seconds`; empty where the value has none."""
    help: str
    """One sentence with its full stop, for users of Prometheus."""
    shown: Literal["always", "prometheus", "known"] = "always"
    """Point in time from which the metric is shown.

    `always`: from the start, as 0. `known`: once it has a value. `prometheus`: in Prometheus, which needs the 0 for a
    rate, from the start, and in JSON once it has a value.
    """


class Metrics:
    """Counters and gauges of one component, safe for threads.

    Count once a batch, not once an event: a call takes a lock. Names are Flume's where Flume has one
    (`EventReceivedCount`), in the same spelling otherwise.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[str, float] = {}
        self._gauges: set[str] = set()
        self._asked: dict[str, Callable[[], float | None]] = {}
        self.last_error = ""
        """The latest failure, in words; empty while all is well."""
        self.last_error_time = 0.0
        self.degraded: Callable[[], str] = str
        """Tells any thread why the component, though it works, does less than it should at present; empty while
        all is well. Unlike the latest failure it does not end with the next batch that is stored, and the agent
        counts as healthy."""

        self.standby = ""
        """Why the sink delivers nothing at present though its group does; empty for all but standbys. A standby does
        not count in the agent's health, also where its latest attempt failed.
        """
        self.covered = False
        """Whether something else does its work while it fails: the agent counts as healthy then, and it as degraded.
        """

    def add(self, name: str, amount: float = 1) -> None:
        """Count `amount` more."""
        with self._lock:
            self._values[name] = self._values.get(name, 0) + amount

    def set(self, name: str, value: float) -> None:
        """Set a gauge: a value that may fall again. Never `add` to one of that name."""
        with self._lock:
            self._values[name] = value
            self._gauges.add(name)

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Count the milliseconds that the block takes; `name` ends in `Timer`, as Flume's do."""
        started = time.monotonic()
        try:
            yield
        finally:
            self.add(name, 1000 * (time.monotonic() - started))

    def forget(self, name: str) -> None:
        """Drop a gauge that is no longer known."""
        with self._lock:
            self._values.pop(name, None)

    def get(self, name: str) -> float:
        """The present value; 0 for a name never counted."""
        with self._lock:
            return self._values.get(name, 0)

    def set_function(self, name: str, tell: Callable[[], float | None]) -> None:
        """Have a gauge asked for whenever somebody looks, on any thread; None: it is not known at present."""
        with self._lock:
            self._asked[name] = tell
            self._gauges.add(name)

    def gauges(self) -> frozenset[str]:
        """Names of those values that were set rather than counted."""
        with self._lock:
            return frozenset(self._gauges)

    def counters(self) -> dict[str, float]:
        """Return the present values of all that is counted, without gauges."""
        with self._lock:
            return {name: value for name, value in self._values.items() if name not in self._gauges}

    def error(self, text: str) -> None:
        """Remember the latest failure, so that the dashboard can show it; an empty text clears it."""
        self.last_error, self.last_error_time = text, time.time()

    def snapshot(self) -> dict[str, float]:
        """All present values; one that is no number (NaN, a text), or infinite, is not known."""
        with self._lock:
            values, asked = dict(self._values), list(self._asked.items())
        values |= {name: value for name, tell in asked if (value := tell()) is not None}
        return {name: value for name, value in values.items() if _is_number(value)}


def _is_number(value: Any) -> bool:
    """Whether it is one that can be told: a plugin may have set anything."""
    try:
        return math.isfinite(value)
    except (TypeError, ValueError, OverflowError):
        return False
