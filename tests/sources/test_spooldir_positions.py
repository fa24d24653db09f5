"""Offsets of a source `spooldir` after it was stopped or killed."""

from __future__ import annotations

import io
import shutil
from pathlib import Path

import fastavro
import pytest

from flafka.plugins import Retry
from flafka.sources.spooldir import tracker as tracker_module
from flafka.sources.spooldir.tracker import FileOffset, FileState, Tracker
from tests.sources.spooldir_running import make, names, put, read_anew, start


def test_a_kill_repeats_the_batch_that_was_not_stored(spool: Path) -> None:
    put(spool / "a", b"".join(b"%d\n" % n for n in range(10)))
    source = start(spool, batchSize="3")
    batches = source.poll()
    source.stored(next(batches))
    assert next(batches).bodies.to_pylist() == [b"3", b"4", b"5"]
    source.close()
    assert read_anew(spool, batchSize="3") == [b"%d" % n for n in range(3, 10)]
    assert names(spool) == ["a.COMPLETED"]


def test_a_started_file_is_finished_first(spool: Path) -> None:
    """The tracker has one file only: Flume begins this one again if an older one came meanwhile."""
    put(spool / "b", b"1\n2\n3\n", age=5)
    source = start(spool, batchSize="1")
    source.stored(next(source.poll()))
    source.close()
    put(spool / "a", b"0\n", age=9)
    assert read_anew(spool) == [b"2", b"3", b"0"]


def test_a_tracker_of_flumes_is_used(spool: Path) -> None:
    put(spool / "a", b"1\n2\n3\n")
    (spool / ".flumespool").mkdir()
    tracker = Tracker(spool / ".flumespool")
    tracker.save(FileOffset(str(spool / "a"), 0, None))
    tracker.save(FileOffset(str(spool / "a"), 2, None))
    tracker.close()
    file = fastavro.reader(io.BytesIO(tracker.path.read_bytes()))
    assert ([record["offset"] for record in file], file.metadata["file"]) == ([0, 2], str(spool / "a"))
    assert read_anew(spool, spoolDir=f"{spool.parent}//spool/") == [b"2", b"3"]


def test_a_tracker_whose_end_is_missing_counts_up_to_there(tmp_path: Path) -> None:
    tracker = Tracker(tmp_path)
    state = FileState(1, 2, 3, 4)
    for offset in (5, 700, 80_000):
        tracker.save(FileOffset("/x", offset, state))
    tracker.close()
    data = tracker.path.read_bytes()
    offsets = []
    for size in range(len(data) + 1):
        tracker.path.write_bytes(data[:size])
        try:
            position = tracker.read()
        except ValueError:
            continue
        offsets.append(position and position.offset)
    assert [n for i, n in enumerate(offsets) if i == 0 or n != offsets[i - 1]] == [None, 0, 5, 700, 80_000]


def test_an_invalid_tracker_is_reported(spool: Path, caplog: pytest.LogCaptureFixture) -> None:
    put(spool / "a", b"1\n")
    put(spool / ".flumespool" / ".flumespool-main.meta", b"nonsense")
    assert read_anew(spool) == [b"1"]
    assert "does not hold a position (it does not begin as an Avro file)" in caplog.text


def test_a_long_tracker_is_written_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracker_module, "_MAX_TRACKER_BYTES", 1000)
    tracker = Tracker(tmp_path)
    for offset in range(200):
        tracker.save(FileOffset("/x", offset, None))
        assert tracker.path.stat().st_size < 1100
    tracker.close()
    assert Tracker(tmp_path).read() == FileOffset("/x", 199, None)


def test_a_name_that_was_reused_between_scans(spool: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name, body in (("other", b"new 1\nnew 2\n"), ("changed", b"1\n2\n3\n")):
        put(spool / "a", b"1\n2\n")
        source = start(spool, batchSize="1")
        source.stored(next(source.poll()))
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


def test_a_position_is_recognised_on_another_disk(spool: Path) -> None:
    put(spool / "a", b"1\n2\n")
    source = start(spool, batchSize="1")
    source.stored(next(source.poll()))
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
