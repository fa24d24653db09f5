"""Results of a release: rows of its table, and commands whose failure is a row."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from flafka.agent.cli.output import show

ERROR_LINES = 15
"""Number of last lines of a failed command that are shown."""


class CheckFailed(Exception):
    """Failed check, with the reason."""


class Row(NamedTuple):
    """Row of the table."""

    file: str
    size: str
    check: str
    result: str


class Report:
    """Rows of all checks, in the order in which they ran."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    @contextmanager
    def check(self, file: Path | str, text: str) -> Iterator[None]:
        """Run the block as a check of a file, which may be made in the block, and add its row.

        `text` says what holds if the check passes. A failure is printed at once, and not raised.
        """
        start, reason = time.monotonic(), ""
        try:
            yield
        except (CheckFailed, AssertionError, OSError) as e:
            reason = f"{type(e).__name__}: {e}"
        self._add(file, text, "failed" if reason else "passed")
        print(f"[{time.monotonic() - start:6.1f} s] {self.rows[-1].result}: {text} {reason}".rstrip(), flush=True)

    def untried(self, file: Path | str, text: str, reason: str) -> None:
        """Add the row of a check that cannot be tried here, for a reason."""
        self._add(file, f"{text}: {reason}", "untried")

    def fact(self, file: Path | str, text: str) -> None:
        """Add a row with a measured fact, which is no check."""
        self._add(file, text, "")

    @property
    def has_failed(self) -> bool:
        """True if a check has failed."""
        return any(row.result == "failed" for row in self.rows)

    def show(self) -> None:
        """Print the table."""
        show(Row._fields, self.rows, as_json=False)

    def _add(self, file: Path | str, text: str, result: str) -> None:
        """Add a row; name and size of a file stand in its first row only."""
        name = file.name if isinstance(file, Path) else file
        is_known = any(row.file == name for row in self.rows)
        size = _size(file) if isinstance(file, Path) and file.is_file() and not is_known else ""
        self.rows.append(Row(name, size, text, result))


def run(*command: Path | str, **options: Any) -> str:
    """Return the output of a command, of standard error too. Raises CheckFailed for an exit code other than 0."""
    words = [str(word) for word in command]
    done = subprocess.run(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, errors="replace", **options
    )
    if done.returncode:
        lines = done.stdout.splitlines()[-ERROR_LINES:]
        raise CheckFailed("\n  ".join([f"{' '.join(words)} ended with code {done.returncode}", *lines]))
    return done.stdout


def megabytes(number: int) -> str:
    """Return a number of bytes as megabytes."""
    return f"{number / 1e6:,.1f} MB"


def directory_bytes(directory: Path) -> int:
    """Return the bytes of all files below a directory."""
    return sum(file.lstat().st_size for file in directory.rglob("*") if file.is_file() and not file.is_symlink())


def _size(file: Path) -> str:
    return megabytes(file.stat().st_size)
