"""The files that there are to read, and in which order."""

# Paths are text here, as in all that looks at thousands of files.
# ruff: noqa: PTH103, PTH104, PTH108, PTH112, PTH116, PTH118, PTH119, PTH120, PTH208

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from flafka.sources.filenames import name_pattern
from flafka.sources.spooldir.config import SpooldirConfig
from flafka.sources.spooldir.tracker import State
from flafka.sources.troubles import Troubles

_SETTLED = 2_000_000_000
"""Nanoseconds after which a directory's modification time tells a later change from an earlier one anywhere."""


class Candidate(NamedTuple):
    """A file that may be read."""

    path: str
    state: State


class _Listing(NamedTuple):
    """What a directory held when it had that modification time."""

    modified: int
    files: list[Candidate]
    directories: list[str]


class _Checked(NamedTuple):
    """Which of these files had no mark when the directory of the marks had that modification time."""

    modified: int
    listed: list[Candidate]
    unmarked: list[Candidate]


class Directory:
    """`spoolDir`, and the marks of `trackerDir` where these tell what has been read."""

    def __init__(self, config: SpooldirConfig, troubles: Troubles) -> None:
        self.path = config.directory
        self._suffix = config.file_suffix
        self._include: re.Pattern[str] = name_pattern(config.include_pattern)
        self._ignore: re.Pattern[str] = name_pattern(config.ignore_pattern)
        self._recursive = config.recursive
        self._marks = str(config.tracker_directory) if config.tracking_policy == "tracker_dir" else None
        self._deletes = config.delete_policy == "immediate"
        self._order = config.consume_order
        self._troubles = troubles
        self._listed: dict[str, _Listing] = {}
        self._checked: dict[str, _Checked] = {}

    def mark(self, path: str) -> str:
        """Rename, delete or mark a file that was read; in words why not, where that fails."""
        mark = self._mark(path)
        try:
            if self._deletes:
                os.unlink(path)
            elif self._marks is not None:
                os.makedirs(os.path.dirname(mark), exist_ok=True)
                os.close(os.open(mark, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644))
            elif os.path.lexists(mark):
                raise FileExistsError
            else:
                os.rename(path, mark)
        except FileExistsError:
            return f"was read, and {mark} is there already"
        except OSError as e:
            return f"was read, and cannot be marked so: {e.strerror or e}"
        return ""

    def _mark(self, path: str) -> str:
        """What tells that it was read."""
        if self._marks is None:
            return path + self._suffix
        return os.path.join(self._marks, os.path.relpath(path, self.path) + self._suffix)

    def candidates(self) -> list[Candidate]:
        """All files that are not read yet, the next one first."""
        files: list[Candidate] = []
        before, self._listed = self._listed, {}
        open_directories = [self.path]
        while open_directories:
            directory = open_directories.pop()
            listing = self._list(directory, before)
            if listing is None:
                continue
            files += listing.files if self._marks is None else self._unmarked(directory, listing.files)
            open_directories += listing.directories
        if self._order != "random":
            sign = -1 if self._order == "youngest" else 1
            # In milliseconds, then by name, as Flume; what is left open, by path.
            files.sort(
                key=lambda file: (sign * (file.state.modified // 1_000_000), os.path.basename(file.path), file.path)
            )
        return files

    def _list(self, directory: str, before: dict[str, _Listing]) -> _Listing | None:
        try:
            modified = os.stat(directory).st_mtime_ns
            known = before.get(directory)
            if known is None or known.modified != modified:
                known = self._look(directory, modified)
        except OSError as e:
            if directory == self.path or not isinstance(e, FileNotFoundError | NotADirectoryError):
                reason = f"directory {directory} cannot be read, it is tried again: {e.strerror}"
                self._troubles.report(directory, reason)
            return None
        if known.modified == modified:
            self._troubles.over(directory)
        # Just after a change the directory may change again at what counts as the same time: then do not rely on it.
        if time.time_ns() - modified > _SETTLED:
            self._listed[directory] = known
        return known

    def _look(self, directory: str, modified: int) -> _Listing:
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
                        continue  # it is gone again, or a link to nothing
                    except OSError as e:
                        reason = f"{entry.path} cannot be read, it is tried again: {e.strerror}"
                        self._troubles.report(directory, reason)
                        modified = -1  # the directory has to be looked at again
                        continue
                    if stat.S_ISREG(status.st_mode):
                        files.append(Candidate(entry.path, State.of(status)))
        return _Listing(modified, files, directories)

    def _unmarked(self, directory: str, files: list[Candidate]) -> list[Candidate]:
        """Those without a mark in `trackerDir`."""
        if not files:
            return files
        marks = os.path.dirname(self._mark(files[0].path))
        try:
            modified = os.stat(marks).st_mtime_ns
            known = self._checked.get(directory)
            if known is not None and known.modified == modified and known.listed is files:
                return known.unmarked
            names = set(os.listdir(marks))
        except (FileNotFoundError, NotADirectoryError):
            return files
        except OSError as e:
            # Without the marks, all would be read again.
            self._troubles.report(marks, f"trackerDir {marks} cannot be read, it is tried again: {e.strerror}")
            return []
        self._troubles.over(marks)
        unmarked = []
        for file in files:
            name = os.path.basename(file.path) + self._suffix
            if name not in names:
                unmarked.append(file)
                self._troubles.over(os.path.join(marks, name))
            else:
                self._see_reuse(file, os.path.join(marks, name))
        self._checked.pop(directory, None)
        if time.time_ns() - modified > _SETTLED:
            self._checked[directory] = _Checked(modified, files, unmarked)
        return unmarked

    def _see_reuse(self, file: Candidate, mark: str) -> None:
        """Tell of a file that is younger than the mark that says that it was read."""
        with suppress(OSError):
            if file.state.modified > os.stat(mark).st_mtime_ns + _SETTLED:
                reason = (
                    f"{file.path} has changed since a file of its name was read: it is not read while {mark} is there"
                )
                self._troubles.report(mark, reason)


def problems(config: SpooldirConfig) -> Iterator[str]:
    """What keeps the directories of a configuration from being used."""
    directory = config.directory
    if not os.path.isdir(directory):
        what = "is not a directory" if os.path.lexists(directory) else "does not exist"
        yield f"spoolDir {directory} {what}"
        return
    if not os.access(directory, os.R_OK | os.X_OK, effective_ids=True):
        yield f"spoolDir {directory} cannot be read: Permission denied"
    stays = config.tracking_policy == "tracker_dir" and config.delete_policy == "never"
    if not stays and not os.access(directory, os.W_OK, effective_ids=True):
        yield (
            f"spoolDir {directory} is not writable, where files that were read are renamed or deleted; "
            "trackingPolicy = tracker_dir leaves them as they are"
        )
    trackers = place = config.tracker_directory
    while not os.path.lexists(place):
        place = place.parent
    if not place.is_dir():
        yield f"trackerDir {trackers} cannot be used: {place} is not a directory"
    elif not os.access(place, os.W_OK | os.X_OK, effective_ids=True):
        yield f"trackerDir {trackers} cannot be used: {place} is not writable"
