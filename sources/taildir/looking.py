"""Scans: find tracked files by name, inode or content, through renames, copies and deletions."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import cache
from typing import NamedTuple

from flafka.sources.taildir.copies import Copy, may_be_copy
from flafka.sources.taildir.cursors import Mark
from flafka.sources.taildir.followed import TrackedFiles
from flafka.sources.taildir.listing import files, key_of, names, opened_as
from flafka.sources.taildir.tail import ChangedError, Key, Tail

Listing = Callable[[str], dict[Key, str]]
UntrackedFile = tuple[str, Key, bool]
"""Path and key of a file that is not tracked yet; True if the path is a symbolic link."""


class ScanResult(NamedTuple):
    """Result of a scan."""

    changed: set[Tail]
    """Files that were created, renamed or deleted."""
    statuses: dict[Tail, os.stat_result]
    """Status of every file found, as of the scan."""


class ScannedFiles(TrackedFiles):
    """Tracked files, with the scans that find them in their directories."""

    def _place(self, changed: Iterable[Tail]) -> None:
        """Update the path index for the changed files, and for those adopted since the last scan."""
        for tail in sorted({*changed, *self._adopted}, key=lambda tail: tail.id):
            if self._known.is_found(tail):
                self._places.put(tail)
        self._adopted.clear()

    def scan(self, directories: set[str] | None = None, *, skip_to_end: bool = False) -> ScanResult:
        """Scan all directories of the groups, or those in `directories`."""
        where = self._groups.directories
        if directories is not None:
            where &= directories
        found = ScanResult(set(), {})
        unknown: list[UntrackedFile] = []
        hidden = {path for path in self._hidden if os.path.dirname(path) in where}
        self._hidden -= hidden
        for directory in sorted(where):
            paths = self._groups.paths(directory)
            if paths is None:
                where.discard(directory)  # unreadable: its files do not count as deleted
                continue
            for path in paths:
                self._find(path, found, unknown)
        self._find_renamed(where, found)
        self._find_all_new(unknown, found, skip_to_end=skip_to_end)
        self._find_copies(where, found)
        self._see_again(hidden)
        self.unsaved |= found.changed
        self._place(found.changed)
        return found

    def _find(self, path: str, found: ScanResult, unknown: list[UntrackedFile]) -> None:
        try:
            status = os.lstat(path)
            if link := stat.S_ISLNK(status.st_mode):
                status = os.stat(path)
        except FileNotFoundError:
            return  # deleted since it was listed, or a dangling link
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
                    unknown.append((path, key, link))
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

    def _see_again(self, hidden: set[str]) -> None:
        """Log that unreadable paths can be read again, if this scan could read them."""
        for path in hidden - self._hidden:
            self._troubles.over(path)

    def _unseen(self, path: str, error: OSError) -> None:
        """Log that a path is unreadable; this scan draws no conclusion from it."""
        self._hidden.add(path)
        self._troubles.report(path, f"{path} cannot be read, it is tried again: {error.strerror}")

    def _find_all_new(
        self, unknown: Sequence[UntrackedFile], found: ScanResult, *, skip_to_end: bool = False
    ) -> None:
        missing = self._known.missing() if unknown else []
        for new in unknown:
            self._find_new(new, found, missing, skip_to_end=skip_to_end)

    def _find_new(self, new: UntrackedFile, found: ScanResult, missing: list[Tail], *, skip_to_end: bool) -> None:
        """Track a file that is not tracked yet; continue a lost file if it is the rotated copy of that one."""
        path, key, link = new
        there = opened_as(path, key)
        if there is None:
            return
        fd, status = there
        tail = self._known.found.get(key)
        if tail is not None:  # another name (link) of a file that this scan found
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
                self._keep_copied(tail, path)
                self._move_to(tail, key, path)
            else:
                tail = Tail(path, id=self._known.new_id(), inode=key[1], device=key[0], mark=Mark())
                if link:
                    tail.move(path)
                if skip_to_end and status.st_size:
                    tail.position, tail.mark = status.st_size, None
            self.ledger.opened(key)
            self._follow(key, tail, found, fd)
        self._see(tail, path, status, found)

    def _see(self, tail: Tail, path: str, status: os.stat_result, found: ScanResult) -> None:
        if not tail.named:
            found.changed.add(tail)
        tail.named = tail.matched = True
        tail.deleted = tail.replaced = False
        found.statuses[tail] = status

    def _follow(self, key: Key, tail: Tail, found: ScanResult, fd: int | None = None) -> None:
        self._known.found[key] = tail
        self._put_in_order(tail)
        self._label(tail)
        found.changed.add(tail)
        # Open it at once, so that it can be read after a deletion. A failure is reported by the reader.
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

    def _find_renamed(self, where: set[str], found: ScanResult) -> None:
        """Find files that no matching name led to: by another name in their directories, or deleted."""
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

    def _find_followed(self, key: Key, tail: Tail, there: Listing, found: ScanResult) -> None:
        """Find a tracked file whose name does not match a group any more.

        Raises OSError where its directory is unreadable.
        """
        named = key_of(tail.path) == key
        # Under a name that does not match, the inode may have been reused: require proof of identity.
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

    def _find_saved(self, tail: Tail, there: Listing, found: ScanResult) -> None:
        """Find an entry of the position file that was not found since the start.

        Raises OSError where a file or its directory is unreadable.
        """
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

    def _find_copies(self, where: set[str], found: ScanResult) -> None:
        """Find rotated copies, plain or compressed, of files that are gone."""
        entries = cache(files)
        for tail in self._known.missing():
            home = os.path.dirname(tail.real)
            if not where & {home, os.path.dirname(tail.name)}:
                continue
            with suppress(OSError):  # the next scan tries again
                copy = self._copies.find(tail, entries(home), self._known.found.keys())
                if copy is not None:
                    self._continue(tail, copy, found)

    def _continue(self, tail: Tail, copy: Copy, found: ScanResult) -> None:
        """Continue reading the lost file in its rotated copy."""
        self._keep_copied(tail, copy.path)
        if copy.unpacked is None:
            self._move_to(tail, copy.key, copy.path)
        else:
            self._log.info("%s holds what %s held: it is read from byte %d on", copy.path, tail.path, tail.position)
            tail.unpacked = True
            self._move_to(tail, copy.key, tail.path)
            tail.named, tail.deleted = False, True
        self._follow(copy.key, tail, found, copy.unpacked)

    def _move_to(self, tail: Tail, key: Key, path: str) -> None:
        """Set the key and path of a file to those where it was found."""
        self._known.drop(tail)
        tail.device, tail.inode = key
        tail.seen = None
        tail.named, tail.deleted = True, False
        if path != tail.path:
            self._log.info("reading of %s goes on from byte %d in %s", tail.path, tail.position, path)
            tail.move(path)
