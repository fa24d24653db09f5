"""Discovery of files by name, inode or content, through renames, copies and deletions."""

from __future__ import annotations

import lzma
import os
import stat
import tempfile
import threading
import zlib
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from logging import Logger
from pathlib import Path
from typing import NamedTuple

from flafka.plugins.storage import write_at
from flafka.sources.compression import MAGIC_NUMBERS, decompressed
from flafka.sources.file_errors import FileErrors
from flafka.sources.taildir.cursors import HEAD_BYTES, TAIL_BYTES
from flafka.sources.taildir.groups import FileGroups
from flafka.sources.taildir.opener import MOVED_TO
from flafka.sources.taildir.table import ClosedFiles, FileTable
from flafka.sources.taildir.tail import FileLocation, Growth, Key, Tail, is_not_found, key_of
from flafka.sources.taildir.watcher import Change, FileCounters, Hints

_READ_BYTES = 1 << 20
_MAX_COMPARED = 100
"""Maximum number of files, the most recently modified first, that are compared with a deleted file."""

Listing = Callable[[str], dict[Key, str]]
"""Function from a directory to the paths of its regular files by key."""


class UntrackedFile(NamedTuple):
    """File that is not tracked yet."""

    path: str
    key: Key
    is_link: bool
    """True if the path is a symbolic link."""


@dataclass(slots=True)
class DirectoryScan:
    """Scan of directories, in progress or complete."""

    changed: set[Tail] = field(default_factory=set)
    """Files that were created, renamed or deleted."""
    statuses: dict[Tail, os.stat_result] = field(default_factory=dict)
    """Status of every file that was found by a matching name, as of the scan."""
    untracked: list[UntrackedFile] = field(default_factory=list)


class Discovery:
    """Scans that keep a file table up to date: full ones, and of the names that inotify reports."""

    def __init__(
        self,
        table: FileTable,
        groups: FileGroups,
        counters: FileCounters,
        file_errors: FileErrors,
        log: Logger,
        *,
        idle: float,
        unpack_directory: str,
        stopping: threading.Event,
    ) -> None:
        """Keep `table` up to date with the files of `groups`. Scans begin with the first call of `scan`.

        A file is idle once it has not changed for `idle` seconds. The directory `unpack_directory` is for the
        uncompressed content of rotated copies; decompression stops once `stopping` is set.
        """
        self._table, self._groups, self._counters = table, groups, counters
        self._file_errors, self._log = file_errors, log
        self._copies = CopySearch(unpack_directory, file_errors, stopping)
        self.closed = ClosedFiles(table, log)
        self.idle_seconds = idle
        self._unreadable: set[str] = set()
        """Paths that could not be read at the latest scan of their directory."""
        self._adopted: set[Tail] = set()
        """Files that are tracked since the latest scan, but were not part of a scan."""

    @property
    def directories(self) -> dict[str, list[str] | None]:
        """Directories to watch, each with the patterns of names that count, or None where every name counts.

        These are the directories of the file groups, and of the targets of symbolic links.
        """
        links = {os.path.dirname(tail.real) for tail in self._table.tracked if tail.real != tail.path}
        return {directory: self._groups.patterns(directory) for directory in self._groups.directories | links}

    def tracked_name(self, path: str) -> str | None:
        """Return the name under which a file at that path is tracked; None where no group and no tracked file has it.

        A path that matches a group is its own name. The target of a symbolic link has the path of the link, and a
        renamed file the name of its log. Thread-safe.
        """
        if self._groups.headers(path) is not None:
            return path
        tail = self._table.find_by_path(path)
        if tail is None:
            return None
        return tail.path if path == tail.real else tail.name

    # --- full scans

    def scan(self, directories: set[str] | None = None, *, skip_to_end: bool = False) -> DirectoryScan:
        """Scan all directories of the groups, or only those that are in `directories`; return the result.

        New files are tracked, and renamed, deleted and copied ones found. An unreadable directory is skipped: its
        files do not count as deleted. Read errors are reported. With `skip_to_end`, new files are read from their
        present end.
        """
        scanned = self._groups.directories
        if directories is not None:
            scanned &= directories
        scan = DirectoryScan()
        unreadable = {path for path in self._unreadable if os.path.dirname(path) in scanned}
        self._unreadable -= unreadable
        for directory in sorted(scanned):
            paths = self._groups.paths(directory)
            if paths is None:
                scanned.discard(directory)  # unreadable: its files do not count as deleted
                continue
            for path in paths:
                self._find_by_name(path, scan)
        self._find_renamed(scanned, scan)
        self._track_new(scan, skip_to_end=skip_to_end)
        self._find_copies(scanned, scan)
        self._end(scan, unreadable)
        return scan

    def _end(self, scan: DirectoryScan, unreadable: set[str]) -> None:
        """Mark the cursors that the scan changed as unsaved, and update the path index.

        Read errors are cleared for the paths in `unreadable` that this scan could read.
        """
        for path in unreadable - self._unreadable:
            self._file_errors.clear(path)
        self._table.unsaved |= scan.changed
        self._table.index_paths(scan.changed | self._adopted)
        self._adopted.clear()

    def _find_by_name(self, path: str, scan: DirectoryScan) -> None:
        """Record the regular file at a matching path as found; report an error if it cannot be read.

        A file that is not tracked and matches no stored cursor is added to `scan.untracked`.
        """
        try:
            status = os.lstat(path)
            if is_link := stat.S_ISLNK(status.st_mode):
                status = os.stat(path)
        except FileNotFoundError:
            return  # deleted since it was listed, or a dangling link
        except OSError as e:
            self._report_unreadable(path, e)
            return
        if not stat.S_ISREG(status.st_mode):
            return
        key = (status.st_dev, status.st_ino)
        tail = self._table.by_key.get(key)
        try:
            if tail is None:
                tail = self._table.match_stored_cursor(key, path)
                if tail is None:
                    scan.untracked.append(UntrackedFile(path, key, is_link))
                    return
                self._counters.count_opened(key)
                self._track(key, tail, scan)
            elif tail.path != path and tail not in scan.statuses and key_of(tail.path) != key:
                tail.move(path)
                scan.changed.add(tail)
        except OSError as e:
            self._report_unreadable(path, e)
            return
        self._mark_matched(tail, status, scan)

    def _report_unreadable(self, path: str, error: OSError) -> None:
        """Report that a path cannot be read, and record it in `_unreadable`; the next scan tries it again."""
        self._unreadable.add(path)
        self._file_errors.report(path, f"{path} cannot be read, it is tried again: {error.strerror}")

    def _track(self, key: Key, tail: Tail, scan: DirectoryScan, fd: int | None = None) -> None:
        """Track a file from now on, and add it to the changed files of the scan; `fd` is its open descriptor."""
        scan.changed.add(tail)
        self._table.track(key, tail, fd)

    def _mark_matched(self, tail: Tail, status: os.stat_result, scan: DirectoryScan) -> None:
        """Record that the scan found the file under a name that matches a group."""
        if not tail.has_name:
            scan.changed.add(tail)
        tail.location, tail.replaced = FileLocation.MATCHED, False
        scan.statuses[tail] = status

    def _track_new(self, scan: DirectoryScan, *, skip_to_end: bool = False) -> None:
        """Track every file in `scan.untracked`, with `skip_to_end` from its present end."""
        lost = self._table.lost_files() if scan.untracked else []
        for file in scan.untracked:
            self._track_new_file(file, scan, lost, skip_to_end=skip_to_end)

    def _track_new_file(
        self, file: UntrackedFile, scan: DirectoryScan, lost: list[Tail], *, skip_to_end: bool
    ) -> None:
        """Track a file that is not tracked yet; if it is the rotated copy of a lost file, continue that file.

        A lost file that is continued is removed from `lost`. With `skip_to_end`, any other file is read from its
        present end. Read errors are reported.
        """
        path, key, is_link = file
        opened = _open(path, key)
        if opened is None:
            return
        fd, status = opened
        tail = self._table.by_key.get(key)
        if tail is not None:  # another name (link) of a file that this scan found
            if fd is not None:
                os.close(fd)
        else:
            try:
                tail = next((t for t in lost if may_be_copy(t, path) and t.matches_path(path, fd)), None)
            except OSError as e:
                self._report_unreadable(path, e)
                if fd is not None:
                    os.close(fd)
                return
            if tail is not None:
                lost.remove(tail)
                self.closed.keep_copied(tail, path)
                self._table.relocate(tail, key, path)
            else:
                tail = self._table.create(path, key)
                if is_link:
                    tail.move(path)
                if skip_to_end and status.st_size:
                    tail.offset, tail.checkpoint = status.st_size, None
            self._counters.count_opened(key)
            self._track(key, tail, scan, fd)
        self._mark_matched(tail, status, scan)

    def _find_renamed(self, scanned: set[str], scan: DirectoryScan) -> None:
        """Locate files of the scanned directories that no matching name led to: renamed, unseen or deleted.

        Read errors are reported.
        """
        listing = cache(_paths_by_key)
        for key, tail in self._table.by_key.items():
            if tail in scan.statuses or not scanned & {os.path.dirname(tail.path), os.path.dirname(tail.name)}:
                continue
            try:
                self._find_tracked(key, tail, listing, scan)
            except OSError as e:
                self._report_unreadable(tail.path, e)
        for tail in self._table.unmatched():
            if self._may_be_in(scanned, tail):
                try:
                    self._find_unmatched(tail, listing, scan)
                except OSError as e:
                    self._report_unreadable(tail.path, e)

    def _find_tracked(self, key: Key, tail: Tail, listing: Listing, scan: DirectoryScan) -> None:
        """Set the location of a tracked file that was found under no name that matches a group.

        The location is RENAMED if its path or `listing` of its directories still leads to it. It is UNSEEN if the
        file may return, or else DELETED. Raises OSError where a directory is unreadable.
        """
        is_named = key_of(tail.path) == key
        # Under a name that does not match, the inode may have been reused: require proof of identity.
        is_verified = tail.fd is not None or tail.has_known_content
        for parent in (os.path.dirname(tail.path), os.path.dirname(tail.real)):
            if is_verified and not is_named and key in listing(parent):
                tail.move(listing(parent)[key])
                scan.changed.add(tail)
                is_named = True
        location = (
            FileLocation.RENAMED
            if is_named
            else FileLocation.UNSEEN
            if self._may_return(tail)
            else FileLocation.DELETED
        )
        if location is not tail.location and not (is_named and tail.has_name):
            scan.changed.add(tail)
        tail.location = location

    def _find_unmatched(self, tail: Tail, listing: Listing, scan: DirectoryScan) -> None:
        """Track the file of a stored cursor if one in its directories has its inode and its content.

        Otherwise its location becomes DELETED, unless the file may return. Raises OSError where a file or its
        directory is unreadable.
        """
        parents = {os.path.dirname(tail.path), os.path.dirname(tail.real)} if tail.has_known_content else set()
        for key, path in (entry for parent in parents for entry in listing(parent).items()):
            if key[1] == tail.inode and key not in self._table.by_key and tail.matches_path(path):
                self._table.warn_unverified(tail, path)
                self._table.relocate(tail, key, path)
                self._track(key, tail, scan)
                return
        if tail.location is not FileLocation.DELETED and not self._may_return(tail):
            tail.location = FileLocation.DELETED
            scan.changed.add(tail)

    def _may_be_in(self, scanned: set[str], tail: Tail) -> bool:
        """Return True if the file's name matches a group, and one of its paths is in a directory of `scanned`."""
        parents = {os.path.dirname(path) for path in (tail.path, tail.real, tail.name)}
        return self._groups.headers(tail.name) is not None and bool(scanned & parents)

    def _may_return(self, tail: Tail) -> bool:
        """Return True if the file may come back: its file system may not be mounted at present.

        In that case its directory is unreadable, on another device than before, or missing although a group has it.
        An open file without a name cannot come back.
        """
        if tail.fd is not None and not os.fstat(tail.fd).st_nlink:
            return False
        parent = os.path.dirname(tail.real)
        try:
            key = key_of(parent)
        except OSError:
            return True
        return parent in self._groups.directories if key is None else tail.device not in (None, key[0])

    # --- rotated copies

    def _find_copies(self, scanned: set[str], scan: DirectoryScan) -> None:
        """Continue the deleted files of the scanned directories in their rotated copies, plain or compressed."""
        entries = cache(_files)
        for tail in self._table.lost_files():
            parent = os.path.dirname(tail.real)
            if not scanned & {parent, os.path.dirname(tail.name)}:
                continue
            with suppress(OSError):  # the next scan tries again
                copy = self._copies.find(tail, entries(parent), self._table.by_key.keys())
                if copy is not None:
                    self._read_copy(copy, tail, scan)

    def _read_copy(self, copy: Copy, tail: Tail, scan: DirectoryScan) -> None:
        """Continue reading the lost file in its rotated copy. The path stays if the copy is compressed."""
        self.closed.keep_copied(tail, copy.path)
        if copy.decompressed_fd is None:
            self._table.relocate(tail, copy.key, copy.path)
        else:
            self._log.info(
                "%s is a rotated copy of %s: it is read from byte %d on", copy.path, tail.path, tail.offset
            )
            tail.is_unpacked_copy = True
            self._table.relocate(tail, copy.key, tail.path)
            tail.location = FileLocation.DELETED
        self._track(copy.key, tail, scan, copy.decompressed_fd)

    # --- changes that inotify reports

    def exclude_present(self, directories: Iterable[str]) -> None:
        """Exclude the files that are in these directories now from the count of missed files.

        Such files were created before the directory was watched, so inotify does not report them.
        """
        for directory in directories:
            with suppress(OSError):
                self._counters.exclude(key for key in _paths_by_key(directory) if key not in self._table.by_key)

    def adopt(self, hints: Hints) -> set[Tail]:
        """Track the files that the watcher opened; return the files that were not tracked before.

        The changes are also counted for `FileMissedCount`, and writes to closed files recorded. The caller must scan
        afterwards.
        """
        scan = DirectoryScan()
        self.closed.mark_written(hints)
        for change in hints.changes:
            self._counters.count_change(change, is_link=self._is_link(change))
            if change.kind == MOVED_TO and (tail := self._table.by_key.get(change.key or (0, 0))) is not None:
                tail.was_renamed_away = change.path != tail.name
            self._adopt(change, scan)
        self._table.unsaved |= scan.changed
        self._adopted |= scan.changed
        return scan.changed

    def _adopt(self, change: Change, scan: DirectoryScan) -> None:
        """Track the file whose descriptor came with the change, or close the descriptor of a file that is open."""
        if change.key is None or change.descriptor is None or (fd := change.descriptor.take()) is None:
            return
        tail = self._table.by_key.get(change.key)
        if tail is not None and tail.fd is not None:
            os.close(fd)
            return
        try:
            if tail is not None and not tail.matches(fd, change.path):
                self._table.save_former_state(tail)
                self._table.forget(tail)  # its inode was reused
                tail = None
            if tail is not None:
                self._table.attach(tail, fd)
                return
            tail = self._table.match_stored_cursor(change.key, change.path, fd)
        except OSError as e:
            os.close(fd)
            self._report_unreadable(change.path, e)
            return
        if tail is None:
            tail = self._table.create(change.path, change.key, name=change.name)
            if os.path.realpath(change.name) == change.path != change.name:
                tail.path = change.name  # the name is a symbolic link to that path
            if os.path.islink(tail.path):
                tail.real = os.path.realpath(tail.path)  # inotify reports writes under the target's path
        self._counters.count_opened(change.key)
        self._track(change.key, tail, scan, fd)

    def _is_link(self, change: Change) -> bool:
        """Return True if the change is of a tracked file, and its path is a symbolic link or one of several links."""
        if change.key not in self._table.by_key:
            return False
        try:
            status = os.lstat(change.path)
        except OSError:
            return False
        return stat.S_ISLNK(status.st_mode) or status.st_nlink > 1

    def apply_hints(self, hints: Hints) -> tuple[set[Tail], set[Tail]]:
        """Track the files that the watcher opened, and scan the changed names.

        Return the tracked files that were written to, and the files that were created, renamed or deleted.
        """
        changed = self.adopt(hints)
        if hints.changes:
            changed = changed | self._scan_names(hints.changes)
        return {tail for path in hints.grown if (tail := self._table.find_by_path(path)) is not None}, changed

    def _scan_names(self, changes: Sequence[Change]) -> set[Tail]:
        """Scan the changed names and the files they led to; return the tracked files that changed.

        The cost depends on the number of changes, not of tracked files. A full scan finds the same, and also changes
        that inotify did not report.
        """
        paths, affected = set[str](), self._adopted.copy()
        for change in changes:
            paths |= {change.path, change.name}
            known = change.key and self._table.by_key.get(change.key)
            for tail in (self._table.find_by_path(change.path), self._table.find_by_path(change.name), known):
                if tail:
                    affected.add(tail)
                    paths |= {tail.path, tail.name}
        scan = DirectoryScan()
        unreadable = self._unreadable & paths
        self._unreadable -= unreadable
        for path in sorted(paths):
            if self._groups.headers(path) is not None:
                self._find_by_name(path, scan)
        reported_paths = {change.key: change.path for change in changes if change.key is not None}
        listing = cache(_paths_by_key)
        for tail in sorted(affected - scan.statuses.keys(), key=lambda tail: tail.id):
            try:
                self._find_changed(tail, reported_paths, listing, scan)
            except OSError as e:
                self._report_unreadable(tail.path, e)
        self._track_new(scan)
        self._end(scan, unreadable)
        lost = {
            tail
            for tail in affected
            if tail.fd is None and tail.location is FileLocation.DELETED and tail.growth is not Growth.NONE
        }
        if not lost:
            return scan.changed
        # Data written to a file while it was closed may be in a rotated copy.
        parents = {os.path.dirname(path) for tail in lost for path in (tail.path, tail.real, tail.name)}
        return scan.changed | self.scan(parents).changed

    def _find_changed(
        self, tail: Tail, reported_paths: Mapping[Key, str], listing: Listing, scan: DirectoryScan
    ) -> None:
        """Set the location of a tracked file that has none of the changed names that match a group.

        `reported_paths` has the paths that inotify reported, by key. Raises OSError where a directory is unreadable.
        """
        if not self._table.is_tracked(tail) or tail.device is None:
            return
        key = tail.device, tail.inode
        path = reported_paths.get(key)
        if path is not None and key_of(path) == key:
            listing = defaultdict(dict, {os.path.dirname(path): {key: path}}).__getitem__
        elif tail.fd is not None and not os.fstat(tail.fd).st_nlink:
            listing = defaultdict[str, dict[Key, str]](dict).__getitem__  # no name leads to it any more
        self._find_tracked(key, tail, listing, scan)
        if tail.has_name and self._groups.headers(tail.path) is not None:
            tail.location = FileLocation.MATCHED

    # --- idle files

    def close_idle(self, now: float) -> None:
        """Close idle files; forget idle files that are deleted and were read to their end.

        A tracked file is forgotten at the second call in a row that finds it deleted. Stored cursors whose file was
        not found, or belongs to no group any more, are forgotten once idle. `now` is monotonic.
        """
        finished: list[Tail] = []
        deleted: list[Tail] = []
        for tail in self._table:
            if not self.is_idle(tail, now) or tail.buffered or tail.has_changed():
                continue
            if tail.has_name or self._may_return(tail):
                self._table.close(tail)
            elif not self._table.is_tracked(tail):
                is_deleted = tail.location is FileLocation.DELETED
                if is_deleted or not tail.inode or not self._may_be_in(self._groups.directories, tail):
                    finished.append(tail)
            elif tail.fd is None or tail.is_compressed or os.fstat(tail.fd).st_size <= tail.offset:
                # Pending inotify events may report growth, or a rename before the deletion: wait for one more scan.
                (finished if tail in self.closed.deleted_before else deleted).append(tail)
        self.closed.deleted_before = deleted
        for tail in finished:
            self._table.forget(tail)
        self.closed.report_copied()

    def is_idle(self, tail: Tail, now: float) -> bool:
        """Return True if the file has not changed for `idle_seconds`, or is the uncompressed content of a copy.

        `now` is monotonic.
        """
        return tail.is_unpacked_copy or now - tail.changed_at >= self.idle_seconds


class Copy(NamedTuple):
    """Rotated copy of a tracked file."""

    path: str
    key: Key
    """Device and inode of the copy, or of the temporary file with its uncompressed content."""
    decompressed_fd: int | None
    """Descriptor of the uncompressed content; None where the copy is plain."""


class CopySearch:
    """Search for rotated copies of tracked files that were deleted."""

    def __init__(self, unpack_directory: str, file_errors: FileErrors, stopping: threading.Event) -> None:
        """Write uncompressed content to `unpack_directory`; stop decompression once `stopping` is set."""
        self._unpack_directory, self._file_errors, self._stopping = unpack_directory, file_errors, stopping

    def find(self, tail: Tail, entries: Iterable[os.DirEntry[str]], tracked: Collection[Key]) -> Copy | None:
        """Return the latest file in `entries` that proves to be a rotated copy of the tail's file, or None.

        At most `_MAX_COMPARED` files with a suitable name are compared. A plain file whose key is in `tracked` does
        not count. A file that proves to be no copy is remembered and not compared again. Errors of one file are
        reported, and the file is tried again at the next scan. The search ends once `stopping` is set.
        """
        for path, status in _latest_files(entries, tail):
            identity = (status.st_ino, status.st_mtime_ns, status.st_size)
            if identity in tail.rejected_copies or self._stopping.is_set():
                continue
            try:
                fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            except OSError:
                continue  # the next scan tries to open it again
            try:
                copy = self._compare(tail, fd, path, tracked)
            except OSError as e:
                self._file_errors.report(path, f"{path} cannot be unpacked, it is tried again: {e.strerror or e}")
                continue
            finally:
                os.close(fd)
            self._file_errors.clear(path)
            if copy is not None:
                return copy
            tail.rejected_copies |= {identity}
        return None

    def _compare(self, tail: Tail, fd: int, path: str, tracked: Collection[Key]) -> Copy | None:
        """Return the open file at `path` as a copy, unpacked if it is compressed; None where it is no copy.

        Raises OSError where the file cannot be read or unpacked.
        """
        if os.pread(fd, 16, 0).startswith(MAGIC_NUMBERS):
            content = decompress(tail, fd, self._unpack_directory, self._stopping)
            return None if content is None else Copy(path, _key(content), content)
        return Copy(path, _key(fd), None) if _key(fd) not in tracked and tail.matches(fd, path) else None


def _key(fd: int) -> Key:
    """Return device and inode of an open file."""
    status = os.fstat(fd)
    return status.st_dev, status.st_ino


def _latest_files(entries: Iterable[os.DirEntry[str]], tail: Tail) -> list[tuple[str, os.stat_result]]:
    """Return up to `_MAX_COMPARED` possible copies of the tail's file, the latest first."""
    candidates = []
    for entry in entries:
        if may_be_copy(tail, entry.path):
            with suppress(OSError):
                candidates.append((entry.path, entry.stat()))
    candidates.sort(key=lambda entry: (-entry[1].st_mtime_ns, entry[0]))
    return candidates[:_MAX_COMPARED]


def may_be_copy(tail: Tail, path: str) -> bool:
    """Return True if a rotation of the tail's log may have given a file that name.

    The file name must begin with the log's name without its last suffix, and the path must not be the log's own.
    `access.log` becomes `access.log.1`, `access.log-20261122.gz` or `access-2026-11-22.1.log.gz`.
    """
    return path not in (tail.name, tail.path) and Path(path).name.startswith(Path(tail.name).stem)


def decompress(tail: Tail, fd: int, directory: str, stopping: threading.Event) -> int | None:
    """Uncompress a rotated copy of the tail's file; return a descriptor of its content.

    The content lies in an unnamed file in `directory`, at the original offsets. Bytes before the tail's offset are
    left out, except those that prove the identity of the file. None where the copy is of another file, is incomplete,
    or `stopping` is set. Raises OSError where `directory` cannot hold the content.
    """
    checkpoint = tail.checkpoint
    assert checkpoint is not None
    with os.fdopen(fd, "rb", closefd=False) as file, tempfile.TemporaryFile(dir=directory) as out:
        file.seek(0)
        stream = decompressed(file)
        offset, is_verified = 0, False
        first, last = sorted((checkpoint.offset, tail.offset))
        while not stopping.is_set():
            try:
                data = stream.read(_READ_BYTES if offset else HEAD_BYTES)
            except (OSError, EOFError, zlib.error, lzma.LZMAError):
                return None
            if not offset:
                if not checkpoint.matches_head(data):
                    return None
                write_at(out.fileno(), data, 0)
            elif offset + len(data) > first - TAIL_BYTES:
                write_at(out.fileno(), data, offset)
            offset += len(data)
            if not is_verified and offset >= last:
                if not checkpoint.matches_file(out.fileno()):
                    return None
                is_verified = True
            if not data:
                return os.dup(out.fileno()) if is_verified else None
    return None


def _open(path: str, key: Key) -> tuple[int | None, os.stat_result] | None:
    """Return a descriptor and the status of the file at `path`; None where it was deleted or has another key by now.

    The descriptor is None where the file cannot be opened.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        fd = None
    try:
        status = os.stat(path) if fd is None else os.fstat(fd)
    except OSError:
        return None  # the file could not be opened, and was deleted
    if (status.st_dev, status.st_ino) == key:
        return fd, status
    if fd is not None:
        os.close(fd)
    return None


def _files(directory: str) -> list[os.DirEntry[str]]:
    """Return the regular files in a directory, and symbolic links to regular files.

    Empty where there is no such directory. Raises OSError where it is unreadable: it must not count as empty, or its
    files would count as deleted. A link with an unreadable target is left out.
    """
    files = []
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                with suppress(OSError):  # is_file() calls stat() for a link, whose target may be unreadable
                    if entry.is_file():
                        files.append(entry)
    except OSError as e:
        if not is_not_found(e):
            raise
    return files


def _paths_by_key(directory: str) -> dict[Key, str]:
    """Return the path of every regular file in a directory, by key; of one with several links, any path.

    Empty where there is no such directory. Raises OSError where it, or a file in it, is unreadable.
    """
    paths = {}
    for entry in _files(directory):
        try:
            status = entry.stat()
        except OSError as e:
            if entry.is_symlink() or is_not_found(e):
                continue
            raise
        paths[status.st_dev, status.st_ino] = entry.path
    return paths
