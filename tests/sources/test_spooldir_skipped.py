"""Unread and unmarked files of a source `spooldir`, and failures of a disk or a directory."""

from __future__ import annotations

import errno
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flafka.plugins import FlafkaError
from flafka.sources.spooldir import content as content_module
from flafka.sources.spooldir import directory as directory_module
from flafka.sources.spooldir import tracker as tracker_module
from tests.sources.spooldir_running import PACKERS, make, names, put, read, read_anew, start


def test_a_growing_file_is_skipped_and_the_others_are_read(spool: Path, caplog: pytest.LogCaptureFixture) -> None:
    put(spool / "a", b"1\n2\n", age=9)
    put(spool / "b", b"3\n", age=5)
    source = start(spool, batchSize="1")
    bodies = []
    for batch in source.poll():
        if not bodies:
            with (spool / "a").open("ab") as file:
                file.write(b"late\n")
        bodies += batch.bodies.to_pylist()
        source.stored(batch)
    assert bodies == [b"1", b"2", b"3"]
    assert f"{spool}/a has changed since it was put there: it is left where it is" in caplog.text
    assert source.metrics.get("FileSkippedCount") == source.metrics.get("SkippedFileCount") == 1
    assert source.metrics.degradation() == (
        f"1 file is skipped or unmarked in {spool}, such as {spool}/a, which has changed since it was put there"
    )
    source.close()
    assert read_anew(spool) == [], "a restart forgets nothing"
    (spool / "a").rename(spool / "again")
    assert read_anew(spool) == [b"1", b"2", b"late"]
    assert {"again.COMPLETED", "b.COMPLETED"} <= {*names(spool)}


def test_an_unfinished_line_of_a_growing_file_is_not_an_event(spool: Path) -> None:
    put(spool / "a", b"1\n2")
    source = start(spool, batchSize="1")
    bodies = []
    for batch in source.poll():
        with (spool / "a").open("ab") as file:
            file.write(b"2\n3\n")
        bodies += batch.bodies.to_pylist()
        source.stored(batch)
    source.close()
    assert bodies == [b"1"]


def test_a_file_that_is_cut_off_while_it_is_read(spool: Path) -> None:
    put(spool / "a", b"1\n" * 400_000)
    source = start(spool, batchSize="1000")
    batches = source.poll()
    source.stored(next(batches))
    os.truncate(spool / "a", 0)
    for batch in batches:
        source.stored(batch)
    assert "has changed" in source.metrics.degradation()
    source.close()


def test_a_reused_name_is_read_and_skipped(spool: Path) -> None:
    put(spool / "a.COMPLETED", b"before\n")
    put(spool / "a", b"1\n")
    source = start(spool)
    assert read(source) == [b"1"]
    assert f"which was read, and {spool}/a.COMPLETED already exists" in source.metrics.degradation()
    source.close()
    source = start(spool)
    assert read(source) == []
    (spool / "a.COMPLETED").rename(spool / ".moved")
    assert read(source) == []
    assert names(spool) == [".moved", "a.COMPLETED"]
    assert source.metrics.degradation() == ""
    source.close()


def test_a_file_that_cannot_be_renamed_is_read_once(spool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(spool / "a", b"1\n")

    def fails(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(directory_module.os, "rename", fails)
    source = start(spool)
    assert read(source) == [b"1"]
    assert read(source) == []
    assert "cannot be marked as read: Operation not permitted" in source.metrics.degradation()
    source.close()
    assert read_anew(spool) == []
    monkeypatch.undo()
    assert read_anew(spool) == []
    assert names(spool) == ["a.COMPLETED"]


def test_a_file_that_somebody_removes_or_replaces(spool: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in "abc":
        put(spool / name, b"1 %s\n2 %s\n" % (name.encode(), name.encode()), age=ord("z") - ord(name))
    source = start(spool, batchSize="1")
    bodies = []
    for batch in source.poll():
        if not bodies:
            (spool / "a").unlink()
            (spool / "b").unlink()
        if batch.bodies.to_pylist() == [b"1 c"]:
            put(spool / ".c", b"new c\n").rename(spool / "c")
        bodies += batch.bodies.to_pylist()
        source.stored(batch)
    source.close()
    assert bodies == [b"1 a", b"2 a", b"1 c", b"2 c", b"new c"]
    assert f"{spool}/a was removed by another process while it was read" in caplog.text
    assert f"{spool}/c was replaced while it was read" in caplog.text
    assert names(spool) == ["c.COMPLETED"]


@pytest.mark.parametrize("name", PACKERS)
def test_a_damaged_archive_is_read_as_far_as_possible(spool: Path, name: str) -> None:
    lines = [os.urandom(300).hex().encode() for _ in range(4000)]
    packed = PACKERS[name](b"".join(line + b"\n" for line in lines))
    put(spool / "a", packed[: len(packed) // 2], age=5)
    put(spool / "b", b"next\n")
    source = start(spool)
    bodies = read(source)
    assert bodies[-1] == b"next"
    assert bodies[:-1] == lines[: len(bodies) - 1]
    assert name == "bzip2" or len(bodies) > 100
    assert "cannot be unpacked" in source.metrics.degradation()
    source.close()
    assert read_anew(spool) == []


@pytest.mark.parametrize("name", PACKERS)
def test_archives_are_unpacked_and_resumed(spool: Path, name: str) -> None:
    lines = [b"line %d" % number for number in range(2000)]
    put(spool / "a", PACKERS[name](b"\n".join(lines)))
    source = start(spool, batchSize="700")
    batches = source.poll()
    assert next(batches).bodies.to_pylist() == lines[:700]
    source.stored(next(iter([None])) or next(batches))  # the second batch: 700 to 1400
    source.close()
    assert read_anew(spool) == lines[1400:]


def test_bytes_that_are_not_of_the_character_set(spool: Path) -> None:
    data = b"good\nb\xffad\nafter\n"
    put(spool / "a", data, age=5)
    put(spool / "b", b"next\n")
    source = start(spool)
    read(source)
    assert "cannot be decoded as utf-8: invalid start byte at byte 6" in source.metrics.degradation()
    source.close()


def test_a_file_without_permission_waits(spool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(spool / "a", b"1\n", age=5)
    put(spool / "b", b"2\n")
    real = os.open

    def fails(path: Any, *arguments: Any, **options: Any) -> int:
        if str(path).endswith("/a"):
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(path, *arguments, **options)

    monkeypatch.setattr(content_module.os, "open", fails)
    source = start(spool)
    assert read(source) == [b"2"]
    assert read(source) == []
    assert source.metrics.get("EventReadFail") == 1
    assert source.metrics.degradation() == f"{spool}/a cannot be read, it is tried again: Permission denied"
    monkeypatch.undo()
    assert read(source) == [b"1"]
    assert read(source) == []
    assert source.metrics.degradation() == ""
    source.close()


def test_a_disk_that_fails_while_a_file_is_read(spool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [b"%099d" % number for number in range(12_000)]
    put(spool / "a", b"".join(line + b"\n" for line in lines))
    source = start(spool)
    batches = source.poll()
    batch = next(batches)
    bodies = batch.bodies.to_pylist()
    source.stored(batch)
    assert source._current is not None

    def fails(_: int) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(source._current.content, "read", fails)
    for batch in batches:
        bodies += batch.bodies.to_pylist()
        source.stored(batch)
    assert source.metrics.get("EventReadFail") == 1
    source.close()
    assert bodies == lines


def test_a_directory_that_disappears_is_waited_for(spool: Path, caplog: pytest.LogCaptureFixture) -> None:
    put(spool / "a", b"1\n")
    source = start(spool)
    assert read(source) == [b"1"]
    shutil.rmtree(spool)
    assert read(source) == []
    assert f"directory {spool} cannot be read, it is tried again: No such file or directory" in caplog.text
    assert "No such file" in source.metrics.degradation()
    assert not spool.exists(), "it may be a disk that is not mounted"
    put(spool / "b", b"".join(b"%d\n" % n for n in range(20)))
    caplog.set_level(logging.INFO)
    assert read(source) == [b"%d" % n for n in range(20)]
    assert f"{spool} can be read again" in caplog.text
    source.close()


@pytest.mark.parametrize("operation", ["replace", "append"])
def test_a_full_disk_stops_the_reading_until_there_is_room(
    spool: Path, monkeypatch: pytest.MonkeyPatch, operation: str, caplog: pytest.LogCaptureFixture
) -> None:
    put(spool / "a", b"".join(b"%d\n" % n for n in range(6)))
    monkeypatch.setattr("flafka.sources.spooldir.source._RETRY_SECONDS", 0.001)
    source = start(spool, batchSize="2")
    batches = source.poll()
    if operation == "append":
        source.stored(next(batches))
    failures = iter([OSError(errno.ENOSPC, "No space left on device")] * 3)

    def full(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            if (error := next(failures, None)) is not None:
                raise error
            return real(*arguments)

        return call

    if operation == "replace":
        monkeypatch.setattr(tracker_module, "replace_file", full(tracker_module.replace_file))
    else:
        monkeypatch.setattr(tracker_module.os, "pwrite", full(os.pwrite))
    batch = next(batches)
    source.stored(batch)
    assert source.metrics.last_error == (
        f"trackerDir {spool}/.flumespool cannot be written, so nothing is read: No space left on device"
    )
    bodies = []
    for batch in batches:
        bodies += batch.bodies.to_pylist()
        source.stored(batch)
    assert next(failures, None) is None
    assert bodies == [b"%d" % n for n in range(6)][-len(bodies) :]
    assert source.metrics.last_error == ""
    source.close()
    assert names(spool) == ["a.COMPLETED"]


def test_an_invalid_list_of_skipped_files(spool: Path) -> None:
    put(spool / ".flumespool" / ".flafka-skipped.json", b"[")
    source = make(spool)
    with pytest.raises(FlafkaError, match="Repair it, or remove it"):
        source.open()
    source.close()
