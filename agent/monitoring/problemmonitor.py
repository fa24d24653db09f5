"""Problems of an agent over time: since when, which have ended, and what the log repeats."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Literal

from flafka.agent.graph import Graph
from flafka.agent.monitoring.history import History
from flafka.agent.monitoring.problemkinds import KINDS
from flafka.agent.monitoring.problems import SEVERITIES, AgentProblem, DatagramLoss, PastProblem
from flafka.agent.monitoring.problemsearch import ProblemSearch, Values, with_causes
from flafka.agent.monitoring.registry import Registry
from flafka.agent.units import format_seconds, format_time

GRAVE = frozenset(
    {"thread-ended", "brokers-away", "channel-fails", "overflowing", "retention-near", "partitions-offline"}
)
"""Kinds that stand above a failing sink, whatever their severity."""
FIRST_REPORT_SECONDS = 300.0
"""Age at which a problem is logged as such. Its component has logged the error at once."""
REPORT_INTERVAL_SECONDS = 3600.0
"""Interval at which a problem is logged again."""
SCAN_INTERVAL_SECONDS = 10.0
PAST_SECONDS = 86400.0
MAX_PAST = 20
"""Time for which ended problems are kept, and their greatest number."""


class ProblemMonitor:
    """Problems of the present configuration of an agent. Any thread may call."""

    def __init__(self, registry: Registry, history: History, now: Callable[[], float] = time.time) -> None:
        """`now` returns seconds since the epoch."""
        self._registry, self._history, self._now = registry, history, now
        self._lock = threading.Lock()
        self._graph = Graph(registry.agent, "", (), (), ())
        self._clusters: Callable[[], list[dict[str, Any]]] = list
        self._since: dict[tuple[str, str], float] = {}
        """Time at which a problem was first seen, by component and kind."""
        self._losses: dict[str, DatagramLoss] = {}
        """Latest loss of each source that has lost datagrams, by name in `/metrics`."""
        self._present: dict[tuple[str, str], AgentProblem] = {}
        """Problems of the latest scan, by component and kind."""
        self._caused: set[tuple[str, str]] = set()
        """Keys of problems that another one causes, or has caused since they began."""
        self._past: dict[tuple[str, str], PastProblem] = {}
        """Ended problems by component and kind, in the order in which they ended."""
        self._reported: dict[tuple[str, str], tuple[float, AgentProblem]] = {}
        """Time of the latest report in the log, by component and kind."""
        self._scan_due = 0.0

    def set_agent(self, graph: Graph, clusters: Callable[[], list[dict[str, Any]]]) -> None:
        """Watch this agent from now on. `clusters` returns the state of its Kafka clusters as JSON values."""
        with self._lock:
            self._graph, self._clusters = graph, clusters

    def current(self) -> list[AgentProblem]:
        """Return the present problems, the gravest first.

        Causes come before their effects. Then come the kinds in `GRAVE`, which concern all events of a channel, then
        the others by severity, kind and consequence.
        """
        with self._lock:
            return self._current()

    def past(self) -> list[PastProblem]:
        """Return the problems that ended within a day and that have not come back, the latest first.

        At most `MAX_PAST`. A problem that another one caused is left out.
        """
        with self._lock:
            oldest = self._now() - PAST_SECONDS
            return [
                one for key, one in reversed(self._past.items()) if one.until > oldest and key not in self._present
            ]

    def _current(self) -> list[AgentProblem]:
        now = self._now()
        values = self._registry.values()
        self._count_drops(values, now)
        losses = {key: loss for key, loss in self._losses.items() if loss.is_recent(now)}
        search = ProblemSearch(self._registry, self._history, self._graph, self._clusters(), values, losses, now)
        problems = with_causes([*search.problems()], self._graph)
        first_seen = self._since
        self._since = {(p.component, p.kind): first_seen.get((p.component, p.kind), now) for p in problems}
        dated = [replace(p, since=p.since or self._since[p.component, p.kind]) for p in problems]
        self._record_past({(p.component, p.kind): p for p in dated}, now)
        ranks = {kind: rank for rank, kind in enumerate(KINDS)}
        return sorted(
            dated,
            key=lambda p: (
                *(bool(p.cause), p.kind not in GRAVE, SEVERITIES.index(p.severity), ranks[p.kind]),
                *(-p.weight, p.component),
            ),
        )

    def _record_past(self, present: dict[tuple[str, str], AgentProblem], now: float) -> None:
        """Record the problems that were present until now, without those that another one has caused."""
        for key, problem in self._present.items():
            if key not in present and key not in self._caused:
                before = self._past.pop(key, None)
                times = before.times + 1 if before is not None and before.until > now - PAST_SECONDS else 1
                until = max(now, problem.since)  # the clock may have been set back
                self._past[key] = PastProblem(
                    problem.component, problem.title, problem.error, problem.since, until, times
                )
        self._present = present
        self._caused = {key for key, problem in present.items() if problem.cause or key in self._caused}
        while len(self._past) > MAX_PAST:
            del self._past[next(iter(self._past))]

    def _count_drops(self, values: Values, now: float) -> None:
        """Record the losses of datagrams. A loss without a recent drop has ended.

        The counter of a source begins anew when a reload has replaced the source.
        """
        for key, figures in values.items():
            if count := figures.get("KernelDropCount"):
                loss = self._losses.get(key)
                if loss is None or count < loss.after:
                    self._losses[key] = DatagramLoss(0.0, count, now, now)
                elif count > loss.after:
                    before, since = (loss.before, loss.since) if loss.is_recent(now) else (loss.after, now)
                    self._losses[key] = DatagramLoss(before, count, since, now)

    def state(self, problems: Iterable[AgentProblem]) -> Literal["ok", "degraded", "failing"]:
        """Return the state of an agent with these problems."""
        severities = {problem.severity for problem in problems}
        return "failing" if "failing" in severities else "degraded" if "degraded" in severities else "ok"

    def log_due(self) -> None:
        """Log problems after `FIRST_REPORT_SECONDS`, then every `REPORT_INTERVAL_SECONDS`, and their end.

        Call it about once a second. A problem with a cause elsewhere is not logged.
        """
        if time.monotonic() < self._scan_due:
            return
        self._scan_due = time.monotonic() + SCAN_INTERVAL_SECONDS
        now, present = self._now(), {(p.component, p.kind): p for p in self.current() if not p.cause}
        for key, problem in present.items():
            reported = self._reported.get(key)
            age = now - (problem.since if reported is None else reported[0])
            if age >= (FIRST_REPORT_SECONDS if reported is None else REPORT_INTERVAL_SECONDS):
                self._reported[key] = now, problem
                attempts = f", {problem.attempts} attempts" if problem.attempts else ""
                advice = f". {problem.error}" if problem.error else ""
                logging.getLogger(problem.component).warning(
                    "since %s%s: %s See %s%s",
                    *(format_time(problem.since), attempts, problem.sentence(), problem.docs, advice),
                )
        for key in self._reported.keys() - present.keys():
            _, problem = self._reported.pop(key)
            lasted = format_seconds(now - problem.since)
            logging.getLogger(problem.component).info("no longer, after %s: %s", lasted, problem.title)
