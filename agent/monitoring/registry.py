"""Counters of the components of one agent, in Flume's JSON and in Prometheus' form."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.core import Metric as MetricFamily

from flafka.agent.monitoring.definitions import UP, family, of_every, of_some
from flafka.plugins import Metric, Metrics

UNDECLARED = "A metric of a plugin that does not declare it."


@dataclass
class Monitored:
    """One component as it is shown."""

    kind: str
    """SOURCE, CHANNEL, SINK, INTERCEPTOR or ROUTE."""
    name: str
    metrics: Metrics
    start_time: int
    """Milliseconds since the epoch."""
    declared: tuple[Metric, ...] = ()
    """Metrics of the component itself."""

    def values(self) -> dict[str, float]:
        """Return the present values, and 0 for a metric that is always shown."""
        return self._values("always")

    def for_prometheus(self) -> dict[str, float]:
        """Return `values`, and 0 for a metric that Prometheus gets from the start."""
        return self._values("always", "prometheus")

    def _values(self, *shown: str) -> dict[str, float]:
        always = (metric.name for metric in (*of_every(self.kind), *self.declared) if metric.shown in shown)
        return {**dict.fromkeys(always, 0.0), **self.metrics.snapshot()}

    def declarations(self) -> dict[str, Metric]:
        """Return the metrics of the component and of its kind, by name."""
        return {**{metric.name: metric for metric in self.declared}, **of_some(self.kind)}


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

    def add(self, kind: str, name: str, metrics: Metrics, declared: Iterable[Metric] = ()) -> None:
        """Show this component from now on; `declared` are its own metrics, besides the ones of its kind."""
        known = next((one for one in self._before if one.metrics is metrics), None)
        start = known.start_time if known is not None else int(time.time() * 1000)
        self.components.append(Monitored(kind, name, metrics, start, tuple(declared)))

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

    def collect(self) -> Iterator[MetricFamily]:
        """Yield the families of Prometheus: `flafka_event_accepted_total{agent,kind,name}`."""
        families: dict[str, Any] = {}
        declared: dict[str, Metric] = {UP.name: UP}
        for component in self.components:
            declared = component.declarations() | declared
        gauges: frozenset[str] = frozenset().union(*(component.metrics.gauges() for component in self.components))
        for component in self.components:
            values = component.for_prometheus()
            if component.kind != "ROUTE":  # a route counts only
                values[UP.name] = 0 if component.metrics.last_error else 1
            for name, value in values.items():
                if name not in families:
                    kind: Literal["counter", "gauge"] = "gauge" if name in gauges else "counter"
                    families[name] = _family(declared.get(name) or Metric(name, kind, "", UNDECLARED))
                families[name].add_metric([self.agent, component.kind.lower(), component.name], value)
        yield from families.values()


def _family(metric: Metric) -> CounterMetricFamily | GaugeMetricFamily:
    made = GaugeMetricFamily if metric.kind == "gauge" else CounterMetricFamily
    return made(family(metric.name, metric.kind), metric.help, labels=["agent", "kind", "name"])


def _text(name: str, value: float) -> str:
    return str(int(value)) if name.endswith("Timer") or float(value).is_integer() else str(value)
