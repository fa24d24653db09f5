"""Source `taildir` beside busy writers: every line is read, or its file is reported as missed."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from flafka.sources.taildir import TaildirSource
from flafka.sources.taildir.tail import Tail
from tests.fixtures.examples import examples
from tests.sources.taildir_running import append, bodies, start

ROTATING = """
import logging.handlers, sys, time
path, size, backups, lines, rate = sys.argv[1], *map(int, sys.argv[2:])
handler = logging.handlers.RotatingFileHandler(path, maxBytes=size, backupCount=backups)
logger = logging.Logger("writer")
logger.addHandler(handler)
began = time.monotonic()
for number in range(lines):
    logger.info("%08d %s", number, "." * 90)
    if rate and number % 100 == 99:
        time.sleep(max(0, began + number / rate - time.monotonic()))
"""
"""An application that logs with Python's own handler: path, maxBytes, backupCount, lines, lines a second (0: all)."""

BUSY = """
import os, sys, time
directory, seconds = sys.argv[1], float(sys.argv[2])
files = [open(f"{directory}/busy.{i}", "ab", buffering=0) for i in range(4)]
end, number = time.monotonic() + seconds, 0
while time.monotonic() < end:
    for _ in range(600):
        for i, file in enumerate(files):
            file.write(b"busy.%d %08d\\n" % (i, number))
        number += 1
    time.sleep(0.05)
print(number)
"""
"""Bursts of 600 writes into each of four files; prints how many lines each has."""

SHORT = """
import os, sys, threading, time
directory, count, life = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
def live(number):
    path = f"{directory}/short.{number}"
    with open(path, "ab", buffering=0) as file:
        for line in range(100):
            file.write(b"short.%d %08d\\n" % (number, line))
            time.sleep(life / 200)
    time.sleep(life / 2)
    os.unlink(path)
threads = []
for number in range(count):
    threads.append(threading.Thread(target=live, args=(number,)))
    threads[-1].start()
    time.sleep(0.05)
for thread in threads:
    thread.join()
"""
"""Files of 100 lines that live for `life` seconds."""


class Reading:
    """Running source, and its events."""

    def __init__(self, source: TaildirSource) -> None:
        self.source = source
        self.lines: Counter[bytes] = Counter()
        self.latest = time.monotonic()
        self.pause = threading.Event()
        self.pause.set()

    def run(self) -> None:
        for batch in self.source.batches():
            self.pause.wait()
            self.lines.update(batch.bodies.to_pylist())
            self.source.stored(batch)
            self.latest = time.monotonic()

    def count(self, name: str) -> int:
        return int(self.source.metrics.get(name))

    def await_lines(self, expected: int) -> None:
        """Wait until that many lines came, or nothing has come for longer than two full scans."""
        self.latest = time.monotonic()
        while sum(self.lines.values()) < expected and time.monotonic() - self.latest < 5:
            time.sleep(0.01)


@contextmanager
def reading(directory: Path, pattern: str, **options: str) -> Iterator[Reading]:
    source = start(directory, pattern, **{"backoffSleepIncrement": "1000", "maxBackoffSleep": "1000", **options})
    reader = Reading(source)
    thread = threading.Thread(target=reader.run)
    thread.start()
    try:
        yield reader
    finally:
        reader.pause.set()
        source.stopping.set()
        thread.join(60)
        source.close()


@contextmanager
def writing(program: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def lost(lines: Counter[bytes], expected: int) -> list[int]:
    numbers = {int(line.split()[0]) for line in lines}
    return [number for number in range(expected) if number not in numbers]


def files_lost(numbers: list[int], per_file: int) -> int:
    """Return at least how many files were missed, where that many lines fit into each."""
    return -(-len(numbers) // per_file)


@pytest.mark.parametrize("before", [0, 40, 2000])
def test_a_file_that_grows_while_it_is_opened_is_not_mistaken_for_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: int
) -> None:
    """The file gets a longer head between the check of its size and its opening."""
    hold = Tail.attach

    def grown(tail: Tail, fd: int) -> None:
        append(Path(tail.path), b"later\n" * 100)
        hold(tail, fd)

    source = start(tmp_path, inotify="false")
    append(tmp_path / "logs" / "log.1", b"x" * before + b"\n")
    with monkeypatch.context() as patched:
        patched.setattr(Tail, "attach", grown)
        lines = bodies(source)
    source.close()
    assert lines == [b"x" * before] + [b"later"] * 100
    assert source.metrics.get("FileRestartCount") == 0


@pytest.mark.parametrize("pattern", ["app[.]log", "app[.]log.*"])
@pytest.mark.parametrize(
    ("size", "backups", "lines", "rate"), [(20_000, 3, examples(30_000), 0), (100_000, 10, examples(60_000), 10_000)]
)
def test_pythons_rotating_handler(
    pattern: str, size: int, backups: int, lines: int, rate: int, tmp_path: Path
) -> None:
    with reading(tmp_path, pattern) as reader:
        with writing(ROTATING, tmp_path / "logs" / "app.log", size, backups, lines, rate) as writer:
            assert writer.wait(300) == 0
        reader.await_lines(lines)
    missing = lost(reader.lines, lines)
    assert files_lost(missing, size // 100) <= reader.count("FileMissedCount")
    assert max(reader.lines.values()) == 1


@pytest.mark.usefixtures("lengthy")
def test_files_that_live_for_a_moment_beside_busy_ones(tmp_path: Path) -> None:
    """Such an application writes a file for each job into the log directory of its servers."""
    (tmp_path / "logs").mkdir()
    with reading(tmp_path, ".*") as reader:
        with writing(BUSY, tmp_path / "logs", 4) as busy, writing(SHORT, tmp_path / "logs", 60, 0.6) as short:
            assert short.wait(300) == 0
            assert busy.wait(300) == 0
            assert busy.stdout is not None
            count = int(busy.stdout.read())
        expected = {b"short.%d %08d" % (i, line) for i in range(60) for line in range(100)}
        expected |= {b"busy.%d %08d" % (i, line) for i in range(4) for line in range(count)}
        reader.await_lines(len(expected))
    assert expected - set(reader.lines) == set()
    assert max(reader.lines.values()) == 1
    assert reader.count("FileMissedCount") == 0


def test_short_lived_files_are_read_after_the_channel_was_full(tmp_path: Path) -> None:
    """A process that no channel blocks opens them, and they are read once the channel takes events."""
    with reading(tmp_path, "app[.]log") as reader:
        number, log = 1, tmp_path / "logs" / "app.log"

        def opened() -> None:
            """Proceed also if the source has read the files already, before the full channel blocks it."""
            inode, deadline = log.stat().st_ino, time.monotonic() + 2
            while (log.stat().st_dev, inode) not in reader.source._watcher._opened and time.monotonic() < deadline:
                time.sleep(0.001)

        log.write_bytes(b"%08d\n" % 0)
        reader.await_lines(1)  # it is read, and so it is open
        reader.pause.clear()
        for _ in range(50):
            with log.open("ab") as file:
                file.write(b"".join(b"%08d\n" % n for n in range(number, number + 100)))
            number += 100
            log.unlink()
            log.touch()
            opened()
        reader.pause.set()
        reader.await_lines(number)
    assert lost(reader.lines, number) == []
    assert max(reader.lines.values()) == 1
    assert reader.count("FileMissedCount") == 0
