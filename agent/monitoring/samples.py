"""A sample of the events that pass a component, for the page: behind the last mask only.

It listens as `agent tap` does, at the same places. Several pages that look at one component share its sample. One
that nobody has asked for lately ends.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

import pyarrow.compute as pc

from flafka.agent.graph import Graph, graph_of
from flafka.agent.monitoring.taps import Point, Seen, Taps, TapSubscriber, find, points
from flafka.agent.topology import AgentSpec, SinkSpec, SourceSpec
from flafka.plugins import Event, Interceptor

MOST_EVENTS = 50
"""The latest are kept."""
EVENTS_A_SECOND = 20
MOST_BYTES = 2000
"""Bytes that are kept of a body, and of all headers of an event together."""
MOST_SAMPLES = 16
LEASE_SECONDS = 6.0
"""A page asks every two seconds."""


class Sample(TapSubscriber):
    """The latest events at the end of one component. Takes what it shows at once, and holds no batch."""

    def __init__(self) -> None:
        super().__init__()
        self._kept: deque[dict[str, Any]] = deque(maxlen=MOST_EVENTS)
        self._passed = 0
        self._second, self._left = 0, 0
        self.asked = time.monotonic()
        """Monotonic time of the latest request."""
        self.closing = contextlib.ExitStack()

    def _offer(self, seen: tuple[Seen, ...]) -> None:
        batch, now = seen[0].batch, time.time()
        with self._lock:
            first = self._passed
            self._passed += len(batch)
            if int(now) != self._second:
                self._second, self._left = int(now), EVENTS_A_SECOND
            few = batch.slice(0, self._left)
            self._left -= len(few)
            sizes = pc.binary_length(few.bodies).to_pylist()
            few = few.with_bodies(pc.binary_slice(few.bodies, 0, MOST_BYTES))  # one may be a file of gigabytes
            ids = [str(id) for id in few.ids()] if few.origin is not None else [None] * len(few)
            for row, (event, id, size) in enumerate(zip(few, ids, sizes, strict=True)):
                about = {"number": first + row, "time": now, "id": id, "size": size, "cut": size > MOST_BYTES}
                self._kept.append({**about, **_plain(event)})

    def told(self) -> dict[str, Any]:
        """Return the number of events that have passed, and the latest kept ones, the newest first."""
        self.asked = time.monotonic()
        with self._lock:
            return {"passed": self._passed, "events": [*reversed(self._kept)]}


class Samples:
    """The samples of one agent that somebody looks at. Any thread may call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._points: list[Point] = []
        self._hidden: Mapping[str, str] = {}
        self._samples: dict[str, Sample] = {}
        """By path."""

    def show(self, spec: AgentSpec, taps: Mapping[str, Taps]) -> None:
        """Sample the parts of this agent from now on; `taps` are by path of source, channel or sink."""
        graph = graph_of(spec)
        ends = {node.id for node in graph.nodes}
        with self._lock:
            self._points = [point for point in points(spec, taps) if point.path in ends]
            self._hidden = hidden(graph, spec)
            known = {point.path: point for point in self._points}
            for path, sample in [*self._samples.items()]:
                sample.closing.close()
                point = known.get(path)
                if point is None or point.taps is None or path in self._hidden:
                    del self._samples[path]
                else:
                    sample.closing.enter_context(point.taps.heard(sample))

    def of(self, component: str) -> dict[str, Any]:
        """A sample of that component, which begins when it is first asked for; `error` is why there is none."""
        with self._lock:
            point = find(self._points, component)
            if isinstance(point, str):
                return {"error": point}
            if reason := self._hidden.get(point.path):
                return {"error": reason}
            if point.taps is None:
                return {"error": "it does not run"}
            sample = self._samples.get(point.path)
            if sample is None:
                if len(self._samples) >= MOST_SAMPLES:
                    return {"error": f"{MOST_SAMPLES} components are looked at already: close another page"}
                sample = self._samples[point.path] = Sample()
                sample.closing.enter_context(point.taps.heard(sample))
            return {"component": point.path, **sample.told()}

    def look(self) -> None:
        """End those that nobody has asked for lately. To be called every second or so."""
        with self._lock:
            for path, sample in [*self._samples.items()]:
                if time.monotonic() - sample.asked > LEASE_SECONDS:
                    sample.closing.close()
                    del self._samples[path]

    def stop(self) -> None:
        """End all."""
        with self._lock:
            for sample in self._samples.values():
                sample.closing.close()
            self._samples.clear()


def hidden(graph: Graph, spec: AgentSpec) -> dict[str, str]:
    """By path: components whose events have parts that an interceptor takes out elsewhere, and why none is shown.

    That is what stands before such an interceptor on any way, and what gets the same events by a way without one.
    """
    ends: tuple[SourceSpec | SinkSpec, ...] = (*spec.sources, *spec.sinks)
    masks = {
        end.path: [i.name for i in end.interceptors if issubclass(i.cls, Interceptor) and i.cls.hides] for end in ends
    }
    ways: dict[str, list[str]] = {node.id: [] for node in graph.nodes}
    for edge in graph.edges:
        ways[edge.start].append(edge.end)
    found: dict[str, str] = {}
    for node in graph.nodes:
        if masked := next((path for path in _behind(node.id, ways) if masks.get(path)), None):
            found[node.id] = f"{masked}.interceptors.{masks[masked][-1]}"
    waiting = deque(found)
    while waiting:
        start = waiting.popleft()
        for end in ways[start]:
            if end not in found and not masks.get(end):
                found[end] = found[start]
                waiting.append(end)
    return {
        path: f"{mask} takes out what the events at {path} have: they are shown to the agent's own user only, by "
        f"{spec.command(f'tap {path}')}"
        for path, mask in found.items()
    }


def _behind(start: str, ways: Mapping[str, list[str]]) -> list[str]:
    found: dict[str, None] = {}
    waiting = deque(ways[start])
    while waiting:
        if (path := waiting.popleft()) not in found:
            found[path] = None
            waiting.extend(ways[path])
    return [path for path in found if path != start]


def _plain(event: Event) -> dict[str, Any]:
    headers: dict[str, str] = {}
    left = MOST_BYTES
    for name, value in sorted(event.headers.items()):
        if left <= 0:
            headers["…"] = f"{len(event.headers) - len(headers)} more"
            break
        headers[_cut(name, left)] = _cut(value, left - len(name))
        left -= len(name) + len(value)
    return {"body": event.body.decode("utf-8", "backslashreplace"), "headers": headers}


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: max(most, 0)]}…"
