"""The source `journald` on a real journal, which systemd-journal-remote writes."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from flafka import Event
from flafka.plugins import conformance
from flafka_journald import JournaldSource, event_of

WRITER = os.environ.get("JOURNAL_REMOTE", "/lib/systemd/systemd-journal-remote")
needs_a_journal = pytest.mark.skipif(
    not (Path(WRITER).exists() and shutil.which("journalctl")), reason="no journalctl or systemd-journal-remote here"
)


def write(directory: Path, bodies: Sequence[bytes]) -> None:
    """Append entries, in the format that `journalctl --output=export` has."""
    entries = [
        b"__REALTIME_TIMESTAMP=%d\nPRIORITY=3\nMESSAGE\n%b%b\n\n"
        % (time.time_ns() // 1000, len(body).to_bytes(8, "little"), body)
        for body in bodies
    ]
    command = [WRITER, f"--output={directory}/test.journal", "-"]
    subprocess.run(command, input=b"".join(entries), capture_output=True, check=True)


@needs_a_journal
def test_it_keeps_the_promises_of_a_source(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    journal.mkdir()
    write(journal, [b"before"])
    properties = {"directory": str(journal), "cursorFile": str(tmp_path / "cursor"), "interval": "10"}
    conformance.check_source(
        JournaldSource,
        properties,
        lambda source, bodies: write(journal, bodies),
        failing={**properties, "directory": str(tmp_path / "none")},
    )


@needs_a_journal
def test_it_begins_where_it_is_told_to(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    journal.mkdir()
    write(journal, [b"1", b"2", b"3"])
    properties = {
        "directory": str(journal),
        "cursorFile": str(tmp_path / "cursor"),
        "start": "head",
        "batchSize": "2",
    }
    source = conformance.make(JournaldSource, properties)
    source.open()
    first = next(source.batches())
    source.stored(first)
    source = conformance.make(JournaldSource, properties)
    source.open()
    assert [event.body for event in first] == [b"1", b"2"]
    assert [(event.body, event.headers["Severity"]) for event in next(source.batches())] == [(b"3", "3")]


def test_what_an_entry_becomes() -> None:
    entry = {"__REALTIME_TIMESTAMP": "1767225600123456", "_HOSTNAME": "web1", "PRIORITY": ["6", "7"]}
    headers = {"timestamp": "1767225600123", "host": "web1", "Severity": "6"}
    assert event_of({**entry, "MESSAGE": "hello"}) == Event(b"hello", headers)
    assert event_of({**entry, "MESSAGE": [104, 255]}) == Event(b"h\xff", headers)
    assert event_of({**entry, "MESSAGE": None}) == Event(b"", headers)
