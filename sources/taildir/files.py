"""Which files are followed: found by name, known by inode, through renames and deletions."""

# Paths are text here: thousands are looked at in each pass, and an object for each would double its cost.
# ruff: noqa: PTH116, PTH120

from __future__ import annotations

import logging
import os
import resource
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import NamedTuple

from sources.taildir.groups import Groups
from sources.taildir.tail import ChangedError, Key, Mark, Tail
from sources.taildir.troubles import Troubles
from sources.taildir.watch import Hints


class Found(NamedTuple):
    """What a look at directories found."""

    changed: set[Tail]
    """Files that came, were renamed or went."""
    statuses: dict[Tail, os.stat_result]
    """Every file there, as it was just then."""


class Files:
    """All files that are followed: those that match, and those that did until they were renamed or deleted."""

    def __init__(
        self,
        groups: Groups,
        saved: Iterable[Tail],
        troubles: Troubles,
        log: logging.Logger,
        *,
        file_header: str | None,
        idle: float,
    ) -> None:
        self._groups = groups
        self._tails: dict[Key, Tail] = {}
        self._saved: dict[int, list[Tail]] = {}
        """By inode, files of the position file that were not found since the start."""
        for tail in saved:
            self._saved.setdefault(tail.inode, []).append(tail)
        self._by_path: dict[str, Tail] = {}
        self.unsaved: set[Tail] = set()
        """Those whose place or name on disk is not the present one."""
        self._open: dict[Tail, None] = {}
        """In order of last use."""
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._most_open = 4096 if most == resource.RLIM_INFINITY else max(16, min(most // 2, 4096))
        self._file_header = file_header
        self._idle = idle
        self._troubles = troubles
        self._log = log

    def __iter__(self) -> Iterator[Tail]:
        """All of them, those not found again included: what the position file names."""
        yield from self._tails.values()
        for tails in self._saved.values():
            yield from tails

    @property
    def followed(self) -> list[Tail]:
        """Those that were found."""
        return list(self._tails.values())

    @property
    def directories(self) -> set[str]:
        """Where hints may come from: the groups' directories, and those that symbolic links lead to."""
        return self._groups.directories | {os.path.dirname(t.real) for t in self._tails.values() if t.real != t.path}

    # --- finding

    def scan(self, directories: set[str] | None = None, *, skip_to_end: bool = False) -> Found:
        """Look at all directories, or at these."""
        where = self._groups.directories
        if directories is not None:
            where &= directories
        found = Found(set(), {})
        for directory in where:
            for path in self._groups.paths(directory):
                self._find(path, found, skip_to_end=skip_to_end)
        self._find_renamed(where, found)
        if found.changed:
            self.unsaved |= found.changed
            self._by_path = {path: tail for tail in self._tails.values() for path in (tail.real, tail.path)}
        return found

    def hinted(self, hints: Hints) -> tuple[set[Tail], set[Tail]]:
        """The files that hints say have grown, and those that came, were renamed or went."""
        directories = set()
        for path in hints.renamed:
            tail = self._by_path.get(path)
            if tail is not None:
                directories |= {os.path.dirname(name) for name in (path, tail.path, tail.name)}
            elif self._groups.headers(path) is not None:
                directories.add(os.path.dirname(path))
        changed = self.scan(directories).changed if directories else set()
        return {self._by_path[path] for path in hints.grown if path in self._by_path}, changed

    def _label(self, tail: Tail) -> None:
        """Its headers are those of the name it was first found by: they stay when it is renamed."""
        headers = self._groups.headers(tail.name)
        tail.headers = dict(self._groups.headers(tail.path) or {}) if headers is None else dict(headers)
        if self._file_header is not None:
            tail.headers[self._file_header] = os.fsencode(tail.name).decode("utf-8", "replace")

    def _find(self, path: str, found: Found, *, skip_to_end: bool) -> None:
        try:
            status = os.stat(path)
        except FileNotFoundError:
            return  # gone again, or a link that leads nowhere yet
        except OSError as e:
            self._troubles.report(path, f"{path} cannot be read, it is tried again: {e.strerror}")
            return
        if not stat.S_ISREG(status.st_mode):
            return
        key = (status.st_dev, status.st_ino)
        tail = self._tails.get(key)
        if tail is None:
            tail = self._recall(key, path)
            if tail is None:
                tail = Tail(path, inode=key[1], device=key[0], mark=Mark())
                tail.move(path)
                if skip_to_end and status.st_size:
                    tail.position, tail.mark = status.st_size, None
            self._follow(key, tail, found)
        elif tail.path != path and tail not in found.statuses and key_of(tail.path) != key:
            tail.move(path)
            found.changed.add(tail)
        if not tail.named:
            found.changed.add(tail)
        tail.named = tail.matched = True
        found.statuses[tail] = status

    def _follow(self, key: Key, tail: Tail, found: Found) -> None:
        self._tails[key] = tail
        self._label(tail)
        found.changed.add(tail)
        # At once: an open file can be read even when it is deleted. If it cannot be opened, reading it will say so.
        with suppress(OSError, ChangedError):
            self.open(tail)

    def _recall(self, key: Key, path: str) -> Tail | None:
        """The file of the position file that this is. Its content decides, unless name, device and inode agree."""
        device, inode = key
        known = self._saved.get(inode, [])
        for tail in sorted(known, key=lambda t: (t.path != path, t.device not in (None, device))):
            if (tail.path == path and tail.device in (None, device)) or _is_in(tail, path):
                known.remove(tail)
                tail.device = device
                if tail.path != path:
                    tail.move(path)
                return tail
        return None

    def _find_renamed(self, where: set[str], found: Found) -> None:
        """Those not found by a matching name: by any other name where they were, or by none."""
        listed: dict[str, dict[Key, str]] = {}

        def names(directory: str) -> dict[Key, str]:
            if directory not in listed:
                listed[directory] = _names(directory)
            return listed[directory]

        for key, tail in self._tails.items():
            if tail in found.statuses or not where & {os.path.dirname(tail.path), os.path.dirname(tail.name)}:
                continue
            tail.matched = False
            named = key_of(tail.path) == key
            # Under a name that does not match, it must be proved: another file may have taken the inode.
            sure = tail.fd is not None or tail.provable
            for home in (os.path.dirname(tail.path), os.path.dirname(tail.real)):
                if sure and not named and key in names(home):
                    tail.move(names(home)[key])
                    found.changed.add(tail)
                    named = True
            if named != tail.named:
                tail.named = named
                found.changed.add(tail)
        for tail in [tail for tails in self._saved.values() for tail in tails]:
            homes = {os.path.dirname(tail.path), os.path.dirname(tail.real)}
            asked = self._groups.headers(tail.name) is not None and where & {*homes, os.path.dirname(tail.name)}
            if not asked or not tail.provable:
                continue
            places = (place for home in homes for place in names(home).items())
            for key, path in places:
                if key[1] == tail.inode and key not in self._tails and _is_in(tail, path):
                    self._saved[tail.inode].remove(tail)
                    tail.device, tail.named = key[0], True
                    tail.move(path)
                    self._follow(key, tail, found)
                    break

    # --- letting go

    def rest(self, now: float) -> None:
        """Close what has been idle, forget what is gone and was read to its end."""
        gone = []
        for tail in self:
            if not self.idle(tail, now) or tail.held or (tail.fd is not None and tail.seen is None):
                continue
            if tail.named:
                self.close(tail)
            elif self._tails.get((tail.device or 0, tail.inode)) is not tail:
                if not self._may_return(tail):
                    gone.append(tail)
            elif tail.fd is None or tail.compressed or os.fstat(tail.fd).st_size <= tail.position:
                gone.append(tail)
        for tail in gone:
            self.forget(tail)

    def idle(self, tail: Tail, now: float) -> bool:
        """Whether it has not grown for so long that it probably will not."""
        return now - tail.changed_at >= self._idle

    def _may_return(self, tail: Tail) -> bool:
        """Whether its directory is missing, or is on another file system than it was: not mounted yet, perhaps."""
        home = os.path.dirname(tail.real)
        key = key_of(home)
        return home in self._groups.directories if key is None else tail.device not in (None, key[0])

    def forget(self, tail: Tail) -> None:
        """Follow it no longer."""
        self.close(tail)
        tail.gone = True
        self.unsaved.add(tail)
        self._troubles.over(tail.path)
        key = (tail.device or 0, tail.inode)
        if self._tails.get(key) is tail:
            del self._tails[key]
            self._by_path = {path: other for path, other in self._by_path.items() if other is not tail}
            return
        self._saved[tail.inode].remove(tail)
        if self._groups.headers(tail.name) is None:
            return  # its group was taken out of the configuration
        self._log.warning(
            "%s (inode %d) was not found again; of what was written to it while nobody read it, anything behind"
            " byte %d is lost",
            tail.path,
            tail.inode,
            tail.position,
        )

    def restart(self, tail: Tail) -> None:
        """Read it from its start: it is another file, or was emptied."""
        self.close(tail)
        tail.restart()
        self.unsaved.add(tail)
        self._label(tail)

    def open(self, tail: Tail) -> None:
        """Open it if it is not; close another where too many are. Raises as `Tail.open` does."""
        if tail.fd is None:
            # One that has no name any more could never be opened again.
            while len(self._open) >= self._most_open and (old := next((t for t in self._open if t.named), None)):
                self.close(old)
            known = tail.mark
            tail.open()
            if tail.mark is not known:
                self.unsaved.add(tail)
        self._open.pop(tail, None)
        self._open[tail] = None

    def close(self, tail: Tail) -> None:
        """Close it; it is followed still."""
        self._open.pop(tail, None)
        tail.close()

    def close_all(self) -> None:
        """Close every one."""
        for tail in list(self._open):
            self.close(tail)


def key_of(path: str) -> Key | None:
    """Device and inode of what is there; None where there is nothing that can be seen."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _names(directory: str) -> dict[Key, str]:
    """Every regular file there."""
    names = {}
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                if entry.is_file() and (key := key_of(entry.path)):
                    names[key] = entry.path
    except OSError:
        pass
    return names


def _is_in(tail: Tail, path: str) -> bool:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return tail.is_in(fd, path)
    finally:
        os.close(fd)
