"""Detection of missed files: files that inotify reported, but that were gone before they were opened."""

from __future__ import annotations

from collections.abc import Iterable

from flafka.sources.taildir.opener import ARRIVED, CREATED, LEFT
from flafka.sources.taildir.tail import Key
from flafka.sources.taildir.watch import Change

_MOST_MOVES = 1024


class FileCounters:
    """Counters of files that were created, as inotify reports, and of files that were opened.

    A file opened under a name may be a later one than inotify reported. So only the totals are compared, which agree
    once all events are handled. A scan may find files before inotify reports them: for a while, more files seem to be
    opened than were created.
    """

    def __init__(self) -> None:
        self.missed: list[str] = []
        """One name for each missed file. The caller that reports the list clears it."""
        self._came = self._opened = self._told = 0
        self._before = 0
        """Difference of the two counters at the previous full scan."""
        self._name = ""
        self._away: dict[int, None] = {}
        """Inotify cookies of renames whose second half is not reported yet."""
        self._excused: set[Key] = set()
        """Files that were there before their directory was watched."""

    def note(self, change: Change, *, again: bool) -> None:
        """Count the change of a name; `again` says that the name is another link to a tracked file."""
        if change.kind == LEFT:
            self._away[change.cookie] = None
            if len(self._away) > _MOST_MOVES:
                del self._away[next(iter(self._away))]
        elif change.kind == CREATED or (change.kind == ARRIVED and change.cookie not in self._away):
            if not again:
                self._came += 1
                self._name = change.name
        elif change.kind == ARRIVED:
            del self._away[change.cookie]

    def opened(self, key: Key) -> None:
        """Count the opening of a file that is tracked from now on."""
        if key in self._excused:
            self._excused.remove(key)
        else:
            self._opened += 1

    def excuse(self, keys: Iterable[Key]) -> None:
        """Exclude files from the counters: they were there before their directory was watched."""
        self._excused.update(keys)

    def settle(self) -> None:
        """Compare the counters after a full scan, and list missed files.

        A file counts as missed if it was missing at the previous full scan, too.
        """
        difference = self._came - self._opened
        missed = min(difference, self._before) - self._told
        if missed > 0:
            self.missed += [self._name] * missed
            self._told += missed
        self._before = difference

    def reset(self) -> None:
        """Reset the counters, after inotify dropped events or the opener process ended."""
        self._came = self._opened = self._told = self._before = 0
        self._away.clear()
        self._excused.clear()
