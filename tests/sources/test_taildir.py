"""Source `taildir` on real files: events of their lines."""

from __future__ import annotations

import bz2
import gzip
import logging
import lzma
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from flafka.plugins import Components, hookimpl
from flafka.sources.taildir import TaildirSource
from flafka.sources.taildir.tail import MAX_LINE_BYTES
from tests.fixtures.examples import examples
from tests.sources.taildir_running import (
    LOGHUB,
    append,
    bodies,
    kill,
    positions,
    process,
    start,
)

# --- lines


def test_is_found_by_flumes_names() -> None:
    plugin = SimpleNamespace(components=hookimpl(lambda: [TaildirSource]))
    components = Components([plugin], entry_points=False)
    for name in ("taildir", "TAILDIR", "org.apache.flume.source.taildir.TaildirSource"):
        assert components.get("source", name) is TaildirSource


def test_a_file_in_utf_16_is_named_with_advice(logs: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (logs / "log").write_bytes("one\ntwo\n".encode("utf-16"))
    source = start(tmp_path)
    assert bodies(source)[0] == "one".encode("utf-16")
    append(logs / "log", "three\n".encode("utf-16-le"))
    process(source)
    source.close()
    (record,) = [record for record in caplog.records if "UTF-16" in record.getMessage()]
    assert "inputCharset = UTF-16" in record.getMessage()


@pytest.mark.skipif(not LOGHUB.is_dir(), reason="the real logs are not here")
@pytest.mark.parametrize("name", ["HDFS_2k.log", "Hadoop_2k.log", "Linux_2k.log", "OpenSSH_2k.log"])
def test_real_logs_come_back_byte_for_byte(name: str, logs: Path, tmp_path: Path) -> None:
    data = (LOGHUB / name).read_bytes()
    path = logs / "log.real"
    path.write_bytes(data)
    source = start(tmp_path, keepCarriageReturn="true", byteOffsetHeader="true", batchSize="333", idleTimeout="0")
    lines = process(source)
    path.rename(logs / "log.real.1")  # its last line has no newline, and is complete once its file is renamed
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
def test_an_unfinished_line_is_dropped_once_its_file_is_idle_and_deleted(
    fate: str, logs: Path, tmp_path: Path
) -> None:
    log = logs / "log"
    log.write_bytes(b"whole\npart")
    # A deleted file can be read only while it is open: no idle time may pass before its deletion.
    source = start(tmp_path, idleTimeout="600000" if fate == "deleted" else "200")
    assert bodies(source) == [b"whole"]
    if fate == "deleted":
        log.unlink()
        source._discovery.idle_seconds = 0.2
    else:
        log.rename(logs / ("log.1" if fate == "renamed" else "old"))
    lines: list[bytes] = []
    while not lines:
        lines = bodies(source)
    assert lines == [b"part"]
    assert bodies(source) == []
    source.close()


def test_lines_are_cut_only_past_four_mebibytes(logs: Path, tmp_path: Path) -> None:
    longest, longer = b"x" * MAX_LINE_BYTES, b"y" * (MAX_LINE_BYTES + 10)
    (logs / "log").write_bytes(b"before\n" + longest + b"\n" + longer + b"\nafter\n")
    source = start(tmp_path)
    assert bodies(source) == [b"before", longest, longer[:MAX_LINE_BYTES], longer[MAX_LINE_BYTES:], b"after"]
    assert source.metrics.get("LineSplitCount") == 1
    source.close()


def test_batches_are_bounded_by_lines_and_by_bytes(logs: Path, tmp_path: Path) -> None:
    (logs / "log").write_bytes(b"".join(b"%d\n" % i for i in range(25_000)))
    (logs / "log.wide").write_bytes((b"w" * 999 + b"\n") * 2000)
    source = start(tmp_path)
    sizes = []
    for batch in source.poll():
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
    for batch in source.poll():
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
def test_a_batch_count_of_zero_is_no_limit_as_in_flume(logs: Path, tmp_path: Path, count: str) -> None:
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
        lines = []
        batches = source.poll()
        while True:
            try:
                batch = next(batches)
            except StopIteration as stop:
                return lines, stop.value
            lines += batch.bodies.to_pylist()
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


def test_the_files_of_skip_to_end_are_decided_once(logs: Path, tmp_path: Path) -> None:
    (logs / "log").write_bytes(b"old\n")
    source = start(tmp_path, skipToEnd="true")
    kill(source)
    append(logs / "log", b"written after the first start\n")
    source = start(tmp_path, skipToEnd="true")
    assert bodies(source) == [b"written after the first start"]
    source.close()


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress, lzma.compress])
def test_compressed_files_are_ignored(
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
