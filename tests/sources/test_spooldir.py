"""Source `spooldir` on real directories: its files, their order, and its options."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest

from flafka.plugins.problems import Problem
from flafka.sources.spooldir import SpooldirConfig
from flafka.sources.spooldir import directory as directory_module
from flafka.sources.spooldir import tracker as tracker_module
from tests.sources.spooldir_running import PACKERS, make, names, put, read, read_anew, start

# --- files and their order


def test_files_are_read_oldest_first_and_renamed(spool: Path) -> None:
    put(spool / "b", b"3\n4\n", age=5)
    put(spool / "c", b"1\n2", age=9)
    put(spool / "a", b"5\r\n\n", age=5 - 0.0001)  # the same millisecond: by name
    source = start(spool, fileHeader="true", basenameHeader="true", basenameHeaderKey="name")
    events = [event for batch in source.poll() for event in (list(batch), source.stored(batch))[0]]
    source.close()
    assert [event.body for event in events] == [b"1", b"2", b"5\r", b"", b"3", b"4"]
    assert events[0].headers == {"file": str(spool / "c"), "name": "c"}
    assert names(spool) == ["a.COMPLETED", "b.COMPLETED", "c.COMPLETED"]
    assert source.metrics.get("FileReadCount") == 3


def test_files_of_one_time_and_name_are_read_in_the_order_of_their_paths(spool: Path) -> None:
    for name in ("c/a", "a", "b/a", "b/d/a"):
        put(spool / name, f"{name}\n".encode(), age=5)
    when = (spool / "a").stat().st_mtime_ns
    for file in spool.rglob("a"):
        os.utime(file, ns=(when, when))
    source = start(spool, recursiveDirectorySearch="true")
    bodies = [line for batch in source.poll() for line in (batch.bodies.to_pylist(), source.stored(batch))[0]]
    source.close()
    assert bodies == [b"a", b"b/a", b"b/d/a", b"c/a"]


def test_the_youngest_file_goes_first_also_if_it_comes_while_others_are_read(spool: Path) -> None:
    for number in range(4):
        put(spool / f"old{number}", b"%d\n" % number, age=10 + number)
    source = start(spool, consumeOrder="youngest", batchSize="1", pollDelay="0")
    bodies = []
    for batch in source.poll():
        if not bodies:
            put(spool / "new", b"new\n", age=1)
        bodies += batch.bodies.to_pylist()
        source.stored(batch)
        source._next_listing = 0
    source.close()
    assert bodies == [b"0", b"new", b"1", b"2", b"3"]


def test_files_that_come_while_others_are_read_are_read_without_a_pause(spool: Path) -> None:
    put(spool / "a", b"1\n")
    source = start(spool)
    bodies = []
    for batch in source.poll():
        if len(bodies) < 5:
            put(spool / f"b{len(bodies)}", b"more\n")
        bodies += batch.bodies.to_pylist()
        source.stored(batch)
    source.close()
    assert bodies == [b"1"] + [b"more"] * 5


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
    (batch, *_) = (batch for batch in [next(source.poll())])
    source.stored(batch)
    assert next(iter(batch)).headers == {"file": f"{spool}/caf\ufffd", "basename": "caf\ufffd"}
    source.close()
    source = start(spool)
    assert read(source) == [b"2"]
    assert json.dumps(source.metrics.degradation(), ensure_ascii=False).encode()
    source.close()
    assert read_anew(spool) == []


def test_thousands_of_damaged_files_are_listed_once(spool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(300):
        put(spool / f"f{number:03}", b"\xff\n" if number % 2 else b"good\n\xff\n")
    saved: list[Path] = []
    real = tracker_module.replace_file
    monkeypatch.setattr(tracker_module, "replace_file", lambda path, data: (saved.append(path), real(path, data))[1])
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


def test_a_file_is_marked_with_its_last_events_also_where_the_source_is_stopped_then(spool: Path) -> None:
    """Flume would make an empty event of a file that is read to its end and not marked."""
    put(spool / "a", b"1\n2\n3\n4")
    source = start(spool, batchSize="2")
    for batch in source.poll():
        source.stored(batch)
        if batch.bodies.to_pylist()[-1] == b"4":
            source.stopping.set()
    source.close()
    assert names(spool) == ["a.COMPLETED"]


def test_a_file_is_marked_although_its_end_cannot_be_saved(
    spool: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    put(spool / "a", b"1\n2\n3\n4")
    source = start(spool, batchSize="2")
    for batch in source.poll():
        if batch.bodies.to_pylist()[-1] == b"4":
            monkeypatch.setattr(source._tracker, "save", lambda position: os.open("/nowhere/at/all", os.O_RDONLY))
        source.stored(batch)
    source.close()
    assert names(spool) == ["a.COMPLETED"]
    assert "written" not in caplog.text, "nothing that is to be known later was lost"


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


def test_a_name_that_has_a_mark_already_is_reported(spool: Path) -> None:
    put(spool / "a", b"1\n")
    source = start(spool, trackingPolicy="tracker_dir")
    assert read(source) == [b"1"]
    mark = spool / ".flumespool" / "a.COMPLETED"
    put(spool / "a", b"2\n")
    os.utime(mark, (1_600_000_000, 1_600_000_000))
    (spool / "b").touch()
    assert read(source) == [b""]
    text = f"{spool}/a has changed since a file of its name was read: it is not read while {mark} is there"
    assert source.metrics.degradation() == text
    mark.unlink()
    assert read(source) == [b"2"]
    read(source)
    assert source.metrics.degradation() == ""
    source.close()


def test_many_files_share_batches_and_are_listed_once(spool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(300):
        put(spool / f"f{number:03}", b"%d\n" % number, age=1000 - number)
    source = start(spool)
    scans: list[str] = []
    real = directory_module.SpoolDirectory._scan
    monkeypatch.setattr(
        directory_module.SpoolDirectory,
        "_scan",
        lambda self, *arguments: (scans.append(arguments[0]), real(self, *arguments))[1],
    )
    batches = []
    for batch in source.poll():
        batches.append(len(batch))
        source.stored(batch)
    source.close()
    assert batches == [300]
    assert len(scans) <= 4, "with every file"


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
def test_wrong_options_are_refused(options: dict[str, str], expected: str) -> None:
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
    assert list(blobs.warnings()) == [
        Problem("inputCharset", "has no effect with deserializer BLOB, as in Flume", is_note=True)
    ]


@pytest.mark.parametrize(
    ("option", "pattern"), [("spoolDir", "/in/*"), ("includePattern", "app-*.log"), ("ignorePattern", "app-*.tmp")]
)
def test_a_shells_pattern_is_warned_of(option: str, pattern: str) -> None:
    config, _ = SpooldirConfig.parse({"spoolDir": "/in", option: pattern})
    assert config is not None
    (warning,) = config.warnings()
    assert (warning.option, repr(pattern) in warning.message, warning.is_note) == (option, True, False)


def test_check_reports_directories(spool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(make(spool).check_connectivity()) == []
    assert list(make(tmp_path / "nowhere").check_connectivity()) == [f"spoolDir {tmp_path}/nowhere does not exist"]
    file = put(tmp_path / "file", b"")
    assert list(make(file).check_connectivity()) == [f"spoolDir {file} is not a directory"]
    assert list(make(spool, trackerDir=str(file / "x")).check_connectivity()) == [
        f"trackerDir {file}/x cannot be used: {file} is not a directory"
    ]
    monkeypatch.setattr(directory_module.os, "access", lambda path, mode, **_: not mode & os.W_OK)
    assert list(make(spool).check_connectivity()) == [
        f"spoolDir {spool} is not writable, where files that were read are renamed or deleted; trackingPolicy ="
        " tracker_dir leaves them as they are",
        f"trackerDir {spool}/.flumespool cannot be used: {spool} is not writable",
    ]
    assert len(list(make(spool, trackingPolicy="tracker_dir").check_connectivity())) == 1


# --- progress


def test_the_offset_of_each_file_is_reported(tmp_path: Path) -> None:
    source = make(tmp_path, batchSize="3")
    assert list(source.tailed_files()) == []
    for name, lines in (("a", 5), ("b", 2)):
        (tmp_path / name).write_bytes(b"12345\n" * lines)
        os.utime(tmp_path / name, (1000, 1000))
    source.open()
    reports = []
    for batch in source.poll():
        reports.append([(Path(file.path).name, file.position) for file in source.tailed_files()])
        source.stored(batch)
        reports.append([(Path(file.path).name, file.position) for file in source.tailed_files()])
    # At first three lines of a are in flight, then stored; the rest of a and one of b; the last one of b.
    assert reports == [
        *([("a", 0), ("b", 0)], [("a", 18), ("b", 0)]),
        *([("b", 0)], [("b", 6)]),
        *([], []),
    ]
    assert source.metrics.snapshot()["FollowedFileCount"] == 0
    source.close()


@pytest.mark.parametrize("packer", PACKERS)
def test_a_compressed_file_is_reported_in_compressed_bytes(tmp_path: Path, packer: str) -> None:
    content = "".join(f"{n * 7919 % 999983}\n" for n in range(100_000)).encode()
    (tmp_path / "a").write_bytes(PACKERS[packer](content))
    size = (tmp_path / "a").stat().st_size
    source = start(tmp_path, batchSize="20000")
    positions = []
    for batch in source.poll():
        source.stored(batch)
        positions += [file.position for file in source.tailed_files()]
    assert len(positions) >= 2
    assert positions == sorted(positions)
    assert 0 < positions[0] <= positions[-1] <= size
    source.close()
