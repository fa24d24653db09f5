"""Options of the source `taildir`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pydantic

from flafka.plugins import MAX_HEADER_COLUMNS, Config, Problem, cross_field_validator, option
from flafka.plugins.java.pattern import NonLinearPattern
from flafka.plugins.java.regex import Regex
from flafka.sources.filenames import glob_directory_warning, glob_pattern_warning
from flafka.sources.taildir.events import Multiline
from flafka.sources.taildir.groups import FileGroup
from flafka.sources.taildir.tail import MAX_LINE_BYTES

NO_LIMIT = 2**63 - 1


class TaildirConfig(Config):
    """Options of the source `taildir`."""

    filegroups: list[str] = option(
        name="filegroups", description="Names of the file groups, separated by blanks.", min_length=1
    )
    patterns: dict[str, str] = option(
        {},
        name="filegroups.",
        path="flume",
        description="`filegroups.<group>` is the path of the group's files. The part after the last slash is a "
        "regular expression that must match the whole file name. A relative path begins at the working directory.",
    )
    headers: dict[str, str] = option(
        {}, name="headers.", description="`headers.<group>.<name>` is a header set on every event of that group."
    )
    position_file: str = option(
        "~/.flume/taildir_position.json",
        name="positionFile",
        path="flume",
        description="Position file: the file offsets, in Flume's format. The agent keeps two files beside it. "
        "`.journal` holds each offset as soon as its batch is stored, and fingerprints that identify each file. "
        "`.lock` prevents other sources from using the same position file.",
        min_length=1,
    )
    batch_size: int = option(
        10_000,
        name="batchSize",
        description="Maximum number of lines in a batch. A batch also ends at 512 KiB.",
        unit="events",
        ge=1,
    )
    max_batch_count: int = option(
        NO_LIMIT,
        name="maxBatchCount",
        description="Maximum number of consecutive batches from one file while other files wait. At most 8 MiB are "
        "read from a file at a time in any case. 0 or less sets no limit.",
    )
    skip_to_end: bool = option(
        False,
        name="skipToEnd",
        description="When the agent starts, begin at the end of files that the position file does not name.",
    )
    byte_offset_header: bool = option(
        False,
        name="byteOffsetHeader",
        description="Set the header `byteoffset`: the file offset where the event starts, in bytes.",
    )
    idle_timeout: int = option(
        120_000,
        name="idleTimeout",
        description="Time without growth after which a file is closed, until it grows again. The unfinished last "
        "line of a renamed or deleted file then becomes an event, and a deleted file is no longer tracked.",
        unit="ms",
        ge=0,
    )
    write_position_interval: int = option(
        3000,
        name="writePosInterval",
        description="Time between two writes of the position file. The journal beside it is written with every "
        "batch, and restores the offsets after a crash.",
        unit="ms",
        ge=0,
    )
    cache_pattern_matching: bool = option(
        True, name="cachePatternMatching", description="List a directory only when its modification time has changed."
    )
    file_header: bool = option(False, name="fileHeader", description="Set a header with the path of the file.")
    file_header_key: str = option(
        "file", name="fileHeaderKey", description="Name of the header for the path of the file.", min_length=1
    )
    backoff_sleep_increment: int = option(
        1000,
        name="backoffSleepIncrement",
        description="Time between two full scans, which also run when inotify reports no change. The time grows by "
        "this much whenever there was nothing to read, up to `maxBackoffSleep`.",
        unit="ms",
        ge=1,
    )
    max_backoff_sleep: int = option(
        5000,
        name="maxBackoffSleep",
        description="Maximum time between two full scans. A source of more than 100 files, whose changes inotify "
        "reports, pauses for at least 5 ms for each further file, up to this time.",
        unit="ms",
        ge=1,
    )
    keep_carriage_return: bool = option(
        False,
        name="keepCarriageReturn",
        description="Keep the carriage return of lines that end in CR LF; Flume removes it. Needed to restore such "
        "files byte for byte.",
    )

    inotify: bool = option(
        True,
        name="inotify",
        description="Detect changes with inotify. Set it to `false` on network file systems (NFS, SMB), which "
        "inotify does not cover. Full scans then detect changes, as often as `backoffSleepIncrement` and "
        "`maxBackoffSleep` say.",
    )
    multiline_pattern: str = option(
        "",
        name="multiline.pattern",
        description="Regular expression found in each continuation line; such lines are joined into one event. "
        "With `multiline.negate`, it is found in every other line instead. For stack traces, describe how an "
        "event begins: `^\\d{4}-` with `multiline.negate = true`.",
    )
    multiline_negate: bool = option(
        False,
        name="multiline.negate",
        description="Make the lines in which the pattern is not found the continuation lines.",
    )
    multiline_match: Literal["after", "before"] = option(
        "after",
        name="multiline.match",
        description="`after`: a continuation line belongs to the line before it. `before`: it belongs to the line "
        "after it.",
    )
    multiline_timeout: int = option(
        5000,
        name="multiline.timeout",
        description="An event that could continue is complete once its file has not grown for this long.",
        unit="ms",
        ge=1,
    )
    multiline_max_lines: int = option(
        500,
        name="multiline.maxLines",
        description="Maximum number of lines in an event. A longer one becomes several events; nothing is dropped.",
        unit="lines",
        ge=1,
    )
    multiline_max_bytes: int = option(
        1 << 20,
        name="multiline.maxBytes",
        description="Maximum size of an event of several lines. A longer one becomes several events; nothing is "
        "dropped.",
        unit="bytes",
        ge=1,
        le=MAX_LINE_BYTES,
    )

    @pydantic.field_validator("max_batch_count")
    @classmethod
    def _without_limit(cls, value: int) -> int:
        return value if value > 0 else NO_LIMIT

    @pydantic.field_validator("multiline_pattern")
    @classmethod
    def _check_pattern(cls, pattern: str) -> str:
        try:
            Regex(pattern)
        except NonLinearPattern as e:
            raise ValueError(f"{e}: write it without (multiline.negate reverses the match)") from None
        return pattern

    @cross_field_validator("filegroups", "patterns", "headers")
    def _check_groups(self) -> None:
        self.groups()

    def warnings(self) -> Iterator[Problem]:
        """Yield a warning for each file group whose directory or pattern looks like a shell glob."""
        for name in self.filegroups:
            directory, slash, pattern = self.patterns.get(name, "").rpartition("/")
            for text in (
                glob_directory_warning(directory, "write a file group for each directory"),
                glob_pattern_warning(pattern, directory + slash),
            ):
                if text:
                    yield Problem(f"filegroups.{name}", text, is_flume_behavior=True)

    @cross_field_validator("multiline_pattern")
    def _joins_lines(self) -> None:
        """Raise ValueError if an option `multiline.*` is set, but not `multiline.pattern`."""
        if not self.multiline_pattern and any(name.startswith("multiline_") for name in self.model_fields_set):
            raise ValueError("is required, as without it no lines are joined")

    def groups(self) -> list[FileGroup]:
        """Return the file groups in the order of `filegroups`, each with its headers.

        Raises ValueError with all errors of `filegroups` and `headers`.
        """
        groups, errors = [], []
        headers: dict[str, dict[str, str]] = {}
        for key, value in self.headers.items():
            group, _, name = key.partition(".")
            if name:
                headers.setdefault(group, {})[name] = value
            else:
                errors.append(f"headers.{key} must be headers.<group>.<name>")
        for name in self.filegroups:
            if name not in self.patterns:
                errors.append(f"filegroups.{name} is missing: the path of the file group {name}")
                continue
            try:
                groups.append(FileGroup.of(self.patterns[name], headers.get(name, {})))
            except ValueError as e:
                errors.append(f"filegroups.{name}: {e}")
        # FileGroups share batches, whose header columns are limited; byteOffsetHeader and fileHeader need two.
        if len({name for group in headers.values() for name in group}) > MAX_HEADER_COLUMNS - 2:
            errors.append(f"at most {MAX_HEADER_COLUMNS - 2} different headers can be set")
        if errors:
            raise ValueError("; ".join(errors))
        return groups

    def multiline(self) -> Multiline | None:
        """Return the rule that joins lines, or None where each line is an event."""
        if not self.multiline_pattern:
            return None
        return Multiline(
            Regex(self.multiline_pattern),
            negate=self.multiline_negate,
            after=self.multiline_match == "after",
            max_lines=self.multiline_max_lines,
            max_bytes=self.multiline_max_bytes,
        )

    @property
    def position_path(self) -> Path:
        """Path of the position file, with `~` expanded."""
        return Path(self.position_file).expanduser()
