"""Undelivered entries of a file channel, and the events of them that sinks have taken."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping

Entry = tuple[int, int]
"""Number in the log, and number of events."""


class Waiting:
    """The entries of each partition, in the order of their numbers. Calls that change it are not to overlap.

    `next_ones` is, by partition, the entry that its reader takes next: those before it are taken.
    """

    def __init__(self) -> None:
        self._entries: dict[int, deque[Entry]] = {}
        self.events = 0
        """Events that they hold, with puts that are not on the disk yet."""
        self.taken = 0
        """Events of these that are taken."""

    @property
    def untaken(self) -> int:
        """Events that no reader has taken."""
        return self.events - self.taken

    def partitions(self) -> Collection[int]:
        """Partitions that had entries since this was made."""
        return self._entries.keys()

    def add(self, partition: int, number: int, events: int) -> Entry:
        """One more, behind all of its partition. What is answered is for `remove`."""
        entry = (number, events)
        self._entries.setdefault(partition, deque()).append(entry)
        self.events += events
        return entry

    def remove(self, partition: int, entry: Entry) -> None:
        """The disk did not take it. Another one may have its number by now, so it is this very tuple that goes."""
        self._entries[partition] = deque(one for one in self._entries[partition] if one is not entry)
        self.events -= entry[1]

    def recount(self, next_ones: Mapping[int, int]) -> None:
        """Count the taken events again, after a reader moved its cursor."""
        self.taken = sum(
            events
            for partition, entries in self._entries.items()
            for number, events in entries
            if number < next_ones.get(partition, 0)
        )

    def delivered(self, partition: int, end: int, next_ones: Mapping[int, int]) -> int:
        """Remove entries of a partition before `end`; return the number of their events."""
        return self._over(partition, self._entries.get(partition, deque()), end, next_ones)

    def lost(self, first: int, end: int, next_ones: Mapping[int, int]) -> int:
        """Remove entries of all partitions from `first` to `end`, exclusive; return the number of their events."""
        events = 0
        for partition, entries in self._entries.items():
            gone = deque(one for one in entries if first <= one[0] < end)
            self._entries[partition] = deque(one for one in entries if not first <= one[0] < end)
            events += self._over(partition, gone, end, next_ones)
        return events

    def oldest(self, otherwise: int, ends: Mapping[int, int]) -> int:
        """Return the smallest number, once `ends` of partitions are delivered; `otherwise` if none is left."""
        oldest = [
            next((number for number, _ in entries if number >= ends.get(partition, 0)), otherwise)
            for partition, entries in self._entries.items()
        ]
        return min(oldest, default=otherwise)

    def entries(self) -> Iterator[Entry]:
        """Yield all entries, partition by partition."""
        for entries in self._entries.values():
            yield from entries

    def _over(self, partition: int, entries: deque[Entry], end: int, next_ones: Mapping[int, int]) -> int:
        over, next_one = 0, next_ones.get(partition, 0)
        while entries and entries[0][0] < end:
            number, events = entries.popleft()
            over += events
            self.taken -= events if number < next_one else 0
        self.events -= over
        return over
