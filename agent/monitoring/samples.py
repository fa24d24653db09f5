"""Samples of the events that pass a component, for the page: only after the last interceptor that redacts.

A sample subscribes to the taps of `agent tap`. Pages on one component share a sample, which ends without requests.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow.compute as pc

from flafka.agent.graph import Graph, graph_of
from flafka.agent.monitoring.taps import TappedBatch, TapPoint, Taps, TapSubscriber, find_point, tap_points
from flafka.agent.topology import AgentSpec, ComponentSpec, SinkSpec, SourceSpec
from flafka.plugins import Batch, Event, Interceptor

MAX_EVENTS = 50
"""Number of latest events in a sample."""
MAX_EVENTS_PER_SECOND = 20
MAX_BYTES = 2000
"""Maximum size of a body, and of all headers of an event together; the rest is cut off."""
MAX_SAMPLES = 16
LEASE_SECONDS = 6.0
"""Lifetime of a sample without requests. A page sends one every two seconds."""


class Sample(TapSubscriber):
    """Latest events at the end of one component, or before and after one of its interceptors.

    Copies the events, so that it holds no batch in memory.
    """

    def __init__(self, interceptor: int | None = None, *, hides_before: bool = False) -> None:
        """`interceptor` is its index, from 0; None is the end of the component.

        With `hides_before`, only events after the interceptor are kept.
        """
        super().__init__(interceptor)
        self.hides_before = hides_before
        self._latest: dict[str, deque[dict[str, Any]]] = {}
        """Events by stage: empty, or `before` and `after`."""
        self._passed = 0
        self._second, self._remaining = 0, 0
        self.last_request = time.monotonic()
        """Time of the latest request, in seconds of `time.monotonic`."""
        self.closing = contextlib.ExitStack()

    def _enqueue(self, batches: tuple[TappedBatch, ...]) -> None:
        """Append copies of a batch's first events, at most `MAX_EVENTS_PER_SECOND`, and count all its events.

        The same number of events is copied before and after an interceptor.
        """
        now = time.time()
        with self._lock:
            first = self._passed
            self._passed += len(batches[0].batch)
            if int(now) != self._second:
                self._second, self._remaining = int(now), MAX_EVENTS_PER_SECOND
            remaining = self._remaining
            for stage, batch in batches:
                sample = batch.slice(0, remaining)
                self._remaining = min(self._remaining, remaining - len(sample))
                if not (stage == "before" and self.hides_before):
                    latest = self._latest.setdefault(stage, deque(maxlen=MAX_EVENTS))
                    latest.extend(_events(sample, first, now))

    def snapshot(self) -> dict[str, Any]:
        """Return `{"passed": …, "events": […]}`: number of events since the start, and the latest, newest first.

        At most `MAX_EVENTS` events. For an interceptor, `events` are those after it, and `before` those before it,
        or None if they are hidden. The call keeps the sample alive for `LEASE_SECONDS`.
        """
        self.last_request = time.monotonic()
        with self._lock:
            shown = {stage: [*reversed(latest)] for stage, latest in self._latest.items()}
            if self.interceptor is None:
                return {"passed": self._passed, "events": shown.get("", [])}
            before = None if self.hides_before else shown.get("before", [])
            return {"passed": self._passed, "events": shown.get("after", []), "before": before}


class Samples:
    """Samples of one agent that pages request. Any thread may call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._points: list[TapPoint] = []
        self._hidden: Mapping[str, str] = {}
        self._hidden_before: frozenset[str] = frozenset()
        """Paths of interceptors of which only events behind them may be shown."""
        self._samples: dict[str, Sample] = {}
        """Samples by path of the component."""

    def set_agent(self, spec: AgentSpec, taps: Mapping[str, Taps]) -> None:
        """Sample the components of this agent from now on. Samples of components that still run continue.

        `taps` are by path of source, channel or sink.
        """
        graph = graph_of(spec)
        with self._lock:
            self._points = tap_points(spec, taps)
            self._hidden = hidden_components(graph, spec)
            self._hidden_before = hidden_stages(self._hidden, spec)
            by_path = {point.path: point for point in self._points}
            for path, sample in [*self._samples.items()]:
                sample.closing.close()
                point = by_path.get(path)
                if point is None or point.taps is None or path in self._hidden or self._differs(sample, point):
                    del self._samples[path]
                else:
                    sample.closing.enter_context(point.taps.subscription(sample))

    def _differs(self, sample: Sample, point: TapPoint) -> bool:
        """Return True if a sample shows another interceptor than that of the point, or events that are hidden now."""
        hides_before = point.path in self._hidden_before
        return (sample.interceptor, sample.hides_before) != (point.interceptor, hides_before)

    def get(self, component: str) -> dict[str, Any]:
        """Return the path and the sample of a component or interceptor, or `{"error": reason}`.

        The first request starts the sample.

        `component` is a path or an unambiguous end of one. An error comes for an unknown component, redacted events,
        a component that does not run, and beyond `MAX_SAMPLES`.
        """
        with self._lock:
            point = find_point(self._points, component)
            if isinstance(point, str):
                return {"error": point}
            if reason := self._hidden.get(point.path):
                return {"error": reason}
            if point.taps is None:
                return {"error": "the component does not run"}
            sample = self._samples.get(point.path)
            if sample is None:
                if len(self._samples) >= MAX_SAMPLES:
                    return {"error": f"pages already show events of {MAX_SAMPLES} components: close another page"}
                hides_before = point.path in self._hidden_before
                sample = self._samples[point.path] = Sample(point.interceptor, hides_before=hides_before)
                sample.closing.enter_context(point.taps.subscription(sample))
            return {"component": point.path, **sample.snapshot()}

    def close_expired(self) -> None:
        """End samples without a request for `LEASE_SECONDS`. Call it about once a second."""
        with self._lock:
            for path, sample in [*self._samples.items()]:
                if time.monotonic() - sample.last_request > LEASE_SECONDS:
                    sample.closing.close()
                    del self._samples[path]

    def stop(self) -> None:
        """End all samples: pages get no events until their next request."""
        with self._lock:
            for sample in self._samples.values():
                sample.closing.close()
            self._samples.clear()


def hidden_components(graph: Graph, spec: AgentSpec) -> dict[str, str]:
    """Return path → reason for the user, for components whose events an interceptor redacts elsewhere.

    These are the components upstream of a redacting interceptor, and components that get the same events by another
    path.
    """
    ends: tuple[SourceSpec | SinkSpec, ...] = (*spec.sources, *spec.sinks)
    masks = {end.path: [i.name for i in end.interceptors if _redacts(i)] for end in ends}
    successors: dict[str, list[str]] = {node.id: [] for node in graph.nodes}
    for edge in graph.edges:
        successors[edge.start].append(edge.end)
    mask_of: dict[str, str] = {}
    for node in graph.nodes:
        if masked := next((path for path in _downstream(node.id, successors) if masks.get(path)), None):
            mask_of[node.id] = f"{masked}.interceptors.{masks[masked][-1]}"
    pending = deque(mask_of)
    while pending:
        start = pending.popleft()
        for end in successors[start]:
            if end not in mask_of and not masks.get(end):
                mask_of[end] = mask_of[start]
                pending.append(end)
    return {path: _reason(mask, path, spec) for path, mask in mask_of.items()}


def hidden_stages(hidden: dict[str, str], spec: AgentSpec) -> frozenset[str]:
    """Add the interceptors of which no event may be shown to `hidden`, with the reason.

    Return the paths of the interceptors of which only events behind them may be shown: the last ones that redact.
    """
    only_after: set[str] = set()
    ends: tuple[SourceSpec | SinkSpec, ...] = (*spec.sources, *spec.sinks)
    for end in ends:
        last = max((n for n, i in enumerate(end.interceptors) if _redacts(i)), default=-1)
        for number, interceptor in enumerate(end.interceptors):
            if end.path in hidden:
                hidden[interceptor.path] = hidden[end.path]
            elif number < last:
                mask = end.interceptors[last].path
                hidden[interceptor.path] = _reason(mask, interceptor.path, spec)
            elif number == last:
                only_after.add(interceptor.path)
    return frozenset(only_after)


def _redacts(spec: ComponentSpec) -> bool:
    return issubclass(spec.cls, Interceptor) and spec.cls.redacts


def _reason(mask: str, path: str, spec: AgentSpec) -> str:
    return (
        f"{mask} redacts the events of {path}, which only the user of the agent may see: run "
        f"{spec.command(f'tap {path}')}"
    )


def _downstream(start: str, successors: Mapping[str, list[str]]) -> list[str]:
    """Return the paths of all components that events reach from `start`, nearest first, without `start`."""
    visited: dict[str, None] = {}
    pending = deque(successors[start])
    while pending:
        if (path := pending.popleft()) not in visited:
            visited[path] = None
            pending.extend(successors[path])
    return [path for path in visited if path != start]


def _events(sample: Batch, first: int, now: float) -> Iterator[dict[str, Any]]:
    """Yield the events of a batch as JSON values, the first one with the number `first`."""
    sizes = pc.binary_length(sample.bodies).to_pylist()
    # A body may be a file of gigabytes.
    sample = sample.with_bodies(pc.binary_slice(sample.bodies, 0, MAX_BYTES))
    ids = [str(id) for id in sample.ids()] if sample.origin is not None else [None] * len(sample)
    for row, (event, id, size) in enumerate(zip(sample, ids, sizes, strict=True)):
        metadata = {"number": first + row, "time": now, "id": id, "size": size, "cut": size > MAX_BYTES}
        yield {**metadata, **_to_json(event)}


def _to_json(event: Event) -> dict[str, Any]:
    """Return body and headers of an event as texts, with at most `MAX_BYTES` of headers."""
    headers: dict[str, str] = {}
    remaining = MAX_BYTES
    for name, value in sorted(event.headers.items()):
        if remaining <= 0:
            headers["…"] = f"{len(event.headers) - len(headers)} more"
            break
        headers[_truncate(name, remaining)] = _truncate(value, remaining - len(name))
        remaining -= len(name) + len(value)
    return {"body": event.body.decode("utf-8", "backslashreplace"), "headers": headers}


def _truncate(text: str, length: int) -> str:
    """Return at most `length` characters of the text, with `…` if some are cut off."""
    return text if len(text) <= length else f"{text[: max(length, 0)]}…"
