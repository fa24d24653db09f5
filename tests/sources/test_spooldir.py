"""The source `spooldir` on real directories: what it reads, in which order, and what it leaves."""

from __future__ import annotations

import bz2
import errno
import gzip
import io
import json
import logging
import lzma
import os
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugins import FlafkaError, Retry
from plugins.options import Problem
from sources.spooldir import SpooldirConfig, SpooldirSource
from sources.spooldir import content as content_module
from sources.spooldir import directory as directory_module
from sources.spooldir import tracker as tracker_module
from sources.spooldir.content import Content
from sources.spooldir.deserializers import LEAST_LINE_BYTES, Lines, divided
from sources.spooldir.tracker import Position, State, Tracker

RECORD = {
    "type": "record",
    "name": "Line",
    "namespace": "test",
    "fields": [{"name": "number", "type": "long"}, {"name": "text", "type": ["null", "string"], "default": None}],
}
PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "bzip2": bz2.compress,
    "xz": partial(lzma.compress, preset=0),
    "zstd": lambda data: bytes(pa.compress(data, "zstd", asbytes=True)),
}


def make(spool: Path, **options: str) -> SpooldirSource:
    names = {name.replace("__", "."): value for name, value in options.items()}
    config, problems = SpooldirConfig.parse({"spoolDir": str(spool), **names})
    assert config is not None, problems
    return SpooldirSource(config)


def start(spool: Path, **options: str) -> SpooldirSource:
    source = make(spool, **options)
    source.open()
    return source


def read(source: SpooldirSource) -> list[bytes]:
    """All there is to read now, stored."""
    found: list[bytes] = []
    for batch in source.look():
        found += batch.bodies.to_pylist()
        source.stored(batch)
    return found


def read_anew(spool: Path, **options: str) -> list[bytes]:
    """What a source reads that is started now and killed when it has."""
    source = start(spool, **options)
    try:
        return read(source)
    finally:
        source.close()


def test_how_far_each_file_is_read_is_told(tmp_path: Path) -> None:
    source = make(tmp_path, batchSize="3")
    assert list(source.followed()) == []
    for name, lines in (("a", 5), ("b", 2)):
        (tmp_path / name).write_bytes(b"12345\n" * lines)
        os.utime(tmp_path / name, (1000, 1000))
    source.open()
    told = []
    for batch in source.look():
        told.append([(Path(file.path).name, file.position) for file in source.followed()])
        source.stored(batch)
        told.append([(Path(file.path).name, file.position) for file in source.followed()])
    # At first three lines of a are under way, then stored; the rest of a and one of b; the last one of b.
    assert told == [
        *([("a", 0), ("b", 0)], [("a", 18), ("b", 0)]),
        *([("b", 0)], [("b", 6)]),
        *([], []),
    ]
    assert source.metrics.snapshot()["FollowedFileCount"] == 0
    source.close()


@pytest.mark.parametrize("packer", PACKERS)
def test_a_compressed_file_is_told_in_bytes_of_its_own(tmp_path: Path, packer: str) -> None:
    content = "".join(f"{n * 7919 % 999983}\n" for n in range(100_000)).encode()
    (tmp_path / "a").write_bytes(PACKERS[packer](content))
    size = (tmp_path / "a").stat().st_size
    source = start(tmp_path, batchSize="20000")
    positions = []
    for batch in source.look():
        source.stored(batch)
        positions += [file.position for file in source.followed()]
    assert len(positions) >= 2
    assert positions == sorted(positions)
    assert 0 < positions[0] <= positions[-1] <= size
    source.close()


def names(spool: Path) -> list[str]:
    return sorted(str(path.relative_to(spool)) for path in spool.rglob("*") if path.is_file())


def put(path: Path, data: bytes, age: float = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    when = 1_700_000_000 - age
    os.utime(path, (when, when))
    return path


def avro(records: int, codec: str = "null", interval: int = 100) -> bytes:
    file = io.BytesIO()
    lines = ({"number": number, "text": f"line {number}"} for number in range(records))
    fastavro.writer(file, RECORD, lines, codec=codec, sync_interval=interval)
    return file.getvalue()


def open_files(directory: Path) -> list[str]:
    found = []
    for fd in Path("/proc/self/fd").iterdir():
        try:
            found.append(str(fd.readlink()))
        except OSError:
            continue
    return [path for path in found if path.startswith(str(directory))]


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Path]:
    directory = tmp_path / "spool"
    directory.mkdir()
    yield directory
    assert open_files(tmp_path) == [], "everything is let go of"


# --- files and their order


def test_files_are_read_oldest_first_and_renamed(spool: Path) -> None:
    put(spool / "b", b"3\n4\n", age=5)
    put(spool / "c", b"1\n2", age=9)
    put(spool / "a", b"5\r\n\n", age=5 - 0.0001)  # the same millisecond: by name
    source = start(spool, fileHeader="true", basenameHeader="true", basenameHeaderKey="name")
    events = [event for batch in source.look() for event in (list(batch), source.stored(batch))[0]]
    source.close()
    assert [event.body for event in events] == [b"1", b"2", b"5\r", b"", b"3", b"4"]
    assert events[0].headers == {"file": str(spool / "c"), "name": "c"}
    assert names(spool) == ["a.COMPLETED", "b.COMPLETED", "c.COMPLETED"]
    assert source.metrics.get("FileReadCount") == 3


def test_the_youngest_file_goes_first_also_if_it_comes_while_others_are_read(spool: Path) -> None:
    for number in range(4):
        put(spool / f"old{number}", b"%d\n" % number, age=10 + number)
    source = start(spool, consumeOrder="youngest", batchSize="1", pollDelay="0")
    found = []
    for batch in source.look():
        if not found:
            put(spool / "new", b"new\n", age=1)
        found += batch.bodies.to_pylist()
        source.stored(batch)
        source._list_at = 0
    source.close()
    assert found == [b"0", b"new", b"1", b"2", b"3"]


def test_files_that_come_while_others_are_read_are_read_without_a_pause(spool: Path) -> None:
    put(spool / "a", b"1\n")
    source = start(spool)
    found = []
    for batch in source.look():
        if len(found) < 5:
            put(spool / f"b{len(found)}", b"more\n")
        found += batch.bodies.to_pylist()
        source.stored(batch)
    source.close()
    assert found == [b"1"] + [b"more"] * 5


def test_patterns_sub_directories_and_what_is_hidden(spool: Path) -> None:
    for name in (
        "a.log",
        "b.txt",
        "c.log.tmp",
        ".hidden.log",
        "sub/d.log",
        "sub/deep/e.log",
        ".flume/f.log",
        "skipped/g.log",
    ):
        put(spool / name, name.encode() + b"\n")
    os.mkfifo(spool / "pipe.log")
    options = {"includePattern": r".*\.log(\.tmp)?", "ignorePattern": r"^(.*\.tmp|skipped)$"}
    assert read_anew(spool, **options) == [b"a.log"]
    recursive = options | {"recursiveDirectorySearch": "true"}
    assert sorted(read_anew(spool, **recursive)) == [b"sub/d.log", b"sub/deep/e.log"]
    assert "skipped/g.log" in names(spool)


def test_links_are_read_through_and_marked_themselves(spool: Path, tmp_path: Path) -> None:
    target = put(tmp_path / "elsewhere" / "x", b"linked\n")
    (spool / "link").symlink_to(target)
    (spool / "broken").symlink_to(tmp_path / "nowhere")
    (spool / "directory").symlink_to(tmp_path / "elsewhere")
    assert read_anew(spool, recursiveDirectorySearch="true") == [b"linked"]
    assert (spool / "link.COMPLETED").is_symlink()
    assert target.read_bytes() == b"linked\n"


def test_names_that_are_not_utf_8(spool: Path) -> None:
    (spool / os.fsdecode(b"caf\xe9")).write_bytes(b"1\n2\n\xff\n")
    source = start(spool, fileHeader="true", basenameHeader="true", batchSize="1")
    (batch, *_) = (batch for batch in [next(source.look())])
    source.stored(batch)
    assert next(iter(batch)).headers == {"file": f"{spool}/caf\ufffd", "basename": "caf\ufffd"}
    source.close()
    source = start(spool)
    assert read(source) == [b"2"]
    assert json.dumps(source.metrics.degraded(), ensure_ascii=False).encode()
    source.close()
    assert read_anew(spool) == []


def test_thousands_of_damaged_files_are_listed_once(spool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(300):
        put(spool / f"f{number:03}", b"\xff\n" if number % 2 else b"good\n\xff\n")
    saved: list[Path] = []
    real = tracker_module.replace
    monkeypatch.setattr(tracker_module, "replace", lambda path, data: (saved.append(path), real(path, data))[1])
    source = start(spool)
    assert read(source) == [b"good"] * 150
    assert source.metrics.get("SkippedFileCount") == 300
    read(source)
    source.close()
    assert len(saved) < 5
    assert read_anew(spool) == []


def test_an_empty_file_is_one_empty_event_once(spool: Path) -> None:
    put(spool / "a", b"")
    put(spool / "b", gzip.compress(b""))
    assert read_anew(spool, basenameHeader="true") == [b"", b""]
    assert read_anew(spool) == []


def test_deletion_and_marks_in_the_tracker_directory(spool: Path, tmp_path: Path) -> None:
    put(spool / "a", b"1\n")
    assert read_anew(spool, deletePolicy="IMMEDIATE") == [b"1"]
    assert names(spool) == []
    put(spool / "sub" / "b", b"2\n")
    put(spool / "c", b"3\n")
    options = {"trackingPolicy": "tracker_dir", "recursiveDirectorySearch": "true", "trackerDir": str(tmp_path / "t")}
    assert sorted(read_anew(spool, **options)) == [b"2", b"3"]
    assert names(spool) == ["c", "sub/b"]
    assert names(tmp_path / "t") == [".flumespool-main.meta", "c.COMPLETED", "sub/b.COMPLETED"]
    assert read_anew(spool, **options) == []
    put(spool / "d", b"4\n")
    assert read_anew(spool, **options) == [b"4"]


def test_a_name_that_has_a_mark_already_is_told_of(spool: Path) -> None:
    put(spool / "a", b"1\n")
    source = start(spool, trackingPolicy="tracker_dir")
    assert read(source) == [b"1"]
    mark = spool / ".flumespool" / "a.COMPLETED"
    put(spool / "a", b"2\n")
    os.utime(mark, (1_600_000_000, 1_600_000_000))
    (spool / "b").touch()
    assert read(source) == [b""]
    text = f"{spool}/a has changed since a file of its name was read: it is not read while {mark} is there"
    assert source.metrics.degraded() == text
    mark.unlink()
    assert read(source) == [b"2"]
    read(source)
    assert source.metrics.degraded() == ""
    source.close()


def test_many_files_share_batches_and_are_listed_once(spool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(300):
        put(spool / f"f{number:03}", b"%d\n" % number, age=1000 - number)
    source = start(spool)
    looks: list[str] = []
    real = directory_module.Directory._look
    monkeypatch.setattr(
        directory_module.Directory, "_look", lambda self, *rest: (looks.append(rest[0]), real(self, *rest))[1]
    )
    batches = []
    for batch in source.look():
        batches.append(len(batch))
        source.stored(batch)
    source.close()
    assert batches == [300]
    assert len(looks) <= 4, "with every file"


def test_an_idle_directory_is_not_listed_again(spool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(spool / "a", b"1\n")
    source = start(spool, trackingPolicy="tracker_dir")
    assert read(source) == [b"1"]
    for directory in (spool, spool / ".flumespool"):
        os.utime(directory, (1_700_000_000, 1_700_000_000))
    assert read(source) == []
    monkeypatch.setattr(os, "scandir", lambda _: pytest.fail("it is listed"))
    monkeypatch.setattr(os, "listdir", lambda _: pytest.fail("its marks are listed"))
    assert read(source) == []
    monkeypatch.undo()
    put(spool / "b", b"2\n")
    assert read(source) == [b"2"]
    source.close()


# --- positions


def test_a_kill_repeats_the_batch_that_was_not_stored(spool: Path) -> None:
    put(spool / "a", b"".join(b"%d\n" % n for n in range(10)))
    source = start(spool, batchSize="3")
    look = source.look()
    source.stored(next(look))
    assert next(look).bodies.to_pylist() == [b"3", b"4", b"5"]
    source.close()
    assert read_anew(spool, batchSize="3") == [b"%d" % n for n in range(3, 10)]
    assert names(spool) == ["a.COMPLETED"]


def test_what_was_begun_is_ended_first(spool: Path) -> None:
    """The tracker knows of one file only: Flume begins this one again if an older one came meanwhile."""
    put(spool / "b", b"1\n2\n3\n", age=5)
    source = start(spool, batchSize="1")
    source.stored(next(source.look()))
    source.close()
    put(spool / "a", b"0\n", age=9)
    assert read_anew(spool) == [b"2", b"3", b"0"]


def test_a_tracker_of_flumes_is_believed(spool: Path) -> None:
    put(spool / "a", b"1\n2\n3\n")
    (spool / ".flumespool").mkdir()
    tracker = Tracker(spool / ".flumespool")
    tracker.save(Position(str(spool / "a"), 0, None))
    tracker.save(Position(str(spool / "a"), 2, None))
    tracker.close()
    file = fastavro.reader(io.BytesIO(tracker.path.read_bytes()))
    assert ([record["offset"] for record in file], file.metadata["file"]) == ([0, 2], str(spool / "a"))
    assert read_anew(spool, spoolDir=f"{spool.parent}//spool/") == [b"2", b"3"]


def test_a_tracker_whose_end_is_missing_counts_up_to_there(tmp_path: Path) -> None:
    tracker = Tracker(tmp_path)
    state = State(1, 2, 3, 4)
    for offset in (5, 700, 80_000):
        tracker.save(Position("/x", offset, state))
    tracker.close()
    data = tracker.path.read_bytes()
    found = []
    for size in range(len(data) + 1):
        tracker.path.write_bytes(data[:size])
        try:
            position = tracker.read()
        except ValueError:
            continue
        found.append(position and position.offset)
    assert [n for i, n in enumerate(found) if i == 0 or n != found[i - 1]] == [None, 0, 5, 700, 80_000]


def test_a_tracker_that_makes_no_sense_is_told_of(spool: Path, caplog: pytest.LogCaptureFixture) -> None:
    put(spool / "a", b"1\n")
    put(spool / ".flumespool" / ".flumespool-main.meta", b"nonsense")
    assert read_anew(spool) == [b"1"]
    assert "does not hold a position (it does not begin as an Avro file)" in caplog.text


def test_a_long_tracker_is_written_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracker_module, "_LONGEST", 1000)
    tracker = Tracker(tmp_path)
    for offset in range(200):
        tracker.save(Position("/x", offset, None))
        assert tracker.path.stat().st_size < 1100
    tracker.close()
    assert Tracker(tmp_path).read() == Position("/x", 199, None)


def test_a_name_that_came_back_while_nobody_looked(spool: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name, body in (("other", b"new 1\nnew 2\n"), ("changed", b"1\n2\n3\n")):
        put(spool / "a", b"1\n2\n")
        source = start(spool, batchSize="1")
        source.stored(next(source.look()))
        source.close()
        if name == "other":
            put(spool / "b", body, age=3).rename(spool / "a")
            assert read_anew(spool) == [b"new 1", b"new 2"]
            assert "is another file than the one that was read up to byte 2" in caplog.text
            (spool / "a.COMPLETED").unlink()
        else:
            (spool / "a").write_bytes(body)
            assert read_anew(spool) == []
            assert "has changed since it was put there" in caplog.text


def test_a_position_is_found_again_on_another_disk(spool: Path) -> None:
    put(spool / "a", b"1\n2\n")
    source = start(spool, batchSize="1")
    source.stored(next(source.look()))
    source.close()
    shutil.copy2(spool / "a", spool / ".copy")
    (spool / ".copy").rename(spool / "a")
    assert read_anew(spool) == [b"2"]


def test_two_sources_do_not_share_a_tracker_directory(spool: Path) -> None:
    source = start(spool)
    second = make(spool)
    with pytest.raises(Retry, match="is in use by another spooldir source: give each its own"):
        second.open()
    second.close()
    other = start(spool, trackerDir=".mine")
    other.close()
    source.close()


# --- what is left


def test_a_file_that_grows_is_left_and_the_others_are_read(spool: Path, caplog: pytest.LogCaptureFixture) -> None:
    put(spool / "a", b"1\n2\n", age=9)
    put(spool / "b", b"3\n", age=5)
    source = start(spool, batchSize="1")
    found = []
    for batch in source.look():
        if not found:
            with (spool / "a").open("ab") as file:
                file.write(b"late\n")
        found += batch.bodies.to_pylist()
        source.stored(batch)
    assert found == [b"1", b"2", b"3"]
    assert f"{spool}/a has changed since it was put there: it is left where it is" in caplog.text
    assert source.metrics.get("FileSkippedCount") == source.metrics.get("SkippedFileCount") == 1
    assert source.metrics.degraded() == (
        f"1 file is left unread or unmarked in {spool}, such as {spool}/a, which has changed since it was put there"
    )
    source.close()
    assert read_anew(spool) == [], "a restart forgets nothing"
    (spool / "a").rename(spool / "again")
    assert read_anew(spool) == [b"1", b"2", b"late"]
    assert names(spool) == ["again.COMPLETED", "b.COMPLETED"]


def test_an_unfinished_line_of_a_file_that_grows_is_not_an_event(spool: Path) -> None:
    put(spool / "a", b"1\n2")
    source = start(spool, batchSize="1")
    found = []
    for batch in source.look():
        with (spool / "a").open("ab") as file:
            file.write(b"2\n3\n")
        found += batch.bodies.to_pylist()
        source.stored(batch)
    source.close()
    assert found == [b"1"]


def test_a_file_that_is_cut_off_while_it_is_read(spool: Path) -> None:
    put(spool / "a", b"1\n" * 400_000)
    source = start(spool, batchSize="1000")
    look = source.look()
    source.stored(next(look))
    os.truncate(spool / "a", 0)
    for batch in look:
        source.stored(batch)
    assert "has changed" in source.metrics.degraded()
    source.close()


def test_a_name_that_is_used_again_is_read_and_left(spool: Path) -> None:
    put(spool / "a.COMPLETED", b"before\n")
    put(spool / "a", b"1\n")
    source = start(spool)
    assert read(source) == [b"1"]
    assert f"which was read, and {spool}/a.COMPLETED is there already" in source.metrics.degraded()
    source.close()
    source = start(spool)
    assert read(source) == []
    (spool / "a.COMPLETED").rename(spool / ".moved")
    assert read(source) == []
    assert names(spool) == [".moved", "a.COMPLETED"]
    assert source.metrics.degraded() == ""
    source.close()


def test_a_file_that_cannot_be_renamed_is_read_once(spool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(spool / "a", b"1\n")

    def fails(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(directory_module.os, "rename", fails)
    source = start(spool)
    assert read(source) == [b"1"]
    assert read(source) == []
    assert "cannot be marked so: Operation not permitted" in source.metrics.degraded()
    source.close()
    assert read_anew(spool) == []
    monkeypatch.undo()
    assert read_anew(spool) == []
    assert names(spool) == ["a.COMPLETED"]


def test_a_file_that_somebody_removes_or_replaces(spool: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in "abc":
        put(spool / name, b"1 %s\n2 %s\n" % (name.encode(), name.encode()), age=ord("z") - ord(name))
    source = start(spool, batchSize="1")
    found = []
    for batch in source.look():
        if not found:
            (spool / "a").unlink()
            (spool / "b").unlink()
        if batch.bodies.to_pylist() == [b"1 c"]:
            put(spool / ".c", b"new c\n").rename(spool / "c")
        found += batch.bodies.to_pylist()
        source.stored(batch)
    source.close()
    assert found == [b"1 a", b"2 a", b"1 c", b"2 c", b"new c"]
    assert f"{spool}/a was removed by somebody else while it was read" in caplog.text
    assert f"{spool}/c was replaced while it was read" in caplog.text
    assert names(spool) == ["c.COMPLETED"]


@pytest.mark.parametrize("name", PACKERS)
def test_a_damaged_archive_is_read_as_far_as_possible(spool: Path, name: str) -> None:
    lines = [os.urandom(300).hex().encode() for _ in range(4000)]
    packed = PACKERS[name](b"".join(line + b"\n" for line in lines))
    put(spool / "a", packed[: len(packed) // 2], age=5)
    put(spool / "b", b"next\n")
    source = start(spool)
    found = read(source)
    assert found[-1] == b"next"
    assert found[:-1] == lines[: len(found) - 1]
    assert name == "bzip2" or len(found) > 100
    assert "cannot be unpacked" in source.metrics.degraded()
    source.close()
    assert read_anew(spool) == []


@pytest.mark.parametrize("name", PACKERS)
def test_archives_are_unpacked_and_gone_on_with(spool: Path, name: str) -> None:
    lines = [b"line %d" % number for number in range(2000)]
    put(spool / "a", PACKERS[name](b"\n".join(lines)))
    source = start(spool, batchSize="700")
    look = source.look()
    assert next(look).bodies.to_pylist() == lines[:700]
    source.stored(next(iter([None])) or next(look))  # the second batch: 700 to 1400
    source.close()
    assert read_anew(spool) == lines[1400:]


def test_bytes_that_are_not_of_the_character_set(spool: Path) -> None:
    data = b"good\nb\xffad\nafter\n"
    put(spool / "a", data, age=5)
    put(spool / "b", b"next\n")
    source = start(spool)
    assert read(source) == [b"good", b"next"]
    assert "cannot be decoded as utf-8: invalid start byte at byte 6" in source.metrics.degraded()
    source.close()
    put(spool / "c", data)
    assert read_anew(spool, decodeErrorPolicy="replace") == [b"good", b"b\xef\xbf\xbdad", b"after"]
    put(spool / "d", data)
    assert read_anew(spool, decodeErrorPolicy="IGNORE") == [b"good", b"bad", b"after"]
    put(spool / "e", data)
    latin = read_anew(spool, inputCharset="ISO-8859-1", deserializer__outputCharset="UTF-16LE")
    assert [line.decode("utf-16-le") for line in latin] == ["good", "bÿad", "after"]


def test_a_file_without_permission_waits(spool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(spool / "a", b"1\n", age=5)
    put(spool / "b", b"2\n")
    real = os.open

    def fails(path: Any, *rest: Any, **more: Any) -> int:
        if str(path).endswith("/a"):
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(path, *rest, **more)

    monkeypatch.setattr(content_module.os, "open", fails)
    source = start(spool)
    assert read(source) == [b"2"]
    assert read(source) == []
    assert source.metrics.get("EventReadFail") == 1
    assert source.metrics.degraded() == f"{spool}/a cannot be read, it is tried again: Permission denied"
    monkeypatch.undo()
    assert read(source) == [b"1"]
    assert read(source) == []
    assert source.metrics.degraded() == ""
    source.close()


def test_a_disk_that_fails_while_a_file_is_read(spool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [b"%099d" % number for number in range(12_000)]
    put(spool / "a", b"".join(line + b"\n" for line in lines))
    source = start(spool)
    look = source.look()
    batch = next(look)
    found = batch.bodies.to_pylist()
    source.stored(batch)
    assert source._current is not None

    def fails(_: int) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(source._current.content, "read", fails)
    for batch in look:
        found += batch.bodies.to_pylist()
        source.stored(batch)
    assert source.metrics.get("EventReadFail") == 1
    source.close()
    assert found == lines


def test_a_directory_that_disappears_is_waited_for(spool: Path, caplog: pytest.LogCaptureFixture) -> None:
    put(spool / "a", b"1\n")
    source = start(spool)
    assert read(source) == [b"1"]
    shutil.rmtree(spool)
    assert read(source) == []
    assert f"directory {spool} cannot be read, it is tried again: No such file or directory" in caplog.text
    assert "No such file" in source.metrics.degraded()
    assert not spool.exists(), "it may be a disk that is not mounted"
    put(spool / "b", b"".join(b"%d\n" % n for n in range(20)))
    caplog.set_level(logging.INFO)
    assert read(source) == [b"%d" % n for n in range(20)]
    assert f"{spool} can be read again" in caplog.text
    source.close()


@pytest.mark.parametrize("how", ["replace", "append"])
def test_a_full_disk_stops_the_reading_until_there_is_room(
    spool: Path, monkeypatch: pytest.MonkeyPatch, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    put(spool / "a", b"".join(b"%d\n" % n for n in range(6)))
    monkeypatch.setattr("sources.spooldir.source._RETRY_SECONDS", 0.001)
    source = start(spool, batchSize="2")
    look = source.look()
    if how == "append":
        source.stored(next(look))
    failures = iter([OSError(errno.ENOSPC, "No space left on device")] * 3)

    def full(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            if (error := next(failures, None)) is not None:
                raise error
            return real(*arguments)

        return call

    if how == "replace":
        monkeypatch.setattr(tracker_module, "replace", full(tracker_module.replace))
    else:
        monkeypatch.setattr(tracker_module.os, "pwrite", full(os.pwrite))
    batch = next(look)
    source.stored(batch)
    assert source.metrics.last_error == (
        f"trackerDir {spool}/.flumespool cannot be written, so nothing is read: No space left on device"
    )
    rest = []
    for batch in look:
        rest += batch.bodies.to_pylist()
        source.stored(batch)
    assert next(failures, None) is None
    assert rest == [b"%d" % n for n in range(6)][-len(rest) :]
    assert source.metrics.last_error == ""
    source.close()
    assert names(spool) == ["a.COMPLETED"]


def test_a_list_of_skipped_files_that_makes_no_sense(spool: Path) -> None:
    put(spool / ".flumespool" / ".flafka-skipped.json", b"[")
    source = make(spool)
    with pytest.raises(FlafkaError, match="Repair it, or remove it"):
        source.open()
    source.close()


# --- lines


def lines_of(data: bytes, directory: Path, **options: Any) -> list[bytes]:
    path = directory / "lines"
    path.write_bytes(data)
    content = Content(str(path), unpack=False)
    settings = {"charset": "utf-8", "policy": "FAIL", "output": "utf-8", "longest": 2048} | options
    reader = Lines(content, 0, **settings)
    found: list[bytes] = []
    try:
        while (piece := reader.read(3, 16)) is not None:
            found += piece.bodies.to_pylist()
    finally:
        content.close()
    return found


def as_flume(text: str, longest: int) -> list[str]:
    """LineDeserializer.readLine, a character at a time; characters of two units count as such and stay whole."""
    found, at = [], 0
    while at < len(text):
        line, units, taken = "", 0, 0
        while at < len(text):
            width = 2 if text[at] > "\uffff" else 1
            if units and units + width > longest:
                break
            character, at, units, taken = text[at], at + 1, units + width, taken + 1
            if character == "\n":
                break
            line += character
            if units >= longest:
                break
        found.append(line)
    return found


@given(st.text(st.sampled_from("ab\n\ré€\U0001f600\ufeff"), max_size=40), st.integers(1, 6))
def test_lines_are_cut_as_flume_cuts_them(tmp_path_factory: pytest.TempPathFactory, text: str, longest: int) -> None:
    directory = tmp_path_factory.getbasetemp()
    expected = as_flume(text, longest)
    assert [line.decode() for line in lines_of(text.encode(), directory, longest=longest)] == expected
    for charset in ("utf-16", "utf-16-be", "utf-32"):
        found = lines_of(text.encode(charset), directory, longest=longest, charset=charset)
        if text[:1] != "\ufeff" or charset != "utf-16-be":
            assert [line.decode() for line in found] == expected


def test_a_line_of_many_megabytes_is_cut_within_no_character(tmp_path: Path) -> None:
    text = "€" * (3 * LEAST_LINE_BYTES // 3 + 5) + "\nend"
    found = lines_of(text.encode(), tmp_path, longest=2047)
    assert b"".join(found) == text.replace("\n", "").encode()
    assert max(len(line.decode()) for line in found) == 2047


def test_a_pair_is_never_divided() -> None:
    assert divided("a\U0001f600b", 2, ended=True) == ["a", "\U0001f600", "b"]
    assert divided("\U0001f600" * 2, 1, ended=True) == ["\U0001f600", "\U0001f600", ""]
    assert divided("ab", 2, ended=True) == ["ab", ""]
    assert divided("ab", 2, ended=False) == ["ab"]


# --- Avro, and whole files


@pytest.mark.parametrize("codec", ["null", "deflate", "snappy", "bzip2", "xz"])
def test_records_of_avro_and_their_schema(spool: Path, codec: str) -> None:
    put(spool / "a", avro(50, codec))
    source = start(spool, deserializer="org.apache.flume.serialization.AvroEventDeserializer$Builder")
    events = []
    for batch in source.look():
        events += list(batch)
        source.stored(batch)
    source.close()
    parsed = fastavro.parse_schema(RECORD)
    records: list[Any] = [fastavro.schemaless_reader(io.BytesIO(event.body), parsed, None) for event in events]
    assert [record["number"] for record in records] == list(range(50))
    assert {event.headers["flume.avro.schema.hash"] for event in events} == {"a6c609a33e872fca"}


def test_the_schema_itself_in_a_header(spool: Path) -> None:
    put(spool / "a", avro(1))
    source = start(spool, deserializer="AVRO", deserializer__schemaType="literal")
    (event,) = [event for batch in source.look() for event in batch]
    source.close()
    assert json.loads(event.headers["flume.avro.schema.literal"]) == RECORD
    assert list(event.headers) == list(source.sets_headers())


def test_avro_goes_on_at_the_block_that_was_not_stored(spool: Path) -> None:
    put(spool / "a", avro(100))
    source = start(spool, deserializer="AVRO", batchSize="20")
    look = source.look()
    stored = []
    for _ in range(2):
        batch = next(look)
        stored += batch.bodies.to_pylist()
        source.stored(batch)
    source.close()
    rest = read_anew(spool, deserializer="AVRO")
    assert len(stored) + len(rest) == 100
    assert len({*stored, *rest}) == 100


def test_avro_that_is_damaged_is_read_as_far_as_possible(spool: Path) -> None:
    whole = avro(100)
    put(spool / "a", whole[:-30], age=9)
    put(spool / "b", b"no Avro at all", age=8)
    put(spool / "c", b"", age=7)
    put(spool / "d", gzip.compress(avro(3)), age=6)
    source = start(spool, deserializer="AVRO")
    found = read(source)
    assert 80 < len(found) - 3 < 100
    assert source.metrics.get("FileSkippedCount") == 3
    assert "is no whole Avro file" in source.metrics.degraded()
    source.close()


def test_whole_files(spool: Path) -> None:
    data = gzip.compress(os.urandom(50_000))
    put(spool / "a", data)
    put(spool / "b", b"")
    found = read_anew(spool, deserializer="blob", deserializer__maxBlobLength="20000")
    assert sorted(found, key=len) == sorted([data[:20000], data[20000:40000], data[40000:], b""], key=len)


# --- options


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"spoolDir": ""}, "spoolDir: must have at least 1 characters"),
        ({"ignorePattern": "("}, "ignorePattern: the regular expression '(' cannot be read"),
        ({"includePattern": "[a"}, "includePattern: the regular expression '[a' has a character class"),
        ({"consumeOrder": "undefined"}, "consumeOrder: must be 'oldest', 'youngest' or 'random'"),
        ({"deletePolicy": "later"}, "deletePolicy: must be 'never' or 'immediate'"),
        ({"inputCharset": "nope"}, "inputCharset: unknown character set 'nope'"),
        ({"deserializer": "LIEN"}, "deserializer: there is no deserializer 'LIEN', did you mean 'LINE'?"),
        ({"deserializer": "org.x.Mine"}, "deserializer: the deserializer org.x.Mine is a Java class"),
        ({"fileSuffix": "a/b"}, "fileSuffix: must match"),
        (
            {"fileHeader": "true", "basenameHeader": "true", "basenameHeaderKey": "file"},
            "fileHeader: sets the header that basenameHeaderKey names",
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_with_options(options: dict[str, str], expected: str) -> None:
    _, problems = SpooldirConfig.parse({"spoolDir": "/x", **options})
    assert expected in "\n".join(f"{problem.option}: {problem.message}" for problem in problems)


def test_options_of_flumes_past() -> None:
    texts = {"spoolDir": "/x", "bufferMaxLineLength": "7", "deserializer.maxLineLength": "9", "bufferMaxLines": "1"}
    config, problems = SpooldirConfig.parse({**texts, "maxBackoff": "4000"})
    assert config is not None
    assert problems == []
    assert config.line_length == 7
    blobs, _ = SpooldirConfig.parse({"spoolDir": "/x", "deserializer": "BLOB", "inputCharset": "UTF-8"})
    assert blobs is not None
    assert list(blobs.cautions()) == [
        Problem("inputCharset", "has no effect with deserializer BLOB, as in Flume", note=True)
    ]


def test_what_check_says_of_directories(spool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(make(spool).probe()) == []
    assert list(make(tmp_path / "nowhere").probe()) == [f"spoolDir {tmp_path}/nowhere does not exist"]
    file = put(tmp_path / "file", b"")
    assert list(make(file).probe()) == [f"spoolDir {file} is not a directory"]
    assert list(make(spool, trackerDir=str(file / "x")).probe()) == [
        f"trackerDir {file}/x cannot be used: {file} is not a directory"
    ]
    monkeypatch.setattr(directory_module.os, "access", lambda path, mode, **_: not mode & os.W_OK)
    assert list(make(spool).probe()) == [
        f"spoolDir {spool} is not writable, where files that were read are renamed or deleted; trackingPolicy ="
        " tracker_dir leaves them as they are",
        f"trackerDir {spool}/.flumespool cannot be used: {spool} is not writable",
    ]
    assert len(list(make(spool, trackingPolicy="tracker_dir").probe())) == 1
