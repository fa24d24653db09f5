"""Rejected events are said: in the log at once and then once a minute, and in the health while they are recent."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from flafka.agent.runner.deadletters.causes import cause_of, common
from flafka.agent.runner.deadletters.letters import DeadLetter, DeadLetters

AGAIN_SECONDS = 60.0
"""The same of the same component is said at most so often."""
RECENT_SECONDS = 300.0
"""For so long after its latest rejected event a component counts as degraded."""
MOST_CAUSES = 20
"""So many of a component are told apart; what comes on top of them counts as one."""
OTHERS = "other reasons"

Causes = Mapping[str, tuple[str, int]]
"""By cause: a reason with what all have in common, and how many events."""


@dataclass
class _Told:
    reason: str
    latest: float
    said: float = float("-inf")
    unsaid: int = 0
    events: int = 0


def both(one: Causes, other: Causes) -> Causes:
    """What became dead letters in one place and in another."""
    summed = dict(one)
    for cause, (reason, events) in other.items():
        before, count = one.get(cause, (reason, 0))
        summed[cause] = common(before, reason), count + events
    return summed


class Notices:
    """What the components of one agent reject. Any thread may call it."""

    def __init__(self, command: str, now: Callable[[], float] = lambda: time.monotonic()) -> None:
        """`command` is the one that lists dead letters, up to the option `--component`; `now` is in seconds."""
        self._command, self._now = command, now
        self._lock = threading.Lock()
        self._known: dict[str, dict[str, _Told]] = {}

    def add(self, component: str, causes: Causes) -> None:
        """These became dead letters, durably."""
        now = self._now()
        with self._lock:
            known = self._known.setdefault(component, {})
            for cause in [cause for cause, told in known.items() if self._over(told, now)]:
                del known[cause]
            for cause, (reason, events) in causes.items():
                if cause not in known and len(known) >= MOST_CAUSES:
                    cause, reason = OTHERS, OTHERS
                told = known.setdefault(cause, _Told(reason, now))
                told.reason, told.latest = common(told.reason, reason), now
                told.unsaid += events
                told.events += events
        self.say()

    def say(self, *, all_of_them: bool = False) -> None:
        """Write what is due into the log; `all_of_them`: however long ago the last time is."""
        now = self._now()
        with self._lock:
            due = [
                (component, told)
                for component, known in self._known.items()
                for told in known.values()
                if told.unsaid and (all_of_them or now - told.said >= AGAIN_SECONDS)
            ]
            lines = [(component, self._line(told, now)) for component, told in due]
            for _, told in due:
                told.said, told.unsaid = now, 0
        for component, line in lines:
            logging.getLogger(component).warning("%s. They are dead letters: %s", line, self._advice(component))

    def recent(self) -> dict[str, str]:
        """By component, why it is degraded: events that it has rejected lately."""
        now = self._now()
        with self._lock:
            recent = {
                component: [told for told in known.values() if not self._over(told, now)]
                for component, known in self._known.items()
            }
        return {component: self._sentence(component, found, now) for component, found in recent.items() if found}

    def _sentence(self, component: str, found: list[_Told], now: float) -> str:
        causes = "; ".join(f"{told.events:,}: {told.reason}" for told in sorted(found, key=lambda told: -told.events))
        ago = now - max(told.latest for told in found)
        events = sum(told.events for told in found)
        return f"{_events(events)} rejected, the latest {ago:.0f} s ago ({causes}): {self._advice(component)}"

    def _advice(self, component: str) -> str:
        return f"{self._command} --component {component}"

    @staticmethod
    def _over(told: _Told, now: float) -> bool:
        return now - told.latest > RECENT_SECONDS

    @staticmethod
    def _line(told: _Told, now: float) -> str:
        since = "" if told.said == float("-inf") else f" within {now - told.said:.0f} s"
        return f"{_events(told.unsaid)} rejected{since}: {told.reason.rstrip('.')}"


class Heard:
    """Dead letters, kept by another one, whose `hear` is told of each that is durable, by component and cause."""

    def __init__(self, letters: DeadLetters, hear: Callable[[str, Causes], None]) -> None:
        self._letters, self._hear = letters, hear

    def put(self, letters: Iterable[DeadLetter]) -> None:
        """Keep them, then tell."""
        kept = list(letters)
        self._letters.put(kept)
        by_component: dict[str, Causes] = {}
        for letter in kept:
            cause = cause_of(letter.reason, letter.id, letter.event)
            causes = by_component.get(letter.component, {})
            by_component[letter.component] = both(causes, {cause: (letter.reason, 1)})
        for component, found in by_component.items():
            self._hear(component, found)

    def close(self) -> None:
        """Close the other."""
        self._letters.close()


def _events(number: int) -> str:
    return f"{number:,} event{'s were' if number != 1 else ' was'}"
