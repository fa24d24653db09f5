"""File table: tracked files by device and inode, and by path, open or closed."""

from __future__ import annotations

import itertools
import logging
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from weakref import WeakValueDictionary

import msgspec

from flafka.plugins import Metrics
from flafka.sources.descriptors import EXHAUSTED_ERRNOS, descriptors_exhausted, max_descriptors
from flafka.sources.file_errors import FileErrors
from flafka.sources.taildir.cursors import CursorStore, FileCheckpoint, FileCursor
from flafka.sources.taildir.groups import FileGroups
from flafka.sources.taildir.opener import CREATED, DELETED, MOVED_TO
from flafka.sources.taildir.tail import ChangedError, FileLocation, Growth, Key, Tail
from flafka.sources.taildir.watcher import FileCounters, Hints


class FileTable:
    """Tracked files that were found, by device and inode, and files of stored cursors that were not found yet."""

    def __init__(
        self,
        cursors: Iterable[FileCursor],
        groups: FileGroups,
        counters: FileCounters,
        file_errors: FileErrors,
        metrics: Metrics,
        log: logging.Logger,
        *,
        file_header: str | None,
    ) -> None:
        """Begin with the files of the stored cursors, none of which counts as found yet.

        `file_header` names the header for the first path of a file; None sets no such header.
        """
        self._groups, self._counters, self._file_header = groups, counters, file_header
        self._file_errors, self._metrics, self._log = file_errors, metrics, log
        self.by_key: dict[Key, Tail] = {}
        """Tracked files that were found since the start."""
        self._unmatched: dict[int, list[Tail]] = {}
        """Files of stored cursors that were not found since the start, by inode.

        Inode 0 has the former states of truncated or replaced files.
        """
        last = 0
        for cursor in cursors:
            last = max(last, cursor.id)
            self._add_unmatched(Tail.of(cursor))
        self._ids = itertools.count(last + 1)
        self._paths = PathIndex()
        self._opened = OpenFileCache(self.forget, log)
        self._latest: WeakValueDictionary[str, Tail] = WeakValueDictionary()
        """Index from the name of a log to the latest file with that name."""
        self.unsaved: set[Tail] = set()
        """Files whose stored cursor is outdated."""

    def __iter__(self) -> Iterator[Tail]:
        """Iterate over all files that have a cursor, including files not found since the start."""
        yield from self.by_key.values()
        for tails in self._unmatched.values():
            yield from tails

    @property
    def tracked(self) -> list[Tail]:
        """Tracked files that were found since the start."""
        return list(self.by_key.values())

    def is_tracked(self, tail: Tail) -> bool:
        """Return True if the file was found since the start, and was not forgotten since."""
        return self.by_key.get(tail.key) is tail

    def is_open(self, key: Key) -> bool:
        """Return True if the file with that device and inode is open. Thread-safe."""
        tail = self.by_key.get(key)
        return tail is not None and tail.fd is not None

    def find_by_path(self, path: str) -> Tail | None:
        """Return the file that has, or last had, that path; None where there is none. Thread-safe."""
        return self._paths.get(path)

    @property
    def max_untracked_open(self) -> int:
        """Maximum number of files that the watcher may hold open until they are tracked."""
        return max(16, self._opened.max_open // 2)

    def save(self, store: CursorStore, *, final: bool = False) -> None:
        """Store the cursors in `unsaved`, and remove the cursors of forgotten files.

        `final` marks the last call. Raises OSError; `unsaved` is unchanged then.
        """
        removed = {tail for tail in self.unsaved if tail.location is FileLocation.FORGOTTEN}
        changed = self.unsaved - removed
        store.save([tail.cursor() for tail in changed], [tail.id for tail in removed], final=final)
        self.unsaved.clear()

    # --- tracking and forgetting

    def new_id(self) -> int:
        """Return an ID for a new cursor, greater than any ID before."""
        return next(self._ids)

    def create(self, path: str, key: Key, *, name: str = "") -> Tail:
        """Return a new file, to be read from its start; `name` is its first path if that is not `path`.

        `track` makes it a tracked file.
        """
        device, inode = key
        return Tail(path, id=self.new_id(), inode=inode, device=device, checkpoint=FileCheckpoint(), name=name)

    def track(self, key: Key, tail: Tail, fd: int | None = None) -> None:
        """Track a file from now on; open it, or take ownership of its open descriptor `fd`.

        A file that cannot be opened is tracked all the same. A file that was truncated or replaced is read from its
        start.
        """
        self.by_key[key] = tail
        self._set_predecessor(tail)
        self._set_headers(tail)
        # Open the file at once, so that it can be read after a deletion. The reader reports a failure.
        if fd is not None:
            try:
                self.attach(tail, fd)
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

    def index_paths(self, tails: Iterable[Tail]) -> None:
        """Update the path index for files whose path or location changed; files that are not tracked are skipped."""
        for tail in sorted(tails, key=lambda tail: tail.id):
            if self.is_tracked(tail):
                self._paths.put(tail)

    def relocate(self, tail: Tail, key: Key, path: str) -> None:
        """Set the key and path under which a file was found; it is not tracked until `track` is called again.

        A change of the path is logged.
        """
        self._remove(tail)
        tail.device, tail.inode = key
        tail.checked_state = None
        tail.location = FileLocation.RENAMED
        if path != tail.path:
            self._log.info("reading of %s continues at byte %d in %s", tail.path, tail.offset, path)
            tail.move(path)

    def _remove(self, tail: Tail) -> None:
        """Remove the file from the tracked files, or from the files of stored cursors."""
        if self.is_tracked(tail):
            del self.by_key[tail.key]
        elif tail in (unmatched := self._unmatched.get(tail.inode, [])):
            unmatched.remove(tail)

    def forget(self, tail: Tail) -> None:
        """Close the file and stop tracking it; the next `save` removes its cursor.

        Log a warning if the file was closed and may have grown, or was not found since the start. A file that has
        certainly grown also counts as missed. There is no warning if no group has the file's name any more.
        """
        was_open = tail.fd is not None
        was_tracked = self.is_tracked(tail)
        self.close(tail)
        tail.location = FileLocation.FORGOTTEN
        self.unsaved.add(tail)
        self._file_errors.clear(tail.path)
        self._remove(tail)
        self._paths.remove(tail)
        if was_open or (was_tracked and tail.growth is Growth.NONE):
            return
        if not tail.inode and tail.growth is not Growth.WRITTEN:
            return
        if self._groups.headers(tail.name) is None:
            return  # the configuration no longer has its group
        if tail.growth is Growth.WRITTEN:
            self._counters.missed.append(tail.path)
        self._log.warning(
            "%s was not found again: what was written to it after byte %d, if anything, is lost",
            tail.path,
            tail.offset,
        )

    def _set_predecessor(self, tail: Tail) -> None:
        """Set the predecessor of a file in its log, so that a rotated log is read in order."""
        if tail.was_renamed_away is not None:
            return
        tail.was_renamed_away = tail.is_unpacked_copy or tail.path != tail.name
        other = self._latest.get(tail.name)
        if other is None or other.location is FileLocation.FORGOTTEN or other is tail:
            self._latest[tail.name] = tail
        elif tail.was_renamed_away and not other.was_renamed_away:
            # A file may be opened before inotify reports its predecessors: insert them before it.
            while (earlier := other.predecessor) is not None and not earlier.was_renamed_away:
                other = earlier
            tail.predecessor, other.predecessor = earlier, tail
        else:
            tail.predecessor = other
            self._latest[tail.name] = tail

    def _set_headers(self, tail: Tail) -> None:
        """Set the headers of the file's events by the first name of the file, so that they survive a rename.

        The present path decides if the first name matches no group. The file header has the first name.
        """
        headers = self._groups.headers(tail.name)
        tail.headers = dict(self._groups.headers(tail.path) or {}) if headers is None else dict(headers)
        if self._file_header is not None:
            tail.headers[self._file_header] = os.fsencode(tail.name).decode("utf-8", "replace")

    # --- files of stored cursors

    def match_stored_cursor(self, key: Key, path: str, fd: int | None = None) -> Tail | None:
        """Return the tail whose stored cursor matches the file at `path`, and remove it from the unmatched ones.

        None where no cursor matches. The content decides, unless path and device agree with the only cursor of the
        inode. `fd` is a descriptor of the file, if it is open already. Raises OSError where its content cannot be
        read.
        """
        device, inode = key
        unmatched = self._unmatched.get(inode, [])
        # Newer cursors first: a newer one exists because the inode of the older one was reused.
        ranked = sorted(unmatched, key=lambda t: (t.path != path, t.device not in (None, device), -t.id))
        # `Tail.open` compares the content, `Tail.attach` does not: compare it here if the file is open.
        is_sure = fd is None and bool(ranked) and ranked[0].path == path and ranked[0].device in (None, device)
        tail = ranked[0] if is_sure else None
        if tail is None or len(ranked) > 1:
            tail = next((t for t in ranked if t.matches_path(path, fd)), tail)
        if tail is not None:
            self.warn_unverified(tail, path)
            unmatched.remove(tail)
            tail.device = device
            if tail.path != path:
                tail.move(path)
        return tail

    def unmatched(self) -> list[Tail]:
        """Return a new list of the files of stored cursors that were not found since the start.

        Former states of truncated or replaced files are left out.
        """
        return [tail for inode, tails in self._unmatched.items() if inode for tail in tails]

    def lost_files(self) -> list[Tail]:
        """Return closed files that are deleted, and former states of truncated or replaced files.

        A file without fingerprints of known content is left out, as no copy of it could be identified.
        """
        closed = itertools.chain(*self._unmatched.values(), (t for t in self.by_key.values() if t.fd is None))
        deleted = (tail for tail in closed if tail.location is FileLocation.DELETED or not tail.inode)
        return [tail for tail in deleted if tail.has_known_content and tail.checkpoint is not None]

    def warn_unverified(self, tail: Tail, path: str) -> None:
        """Log a warning if the file at `path` is renamed, read in part, and identified without a fingerprint.

        Flume's offsets have none: only the inode, and a line that ends at the offset, agree.
        """
        if tail.checkpoint is None and tail.path != path and tail.offset:
            self._log.warning(
                "%s is read from byte %d on: the position file has that for its inode, under the name %s;"
                " nothing else proves that it is the same file",
                path,
                tail.offset,
                tail.path,
            )

    def _add_unmatched(self, tail: Tail) -> None:
        """Add the file of a stored cursor, or a former state, to be searched for."""
        self._unmatched.setdefault(tail.inode, []).append(tail)

    # --- opening and closing

    def open(self, tail: Tail) -> None:
        """Open the file unless it is open; close less recently used files where too many are open.

        Raises ChangedError where the content that was read is no longer in the file, whose former state is kept then.
        Raises OSError where the file cannot be opened.
        """
        try:
            if self._opened.open(tail):
                self.unsaved.add(tail)
        except ChangedError:
            # The file changed while it was closed: its former content may be in a rotated copy.
            self.save_former_state(tail)
            raise

    def attach(self, tail: Tail, fd: int) -> None:
        """Take ownership of the open descriptor `fd` of the file. Raises OSError where the file cannot be read."""
        self._opened.attach(tail, fd)
        self.unsaved.add(tail)

    def close(self, tail: Tail) -> None:
        """Close the file, but keep tracking it."""
        self._opened.close(tail)

    def close_all(self) -> None:
        """Close all open files."""
        self._opened.close_all()

    def release_descriptors(self) -> None:
        """Close files until the process can open one more, as other components need descriptors, too."""
        self._opened.release_descriptors()

    def restart(self, tail: Tail) -> None:
        """Reset the file to offset 0, and log and count that: it was truncated or replaced."""
        self._log.info("%s was truncated or replaced: it is read from its start", tail.path)
        self._metrics.add("FileRestartCount")
        tail.restart()
        self.unsaved.add(tail)
        self._set_headers(tail)

    def save_former_state(self, tail: Tail) -> None:
        """Keep the former state of a truncated or replaced file, so that later scans search for its copy.

        A file without a checkpoint has no such state, as its copy could not be identified.
        """
        if tail.checkpoint is not None:
            former = tail.former_state(self.new_id())
            self._add_unmatched(former)
            self.unsaved.add(former)
            tail.growth = Growth.NONE  # `forget` reports lost data for the former state


class ClosedFiles:
    """Growth of closed files, which is lost if a file is deleted before it is opened again."""

    def __init__(self, table: FileTable, log: logging.Logger) -> None:
        self._table, self._log = table, log
        self.deleted_before: list[Tail] = []
        """Files that were deleted, and apparently read to their end, at the latest full scan."""
        self._copied: list[dict[Tail, str]] = [{}, {}]
        """Former state of files now read in a rotated copy, with the path of that copy.

        The first dictionary covers the time since the latest full scan, the second the interval before it.
        """
        self._written: set[Tail] = set()
        """Closed files that, as far as known, were written to."""

    def mark_written(self, hints: Hints) -> None:
        """Set the growth of closed files that were written to.

        The growth is uncertain if another file took the path before. A file that grew and is deleted before it is
        opened again has lost data, which `FileTable.forget` reports.
        """
        self._written = {
            tail
            for tail in self._written
            if tail.growth is Growth.WRITTEN and tail.location is not FileLocation.FORGOTTEN
        }
        closed = self._by_path()
        for change in hints.changes:
            for tail in closed(change.path) if change.kind in (MOVED_TO, CREATED) else ():
                if change.key != (tail.device, tail.inode):
                    tail.replaced = True
                    if tail.growth is Growth.WRITTEN:
                        # Names and writes come from two inotify instances, in no common order.
                        tail.growth = Growth.UNCERTAIN
        for tail in [tail for path in hints.grown for tail in closed(path) if tail.growth is not Growth.WRITTEN]:
            tail.growth = Growth.UNCERTAIN if tail.replaced else Growth.WRITTEN
            self._written.add(tail)
        for change in hints.changes:
            for tail in closed(change.path) if change.kind == DELETED else ():
                tail.replaced = True  # later writes under that name may be to another file

    def _by_path(self) -> Callable[[str], list[Tail]]:
        """Return a function from a path to the closed files that have, or last had, that path."""
        known = defaultdict[str, set[Tail | None]](set)
        copied, before = self._copied
        for tail in (*self.deleted_before, *self._written, *copied, *before):
            for path in (tail.path, tail.real):
                known[path].add(tail)

        def closed(path: str) -> list[Tail]:
            tail, others = self._table.find_by_path(path), known.get(path)
            if others is None:
                return [tail] if tail is not None and tail.fd is None else []
            return [t for t in others | {tail} if t is not None and t.fd is None]

        return closed

    def keep_copied(self, tail: Tail, copy: str) -> None:
        """Keep the state of a file before reading continues in `copy`, for `report_copied`.

        Events of inotify about the file itself may arrive later. A file that was not found since the start has no
        such events, and is skipped.
        """
        if not self._table.is_tracked(tail):
            return  # its path has another file already, or inotify reported nothing about it since the start
        former = Tail.of(msgspec.structs.replace(tail.cursor(), id=self._table.new_id(), checkpoint=None))
        former.growth, former.replaced = tail.growth, tail.replaced
        self._copied[0][former] = copy

    def report_copied(self) -> None:
        """Log the files that were written to while closed, and that are now read in a copy.

        The copy may lack these writes. A file waits for one full scan, as inotify may report its writes late.
        """
        copied, before = self._copied
        for tail, copy in before.items():
            tail.location = FileLocation.FORGOTTEN
            if tail.growth is Growth.WRITTEN:
                self._log.warning(
                    "%s was not found again, but its copy %s was: what was written to it after it was copied, if"
                    " anything, is lost",
                    tail.path,
                    copy,
                )
        self._copied = [{}, copied]


class PathIndex:
    """Index from path to the tracked file that has, or last had, that path.

    Targets of symbolic links count as paths of the file, too.
    The cost of an update does not depend on the number of files.
    """

    def __init__(self) -> None:
        self._tails: dict[str, list[Tail]] = {}
        """Files by path; the last in each list has that path, or was the last to have it."""
        self._paths: dict[Tail, set[str]] = {}
        """Paths under which each file is in the index."""

    def get(self, path: str) -> Tail | None:
        """Return the file that has, or last had, that path; None where there is none. Thread-safe."""
        tails = self._tails.get(path)
        return tails[-1] if tails else None

    def put(self, tail: Tail) -> None:
        """Add a file, or update it after a change of its paths or its location.

        Earlier paths of the file are removed. Of several files with one path, `get` returns one that has a name.
        """
        before, now = self._paths.get(tail, set()), {tail.path, tail.real}
        self._paths[tail] = now
        for path in now:  # replaced atomically: other threads read meanwhile
            self._set(path, [*(other for other in self._tails.get(path, ()) if other is not tail), tail])
        for path in before - now:
            self._set(path, [other for other in self._tails[path] if other is not tail])

    def remove(self, tail: Tail) -> None:
        """Remove a file that is no longer tracked."""
        for path in self._paths.pop(tail, ()):
            self._set(path, [other for other in self._tails[path] if other is not tail])

    def _set(self, path: str, tails: list[Tail]) -> None:
        """Set the files of a path: files with a name come last, and all but the last are marked as replaced."""
        if not tails:
            del self._tails[path]
            return
        if len(tails) > 1:
            tails.sort(key=lambda tail: tail.has_name)
            for tail in tails[:-1]:
                tail.replaced = True
        self._tails[path] = tails


class OpenFileCache:
    """Open files, which are closed in least-recently-used order where there are too many."""

    def __init__(self, forget: Callable[[Tail], None], log: logging.Logger) -> None:
        """Begin with no open file. `forget` is called for a deleted file that was read and has to be closed."""
        self._forget = forget
        self._log = log
        self._open: dict[Tail, None] = {}
        """Open files, the least recently used first."""
        self._has_warned = False
        self.max_open = max(16, min(max_descriptors() // 2, 16_384))
        """Maximum number of open files. It decreases when the process runs out of descriptors."""

    def open(self, tail: Tail) -> bool:
        """Open the file unless it is open; return True if that changed its offset or checkpoint.

        Less recently used files are closed where too many are open. Raises ChangedError where the content that was
        read is no longer in the file, OSError where it cannot be opened.
        """
        known = tail.offset, tail.checkpoint
        if tail.fd is None:
            self._make_room()
            try:
                tail.open()
            except OSError as e:
                if e.errno not in EXHAUSTED_ERRNOS or not self.release_descriptors():
                    raise
                tail.open()
        self._use(tail)
        return (tail.offset, tail.checkpoint) != known

    def attach(self, tail: Tail, fd: int) -> None:
        """Take ownership of the open descriptor `fd` of the file. Raises OSError where the file cannot be read."""
        self._make_room()
        tail.attach(fd)
        self._use(tail)

    def release_descriptors(self) -> bool:
        """Close files while the process is out of descriptors.

        Return True if the process can open files now, False if no further file could be closed.
        `max_open` shrinks each time by a quarter, permanently.
        """
        while descriptors_exhausted():
            before = len(self._open)
            self.max_open = min(self.max_open, before)
            self._make_room()
            if len(self._open) == before:
                return False
            self.max_open = max(1, len(self._open))
            if not self._has_warned:
                self._has_warned = True
                self._log.warning(
                    "this process has reached its limit of %d open files, so this source keeps fewer files open from"
                    " now on, which costs time: raise `ulimit -n`, or LimitNOFILE in its systemd unit",
                    max_descriptors(),
                )
        return True

    def close(self, tail: Tail) -> None:
        """Close the file, but keep tracking it."""
        self._open.pop(tail, None)
        tail.close()

    def close_all(self) -> None:
        """Close all open files."""
        for tail in list(self._open):
            self.close(tail)

    def _use(self, tail: Tail) -> None:
        """Mark the file as the most recently used one."""
        self._open.pop(tail, None)
        self._open[tail] = None

    def _make_room(self) -> None:
        """Close a quarter of the files once `max_open` files are open.

        Files read to their end are closed first, then other files, each in least-recently-used order. A file without
        a name could not be opened again. A deleted file is forgotten if it was read to its end, even though its
        writer may continue; else it stays open.
        """
        if len(self._open) < self.max_open:
            return
        for unread in (False, True):
            for tail in list(self._open):
                if len(self._open) <= self.max_open * 3 // 4:
                    return
                assert tail.fd is not None
                status = os.fstat(tail.fd)
                if bool(tail.buffered) or status.st_size > tail.offset:
                    if unread and status.st_nlink and tail.has_name:
                        self.close(tail)
                        tail.growth = Growth.WRITTEN
                elif status.st_nlink and tail.has_name:
                    self.close(tail)
                elif not status.st_nlink:
                    self._forget(tail)
