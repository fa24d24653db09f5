"""Spool directory: the files to read, in their order, and the marks of files that were read."""

# Paths are strings: Path objects would be slow for thousands of files.
# ruff: noqa: PTH103, PTH104, PTH108, PTH112, PTH116, PTH118, PTH119, PTH120, PTH208

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from flafka.sources.file_errors import FileErrors
from flafka.sources.filenames import compile_name_pattern
from flafka.sources.spooldir.config import SpooldirConfig
from flafka.sources.spooldir.tracker import FileState

_RELIABLE_AGE_NS = 2_000_000_000
"""Age of a directory's modification time from which it is reliable, in nanoseconds.

File systems have coarse timestamps: a younger one may hide a later change.
"""


class Candidate(NamedTuple):
    """File that may be read."""

    path: str
    state: FileState


class _Listing(NamedTuple):
    """Cached content of a directory, as of its modification time (ns)."""

    modified: int
    files: list[Candidate]
    directories: list[str]


class _UnmarkedFiles(NamedTuple):
    """Cached unmarked files of a directory, as of the modification time (ns) of the directory of their marks."""

    modified: int
    listed: list[Candidate]
    unmarked: list[Candidate]


class SpoolDirectory:
    """Files in `spoolDir`, and their marks in `trackerDir` with `trackingPolicy = tracker_dir`."""

    def __init__(self, config: SpooldirConfig, file_errors: FileErrors) -> None:
        self.path = config.directory
        self._suffix = config.file_suffix
        self._include: re.Pattern[str] = compile_name_pattern(config.include_pattern)
        self._ignore: re.Pattern[str] = compile_name_pattern(config.ignore_pattern)
        self._recursive = config.recursive
        self._marks_directory = str(config.tracker_directory) if config.tracking_policy == "tracker_dir" else None
        self._deletes = config.delete_policy == "immediate"
        self._order = config.consume_order
        self._file_errors = file_errors
        self._listings: dict[str, _Listing] = {}
        self._unmarked_files: dict[str, _UnmarkedFiles] = {}

    def mark_as_read(self, path: str) -> str:
        """Rename or delete a file that was read, or create its mark in `trackerDir`, as the options say.

        Return the reason of a failure, such as an existing file of that name, as a predicate; else "".
        """
        mark = self._mark_path(path)
        try:
            if self._deletes:
                os.unlink(path)
            elif self._marks_directory is not None:
                os.makedirs(os.path.dirname(mark), exist_ok=True)
                os.close(os.open(mark, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644))
            elif os.path.lexists(mark):
                raise FileExistsError
            else:
                os.rename(path, mark)
        except FileExistsError:
            return f"was read, and {mark} already exists"
        except OSError as e:
            return f"was read, and cannot be marked as read: {e.strerror or e}"
        return ""

    def _mark_path(self, path: str) -> str:
        """Return the path of the file that marks `path` as read."""
        if self._marks_directory is None:
            return path + self._suffix
        return os.path.join(self._marks_directory, os.path.relpath(path, self.path) + self._suffix)

    def candidates(self) -> list[Candidate]:
        """Return all unread files in the order of `consumeOrder`, the next one first; in any order if it is random.

        Read errors are reported, and the files concerned left out.
        """
        files: list[Candidate] = []
        before, self._listings = self._listings, {}
        pending = [self.path]
        while pending:
            directory = pending.pop()
            listing = self._list(directory, before)
            if listing is None:
                continue
            files += listing.files if self._marks_directory is None else self._unmarked(directory, listing.files)
            pending += listing.directories
        if self._order != "random":
            sign = -1 if self._order == "youngest" else 1
            # By milliseconds, then by name, as in Flume; ties by path, so that the order is stable.
            files.sort(
                key=lambda file: (sign * (file.state.modified // 1_000_000), os.path.basename(file.path), file.path)
            )
        return files

    def _list(self, directory: str, before: dict[str, _Listing]) -> _Listing | None:
        """Return the content of a directory, from `before` if it has not changed; None where it cannot be read."""
        try:
            modified = os.stat(directory).st_mtime_ns
            listing = before.get(directory)
            if listing is None or listing.modified != modified:
                listing = self._scan(directory, modified)
        except OSError as e:
            if directory == self.path or not isinstance(e, FileNotFoundError | NotADirectoryError):
                reason = f"directory {directory} cannot be read, it is tried again: {e.strerror}"
                self._file_errors.report(directory, reason)
            return None
        if listing.modified == modified:
            self._file_errors.clear(directory)
        # A change soon after another may leave the same timestamp: caching would miss it.
        if time.time_ns() - modified > _RELIABLE_AGE_NS:
            self._listings[directory] = listing
        return listing

    def _scan(self, directory: str, modified: int) -> _Listing:
        """Return the files of a directory that the patterns select, and its directories if the search is recursive.

        Files with the suffix and hidden files are left out. Raises OSError where the directory cannot be read.
        """
        files: list[Candidate] = []
        directories: list[str] = []
        with os.scandir(directory) as entries:
            for entry in entries:
                name = entry.name
                if name.startswith(".") or self._ignore.fullmatch(name):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    if self._recursive:
                        directories.append(entry.path)
                elif not name.endswith(self._suffix) and self._include.fullmatch(name):
                    try:
                        status = entry.stat()
                    except FileNotFoundError:
                        continue  # deleted since it was listed, or a dangling link
                    except OSError as e:
                        reason = f"{entry.path} cannot be read, it is tried again: {e.strerror}"
                        self._file_errors.report(directory, reason)
                        modified = -1  # the next listing must scan the directory again
                        continue
                    if stat.S_ISREG(status.st_mode):
                        files.append(Candidate(entry.path, FileState.of(status)))
        return _Listing(modified, files, directories)

    def _unmarked(self, directory: str, files: list[Candidate]) -> list[Candidate]:
        """Return the files of `directory` that have no mark in `trackerDir`.

        Empty where the marks cannot be read, which is reported.
        """
        if not files:
            return files
        marks_directory = os.path.dirname(self._mark_path(files[0].path))
        try:
            modified = os.stat(marks_directory).st_mtime_ns
            known = self._unmarked_files.get(directory)
            if known is not None and known.modified == modified and known.listed is files:
                return known.unmarked
            names = set(os.listdir(marks_directory))
        except (FileNotFoundError, NotADirectoryError):
            return files
        except OSError as e:
            # Without the marks, all files would be read again.
            self._file_errors.report(
                marks_directory, f"trackerDir {marks_directory} cannot be read, it is tried again: {e.strerror}"
            )
            return []
        self._file_errors.clear(marks_directory)
        unmarked = []
        for file in files:
            name = os.path.basename(file.path) + self._suffix
            if name not in names:
                unmarked.append(file)
                self._file_errors.clear(os.path.join(marks_directory, name))
            else:
                self._check_name_reuse(file, os.path.join(marks_directory, name))
        self._unmarked_files.pop(directory, None)
        if time.time_ns() - modified > _RELIABLE_AGE_NS:
            self._unmarked_files[directory] = _UnmarkedFiles(modified, files, unmarked)
        return unmarked

    def _check_name_reuse(self, file: Candidate, mark: str) -> None:
        """Report a file that changed over 2 s after its mark: another file of its name was read, and it is not."""
        with suppress(OSError):
            if file.state.modified > os.stat(mark).st_mtime_ns + _RELIABLE_AGE_NS:
                reason = (
                    f"{file.path} has changed since a file of its name was read: it is not read while {mark} is there"
                )
                self._file_errors.report(mark, reason)


def problems(config: SpooldirConfig) -> Iterator[str]:
    """Yield every reason why the directories of a configuration cannot be used."""
    directory = config.directory
    if not os.path.isdir(directory):
        fault = "is not a directory" if os.path.lexists(directory) else "does not exist"
        yield f"spoolDir {directory} {fault}"
        return
    if not os.access(directory, os.R_OK | os.X_OK, effective_ids=True):
        yield f"spoolDir {directory} cannot be read: Permission denied"
    keeps_files = config.tracking_policy == "tracker_dir" and config.delete_policy == "never"
    if not keeps_files and not os.access(directory, os.W_OK, effective_ids=True):
        yield (
            f"spoolDir {directory} is not writable, where files that were read are renamed or deleted; "
            "trackingPolicy = tracker_dir leaves them as they are"
        )
    tracker_directory = ancestor = config.tracker_directory
    while not os.path.lexists(ancestor):
        ancestor = ancestor.parent
    if not ancestor.is_dir():
        yield f"trackerDir {tracker_directory} cannot be used: {ancestor} is not a directory"
    elif not os.access(ancestor, os.W_OK | os.X_OK, effective_ids=True):
        yield f"trackerDir {tracker_directory} cannot be used: {ancestor} is not writable"
