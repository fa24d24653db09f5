"""Poller of a fleet of agents for `agent dashboard`: state, rates, lag, version and configuration of each."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any
from urllib.parse import quote

from flafka.agent.cli.monitoring_client import AgentUnreachable, MonitoringClient, problems_of
from flafka.agent.cli.top import rows
from flafka.plugins.threads import start_thread

FLEET_RESPONSE_SECONDS = 3.0
"""Timeout of each request to an agent of a fleet."""
CONCURRENT_POLLS = 16
"""Number of agents that are polled at a time, of those that have answered the latest request."""
CONCURRENT_CONNECTS = 32
"""Number of other agents that are polled at a time. Hosts that are away hold up these threads alone."""
MAX_DIFFERENCES = 20
"""Number of lines of a configuration that are shown as different."""
UNREACHABLE = "unreachable"


class FleetAgent:
    """One agent of a fleet, with what its latest answer said. One thread polls at a time; any may read."""

    def __init__(self, number: int, client: MonitoringClient) -> None:
        self.client = replace(client, timeout_seconds=FLEET_RESPONSE_SECONDS)
        self.polling: Future[None] | None = None
        self.lines: Mapping[str, str] = {}
        """Configuration in effect: key → value of each line, without secrets."""
        self.row: dict[str, Any] = {
            "number": number,
            "address": str(client),
            "state": "unknown",
            "since": time.time(),
            "first": True,
            "answered": None,
            "reason": "",
        }
        """Values of the agent for the page. A poll replaces the whole dictionary."""
        self._configured: tuple[Any, Any] | None = None
        self._nodes: list[dict[str, Any]] = []

    @property
    def is_reachable(self) -> bool:
        """True if the agent has answered the latest request."""
        return self.row["state"] not in (UNREACHABLE, "unknown")

    @property
    def page(self) -> str:
        """URL of the agent's own page, with its token."""
        token = f"?token={quote(self.client.token, safe='')}" if self.client.token else ""
        return f"{self.client}/{token}"

    def poll(self) -> None:
        """Ask the agent for its state, and after a change of the configuration for its components. Never raises."""
        try:
            state = self.client.get("/api/state")
            configured = state["started"], state["configured"]
            if configured != self._configured:
                graph = self.client.get("/api/graph")
                self._nodes = [_without_options(node) for node in graph["nodes"]]
                self.lines = graph.get("lines", {})
                self._configured = configured
            self._set_state(state["state"], **self._values(state))
        except AgentUnreachable as e:
            self._set_state(UNREACHABLE, reason=e.message)
        except (LookupError, TypeError, ValueError, AttributeError):
            self._set_state(UNREACHABLE, reason=f"the server at {self.client} is no agent")

    def _set_state(self, state: str, **values: Any) -> None:
        """Replace the row. Values of an earlier answer stay if there are no new ones."""
        now = time.time()
        row = {**self.row, **values, "state": state}
        if state != self.row["state"]:
            row |= {"since": now, "first": self.row["state"] == "unknown"}
        if state != UNREACHABLE:
            row["answered"] = now
        self.row = row

    def _values(self, state: dict[str, Any]) -> dict[str, Any]:
        """Return the values of an answer."""
        components = list(rows({"nodes": self._nodes}, state))
        sources = [row for row in components if row.kind == "source"]
        sinks = [row for row in components if row.kind == "sink"]
        problems = problems_of(state)
        lags = [(row.lag, row.lag_unit) for row in sinks if row.lag is not None]
        lag, unit = max(lags, default=(None, ""))
        return {
            **{name: state[name] for name in ("agent", "host", "version", "started")},
            "reason": problems[0]["title"] if problems else "",
            "problems": len(problems),
            "accepted": _sum(row.rate for row in sources),
            "delivered": _sum(row.rate for row in sinks),
            "lag": lag,
            "lag_unit": unit,
            "behind": max((row.lag_seconds for row in sinks if row.lag_seconds is not None), default=None),
            "dead_letters": _sum(row.dead_letters for row in components) or 0,
        }


def _without_options(node: dict[str, Any]) -> dict[str, Any]:
    """Return what `rows` needs of a component: the options of hundreds of agents would take tens of megabytes."""
    return {
        **{name: node[name] for name in ("id", "kind", "name", "type", "metrics", "lag_unit")},
        "interceptors": [_without_options(interceptor) for interceptor in node["interceptors"]],
    }


def _sum(values: Iterable[float | None]) -> float | None:
    """Return the sum of the known values; None if none is known."""
    known = [value for value in values if value is not None]
    return round(sum(known), 1) if known else None


class Fleet:
    """Agents that are polled at an interval by threads of their own. Any thread may call the public methods."""

    def __init__(self, clients: Sequence[MonitoringClient], interval: float) -> None:
        """`interval` is the time between two polls of an agent, in seconds."""
        self.agents = [FleetAgent(number, client) for number, client in enumerate(clients)]
        self.interval = interval
        self._started = time.time()
        self._stopping = threading.Event()
        self._polls = ThreadPoolExecutor(CONCURRENT_POLLS, "polls")
        self._connects = ThreadPoolExecutor(CONCURRENT_CONNECTS, "connects")
        self._thread = threading.Thread(target=self._run, name="fleet", daemon=True)

    def start(self) -> None:
        """Start to poll. Does not block."""
        start_thread(self._thread)

    def stop(self) -> None:
        """Stop to poll, and wait for the requests in flight, at most about `FLEET_RESPONSE_SECONDS`."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()
        for pool in (self._polls, self._connects):
            pool.shutdown(cancel_futures=True)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self.poll()
            self._stopping.wait(self.interval)

    def poll(self) -> list[Future[None]]:
        """Begin to poll each agent whose previous poll has ended, and return all polls that have not ended."""
        for agent in self.agents:
            if agent.polling is None or agent.polling.done():
                agent.polling = (self._polls if agent.is_reachable else self._connects).submit(agent.poll)
        return [agent.polling for agent in self.agents if agent.polling is not None]

    def page_of(self, number: int) -> str | None:
        """Return the URL of an agent's own page, with its token; None if there is no such agent."""
        return self.agents[number].page if number < len(self.agents) else None

    def state(self) -> dict[str, Any]:
        """Return the latest values of all agents as JSON values. Does not ask the agents."""
        agents = [(dict(agent.row), agent.lines) for agent in self.agents]
        versions = Counter(row["version"] for row, _ in agents if "version" in row)
        configurations: dict[str, list[Mapping[str, str]]] = {}
        for row, lines in agents:
            configurations.setdefault(row.get("agent", ""), []).append(lines)
        usual = {name: _most_common(several) for name, several in configurations.items()}
        for row, lines in agents:
            row["version_differs"] = "version" in row and row["version"] != versions.most_common(1)[0][0]
            different = _differences(lines, usual[row["agent"]]) if lines else []
            row |= {"differences": len(different), "different": different[:MAX_DIFFERENCES]}
        started = {"time": time.time(), "started": self._started, "interval": self.interval}
        return {**started, "agents": [row for row, _ in agents]}


def _most_common(configurations: Sequence[Mapping[str, str]]) -> Mapping[str, str]:
    """Return the configuration that most agents have; of several, the first."""
    distinct = {tuple(sorted(lines.items())): lines for lines in configurations}
    counts = Counter(tuple(sorted(lines.items())) for lines in configurations if lines)
    return distinct[counts.most_common(1)[0][0]] if counts else {}


def _differences(lines: Mapping[str, str], usual: Mapping[str, str]) -> list[str]:
    """Return a text for each line that is not as usual: `a1.sinks.k1.channel = c2, usually c1`."""
    texts = []
    for key in sorted(lines.keys() | usual.keys()):
        if lines.get(key) != usual.get(key):
            here = f"{key} = {lines[key]}" if key in lines else f"{key} is not set"
            texts.append(f"{here}, usually {usual.get(key, 'not set')}")
    return texts
