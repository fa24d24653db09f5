"""What the page of an agent, and `agent top`, show of it: plain values for JSON."""

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
from flafka.agent.monitoring.history import KEPT_SECONDS, SAMPLE_SECONDS, History
from flafka.agent.monitoring.recent import Recent
from flafka.agent.monitoring.registry import Registry
from flafka.agent.monitoring.samples import Samples
from flafka.agent.monitoring.watch import KafkaWatch
from flafka.plugins import TailedFile

MOST_FILES = 100


class View:
    """One agent, seen from outside."""

    def __init__(self, graph: Graph, registry: Registry, dead_letters: str = "") -> None:
        """`dead_letters` is the command that lists those of all components."""
        self._graph, self.registry, self._dead_letters = graph, registry, dead_letters
        self._watch = KafkaWatch({}, {})
        self._followed: Mapping[str, Callable[[], Iterable[TailedFile]]] = {}
        self._configured = 0
        """How often it got another graph."""
        self._reloads: dict[str, Any] = {"number": 0, "ok": True, "told": "", "at": 0.0}
        self.history = History(registry)
        self.recent = Recent()
        self.samples = Samples()
        self._started = time.time()

    def show(
        self, graph: Graph, watch: KafkaWatch, followed: Mapping[str, Callable[[], Iterable[TailedFile]]]
    ) -> None:
        """From now on this is the agent; `followed` are, by source, the files that it reads."""
        self._graph, self._watch, self._followed = graph, watch, followed
        self._configured += 1

    def reloaded(self, *, ok: bool, told: str) -> None:
        """The configuration was read again: whether the agent runs it now, and what has changed, or why not."""
        self._reloads = {"number": self._reloads["number"] + 1, "ok": ok, "told": told, "at": time.time()}

    def graph(self) -> dict[str, Any]:
        """What does not change while the agent runs: components, their options, and how events go."""
        return {**asdict(self._graph), "dead_letters": self._dead_letters}

    def state(self) -> dict[str, Any]:
        """How it is now: the figures of `/metrics`, rates, health, brokers, and what the log has warned of."""
        failing, degraded = self.registry.failing(), self.registry.degraded()
        return {
            "agent": self.registry.agent,
            "time": time.time(),
            "started": self._started,
            "configured": self._configured,
            "reloads": self._reloads,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "version": importlib.metadata.version("flafka"),
            "state": self.registry.state(),
            "failing": failing,
            "degraded": degraded,
            "standby": self.registry.standby(),
            "figures": self.registry.flume(),
            "rates": self.history.rates(),
            "kafka": self._watch.clusters(),
            "spark": dict(self.registry.application()),
            "said": [one._asdict() for one in self.recent.said()],
        }

    def series(self, since: float = 0.0) -> dict[str, Any]:
        """The last hour, or what of it came after `since`, in seconds since the epoch."""
        return {"every": SAMPLE_SECONDS, "kept": KEPT_SECONDS, **self.history.series(since)}

    def files(self, match: str) -> dict[str, Any]:
        """The files that sources read with `match` in their paths, those with most left first, up to `MOST_FILES`."""
        found = [
            (file.position - _size(file), source, file)
            for source, followed in self._followed.items()
            for file in followed()
            if match in file.path
        ]
        found.sort(key=lambda one: (one[0], one[2].path))
        shown = [
            {"source": source, "path": file.path, "position": file.position, "size": file.position - ahead}
            for ahead, source, file in found[:MOST_FILES]
        ]
        return {"all": len(found), "files": shown}


def _size(file: TailedFile) -> int:
    try:
        return Path(file.path).stat().st_size
    except OSError:  # it is gone, and what is open of it is still read
        return file.position
