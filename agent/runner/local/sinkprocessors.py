"""Sink processors: the order in which the sinks of a sink group are tried with a batch."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence

from flafka.agent.topology import Policy, SinkProcessorSpec

FIRST_PENALTY_SECONDS = 2.0
MAX_DOUBLINGS = 16
FORGET_SECONDS = 3600.0
"""Time after the end of a penalty from which on another failure counts as the first one (`load_balance`)."""

Clock = Callable[[], float]


def sink_processor_of(
    spec: SinkProcessorSpec | None, sinks: Sequence[str], clock: Clock = time.monotonic
) -> Failover | LoadBalance:
    """Return the processor of a sink group, which gives each batch to one of `sinks`.

    `spec` is None for a sink without a group. That single sink gets every batch, without penalties after failures.
    """
    if spec is None:
        return LoadBalance(sinks, "round_robin", 0, clock)
    if spec.kind == "failover":
        return Failover({sink: spec.priorities[sink] for sink in sinks}, spec.max_penalty_seconds, clock)
    return LoadBalance(sinks, spec.policy, spec.max_penalty_seconds if spec.backoff else 0, clock)


def penalty(failures: int, longest: float) -> float:
    """Return the penalty in seconds after `failures` consecutive failures: 2, 4, 8 and so on, up to `longest`."""
    return min(longest, FIRST_PENALTY_SECONDS * 2.0 ** (min(failures, MAX_DOUBLINGS) - 1))


class Failover:
    """Processor that gives batches to the live sink of the highest priority.

    A sink that failed is not live for the time of its penalty, and then tried once. It becomes live again after a
    success, and gets a penalty twice as long after a failure.
    """

    def __init__(self, priorities: dict[str, int], longest: float, clock: Clock) -> None:
        """`priorities` has a number for each sink; the largest is preferred.

        `longest` is the longest penalty in seconds.
        """
        self._live = sorted(priorities, key=lambda sink: -priorities[sink])
        self._priorities, self._longest, self._clock = priorities, longest, clock
        self._failures: dict[str, int] = {}
        self._until: dict[str, float] = {}

    def attempts(self) -> Iterator[str]:
        """Yield the order of sinks for one batch: those whose penalty is over, then the live ones by priority.

        Of the former, the one whose penalty ended first comes first. Sinks in their penalty are left out, so there
        may be none.
        """
        now = self._clock()
        live = list(self._live)
        yield from sorted((s for s, until in self._until.items() if until < now), key=self._until.__getitem__)
        yield from live

    def failed(self, sink: str) -> None:
        """Begin the penalty of a sink, which is not live until its next success.

        Each failure in a row doubles the penalty.
        """
        if sink in self._live:
            self._live.remove(sink)
        self._failures[sink] = self._failures.get(sink, 0) + 1
        self._until[sink] = self._clock() + penalty(self._failures[sink], self._longest)

    def delivered(self, sink: str) -> None:
        """Make a sink live again after a success, with its number of failures at 0. No effect on a live sink."""
        if self._until.pop(sink, None) is not None:
            del self._failures[sink]
            self._live = sorted([*self._live, sink], key=lambda name: -self._priorities[name])

    def may_try(self, sink: str) -> bool:
        """Return True unless the penalty of the sink still lasts."""
        return self._until.get(sink, 0.0) <= self._clock()


class LoadBalance:
    """Processor that gives batches to all sinks, round-robin or at random.

    A sink that failed gets no batch for the time of its penalty, unless `longest` is 0.
    """

    def __init__(self, sinks: Sequence[str], policy: Policy, longest: float, clock: Clock) -> None:
        """`policy` is "round_robin" or "random".

        `longest` is the longest penalty in seconds; 0 means no penalties.
        """
        self._sinks, self._policy, self._longest, self._clock = sinks, policy, longest, clock
        self._head = 0
        self._failures: dict[str, int] = {}
        self._last: dict[str, float] = {}
        self._until: dict[str, float] = {}

    def attempts(self) -> Iterator[str]:
        """Return the order of sinks for one batch, without the sinks in their penalty; there may be none.

        Round-robin begins with the sink after the first one of the previous call. Random shuffles all.
        """
        now = self._clock()
        live = [sink for sink in self._sinks if sink not in self._until or self._until[sink] < now]
        if self._policy == "random":
            return iter(random.sample(live, len(live)))
        if not live:
            return iter(())
        start = self._head if self._head < len(live) else 0
        self._head = (start + 1) % len(live)
        return iter(live[start:] + live[:start])

    def failed(self, sink: str) -> None:
        """Begin the penalty of a sink.

        It doubles with each failure within `FORGET_SECONDS` after the previous penalty. No effect if `longest` is 0.
        """
        if not self._longest:
            return
        now, before = self._clock(), self._failures.get(sink, 0)
        recent = sink in self._last and now - self._last[sink] < penalty(before, self._longest) + FORGET_SECONDS
        self._failures[sink] = before + 1 if recent else 1
        self._last[sink], self._until[sink] = now, now + penalty(self._failures[sink], self._longest)

    def delivered(self, sink: str) -> None:
        """Do nothing: as in Flume, a success does not shorten the next penalty."""

    def may_try(self, sink: str) -> bool:
        """Return True unless the penalty of the sink still lasts."""
        return self._until.get(sink, 0.0) <= self._clock()
