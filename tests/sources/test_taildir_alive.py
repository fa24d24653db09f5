"""Source `taildir` while it runs: woken, killed, and beside a busy writer."""

from __future__ import annotations

import errno
import random
import threading
import time
from collections import Counter
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from flafka.sources.taildir import TaildirConfig, TaildirSource
from tests.fixtures.processes import Forked
from tests.sources.descriptors import open_files
from tests.sources.taildir_running import append, make, start

# --- while it runs


def test_it_wakes_for_new_lines_and_stops_when_idle(logs: Path, tmp_path: Path) -> None:
    threads = threading.active_count()
    source = start(tmp_path, backoffSleepIncrement="3600000", maxBackoffSleep="3600000")
    arrived: list[bytes] = []
    news = threading.Condition()

    def run() -> None:
        for batch in source.batches():
            source.stored(batch)
            with news:
                arrived.extend(batch.bodies.to_pylist())
                news.notify()

    thread = threading.Thread(target=run)
    thread.start()
    log = logs / "log"
    steps: list[tuple[bytes, Path]] = [(b"a new file", log), (b"grown", log), (b"grown again", log)]
    expected = []
    for body, path in steps:
        append(path, body + b"\n")
        expected.append(body)
        with news:
            # The next full scan is an hour away: only the kernel's event can bring it.
            assert news.wait_for(lambda: arrived == expected, timeout=60)
    log.rename(logs / "old")
    log.write_bytes(b"after rotation\n")
    with news:
        assert news.wait_for(lambda: arrived[-1] == b"after rotation", timeout=60)
    source.stopping.set()
    thread.join(60)
    assert not thread.is_alive()
    source.close()
    source.close()
    assert threading.active_count() == threads


@pytest.mark.parametrize("reason", ["not wanted", "too many instances"])
def test_it_works_without_kernel_events(
    reason: str, logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused() -> None:
        raise OSError(errno.EMFILE, "inotify instance limit reached")

    if reason == "too many instances":
        monkeypatch.setattr("flafka.sources.taildir.watcher.WriteWatcher", refused)
    source = start(tmp_path, inotify=str(reason != "not wanted"))
    assert [path for path in open_files(tmp_path) if "inotify" in path] == []
    assert caplog.text.count("files are checked periodically instead") == (reason != "not wanted")
    (logs / "log").write_bytes(b"1\n")
    for batch in source.batches():
        assert batch.bodies.to_pylist() == [b"1"]
        source.stored(batch)
        source.stopping.set()
    source.close()


def test_a_refused_thread_leaves_no_descriptor_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    source = make(tmp_path)
    before = open_files(tmp_path)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="new thread"):
        source.open()
    source.close()
    assert [path for path in open_files(tmp_path) if "inotify" in path or "eventfd" in path] == []
    assert len(open_files(tmp_path)) == len(before)


def test_writes_that_inotify_does_not_report_wait_for_the_longest_pause(
    logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flafka.sources.taildir.source._SCANNED_AT_ONCE", 0)
    monkeypatch.setattr("flafka.sources.taildir.source._SCAN_PAUSE_SECONDS_PER_FILE", 300)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(b"1\n")
    (logs / "log").hardlink_to(elsewhere)
    source, lines = start(tmp_path, maxBackoffSleep="50"), list[bytes]()
    for batch in source.batches():
        lines += batch.bodies.to_pylist()
        source.stored(batch)
        append(elsewhere, b"%d\n" % (len(lines) + 1))
        if len(lines) == 3:
            source.stopping.set()
    source.close()
    assert lines[:3] == [b"1", b"2", b"3"]


def deliver(directory: Path) -> None:
    """Deliver to a file in place of a channel, until the process is killed."""
    config, _ = TaildirConfig.parse(
        {
            "filegroups": "g",
            "filegroups.g": f"{directory}/logs/log(\\.[0-9])?",
            "batchSize": "50",
            "positionFile": f"{directory}/positions.json",
            "backoffSleepIncrement": "5",
            "maxBackoffSleep": "5",
        }
    )
    assert config is not None
    source = TaildirSource(config)
    source.open()
    with (directory / "channel").open("ab", buffering=0) as channel:
        for batch in source.batches():
            channel.write(b"".join(body + b"\n" for body in batch.bodies.to_pylist()))
            source.stored(batch)


def test_sigkill_loses_nothing_and_repeats_one_batch_at_most(tmp_path: Path, forked: Forked) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    chance = random.Random(seed)
    log, channel = tmp_path / "logs" / "log", tmp_path / "channel"
    log.parent.mkdir()
    channel.touch()
    written, kills = 0, 0

    def write(count: int) -> None:
        nonlocal written
        append(log, b"".join(b"%d\n" % i for i in range(written, written + count)))
        written += count

    def grown(process: BaseProcess, size: int) -> None:
        while channel.stat().st_size <= size:
            assert process.is_alive()
            time.sleep(0.001)

    for turn in range(2):
        size = channel.stat().st_size
        write(5_000)
        agent = forked.start(deliver, tmp_path)
        grown(agent, size)
        rotate_after = chance.randrange(3)
        for step in range(3):
            write(chance.randrange(300))
            if step == rotate_after:
                log.rename(log.with_name(chance.choice([f"log.{turn}", f"old.{turn}"])))
            time.sleep(chance.random() * 0.02)
        agent.kill()
        agent.join()
        kills += 1
        write(10)
        agent = forked.start(deliver, tmp_path)
        while len(set(channel.read_bytes().split())) < written:
            assert agent.is_alive()
            time.sleep(0.05)
        agent.kill()
        agent.join()
        kills += 1
    counts = Counter(channel.read_bytes().split())
    assert set(counts) == {b"%d" % i for i in range(written)}
    assert counts.total() - len(counts) <= 50 * kills
    assert max(counts.values()) <= 2


def test_beside_a_busy_writer_it_scans_by_itself_and_misses_no_rotation(logs: Path, tmp_path: Path) -> None:
    """Many events end the watches for a while: a file rotated meanwhile is found afterwards."""
    source = start(tmp_path, backoffSleepIncrement="3600000", maxBackoffSleep="3600000")
    arrived: list[bytes] = []
    news = threading.Condition()

    def run() -> None:
        for batch in source.batches():
            source.stored(batch)
            with news:
                arrived.extend(batch.bodies.to_pylist())
                news.notify()

    thread = threading.Thread(target=run)
    thread.start()
    log, expected = logs / "log", []
    for number in range(20_000):
        if number == 10_000:
            log.rename(logs / "old")
        expected.append(b"%d" % number)
        append(log, expected[-1] + b"\n")
    with news:
        assert news.wait_for(lambda: len(arrived) >= len(expected), timeout=60)
    source.stopping.set()
    thread.join(60)
    source.close()
    assert sorted(arrived, key=int) == expected
