"""Source `taildir`: renamed, copied, truncated, deleted and recreated files."""

from __future__ import annotations

import logging
import os
import shutil
import time
import zlib
from collections import Counter
from pathlib import Path

import pytest

from flafka.agent.services.running import until
from tests.sources.descriptors import open_files
from tests.sources.taildir_running import (
    append,
    bodies,
    kill,
    make,
    positions,
    process,
    start,
)


def test_rotation_into_a_matching_name(logs: Path, tmp_path: Path) -> None:
    log = logs / "log"
    log.write_bytes(b"1\n2\n")
    source = start(tmp_path)
    assert bodies(source) == [b"1", b"2"]
    append(log, b"3\n")
    log.rename(logs / "log.1")
    log.write_bytes(b"4\n")
    assert sorted(bodies(source)) == [b"3", b"4"]
    append(logs / "log.1", b"5\n")  # by a writer that still has it open
    assert bodies(source) == [b"5"]
    (logs / "log.1").rename(logs / "log.2")
    log.rename(logs / "log.1")
    assert bodies(source) == []
    assert positions(tmp_path) == {"log.1": 2, "log.2": 8}
    source.close()
    source = start(tmp_path)
    assert bodies(source) == [], "no restart reads them again"
    source.close()


@pytest.mark.parametrize("down", [False, True])
def test_rotation_out_of_the_pattern(down: bool, logs: Path, tmp_path: Path) -> None:
    log = logs / "log"
    log.write_bytes(b"1\n")
    source = start(tmp_path)
    assert bodies(source) == [b"1"]
    if down:
        source.close()
    append(log, b"2\n")
    log.rename(logs / "old")
    append(logs / "old", b"3\n")
    log.write_bytes(b"4\n")
    if down:
        source = start(tmp_path)
    assert sorted(bodies(source)) == [b"2", b"3", b"4"]
    (logs / "old").rename(logs / "log.again")
    assert bodies(source) == [], "not even when it matches again"
    source.close()


@pytest.mark.parametrize("multiline", [False, True])
def test_a_rotated_file_is_read_to_its_end_before_its_successor(multiline: bool, logs: Path, tmp_path: Path) -> None:
    options = {"multiline.pattern": "^ ", "multiline.timeout": "600000"} if multiline else {}
    source = start(tmp_path, "app[.]log", **options)
    log = logs / "app.log"
    written = [b"%06d %s" % (number, b"x" * 100) for number in range(100_000)]  # more than one turn reads of a file
    append(log, written[0] + b"\n")
    events = bodies(source)
    append(log, b"".join(line + b"\n" for line in written[1:]))
    os.utime(log, ns=(1, 1))  # as if all were written within one tick of the kernel's clock
    for number, lines in enumerate(([b"a", b"b"], [b"c", b"d"]), 1):
        log.rename(logs / f"app.log.{number}")
        new = tmp_path / "new"  # no file is seen with another time first
        new.write_bytes(b"".join(line + b"\n" for line in lines))
        os.utime(new, ns=(1, 1))
        new.rename(log)
        written += lines
        events += bodies(source)  # the order is kept unless a file is rotated before it was seen
    written = written[:-1] if multiline else written  # the last one may be incomplete
    until(lambda: events.extend(bodies(source)) or len(events) == len(written), seconds=60)
    source.close()
    assert events == written


def test_a_closed_file_is_found_under_a_name_that_does_not_match(logs: Path, tmp_path: Path) -> None:
    log = logs / "log"
    log.write_bytes(b"1\n")
    source = start(tmp_path, idleTimeout="0")
    assert bodies(source) == [b"1"]
    assert [path for path in open_files(tmp_path) if "/logs/" in path] == []
    append(log, b"2\n")
    log.rename(logs / "old")
    assert bodies(source) == [b"2"]
    append(logs / "old", b"3\n")
    assert bodies(source) == [b"3"]
    source.close()


def test_an_inode_alone_identifies_no_file_under_a_name_that_does_not_match(logs: Path, tmp_path: Path) -> None:
    source = start(tmp_path, idleTimeout="60")
    reused = False
    for _ in range(5):
        log, other = logs / "log", logs / "other"
        log.touch()
        inode = log.stat().st_ino
        while positions(tmp_path) != {"log": 0} or [path for path in open_files(tmp_path) if "/logs/" in path]:
            assert bodies(source) == []
        log.unlink()
        other.write_bytes(b"not asked for\n")
        reused = reused or other.stat().st_ino == inode
        while positions(tmp_path):
            assert bodies(source) == []
        other.unlink()
    source.close()
    assert reused, "this file system does not reuse inodes, and the test shows nothing"


def test_the_first_lines_survive_a_kill_and_a_rename_before_they_were_stored(logs: Path, tmp_path: Path) -> None:
    source = start(tmp_path)
    (logs / "log").write_bytes(b"1\n")
    time.sleep(0.002)
    assert len(next(source.poll())) == 1
    kill(source)
    (logs / "log").rename(logs / "old")
    source = start(tmp_path)
    assert bodies(source) == [b"1"]
    source.close()


def test_a_deleted_file_is_read_to_its_end_and_then_closed(logs: Path, tmp_path: Path) -> None:
    log = logs / "log"
    log.write_bytes(b"1\n")
    source = start(tmp_path, idleTimeout="600000")
    assert bodies(source) == [b"1"]
    with log.open("ab") as writer:
        writer.write(b"2\n")
        writer.flush()
        log.unlink()
        writer.write(b"3\n")
        writer.flush()
        assert bodies(source) == [b"2", b"3"]
    source._discovery.idle_seconds = 0.2
    while [path for path in open_files(tmp_path) if "/logs/" in path]:
        assert bodies(source) == []
    assert positions(tmp_path) == {}
    source.close()


@pytest.mark.parametrize("down", [False, True])
def test_a_new_file_under_an_old_inode_is_read_from_its_start(down: bool, logs: Path, tmp_path: Path) -> None:
    log = logs / "log"
    source, reused = start(tmp_path, idleTimeout="0"), 0
    for size in range(8):
        log.write_bytes(b"old %d\n" % size * 30)
        inode = log.stat().st_ino
        assert len(bodies(source)) == 30
        if down:
            source.close()
        log.unlink()
        log.write_bytes(b"new %d, which is longer\n" % size * 30)
        reused += log.stat().st_ino == inode  # other processes take inodes, too
        if down:
            source = start(tmp_path, idleTimeout="0")
        assert bodies(source) == [b"new %d, which is longer" % size] * 30
        log.unlink()
    source.close()
    assert reused or not down, "this file system reuses inodes, or the test shows nothing"


@pytest.mark.parametrize(
    ("name", "stored", "lines"),
    [
        ("log", True, [b"another", b"and a longer one"]),
        ("log.b", True, [b"another", b"and a longer one"]),
        ("log", False, [b"1", b"2", b"3"]),  # the first cursor is at offset 0, and its head is in both files
    ],
)
def test_of_two_cursors_with_one_inode_the_verified_and_newer_one_counts(
    name: str, stored: bool, lines: list[bytes], logs: Path, tmp_path: Path
) -> None:
    log, inode = logs / "log", tmp_path / "inode"
    log.write_bytes(b"1\n2\n")
    source = start(tmp_path)
    time.sleep(0.002)
    batch = next(source.poll())
    if stored:
        source.stored(batch)
    kill(source)
    log.rename(inode)
    os.truncate(inode, 0)
    source = start(tmp_path)
    inode.rename(logs / name)  # a new file under the old inode
    until(lambda: source._watcher._opened)  # so no scan of names comes before this descriptor
    assert bodies(source) == []
    append(logs / name, b"".join(line + b"\n" for line in lines))
    assert bodies(source) == lines
    kill(source)
    (logs / name).rename(log)
    source = start(tmp_path)
    assert bodies(source) == [], "a restart reads nothing again"
    kill(source)
    log.write_bytes(b"new\n")
    source = start(tmp_path, skipToEnd="true")
    assert bodies(source) == [b"new"], "truncated while it was down, it is no new file"
    source.close()


@pytest.mark.parametrize("regrown", [b"", b"b\n", b"b b\n" * 500])
@pytest.mark.parametrize("down", [False, True])
def test_copytruncate(regrown: bytes, down: bool, logs: Path, tmp_path: Path) -> None:
    log = logs / "log"
    log.write_bytes(b"a a\n" * 100)
    source = start(tmp_path)
    assert len(bodies(source)) == 100
    if down:
        source.close()
    shutil.copy(log, logs / "copy")
    with log.open("r+b") as file:
        file.truncate(0)
    append(log, regrown)
    if down:
        source = start(tmp_path)
    assert bodies(source) == regrown.split(b"\n")[:-1]
    append(log, b"c\n")
    assert bodies(source) == [b"c"]
    assert source.metrics.get("FileRestartCount") == 1
    source.close()


@pytest.mark.parametrize("busy", [False, True])
@pytest.mark.parametrize("fate", ["renamed", "deleted"])
def test_lines_written_after_copytruncate_are_read_although_the_file_is_deleted(
    fate: str, busy: bool, logs: Path, tmp_path: Path
) -> None:
    """`busy`: a channel has blocked the source for longer than `idleTimeout`."""
    log = logs / "log"
    log.write_bytes(b"a a\n" * 100)
    source = start(tmp_path, "log", fileHeader="true", inotify="false" if busy else "true")
    assert len(bodies(source)) == 100
    os.truncate(log, 0)
    append(log, b"b\n")
    if fate == "renamed":
        log.rename(logs / "log.1.old")
    else:
        log.unlink()
    for tail in source._table:
        tail.changed_at -= 7200 * busy
    assert process(source) == [(b"b", {"file": str(log)})]
    source.close()


@pytest.mark.parametrize("down", [False, True])
@pytest.mark.parametrize("size", [3, 1500, 9 << 20])
def test_copytruncate_under_a_writer_that_does_not_append(
    size: int, down: bool, logs: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = logs / "log"
    with log.open("wb", buffering=0) as writer:
        writer.write(b"x" * (size - 1) + b"\n")
        source = start(tmp_path, byteOffsetHeader="true")
        assert b"".join(bodies(source)) == b"x" * (size - 1)
        for turn in 1, 2, 3:
            if down:
                source.close()
            os.truncate(log, 0)
            offset = writer.tell()
            writer.write(b"%d\n\0\0two\n" % turn)
            if down:
                source = start(tmp_path, byteOffsetHeader="true")
            events = process(source)
            # NULs that are not the first bytes of their file belong to a line.
            assert [body for body, _ in events] == [b"%d" % turn, b"\0\0two"]
            assert events[0][1] == {"byteoffset": str(offset)}
            assert source.metrics.get("NulByteCount") >= offset
        # A copy has true NULs rather than a hole; one whose name matches is read as a file of its own.
        (logs / "log.copy").write_bytes(log.read_bytes())
        assert bodies(source) == [b"3", b"\0\0two"]
        append(log, b"appended\n")
        assert bodies(source) == [b"appended"]
        assert source.metrics.last_error == ""
        warnings = [r.getMessage() for r in caplog.records if "NUL bytes" in r.getMessage()]
        assert f"{log} begins with {size} NUL bytes" in warnings[0]
        assert len(warnings) == (4 if down else 2), "once a file, for as long as the source runs"
        source.close()


def test_nuls_are_skipped_again_after_a_kill_and_another_truncation(logs: Path, tmp_path: Path) -> None:
    log = logs / "log"
    with log.open("wb", buffering=0) as writer:
        writer.write(b"x" * 9999 + b"\n")
        source = start(tmp_path)
        assert len(bodies(source)) == 1
        for turn in range(3):
            os.truncate(log, 0)
            writer.write(b"turn %d\n" % turn)
            batches = source.poll()
            batch = next(batches)
            assert [event.body for event in batch] == [b"turn %d" % turn]
            kill(source)
            if turn == 1:
                os.truncate(log, 0)
                writer.write(b"turn 1b\n")
            source = start(tmp_path)
            expected = b"turn 1b" if turn == 1 else b"turn %d" % turn
            assert bodies(source) == [expected], "it was offered, but never stored"
    source.close()


def test_text_may_be_written_before_nuls(logs: Path, tmp_path: Path) -> None:
    log = logs / "log"
    log.write_bytes(b"\0" * (9 << 20))
    source = start(tmp_path, idleTimeout="200")
    assert bodies(source) == []
    assert not source._reader.unfinished, "it is not looked at without a pause"
    with log.open("r+b") as file:
        file.write(b"first\n")
    assert bodies(source)[0] == b"first"
    (logs / "log.2").write_bytes(b"\0" * 5000)
    assert bodies(source) == []
    (logs / "log.2").rename(logs / "old")
    while not source.metrics.get("NulByteCount"):
        assert bodies(source) == []
    assert source.metrics.get("NulByteCount") == 5000, "no writer has it any more"
    source.close()


@pytest.mark.parametrize("reason", ["compressed", "unreadable", "forgotten"])
def test_a_large_unreadable_file_is_not_polled_without_a_pause(
    logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    """The file has more than one turn of unread bytes, so the source would poll it at once."""
    log = logs / "log"
    log.write_bytes((b"\x1f\x8b\x08" if reason == "compressed" else b"") + b"x" * 1023 + b"\n" * (9 << 20))
    source = start(tmp_path)
    if reason == "unreadable":
        monkeypatch.setattr(source._table, "open", lambda tail: os.open("/proc/1/nothing", os.O_RDONLY))
    if reason == "forgotten":
        source._discovery.scan()
        (tail,) = source._table.tracked
        source._table.forget(tail)
        source._reader.poll_again(tail)
        source._reader.buffering.add(tail)
        assert source._pending_read(tail, None, 0.0) is None
        assert not source._reader.buffering
    else:
        assert list(source.poll()) == []
        assert not source._reader.unfinished
    source.close()


def test_files_with_the_same_first_lines_are_different_files(logs: Path, tmp_path: Path) -> None:
    head = b"# " + b"the same head in all " * 100 + b"\n"
    for i in range(4):
        (logs / f"log.{i}").write_bytes(head + b"%d\n" % i)
    source = start(tmp_path)
    assert Counter(bodies(source)) == Counter([head[:-1]] * 4 + [b"0", b"1", b"2", b"3"])
    source.close()
    (logs / "log.0").unlink()
    (logs / "log.4").write_bytes(head + b"4\n")
    source = start(tmp_path)
    assert bodies(source) == [head[:-1], b"4"]
    source.close()


def test_positions_hold_when_the_device_number_changes(logs: Path, tmp_path: Path) -> None:
    (logs / "log").write_bytes(b"1\n2\n")
    source = start(tmp_path)
    assert len(bodies(source)) == 2
    source.close()
    journal = tmp_path / "positions" / "taildir.json.journal"
    header, *lines = journal.read_bytes().splitlines()
    device = b'"device":%d,' % (logs / "log").stat().st_dev
    other = b'"device":%d,' % ((logs / "log").stat().st_dev + 1)  # as a reboot may number the disks
    parts = [line.replace(device, other).split(b" ", 2) for line in lines]
    sealed = [b"%s %08x %s" % (number, zlib.crc32(number + b" " + text), text) for number, _, text in parts]
    journal.write_bytes(b"\n".join([header, *sealed, b""]))
    append(logs / "log", b"3\n")
    source = start(tmp_path)
    assert bodies(source) == [b"3"]
    source.close()


def test_symbolic_links_and_their_targets(logs: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "one").write_bytes(b"1\n")
    link = logs / "log"
    link.symlink_to(data / "one")
    (logs / "log.directory").mkdir()
    (logs / "log.nowhere").symlink_to(data / "missing")
    os.mkfifo(logs / "log.pipe")
    source = start(tmp_path)
    assert bodies(source) == [b"1"]
    append(data / "one", b"2\n")
    (data / "one").rename(data / "one.1")  # as container runtimes rotate
    append(data / "one.1", b"3\n")
    (data / "one").write_bytes(b"4\n")
    assert sorted(bodies(source)) == [b"2", b"3", b"4"]
    source.close()
    append(data / "one", b"5\n")
    (data / "one").rename(data / "one.2")
    source = start(tmp_path)
    assert bodies(source) == [b"5"], "found where the link led, though nothing leads there now"
    source.close()


def test_two_names_of_one_file_are_one_file(logs: Path, tmp_path: Path) -> None:
    (logs / "log").write_bytes(b"1\n")
    (logs / "log.same").hardlink_to(logs / "log")
    (logs / "log.link").symlink_to("log")
    source = start(tmp_path)
    assert bodies(source) == [b"1"]
    append(logs / "log.link", b"2\n")
    assert bodies(source) == [b"2"]
    source.close()


def test_a_directory_may_come_later(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    source = make(tmp_path)
    (tmp_path / "logs").rmdir()
    assert list(source.check_connectivity()) == [
        f"directory {tmp_path}/logs cannot be read: No such file or directory"
    ]
    source.open()
    assert bodies(source) == []
    assert caplog.text.count(f"directory {tmp_path}/logs cannot be read, it is tried again") == 1
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "log").write_bytes(b"1\n")
    assert bodies(source) == [b"1"]
    assert source.metrics.get("UnreadableCount") == 0
    source.close()


def test_positions_are_kept_while_the_directory_is_missing(logs: Path, tmp_path: Path) -> None:
    (logs / "log").write_bytes(b"1\n")
    source = start(tmp_path, idleTimeout="0")
    assert bodies(source) == [b"1"]
    source.close()
    logs.rename(tmp_path / "unmounted")
    source = make(tmp_path, idleTimeout="0")
    logs.rmdir()
    source.open()
    assert bodies(source) == []
    (tmp_path / "unmounted").rename(logs)
    append(logs / "log", b"2\n")
    assert bodies(source) == [b"2"]
    source.close()
