"""The source `taildir` on real files: what it reads, what it refuses, and what it lets go of."""

from __future__ import annotations

import bz2
import errno
import gzip
import json
import logging
import lzma
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from plugins import Components, FlafkaError, Retry, hookimpl
from sources.taildir import TaildirConfig, TaildirSource
from sources.taildir.groups import Group
from sources.taildir.tail import MAX_LINE
from tests.fixtures.examples import examples

REPOSITORY = Path(__file__).parents[2]
LOGHUB = REPOSITORY.parent / "shared" / "data" / "loghub"

Lines = list[tuple[bytes, dict[str, str]]]


def make(directory: Path, pattern: str = "log.*", **options: str) -> TaildirSource:
    """A source over the files of `directory/logs`, that looks everywhere each time it is asked."""
    (directory / "logs").mkdir(exist_ok=True)
    properties = {
        "filegroups": "g",
        "filegroups.g": f"{directory}/logs/{pattern}",
        "positionFile": f"{directory}/positions/taildir.json",
        "backoffSleepIncrement": "1",
        "maxBackoffSleep": "1",
        "writePosInterval": "0",
        **options,
    }
    config, problems = TaildirConfig.parse(properties)
    assert config is not None, problems
    return TaildirSource(config)


def start(directory: Path, pattern: str = "log.*", **options: str) -> TaildirSource:
    source = make(directory, pattern, **options)
    source.open()
    return source


def process(source: TaildirSource) -> Lines:
    """All there is to read now, stored."""
    found: Lines = []
    quiet = 0
    while quiet < 3:
        quiet += 1
        for batch in source.look():
            found += [(event.body, event.headers) for event in batch]
            source.stored(batch)
            quiet = 0
        time.sleep(0.0015)  # past the time of the next look everywhere
    return found


def bodies(source: TaildirSource) -> list[bytes]:
    return [body for body, _ in process(source)]


def positions(directory: Path) -> dict[str, int]:
    entries = json.loads((directory / "positions" / "taildir.json").read_text())
    return {Path(entry["file"]).name: entry["pos"] for entry in entries}


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def open_files(directory: Path) -> list[str]:
    """What this process holds open under that directory, deleted files included."""
    found = []
    for fd in Path("/proc/self/fd").iterdir():
        try:
            target = str(fd.readlink())
        except OSError:
            continue
        if target.startswith(str(directory)) or "inotify" in target:
            found.append(target)
    return found


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[Path]:
    directory = tmp_path / "logs"
    directory.mkdir()
    yield directory
    assert open_files(tmp_path) == [], "everything is let go of"


# --- what becomes of lines


def test_is_found_by_flumes_names() -> None:
    plugin = SimpleNamespace(components=hookimpl(lambda: [TaildirSource]))
    found = Components([plugin], entry_points=False)
    for name in ("taildir", "TAILDIR", "org.apache.flume.source.taildir.TaildirSource"):
        assert found.get("source", name) is TaildirSource


def test_every_byte_of_a_line_arrives(logs: Path, tmp_path: Path) -> None:
    text = b"plain\n\n\nnul \x00 \xff\xfe not utf-8\ncaf\xc3\xa9 \xe2\x82\xac\nreturn \r inside\n \t blanks \n"
    (logs / "log").write_bytes(text)
    source = start(tmp_path)
    assert bodies(source) == text.split(b"\n")[:-1]
    source.close()


def test_a_carriage_return_is_taken_off_as_in_flume_or_kept(logs: Path, tmp_path: Path) -> None:
    (logs / "log").write_bytes(b"a\r\nb\rc\r\r\n\r\nd\n\r")
    source = start(tmp_path)
    assert bodies(source) == [b"a", b"b\rc\r", b"", b"d"]
    source.close()
    source = start(tmp_path, positionFile=f"{tmp_path}/other.json", keepCarriageReturn="true")
    assert bodies(source) == [b"a\r", b"b\rc\r\r", b"\r", b"d"]
    source.close()


@pytest.mark.skipif(not LOGHUB.is_dir(), reason="the real logs are not here")
@pytest.mark.parametrize("name", ["HDFS_2k.log", "Hadoop_2k.log", "Linux_2k.log", "OpenSSH_2k.log"])
def test_real_logs_come_back_byte_for_byte(name: str, logs: Path, tmp_path: Path) -> None:
    data = (LOGHUB / name).read_bytes()
    path = logs / "log.real"
    path.write_bytes(data)
    source = start(tmp_path, keepCarriageReturn="true", byteOffsetHeader="true", batchSize="333", idleTimeout="0")
    lines = process(source)
    path.rename(logs / "log.real.1")  # its last line has no newline, and comes once nobody will go on with it
    lines += process(source)
    assert b"".join(body + b"\n" for body, _ in lines).removesuffix(b"\n") == data.removesuffix(b"\n")
    for body, headers in lines:
        offset = int(headers["byteoffset"])
        assert data[offset : offset + len(body)] == body
    source.close()


def test_a_line_waits_for_its_newline_across_restarts(logs: Path, tmp_path: Path) -> None:
    log = logs / "log"
    euro = "€".encode()
    log.write_bytes(b"one\ntw")
    source = start(tmp_path, idleTimeout="0")
    assert bodies(source) == [b"one"]
    append(log, b"o" + euro[:1])
    assert bodies(source) == []
    source.close()
    source = start(tmp_path, idleTimeout="0")
    assert bodies(source) == []
    append(log, euro[1:] + b"\nthr")
    assert bodies(source) == [b"two" + euro]
    source.close()


@pytest.mark.parametrize("fate", ["renamed", "renamed out of the pattern", "deleted"])
def test_an_unfinished_line_is_let_go_once_its_file_is_idle_and_gone(fate: str, logs: Path, tmp_path: Path) -> None:
    log = logs / "log"
    log.write_bytes(b"whole\npart")
    # A deleted file can be read only while it is held open: no idle time may pass before it is deleted.
    source = start(tmp_path, idleTimeout="5000" if fate == "deleted" else "200")
    assert bodies(source) == [b"whole"]
    if fate == "deleted":
        log.unlink()
    else:
        log.rename(logs / ("log.1" if fate == "renamed" else "old"))
    found: list[bytes] = []
    while not found:
        found = bodies(source)
    assert found == [b"part"]
    assert bodies(source) == []
    source.close()


def test_lines_are_cut_only_past_four_mebibytes(logs: Path, tmp_path: Path) -> None:
    longest, longer = b"x" * MAX_LINE, b"y" * (MAX_LINE + 10)
    (logs / "log").write_bytes(b"before\n" + longest + b"\n" + longer + b"\nafter\n")
    source = start(tmp_path)
    assert bodies(source) == [b"before", longest, longer[:MAX_LINE], longer[MAX_LINE:], b"after"]
    assert source.metrics.get("LineSplitCount") == 1
    source.close()


def test_batches_are_bounded_by_lines_and_by_bytes(logs: Path, tmp_path: Path) -> None:
    (logs / "log").write_bytes(b"".join(b"%d\n" % i for i in range(25_000)))
    (logs / "log.wide").write_bytes((b"w" * 999 + b"\n") * 2000)
    source = start(tmp_path)
    sizes = []
    for batch in source.look():
        sizes.append((len(batch), batch.nbytes))
        source.stored(batch)
    assert sum(lines for lines, _ in sizes) == 27_000
    assert max(lines for lines, _ in sizes) == 10_000
    assert max(size for _, size in sizes) < 600 << 10
    source.close()


def test_a_batch_gathers_many_small_files(logs: Path, tmp_path: Path) -> None:
    for i in range(500):
        (logs / f"log.{i:03}").write_bytes(b"%d a\n%d b\n" % (i, i))
    source = start(tmp_path, fileHeader="true")
    batches = []
    for batch in source.look():
        batches.append(batch)
        source.stored(batch)
    assert [len(batch) for batch in batches] == [1000]
    for event in batches[0]:
        assert event.headers["file"] == f"{logs}/log.{int(event.body.split()[0]):03}"
    assert positions(tmp_path)["log.499"] == len(b"499 a\n499 b\n")
    source.close()


def test_headers(logs: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (logs / "log").write_bytes(b"first\nsecond\n")
    (tmp_path / "other" / "x").write_bytes(b"third\n")
    source = start(
        tmp_path,
        **{
            "filegroups": "g o",
            "filegroups.o": f"{tmp_path}/other/x",
            "headers.g.kind": "log",
            "headers.g.a.b": "dotted",
            "headers.o.kind": "other",
            "fileHeader": "true",
            "fileHeaderKey": "path",
            "byteOffsetHeader": "true",
        },
    )
    path = f"{logs}/log"
    assert sorted(process(source)) == [
        (b"first", {"byteoffset": "0", "kind": "log", "a.b": "dotted", "path": path}),
        (b"second", {"byteoffset": "6", "kind": "log", "a.b": "dotted", "path": path}),
        (b"third", {"byteoffset": "0", "kind": "other", "path": f"{tmp_path}/other/x"}),
    ]
    (logs / "log").rename(logs / "log.1")
    append(logs / "log.1", b"late\n")
    assert process(source)[0][1]["path"] == path, "what is read of a renamed file belongs to the log it was"
    source.close()


def test_a_file_name_need_not_be_utf8(logs: Path, tmp_path: Path) -> None:
    (logs / os.fsdecode(b"log.\xff")).write_bytes(b"a\n")
    source = start(tmp_path, fileHeader="true")
    assert process(source) == [(b"a", {"file": f"{logs}/log.�"})]
    source.close()
    source = start(tmp_path)
    assert process(source) == []
    source.close()


@pytest.mark.parametrize("count", ["0", "-1"])
def test_no_number_of_batches_is_no_limit_as_in_flume(logs: Path, tmp_path: Path, count: str) -> None:
    for name in "ab":
        (logs / f"log.{name}").write_bytes(b"".join(b"%s%d\n" % (name.encode(), i) for i in range(5)))
    source = start(tmp_path, batchSize="1", maxBatchCount=count)
    bodies = [body.decode()[0] for body, _ in process(source)]
    assert bodies in (list("aaaaabbbbb"), list("bbbbbaaaaa"))
    source.close()


def test_files_come_in_order_of_change_and_take_turns(logs: Path, tmp_path: Path) -> None:
    for age, name in enumerate(("log.c", "log.a", "log.b")):
        (logs / name).write_bytes(b"".join(b"%s%d\n" % (name[-1:].encode(), i) for i in range(3)))
        os.utime(logs / name, (1000 + age, 1000 + age))
    source = start(tmp_path, batchSize="1", maxBatchCount="2")

    def one_look() -> tuple[list[bytes], bool]:
        found = []
        look = source.look()
        while True:
            try:
                batch = next(look)
            except StopIteration as stop:
                return found, stop.value
            found += batch.bodies.to_pylist()
            source.stored(batch)

    assert one_look() == ([b"c0", b"c1", b"a0", b"a1", b"b0", b"b1"], True)
    assert one_look() == ([b"c2", b"a2", b"b2"], False)
    source.close()


def test_skip_to_end_is_for_files_present_at_the_first_start(logs: Path, tmp_path: Path) -> None:
    (logs / "log").write_bytes(b"old\n")
    source = start(tmp_path, skipToEnd="true")
    append(logs / "log", b"while it was killed\n")
    (logs / "log.2").write_bytes(b"a new file\n")
    assert sorted(bodies(source)) == [b"a new file", b"while it was killed"]
    source.close()
    append(logs / "log", b"new\n")
    source = start(tmp_path, skipToEnd="true")
    assert bodies(source) == [b"new"]
    source.close()


def test_what_skip_to_end_skips_is_decided_once(logs: Path, tmp_path: Path) -> None:
    (logs / "log").write_bytes(b"old\n")
    source = start(tmp_path, skipToEnd="true")
    kill(source)
    append(logs / "log", b"written after the first start\n")
    source = start(tmp_path, skipToEnd="true")
    assert bodies(source) == [b"written after the first start"]
    source.close()


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress, lzma.compress])
def test_compressed_files_are_left_alone(
    compress: Callable[[bytes], bytes], logs: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    (logs / "log").write_bytes(b"1\n")
    (logs / "log.gz").write_bytes(compress(b"0\n" * 99) + b"\n")
    source = start(tmp_path, idleTimeout="0")
    assert bodies(source) == [b"1"]
    append(logs / "log.gz", b"\n")
    assert bodies(source) == []
    assert caplog.text.count("log.gz is compressed: it is not read") == 1
    (logs / "log.gz").write_bytes(b"text\n")  # the same inode
    assert bodies(source) == [b"text"]
    source.close()


def test_ten_thousand_files(logs: Path, tmp_path: Path) -> None:
    count = examples(10_000)
    for i in range(count):
        (logs / f"log.{i}").write_bytes(b"%d\n" % i)
    source = start(tmp_path)
    assert sorted(map(int, bodies(source))) == list(range(count))
    journal = tmp_path / "positions" / "taildir.json.journal"
    size = journal.stat().st_size
    append(logs / "log.77", b"more\n")
    assert bodies(source) == [b"more"]
    assert 0 < journal.stat().st_size - size < 1000, "saving one position costs one position"
    kill(source)
    append(logs / "log.77", b"again\n")
    source = start(tmp_path)
    assert bodies(source) == [b"again"]
    source.close()
    assert len(positions(tmp_path)) == count


# --- what becomes of files


def kill(source: TaildirSource) -> None:
    """What SIGKILL leaves: nothing is saved any more, and the system closes all that is open."""
    source._positions.save = lambda *_, **__: None  # type: ignore[method-assign]
    journal = source._positions.path.with_name("taildir.json.journal")
    source.close()
    append(journal, b'{"is":"file","id":1,"inode":')  # a save that was not finished


def test_rotation_into_a_matching_name(logs: Path, tmp_path: Path) -> None:
    log = logs / "log"
    log.write_bytes(b"1\n2\n")
    source = start(tmp_path)
    assert bodies(source) == [b"1", b"2"]
    append(log, b"3\n")
    log.rename(logs / "log.1")
    log.write_bytes(b"4\n")
    assert sorted(bodies(source)) == [b"3", b"4"]
    append(logs / "log.1", b"5\n")  # by a writer that has it open still
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


def test_an_inode_alone_proves_nothing_under_a_name_that_does_not_match(logs: Path, tmp_path: Path) -> None:
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
    assert len(next(source.look())) == 1
    kill(source)
    (logs / "log").rename(logs / "old")
    source = start(tmp_path)
    assert bodies(source) == [b"1"]
    source.close()


def test_a_deleted_file_is_read_to_its_end_and_then_closed(logs: Path, tmp_path: Path) -> None:
    log = logs / "log"
    log.write_bytes(b"1\n")
    source = start(tmp_path, idleTimeout="5000")
    assert bodies(source) == [b"1"]
    with log.open("ab") as writer:
        writer.write(b"2\n")
        writer.flush()
        log.unlink()
        writer.write(b"3\n")
        writer.flush()
        assert bodies(source) == [b"2", b"3"]
    while [path for path in open_files(tmp_path) if "/logs/" in path]:
        assert bodies(source) == []
    assert positions(tmp_path) == {}
    source.close()


@pytest.mark.parametrize("down", [False, True])
def test_a_new_file_under_an_old_inode_is_read_from_its_start(down: bool, logs: Path, tmp_path: Path) -> None:
    log = logs / "log"
    source = start(tmp_path, idleTimeout="0")
    for size in range(8):
        log.write_bytes(b"old %d\n" % size * 30)
        inode = log.stat().st_ino
        assert len(bodies(source)) == 30
        if down:
            source.close()
        log.unlink()
        log.write_bytes(b"new %d, which is longer\n" % size * 30)
        reused = log.stat().st_ino == inode
        if down:
            source = start(tmp_path, idleTimeout="0")
        assert bodies(source) == [b"new %d, which is longer" % size] * 30
        log.unlink()
    source.close()
    assert reused or not down, "this file system reuses inodes, or the test shows nothing"


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
            # NULs that are not the first of their file are bytes of a line.
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
            looked = source.look()
            batch = next(looked)
            assert [event.body for event in batch] == [b"turn %d" % turn]
            kill(source)
            if turn == 1:
                os.truncate(log, 0)
                writer.write(b"turn 1b\n")
            source = start(tmp_path)
            expected = b"turn 1b" if turn == 1 else b"turn %d" % turn
            assert bodies(source) == [expected], "it was offered, but never stored"
    source.close()


def test_where_there_are_only_nuls_the_text_may_come_before_them(logs: Path, tmp_path: Path) -> None:
    log = logs / "log"
    log.write_bytes(b"\0" * (9 << 20))
    source = start(tmp_path, idleTimeout="200")
    assert bodies(source) == []
    assert not source._behind, "it is not looked at without a pause"
    with log.open("r+b") as file:
        file.write(b"first\n")
    assert bodies(source)[0] == b"first"
    (logs / "log.2").write_bytes(b"\0" * 5000)
    assert bodies(source) == []
    (logs / "log.2").rename(logs / "old")
    while not source.metrics.get("NulByteCount"):
        assert bodies(source) == []
    assert source.metrics.get("NulByteCount") == 5000, "nobody writes to it any more"
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
    # Written without checksums, as earlier versions did.
    lines = [{"journal": 1}, *(json.loads(line.split(" ", 2)[2]) for line in journal.read_text().splitlines()[1:])]
    for line in lines:
        if line.get("is") == "file":
            line["device"] += 1  # as a reboot may number the disks
    journal.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))
    append(logs / "log", b"3\n")
    source = start(tmp_path)
    assert bodies(source) == [b"3"]
    source.close()


def test_symbolic_links_and_what_they_point_to(logs: Path, tmp_path: Path) -> None:
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
    assert list(source.probe()) == [f"directory {tmp_path}/logs cannot be read: No such file or directory"]
    source.open()
    assert bodies(source) == []
    assert caplog.text.count(f"directory {tmp_path}/logs cannot be read, it is tried again") == 1
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "log").write_bytes(b"1\n")
    assert bodies(source) == [b"1"]
    assert source.metrics.get("UnreadableCount") == 0
    source.close()


def test_positions_are_kept_while_the_directory_is_away(logs: Path, tmp_path: Path) -> None:
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


def test_many_more_files_than_may_be_open(logs: Path, tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = 200 + len(list(Path("/proc/self/fd").iterdir()))  # other tests have some open, too
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    try:
        for i in range(400):
            (logs / f"log.{i}").write_bytes(b"%d\n" % i)
        source = start(tmp_path)
        assert len(bodies(source)) == 400
        assert len(open_files(tmp_path)) <= most // 2 + 5
        for i in range(400):
            append(logs / f"log.{i}", b"more\n")
        assert bodies(source) == [b"more"] * 400
        source.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# --- what cannot be used


@pytest.fixture
def as_nobody() -> Iterator[Path]:
    """A directory, and a user whom permissions bind."""
    directory = Path(tempfile.mkdtemp())
    user = os.geteuid()
    directory.chmod(0o777)
    if user == 0:
        os.seteuid(65534)
    yield directory
    os.seteuid(user)
    for path in directory.rglob("*"):
        path.chmod(0o777)
    shutil.rmtree(directory)


def test_an_unreadable_file_is_told_once_and_tried_again(as_nobody: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = as_nobody / "logs" / "log"
    path.parent.mkdir()
    path.write_bytes(b"1\n")
    path.chmod(0)
    source = start(as_nobody)
    (as_nobody / "logs" / "log.good").write_bytes(b"good\n")
    assert list(source.probe()) == [f"{path} cannot be read: Permission denied"]
    assert bodies(source) == [b"good"]
    assert bodies(source) == []
    assert caplog.text.count(f"{path} cannot be read, it is tried again: Permission denied") == 1
    assert source.metrics.get("EventReadFail") == source.metrics.get("UnreadableCount") == 1
    path.chmod(0o644)
    assert bodies(source) == [b"1"]
    assert source.metrics.get("UnreadableCount") == 0
    source.close()


@pytest.mark.parametrize("obstacle", ["file", "directory"])
def test_a_read_only_position_file_is_named(obstacle: str, as_nobody: Path) -> None:
    source = start(as_nobody)
    source.close()
    path = as_nobody / "positions" / "taildir.json"
    (path if obstacle == "file" else path.parent).chmod(0o444 if obstacle == "file" else 0o555)
    with pytest.raises(Retry, match=rf"positionFile {path} cannot be written, so nothing is read: "):
        source.open()
    source.close()
    assert [str(path) in problem for problem in source.probe()] == [True]
    path.parent.chmod(0o755)
    path.chmod(0o644)
    assert list(source.probe()) == []
    source.open()
    source.close()


@pytest.mark.parametrize("content", ["{", '{"inode":1}', '[{"inode":"x"}]', '[{"inode":1,"pos":2}]', "[" * 100_000])
@pytest.mark.parametrize("suffix", ["", ".journal"])
def test_a_position_file_that_makes_no_sense_is_named(content: str, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / "positions" / f"taildir.json{suffix}"
    path.parent.mkdir()
    path.write_text(content)
    source = make(tmp_path)
    with pytest.raises(FlafkaError, match=rf"{path} does not hold positions of files: .*Repair it, or remove it"):
        source.open()
    source.close()
    assert [str(path) in problem for problem in source.probe()] == [True]
    assert path.read_text() == content


def test_probe_leaves_nothing_behind(tmp_path: Path) -> None:
    source = make(tmp_path, positionFile=f"{tmp_path}/a/b/c.json")
    assert list(source.probe()) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["logs"]
    (tmp_path / "a").write_text("a file")
    assert [problem.startswith(f"positionFile {tmp_path}/a/b/c.json cannot") for problem in source.probe()] == [True]
    with pytest.raises(Retry, match=r"positionFile .*/c\.json cannot be written"):
        source.open()
    source.close()


def test_a_position_file_has_one_source(tmp_path: Path) -> None:
    first, second = start(tmp_path), make(tmp_path)
    with pytest.raises(Retry, match="is in use by another taildir source: give each its own"):
        second.open()
    second.close()
    first.close()
    second.open()
    second.close()


def test_nothing_is_read_on_while_positions_cannot_be_saved(
    logs: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (logs / "log").write_bytes(b"1\n2\n")
    source = start(tmp_path, batchSize="1")
    away = tmp_path / "away"
    offered: list[bytes] = []
    told = threading.Event()

    def run() -> None:
        for batch in source.batches():
            offered.extend(batch.bodies.to_pylist())
            if len(offered) == 1:
                (tmp_path / "positions").rename(away)  # a disk that fails, as far as a write can tell
            source.stored(batch)
            told.set()

    thread = threading.Thread(target=run)
    thread.start()
    assert told.wait(60)
    assert "cannot be written, so nothing is read: No such file or directory" in source.metrics.last_error
    assert offered == [b"1"]
    told.clear()
    away.rename(tmp_path / "positions")
    assert told.wait(60)
    assert offered == [b"1", b"2"]
    source.stopping.set()
    thread.join(60)
    source.close()
    assert positions(tmp_path) == {"log": 4}


@pytest.mark.parametrize(
    ("properties", "problem"),
    [
        ({}, "is required"),
        ({"filegroups": ""}, "at least 1"),
        ({"filegroups": "g"}, "filegroups.g is missing"),
        ({"filegroups": "g", "filegroups.g": "relative/.*"}, "must be an absolute path"),
        ({"filegroups": "g", "filegroups.g": "/directory/"}, "must be an absolute path"),
        ({"filegroups": "g", "filegroups.g": "/d/*.log"}, "'*.log' cannot be read: nothing to repeat"),
        ({"filegroups": "g", "filegroups.g": "/d/[a-z&&[^b]]"}, "intersection of classes"),
        ({"filegroups": "g", "filegroups.g": "/d/x", "headers.g": "v"}, "headers.g must be headers.<group>.<name>"),
        ({"filegroups": "g", "filegroups.g": "/d/x", "batchSize": "0"}, "at least 1"),
        ({"filegroups": "g", "filegroups.g": "/d/x", "bathcSize": "1"}, "did you mean 'batchSize'?"),
        (
            {"filegroups": "g", "filegroups.g": "/d/x", **{f"headers.g.{i}": "v" for i in range(63)}},
            "at most 62 different headers",
        ),
    ],
)
def test_mistakes_in_options_are_named(properties: dict[str, str], problem: str) -> None:
    _, problems = TaildirConfig.parse(properties)
    assert problem in "\n".join(found.message for found in problems)


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("[ab].log", "a.log", "a.log.1"),
        (r"\Qa+b\E.*", "a+b.log", "aab.log"),
        (r"(?<name>x+)\.log", "xx.log", ".log"),
        (r"app\.(?!gz$).*", "app.log", "app.gz"),
        (r"\p{Alpha}+", "abc", "ab1"),
    ],
)
def test_patterns_are_javas_and_match_the_whole_name(pattern: str, yes: str, no: str) -> None:
    group = Group.of(f"/var//log/{pattern}", {})
    assert group.directory == "/var/log"
    assert group.pattern.fullmatch(yes)
    assert not group.pattern.fullmatch(no)


# --- Flume before and after


def test_flumes_positions_are_taken_over(logs: Path, tmp_path: Path) -> None:
    for name in ("log.same", "log.renamed", "log.shrunk", "log.middle"):
        (logs / name).write_bytes(b"1\n22\n333\n")
    entries = [
        {"inode": (logs / name).stat().st_ino, "pos": position, "file": f"{logs}/{was}"}
        for name, position, was in (
            ("log.same", 2, "log.same"),
            ("log.renamed", 5, "log.was"),
            ("log.shrunk", 100, "log.shrunk"),
            ("log.middle", 3, "log.was too"),
        )
    ]
    (tmp_path / "positions").mkdir()
    (tmp_path / "positions" / "taildir.json").write_text(json.dumps(entries))
    source = start(tmp_path, fileHeader="true")
    found: dict[str, list[bytes]] = {}
    for body, headers in process(source):
        found.setdefault(Path(headers["file"]).name, []).append(body)
    assert found == {
        "log.same": [b"22", b"333"],
        "log.was": [b"333"],
        "log.shrunk": [b"1", b"22", b"333"],
        "log.middle": [b"1", b"22", b"333"],  # under another name, in the middle of a line: it is another file
    }
    source.close()


def test_the_position_file_is_flumes(logs: Path, tmp_path: Path) -> None:
    (logs / "log").write_bytes(b"1\n22\n")
    (logs / "log.empty").touch()
    source = start(tmp_path)
    process(source)
    source.close()
    path = tmp_path / "positions" / "taildir.json"
    assert sorted(json.loads(path.read_text()), key=lambda entry: entry["file"]) == [
        {"inode": (logs / "log").stat().st_ino, "pos": 5, "file": f"{logs}/log"},
        {"inode": (logs / "log.empty").stat().st_ino, "pos": 0, "file": f"{logs}/log.empty"},
    ]
    path.write_text(path.read_text().replace('"pos":5', '"pos":2'))
    source = start(tmp_path)
    assert bodies(source) == [b"22"], "an operator's change counts"
    source.close()
    path.write_text("")  # what Flume leaves where nothing matches
    source = start(tmp_path)
    assert bodies(source) == [b"1", b"22"]
    source.close()


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
            # The next look everywhere is an hour away: only the kernel's hint can bring it.
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


@pytest.mark.parametrize("why", ["not wanted", "too many instances"])
def test_it_works_without_hints(
    why: str, logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused() -> None:
        raise OSError(errno.EMFILE, "inotify instance limit reached")

    if why == "too many instances":
        monkeypatch.setattr("sources.taildir.watch.InotifyFD", refused)
    source = start(tmp_path, inotify=str(why != "not wanted"))
    assert [path for path in open_files(tmp_path) if "inotify" in path] == []
    assert caplog.text.count("files are checked periodically instead") == (why != "not wanted")
    (logs / "log").write_bytes(b"1\n")
    for batch in source.batches():
        assert batch.bodies.to_pylist() == [b"1"]
        source.stored(batch)
        source.stopping.set()
    source.close()


CHANNEL = """
import sys
from sources.taildir import TaildirConfig, TaildirSource
directory = sys.argv[1]
config, _ = TaildirConfig.parse({
    "filegroups": "g", "filegroups.g": directory + "/logs/log(\\\\.[0-9])?", "batchSize": "50",
    "positionFile": directory + "/positions.json", "backoffSleepIncrement": "5", "maxBackoffSleep": "5",
})
source = TaildirSource(config)
source.open()
with open(directory + "/channel", "ab", buffering=0) as channel:
    for batch in source.batches():
        channel.write(b"".join(body + b"\\n" for body in batch.bodies.to_pylist()))
        source.stored(batch)
"""


def test_sigkill_loses_nothing_and_repeats_one_batch_at_most(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    chance = random.Random(seed)
    log, channel = tmp_path / "logs" / "log", tmp_path / "channel"
    log.parent.mkdir()
    channel.touch()
    written, kills = 0, 0
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}

    def write(count: int) -> None:
        nonlocal written
        append(log, b"".join(b"%d\n" % i for i in range(written, written + count)))
        written += count

    def run() -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", CHANNEL, str(tmp_path)], env=environment)

    def grown(process: subprocess.Popen[bytes], size: int) -> None:
        while channel.stat().st_size <= size:
            assert process.poll() is None
            time.sleep(0.001)

    for turn in range(2):
        size = channel.stat().st_size
        write(5_000)
        agent = run()
        grown(agent, size)
        rotate_after = chance.randrange(3)
        for step in range(3):
            write(chance.randrange(300))
            if step == rotate_after:
                log.rename(log.with_name(chance.choice([f"log.{turn}", f"old.{turn}"])))
            time.sleep(chance.random() * 0.02)
        agent.send_signal(signal.SIGKILL)
        agent.wait()
        kills += 1
        write(10)
        agent = run()
        while len(set(channel.read_bytes().split())) < written:
            assert agent.poll() is None
            time.sleep(0.05)
        agent.send_signal(signal.SIGKILL)
        agent.wait()
        kills += 1
    seen = Counter(channel.read_bytes().split())
    assert set(seen) == {b"%d" % i for i in range(written)}
    assert seen.total() - len(seen) <= 50 * kills
    assert max(seen.values()) <= 2


def test_beside_a_busy_writer_it_looks_by_itself_and_misses_no_rotation(logs: Path, tmp_path: Path) -> None:
    """So many events that the watches end for a while: a file rotated meanwhile is found afterwards."""
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
