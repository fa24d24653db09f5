"""Undelivered entries of a file channel, and the number of their events that readers have taken."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping

EntrySummary = tuple[int, int]
"""Number of an entry in the log, and number of its events."""


class UndeliveredEntries:
    """Undelivered entries of each partition, in the order of their numbers. Not thread-safe.

    Parameters `cursors` hold the next entry of the reader of each partition: the entries before it are taken.
    """

    def __init__(self) -> None:
        self._entries: dict[int, deque[EntrySummary]] = {}
        self.events = 0
        """Number of undelivered events, including puts that are not on the disk yet."""
        self.taken = 0
        """Number of these events that readers have taken."""

    @property
    def untaken(self) -> int:
        """Number of events that no reader has taken."""
        return self.events - self.taken

    def partitions(self) -> Collection[int]:
        """Return all partitions that have or had entries."""
        return self._entries.keys()

    def add(self, partition: int, number: int, events: int) -> EntrySummary:
        """Append an entry to a partition. Return a handle for `remove`."""
        entry = (number, events)
        self._entries.setdefault(partition, deque()).append(entry)
        self.events += events
        return entry

    def remove(self, partition: int, entry: EntrySummary) -> None:
        """Remove the entry that `add` has returned, because the disk has not stored it."""
        # By identity: another entry may have the same number by now.
        self._entries[partition] = deque(other for other in self._entries[partition] if other is not entry)
        self.events -= entry[1]

    def recount_taken(self, cursors: Mapping[int, int]) -> None:
        """Set `taken` to the number of events in entries before the cursors."""
        self.taken = sum(
            events
            for partition, entries in self._entries.items()
            for number, events in entries
            if number < cursors.get(partition, 0)
        )

    def remove_delivered(self, partition: int, end: int, cursors: Mapping[int, int]) -> int:
        """Remove the entries of a partition before number `end`; return the number of their events."""
        return self._remove_before(end, partition, self._entries.get(partition, deque()), cursors)

    def remove_lost(self, first: int, end: int, cursors: Mapping[int, int]) -> int:
        """Remove the entries of all partitions from number `first` to `end`, exclusive.

        Return the number of their events.
        """
        events = 0
        for partition, entries in self._entries.items():
            lost = deque(entry for entry in entries if first <= entry[0] < end)
            self._entries[partition] = deque(entry for entry in entries if not first <= entry[0] < end)
            events += self._remove_before(end, partition, lost, cursors)
        return events

    def oldest(self, default: int, ends: Mapping[int, int]) -> int:
        """Return the smallest number of an entry that stays undelivered once `ends` are committed; else `default`.

        `ends` are committed offsets by partition; a partition without one counts from 0.
        """
        numbers = [
            next((number for number, _ in entries if number >= ends.get(partition, 0)), default)
            for partition, entries in self._entries.items()
        ]
        return min(numbers, default=default)

    def entries(self) -> Iterator[EntrySummary]:
        """Yield all entries, partition by partition, and in each by ascending number."""
        for entries in self._entries.values():
            yield from entries

    def _remove_before(
        self, end: int, partition: int, entries: deque[EntrySummary], cursors: Mapping[int, int]
    ) -> int:
        """Remove the entries before `end` from a deque of the partition; return the number of their events."""
        removed, cursor = 0, cursors.get(partition, 0)
        while entries and entries[0][0] < end:
            number, events = entries.popleft()
            removed += events
            self.taken -= events if number < cursor else 0
        self.events -= removed
        return removed
