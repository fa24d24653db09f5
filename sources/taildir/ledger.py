"""Whether every file that the kernel named was opened."""

from __future__ import annotations

from dataclasses import dataclass

from sources.taildir.tail import Tail
from sources.taildir.watch import Change


@dataclass(eq=False, slots=True)
class _Named:
    """A file as the kernel's changes of names tell of it, from its creation to its deletion."""

    name: str
    tail: Tail | None = None
    """The opened file that is taken for it."""
    over: bool = False
    """Whether it was deleted."""
    excused: bool = False
    """Whether it was there before anybody watched."""


class Ledger:
    """Compares the files that the kernel named with those that were opened: the difference was missed.

    What is opened under a name may be a later file than the one that the kernel spoke of. So one opened file is taken
    for one named file at most, and the latest word wins; a named file that is deleted while none is left for it was
    missed. The number is right even where two of them were mistaken for each other.
    """

    def __init__(self) -> None:
        self.missed: list[str] = []
        """Names of files that were gone before they could be opened; whoever tells of them empties it."""
        self._at: dict[str, _Named] = {}
        """By path."""
        self._away: dict[int, _Named] = {}
        """By cookie, those whose rename is half told."""
        self._late: set[int] = set()
        """Cookies of those that were so already when it was last settled."""
        self._of: dict[Tail, _Named] = {}
        self._spare: set[Tail] = set()
        """Opened files that are taken for none yet."""

    def note(self, change: Change, tail: Tail | None) -> None:
        """A change of a name, and the opened file that was found there."""
        path = change.path
        if change.kind == "created":
            # One that is there already was found by a look, before this was told.
            named = self._at.setdefault(path, _Named(path))
            named.excused = False
            self._take(named, tail)
        elif change.kind == "left":
            self._away[change.cookie] = self._at.pop(path, _Named(path, excused=True))
        elif change.kind == "arrived":
            named = self._away.pop(change.cookie, _Named(path))
            replaced = self._at.get(path)
            self._at[path] = named
            if replaced is not None and replaced is not named:
                self._end(replaced)
            self._take(named, tail)
        elif (gone := self._at.pop(path, None)) is not None:
            self._end(gone)

    def found(self, path: str, tail: Tail) -> None:
        """A look found that file there, which changes not yet told may have led to."""
        named = self._at.get(path)
        if named is None:
            self._at[path] = named = self._of.get(tail) or _Named(path, excused=True)
        if named.tail is None:
            self._take(named, tail)

    def settle(self) -> None:
        """Renames that are half told since the last time have led out of what is watched."""
        for cookie in self._late & self._away.keys():
            self._end(self._away.pop(cookie))
        self._late = set(self._away)

    def forget(self, tail: Tail) -> None:
        """That file is followed no longer."""
        self._of.pop(tail, None)

    def reset(self) -> None:
        """Changes were dropped: begin anew with what the next look finds."""
        self._at.clear()
        self._away.clear()
        self._of.clear()
        self._spare.clear()

    def _take(self, named: _Named, tail: Tail | None) -> None:
        if tail is None:
            return
        other = self._of.get(tail)
        if named.tail is not None:
            if other is None:
                self._spare.add(tail)
            return
        named.tail, self._of[tail] = tail, named
        self._spare.discard(tail)
        if other is not None:
            other.tail = None
            if other.over:
                self._end(other)

    def _end(self, named: _Named) -> None:
        named.over = True
        if named.tail is not None or named.excused:
            return
        if self._spare:
            named.tail = self._spare.pop()
            self._of[named.tail] = named
        else:
            self.missed.append(named.name)
