"""File groups: each a directory, and a pattern for the names of its files."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from flafka.sources.file_errors import FileErrors
from flafka.sources.filenames import compile_name_pattern
from flafka.sources.taildir.tail import is_not_found

_RELIABLE_AGE_NS = 2_000_000_000
"""Age of a directory's modification time from which it is reliable, in nanoseconds.

File systems have coarse timestamps: a younger one may hide a later change.
"""


@dataclass(frozen=True)
class FileGroup:
    """File group, with the headers of its events."""

    directory: str
    pattern: re.Pattern[str]
    headers: Mapping[str, str]

    @classmethod
    def of(cls, path: str, headers: Mapping[str, str]) -> FileGroup:
        """Parse Flume's notation: a directory, a slash and a regex of file names.

        A relative path begins at the working directory. Raises ValueError where the path is invalid.
        """
        directory, slash, pattern = path.rpartition("/")
        if not pattern or not slash:
            hint = f": write ./{pattern} for the files of the working directory" if pattern else ""
            raise ValueError(f"must be a directory, a slash and a regex of file names, not {path!r}{hint}")
        if path.startswith("~"):
            raise ValueError(f"must be a directory, a slash and a regex of file names, not {path!r}: write ~ in full")
        if pattern.startswith("*"):  # a shell glob, not a regex
            correction = pattern.replace(".", "[.]").replace("*", ".*")
            raise ValueError(f"must end in a regex of file names, not {pattern!r}: write {directory}/{correction}")
        if not path.startswith("/"):  # as in Flume, whose position file has the same absolute paths
            directory = os.path.join(Path.cwd(), directory)
        return cls(re.sub("/{2,}", "/", directory).rstrip("/") or "/", compile_name_pattern(pattern), headers)


class FileGroups:
    """File groups of a source. A name belongs to the first group that it matches."""

    def __init__(self, groups: Sequence[FileGroup], file_errors: FileErrors, *, cache: bool) -> None:
        self._groups: dict[str, list[FileGroup]] = {}
        for group in groups:
            self._groups.setdefault(group.directory, []).append(group)
        self._file_errors = file_errors
        self._cache = cache
        self._listings: dict[str, tuple[int, list[str]]] = {}
        """Cache by directory: its modification time in nanoseconds, and its matching paths."""

    @property
    def directories(self) -> set[str]:
        """Directories of all groups."""
        return set(self._groups)

    def patterns(self, directory: str) -> list[str] | None:
        """Return the name patterns of all groups in a directory; None where no group has that directory."""
        groups = self._groups.get(directory)
        return None if groups is None else [group.pattern.pattern for group in groups]

    def headers(self, path: str) -> Mapping[str, str] | None:
        """Return the headers for events of the file at `path`; None where no group matches the path."""
        group = self._group(*os.path.split(path))
        return None if group is None else group.headers

    def _group(self, directory: str, name: str) -> FileGroup | None:
        """Return the first group of the directory whose pattern matches the file name, or None."""
        for group in self._groups.get(directory, ()):
            if group.pattern.fullmatch(name):
                return group
        return None

    def paths(self, directory: str) -> list[str] | None:
        """Return the sorted paths in a directory that match a group; None where it is unreadable.

        Paths of directories and special files are included. A missing directory gives an empty list. Read errors are
        reported. With the option `cache`, the result may be cached until the directory's modification time changes.
        """
        try:
            modified = os.stat(directory).st_mtime_ns
            cached = self._listings.get(directory)
            if cached is not None and cached[0] == modified:
                return cached[1]
            names = sorted(os.listdir(directory))
        except OSError as e:
            self._file_errors.report(
                directory, f"directory {directory} cannot be read, it is tried again: {e.strerror}"
            )
            return [] if is_not_found(e) else None
        self._file_errors.clear(directory)
        prefix = directory.rstrip("/")
        paths = [f"{prefix}/{name}" for name in names if self._group(directory, name) is not None]
        # A change soon after another may leave the same timestamp: caching would miss it.
        if self._cache and time.time_ns() - modified > _RELIABLE_AGE_NS:
            self._listings[directory] = modified, paths
        return paths
