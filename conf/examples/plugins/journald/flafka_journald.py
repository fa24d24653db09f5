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
"""Fields of the journal, and the headers they become; some are those of the `syslog` sources."""


class JournaldConfig(Config):
    """Options of the source `journald`."""

    cursor_file: str = option(name="cursorFile", description="File that keeps the place in the journal.")
    matches: list[str] = option(
        [], name="matches", description="Fields that an entry must have, such as `_SYSTEMD_UNIT=ssh.service`."
    )
    start: Literal["head", "tail"] = option(
        "tail",
        name="start",
        description="Where to begin without a place: with the oldest entry, or after the newest.",
    )
    directory: str | None = option(
        None, name="directory", description="Directory of the journal. If unset, this host's own journal is read."
    )
    interval: int = option(1000, name="interval", unit="ms", gt=0, description="Time between two looks.")
    batch_size: int = option(1000, name="batchSize", unit="events", gt=0, description="Maximum size of a batch.")


class JournaldSource(Source[JournaldConfig]):
    """Makes an event of each entry's message; at least once: it stays at its place over restarts.

    The place is kept after the channels have taken a batch, so that a crash in between repeats that batch. What the
    journal itself has deleted meanwhile is lost.
    """

    type_name = "journald"

    def open(self) -> None:
        """Find the place."""
        for trouble in self.check_connectivity():
            raise Retry(trouble)
        self._file = Path(self.config.cursor_file)
        self._cursor = self._file.read_text("utf-8") if self._file.exists() else ""
        if not self._cursor and self.config.start == "tail":
            for newest in self._entries("--lines=1"):
                self._keep(newest[-1]["__CURSOR"])  # a restart must not begin behind what comes until then

    def check_connectivity(self) -> Iterator[str]:
        """What keeps journalctl from reading."""
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
        """No other source may keep its place there."""
        return {Path(self.config.cursor_file): "cursorFile"}

    def sets_headers(self) -> Collection[str]:
        """Those of the fields, and the time."""
        return [*HEADERS.values(), "timestamp"]

    def batches(self) -> Iterator[Batch]:
        """All entries behind the place, and then, at each look, those that are new."""
        while not self.stopping.is_set():
            after = [f"--after-cursor={self._cursor}"] if self._cursor else []
            for entries in self._entries(*after):
                self._reached = entries[-1]["__CURSOR"]
                yield Batch.of(map(event_of, entries))
                if self.stopping.is_set():
                    return
            self.stopping.wait(self.config.interval / 1000)

    def stored(self, batch: Batch) -> None:
        """The channels have the batch: keep the place of its last entry."""
        self._keep(self._reached)

    def _keep(self, cursor: str) -> None:
        """In one step, whatever happens: in another file, which takes the place of the one before."""
        other = self._file.with_name(self._file.name + ".new")
        with other.open("w", encoding="utf-8") as file:
            file.write(cursor)
            file.flush()
            os.fsync(file.fileno())
        other.replace(self._file)
        self._cursor = cursor

    def _entries(self, *options: str) -> Iterator[list[dict[str, Any]]]:
        """What journalctl prints, some entries at a time. It ends with the block that reads them, come what may."""
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
        where = [f"--directory={self.config.directory}"] if self.config.directory else []
        return ["journalctl", "--output=json", "--all", "--quiet", *where, *options, *self.config.matches]


def event_of(entry: dict[str, Any]) -> Event:
    """The event of one entry: its message, fields as headers, and when it was written, in milliseconds."""
    headers = {
        header: _bytes(entry[field]).decode(errors="replace") for field, header in HEADERS.items() if field in entry
    }
    headers["timestamp"] = str(int(entry["__REALTIME_TIMESTAMP"]) // 1000)
    return Event(_bytes(entry.get("MESSAGE")), headers)


def _bytes(value: Any) -> bytes:
    """A field as journalctl writes it: a text, the numbers of bytes that are none, or a list of several such."""
    if isinstance(value, list):
        return bytes(value) if all(isinstance(one, int) for one in value) else _bytes(value[0])
    return str(value or "").encode()


@hookimpl
def components() -> list[type[Component]]:
    """What this module brings."""
    return [JournaldSource]
