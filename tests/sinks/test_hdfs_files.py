"""HDFS sink: files, formats, rolls and paths, and the disk on which files are staged."""

from __future__ import annotations

import errno
import io
import os
import pickle
import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import fastavro
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flafka.plugins import (
    Batch,
    Event,
    OffsetRange,
    Origin,
    Rejected,
    Retry,
)
from flafka.sinks.hdfs import staging as staging_module
from flafka.sinks.hdfs.layout import safe_name
from tests.fixtures.examples import examples
from tests.sinks.fake_webhdfs import FakeWebHdfs
from tests.sinks.hdfs_running import (
    ASSIGNMENT,
    OWN,
    commit,
    delivered,
    open_sink,
    records,
)

# --- files


def test_complete_files_appear_at_the_commit_and_not_before(sinks: Any, fake: FakeWebHdfs) -> None:
    sink = sinks(**{"hdfs.path": "/logs/%{host}", "hdfs.filePrefix": "web", "hdfs.fileSuffix": ".log"})
    assert sink.resume(ASSIGNMENT.with_offset(40)).next_offset == 40
    sink.write(records(40, 43, host="h{}"))
    sink.write(records(43, 44, host="h{}"))
    receipt = pickle.loads(pickle.dumps(sink.stage(OWN, OffsetRange(40, 44))))
    assert receipt.events == 4
    assert not fake.visible()
    commit(sink, receipt)
    files = fake.visible()
    assert sorted(re.sub("[0-9a-f]{8}[.]log", "#", path) for path in files) == [
        "/logs/h0/web.app.logs-3-0000000040-0000000043-#",
        "/logs/h1/web.app.logs-3-0000000040-0000000043-#",
    ]
    assert sorted(files.values()) == [b"40\n42\n", b"41\n43\n"]
    assert not [path for path in fake.files if "/tmp/" in path]


def test_another_process_may_commit_staged_files(sinks: Any, fake: FakeWebHdfs) -> None:
    executor, driver = sinks(), sinks()
    assert driver.resume(ASSIGNMENT).next_offset is None
    executor.write(records(0, 5))
    driver.commit(pickle.loads(pickle.dumps(executor.stage(OWN, OffsetRange(0, 5)))))
    executor.write(records(5, 9))
    driver.commit(executor.stage(OWN, OffsetRange(5, 9)))
    assert delivered(fake) == Counter(range(9))


def test_without_newline_and_with_empty_bodies(sinks: Any, fake: FakeWebHdfs) -> None:
    sink = sinks(**{"serializer.appendNewline": "false", "hdfs.path": "/logs/%{host}"})
    origin = Origin.of_record(ASSIGNMENT.topic, ASSIGNMENT.partition, 0, 0, 4)
    bodies = [
        Event(b"", {"host": "a"}),
        Event(b"\xff\n", {"host": "b"}),
        Event(b"", {"host": "b"}),
        Event(b"x", {"host": "b"}),
    ]
    sink.write(Batch.of(bodies, origin))
    commit(sink, sink.stage(OWN, OffsetRange(0, 1)))
    assert sorted(fake.visible().values()) == [b"", b"\xff\nx"]


def test_a_range_of_dropped_events_is_committed_without_files(sinks: Any, fake: FakeWebHdfs) -> None:
    sink = sinks()
    commit(sink, sink.stage(OWN, OffsetRange(0, 7)))
    assert sinks().resume(ASSIGNMENT).next_offset == 7
    assert not fake.visible()


def test_two_groups_and_a_recreated_topic_keep_apart(sinks: Any, fake: FakeWebHdfs) -> None:
    assignments = ASSIGNMENT.replace(group="other"), ASSIGNMENT.replace(topic_id="new"), ASSIGNMENT.replace(epoch=1)
    for committed in (ASSIGNMENT, *assignments):
        sink = sinks()
        resumed = sink.resume(committed)
        assert resumed == committed.replace(commit_log=OWN.generation.commit_log)
        sink.write(records(0, 3))
        commit(sink, sink.stage(resumed, OffsetRange(0, 3)))
    assert delivered(fake) == Counter({0: 4, 1: 4, 2: 4})
    assert len(fake.visible()) == 4


@given(st.lists(st.text(max_size=300), min_size=2, max_size=2, unique=True))
def test_names_in_the_state_directory_are_safe_and_distinct(texts: list[str]) -> None:
    first, second = map(safe_name, texts)
    assert first != second
    assert re.fullmatch(r"[A-Za-z0-9_~=-][A-Za-z0-9_.~=-]{0,254}", first)


# --- formats (tests/system has Hadoop read them)


@pytest.mark.parametrize(
    ("options", "end"),
    [
        ({"hdfs.fileType": "SequenceFile"}, ""),
        ({"hdfs.fileType": "SequenceFile", "hdfs.codeC": "org.apache.hadoop.io.compress.Lz4Codec"}, ".lz4"),
        ({"hdfs.fileType": "SequenceFile", "hdfs.codeC": "BZip2Codec", "hdfs.fileSuffix": ".seq"}, ".seq"),
    ],
)
def test_names_have_the_suffix_of_the_format_and_nothing_is_lost(
    sinks: Any, fake: FakeWebHdfs, options: dict[str, str], end: str
) -> None:
    sink = sinks(**{"hdfs.path": "/logs/%{host}", **options})
    sink.write(records(0, 6, host="h{}"))
    receipt = pickle.loads(pickle.dumps(sink.stage(OWN, OffsetRange(0, 6))))
    commit(sink, receipt)
    assert len(fake.visible()) == 2
    assert all(re.search(f"-[0-9a-f]{{8}}{re.escape(end)}$", path) for path in fake.visible())
    assert [file.length for file in receipt.staged.files] == [len(data) for data in fake.visible().values()]
    assert all(fake.visible().values())


def test_a_schema_of_the_configuration_may_lie_on_hdfs(sinks: Any, fake: FakeWebHdfs) -> None:
    sink = sinks(**{"serializer": "AVRO_BODY", "serializer.schemaURL": "hdfs://nn/schemas/x.avsc"})
    with pytest.raises(Retry, match=r"cannot fetch the schema hdfs://nn/schemas/x.avsc: it does not exist"):
        sink.write(records(0, 2))
    sink.reset()
    fake.files["/schemas/x.avsc"] = b'{"type": "int"}'
    sink.write(records(0, 2))
    receipt = sink.stage(OWN, OffsetRange(0, 2))
    commit(sink, receipt)
    [data] = [data for path, data in fake.visible().items() if path.startswith("/logs")]
    assert list(fastavro.reader(io.BytesIO(data))) == [24, -25]  # zigzag of "0" and "1"


def test_much_in_memory_makes_files_due(sinks: Any, fake: FakeWebHdfs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging_module, "MAX_BUFFERED_BYTES", 100)
    sink = sinks(serializer="avro_event")
    sink.write(records(0, 5))
    assert sink.due_partitions() == set()
    sink.write(records(5, 60))
    assert sink.due_partitions() == {ASSIGNMENT.partition}


# --- rolls


def test_rolls_make_files_due(sinks: Any, fake: FakeWebHdfs, monkeypatch: pytest.MonkeyPatch) -> None:
    def due(option: str, value: int, events: int = 3, later: float = 0, **headers: str) -> bool:
        sink = sinks(**{"hdfs.path": "/logs/%{host}", option: str(value)})
        now = 100.0
        sink.clock = sink._staging._clock = lambda: now
        assert sink.due_partitions() == set()
        sink.write(records(0, events, **headers))
        now += later
        due = sink.due_partitions()
        assert due <= {ASSIGNMENT.partition}
        if due:
            sink.stage(OWN, OffsetRange(0, events))
            assert sink.due_partitions() == set()
        return bool(due)

    assert not due("hdfs.rollCount", 0, 10_000, later=86_399)
    assert due("hdfs.rollCount", 0, later=86_400), "the channel's topic keeps the events for a time only"
    assert due("hdfs.rollCount", 3)
    assert not due("hdfs.rollCount", 4)
    assert not due("hdfs.rollCount", 3, host="h{}")  # two files, of two and of one
    assert due("hdfs.rollSize", 3)  # of bodies, as in Flume
    assert not due("hdfs.rollSize", 4)
    assert due("hdfs.rollInterval", 30, later=30)
    assert not due("hdfs.rollInterval", 30, later=29)
    assert due("hdfs.idleTimeout", 5, later=5)
    assert not due("hdfs.idleTimeout", 5, later=4)
    assert due("hdfs.maxOpenFiles", 1, host="h{}")
    assert not due("hdfs.maxOpenFiles", 2, host="h{}")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(1 << 30, 1 << 30, 1 << 20))
    assert due("hdfs.rollCount", 0)


def test_reset_drops_only_the_partition_it_names(sinks: Any, fake: FakeWebHdfs) -> None:
    sink = sinks()
    sink.write(records(0, 2))
    sink.reset(ASSIGNMENT.partition + 1)
    assert [file.events for file in sink._staging.partitions[ASSIGNMENT.partition].files.values()] == [2]
    sink.reset(ASSIGNMENT.partition)
    sink.write(records(7, 8))
    commit(sink, sink.stage(OWN, OffsetRange(7, 8)))
    assert delivered(fake) == Counter([7])


# --- paths


@given(st.lists(st.tuples(st.text(max_size=12), st.text(max_size=12)), min_size=1, max_size=20))
@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_header_leads_out_of_the_fixed_part(tmp_path: Path, pairs: list[tuple[str, str]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        fake = FakeWebHdfs()
        fake.install(patch)
        sink = open_sink(tmp_path, **{"hdfs.path": "/logs/%{a}/x%{b}", "hdfs.filePrefix": "%{b}"})
        batch = Batch.of(
            (Event(b"%d" % n, {"a": a, "b": b}) for n, (a, b) in enumerate(pairs)),
            Origin.of_record(ASSIGNMENT.topic, ASSIGNMENT.partition, 0, 0, len(pairs)),
        )
        rejected = 0
        try:
            sink.write(batch)
        except Rejected as e:
            rejected = len(e.reasons)
        commit(sink, sink.stage(OWN, OffsetRange(0, 1)))
        sink.close()
    assert sum(delivered(fake).values()) + rejected == len(pairs)
    for path in fake.visible():
        names = path.split("/")[1:]
        assert names[0] == "logs"
        assert not {"", ".", "..", ".flafka"} & set(names)


# --- the local disk


def test_a_full_staging_disk_is_named_and_recovered_by_reset(
    sinks: Any, fake: FakeWebHdfs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = sinks()

    def full(*_: Any, **__: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    sink.write(records(0, 2))
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", full)
        with pytest.raises(Retry, match=f"{re.escape(str(tmp_path))} is full"):
            sink.write(records(2, 4))
    sink.reset()
    assert [p.name for p in sink._staging.directory.iterdir()] == ["lock"]
    sink.write(records(0, 4))
    commit(sink, sink.stage(OWN, OffsetRange(0, 4)))
    assert delivered(fake) == Counter(range(4))


def test_staging_directories_of_dead_processes_are_removed(
    sinks: Any, fake: FakeWebHdfs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging_module, "UNLOCKED_GRACE_SECONDS", -1)
    dead = tmp_path / f"{staging_module.PREFIX}dead"
    dead.mkdir()
    (dead / "3-1").write_bytes(b"x")
    alive = sinks()
    sinks()
    assert not dead.exists()
    assert alive._staging.directory.exists()
    alive.close()
    assert len(list(tmp_path.iterdir())) == 1


def test_a_staging_directory_that_cannot_be_made_is_named(fake: FakeWebHdfs, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(Retry, match="cannot use the staging directory"):
        open_sink(tmp_path / "file")
