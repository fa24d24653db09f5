"""Options of the source `taildir`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

import pydantic

from plugins import MAX_HEADER_COLUMNS, Config, option
from plugins.regex import Regex
from sources.taildir.groups import Group
from sources.taildir.multiline import Multiline
from sources.taildir.tail import MAX_LINE


class TaildirConfig(Config):
    """Options of the source `taildir`."""

    filegroups: list[str] = option(name="filegroups", description="names of the file groups", min_length=1)
    patterns: dict[str, str] = option(
        {},
        name="filegroups.",
        description="by group, the absolute path of its files; the part behind the last slash is a regex that the "
        "whole file name must match",
    )
    headers: dict[str, str] = option(
        {},
        name="headers.",
        description="`headers.<group>.<name>`: a header of every event of that group",
    )
    position_file: str = option(
        "~/.flume/taildir_position.json",
        name="positionFile",
        description="where positions are kept, in Flume's format; files beside it hold each position at once, with "
        "what proves the identity of the file (`.journal`), and that no other source uses it (`.lock`)",
        min_length=1,
    )
    batch_size: int = option(
        10_000,
        name="batchSize",
        description="most lines in a batch; a batch is full at 512 KiB as well",
        unit="events",
        ge=1,
    )
    max_batch_count: int = option(
        2**63 - 1,
        name="maxBatchCount",
        description="most batches of one file before the next file has its turn; after 8 MiB it has it in any case",
        ge=1,
    )
    skip_to_end: bool = option(
        False,
        name="skipToEnd",
        description="at the start, begin at the end of files that the position file does not name",
    )
    byte_offset_header: bool = option(
        False,
        name="byteOffsetHeader",
        description="set a header `byteoffset`: where in its file the line starts",
    )
    idle_timeout: int = option(
        120_000,
        name="idleTimeout",
        description="after so long without growing a file is closed (it is opened again when it grows), the "
        "unfinished last line of a renamed or deleted file becomes an event, and a deleted file is forgotten",
        unit="ms",
        ge=0,
    )
    write_position_interval: int = option(
        3000,
        name="writePosInterval",
        description="how often the position file is written; the journal beside it, which counts after a crash, has "
        "every position with its batch",
        unit="ms",
        ge=0,
    )
    cache_pattern_matching: bool = option(
        True,
        name="cachePatternMatching",
        description="list a directory only when its modification time has changed",
    )
    file_header: bool = option(False, name="fileHeader", description="set a header with the path of the file")
    file_header_key: str = option("file", name="fileHeaderKey", description="name of that header", min_length=1)
    backoff_sleep_increment: int = option(
        1000,
        name="backoffSleepIncrement",
        description="all files are looked at after so long without a hint from the kernel, and after as much more "
        "each time that nothing was found",
        unit="ms",
        ge=1,
    )
    max_backoff_sleep: int = option(
        5000, name="maxBackoffSleep", description="longest time between two such looks", unit="ms", ge=1
    )
    keep_carriage_return: bool = option(
        False,
        name="keepCarriageReturn",
        description="leave the carriage return of a line that ends in CR LF in the event, where Flume takes it off; "
        "needed to give such files back byte for byte",
    )

    inotify: bool = option(
        True,
        name="inotify",
        description="have the kernel say when something changed. It cannot for network file systems (NFS, SMB): "
        "there `false` leaves it at looking, as often as `backoffSleepIncrement` and `maxBackoffSleep` say",
    )
    multiline_pattern: str = option(
        "",
        name="multiline.pattern",
        description="join lines: a regular expression found in the lines that go on with an event (or, with "
        "`multiline.negate`, in the others). For stack traces, say how an event begins: `^\\d{4}-` with "
        "`multiline.negate = true`",
    )
    multiline_negate: bool = option(
        False, name="multiline.negate", description="the lines that do not match are those that go on"
    )
    multiline_match: Literal["after", "before"] = option(
        "after",
        name="multiline.match",
        description="whether such a line belongs behind (`after`) the line before it or in front of (`before`) the "
        "next one",
    )
    multiline_timeout: int = option(
        5000,
        name="multiline.timeout",
        description="an event that may go on is complete once its file has not grown for so long",
        unit="ms",
        ge=1,
    )
    multiline_max_lines: int = option(
        500,
        name="multiline.maxLines",
        description="most lines of an event; what is longer becomes several events, nothing is thrown away",
        unit="lines",
        ge=1,
    )
    multiline_max_bytes: int = option(
        1 << 20,
        name="multiline.maxBytes",
        description="most bytes of an event of several lines, likewise",
        unit="bytes",
        ge=1,
        le=MAX_LINE,
    )

    @pydantic.field_validator("multiline_pattern")
    @classmethod
    def _check_pattern(cls, pattern: str) -> str:
        try:
            Regex(pattern)
        except ValueError as e:
            reason, look_around, _ = str(e).partition(", or set allowBacktracking")
            raise ValueError(reason + (" (multiline.negate turns it round)" if look_around else "")) from None
        return pattern

    @pydantic.model_validator(mode="after")
    def _check_groups(self) -> Self:
        self.groups()
        if not self.multiline_pattern and any(name.startswith("multiline_") for name in self.model_fields_set):
            raise ValueError("multiline.pattern is missing: without it no lines are joined")
        return self

    def groups(self) -> list[Group]:
        """The file groups. ValueError naming everything wrong with them."""
        groups, wrong = [], []
        headers: dict[str, dict[str, str]] = {}
        for key, value in self.headers.items():
            group, _, name = key.partition(".")
            if name:
                headers.setdefault(group, {})[name] = value
            else:
                wrong.append(f"headers.{key} must be headers.<group>.<name>")
        for name in self.filegroups:
            if name not in self.patterns:
                wrong.append(f"filegroups.{name} is missing: the path of the file group {name}")
                continue
            try:
                groups.append(Group.of(self.patterns[name], headers.get(name, {})))
            except ValueError as e:
                wrong.append(f"filegroups.{name}: {e}")
        # Lines of several groups share a batch; byteoffset and the file's name may come on top.
        if len({name for group in headers.values() for name in group}) > MAX_HEADER_COLUMNS - 2:
            wrong.append(f"at most {MAX_HEADER_COLUMNS - 2} different headers can be set")
        if wrong:
            raise ValueError("; ".join(wrong))
        return groups

    def multiline(self) -> Multiline | None:
        """How lines are joined; None where each is an event."""
        if not self.multiline_pattern:
            return None
        return Multiline(
            Regex(self.multiline_pattern),
            negate=self.multiline_negate,
            after=self.multiline_match == "after",
            most_lines=self.multiline_max_lines,
            most_bytes=self.multiline_max_bytes,
        )

    @property
    def position_path(self) -> Path:
        """Where the position file is."""
        return Path(self.position_file).expanduser()
