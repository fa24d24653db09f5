"""What one sink rejects: dead letters as long as it is the exception, a pause where it is the rule."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable

from flafka.agent.runner.deadletters.letters import DeadLetter, DeadLetters
from flafka.agent.topology import Tolerance
from flafka.plugins import Retry

HELD_BYTES = 16 << 20
"""So much may wait for the commit."""
LETTER_BYTES = 1000
"""What a letter takes beside its body, about."""


class Rejections:
    """Dead letters of one sink, held until the events they came with are about to be committed.

    What is offered again after a failure is rejected again: a dead letter of it has the same name, is stored once and
    counts once.

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
        self._stored: dict[str, int | None] = {}
        """Partition by name, of dead letters that are durable although what they came with is not committed."""

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

    def store(self, partition: int | None = None) -> int:
        """Make the held dead letters of this partition durable, or all, and return how many of them are new.

        The caller commits afterwards what they came with. Raises Retry, and holds them still.
        """
        held = self._held if partition is None else [one for one in self._held if _partition(one) == partition]
        new = [one for one in held if one.name not in self._stored]
        if new:
            self.letters.put(new)
            self._stored.update((one.name, _partition(one)) for one in new)
        self._drop(held)
        return len(new)

    def partitions(self) -> set[int]:
        """Partitions of which dead letters are held."""
        return {one.id.partition for one in self._held if one.id is not None}

    def take(self) -> list[DeadLetter]:
        """All that are held, for someone else to keep."""
        held = self._held
        self._drop(held)
        return held

    def committed(self, partitions: Collection[int]) -> None:
        """Everything that was offered of these partitions is delivered, except for what was rejected."""
        self._forget_stored(partitions)
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
        self._forget_stored(partitions)
        self._drop([one for one in self._held if _partition(one) in partitions])

    def _forget_stored(self, partitions: Collection[int]) -> None:
        self._stored = {name: one for name, one in self._stored.items() if one is not None and one not in partitions}

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


def _partition(letter: DeadLetter) -> int | None:
    return letter.id.partition if letter.id is not None else None


def _size(letter: DeadLetter) -> int:
    return len(letter.event.body) + LETTER_BYTES
