"""Data of the page of an agent and of `agent top`, as JSON values."""

from __future__ import annotations

import importlib.metadata
import os
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from flafka.agent.graph import Graph
from flafka.agent.monitoring.advice import loss_at_end, loss_so_far
from flafka.agent.monitoring.history import History
from flafka.agent.monitoring.kafkamonitor import KafkaMonitor
from flafka.agent.monitoring.problemmonitor import ProblemMonitor
from flafka.agent.monitoring.problems import to_json
from flafka.agent.monitoring.recent import RecentLog
from flafka.agent.monitoring.registry import Registry
from flafka.agent.monitoring.samples import Samples
from flafka.plugins import TailedFile

MAX_FILES = 100


class View:
    """State of one agent for the page. Any thread may call."""

    def __init__(self, graph: Graph, registry: Registry, dead_letters: str = "") -> None:
        """`dead_letters` is the command that lists the dead letters of all components."""
        self._graph, self.registry, self._dead_letters = graph, registry, dead_letters
        self._kafka_monitor = KafkaMonitor({}, {})
        self._tailed_files: Mapping[str, Callable[[], Iterable[TailedFile]]] = {}
        self._configured = 0
        """Number of calls of `set_agent`."""
        self._reloads: dict[str, Any] = {"number": 0, "ok": True, "told": "", "at": 0.0}
        self.history = History(registry)
        self.problems = ProblemMonitor(registry, self.history)
        self.problems.set_agent(graph, self._kafka_monitor.clusters)
        self.recent = RecentLog()
        self.samples = Samples()
        self._started = time.time()

    def set_agent(
        self,
        graph: Graph,
        kafka_monitor: KafkaMonitor,
        tailed_files: Mapping[str, Callable[[], Iterable[TailedFile]]],
    ) -> None:
        """Show this agent from now on.

        `tailed_files` has a function by source, which returns the files that it reads.
        """
        self._graph, self._kafka_monitor, self._tailed_files = graph, kafka_monitor, tailed_files
        self._configured += 1
        self.problems.set_agent(graph, kafka_monitor.clusters)

    def record_reload(self, *, ok: bool, message: str) -> None:
        """Record the end of a reload: `message` is the description of the changes, or the error if `ok` is False."""
        self._reloads = {"number": self._reloads["number"] + 1, "ok": ok, "told": message, "at": time.time()}

    def graph(self) -> dict[str, Any]:
        """Return the constant part as JSON values: components, their options, and the edges between them."""
        return {**asdict(self._graph), "dead_letters": self._dead_letters}

    def state(self) -> dict[str, Any]:
        """Return the current state as JSON values: `/metrics`, rates, problems, brokers, and recent warnings."""
        problems, values = self.problems.current(), self.registry.values()
        return {
            "agent": self.registry.agent,
            "time": time.time(),
            "started": self._started,
            "configured": self._configured,
            "reloads": self._reloads,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "version": importlib.metadata.version("flafka"),
            "state": self.problems.state(problems),
            **to_json(problems),
            "past": [asdict(problem) for problem in self.problems.past()],
            "loss_so_far": loss_so_far(values),
            "loss_at_end": loss_at_end(self._graph, values),
            "standby": self.registry.standby(),
            "figures": self.registry.flume(),
            "rates": self.history.rates(),
            "process": self.history.process(),
            "growth": self._growth(),
            "kafka": self._kafka_monitor.clusters(),
            "spark": dict(self.registry.application()),
            "said": [entry._asdict() for entry in self.recent.entries()],
        }

    def _growth(self) -> dict[str, float]:
        """Return sink → change of its lag a second, over the last minute, where it is known."""
        keys = [node.metrics for node in self._graph.nodes if node.kind == "sink"]
        growths = ((key, self.history.growth(key, "Lag")) for key in keys)
        return {key: round(growth, 2) for key, growth in growths if growth is not None}

    def series(self, span: float, since: float, component: str) -> dict[str, Any]:
        """Return the samples of the last `span` seconds after `since`, in seconds since the epoch.

        `component` is a name in `/metrics`, such as `SINK.k1`, or `PROCESS`. Without one, each component has its main
        series.
        """
        return self.history.series(span, since, [component] if component else None)

    def files(self, match: str) -> dict[str, Any]:
        """Return `{"all": number, "files": […]}` for the tailed files whose paths contain `match`.

        At most `MAX_FILES` files, those with the most unread bytes first. Positions and sizes are in bytes.
        """
        matches = [
            (file.position - _size(file), source, file)
            for source, tailed_files in self._tailed_files.items()
            for file in tailed_files()
            if match in file.path
        ]
        matches.sort(key=lambda match: (match[0], match[2].path))
        shown = [
            {"source": source, "path": file.path, "position": file.position, "size": file.position - offset}
            for offset, source, file in matches[:MAX_FILES]
        ]
        return {"all": len(matches), "files": shown}


def _size(file: TailedFile) -> int:
    """Return the size of a file in bytes; the position of the source if the file cannot be read."""
    try:
        return Path(file.path).stat().st_size
    except OSError:  # the file is deleted, and the source reads it to its end
        return file.position
