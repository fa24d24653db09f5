"""Search for the problems of one agent at one moment."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from flafka.agent.graph import Graph, Node
from flafka.agent.monitoring.advice import Advice, advice, datagram_loss, port_loss, source_loss
from flafka.agent.monitoring.history import History
from flafka.agent.monitoring.problemkinds import KINDS
from flafka.agent.monitoring.problems import AgentProblem, DatagramLoss, Severity
from flafka.agent.monitoring.registry import Registry
from flafka.agent.units import format_count, format_number, format_seconds, format_time

BEHIND_SECONDS = 600.0
RETENTION_NEAR_SECONDS = 6 * 3600.0
NOT_STORED_SECONDS = 60.0
CERTIFICATE_NEAR_SECONDS = 14 * 86400.0
FULL_PERCENT = 80.0
LEAST_FREE_BYTES = 2e9
"""Limits of warnings, which the rules in conf/monitoring/alerts.yml also have."""
AMPLE_FREE_BYTES = 10e9
"""Free bytes from which on a channel on a disk may be enlarged."""
BY_ERROR = frozenset({"channel-fails", "source-fails", "sink-fails", "interceptor-fails"})
"""Kinds whose error says what to do first."""

_COMMAND = re.compile(
    r"\b(?:agent (?:audit|check|cluster|demo|dlq|explain|group|hdfs|migrate|reload|replay|sandbox|start|tap|test"
    r"|topic|trace) .*|pip install .*)$"
)
Values = Mapping[str, Mapping[str, float]]
"""Component → metric → value."""


class ProblemSearch:
    """Search for the problems of one moment."""

    def __init__(
        self,
        registry: Registry,
        history: History,
        graph: Graph,
        clusters: list[dict[str, Any]],
        values: Values,
        losses: Mapping[str, DatagramLoss],
        now: float,
    ) -> None:
        """`clusters` are the states of the Kafka clusters as JSON values, and `losses` the present ones by source."""
        self.registry, self.history, self.graph, self.values, self.now = registry, history, graph, values, now
        self.losses = losses
        self.clusters = {f"CHANNEL.{cluster['channel']}": cluster for cluster in clusters}
        self.nodes = {node.id: node for node in graph.nodes}
        self.by_key: dict[str, Node] = {}
        for node in graph.nodes:
            self.by_key |= {node.metrics: node} | {one.metrics: one for one in node.interceptors}
        self.metrics = {component.key: component.metrics for component in registry.components}
        self.failing, self.ended = registry.failing(), registry.ended()
        self.arguments = graph.arguments or f"-c {graph.file}"

    # --- names and relations

    def _path(self, key: str) -> str:
        """Return the path of a component by its name in `/metrics`; the agent's name for a thread of no component."""
        if (node := self.by_key.get(key)) is not None:
            return node.id
        kind, _, name = key.partition(".")
        return self.graph.agent if kind == "THREAD" else f"{self.graph.agent}.{kind.lower()}s.{name}"

    def _figure(self, key: str, name: str) -> float | None:
        return self.values.get(key, {}).get(name)

    def _after(self, node_id: str) -> list[Node]:
        return [self.nodes[edge.end] for edge in self.graph.edges if edge.start == node_id and edge.kind != "topic"]

    def _before(self, node_id: str) -> list[Node]:
        return [
            self.nodes[edge.start]
            for edge in self.graph.edges
            if edge.end == node_id and edge.kind in ("events", "optional")
        ]

    def _problem(self, kind: str, severity: Severity, key: str, title: str, **more: Any) -> AgentProblem:
        """Return a problem with its attempts, its error, its command and its section."""
        error = more.pop("error", "")
        advised = (advice(error) if kind in BY_ERROR else None) or Advice(KINDS[kind].first_step)
        match = _COMMAND.search(error)
        own = more.pop("command", f"agent check --connect {self.arguments}")
        command = match[0] if match is not None else advised.command or own
        metrics, attempt = self.metrics.get(key), self._figure(key, "RetryAttempt")
        since = metrics.failing_since if metrics is not None and severity == "failing" else 0.0
        retry = self._figure(key, "RetryTime")
        if severity == "failing" and attempt and retry:
            more |= {"attempts": int(attempt), "retry_time": retry / 1000}
        if severity == "failing" and not more.get("trend"):
            every = f": all {int(attempt)} attempts have failed" if attempt and attempt > 1 else ""
            more["trend"] = f"Unchanged{every}."
        return AgentProblem(
            *(kind, severity, self._path(key), "" if key.startswith("THREAD.") else key, title),
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

    def problems(self) -> Iterator[AgentProblem]:
        """Yield all problems, in no order."""
        away = {key for key, cluster in self.clusters.items() if _is_away(cluster)}
        for key, error in self.failing.items():
            if key not in away:
                yield self._failing(key, error)
        for key in away:
            if key in self.failing or not self._figure(key, "Overflowing"):
                yield self._away(key)
        rejecting = self.registry.rejecting()
        for component in list(self.registry.components):
            key, text = component.key, component.metrics.degradation()
            if text:
                yield self._overflowing(key, text) if self._figure(key, "Overflowing") else self._limited(key, text)
            if key in rejecting:
                yield self._rejected(key, rejecting[key])
        for key, cluster in self.clusters.items():
            if key not in away and key not in self.failing:
                yield from self._cluster(key, cluster)
        for key, loss in self.losses.items():
            yield self._dropping(key, loss)
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
            title = f"A part of {self._path(key)} has ended."
            return self._problem(
                *("thread-ended", "failing", key, title), effect=effect, loss=loss, error=error, command=""
            )
        if kind == "SINK":
            title = f'Sink "{name}"{type_name} does not deliver.'
            return self._problem("sink-fails", "failing", key, title, error=error, **self._backlog(key))
        if kind == "SOURCE":
            waited = self._figure(key, "UnacknowledgedSeconds") or 0.0
            return self._problem(
                *("source-fails", "failing", key),
                f'Source "{name}"{type_name} does not {"store its events" if waited else "work"}.',
                effect=self._waiting(key),
                loss=port_loss(error) or self._source_loss([key]),
                trend="Getting worse as long as senders send to this port." if port_loss(error) else "",
                error=error,
                weight=waited,
            )
        if kind == "CHANNEL":
            away = "no Kafka broker answers" in error
            title = (
                f'No broker of channel "{name}" answers.' if away else f'Channel "{name}"{type_name} does not work.'
            )
            return self._problem("brokers-away" if away else "channel-fails", "failing", key, title, error=error,
                                **self._blocked(key))  # fmt: skip
        return self._problem(
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
        return self._problem("brokers-away", "failing", key, title, error=error, **self._blocked(key))

    def _blocked(self, key: str) -> dict[str, Any]:
        """Return consequence, loss and trend of a channel that takes no events."""
        node = self.by_key.get(key)
        if node is None:
            return {}
        sources, sinks = self._before(node.id), [one for one in self._after(node.id) if one.kind == "sink"]
        waits = [self._figure(source.metrics, "UnacknowledgedSeconds") or 0.0 for source in sources]
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
        waited = self._figure(key, "UnacknowledgedSeconds") or 0.0
        if waited > 1:
            return f"Its oldest events have waited for {format_seconds(waited)} to be stored."
        return "It brings no new events in."

    def _source_loss(self, keys: Iterable[str]) -> str:
        """Return the sentences about the events of sources that store nothing."""
        sources = [node for key in keys if (node := self.by_key.get(key)) is not None]
        return source_loss(sources, self.losses)

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
        channel = next(iter(self._before(node.id)), None)
        where = f" in {channel.id}" if channel is not None else ""
        lag, age, unit = self._figure(key, "Lag"), self._figure(key, "LagSeconds"), node.lag_unit or "events"
        growth = self.history.growth(key, "Lag")
        if lag is None:
            effects = [f"The number of waiting events{where} is not known."]
        elif not lag:
            effects = [f"No event waits{where}."]
        else:
            oldest = f", the oldest for {format_seconds(age)}" if age is not None and age >= 1 else ""
            effects = [f"{format_count(lag, unit)} wait{'s' * (lag == 1)}{where}{oldest}."]
        left, deadline = self._figure(key, "RetentionSecondsLeft"), ""
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
        percent = self._figure(channel.metrics, "ChannelFillPercentage")
        if not self._figure(channel.metrics, "ChannelCapacity") or percent is None or percent < 1:
            return ""
        # Events that a failed sink gives back have lost their room to others, so the metric may exceed 100.
        return f"{channel.id} is {min(percent, 100):.0f} % full{'; sources wait' if percent >= 100 else ''}."

    def _full_deadline(self, channel: Node, growth: float | None) -> str:
        """Return when a channel with a capacity is full at the present growth; empty if it is not known or never."""
        capacity = self._figure(channel.metrics, "ChannelCapacity")
        percent = self._figure(channel.metrics, "ChannelFillPercentage")
        if not capacity or percent is None or not 1 <= percent < 100 or growth is None or growth <= 0:
            return ""
        waiting = self._before(channel.id)
        for owner in [edge.start for edge in self.graph.edges if edge.kind == "overflow" and edge.end == channel.id]:
            waiting += self._before(owner)
        lost = ", ".join(source.name for source in waiting if "udp" in source.type)
        then = f"sources wait{f', and datagrams of {lost} are lost' if lost else ''}"
        return self._deadline((1 - percent / 100) * capacity / growth, then)

    def _overflowing(self, key: str, text: str) -> AgentProblem:
        name, node = key.partition(".")[2], self.by_key.get(key)
        overflow = next(iter(self._overflows(node)), None) if node is not None else None
        size = self._figure(key, "OverflowSize") or 0.0
        effects = [f"{format_count(size, 'events')} {'is' if size == 1 else 'are'} on one disk of this host only."]
        growth, deadline = self.history.growth(key, "OverflowSize"), ""
        advised: dict[str, Any] = {}
        if overflow is not None:
            if growth is None:
                growth = self.history.growth(overflow.metrics, "ChannelSize")
            effects.append(self._fill(overflow))
            deadline = self._full_deadline(overflow, growth)
            if free := self._figure(overflow.metrics, "DiskFreeBytes"):
                effects.append(f"The disk has {format_number(free)}B free.")
            if deadline and (free is None or free > AMPLE_FREE_BYTES):
                capacity = self._figure(overflow.metrics, "ChannelCapacity") or 0.0
                more = f"raise {overflow.id}.capacity, now {capacity:,.0f}, in {self.graph.file}"
                advised["action"] = f"{KINDS['overflowing'].first_step} To gain time, {more}, then run this command."
                advised["command"] = f"agent reload {self.arguments}"
        if node is not None and (sinks := [one for one in self._after(node.id) if one.kind == "sink"]):
            effects.append(f"{_number(len(sinks), 'sink')} get{'s' * (len(sinks) == 1)} no new events.")
        return self._problem(
            *("overflowing", "degraded", key),
            f'Channel "{name}" stores events on a disk of this host, as brokers do not take them.',
            effect=" ".join(filter(None, effects)),
            loss="Nothing, as long as the disk of this host is intact.",
            trend=_trend(growth, size, "events"),
            deadline=deadline,
            error=text,
            weight=size,
            **advised,
        )

    def _overflows(self, node: Node) -> Iterator[Node]:
        for edge in self.graph.edges:
            if edge.kind == "overflow" and edge.start == node.id:
                yield self.nodes[edge.end]

    def _limited(self, key: str, text: str) -> AgentProblem:
        title = f"{self._kind_and_name(key)} works with a limitation."
        effect = f"{text[:1].upper()}{text[1:].rstrip('.')}."
        return self._problem("limited", "degraded", key, title, effect=effect, error=text)

    def _kind_and_name(self, key: str, *, in_sentence: bool = False) -> str:
        """Return `Sink "k1"`, or `sink "k1"` within a sentence."""
        kind, _, name = key.partition(".")
        return f'{kind.lower() if in_sentence else kind.capitalize()} "{name}"'

    def _rejected(self, key: str, text: str) -> AgentProblem:
        count = self._figure(key, "EventRejectedCount") or 0.0
        rate = self.history.rates().get(key, {}).get("EventRejectedCount")
        trend = "" if rate is None else "Not getting worse: none in the last 10 s."
        if rate:
            trend = f"Getting worse: {format_number(rate)} events are rejected every second."
        return self._problem(
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
            yield self._problem("brokers-down", "warning", key, title, error=cluster["error"],
                               effect="Lag and retention are not known.")  # fmt: skip
            return
        down = [broker["address"] for broker in cluster["brokers"] if not broker["up"]]
        lacking, leaderless = cluster["under_replicated"], cluster["leaderless"]
        topic = f"topic {cluster['topic']}"
        if leaderless:
            yield self._problem(
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
            yield self._problem(
                *("brokers-down", "warning", key),
                title,
                effect=replicas if lacking else "",
                loss="Nothing. A further failure may stop the channel.",
                error=f"brokers that do not answer: {', '.join(down)}" if down else "",
            )

    def _dropping(self, key: str, loss: DatagramLoss) -> AgentProblem:
        rate = self.history.rates().get(key, {}).get("KernelDropCount")
        return self._problem(
            *("datagrams-lost", "warning", key),
            f"{self._kind_and_name(key)} loses datagrams.",
            effect="The kernel drops datagrams that come in while its buffer of the source is full.",
            loss=f"{datagram_loss(loss)}.",
            trend=f"Getting worse: {format_number(rate)} more every second."
            if rate
            else "Not getting worse at present.",
            weight=loss.datagrams,
        )

    def _limits(self, key: str) -> Iterator[AgentProblem]:
        """Yield the problems of one component that come from its figures."""
        kind, name = key.partition(".")[0], self._kind_and_name(key)
        figures = self.values[key]
        waited = figures.get("UnacknowledgedSeconds", 0.0)
        if kind == "SOURCE" and key not in self.failing and waited > NOT_STORED_SECONDS:
            yield self._problem(
                *("events-not-stored", "warning", key),
                f"{name} waits for its channel.",
                effect=self._waiting(key),
                loss=self._source_loss([key]),
                weight=waited,
            )
        if kind == "CHANNEL" and (fill := figures.get("ChannelFillPercentage", 0.0)) > FULL_PERCENT:
            node = self.by_key.get(key)
            growth = self.history.growth(key, "ChannelSize")
            yield self._problem(
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
                yield self._problem("retention-near", "warning", key, title, **self._backlog(key))
            elif figures.get("LagSeconds", 0.0) > BEHIND_SECONDS:
                command = f"agent top {self.arguments}"
                yield self._problem("sink-behind", "warning", key, f"{name} is behind.", command=command,
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
            others = ", ".join(self._path(other) for _, other in full[1:])
            yield self._problem(
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
        return self._problem(
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
