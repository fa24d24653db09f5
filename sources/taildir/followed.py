"""The files that are followed: opened, closed, read again from their start, and forgotten."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterable, Iterator
from weakref import WeakValueDictionary

from plugins import Metrics
from sources.taildir.copies import Copies
from sources.taildir.groups import Groups
from sources.taildir.known import Known
from sources.taildir.ledger import Ledger
from sources.taildir.listing import key_of
from sources.taildir.opened import Opened
from sources.taildir.places import Places
from sources.taildir.tail import ChangedError, Key, Tail
from sources.troubles import Troubles


class Followed:
    """All of them, by device and inode, and by path."""

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
        """`saved` is what the position file names; a file is at rest that has not changed for `idle` seconds.

        `room` is a directory for what compressed copies hold; unpacking ends when `stopping` is set.
        """
        self._groups = groups
        self._known = Known(saved, log)
        self._opened = Opened(self.forget, log)
        self._places = Places()
        self._copies = Copies(room, troubles, stopping)
        self._hidden: set[str] = set()
        """Names that could not be seen at the latest look at their directory."""
        self._adopted: set[Tail] = set()
        """Files that are followed since the latest look, without having been looked for."""
        self._away: list[Tail] = []
        """Files that were gone, and read to their end as far as known, at the latest look everywhere."""
        self._copied: list[dict[Tail, str]] = [{}, {}]
        """What files were that went on in a copy since the latest look everywhere, and before it; and that copy."""
        self._written: set[Tail] = set()
        """Closed files that were written to, as far as known."""
        self._latest: WeakValueDictionary[str, Tail] = WeakValueDictionary()
        """By name of a log, the file that took it over last."""
        self.unsaved: set[Tail] = set()
        """Those whose place or name on disk is not the present one."""
        self.ledger = Ledger()
        self._file_header = file_header
        self.idle_seconds = idle
        self._troubles = troubles
        self._metrics = metrics
        self._log = log

    def __iter__(self) -> Iterator[Tail]:
        """All of them, those not found again included: what the position file names."""
        return iter(self._known)

    @property
    def followed(self) -> list[Tail]:
        """Those that were found."""
        return list(self._known.found.values())

    def held(self, key: Key) -> bool:
        """Whether that file is open. Any thread."""
        tail = self._known.found.get(key)
        return tail is not None and tail.fd is not None

    @property
    def directories(self) -> dict[str, list[str] | None]:
        """Where hints may come from: the groups' directories, and those that symbolic links lead to.

        With the patterns of names that count there; None where others may as well.
        """
        where = self._groups.directories | {os.path.dirname(t.real) for t in self.followed if t.real != t.path}
        return {directory: self._groups.patterns(directory) for directory in where}

    @property
    def most_waiting(self) -> int:
        """So many files may be open besides, until they are adopted."""
        return max(16, self._opened.most // 2)

    def wanted(self, path: str) -> str | None:
        """The name for which the file of that path is followed; None where it is not. Any thread."""
        if self._groups.headers(path) is not None:
            return path
        tail = self._places.get(path)
        if tail is None:
            return None
        return tail.path if path == tail.real else tail.name

    # --- opening and forgetting

    def open(self, tail: Tail) -> None:
        """Open it if it is not; close another where too many are. Raises as `Tail.open` does."""
        try:
            if self._opened.open(tail):
                self.unsaved.add(tail)
        except ChangedError:
            # While nobody looked: what it held may be in a copy.
            self._keep_former(tail)
            raise

    def _put_in_order(self, tail: Tail) -> None:
        """Set which file of the same log is read before this one: a rotation has them follow each other."""
        if tail.has_left is not None:
            return
        tail.has_left = tail.unpacked or tail.path != tail.name
        other = self._latest.get(tail.name)
        if other is None or other.gone or other is tail:
            self._latest[tail.name] = tail
        elif tail.has_left and not other.has_left:
            # Files that were opened before their predecessors were reported have not left yet.
            while (earlier := other.predecessor) is not None and not earlier.has_left:
                other = earlier
            tail.predecessor, other.predecessor = earlier, tail
        else:
            tail.predecessor = other
            self._latest[tail.name] = tail

    def _hold(self, tail: Tail, fd: int) -> None:
        """It is open already."""
        self._opened.hold(tail, fd)
        self.unsaved.add(tail)

    def relieve(self) -> None:
        """Close some where this process can open no more: others need files as well."""
        self._opened.relieve()

    def close(self, tail: Tail) -> None:
        """Close it; it is followed still."""
        self._opened.close(tail)

    def close_all(self) -> None:
        """Close every one."""
        self._opened.close_all()

    def restart(self, tail: Tail) -> None:
        """Read it from its start: it is another file, or was emptied."""
        self._log.info("%s was truncated or replaced: it is read from its start", tail.path)
        self._metrics.add("FileRestartCount")
        tail.restart()
        self.unsaved.add(tail)
        self._label(tail)

    def _keep_former(self, tail: Tail) -> None:
        """Look for a copy of what it held."""
        if tail.mark is not None:
            self.unsaved.add(self._known.keep_former(tail))
            tail.grown = False  # the former tells of what is lost

    def _keep_copied(self, tail: Tail, copy: str) -> None:
        """It goes on in that copy: what the kernel has to say of the file itself may come later."""
        if not self._known.is_found(tail):
            return  # under its path is another one already, or nobody heard of it since the start
        was = Tail(tail.path, inode=tail.inode, device=tail.device, position=tail.position, name=tail.name)
        was.real, was.grown, was.replaced = tail.real, tail.grown, tail.replaced
        self._copied[0][was] = copy

    def _tell_copied(self) -> None:
        """Which files were written to while they were closed, and are read on in a copy: it may have that or not."""
        copied, before = self._copied
        for tail, copy in before.items():
            tail.gone = True
            if tail.grown:
                self._log.warning(
                    "%s was not found again, but its copy %s was: what was written to it after it was copied, if"
                    " anything, is lost",
                    tail.path,
                    copy,
                )
        self._copied = [{}, copied]

    def forget(self, tail: Tail) -> None:
        """Follow it no longer."""
        read = tail.fd is not None
        found = self._known.is_found(tail)
        self.close(tail)
        tail.gone = True
        self.unsaved.add(tail)
        self._troubles.over(tail.path)
        self._known.drop(tail)
        self._places.drop(tail)
        if read or (found and tail.grown is False) or not (tail.inode or tail.grown):
            return
        if self._groups.headers(tail.name) is None:
            return  # its group was taken out of the configuration
        if tail.grown:
            self.ledger.missed.append(tail.path)
        self._log.warning(
            "%s was not found again: what was written to it after byte %d, if anything, is lost",
            tail.path,
            tail.position,
        )

    def _label(self, tail: Tail) -> None:
        """Its headers are those of the name it was first found by: they stay when it is renamed."""
        headers = self._groups.headers(tail.name)
        tail.headers = dict(self._groups.headers(tail.path) or {}) if headers is None else dict(headers)
        if self._file_header is not None:
            tail.headers[self._file_header] = os.fsencode(tail.name).decode("utf-8", "replace")

    # --- those that rest

    def rest(self, now: float) -> None:
        """Close what has been idle, forget what is gone and was read to its end."""
        gone: list[Tail] = []
        away: list[Tail] = []
        for tail in self:
            if not self.idle(tail, now) or tail.held or tail.has_changed():
                continue
            if tail.named or self._may_return(tail):
                self.close(tail)
            elif not self._known.is_found(tail):
                if tail.deleted or not tail.inode or not self._asked(tail, self._groups.directories):
                    gone.append(tail)
            elif tail.fd is None or tail.compressed or os.fstat(tail.fd).st_size <= tail.position:
                # The kernel may have said more of it: that it has grown, or was renamed before it was deleted.
                (gone if tail in self._away else away).append(tail)
        self._away = away
        for tail in gone:
            self.forget(tail)
        self._tell_copied()

    def idle(self, tail: Tail, now: float) -> bool:
        """Whether it has not grown for so long that it probably will not."""
        return tail.unpacked or now - tail.changed_at >= self.idle_seconds

    def _asked(self, tail: Tail, where: set[str]) -> bool:
        """Whether that file, not found since the start, may be in these directories."""
        homes = {os.path.dirname(path) for path in (tail.path, tail.real, tail.name)}
        return self._groups.headers(tail.name) is not None and bool(where & homes)

    def _may_return(self, tail: Tail) -> bool:
        """Whether its directory is not there, cannot be seen, or is on another file system than it was.

        That is so while a file system is not mounted. A file that has no name any more, as it is open, cannot return.
        """
        if tail.fd is not None and not os.fstat(tail.fd).st_nlink:
            return False
        home = os.path.dirname(tail.real)
        try:
            key = key_of(home)
        except OSError:
            return True
        return home in self._groups.directories if key is None else tail.device not in (None, key[0])
