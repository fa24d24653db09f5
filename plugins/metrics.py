"""Declarations and values of a component's metrics."""

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
    """Flume's name if Flume has the metric, otherwise a name in the same style, such as `EventReceivedCount`."""
    kind: Literal["counter", "gauge"]
    """A counter only grows; `Metrics.set` and `Metrics.set_function` make a gauge."""
    unit: str
    """`events`, `bytes`, `seconds`; empty for a number without a unit."""
    help: str
    """One sentence with its full stop, for users of Prometheus."""
    shown: Literal["always", "prometheus", "known"] = "always"
    """Point in time from which the metric is shown.

    `always`: from the start, as 0. `known`: once it has a value. `prometheus`: in Prometheus, which needs the 0 for a
    rate, from the start, and in JSON once it has a value.
    """


class Metrics:
    """Counters and gauges of one component. Thread-safe.

    Count once for each batch, not for each event, because a call takes a lock.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[str, float] = {}
        self._gauges: set[str] = set()
        self._functions: dict[str, Callable[[], float | None]] = {}
        self.last_error = ""
        """Text of the latest failure; empty while the component works."""
        self.last_error_time = 0.0
        self.failing_since = 0.0
        """Time of the first failure since the latest success, in seconds since the epoch; 0 without a failure."""
        self.degradation: Callable[[], str] = str
        """Function that returns why the component works below its capability; an empty text if it does not.

        Called on any thread. Unlike `last_error`, the text survives the next success, and the agent stays healthy.
        """
        self.standby_reason = ""
        """Reason why the sink is the standby of a sink group; empty for all other components.

        A standby does not affect the agent's health, even if its latest attempt has failed.
        """
        self.is_covered = False
        """True if another component does the work while this one fails: the agent is healthy, the component degraded.
        """

    def add(self, name: str, amount: float = 1) -> None:
        """Increase a counter by `amount`."""
        with self._lock:
            self._values[name] = self._values.get(name, 0) + amount

    def set(self, name: str, value: float) -> None:
        """Set a gauge, a value that may fall. Never call `add` with that name."""
        with self._lock:
            self._values[name] = value
            self._gauges.add(name)

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Add the milliseconds that the block takes to a counter, whose name ends in `Timer`, as in Flume."""
        started = time.monotonic()
        try:
            yield
        finally:
            self.add(name, 1000 * (time.monotonic() - started))

    def remove(self, name: str) -> None:
        """Remove a gauge whose value is no longer known."""
        with self._lock:
            self._values.pop(name, None)

    def get(self, name: str) -> float:
        """Return the value of a counter or gauge; 0 if it has none, as a gauge of `set_function`."""
        with self._lock:
            return self._values.get(name, 0)

    def set_function(self, name: str, function: Callable[[], float | None]) -> None:
        """Set a gauge to the result of a function, which each `snapshot` calls, on any thread.

        The function returns None while the value is unknown.
        """
        with self._lock:
            self._functions[name] = function
            self._gauges.add(name)

    def gauges(self) -> frozenset[str]:
        """Return the names of the gauges."""
        with self._lock:
            return frozenset(self._gauges)

    def counters(self) -> dict[str, float]:
        """Return the values of all counters, without gauges."""
        with self._lock:
            return {name: value for name, value in self._values.items() if name not in self._gauges}

    def set_error(self, text: str) -> None:
        """Set the text of the latest failure, which the agent's page shows, and its time; an empty text clears it."""
        now = time.time()
        if not text or not self.failing_since:
            self.failing_since = now if text else 0.0
        self.last_error, self.last_error_time = text, now

    def snapshot(self) -> dict[str, float]:
        """Return the values of all counters and gauges by name.

        Unknown values are left out, and values that are no finite number (NaN, a text).
        """
        with self._lock:
            values, functions = dict(self._values), list(self._functions.items())
        values |= {name: value for name, function in functions if (value := function()) is not None}
        return {name: value for name, value in values.items() if _is_number(value)}


def _is_number(value: Any) -> bool:
    """Return True for a finite number: a plugin may have set a value of any type."""
    try:
        return math.isfinite(value)
    except (TypeError, ValueError, OverflowError):
        return False
