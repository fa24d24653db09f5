"""Metrics of the components of one agent, in Flume's JSON and in the Prometheus format."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.core import Metric as MetricFamily

from flafka.agent.monitoring.definitions import CERTIFICATE, UP, common_metrics, family_name, undeclared_metrics
from flafka.plugins import Metric, Metrics

UNDECLARED = "A metric of a plugin that does not declare it."


@dataclass
class MonitoredComponent:
    """Component with its metrics."""

    kind: str
    """SOURCE, CHANNEL, SINK, INTERCEPTOR or ROUTE."""
    name: str
    metrics: Metrics
    start_time: int
    """Start of the component, in milliseconds since the epoch."""
    declared: tuple[Metric, ...] = ()
    """Metrics of the component itself."""

    @property
    def key(self) -> str:
        """Name of the component in `/metrics`, `SINK.k1`."""
        return f"{self.kind}.{self.name}"

    def values(self) -> dict[str, float]:
        """Return the present values, with 0 for metrics that `/metrics` always shows."""
        return self._values("always")

    def for_prometheus(self) -> dict[str, float]:
        """Return the present values, with 0 for metrics that are always shown or that Prometheus gets at once."""
        return self._values("always", "prometheus")

    def _values(self, *shown: str) -> dict[str, float]:
        always = (metric.name for metric in (*common_metrics(self.kind), *self.declared) if metric.shown in shown)
        return {**dict.fromkeys(always, 0.0), **self.metrics.snapshot()}

    def declarations(self) -> dict[str, Metric]:
        """Return name → metric of all metrics that the component declares or its kind may have; the kind's win."""
        return {**{metric.name: metric for metric in self.declared}, **undeclared_metrics(self.kind)}


class Registry:
    """Registry of the components of one agent. Any thread may call."""

    def __init__(
        self,
        agent: str,
        rejecting: Callable[[], Mapping[str, str]] = dict,
        ended: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        """Create an empty registry.

        `rejecting` returns the components that have rejected events recently, by path, with the reason. `ended`
        returns the threads that have ended unexpectedly, by name, with the reason.
        """
        self.agent, self._rejecting, self._ended = agent, rejecting, ended
        self.components: list[MonitoredComponent] = []
        self._previous: list[MonitoredComponent] = []
        self.application: Callable[[], Mapping[str, str]] = dict
        """Returns name and URL, `application` and `tracking`, of the Spark driver's application on its cluster."""
        self.waiting: Callable[[], Mapping[str, str]] = dict
        """Returns the components that have not taken events since the agent's start, with the reason."""
        self.certificate_expiry: float | None = None
        """Expiry of the monitoring server's certificate, in seconds since the epoch; None without TLS."""

    def add(self, kind: str, name: str, metrics: Metrics, declared: Iterable[Metric] = ()) -> None:
        """Register a component. `declared` are its own metrics, in addition to the metrics of its kind.

        `kind` is one of `KINDS`. The start time is now, or that before `clear` for the same `metrics` object.
        """
        previous = next((component for component in self._previous if component.metrics is metrics), None)
        start = previous.start_time if previous is not None else int(time.time() * 1000)
        self.components.append(MonitoredComponent(kind, name, metrics, start, tuple(declared)))

    def clear(self) -> None:
        """Remove all components. A component that is added again with the same `metrics` keeps its start time."""
        self._previous, self.components = self.components, []

    def values(self) -> dict[str, dict[str, float]]:
        """Return component → metric → present value. Components are named as in `/metrics`, `SINK.k1`."""
        return {c.key: c.values() for c in list(self.components)}

    def flume(self) -> dict[str, dict[str, str]]:
        """Return `{"SOURCE.s1": {"EventAcceptedCount": "12", …}}` for all components.

        All values are text, as in Flume.
        """
        return {c.key: self._values(c) for c in self.components}

    def _values(self, component: MonitoredComponent) -> dict[str, str]:
        """Return the values of a component as text, with StartTime, Type, and LastError while it fails."""
        shown = {name: _text(name, value) for name, value in sorted(component.values().items())}
        shown["StartTime"] = str(component.start_time)
        shown["StopTime"] = "0"
        shown["Type"] = component.kind
        if component.metrics.last_error:
            shown["LastError"] = component.metrics.last_error
        return shown

    def state(self) -> Literal["ok", "degraded", "failing"]:
        """Return the health of the agent: "failing" if a component or thread fails, else "degraded" or "ok"."""
        return "failing" if self.failing() else "degraded" if self.degraded() else "ok"

    def failing(self) -> dict[str, str]:
        """Return component → reason for components whose latest attempt failed and threads that ended unexpectedly.

        Without components that another one stands in for (`Metrics.is_covered`, `Metrics.standby_reason`). Components
        are named as in `/metrics`, `SINK.k1`. A thread is reported as its component if its name begins with the
        component's path; otherwise as `THREAD.<name>`.
        """
        failing = {
            c.key: c.metrics.last_error
            for c in self.components
            if c.metrics.last_error and not c.metrics.is_covered and not c.metrics.standby_reason
        }
        return failing | self.ended()

    def ended(self) -> dict[str, str]:
        """Return component → reason for the threads that have ended unexpectedly, as `failing` names components."""
        return {self._component_of(thread): reason for thread, reason in self._ended().items()}

    def rejecting(self) -> dict[str, str]:
        """Return component → reason for the components that have rejected events recently."""
        rejecting = self._rejecting()
        return {c.key: reason for c in self.components if (reason := rejecting.get(self._path(c)))}

    def standby(self) -> dict[str, str]:
        """Return sink → reason for the sinks of failover groups that stand by, with the latest failure, if any."""
        return {
            c.key: "; ".join(filter(None, (c.metrics.standby_reason, c.metrics.last_error)))
            for c in self.components
            if c.metrics.standby_reason
        }

    def _component_of(self, thread: str) -> str:
        """Return the component of a thread by the thread's name, or else `THREAD.<name>`."""
        for c in self.components:
            path = self._path(c)
            if thread == path or thread.startswith(f"{path}-"):
                return c.key
        return f"THREAD.{thread}"

    def _path(self, component: MonitoredComponent) -> str:
        return f"{self.agent}.{component.kind.lower()}s.{component.name}"

    def degraded(self) -> dict[str, str]:
        """Return component → reason for components with a loss of function or with recently rejected events."""
        rejecting, degraded = self.rejecting(), {}
        for c in self.components:
            reasons = (c.metrics.degradation(), rejecting.get(c.key, ""))
            if any(reasons):
                degraded[c.key] = "; ".join(filter(None, reasons))
        return degraded

    def collect(self) -> Iterator[MetricFamily]:
        """Yield the metric families for Prometheus, such as `flafka_event_accepted_total{agent,kind,name}`.

        Each component except routes also has the gauge `Up`: 0 while its latest attempt failed, else 1. The expiry of
        the monitoring server's own certificate has the kind `agent`.
        """
        families: dict[str, Any] = {}
        declared: dict[str, Metric] = {UP.name: UP}
        for component in self.components:
            declared = component.declarations() | declared
        gauges: frozenset[str] = frozenset().union(*(component.metrics.gauges() for component in self.components))
        for component in self.components:
            values = component.for_prometheus()
            if component.kind != "ROUTE":  # a route cannot fail
                values[UP.name] = 0 if component.metrics.last_error else 1
            for name, value in values.items():
                if name not in families:
                    kind: Literal["counter", "gauge"] = "gauge" if name in gauges else "counter"
                    families[name] = _family(declared.get(name) or Metric(name, kind, "", UNDECLARED))
                families[name].add_metric([self.agent, component.kind.lower(), component.name], value)
        if self.certificate_expiry is not None:
            family = families.setdefault(CERTIFICATE.name, _family(CERTIFICATE))
            family.add_metric([self.agent, "agent", self.agent], round(self.certificate_expiry - time.time()))
        yield from families.values()


def _family(metric: Metric) -> CounterMetricFamily | GaugeMetricFamily:
    cls = GaugeMetricFamily if metric.kind == "gauge" else CounterMetricFamily
    return cls(family_name(metric.name, metric.kind), metric.help, labels=["agent", "kind", "name"])


def _text(name: str, value: float) -> str:
    """Return a value as Flume writes it: without a decimal point for whole numbers and timers."""
    return str(int(value)) if name.endswith("Timer") or float(value).is_integer() else str(value)
