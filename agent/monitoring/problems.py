"""Problems of one agent, the gravest first: the one model for its page, `agent top`, `/healthz` and its log."""

from __future__ import annotations

import logging
import math
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from flafka.agent.graph import Graph, Node
from flafka.agent.monitoring.advice import Advice, advice, port_loss, source_loss
from flafka.agent.monitoring.history import History
from flafka.agent.monitoring.problemkinds import KINDS
from flafka.agent.monitoring.registry import Registry
from flafka.agent.units import format_count, format_number, format_seconds, format_time

Severity = Literal["failing", "degraded", "warning"]
SEVERITIES: tuple[Severity, ...] = ("failing", "degraded", "warning")
"""A warning does not change the state of the agent: something may fail soon."""
GRAVE = frozenset(
    {"thread-ended", "brokers-away", "channel-fails", "overflowing", "retention-near", "partitions-offline"}
)
"""Kinds that stand above a failing sink, whatever their severity."""

BEHIND_SECONDS = 600.0
RETENTION_NEAR_SECONDS = 6 * 3600.0
NOT_STORED_SECONDS = 60.0
CERTIFICATE_NEAR_SECONDS = 14 * 86400.0
FULL_PERCENT = 80.0
LEAST_FREE_BYTES = 2e9
"""Limits of warnings, which the rules in conf/monitoring/alerts.yml also have."""
RECENT_DROP_SECONDS = 300.0
"""Time after the latest lost datagram during which the loss is a problem."""
FIRST_REPORT_SECONDS = 300.0
"""Age at which a problem is logged as such. Its component has logged the error at once."""
REPORT_INTERVAL_SECONDS = 3600.0
"""Interval at which a problem is logged again."""
SCAN_INTERVAL_SECONDS = 10.0
BY_ERROR = frozenset({"channel-fails", "source-fails", "sink-fails", "interceptor-fails"})
"""Kinds whose error says what to do first."""

_COMMAND = re.compile(
    r"\b(?:agent (?:audit|check|cluster|demo|dlq|explain|group|hdfs|migrate|reload|replay|sandbox|start|tap|test"
    r"|topic|trace) .*|pip install .*)$"
)
_Values = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class AgentProblem:
    """One thing that is wrong, for a person who does not know this agent. All texts are whole sentences."""

    kind: str
    """Key of `KINDS`."""
    severity: Severity
    component: str
    """Path of the component, `a1.sinks.k1`; the agent's name for the process."""
    metrics: str
    """Name of the component in `/metrics`, `SINK.k1`; empty for the process."""
    title: str
    effect: str = ""
    """Consequence in figures."""
    loss: str = ""
    """Events that are lost, or that nothing is lost."""
    trend: str = ""
    """Sentence that begins with `Getting worse`, `Not getting worse`, `Unchanged` or `Getting better`.

    Empty for a limitation or a limit that does not change.
    """
    deadline: str = ""
    """Time in UTC, time left, and what happens then; empty if nothing does."""
    since: float = 0.0
    """Beginning in seconds since the epoch; of other problems than failures, when the agent has first seen it."""
    attempts: int = 0
    """Number of failed attempts since the latest success; 0 if they are not counted."""
    retry_time: float | None = None
    """Time of the next attempt in seconds since the epoch."""
    error: str = ""
    """Latest error, as in the log."""
    action: str = ""
    """First thing to do."""
    command: str = ""
    """Shell command that helps, for any working directory; empty if there is none."""
    docs: str = ""
    """Section of the documentation, `failures.md#a-sink-fails`; the agent serves it at `/help#a-sink-fails`."""
    cause: str = ""
    """Component whose problem causes this one; empty for a problem with its own cause."""
    weight: float = 0.0
    """Number that orders problems of one kind, the highest first."""

    def sentence(self) -> str:
        """Return title, consequence, deadline and trend as one text."""
        deadline = f"Act before {self.deadline}" if self.deadline else ""
        return " ".join(filter(None, (self.title, self.effect, deadline, self.trend)))


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
        self._drops: dict[str, tuple[float, float]] = {}
        """Number of lost datagrams of a source, and the time at which it was last seen to grow."""
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

    def _current(self) -> list[AgentProblem]:
        now = self._now()
        values = self._registry.values()
        self._count_drops(values, now)
        scan = _Scan(self._registry, self._history, self._graph, self._clusters(), values, now)
        dropping = {key for key, (_, seen) in self._drops.items() if now - seen < RECENT_DROP_SECONDS}
        problems = with_causes([*scan.problems(dropping)], self._graph)
        first_seen = self._since
        self._since = {(p.component, p.kind): first_seen.get((p.component, p.kind), now) for p in problems}
        dated = [replace(p, since=p.since or self._since[p.component, p.kind]) for p in problems]
        ranks = {kind: rank for rank, kind in enumerate(KINDS)}
        return sorted(
            dated,
            key=lambda p: (
                *(bool(p.cause), p.kind not in GRAVE, SEVERITIES.index(p.severity), ranks[p.kind]),
                *(-p.weight, p.component),
            ),
        )

    def _count_drops(self, values: _Values, now: float) -> None:
        for key, figures in values.items():
            if count := figures.get("KernelDropCount"):
                before, seen = self._drops.get(key, (0.0, 0.0))
                self._drops[key] = count, now if count > before else seen

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


class _Scan:
    """Search for the problems of one moment."""

    def __init__(
        self,
        registry: Registry,
        history: History,
        graph: Graph,
        clusters: list[dict[str, Any]],
        values: _Values,
        now: float,
    ) -> None:
        self.registry, self.history, self.graph, self.values, self.now = registry, history, graph, values, now
        self.clusters = {f"CHANNEL.{cluster['channel']}": cluster for cluster in clusters}
        self.nodes = {node.id: node for node in graph.nodes}
        self.by_key: dict[str, Node] = {}
        for node in graph.nodes:
            self.by_key |= {node.metrics: node} | {one.metrics: one for one in node.interceptors}
        self.metrics = {component.key: component.metrics for component in registry.components}
        self.failing, self.ended = registry.failing(), registry.ended()
        self.arguments = graph.arguments or f"-c {graph.file}"

    # --- names and relations

    def path(self, key: str) -> str:
        """Return the path of a component by its name in `/metrics`; the agent's name for a thread of no component."""
        if (node := self.by_key.get(key)) is not None:
            return node.id
        kind, _, name = key.partition(".")
        return self.graph.agent if kind == "THREAD" else f"{self.graph.agent}.{kind.lower()}s.{name}"

    def figure(self, key: str, name: str) -> float | None:
        return self.values.get(key, {}).get(name)

    def after(self, node_id: str) -> list[Node]:
        return [self.nodes[edge.end] for edge in self.graph.edges if edge.start == node_id and edge.kind != "topic"]

    def before(self, node_id: str) -> list[Node]:
        return [
            self.nodes[edge.start]
            for edge in self.graph.edges
            if edge.end == node_id and edge.kind in ("events", "optional")
        ]

    def problem(self, kind: str, severity: Severity, key: str, title: str, **more: Any) -> AgentProblem:
        """Return a problem with its attempts, its error, its command and its section."""
        error = more.pop("error", "")
        advised = (advice(error) if kind in BY_ERROR else None) or Advice(KINDS[kind].first_step)
        match = _COMMAND.search(error)
        own = more.pop("command", f"agent check --connect {self.arguments}")
        command = match[0] if match is not None else advised.command or own
        metrics, attempt = self.metrics.get(key), self.figure(key, "RetryAttempt")
        since = metrics.failing_since if metrics is not None and severity == "failing" else 0.0
        retry = self.figure(key, "RetryTime")
        if severity == "failing" and attempt and retry:
            more |= {"attempts": int(attempt), "retry_time": retry / 1000}
        if severity == "failing" and not more.get("trend"):
            every = f": all {int(attempt)} attempts have failed" if attempt and attempt > 1 else ""
            more["trend"] = f"Unchanged{every}."
        return AgentProblem(
            *(kind, severity, self.path(key), "" if key.startswith("THREAD.") else key, title),
            **{
                "since": since,
                "error": error,
                "command": command,
                "docs": KINDS[kind].section,
                "action": advised.action,
                **more,
            },
        )

    # --- the search

    def problems(self, dropping: Iterable[str]) -> Iterator[AgentProblem]:
        """Yield all problems, in no order. `dropping` are the sources that have lost datagrams recently."""
        away = {key for key, cluster in self.clusters.items() if _is_away(cluster)}
        for key, error in self.failing.items():
            if key not in away:
                yield self._failing(key, error)
        for key in away:
            if key in self.failing or not self.figure(key, "Overflowing"):
                yield self._away(key)
        rejecting = self.registry.rejecting()
        for component in list(self.registry.components):
            key, text = component.key, component.metrics.degradation()
            if text:
                yield self._overflowing(key, text) if self.figure(key, "Overflowing") else self._limited(key, text)
            if key in rejecting:
                yield self._rejected(key, rejecting[key])
        for key, cluster in self.clusters.items():
            if key not in away and key not in self.failing:
                yield from self._cluster(key, cluster)
        for key in dropping:
            yield self._dropping(key)
        for key in self.values:
            yield from self._limits(key)
        yield from self._disk()
        expiry = self.registry.certificate_expiry
        if expiry is not None and expiry - self.now < CERTIFICATE_NEAR_SECONDS:
            yield self._certificate("", expiry - self.now)

    def _failing(self, key: str, error: str) -> AgentProblem:
        kind, _, name = key.partition(".")
        node = self.by_key.get(key)
        type_name = f" ({node.type})" if node is not None else ""
        if key in self.ended:
            effect = "It does not come back without a restart of the agent."
            loss = "Nothing that a durable channel holds."
            title = f"A part of {self.path(key)} has ended."
            return self.problem(
                *("thread-ended", "failing", key, title), effect=effect, loss=loss, error=error, command=""
            )
        if kind == "SINK":
            title = f'Sink "{name}"{type_name} does not deliver.'
            return self.problem("sink-fails", "failing", key, title, error=error, **self._backlog(key))
        if kind == "SOURCE":
            waited = self.figure(key, "UnacknowledgedSeconds") or 0.0
            return self.problem(
                *("source-fails", "failing", key),
                f'Source "{name}"{type_name} does not {"store its events" if waited else "work"}.',
                effect=self._waiting(key),
                loss=port_loss(error) or self._source_loss([key]),
                error=error,
                weight=waited,
            )
        if kind == "CHANNEL":
            away = "no Kafka broker answers" in error
            title = (
                f'No broker of channel "{name}" answers.' if away else f'Channel "{name}"{type_name} does not work.'
            )
            return self.problem("brokers-away" if away else "channel-fails", "failing", key, title, error=error,
                                **self._blocked(key))  # fmt: skip
        return self.problem(
            "interceptor-fails", "failing", key, f'Interceptor "{name}"{type_name} fails.', error=error
        )

    def _away(self, key: str) -> AgentProblem:
        name, cluster = key.partition(".")[2], self.clusters[key]
        brokers = ", ".join(broker["address"] for broker in cluster["brokers"])
        number = len(cluster["brokers"])
        title = f'All {number} brokers of channel "{name}" are away.'
        if number == 1:
            title = f'The broker of channel "{name}" is away.'
        error = self.failing.get(key) or f"connections are refused: {brokers}"
        return self.problem("brokers-away", "failing", key, title, error=error, **self._blocked(key))

    def _blocked(self, key: str) -> dict[str, Any]:
        """Return consequence, loss and trend of a channel that takes no events."""
        node = self.by_key.get(key)
        if node is None:
            return {}
        sources, sinks = self.before(node.id), [one for one in self.after(node.id) if one.kind == "sink"]
        waits = [self.figure(source.metrics, "UnacknowledgedSeconds") or 0.0 for source in sources]
        longest = f", the longest for {format_seconds(max(waits))}" if max(waits, default=0) > 1 else ""
        effect = (
            f"{_number(len(sources), 'source')} cannot store events{longest}. "
            f"{_number(len(sinks), 'sink')} get{'s' * (len(sinks) == 1)} no events."
        )
        return {
            "effect": effect,
            "loss": self._source_loss([source.metrics for source in sources]),
            "trend": self._blocked_trend(sources),
            "weight": max(waits, default=0.0),
        }

    def _blocked_trend(self, sources: Iterable[Node]) -> str:
        rates = self.history.rates()
        lost = sum(rates.get(source.metrics, {}).get("KernelDropCount", 0.0) for source in sources)
        if lost:
            return f"Getting worse: {format_number(lost)} datagrams are lost every second."
        return "Unchanged: nothing gets through."

    def _waiting(self, key: str) -> str:
        waited = self.figure(key, "UnacknowledgedSeconds") or 0.0
        if waited > 1:
            return f"Its oldest events have waited for {format_seconds(waited)} to be stored."
        return "It brings no new events in."

    def _source_loss(self, keys: Iterable[str]) -> str:
        """Return the sentences about the events of sources that store nothing."""
        sources = [node for key in keys if (node := self.by_key.get(key)) is not None]
        dropped = {
            node.metrics: format_count(self.figure(node.metrics, "KernelDropCount") or 0.0, "datagrams")
            for node in sources
        }
        return source_loss(sources, dropped)

    def _deadline(self, seconds: float, then: str) -> str:
        """Return the deadline in `seconds`, both rounded down to what a person reads."""
        unit = 360 if seconds >= 3600 else 60 if seconds >= 60 else 1
        left = format_seconds(max(seconds, 0) // unit * unit)
        clock = format_time(self.now + max(seconds, 0))
        return f"{clock[:16]} UTC ({left} left): then {then}."

    def _backlog(self, key: str) -> dict[str, Any]:
        """Return consequence, loss and trend of a sink that delivers too little."""
        node = self.by_key.get(key)
        if node is None:
            return {}
        channel = next(iter(self.before(node.id)), None)
        where = f" in {channel.id}" if channel is not None else ""
        lag, age, unit = self.figure(key, "Lag"), self.figure(key, "LagSeconds"), node.lag_unit or "events"
        growth = self.history.growth(key, "Lag")
        if lag is None:
            effects = [f"The number of waiting events{where} is not known."]
        elif not lag:
            effects = [f"No event waits{where}."]
        else:
            oldest = f", the oldest for {format_seconds(age)}" if age is not None and age >= 1 else ""
            effects = [f"{format_count(lag, unit)} wait{'s' * (lag == 1)}{where}{oldest}."]
        left, deadline = self.figure(key, "RetentionSecondsLeft"), ""
        if left is not None:
            deadline = self._deadline(left, "Kafka deletes the oldest events")
        elif channel is not None and lag:
            effects.append(self._fill(channel))
            deadline = self._full_deadline(channel, growth)
        if channel is not None and not channel.is_durable:
            loss = f"Nothing yet. Events in {channel.id} are in memory, and are lost if the agent ends."
        elif left is not None:
            loss = "Nothing yet."
        else:
            loss = f"Nothing. The events stay{where}."
        urgent = 1e12 if left is not None and left < RETENTION_NEAR_SECONDS else 0.0
        return {
            "effect": " ".join(filter(None, effects)),
            "loss": loss,
            "trend": _trend(growth, lag, unit),
            "deadline": deadline,
            "weight": urgent + (lag or 0.0),
        }

    def _fill(self, channel: Node) -> str:
        """Return the sentence about how full a channel is; empty for one without a capacity."""
        # Not ChannelSize, which also counts events that a sink holds: they take no room in the channel.
        percent = self.figure(channel.metrics, "ChannelFillPercentage")
        if not self.figure(channel.metrics, "ChannelCapacity") or percent is None or percent < 1:
            return ""
        # Events that a failed sink gives back have lost their room to others, so the metric may exceed 100.
        return f"{channel.id} is {min(percent, 100):.0f} % full{'; sources wait' if percent >= 100 else ''}."

    def _full_deadline(self, channel: Node, growth: float | None) -> str:
        """Return when a channel with a capacity is full at the present growth; empty if it is not known or never."""
        capacity = self.figure(channel.metrics, "ChannelCapacity")
        percent = self.figure(channel.metrics, "ChannelFillPercentage")
        if not capacity or percent is None or not 1 <= percent < 100 or growth is None or growth <= 0:
            return ""
        waiting = self.before(channel.id)
        for owner in [edge.start for edge in self.graph.edges if edge.kind == "overflow" and edge.end == channel.id]:
            waiting += self.before(owner)
        lost = ", ".join(source.name for source in waiting if "udp" in source.type)
        then = f"sources wait{f', and datagrams of {lost} are lost' if lost else ''}"
        return self._deadline((1 - percent / 100) * capacity / growth, then)

    def _overflowing(self, key: str, text: str) -> AgentProblem:
        name, node = key.partition(".")[2], self.by_key.get(key)
        overflow = next(iter(self._overflows(node)), None) if node is not None else None
        size = self.figure(key, "OverflowSize") or 0.0
        effects = [f"{format_count(size, 'events')} {'is' if size == 1 else 'are'} on one disk of this host only."]
        growth, deadline = self.history.growth(key, "OverflowSize"), ""
        if overflow is not None:
            if growth is None:
                growth = self.history.growth(overflow.metrics, "ChannelSize")
            effects.append(self._fill(overflow))
            deadline = self._full_deadline(overflow, growth)
            if free := self.figure(overflow.metrics, "DiskFreeBytes"):
                effects.append(f"The disk has {format_number(free)}B free.")
        if node is not None and (sinks := [one for one in self.after(node.id) if one.kind == "sink"]):
            effects.append(f"{_number(len(sinks), 'sink')} get{'s' * (len(sinks) == 1)} no new events.")
        return self.problem(
            *("overflowing", "degraded", key),
            f'Channel "{name}" stores events on a disk of this host, as brokers do not take them.',
            effect=" ".join(filter(None, effects)),
            loss="Nothing, as long as the disk of this host is intact.",
            trend=_trend(growth, size, "events"),
            deadline=deadline,
            error=text,
            weight=size,
        )

    def _overflows(self, node: Node) -> Iterator[Node]:
        for edge in self.graph.edges:
            if edge.kind == "overflow" and edge.start == node.id:
                yield self.nodes[edge.end]

    def _limited(self, key: str, text: str) -> AgentProblem:
        title = f"{self._kind_and_name(key)} works with a limitation."
        effect = f"{text[:1].upper()}{text[1:].rstrip('.')}."
        return self.problem("limited", "degraded", key, title, effect=effect, error=text)

    def _kind_and_name(self, key: str, *, in_sentence: bool = False) -> str:
        """Return `Sink "k1"`, or `sink "k1"` within a sentence."""
        kind, _, name = key.partition(".")
        return f'{kind.lower() if in_sentence else kind.capitalize()} "{name}"'

    def _rejected(self, key: str, text: str) -> AgentProblem:
        count = self.figure(key, "EventRejectedCount") or 0.0
        rate = self.history.rates().get(key, {}).get("EventRejectedCount")
        trend = "" if rate is None else "Not getting worse: none in the last 10 s."
        if rate:
            trend = f"Getting worse: {format_number(rate)} events are rejected every second."
        return self.problem(
            *("events-rejected", "degraded", key),
            f"{self._kind_and_name(key)} has rejected events, which are dead letters now.",
            effect=f"{format_count(count, 'dead letters')} since the agent started." if count else "",
            loss="Nothing. The dead letters have the bytes and the reason, and can be delivered again.",
            trend=trend,
            error=text,
            weight=count,
        )

    def _cluster(self, key: str, cluster: Mapping[str, Any]) -> Iterator[AgentProblem]:
        """Yield the problems of a cluster with at least one broker that answers."""
        name = key.partition(".")[2]
        if cluster["error"]:
            title = f'The brokers of channel "{name}" do not answer the monitor of the agent.'
            yield self.problem("brokers-down", "warning", key, title, error=cluster["error"],
                               effect="Lag and retention are not known.")  # fmt: skip
            return
        down = [broker["address"] for broker in cluster["brokers"] if not broker["up"]]
        lacking, leaderless = cluster["under_replicated"], cluster["leaderless"]
        topic = f"topic {cluster['topic']}"
        if leaderless:
            yield self.problem(
                *("partitions-offline", "warning", key),
                f'{leaderless} of {cluster["partitions"]} partitions of channel "{name}" have no leader.',
                effect=f"Events of these partitions of {topic} can be neither stored nor delivered.",
                loss="Nothing, if a broker with a replica in sync comes back.",
                error=f"brokers that do not answer: {', '.join(down)}" if down else "",
            )
        elif down or lacking:
            replicas = f"{lacking} of {cluster['partitions']} partitions of {topic} lack replicas in sync."
            title = f'{len(down)} of {len(cluster["brokers"])} brokers of channel "{name}" do not answer.'
            if not down:
                title = f'Partitions of channel "{name}" lack replicas.'
            yield self.problem(
                *("brokers-down", "warning", key),
                title,
                effect=replicas if lacking else "",
                loss="Nothing. A further failure may stop the channel.",
                error=f"brokers that do not answer: {', '.join(down)}" if down else "",
            )

    def _dropping(self, key: str) -> AgentProblem:
        lost = self.figure(key, "KernelDropCount") or 0.0
        rate = self.history.rates().get(key, {}).get("KernelDropCount")
        return self.problem(
            *("datagrams-lost", "warning", key),
            f"{self._kind_and_name(key)} loses datagrams.",
            effect=f"The kernel dropped {format_count(lost, 'datagrams')} since the agent started.",
            loss=f"{format_count(lost, 'datagrams')}.",
            trend=f"Getting worse: {format_number(rate)} more every second."
            if rate
            else "Not getting worse at present.",
            weight=lost,
        )

    def _limits(self, key: str) -> Iterator[AgentProblem]:
        """Yield the problems of one component that come from its figures."""
        kind, name = key.partition(".")[0], self._kind_and_name(key)
        figures = self.values[key]
        waited = figures.get("UnacknowledgedSeconds", 0.0)
        if kind == "SOURCE" and key not in self.failing and waited > NOT_STORED_SECONDS:
            yield self.problem(
                *("events-not-stored", "warning", key),
                f"{name} waits for its channel.",
                effect=self._waiting(key),
                loss=self._source_loss([key]),
                weight=waited,
            )
        if kind == "CHANNEL" and (fill := figures.get("ChannelFillPercentage", 0.0)) > FULL_PERCENT:
            node = self.by_key.get(key)
            growth = self.history.growth(key, "ChannelSize")
            yield self.problem(
                *("channel-full", "warning", key),
                f"{name} is {min(fill, 100):.0f} % full.",
                effect=self._fill(node) if node is not None else "",
                deadline=self._full_deadline(node, growth) if node is not None else "",
                loss="Nothing. At 100 % sources wait, and datagrams are lost.",
                trend=_trend(growth, figures.get("ChannelSize"), "events"),
                weight=fill,
            )
        if kind == "SINK" and key not in self.failing:
            left = figures.get("RetentionSecondsLeft")
            if left is not None and left < RETENTION_NEAR_SECONDS:
                name = self._kind_and_name(key, in_sentence=True)
                title = f"Kafka deletes events that {name} has not delivered, in {format_seconds(max(left, 0))}."
                yield self.problem("retention-near", "warning", key, title, **self._backlog(key))
            elif figures.get("LagSeconds", 0.0) > BEHIND_SECONDS:
                command = f"agent top {self.arguments}"
                yield self.problem("sink-behind", "warning", key, f"{name} is behind.", command=command,
                                   **self._backlog(key))  # fmt: skip
        expiry = figures.get("CertificateSecondsLeft", math.inf)
        if kind == "SOURCE" and expiry < CERTIFICATE_NEAR_SECONDS:
            yield self._certificate(key, expiry)

    def _disk(self) -> Iterator[AgentProblem]:
        """Yield one problem for the component with the fullest disk."""
        free = {key: values["DiskFreeBytes"] for key, values in self.values.items() if "DiskFreeBytes" in values}
        full = sorted((number, key) for key, number in free.items() if number < LEAST_FREE_BYTES)
        if full:
            number, key = full[0]
            others = ", ".join(self.path(other) for _, other in full[1:])
            yield self.problem(
                *("disk-full", "warning", key),
                f"The disk of {self._kind_and_name(key, in_sentence=True)} has {format_number(number)}B free.",
                effect=f"Once it is full, it takes no events{f', and neither do {others}' if others else ''}.",
                loss="Nothing that was acknowledged.",
                command="df -h",
                weight=-number,
            )

    def _certificate(self, key: str, left: float) -> AgentProblem:
        owner = self._kind_and_name(key, in_sentence=True) if key else "the dashboard"
        ends = "has expired" if left < 0 else f"expires in {format_seconds(left)}"
        return self.problem(
            *("certificate-expires", "warning", key or "THREAD.agent"),
            f"The certificate of {owner} {ends}.",
            effect="Then new connections fail.",
            command=f"agent reload {self.arguments}",
            weight=-left,
        )


def _is_away(cluster: Mapping[str, Any]) -> bool:
    """Return True if every known broker of a cluster refuses connections."""
    brokers = cluster.get("brokers") or ()
    return bool(brokers) and not any(broker["up"] for broker in brokers)


def _number(count: int, word: str) -> str:
    return f"{count} {word}{'s' * (count != 1)}"


def _trend(growth: float | None, number: float | None, unit: str) -> str:
    """Return a sentence about a number of waiting events and its change a second; empty if that is not known."""
    if growth is None or number is None:
        return ""
    if growth > max(0.01, number * 1e-5):
        return f"Getting worse: {format_number(growth)} more {unit} wait every second."
    if growth < -max(0.01, number * 1e-5):
        done = f", done in {format_seconds(number / -growth)}" if number else ""
        return f"Getting better: {format_number(-growth)} fewer {unit} wait every second{done}."
    return "Not getting worse."


def with_causes(problems: list[AgentProblem], graph: Graph) -> list[AgentProblem]:
    """Return the problems, each with the component that causes it if that has a problem itself.

    A failing channel causes the failures of its sources, and of its sinks whose error is about brokers. A
    failing sink of a full channel causes the problems of that channel and of its sources.
    """
    channels = {p.component: p for p in problems if p.kind in ("brokers-away", "channel-fails")}
    full = {p.component for p in problems if p.kind == "channel-full"}
    sinks = {p.component for p in problems if p.kind in ("sink-fails", "sink-behind")}
    next_of = {(edge.start, edge.end) for edge in graph.edges if edge.kind in ("events", "optional")}

    def sink_behind(channel: str) -> str:
        return next((end for start, end in sorted(next_of) if start == channel and end in sinks), "")

    def cause(problem: AgentProblem) -> str:
        kind, path = problem.kind, problem.component
        if kind in ("source-fails", "events-not-stored", "datagrams-lost"):
            ends = [end for start, end in sorted(next_of) if start == path]
            return next((end for end in ends if end in channels), "") or next(
                (sink for end in ends if end in full and (sink := sink_behind(end))), ""
            )
        if kind == "sink-fails":
            start = next((start for start, end in next_of if end == path), "")
            channel = channels.get(start)
            is_same = channel is not None and ("broker" in problem.error.lower() or problem.error == channel.error)
            return start if is_same else ""
        return sink_behind(path) if kind == "channel-full" else ""

    return [replace(problem, cause=cause(problem)) for problem in problems]


def to_json(problems: Sequence[AgentProblem]) -> dict[str, Any]:
    """Return `problems` as JSON values, and the maps `failing` and `degraded`, which release 0.3 had alone."""
    return {
        "problems": [asdict(problem) for problem in problems],
        "failing": _reasons(problems, "failing"),
        "degraded": _reasons(problems, "degraded"),
    }


def _reasons(problems: Iterable[AgentProblem], severity: Severity) -> dict[str, str]:
    """Return component → reasons of its problems of this severity. Components are named as in `/metrics`."""
    reasons: dict[str, str] = {}
    for problem in problems:
        if problem.severity == severity:
            key = problem.metrics or f"THREAD.{problem.component}"
            reasons[key] = "; ".join(filter(None, (reasons.get(key), problem.error or problem.title)))
    return reasons
