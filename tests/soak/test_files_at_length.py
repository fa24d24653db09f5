"""Source `taildir` beside rotations and busy files at full length, on a machine whose cores are all busy."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.sources.taildir_running import append
from tests.sources.test_taildir_busy import BUSY, ROTATING, SHORT, Reading, lost, reading, writing
from tests.sources.test_taildir_names import rotate

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]
SPIN = "while True: sum(range(100_000))"


@pytest.fixture
def load() -> Iterator[None]:
    """Two programs that keep processors busy."""
    with ExitStack() as ends:
        for _ in range(2):
            spinning = subprocess.Popen([sys.executable, "-c", SPIN])
            ends.callback(spinning.wait)
            ends.callback(spinning.kill)
        yield


def figure(title: str, reader: Reading, expected: int, missing: int, seconds: float) -> str:
    twice = sum(count - 1 for count in reader.lines.values())
    return f"{title}: {expected} lines in {seconds:.0f} s, {missing} lost, {twice} twice"


@pytest.mark.parametrize(
    ("size", "backups", "lines", "rate"), [(20_000, 3, 100_000, 0), (100_000, 10, 200_000, 10_000)]
)
@pytest.mark.parametrize("pattern", ["app[.]log", "app[.]log.*"])
def test_pythons_rotating_handler(
    load: None, pattern: str, size: int, backups: int, lines: int, rate: int, tmp_path: Path, figures: list[str]
) -> None:
    began = time.monotonic()
    with reading(tmp_path, pattern) as reader:
        with writing(ROTATING, tmp_path / "logs" / "app.log", size, backups, lines, rate) as writer:
            assert writer.wait(3000) == 0
        reader.await_lines(lines)
    missing = lost(reader.lines, lines)
    title = f"RotatingFileHandler {size // 1000} KB × {backups}, {lines * 100 // size} rotations, {pattern}"
    figures.append(figure(title, reader, lines, len(missing), time.monotonic() - began))
    assert missing == []
    assert max(reader.lines.values()) == 1


def test_files_that_live_for_a_moment_beside_busy_ones(load: None, tmp_path: Path, figures: list[str]) -> None:
    (tmp_path / "logs").mkdir()
    began = time.monotonic()
    with reading(tmp_path, ".*") as reader:
        with writing(BUSY, tmp_path / "logs", 60) as busy, writing(SHORT, tmp_path / "logs", 600, 0.6) as short:
            assert short.wait(3000) == 0
            assert busy.wait(3000) == 0
            assert busy.stdout is not None
            per_file = int(busy.stdout.read())
        expected = {b"short.%d %08d" % (i, line) for i in range(600) for line in range(100)}
        expected |= {b"busy.%d %08d" % (i, line) for i in range(4) for line in range(per_file)}
        reader.await_lines(len(expected))
    missing = len(expected - set(reader.lines))
    figures.append(
        figure("600 files of 0.6 s beside 4 busy ones", reader, len(expected), missing, time.monotonic() - began)
    )
    assert missing == 0
    assert max(reader.lines.values()) == 1


@pytest.mark.parametrize("pattern", ["app[.]log", "app[.]log.*"])
def test_rotation_with_compress_every_second(load: None, pattern: str, tmp_path: Path, figures: list[str]) -> None:
    log, lines, rotations = tmp_path / "logs" / "app.log", 150_000, 0
    began = time.monotonic()
    with reading(tmp_path, pattern) as reader:
        due = time.monotonic() + 1
        for number in range(0, lines, 50):
            append(log, b"".join(b"%08d\n" % n for n in range(number, number + 50)))
            time.sleep(max(0.0, began + number / 5000 - time.monotonic()))
            if time.monotonic() >= due:
                rotate(log, 3)
                rotations += 1
                due = time.monotonic() + 1
        reader.await_lines(lines)
    missing = len(lost(reader.lines, lines))
    figures.append(
        figure(f"{rotations} rotations with compress, {pattern}", reader, lines, missing, time.monotonic() - began)
    )
    assert missing == 0
    assert max(reader.lines.values()) == 1
