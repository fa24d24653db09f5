"""Whether every file that the kernel named was opened."""

from __future__ import annotations

from collections.abc import Iterable

from sources.taildir.opener import ARRIVED, CREATED, LEFT
from sources.taildir.tail import Key
from sources.taildir.watch import Change

_MOST_MOVES = 1024


class Ledger:
    """Counts files that came, as the kernel tells, and files that were opened: the difference was missed.

    What is opened under a name may be a later file than the one that the kernel spoke of, so only the numbers are
    compared, which come right when all is told. A look may find files that are told of later: then there seem to be
    more opened than came, for a while.
    """

    def __init__(self) -> None:
        self.missed: list[str] = []
        """A name for each file that was gone before it could be opened; whoever tells of them empties it."""
        self._came = self._opened = self._told = 0
        self._before = 0
        """What the difference was at the look before."""
        self._name = ""
        self._away: dict[int, None] = {}
        """Cookies of renames that are half told."""
        self._excused: set[Key] = set()
        """Files that were there before anybody watched."""

    def note(self, change: Change, *, again: bool) -> None:
        """A change of a name; `again` where it is another name of a file that is known."""
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
        """That file is followed from now on."""
        if key in self._excused:
            self._excused.remove(key)
        else:
            self._opened += 1

    def excuse(self, keys: Iterable[Key]) -> None:
        """These files, unless they are followed, were there before their directory was watched."""
        self._excused.update(keys)

    def settle(self) -> None:
        """All that is there has been looked at: what is missing now, as at the look before, is gone."""
        difference = self._came - self._opened
        missed = min(difference, self._before) - self._told
        if missed > 0:
            self.missed += [self._name] * missed
            self._told += missed
        self._before = difference

    def reset(self) -> None:
        """Changes were dropped: begin anew with what is there."""
        self._came = self._opened = self._told = self._before = 0
        self._away.clear()
        self._excused.clear()
