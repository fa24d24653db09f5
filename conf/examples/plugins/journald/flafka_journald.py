"""The source `journald`: entries of systemd's journal."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import tempfile
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from flafka import Batch, Component, Config, Event, Retry, Source, hookimpl, option

HEADERS = {
    "_HOSTNAME": "host",
    "_SYSTEMD_UNIT": "unit",
    "SYSLOG_IDENTIFIER": "identifier",
    "SYSLOG_FACILITY": "Facility",
    "PRIORITY": "Severity",
    "_PID": "pid",
}
"""Headers by field of the journal. Some have the names of the `syslog` sources."""


class JournaldConfig(Config):
    """Options of the source `journald`."""

    cursor_file: str = option(name="cursorFile", description="File that stores the cursor of the journal.")
    matches: list[str] = option(
        [], name="matches", description="Fields that an entry must have, such as `_SYSTEMD_UNIT=ssh.service`."
    )
    start: Literal["head", "tail"] = option(
        "tail",
        name="start",
        description="Start without a stored cursor: at the oldest entry, or after the newest.",
    )
    directory: str | None = option(
        None, name="directory", description="Directory of the journal. If unset, this host's own journal is read."
    )
    interval: int = option(1000, name="interval", unit="ms", gt=0, description="Time between two polls.")
    batch_size: int = option(1000, name="batchSize", unit="events", gt=0, description="Maximum size of a batch.")


class JournaldSource(Source[JournaldConfig]):
    """Turns the message of each entry into an event; at least once: the source resumes at its cursor after a restart.

    The cursor is stored once the channels have a batch: a crash in between repeats that batch. Entries that the
    journal has deleted meanwhile are lost.
    """

    type_name = "journald"

    def open(self) -> None:
        """Load the cursor. Raises Retry if the journal cannot be read."""
        for error in self.check_connectivity():
            raise Retry(error)
        self._file = Path(self.config.cursor_file)
        self._cursor = self._file.read_text("utf-8") if self._file.exists() else ""
        if not self._cursor and self.config.start == "tail":
            for newest in self._entries("--lines=1"):
                self._save(newest[-1]["__CURSOR"])  # otherwise a restart would skip entries written until then

    def check_connectivity(self) -> Iterator[str]:
        """Yield each reason why the journal cannot be read."""
        try:
            done = subprocess.run(self._command("--lines=0"), capture_output=True, text=True, check=False)
        except OSError as e:
            yield f"journalctl cannot be run: {e.strerror}"
            return
        if done.returncode:
            yield f"journalctl: {done.stderr.strip()}"
        if not Path(self.config.cursor_file).absolute().parent.is_dir():
            yield f"there is no directory for {self.config.cursor_file}"

    def exclusive_resources(self) -> Mapping[Path, str]:
        """Return the cursor file, which no other source may use."""
        return {Path(self.config.cursor_file): "cursorFile"}

    def sets_headers(self) -> Collection[str]:
        """Return the headers of the fields, and `timestamp`."""
        return [*HEADERS.values(), "timestamp"]

    def batches(self) -> Iterator[Batch]:
        """Yield all entries after the cursor, and poll for new ones."""
        while not self.stopping.is_set():
            after = [f"--after-cursor={self._cursor}"] if self._cursor else []
            for entries in self._entries(*after):
                self._last_cursor = entries[-1]["__CURSOR"]
                yield Batch.of(map(event_of, entries))
                if self.stopping.is_set():
                    return
            self.stopping.wait(self.config.interval / 1000)

    def stored(self, batch: Batch) -> None:
        """Save the cursor of the last entry, as the channels have the batch."""
        self._save(self._last_cursor)

    def _save(self, cursor: str) -> None:
        """Replace the cursor file atomically."""
        new = self._file.with_name(self._file.name + ".new")
        with new.open("w", encoding="utf-8") as file:
            file.write(cursor)
            file.flush()
            os.fsync(file.fileno())
        new.replace(self._file)
        self._cursor = cursor

    def _entries(self, *options: str) -> Iterator[list[dict[str, Any]]]:
        """Yield the output of journalctl in batches of entries. The process ends with the generator."""
        with (
            tempfile.TemporaryFile() as errors,
            subprocess.Popen(self._command(*options), stdout=subprocess.PIPE, stderr=errors) as journalctl,
        ):
            assert journalctl.stdout is not None
            try:
                while lines := list(itertools.islice(journalctl.stdout, self.config.batch_size)):
                    yield [json.loads(line) for line in lines]
                if journalctl.wait():
                    errors.seek(0)
                    raise Retry(f"journalctl: {errors.read().decode(errors='replace').strip()}")
            finally:
                journalctl.kill()

    def _command(self, *options: str) -> list[str]:
        directory = [f"--directory={self.config.directory}"] if self.config.directory else []
        return ["journalctl", "--output=json", "--all", "--quiet", *directory, *options, *self.config.matches]


def event_of(entry: dict[str, Any]) -> Event:
    """Return the event of one entry: its message, and its fields and time (in milliseconds) as headers."""
    headers = {
        header: _bytes(entry[field]).decode(errors="replace") for field, header in HEADERS.items() if field in entry
    }
    headers["timestamp"] = str(int(entry["__REALTIME_TIMESTAMP"]) // 1000)
    return Event(_bytes(entry.get("MESSAGE")), headers)


def _bytes(value: Any) -> bytes:
    """Return a field of journalctl's output as bytes: a text, a list of byte values, or a list of several values."""
    if isinstance(value, list):
        return bytes(value) if all(isinstance(one, int) for one in value) else _bytes(value[0])
    return str(value or "").encode()


@hookimpl
def components() -> list[type[Component]]:
    """Return the components of this module."""
    return [JournaldSource]
