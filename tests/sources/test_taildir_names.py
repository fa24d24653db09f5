"""Process of `taildir` that opens files as the kernel names them: killed, stopped, orphaned, or very busy."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from flafka.agent.services.running import until
from flafka.sources.taildir import TaildirSource
from flafka.sources.taildir.tail import FileLocation
from flafka.sources.taildir.watcher import NameWatcher
from tests.fixtures.processes import Forked
from tests.sources.taildir_running import append, bodies, kill, positions, start
from tests.sources.test_taildir_busy import files_lost, lost, reading

Begin = Callable[..., TaildirSource]


def opener(source: TaildirSource) -> subprocess.Popen[bytes]:
    """Return the process; it reads events once it has been started."""
    names = source._watcher._names
    assert names is not None
    until(lambda: names._process is not None)
    assert names._process is not None
    return names._process


def await_report(source: TaildirSource) -> None:
    """Wait until it has reported a file that is created now."""
    probe = Path(next(iter(source._discovery.directories)), "log.probe")
    probe.touch()
    until(lambda: any(change.path == str(probe) for change in source._watcher._changes))
    probe.unlink()
    until(lambda: any(c.path == str(probe) and c.kind == "deleted" for c in source._watcher._changes))


def opened(source: TaildirSource, path: Path) -> None:
    """Wait until that file is open."""
    status = path.stat()
    until(lambda: (status.st_dev, status.st_ino) in source._watcher._opened)


@pytest.fixture
def begin() -> Iterator[Begin]:
    """Function that starts sources, which are closed at the end."""
    with ExitStack() as started:

        def begin(*arguments: Any, **options: str) -> TaildirSource:
            source = start(*arguments, **options)
            started.callback(source.close)
            return source

        yield begin


def test_a_file_is_opened_and_can_be_read_after_it_was_deleted(begin: Begin, tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    source = begin(tmp_path)
    await_report(source)
    log = tmp_path / "logs" / "log.a"
    log.write_bytes(b"1\n2\n")
    opened(source, log)
    log.unlink()
    assert bodies(source) == [b"1", b"2"]
    assert source.metrics.get("FileMissedCount") == 0
    source.close()


def test_a_file_deleted_before_it_could_be_opened_is_counted_and_degrades_health(
    begin: Begin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "logs" / "log.a"
    log.parent.mkdir()
    source = begin(tmp_path)
    await_report(source)
    process = opener(source)
    os.kill(process.pid, signal.SIGSTOP)
    log.write_bytes(b"1\n")
    log.unlink()
    os.kill(process.pid, signal.SIGCONT)

    def missed() -> float:
        assert bodies(source) == []
        return source.metrics.get("FileMissedCount")

    until(missed)
    assert source.metrics.get("FileMissedCount") == 1
    assert str(log) in source.metrics.degradation()
    assert not source.metrics.last_error, "it works: nobody is to end it"
    now = time.monotonic()
    monkeypatch.setattr("flafka.sources.taildir.source.time.monotonic", lambda: now + 601)
    assert not source.metrics.degradation()
    monkeypatch.undo()
    source.close()


def test_a_change_of_names_costs_no_scan_of_other_files(
    begin: Begin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    for number in range(300):
        append(logs / f"log.{number}", b"old\n")
    source = begin(tmp_path, backoffSleepIncrement="600000", maxBackoffSleep="600000")
    assert len(bodies(source)) == 300
    await_report(source)
    calls: list[str] = []

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *arguments, **options: calls.append(call.__name__) or call(*arguments, **options)

    for name in ("lstat", "stat", "open", "listdir", "scandir"):
        monkeypatch.setattr(os, name, counted(getattr(os, name)))
    append(logs / "log.new", b"new\n")
    (logs / "log.0").rename(logs / "log.other")
    (logs / "log.1").rename(logs / "1.kept")
    append(logs / "1.kept", b"late\n")
    (logs / "log.2").unlink()
    append(logs / "log.2", b"second\n")
    (logs / "log.3").unlink()
    (logs / "log.4").rename(tmp_path / "away")
    lines: list[bytes] = []

    def is_up_to_date() -> bool:
        lines.extend(bodies(source))
        return (
            len(lines) == 3 and sum(tail.location is FileLocation.DELETED for tail in source._table) == 4
        )  # the probe is one

    until(is_up_to_date)
    monkeypatch.undo()
    assert sorted(lines) == [b"late", b"new", b"second"]
    assert len(calls) < 100, calls
    source.close()
    saved = positions(tmp_path)
    assert {"log.new": 4, "log.other": 4, "1.kept": 9, "log.2": 7}.items() <= saved.items()
    assert len(saved) == 299, "the deleted one and the one that was moved away are left out"


def test_writes_to_the_target_of_a_new_link_are_reported(begin: Begin, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    source = begin(tmp_path, backoffSleepIncrement="600000", maxBackoffSleep="600000")
    assert bodies(source) == []
    await_report(source)
    append(logs / "behind", b"1\n")
    (logs / "log.link").symlink_to(logs / "behind")
    lines: list[bytes] = []
    until(lambda: lines.extend(bodies(source)) or lines == [b"1"])
    append(logs / "behind", b"2\n")
    until(lambda: lines.extend(bodies(source)) or lines == [b"1", b"2"], seconds=60)


def test_a_killed_opener_is_restarted_and_new_files_are_found(
    begin: Begin, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "logs").mkdir()
    source = begin(tmp_path)
    await_report(source)
    first = opener(source)
    first.kill()
    append(tmp_path / "logs" / "log.a", b"1\n")
    until(lambda: source._watcher._restart_reason)
    assert bodies(source) == [b"1"]
    until(lambda: opener(source).pid != first.pid)
    await_report(source)
    log = tmp_path / "logs" / "log.b"
    append(log, b"2\n")
    opened(source, log)
    log.unlink()
    assert bodies(source) == [b"2"]
    assert source.metrics.get("WatchRestartCount") == 1
    assert "ended (exit code -9)" in caplog.text
    source.close()


def test_an_opener_that_ends_at_once_degrades_health_and_is_restarted_ever_more_rarely(
    begin: Begin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "opener.py"
    broken.write_text("raise ValueError('it cannot')")
    monkeypatch.setattr("flafka.sources.taildir.watcher.opener.__file__", str(broken))
    monkeypatch.setattr("flafka.sources.taildir.watcher._RESTART_SECONDS", 0.01)
    (tmp_path / "logs").mkdir()
    source = begin(tmp_path)
    append(tmp_path / "logs" / "log.a", b"1\n")
    assert bodies(source) == [b"1"], "files are looked for all the same"
    began = time.monotonic()
    until(lambda: bodies(source) or source.metrics.get("WatchRestartCount") >= 5)
    assert time.monotonic() - began > 0.01 * (1 + 2 + 4) * 0.9
    assert "times (ValueError: it cannot): files that were created" in source.metrics.degradation()
    source.close()
    assert "Traceback" not in capfd.readouterr().err


def test_an_overflow_of_the_kernels_queue_is_reported_and_causes_a_full_scan(
    begin: Begin, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    source = begin(tmp_path, backoffSleepIncrement="3600000", maxBackoffSleep="3600000")
    assert bodies(source) == []
    await_report(source)
    assert bodies(source) == []
    process = opener(source)
    os.kill(process.pid, signal.SIGSTOP)
    most = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    if most > 100_000:
        pytest.skip("its queue is larger than is worth filling")
    name, other = logs / "other", logs / "another"
    name.touch()
    for _ in range(most // 4 + 100):
        name.rename(other)
        other.rename(name)
    append(logs / "log.late", b"1\n")
    os.kill(process.pid, signal.SIGCONT)
    until(lambda: source._watcher._overflow)
    assert bodies(source) == [b"1"]
    assert source.metrics.get("WatchOverflowCount") == 1
    assert "more names changed than the kernel could report" in caplog.text
    source.close()


def watch_names(pid: Connection) -> None:
    """Wait until the process watches names; return its id."""
    names = NameWatcher(on_event=print, on_overflow=print, on_end=print, on_sync=lambda _: None)
    until(lambda: names._process is not None)
    assert names._process is not None
    pid.send(names._process.pid)
    time.sleep(600)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_opener_ends_with_the_agent(number: signal.Signals, forked: Forked) -> None:
    receiver, sender = Pipe(duplex=False)
    with receiver, sender:
        agent = forked.start(watch_names, sender)
        pid = receiver.recv()

    def runs() -> bool:
        with suppress(OSError):
            return "opener.py" in Path(f"/proc/{pid}/cmdline").read_text()
        return False

    until(runs)
    assert agent.pid is not None
    os.kill(agent.pid, number)
    agent.join()
    until(lambda: not runs())


def test_hundreds_of_directories(begin: Begin, tmp_path: Path) -> None:
    groups = [f"g{i}" for i in range(300)]
    options = {f"filegroups.{g}": f"{tmp_path}/logs/{g}/log.*" for g in groups}
    for group in groups:
        (tmp_path / "logs" / group).mkdir(parents=True)
    source = begin(tmp_path, filegroups=" ".join(groups), **options)
    for group in groups:
        (tmp_path / "logs" / group / "log").write_bytes(group.encode() + b"\n")
    until(lambda: len(source._watcher._opened) >= min(300, source._table.max_untracked_open))
    for group in groups[:200]:
        (tmp_path / "logs" / group / "log").unlink()
    assert sorted(bodies(source)) == sorted(group.encode() for group in groups)
    source.close()


def test_a_recreated_directory_is_watched_again(begin: Begin, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    source = begin(tmp_path)
    assert bodies(source) == []
    logs.rename(tmp_path / "before")
    logs.mkdir()
    assert bodies(source) == []
    await_report(source)
    log = logs / "log.a"
    log.write_bytes(b"1\n")
    opened(source, log)
    log.unlink()
    assert bodies(source) == [b"1"]
    source.close()


# --- a rotation that compresses


def rotate(log: Path, count: int) -> None:
    """Rotate as logrotate does with `rotate <count>`, `compress` and `create`."""
    (log.with_name(f"{log.name}.{count}.gz")).unlink(missing_ok=True)
    for number in range(count - 1, 0, -1):
        with suppress(FileNotFoundError):
            log.with_name(f"{log.name}.{number}.gz").rename(log.with_name(f"{log.name}.{number + 1}.gz"))
    rotated = log.rename(log.with_name(f"{log.name}.1"))
    log.touch()
    subprocess.run(["gzip", "-f", str(rotated)], check=True)


def test_rotation_with_compress_while_it_runs(tmp_path: Path) -> None:
    for attempt in range(3):  # a busy machine may lose a file before it is opened, which is reported
        directory = tmp_path / str(attempt)
        directory.mkdir()
        log = directory / "logs" / "app.log"
        number = 0
        with reading(directory, "app[.]log", idleTimeout="100") as reader:
            for _ in range(12):
                for _ in range(20):
                    append(log, b"".join(b"%08d\n" % n for n in range(number, number + 50)))
                    number += 50
                    time.sleep(0.002)
                rotate(log, 3)
            reader.await_lines(number)
        assert max(reader.lines.values()) == 1
        missed = reader.count("FileMissedCount")
        assert files_lost(lost(reader.lines, number), 1000) <= missed
        if not missed:
            return
    raise AssertionError("a file was missed each time")


def test_a_closed_file_written_and_compressed_between_scans_is_resumed_in_its_copy(
    begin: Begin, tmp_path: Path
) -> None:
    """Without a restart: it was closed as idle, and written and rotated without a scan in between."""
    (tmp_path / "logs").mkdir()
    log = tmp_path / "logs" / "app.log"
    source = begin(tmp_path, "app[.]log", idleTimeout="0", inotify="false")
    append(log, b"1\n2\n")
    assert bodies(source) == [b"1", b"2"]
    assert all(tail.fd is None for tail in source._table)
    append(log, b"3\n")
    rotate(log, 3)
    append(log, b"4\n")
    assert sorted(bodies(source)) == [b"3", b"4"]
    rotate(log, 3)
    assert bodies(source) == []
    source.close()


def test_a_compressed_copy_that_could_not_be_unpacked_is_retried(
    begin: Begin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk for the unpacked copy is full at first."""
    (tmp_path / "logs").mkdir()
    log = tmp_path / "logs" / "app.log"
    source = begin(tmp_path, "app[.]log", idleTimeout="0", inotify="false")
    append(log, b"1\n")
    assert bodies(source) == [b"1"]
    append(log, b"2\n")
    rotate(log, 3)

    def full(*_: object) -> int | None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("flafka.sources.taildir.discovery.decompress", full)
        source._discovery.idle_seconds = 60.0
        assert bodies(source) == []
        trouble = f"{log}.1.gz cannot be unpacked, it is tried again: No space left on device"
        assert source._file_errors.oldest() == trouble
    assert bodies(source) == [b"2"]
    assert source._file_errors.oldest() == ""
    source.close()


def test_rotation_with_compress_amid_restarts(begin: Begin, tmp_path: Path) -> None:
    log = tmp_path / "logs" / "app.log"
    log.parent.mkdir()
    number, lines = 0, []
    for turn in range(6):
        source = begin(tmp_path, "app[.]log", batchSize="70")
        for part in range(3):
            append(log, b"".join(b"%08d\n" % n for n in range(number, number + 100)))
            number += 100
            if part == turn % 2:
                lines += bodies(source)
                rotate(log, 4)
        if turn % 2:
            lines += bodies(source)
            source.close()
        else:
            for batch in source.poll():
                lines += batch.bodies.to_pylist()
                source.stored(batch)
                break
            kill(source)
        append(log, b"%08d\n" % number)
        number += 1
        rotate(log, 4)
    source = begin(tmp_path, "app[.]log")
    lines += bodies(source)
    source.close()
    assert sorted(lines) == [b"%08d" % n for n in range(number)]
