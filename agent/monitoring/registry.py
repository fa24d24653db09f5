"""Counters of the components of one agent, in Flume's JSON and in Prometheus' form."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from flafka.plugins import Metrics

_SOURCE = (
    "AppendAcceptedCount AppendBatchAcceptedCount AppendBatchReceivedCount AppendReceivedCount ChannelWriteFail "
    "EventAcceptedCount EventReadFail EventReceivedCount GenericProcessingFail OpenConnectionCount"
)
_CHANNEL = (
    "ChannelCapacity ChannelFillPercentage ChannelSize EventPutAttemptCount EventPutSuccessCount "
    "EventTakeAttemptCount EventTakeSuccessCount"
)
_SINK = (
    "BatchCompleteCount BatchEmptyCount BatchUnderflowCount ChannelReadFail ConnectionClosedCount "
    "ConnectionCreatedCount ConnectionFailedCount EventDrainAttemptCount EventDrainSuccessCount EventWriteFail"
)
_INTERCEPTOR = "EventReceivedCount EventFilteredCount"
_ROUTE = "EventRoutedCount"
COUNTERS = {
    "SOURCE": _SOURCE.split(),
    "CHANNEL": _CHANNEL.split(),
    "SINK": _SINK.split(),
    "INTERCEPTOR": _INTERCEPTOR.split(),
    "ROUTE": _ROUTE.split(),
}
"""The names every component of a kind shows, at 0 where nothing was counted: of the first three those that Flume's
dashboards expect; Flume shows no interceptors. A route is what one source puts into one channel, `ROUTE.s1.c1`."""
REJECTED = {"SOURCE": {"EventRejectedCount": 0.0}, "SINK": {"EventRejectedCount": 0.0}}
"""Counters that Prometheus gets from 0 on, too: it makes no rate of one that appears later."""

GAUGES = frozenset(["ChannelCapacity", "ChannelFillPercentage", "ChannelSize", "OpenConnectionCount"])
"""Gauges among these names. `Metrics.set` makes others."""


HELP = {
    "Lag": "Events of the channel that are not delivered; records, where the channel is Kafka's and each holds many",
    "LagSeconds": "Seconds since the oldest event that is not delivered came into the channel",
    "Backlog": "Lag of a sink on a Kafka channel, under its former name",
    "RetentionSecondsLeft": "Seconds until Kafka deletes the oldest event that is not delivered",
}
"""Help texts for Prometheus of figures that Flume does not have."""


@dataclass
class Monitored:
    """One component as it is shown."""

    kind: str
    """SOURCE, CHANNEL, SINK, INTERCEPTOR or ROUTE."""
    name: str
    metrics: Metrics
    start_time: int
    """Milliseconds since the epoch."""
    counters: tuple[str, ...] = ()
    """Names besides `COUNTERS` of the kind."""

    def values(self) -> dict[str, float]:
        """Return the counters, 0 where nothing was counted."""
        names = (*COUNTERS[self.kind], *self.counters)
        return {**dict.fromkeys(names, 0.0), **self.metrics.snapshot()}


class Registry:
    """The components of one agent."""

    def __init__(
        self,
        agent: str,
        rejecting: Callable[[], Mapping[str, str]] = dict,
        ended: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        """`rejecting` returns the components, by path (`a1.sinks.k1`), that have rejected events lately, and why.

        `ended` returns the threads, by name, that have ended unexpectedly, and why.
        """
        self.agent, self._rejecting, self._ended = agent, rejecting, ended
        self.components: list[Monitored] = []
        self._before: list[Monitored] = []
        self.application: Callable[[], Mapping[str, str]] = dict
        """Returns name and URL, `application` and `tracking`, of the Spark driver's application on its cluster."""
        self.waiting: Callable[[], Mapping[str, str]] = dict
        """Returns the components that have not taken events since the agent's start, with the reason."""

    def add(self, kind: str, name: str, metrics: Metrics, counters: Iterable[str] = ()) -> None:
        """Show this component from now on; `counters` are names besides `COUNTERS` of its kind."""
        known = next((one for one in self._before if one.metrics is metrics), None)
        start = known.start_time if known is not None else int(time.time() * 1000)
        self.components.append(Monitored(kind, name, metrics, start, tuple(counters)))

    def clear(self) -> None:
        """Show nothing any more: what is added again has the time at which it was first added."""
        self._before, self.components = self.components, []

    def flume(self) -> dict[str, dict[str, str]]:
        """`{"SOURCE.s1": {"EventAcceptedCount": "12", …}}`, all values text, as Flume serves them."""
        return {f"{c.kind}.{c.name}": self._values(c) for c in self.components}

    def _values(self, component: Monitored) -> dict[str, str]:
        shown = {name: _text(name, value) for name, value in sorted(component.values().items())}
        shown["StartTime"] = str(component.start_time)
        shown["StopTime"] = "0"
        shown["Type"] = component.kind
        if component.metrics.last_error:
            shown["LastError"] = component.metrics.last_error
        return shown

    def state(self) -> Literal["ok", "degraded", "failing"]:
        """In one word."""
        return "failing" if self.failing() else "degraded" if self.degraded() else "ok"

    def failing(self) -> dict[str, str]:
        """Components whose latest attempt failed, with the reason, and threads that have ended unexpectedly.

        A component whose work another one does (`Metrics.covered`, `Metrics.standby`) is not among them. A thread is
        reported as its component where its name begins with the component's path, and as `THREAD.<name>` otherwise.
        """
        failing = {
            f"{c.kind}.{c.name}": c.metrics.last_error
            for c in self.components
            if c.metrics.last_error and not c.metrics.covered and not c.metrics.standby
        }
        for thread, reason in self._ended().items():
            failing[self._component_of(thread)] = reason
        return failing

    def standby(self) -> dict[str, str]:
        """Sinks of failover groups that another one stands in for, with the latest failure where there is one."""
        return {
            f"{c.kind}.{c.name}": "; ".join(filter(None, (c.metrics.standby, c.metrics.last_error)))
            for c in self.components
            if c.metrics.standby
        }

    def _component_of(self, thread: str) -> str:
        for c in self.components:
            path = f"{self.agent}.{c.kind.lower()}s.{c.name}"
            if thread == path or thread.startswith(f"{path}-"):
                return f"{c.kind}.{c.name}"
        return f"THREAD.{thread}"

    def degraded(self) -> dict[str, str]:
        """Components that work and do less than they should, or rejected events lately, with the reason."""
        rejecting, found = self._rejecting(), {}
        for c in self.components:
            reasons = (c.metrics.degraded(), rejecting.get(f"{self.agent}.{c.kind.lower()}s.{c.name}", ""))
            if any(reasons):
                found[f"{c.kind}.{c.name}"] = "; ".join(filter(None, reasons))
        return found

    def collect(self) -> Iterator[Metric]:
        """Prometheus' view: `flafka_event_accepted_total{agent,kind,name}`."""
        families: dict[str, Any] = {}
        gauges = GAUGES.union(*(component.metrics.gauges() for component in self.components))
        for component in self.components:
            labels = [self.agent, component.kind.lower(), component.name]
            for name, value in (REJECTED.get(component.kind, {}) | component.values()).items():
                family = families.get(name)
                if family is None:
                    make = GaugeMetricFamily if name in gauges else CounterMetricFamily
                    called = name if name in gauges else name.removesuffix("Count")
                    family = families[name] = make(
                        f"flafka_{_snake(called)}",
                        HELP.get(name, f"Flume's {name}"),
                        labels=["agent", "kind", "name"],
                    )
                family.add_metric(labels, value)
            if component.kind == "ROUTE":  # it counts only
                continue
            up = families.setdefault(
                "Up",
                GaugeMetricFamily(
                    "flafka_up", "1 while the latest attempt succeeded", labels=["agent", "kind", "name"]
                ),
            )
            up.add_metric(labels, 0 if component.metrics.last_error else 1)
        yield from families.values()


def _text(name: str, value: float) -> str:
    return str(int(value)) if name.endswith("Timer") or float(value).is_integer() else str(value)


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
