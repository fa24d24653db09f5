"""Which files are followed: found by name, known by inode or by content, through renames, copies and deletions."""

from __future__ import annotations

import logging
import os
import stat
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import cache
from typing import NamedTuple

from plugins import Metrics
from sources.taildir.copies import Copies, Copy, may_be_copy
from sources.taildir.followed import Followed
from sources.taildir.groups import Groups
from sources.taildir.listing import files, key_of, names, opened_as
from sources.taildir.opener import ARRIVED, CREATED, DELETED
from sources.taildir.tail import ChangedError, Key, Mark, Tail
from sources.taildir.watch import Change, Hints
from sources.troubles import Troubles

Listing = Callable[[str], dict[Key, str]]


class Found(NamedTuple):
    """What a look at directories found."""

    changed: set[Tail]
    """Files that came, were renamed or went."""
    statuses: dict[Tail, os.stat_result]
    """Every file there, as it was just then."""


class _Unknown(NamedTuple):
    """A file that nothing is known of yet."""

    path: str
    key: Key
    link: bool
    """Whether that name is a symbolic link to it."""


class Files(Followed):
    """All files that are followed: those that match, and those that did until they were renamed or deleted."""

    def __init__(
        self,
        groups: Groups,
        saved: Iterable[Tail],
        troubles: Troubles,
        metrics: Metrics,
        log: logging.Logger,
        *,
        file_header: str | None,
        idle: float,
        room: str,
        stopping: threading.Event,
    ) -> None:
        """`room` is a directory for what compressed copies hold; unpacking ends when `stopping` is set."""
        super().__init__(groups, saved, troubles, metrics, log, file_header=file_header, idle=idle)
        self._copies = Copies(room, troubles, stopping)
        self._written: set[Tail] = set()
        """Closed files that were written to, as far as known."""
        self._hidden: set[str] = set()
        """Names that could not be seen at the latest look at their directory."""

    def excuse(self, directories: Iterable[str]) -> None:
        """What is there now need not be told of by the kernel: nobody watched when it came."""
        for directory in directories:
            with suppress(OSError):
                self.ledger.excuse(key for key in names(directory) if key not in self._known.found)

    def adopt(self, hints: Hints) -> set[Tail]:
        """Follow what the watch has opened; answer what is new of it. A look has to follow."""
        new = Found(set(), {})
        self._note_growth(hints)
        for change in hints.changes:
            self.ledger.note(change, again=self._is_link(change))
            self._adopt(change, new)
        self.unsaved |= new.changed
        return new.changed

    def _note_growth(self, hints: Hints) -> None:
        """Which closed files were written to: should they be gone before they are opened, that is lost."""
        self._written = {tail for tail in self._written if tail.grown and not tail.gone}
        known: dict[str, set[Tail]] = {}
        for tail in (*self._away, *self._written):
            for path in (tail.path, tail.real):
                known.setdefault(path, set()).add(tail)

        def closed(path: str) -> Iterator[Tail]:
            present = self._by_path.get(path)
            for tail in known.get(path, set()) | ({present} if present is not None else set()):
                if tail.fd is None:
                    yield tail

        for change in hints.changes:
            if change.kind in (ARRIVED, CREATED):
                for tail in closed(change.path):
                    if change.key != (tail.device, tail.inode):
                        tail.replaced = True
                        if tail.grown:
                            tail.grown = None  # names are told of apart from writes, and may be later
        for path in hints.grown:
            for tail in closed(path):
                if not tail.grown:
                    tail.grown = None if tail.replaced else True
                    self._written.add(tail)
        for change in hints.changes:
            if change.kind == DELETED:  # what is written under that name from now on may be another file's
                for tail in closed(change.path):
                    tail.replaced = True

    def _index(self) -> None:
        """Find files by their paths; of several that had the same one, that which is there now."""
        found: dict[str, Tail] = {}
        for named in (False, True):
            for tail in self._known.found.values():
                if tail.named is named:
                    found[tail.path] = found[tail.real] = tail
        for tail in self._known.found.values():
            if found[tail.path] is not tail or found[tail.real] is not tail:
                tail.replaced = True
        self._by_path = found

    def _is_link(self, change: Change) -> bool:
        """Whether that is another name of a file that is followed."""
        if change.key not in self._known.found:
            return False
        try:
            status = os.lstat(change.path)
        except OSError:
            return False
        return stat.S_ISLNK(status.st_mode) or status.st_nlink > 1

    def _adopt(self, change: Change, new: Found) -> None:
        if change.key is None or change.opened is None or (fd := change.opened.take()) is None:
            return
        tail = self._known.found.get(change.key)
        if tail is not None and tail.fd is not None:
            os.close(fd)
            return
        try:
            if tail is not None and not tail.is_in(fd, change.path):
                self._keep_former(tail)
                self.forget(tail)  # its inode was used again
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
            tail = Tail(change.path, inode=inode, device=device, mark=Mark(), name=change.name)
            if os.path.realpath(change.name) == change.path != change.name:
                tail.path = change.name  # a link leads there
        self.ledger.opened(change.key)
        self._follow(change.key, tail, new, fd)

    def scan(self, directories: set[str] | None = None, *, skip_to_end: bool = False) -> Found:
        """Look at all directories, or at these."""
        where = self._groups.directories
        if directories is not None:
            where &= directories
        found = Found(set(), {})
        unknown: list[_Unknown] = []
        hidden = {path for path in self._hidden if os.path.dirname(path) in where}
        self._hidden -= hidden
        for directory in sorted(where):
            paths = self._groups.paths(directory)
            if paths is None:
                where.discard(directory)  # nothing can be concluded of what is there
                continue
            for path in paths:
                self._find(path, found, unknown)
        self._find_renamed(where, found)
        missing = self._known.missing() if unknown else []
        for new in unknown:
            self._find_new(new, found, missing, skip_to_end=skip_to_end)
        self._find_copies(where, found)
        for path in hidden - self._hidden:
            self._troubles.over(path)
        self.unsaved |= found.changed
        if found.changed:
            self._index()
        return found

    def hinted(self, hints: Hints) -> tuple[set[Tail], set[Tail]]:
        """The files that hints say have grown, and those that came, were renamed or went."""
        adopted = self.adopt(hints)
        directories = set()
        for path in {name for change in hints.changes for name in (change.path, change.name)}:
            tail = self._by_path.get(path)
            if tail is not None:
                directories |= {os.path.dirname(name) for name in (path, tail.path, tail.name)}
            elif self._groups.headers(path) is not None:
                directories.add(os.path.dirname(path))
        changed = adopted | (self.scan(directories).changed if directories else set())
        return {self._by_path[path] for path in hints.grown if path in self._by_path}, changed

    def _find(self, path: str, found: Found, unknown: list[_Unknown]) -> None:
        try:
            status = os.lstat(path)
            if link := stat.S_ISLNK(status.st_mode):
                status = os.stat(path)
        except FileNotFoundError:
            return  # gone again, or a link that leads nowhere yet
        except OSError as e:
            self._unseen(path, e)
            return
        if not stat.S_ISREG(status.st_mode):
            return
        key = (status.st_dev, status.st_ino)
        tail = self._known.found.get(key)
        try:
            if tail is None:
                tail = self._known.recall(key, path)
                if tail is None:
                    unknown.append(_Unknown(path, key, link))
                    return
                self.ledger.opened(key)
                self._follow(key, tail, found)
            elif tail.path != path and tail not in found.statuses and key_of(tail.path) != key:
                tail.move(path)
                found.changed.add(tail)
        except OSError as e:
            self._unseen(path, e)
            return
        self._see(tail, path, status, found)

    def _unseen(self, path: str, error: OSError) -> None:
        """Nothing is concluded of that name at this look."""
        self._hidden.add(path)
        self._troubles.report(path, f"{path} cannot be read, it is tried again: {error.strerror}")

    def _find_new(self, new: _Unknown, found: Found, missing: list[Tail], *, skip_to_end: bool) -> None:
        """One that nothing is known of yet, unless it is the copy of one that is gone."""
        path, key, link = new
        there = opened_as(path, key)
        if there is None:
            return
        fd, status = there
        tail = self._known.found.get(key)
        if tail is not None:  # by another of its names
            if fd is not None:
                os.close(fd)
        else:
            try:
                tail = next((t for t in missing if may_be_copy(t, path) and t.is_at(path, fd)), None)
            except OSError as e:
                self._unseen(path, e)
                if fd is not None:
                    os.close(fd)
                return
            if tail is not None:
                missing.remove(tail)
                self._move_to(tail, key, path)
            else:
                tail = Tail(path, inode=key[1], device=key[0], mark=Mark())
                if link:
                    tail.move(path)
                if skip_to_end and status.st_size:
                    tail.position, tail.mark = status.st_size, None
            self.ledger.opened(key)
            self._follow(key, tail, found, fd)
        self._see(tail, path, status, found)

    def _see(self, tail: Tail, path: str, status: os.stat_result, found: Found) -> None:
        if not tail.named:
            found.changed.add(tail)
        tail.named = tail.matched = True
        tail.deleted = tail.replaced = False
        found.statuses[tail] = status

    def _follow(self, key: Key, tail: Tail, found: Found, fd: int | None = None) -> None:
        self._known.found[key] = tail
        self._label(tail)
        found.changed.add(tail)
        # At once: an open file can be read even when it is deleted. If it cannot be opened, reading it will say so.
        if fd is not None:
            try:
                self._hold(tail, fd)
            except OSError:
                os.close(fd)
        else:
            try:
                self.open(tail)
            except ChangedError:
                self.restart(tail)
                with suppress(OSError):
                    self.open(tail)
            except OSError:
                pass

    def _find_renamed(self, where: set[str], found: Found) -> None:
        """Those not found by a matching name: by any other name where they were, or by none."""
        there = cache(names)
        for key, tail in self._known.found.items():
            if tail in found.statuses or not where & {os.path.dirname(tail.path), os.path.dirname(tail.name)}:
                continue
            try:
                self._find_followed(key, tail, there, found)
            except OSError as e:
                self._unseen(tail.path, e)
        for tail in self._known.not_found():
            if self._asked(tail, where):
                try:
                    self._find_saved(tail, there, found)
                except OSError as e:
                    self._unseen(tail.path, e)

    def _find_followed(self, key: Key, tail: Tail, there: Listing, found: Found) -> None:
        """One that was found before; no pattern matches the name it had. Raises OSError where that cannot be seen."""
        named = key_of(tail.path) == key
        # Under a name that does not match, it must be proved: another file may have taken the inode.
        sure = tail.fd is not None or tail.provable
        for home in (os.path.dirname(tail.path), os.path.dirname(tail.real)):
            if sure and not named and key in there(home):
                tail.move(there(home)[key])
                found.changed.add(tail)
                named = True
        tail.matched = False
        deleted = not named and not self._may_return(tail)
        if (named, deleted) != (tail.named, tail.deleted):
            tail.named, tail.deleted = named, deleted
            found.changed.add(tail)

    def _find_saved(self, tail: Tail, there: Listing, found: Found) -> None:
        """One that was not found since the start. Raises OSError where a file, or its directory, cannot be seen."""
        homes = {os.path.dirname(tail.path), os.path.dirname(tail.real)} if tail.provable else set()
        for key, path in (place for home in homes for place in there(home).items()):
            if key[1] == tail.inode and key not in self._known.found and tail.is_at(path):
                self._known.tell_unproved(tail, path)
                self._move_to(tail, key, path)
                self._follow(key, tail, found)
                return
        if not tail.deleted and not self._may_return(tail):
            tail.deleted = True
            found.changed.add(tail)

    def _find_copies(self, where: set[str], found: Found) -> None:
        """What the files held that are gone: in a copy under a rotated name, compressed or not."""
        entries = cache(files)
        for tail in self._known.missing():
            home = os.path.dirname(tail.real)
            if not where & {home, os.path.dirname(tail.name)}:
                continue
            with suppress(OSError):  # another look may see what is there
                copy = self._copies.find(tail, entries(home), self._known.found.keys())
                if copy is not None:
                    self._continue(tail, copy, found)

    def _continue(self, tail: Tail, copy: Copy, found: Found) -> None:
        """Read on in that copy."""
        if copy.unpacked is None:
            self._move_to(tail, copy.key, copy.path)
        else:
            self._log.info("%s holds what %s held: it is read from byte %d on", copy.path, tail.path, tail.position)
            tail.unpacked = True
            self._move_to(tail, copy.key, tail.path)
            tail.named, tail.deleted = False, True
        self._follow(copy.key, tail, found, copy.unpacked)

    def _move_to(self, tail: Tail, key: Key, path: str) -> None:
        """It was found there."""
        self._known.drop(tail)
        tail.device, tail.inode = key
        tail.seen = None
        tail.named, tail.deleted = True, False
        if path != tail.path:
            self._log.info("reading of %s goes on from byte %d in %s", tail.path, tail.position, path)
            tail.move(path)
