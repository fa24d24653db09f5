"""Sink processors: which sink of a group gets a batch, and which one when that fails."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence

from flafka.agent.topology import Policy, SinkProcessorSpec

FIRST_PENALTY = 2.0
MOST_DOUBLINGS = 16
FORGET_SECONDS = 3600.0
"""`load_balance`: a failure so long after the one before, and after its penalty, is a first one again."""

Clock = Callable[[], float]


def sink_processor_of(
    spec: SinkProcessorSpec | None, sinks: Sequence[str], clock: Clock = time.monotonic
) -> Failover | LoadBalance:
    """The processor of a group with these sinks; None: they are one, without a group, and it gets every batch."""
    if spec is None:
        return LoadBalance(sinks, "round_robin", 0, clock)
    if spec.kind == "failover":
        return Failover({sink: spec.priorities[sink] for sink in sinks}, spec.longest_penalty, clock)
    return LoadBalance(sinks, spec.policy, spec.longest_penalty if spec.backoff else 0, clock)


def penalty(failures: int, longest: float) -> float:
    """Seconds a sink is left alone after so many failures, one after the other: 2, 4, 8 and so on."""
    return min(longest, FIRST_PENALTY * 2.0 ** (min(failures, MOST_DOUBLINGS) - 1))


class Failover:
    """The sink of the highest priority works. One that failed is left alone, then tried once: it comes back, or waits
    twice as long."""

    def __init__(self, priorities: dict[str, int], longest: float, clock: Clock) -> None:
        self._live = sorted(priorities, key=lambda sink: -priorities[sink])
        self._priorities, self._longest, self._clock = priorities, longest, clock
        self._failures: dict[str, int] = {}
        self._until: dict[str, float] = {}

    def attempts(self) -> Iterator[str]:
        """Yield sinks whose penalty is over, the longest waiting first; then the live ones by priority."""
        now = self._clock()
        live = list(self._live)
        yield from sorted((s for s, until in self._until.items() if until < now), key=self._until.__getitem__)
        yield from live

    def failed(self, sink: str) -> None:
        """Leave it alone."""
        if sink in self._live:
            self._live.remove(sink)
        self._failures[sink] = self._failures.get(sink, 0) + 1
        self._until[sink] = self._clock() + penalty(self._failures[sink], self._longest)

    def delivered(self, sink: str) -> None:
        """Have it back."""
        if self._until.pop(sink, None) is not None:
            del self._failures[sink]
            self._live = sorted([*self._live, sink], key=lambda name: -self._priorities[name])

    def may_try(self, sink: str) -> bool:
        """Return True unless the sink is in its penalty."""
        return self._until.get(sink, 0.0) <= self._clock()


class LoadBalance:
    """Batches go to the sinks in turn, or by chance. One that failed is left alone, unless `longest` is 0."""

    def __init__(self, sinks: Sequence[str], policy: Policy, longest: float, clock: Clock) -> None:
        self._sinks, self._policy, self._longest, self._clock = sinks, policy, longest, clock
        self._head = 0
        self._failures: dict[str, int] = {}
        self._last: dict[str, float] = {}
        self._until: dict[str, float] = {}

    def attempts(self) -> Iterator[str]:
        """Return the sinks without a penalty, from the one whose turn it is, or shuffled."""
        now = self._clock()
        able = [sink for sink in self._sinks if sink not in self._until or self._until[sink] < now]
        if self._policy == "random":
            return iter(random.sample(able, len(able)))
        if not able:
            return iter(())
        begin = self._head if self._head < len(able) else 0
        self._head = (begin + 1) % len(able)
        return iter(able[begin:] + able[:begin])

    def failed(self, sink: str) -> None:
        """Leave it alone, the longer the more often it failed of late."""
        if not self._longest:
            return
        now, before = self._clock(), self._failures.get(sink, 0)
        recent = sink in self._last and now - self._last[sink] < penalty(before, self._longest) + FORGET_SECONDS
        self._failures[sink] = before + 1 if recent else 1
        self._last[sink], self._until[sink] = now, now + penalty(self._failures[sink], self._longest)

    def delivered(self, sink: str) -> None:
        """Do nothing: as in Flume, a success does not shorten the next penalty."""

    def may_try(self, sink: str) -> bool:
        """Return True unless the sink is in its penalty."""
        return self._until.get(sink, 0.0) <= self._clock()
