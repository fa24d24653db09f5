"""Reactions of `taildir` to names from the kernel, without a full scan."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from flafka.agent.services.running import until
from flafka.sources.taildir import TaildirSource
from flafka.sources.taildir.tail import FileLocation
from tests.sources.taildir_running import append, bodies, positions
from tests.sources.test_taildir_names import Begin, await_report, begin

__all__ = ["begin"]


def start_idle(begin: Begin, tmp_path: Path, pattern: str = "log.*") -> TaildirSource:
    """Start a source with full scans on request, which closes every idle file."""
    (tmp_path / "logs").mkdir()
    source = begin(
        tmp_path,
        f"{pattern}|log.probe",
        backoffSleepIncrement="600000",
        maxBackoffSleep="600000",
        idleTimeout="0",
    )
    await_report(source)
    assert bodies(source) == []
    return source


def read(source: TaildirSource, count: int) -> list[bytes]:
    """Return this many next lines."""
    lines: list[bytes] = []
    until(lambda: lines.extend(bodies(source)) or len(lines) >= count, f"{count} lines", seconds=60)
    return lines


def scan_twice(source: TaildirSource) -> list[bytes]:
    """Return the results of two full scans."""
    lines = []
    for _ in range(2):
        source._next_scan = 0.0
        lines += bodies(source)
    return lines


def closed(source: TaildirSource) -> None:
    """Let all files be closed as idle."""

    def is_idle() -> bool:
        assert scan_twice(source) == []
        return all(tail.fd is None for tail in source._table if tail.location is not FileLocation.DELETED)

    until(is_idle)


def await_event(source: TaildirSource, path: Path) -> None:
    """Wait until the kernel has reported that name, and process its events."""
    until(lambda: any(change.path == str(path) for change in source._watcher._changes))
    assert bodies(source) == []


@pytest.mark.parametrize("other", ["log.b", "kept"])
def test_a_closed_file_is_followed_by_its_other_name(begin: Begin, tmp_path: Path, other: str) -> None:
    """A rotation by `ln` and `rm` leaves it so."""
    source, logs = start_idle(begin, tmp_path, "log.a"), tmp_path / "logs"
    append(logs / "log.a", b"1\n")
    assert read(source, 1) == [b"1"]
    closed(source)
    os.link(logs / "log.a", logs / other)
    (logs / "log.a").unlink()
    await_event(source, logs / "log.a")
    append(logs / other, b"2\n")
    assert read(source, 1) == [b"2"]
    source.close()
    assert positions(tmp_path) == {other: 4}


@pytest.mark.parametrize("at_once", [True, False])
def test_lines_in_the_old_target_of_a_link_are_read(begin: Begin, tmp_path: Path, *, at_once: bool) -> None:
    source, logs = start_idle(begin, tmp_path, "log.a"), tmp_path / "logs"
    for number in (1, 2):
        append(logs / f"target.{number}", b"%d\n" % number)
    (logs / "log.a").symlink_to(logs / "target.1")
    assert read(source, 1) == [b"1"]
    closed(source)
    if at_once:
        (logs / "new").symlink_to(logs / "target.2")
        (logs / "new").rename(logs / "log.a")
    else:
        (logs / "log.a").unlink()
        (logs / "log.a").symlink_to(logs / "target.2")
    assert read(source, 1) == [b"2"]
    append(logs / "target.1", b"late\n")
    assert read(source, 1) == [b"late"]


def test_no_loss_is_reported_after_copytruncate_of_a_closed_file(
    begin: Begin, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source, log = start_idle(begin, tmp_path, "app[.]log"), tmp_path / "logs" / "app.log"
    for number in range(3):
        append(log, b"first %d\n" % number)
        assert read(source, 1) == [b"first %d" % number]
        closed(source)
        shutil.copy(log, log.with_name(f"app.log.{number}"))
        os.truncate(log, 0)
        for template in (b"second %d", b"third %d"):
            append(log, template % number + b"\n")
            assert read(source, 1) == [template % number]
            source._next_scan = 0.0
            assert bodies(source) == []
        assert scan_twice(source) == []
    assert "was not found again" not in caplog.text
    assert len(source._discovery.closed._written) <= 1
