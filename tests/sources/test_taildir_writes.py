"""Writes to watched directories, as `taildir` reads them from inotify, and the batches that it makes of them."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from flafka.sources.taildir import events, source
from flafka.sources.taildir.cursors import FileCheckpoint
from flafka.sources.taildir.events import Events, batch_of
from flafka.sources.taildir.tail import ChangedError, Tail
from flafka.sources.taildir.writes import WriteWatcher
from tests.sources.taildir_running import append, bodies, start

MOST_QUEUED = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())


@pytest.fixture
def watcher() -> Iterator[WriteWatcher]:
    watcher = WriteWatcher()
    yield watcher
    watcher.close()


def test_written_files_are_named_once_under_each_path_of_their_directory(
    watcher: WriteWatcher, tmp_path: Path
) -> None:
    logs, link, names = tmp_path / "logs", tmp_path / "link", ["a", "b\udcff", "c" * 255]
    logs.mkdir()
    link.symlink_to(logs)
    for directory in (logs, link, logs):
        watcher.add(str(directory))
    assert not watcher.wait(0)
    for _ in range(3):
        for name in names:
            append(logs / name, b"line\n")
    assert watcher.wait(60)
    written = watcher.read()
    assert written.paths == {f"{directory}/{name}" for directory in (logs, link) for name in names}
    assert (written.events, written.has_overflowed) == (9, False)
    assert not watcher.wait(0)
    assert watcher.read().paths == set()


def test_more_writes_than_one_read_returns(watcher: WriteWatcher, tmp_path: Path) -> None:
    watcher.add(str(tmp_path))
    paths = {tmp_path / f"{number:0200}" for number in range(600)}
    for path in paths:
        append(path, b"line\n")
    assert watcher.read().paths == {str(path) for path in paths}


def test_a_directory_that_was_replaced_is_watched_again(watcher: WriteWatcher, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    watcher.add(str(logs))
    logs.rename(tmp_path / "before")
    logs.mkdir()
    watcher.add(str(logs))
    append(tmp_path / "before" / "old", b"line\n")
    append(logs / "new", b"line\n")
    assert watcher.read().paths == {f"{logs}/new"}
    (logs / "new").unlink()
    logs.rmdir()
    with pytest.raises(FileNotFoundError):
        watcher.add(str(logs))
    logs.mkdir()
    watcher.read()
    watcher.add(str(logs))
    append(logs / "latest", b"line\n")
    assert watcher.read().paths == {f"{logs}/latest"}
    watcher.clear()
    append(logs / "later", b"line\n")
    assert watcher.read().paths == set()


def test_another_thread_ends_the_wait_once(watcher: WriteWatcher) -> None:
    thread = threading.Thread(target=watcher.wake)
    thread.start()
    assert watcher.wait(60)
    assert not watcher.wait(0)
    thread.join()


def test_dropped_events_are_reported(watcher: WriteWatcher, tmp_path: Path) -> None:
    if MOST_QUEUED > 100_000:
        pytest.skip("its queue is larger than is worth filling")
    watcher.add(str(tmp_path))
    with (tmp_path / "a").open("ab", buffering=0) as first, (tmp_path / "b").open("ab", buffering=0) as second:
        for file, _ in zip(itertools.cycle([first, second]), range(MOST_QUEUED + 10), strict=False):
            file.write(b"1")
    assert watcher.read().has_overflowed
    assert not watcher.read().has_overflowed


def test_lines_that_the_kernel_did_not_report_are_read_by_polls(tmp_path: Path) -> None:
    if MOST_QUEUED > 100_000:
        pytest.skip("its queue is larger than is worth filling")
    tailing = start(tmp_path, backoffSleepIncrement="3600000", maxBackoffSleep="3600000")
    append(tmp_path / "logs" / "log.a", b"1\n")
    append(tmp_path / "logs" / "log.b", b"2\n")
    tailing._next_scan = 0.0
    assert bodies(tailing) == [b"1", b"2"]
    with (
        (tmp_path / "logs" / "log.a").open("ab", buffering=0) as first,
        (tmp_path / "logs" / "log.c").open("ab", buffering=0) as second,
    ):
        for file, _ in zip(itertools.cycle([first, second]), range(MOST_QUEUED + 10), strict=False):
            file.write(b".")
    append(tmp_path / "logs" / "log.b", b"3\n")
    batches = iter(tailing.batches())
    batch = next(batches)
    assert b"3" in batch.bodies.to_pylist()
    tailing.stopping.set()
    tailing.close()


@pytest.mark.parametrize("lines", [1, 3, 40])
def test_rows_and_columns_of_a_batch_are_equal(lines: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = []
    for number, headers in enumerate([{"file": "/a", "x": "1"}, {}, {"y": "ü", "file": "/b"}]):
        tail = Tail(f"/{number}", id=number, inode=number, device=1)
        tail.headers = headers
        text = b"".join(b"%d\xff\n" % line if line % 3 else b"\n" for line in range(lines))
        pieces.append(Events(tail, text, lines, None, None, len(text), FileCheckpoint()))
    batch = batch_of(pieces)
    monkeypatch.setattr(events, "_MAX_ROWS", 0)
    columns = batch_of(pieces)
    assert (batch.rows is not None, columns.rows) == (3 * lines <= 64, None)
    assert list(batch) == list(columns)
    assert batch.header_names == columns.header_names
    assert batch.records.equals(columns.records)


def test_a_head_that_was_verified_counts_for_its_own_fingerprint_only(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"a" * 2000 + b"\n")
    status = path.stat()
    tail = Tail(str(path), id=1, inode=status.st_ino, device=status.st_dev, offset=2001)
    tail.open()
    append(path, b"1\n")
    assert tail.read(100, 2003) == b"1\n"
    assert tail.read(100, 2003) == b"1\n"
    with path.open("r+b") as file:
        file.write(b"b")
    with pytest.raises(ChangedError):
        tail.read(100, 2003)
    tail.close()


def test_the_pause_between_reads_grows_with_the_files_that_were_read() -> None:
    assert [source._linger_seconds(files) for files in (1, 80, 50_000)] == pytest.approx([0.008, 0.008, 0.1])
