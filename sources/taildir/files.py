"""Tracked files: files that match a group, or matched one before a rename or deletion."""

from __future__ import annotations

import os
import stat
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache

from flafka.sources.taildir.cursors import Mark
from flafka.sources.taildir.listing import key_of, names
from flafka.sources.taildir.looking import Listing, ScannedFiles, ScanResult, UntrackedFile
from flafka.sources.taildir.opener import ARRIVED, CREATED, DELETED
from flafka.sources.taildir.tail import Key, Tail
from flafka.sources.taildir.watch import Change, Hints


class Files(ScannedFiles):
    """Tracked files, kept up to date with the changes that inotify reports between two full scans."""

    def excuse(self, directories: Iterable[str]) -> None:
        """Exclude the files that are in these directories now from the count of missed files.

        They came before the directory was watched, so inotify reports no creation.
        """
        for directory in directories:
            with suppress(OSError):
                self.ledger.excuse(key for key in names(directory) if key not in self._known.found)

    def adopt(self, hints: Hints) -> set[Tail]:
        """Track the files that the watch opened; return those that are new. The caller must scan afterwards."""
        new = ScanResult(set(), {})
        self._note_growth(hints)
        for change in hints.changes:
            self.ledger.note(change, again=self._is_link(change))
            if change.kind == ARRIVED and (tail := self._known.found.get(change.key or (0, 0))) is not None:
                tail.has_left = change.path != tail.name
            self._adopt(change, new)
        self.unsaved |= new.changed
        self._adopted |= new.changed
        return new.changed

    def _adopt(self, change: Change, new: ScanResult) -> None:
        if change.key is None or change.opened is None or (fd := change.opened.take()) is None:
            return
        tail = self._known.found.get(change.key)
        if tail is not None and tail.fd is not None:
            os.close(fd)
            return
        try:
            if tail is not None and not tail.is_in(fd, change.path):
                self._keep_former(tail)
                self.forget(tail)  # its inode was reused
                tail = None
            if tail is not None:
                self._hold(tail, fd)
                return
            tail = self._known.recall(change.key, change.path, fd)
        except OSError as e:
            os.close(fd)
            self._unseen(change.path, e)
            return
        if tail is None:
            device, inode = change.key
            tail = Tail(
                change.path, id=self._known.new_id(), inode=inode, device=device, mark=Mark(), name=change.name
            )
            if os.path.realpath(change.name) == change.path != change.name:
                tail.path = change.name  # the name is a symbolic link to that path
            if os.path.islink(tail.path):
                tail.real = os.path.realpath(tail.path)  # inotify reports writes under the target's path
        self.ledger.opened(change.key)
        self._follow(change.key, tail, new, fd)

    def _is_link(self, change: Change) -> bool:
        """Return True if the change is about another name (link) of a tracked file."""
        if change.key not in self._known.found:
            return False
        try:
            status = os.lstat(change.path)
        except OSError:
            return False
        return stat.S_ISLNK(status.st_mode) or status.st_nlink > 1

    def _note_growth(self, hints: Hints) -> None:
        """Mark closed files that were written to.

        Such a file that is deleted before it is opened again has lost data, which `forget` reports.
        """
        self._written = {tail for tail in self._written if tail.grown and not tail.gone}
        closed = self._closed()
        for change in hints.changes:
            for tail in closed(change.path) if change.kind in (ARRIVED, CREATED) else ():
                if change.key != (tail.device, tail.inode):
                    tail.replaced = True
                    # Names and writes come from two inotify instances, in no common order.
                    tail.grown = None if tail.grown else tail.grown
        for tail in [tail for path in hints.grown for tail in closed(path) if not tail.grown]:
            tail.grown = None if tail.replaced else True
            self._written.add(tail)
        for change in hints.changes:
            for tail in closed(change.path) if change.kind == DELETED else ():
                tail.replaced = True  # later writes under that name may be to another file

    def _closed(self) -> Callable[[str], list[Tail]]:
        """Return a function from a path to the closed files that have, or last had, that path."""
        known = defaultdict[str, set[Tail | None]](set)
        copied, before = self._copied
        for tail in (*self._away, *self._written, *copied, *before):
            for path in (tail.path, tail.real):
                known[path].add(tail)

        def at(path: str) -> list[Tail]:
            return [t for t in known[path] | {self._places.get(path)} if t is not None and t.fd is None]

        return at

    def hinted(self, hints: Hints) -> tuple[set[Tail], set[Tail]]:
        """Return the tracked files that grew, and those that were created, renamed or deleted."""
        changed = self.adopt(hints)
        if hints.changes:
            changed = changed | self._look_at(hints.changes)
        return {tail for path in hints.grown if (tail := self._places.get(path)) is not None}, changed

    def _look_at(self, changes: Sequence[Change]) -> set[Tail]:
        """Check the changed names and the files they led to; return the tracked files that changed.

        The cost depends on the number of changes, not of tracked files. A full scan finds the same, and also changes
        that inotify did not report.
        """
        paths, concerned = set[str](), self._adopted.copy()
        for change in changes:
            paths |= {change.path, change.name}
            known = change.key and self._known.found.get(change.key)
            for tail in (self._places.get(change.path), self._places.get(change.name), known):
                if tail:
                    concerned.add(tail)
                    paths |= {tail.path, tail.name}
        found = ScanResult(set(), {})
        unknown: list[UntrackedFile] = []
        hidden = self._hidden & paths
        self._hidden -= hidden
        for path in sorted(paths):
            if self._groups.headers(path) is not None:
                self._find(path, found, unknown)
        came = {change.key: change.path for change in changes if change.key is not None}
        there = cache(names)
        for tail in sorted(concerned - found.statuses.keys(), key=lambda tail: tail.id):
            try:
                self._find_told(tail, came, there, found)
            except OSError as e:
                self._unseen(tail.path, e)
        self._find_all_new(unknown, found)
        self._see_again(hidden)
        self.unsaved |= found.changed
        self._place(found.changed)
        lost = {tail for tail in concerned if tail.fd is None and tail.deleted and tail.grown is not False}
        if not lost:
            return found.changed
        # Data written to a file while it was closed may be in a rotated copy.
        homes = {os.path.dirname(path) for tail in lost for path in (tail.path, tail.real, tail.name)}
        return found.changed | self.scan(homes).changed

    def _find_told(self, tail: Tail, came: Mapping[Key, str], there: Listing, found: ScanResult) -> None:
        """Find a tracked file that has none of the changed names that match a group.

        Raises OSError as `_find_followed` does.
        """
        if not self._known.is_found(tail) or tail.device is None:
            return
        key = tail.device, tail.inode
        now = came.get(key)
        if now is not None and key_of(now) == key:
            there = defaultdict(dict, {os.path.dirname(now): {key: now}}).__getitem__
        elif tail.fd is not None and not os.fstat(tail.fd).st_nlink:
            there = defaultdict[str, dict[Key, str]](dict).__getitem__  # no name leads to it any more
        self._find_followed(key, tail, there, found)
        tail.matched = tail.named and self._groups.headers(tail.path) is not None
