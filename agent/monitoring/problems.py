"""Problems of one agent: the one model for its page, `agent top`, `/healthz` and its log."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

Severity = Literal["failing", "degraded", "warning"]
SEVERITIES: tuple[Severity, ...] = ("failing", "degraded", "warning")
"""A warning does not change the state of the agent: something may fail soon."""
RECENT_DROP_SECONDS = 300.0
"""Time after the latest lost datagram during which the loss is a problem."""


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


class DatagramLoss(NamedTuple):
    """Datagrams of one source that the kernel has dropped, without a pause of minutes."""

    before: float
    after: float
    """Number of datagrams that were dropped since the agent's start, before and after this loss."""
    since: float
    latest: float
    """Times of the first and the latest drop, in seconds since the epoch."""

    @property
    def datagrams(self) -> float:
        """Number of datagrams that are lost."""
        return self.after - self.before

    def is_recent(self, now: float) -> bool:
        """Return True if the latest drop was within `RECENT_DROP_SECONDS`, also after the clock was set back."""
        return abs(now - self.latest) < RECENT_DROP_SECONDS


@dataclass(frozen=True)
class PastProblem:
    """Problem that has ended."""

    component: str
    title: str
    """Sentence, in the present tense."""
    error: str
    """Latest error; empty if there was none."""
    since: float
    until: float
    """Beginning and end in seconds since the epoch, of the latest occurrence."""
    times: int = 1
    """Number of occurrences of this problem in the list's time."""


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
