"""Alerts about rejected events: log lines, at most one a minute, and degraded health for five minutes."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from flafka.agent.runner.deadletters.errorgroups import error_group_of, merge_reasons
from flafka.agent.runner.deadletters.store import DeadLetter, DeadLetterStore

LOG_INTERVAL_SECONDS = 60.0
"""Shortest time between two log lines about one error group of a component."""
DEGRADED_SECONDS = 300.0
"""Time after its latest rejected event during which a component counts as degraded."""
MAX_GROUPS = 20
"""Error groups that are kept of one component; events of further groups are counted together."""
OTHER_REASONS = "other reasons"

ErrorGroups = Mapping[str, tuple[str, int]]
"""Shared reason and number of events, by the key of the error group."""


@dataclass
class _Alert:
    reason: str
    latest: float
    logged: float = float("-inf")
    unlogged_events: int = 0
    events: int = 0


def merge_groups(first: ErrorGroups, second: ErrorGroups) -> ErrorGroups:
    """Return the error groups of both mappings, with added numbers of events and merged reasons (`merge_reasons`)."""
    merged = dict(first)
    for key, (reason, events) in second.items():
        before, count = first.get(key, (reason, 0))
        merged[key] = merge_reasons(before, reason), count + events
    return merged


class Alerts:
    """Alerts about the events that the components of one agent reject. Thread-safe."""

    def __init__(self, command: str, now: Callable[[], float] = lambda: time.monotonic()) -> None:
        """`command` lists dead letters, without its option `--component`. `now` returns monotonic seconds."""
        self._command, self._now = command, now
        self._lock = threading.Lock()
        self._alerts: dict[str, dict[str, _Alert]] = {}

    def add(self, component: str, groups: ErrorGroups) -> None:
        """Add new dead letters of a component to its alerts, by error group, and log the alerts that are due.

        `component` is its path. The dead letters are durable. Beyond `MAX_GROUPS`, events count as `OTHER_REASONS`.
        Alerts that are older than `DEGRADED_SECONDS` are dropped first.
        """
        now = self._now()
        with self._lock:
            alerts = self._alerts.setdefault(component, {})
            for key in [key for key, alert in alerts.items() if self._is_expired(alert, now)]:
                del alerts[key]
            for key, (reason, events) in groups.items():
                if key not in alerts and len(alerts) >= MAX_GROUPS:
                    key, reason = OTHER_REASONS, OTHER_REASONS
                alert = alerts.setdefault(key, _Alert(reason, now))
                alert.reason, alert.latest = merge_reasons(alert.reason, reason), now
                alert.unlogged_events += events
                alert.events += events
        self.log_due()

    def log_due(self, *, everything: bool = False) -> None:
        """Log each alert that has unlogged events and was not logged for `LOG_INTERVAL_SECONDS`.

        With `everything`, log each alert that has unlogged events.
        """
        now = self._now()
        with self._lock:
            due = [
                (component, alert)
                for component, alerts in self._alerts.items()
                for alert in alerts.values()
                if alert.unlogged_events and (everything or now - alert.logged >= LOG_INTERVAL_SECONDS)
            ]
            lines = [(component, self._line(alert, now)) for component, alert in due]
            for _, alert in due:
                alert.logged, alert.unlogged_events = now, 0
        for component, line in lines:
            logging.getLogger(component).warning("%s. They are dead letters: %s", line, self._advice(component))

    def recent(self) -> dict[str, str]:
        """Return path → alert text of each component that has rejected events within `DEGRADED_SECONDS`."""
        now = self._now()
        with self._lock:
            recent = {
                component: [alert for alert in alerts.values() if not self._is_expired(alert, now)]
                for component, alerts in self._alerts.items()
            }
        return {component: self._sentence(component, alerts, now) for component, alerts in recent.items() if alerts}

    def _sentence(self, component: str, alerts: list[_Alert], now: float) -> str:
        by_events = sorted(alerts, key=lambda alert: -alert.events)
        reasons = "; ".join(f"{alert.events:,}: {alert.reason}" for alert in by_events)
        seconds = now - max(alert.latest for alert in alerts)
        events = sum(alert.events for alert in alerts)
        return f"{_events(events)} rejected, the latest {seconds:.0f} s ago ({reasons}): {self._advice(component)}"

    def _advice(self, component: str) -> str:
        return f"{self._command} --component {component}"

    @staticmethod
    def _is_expired(alert: _Alert, now: float) -> bool:
        return now - alert.latest > DEGRADED_SECONDS

    @staticmethod
    def _line(alert: _Alert, now: float) -> str:
        since = "" if alert.logged == float("-inf") else f" within {now - alert.logged:.0f} s"
        return f"{_events(alert.unlogged_events)} rejected{since}: {alert.reason.rstrip('.')}"


class AlertingStore:
    """Dead letter store that reports the error groups of all that it has stored durably, by component."""

    def __init__(self, store: DeadLetterStore, report: Callable[[str, ErrorGroups], None]) -> None:
        """`store` keeps the dead letters.

        `report` is called with the path of a component and its new error groups.
        """
        self._store, self._report = store, report

    def put(self, dead_letters: Iterable[DeadLetter]) -> None:
        """Store dead letters durably, then report their error groups by component.

        Raises Retry, without a report, if the store does.
        """
        stored = list(dead_letters)
        self._store.put(stored)
        by_component: dict[str, ErrorGroups] = {}
        for dead_letter in stored:
            key = error_group_of(dead_letter.reason, dead_letter.id, dead_letter.event)
            groups = by_component.get(dead_letter.component, {})
            by_component[dead_letter.component] = merge_groups(groups, {key: (dead_letter.reason, 1)})
        for component, groups in by_component.items():
            self._report(component, groups)

    def close(self) -> None:
        """Close the underlying store."""
        self._store.close()


def _events(number: int) -> str:
    return f"{number:,} event{'s were' if number != 1 else ' was'}"
