"""What one sink rejects: dead letters as long as it is the exception, a pause where it is the rule."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable

from agent.runner.deadletters.letters import DeadLetter, DeadLetters
from agent.topology import Tolerance
from plugins import Retry

HELD_BYTES = 16 << 20
"""So much may wait for the commit."""
LETTER_BYTES = 1000
"""What a letter takes beside its body, about."""


class Rejections:
    """Holds dead letters until the events they came with are about to be committed, so that a retry makes none twice.

    Above the share that `tolerance` allows it raises Retry instead and is paused: the sink's runner offers the events
    again, and again, until most of them are taken.
    """

    def __init__(self, letters: DeadLetters, tolerance: Tolerance) -> None:
        self.letters, self.tolerance = letters, tolerance
        self.paused = ""
        """Why, in words; empty while the sink is not paused."""
        self._latest: deque[tuple[int, int]] = deque()  # (events, rejected) of each commit
        self.events = self._rejected = 0
        """How many were offered, and how many of them rejected, since the last commit."""
        self._held: list[DeadLetter] = []
        self._bytes = 0
        self._kept: set[str] = set()
        """Names of letters that are durable, of events that are not committed: they may come again."""

    def offered(self, events: int) -> None:
        """The sink is about to get so many."""
        self.events += events

    def add(self, letters: Iterable[DeadLetter]) -> None:
        """It rejected these. Raises Retry where they are too many."""
        new = list(letters)
        if not new:
            return
        self._rejected += len(new)
        self._held += new
        self._bytes += sum(map(_size, new))
        self._judge(new[-1].reason)

    @property
    def full(self) -> bool:
        """Whether so much is held that it had better be kept, and what it came with committed."""
        return self._bytes > HELD_BYTES

    def keep(self) -> int:
        """Make all that are held durable: what they came with is committed next. How many are new."""
        held = self._held
        new = [one for one in held if one.name not in self._kept]
        if new:
            self.letters.put(new)
            self._kept.update(one.name for one in new)
        self._drop(held)
        return len(new)

    def of(self, partition: int) -> list[DeadLetter]:
        """Those held of this partition."""
        return [one for one in self._held if one.id is not None and one.id.partition == partition]

    def partitions(self) -> set[int]:
        """Those of which some are held."""
        return {one.id.partition for one in self._held if one.id is not None}

    def take(self) -> list[DeadLetter]:
        """All that are held, for someone else to keep."""
        held = self._held
        self._drop(held)
        return held

    def committed(self) -> None:
        """What was offered is delivered, but for what was rejected."""
        self._kept.clear()
        if not self.events:
            return
        self.paused = ""
        self._latest.append((self.events, self._rejected))
        while sum(events for events, _ in self._latest) - self._latest[0][0] >= self.tolerance.window:
            self._latest.popleft()
        self.events = self._rejected = 0

    def start_over(self) -> None:
        """Nothing since the last commit counts: it is offered again."""
        self.events = self._rejected = 0
        self._drop(self._held)

    def lost(self, partitions: Collection[int]) -> None:
        """Others go on with these partitions."""
        self._drop([one for one in self._held if one.id is not None and one.id.partition in partitions])

    def _judge(self, reason: str) -> None:
        events, rejected, window = self.events, self._rejected, 0
        if not self.paused:
            window = self.tolerance.window
            events += sum(events for events, _ in self._latest)
            rejected += sum(rejected for _, rejected in self._latest)
        if rejected * 100 <= self.tolerance.percent * max(events, window):
            return
        self.paused = self.paused or (
            f"paused: {rejected:,} of the latest {events:,} events were rejected, more than errors.tolerance = "
            f"{self.tolerance.percent} (%) allows, the last because: {reason}. They wait in the channel and are "
            f"offered again until they are taken: correct the configuration or what the sink writes to; with "
            f"errors.tolerance = all they become dead letters"
        )
        raise Retry(self.paused)

    def _drop(self, letters: list[DeadLetter]) -> None:
        if letters is self._held:
            self._held, self._bytes = [], 0
            return
        gone = set(map(id, letters))
        self._held = [one for one in self._held if id(one) not in gone]
        self._bytes = sum(map(_size, self._held))


def _size(letter: DeadLetter) -> int:
    return len(letter.event.body) + LETTER_BYTES
