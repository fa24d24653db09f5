"""Rejected events of one sink: dead letters while they are few, a pause of the sink once they are too many."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable

from flafka.agent.runner.deadletters.store import DeadLetter, DeadLetterStore
from flafka.agent.topology import Tolerance
from flafka.plugins import Retry

MAX_PENDING_BYTES = 16 << 20
"""Size of pending dead letters from which on the batches that they came with are committed early."""
OVERHEAD_BYTES = 1000
"""Estimated memory that a dead letter takes beside its body."""


class Rejections:
    """Pending dead letters of one sink, held until the batch that they came with is about to be committed.

    Events that are redelivered after a failure are rejected again. Their dead letters have the same names, so they
    are stored once and count once.

    Above the share that `tolerance` allows, the sink is paused and Retry is raised instead. The sink's runner then
    redelivers the events until most of them are accepted.
    """

    def __init__(self, store: DeadLetterStore, tolerance: Tolerance) -> None:
        self._dead_letters, self.tolerance = store, tolerance
        self.paused = ""
        """Reason for the pause, in words; empty while the sink is not paused."""
        self._latest: deque[tuple[int, int]] = deque()  # (events, rejected) of each commit
        self.events = self._rejected = 0
        """Numbers of events offered to the sink, and of those rejected, since the last commit."""
        self._pending: list[DeadLetter] = []
        self._bytes = 0
        self._stored: dict[str, int | None] = {}
        """Partition by name of dead letters that are durable although their batch is not committed yet."""

    def add_offered(self, events: int) -> None:
        """Add `events` to the number of events offered to the sink, the base of the rejected share."""
        self.events += events

    def add(self, dead_letters: Iterable[DeadLetter]) -> None:
        """Hold dead letters of rejected events until `store`.

        Raises Retry, and pauses the sink, if the rejected share of the latest events exceeds the tolerance. The dead
        letters are held then, too, until `start_over`. While the sink is paused, only events since the last commit
        count.
        """
        new = list(dead_letters)
        if not new:
            return
        self._rejected += len(new)
        self._pending += new
        self._bytes += sum(map(_size, new))
        self._check_tolerance(new[-1].reason)

    @property
    def is_full(self) -> bool:
        """True if pending dead letters take more than `MAX_PENDING_BYTES`: their batches should be committed now."""
        return self._bytes > MAX_PENDING_BYTES

    def store(self, partition: int | None = None) -> int:
        """Write the pending dead letters of one partition, or of all for None, to the store.

        Return the number of new ones. Dead letters that were stored for an earlier attempt of the same batch are not
        written again. The caller commits the batch afterwards. Raises Retry, after which all are still pending.
        """
        pending = (
            self._pending if partition is None else [one for one in self._pending if _partition(one) == partition]
        )
        new = [dead_letter for dead_letter in pending if dead_letter.name not in self._stored]
        if new:
            self._dead_letters.put(new)
            self._stored.update((dead_letter.name, _partition(dead_letter)) for dead_letter in new)
        self._drop(pending)
        return len(new)

    def partitions(self) -> set[int]:
        """Return the partitions with pending dead letters."""
        return {dead_letter.id.partition for dead_letter in self._pending if dead_letter.id is not None}

    def take_all(self) -> list[DeadLetter]:
        """Remove and return all pending dead letters, for a caller that stores them itself."""
        pending = self._pending
        self._drop(pending)
        return pending

    def committed(self, partitions: Collection[int]) -> None:
        """Record that the offered events are committed, which ends a pause.

        Their numbers become part of the share of rejected events. `partitions` are the committed ones, whose stored
        dead letters need not be remembered any more.
        """
        self._forget_stored(partitions)
        if not self.events:
            return
        self.paused = ""
        self._latest.append((self.events, self._rejected))
        while sum(events for events, _ in self._latest) - self._latest[0][0] >= self.tolerance.window:
            self._latest.popleft()
        self.events = self._rejected = 0

    def start_over(self) -> None:
        """Drop pending dead letters and counts since the last commit, as the events are redelivered.

        A pause stays.
        """
        self.events = self._rejected = 0
        self._drop(self._pending)

    def lost(self, partitions: Collection[int]) -> None:
        """Drop the pending dead letters of these partitions, which are assigned to other members now."""
        self._forget_stored(partitions)
        self._drop([dead_letter for dead_letter in self._pending if _partition(dead_letter) in partitions])

    def _forget_stored(self, partitions: Collection[int]) -> None:
        """Forget the names of stored dead letters of these partitions, and of dead letters without an ID."""
        self._stored = {
            name: partition
            for name, partition in self._stored.items()
            if partition is not None and partition not in partitions
        }

    def _check_tolerance(self, reason: str) -> None:
        """Pause the sink and raise Retry if too many of the latest events were rejected.

        `reason` is that of the last one. The share is of at least `tolerance.window` events, unless the sink is
        paused already.
        """
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
            "redelivered until they are accepted: correct the configuration or what the sink writes to; with "
            "errors.tolerance = all they become dead letters"
        )
        raise Retry(self.paused)

    def _drop(self, dead_letters: list[DeadLetter]) -> None:
        """Remove these dead letters from the pending ones."""
        if dead_letters is self._pending:
            self._pending, self._bytes = [], 0
            return
        dropped = set(map(id, dead_letters))
        self._pending = [dead_letter for dead_letter in self._pending if id(dead_letter) not in dropped]
        self._bytes = sum(map(_size, self._pending))


def _partition(dead_letter: DeadLetter) -> int | None:
    """Return the partition of the event; None without an event ID."""
    return dead_letter.id.partition if dead_letter.id is not None else None


def _size(dead_letter: DeadLetter) -> int:
    return len(dead_letter.event.body) + OVERHEAD_BYTES
