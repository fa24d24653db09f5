"""State of the tracked files: opened, closed, restarted and forgotten."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterable, Iterator
from weakref import WeakValueDictionary

import msgspec

from flafka.plugins import Metrics
from flafka.sources.taildir.copies import Copies
from flafka.sources.taildir.cursors import Cursor, CursorStore
from flafka.sources.taildir.groups import Groups
from flafka.sources.taildir.known import Known
from flafka.sources.taildir.ledger import FileCounters
from flafka.sources.taildir.listing import key_of
from flafka.sources.taildir.opened import OpenFiles
from flafka.sources.taildir.places import Places
from flafka.sources.taildir.tail import ChangedError, Key, Tail
from flafka.sources.troubles import Troubles


class TrackedFiles:
    """Tracked files, by device and inode, and by path."""

    def __init__(
        self,
        groups: Groups,
        saved: Iterable[Cursor],
        troubles: Troubles,
        metrics: Metrics,
        log: logging.Logger,
        *,
        file_header: str | None,
        idle: float,
        room: str,
        stopping: threading.Event,
    ) -> None:
        """Track the files of the stored cursors.

        A file is idle once it has not changed for `idle` seconds. The directory `room` is for the uncompressed
        content of rotated copies; unpacking stops once `stopping` is set.
        """
        self._groups = groups
        self._known = Known(saved, log)
        self._opened = OpenFiles(self.forget, log)
        self._places = Places()
        self._copies = Copies(room, troubles, stopping)
        self._hidden: set[str] = set()
        """Paths that could not be read at the latest scan of their directory."""
        self._adopted: set[Tail] = set()
        """Files that are tracked since the latest scan, but were not part of a scan."""
        self._away: list[Tail] = []
        """Files that were gone, and apparently read to their end, at the latest full scan."""
        self._copied: list[dict[Tail, str]] = [{}, {}]
        """Former state of files now read in a rotated copy, with the path of that copy.

        The first dictionary covers the time since the latest full scan, the second the interval before it.
        """
        self._written: set[Tail] = set()
        """Closed files that, as far as known, were written to."""
        self._latest: WeakValueDictionary[str, Tail] = WeakValueDictionary()
        """Index from the name of a log to the latest file with that name."""
        self.unsaved: set[Tail] = set()
        """Files whose stored cursor is outdated."""
        self.ledger = FileCounters()
        self._file_header = file_header
        self.idle_seconds = idle
        self._troubles = troubles
        self._metrics = metrics
        self._log = log

    def __iter__(self) -> Iterator[Tail]:
        """Iterate over all entries of the position file, including files not found since the start."""
        return iter(self._known)

    @property
    def followed(self) -> list[Tail]:
        """Tracked files that were found since the start."""
        return list(self._known.found.values())

    def held(self, key: Key) -> bool:
        """Return True if the file with that device and inode is open. Thread-safe."""
        tail = self._known.found.get(key)
        return tail is not None and tail.fd is not None

    @property
    def directories(self) -> dict[str, list[str] | None]:
        """Directories to watch, each with the patterns of names that count, or None where every name counts.

        These are the directories of the file groups, and of the targets of symbolic links.
        """
        where = self._groups.directories | {os.path.dirname(t.real) for t in self.followed if t.real != t.path}
        return {directory: self._groups.patterns(directory) for directory in where}

    @property
    def most_waiting(self) -> int:
        """Maximum number of files that the watch may hold open until they are adopted."""
        return max(16, self._opened.most // 2)

    def wanted(self, path: str) -> str | None:
        """Return the name under which the file of that path is tracked, or None where it is not tracked.

        Thread-safe.
        """
        if self._groups.headers(path) is not None:
            return path
        tail = self._places.get(path)
        if tail is None:
            return None
        return tail.path if path == tail.real else tail.name

    def save(self, store: CursorStore, *, final: bool = False) -> None:
        """Save the outdated cursors. Raises OSError as `CursorStore.save` does; they stay outdated then."""
        changed = [tail.cursor() for tail in self.unsaved if not tail.gone]
        store.save(changed, [tail.id for tail in self.unsaved if tail.gone], final=final)
        self.unsaved.clear()

    # --- opening and forgetting

    def open(self, tail: Tail) -> None:
        """Open the file unless it is open; close others where too many are. Raises as `Tail.open` does."""
        try:
            if self._opened.open(tail):
                self.unsaved.add(tail)
        except ChangedError:
            # The file changed while it was closed: its former content may be in a rotated copy.
            self._keep_former(tail)
            raise

    def _put_in_order(self, tail: Tail) -> None:
        """Set the predecessor of a file in its log, so that a rotated log is read in order."""
        if tail.has_left is not None:
            return
        tail.has_left = tail.unpacked or tail.path != tail.name
        other = self._latest.get(tail.name)
        if other is None or other.gone or other is tail:
            self._latest[tail.name] = tail
        elif tail.has_left and not other.has_left:
            # A file may be opened before inotify reports its predecessors: insert them before it.
            while (earlier := other.predecessor) is not None and not earlier.has_left:
                other = earlier
            tail.predecessor, other.predecessor = earlier, tail
        else:
            tail.predecessor = other
            self._latest[tail.name] = tail

    def _hold(self, tail: Tail, fd: int) -> None:
        """Take the open descriptor `fd` for the file. Raises OSError where the file cannot be read."""
        self._opened.hold(tail, fd)
        self.unsaved.add(tail)

    def relieve(self) -> None:
        """Close files where the process is out of descriptors, which other components need too."""
        self._opened.relieve()

    def close(self, tail: Tail) -> None:
        """Close the file, but keep tracking it."""
        self._opened.close(tail)

    def close_all(self) -> None:
        """Close all open files."""
        self._opened.close_all()

    def restart(self, tail: Tail) -> None:
        """Reset the file to offset 0: it was truncated or replaced."""
        self._log.info("%s was truncated or replaced: it is read from its start", tail.path)
        self._metrics.add("FileRestartCount")
        tail.restart()
        self.unsaved.add(tail)
        self._label(tail)

    def _keep_former(self, tail: Tail) -> None:
        """Save the former state of a truncated or replaced file, so that later scans search for its copy."""
        if tail.mark is not None:
            self.unsaved.add(self._known.keep_former(tail))
            tail.grown = False  # `forget` reports lost data for the former state

    def _keep_copied(self, tail: Tail, copy: str) -> None:
        """Save the state of a file before reading continues in `copy`.

        Events of inotify about the file itself may arrive later.
        """
        if not self._known.is_found(tail):
            return  # its path has another file already, or inotify reported nothing about it since the start
        was = Tail.of(msgspec.structs.replace(tail.cursor(), id=self._known.new_id(), proof=None))
        was.grown, was.replaced = tail.grown, tail.replaced
        self._copied[0][was] = copy

    def _tell_copied(self) -> None:
        """Log the files that were written to while closed, and that are now read in a copy.

        The copy may lack what was written. A file waits for one full scan, as inotify may report its writes late.
        """
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
        """Stop tracking the file; log a warning where data may be lost."""
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
        """Set the headers of the file's events.

        They follow from the first name of the file, and so survive a rename.
        """
        headers = self._groups.headers(tail.name)
        tail.headers = dict(self._groups.headers(tail.path) or {}) if headers is None else dict(headers)
        if self._file_header is not None:
            tail.headers[self._file_header] = os.fsencode(tail.name).decode("utf-8", "replace")

    # --- idle files

    def rest(self, now: float) -> None:
        """Close idle files; forget idle files that are gone and were read to their end."""
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
                # Pending inotify events may report growth, or a rename before the deletion: wait for one more scan.
                (gone if tail in self._away else away).append(tail)
        self._away = away
        for tail in gone:
            self.forget(tail)
        self._tell_copied()

    def idle(self, tail: Tail, now: float) -> bool:
        """Return True if the file has not changed for `idle_seconds`, or is a copy's unpacked content."""
        return tail.unpacked or now - tail.changed_at >= self.idle_seconds

    def _asked(self, tail: Tail, where: set[str]) -> bool:
        """Return True if a file that was not found since the start may be in one of these directories."""
        homes = {os.path.dirname(path) for path in (tail.path, tail.real, tail.name)}
        return self._groups.headers(tail.name) is not None and bool(where & homes)

    def _may_return(self, tail: Tail) -> bool:
        """Return True if the file may come back: its file system may not be mounted at present.

        In that case its directory is missing, unreadable, or on another device than before. An open file without a
        name cannot come back.
        """
        if tail.fd is not None and not os.fstat(tail.fd).st_nlink:
            return False
        home = os.path.dirname(tail.real)
        try:
            key = key_of(home)
        except OSError:
            return True
        return home in self._groups.directories if key is None else tail.device not in (None, key[0])
