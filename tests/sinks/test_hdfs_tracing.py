"""Files of the HDFS sink that have a record: by the commit log, by their names, and by the remaining files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flafka.plugins import EventId, FlafkaError, OffsetRange, replay_group
from tests.sinks.fake_webhdfs import FakeWebHdfs
from tests.sinks.hdfs_running import ASSIGNMENT, OWN, open_sink, records, write_and_commit

PATH = {"hdfs.path": "/logs/%{host}"}


def id_at(offset: int) -> EventId:
    return EventId(ASSIGNMENT.id_prefix, ASSIGNMENT.partition, offset, 0)


def trace_record(directory: Path, offset: int, *, with_event: bool = True, **options: str) -> list[dict[str, Any]]:
    """Return the answer of a sink that is not open about that record; `with_event` includes the event."""
    sink = open_sink(directory, **{**PATH, **options})
    sink.close()
    batch = records(offset, offset + 1, host="h{}") if with_event else None
    return sink.trace(ASSIGNMENT, id_at(offset), batch)


@pytest.fixture
def two_commits(fake: FakeWebHdfs, tmp_path: Path) -> FakeWebHdfs:
    """Write records 0 to 3 and 4 to 9, each commit with a file of two hosts."""
    sink = open_sink(tmp_path, **PATH)
    sink.resume(ASSIGNMENT)
    write_and_commit(sink, 0, 4, host="h{}")
    write_and_commit(sink, 4, 10, host="h{}")
    sink.close()
    return fake


def test_the_commit_log_names_the_file(two_commits: FakeWebHdfs, tmp_path: Path) -> None:
    for offset, first, last in ((0, 0, 3), (3, 0, 3), (4, 4, 9), (9, 4, 9)):
        (location,) = trace_record(tmp_path, offset)
        assert (location["first"], location["last"]) == (first, last)
        assert (location["group"], location["replay"]) == (ASSIGNMENT.group, False)
        assert str(offset).encode() in two_commits.files[location["path"]].split()
    files = trace_record(tmp_path, 5, with_event=False)  # its path is unknown without the event
    assert sorted(location["path"].split("/")[2] for location in files) == ["h0", "h1"]


def test_a_name_locates_a_record_before_the_commit_log(two_commits: FakeWebHdfs, tmp_path: Path) -> None:
    first = next(path for path in two_commits.files if "/.flafka/chain/" in path and path.endswith("0" * 20))
    del two_commits.files[first]
    (location,) = trace_record(tmp_path, 2)
    assert b"2" in two_commits.files[location["path"]].split()
    assert (location["first"], location["last"]) == (0, 3)
    (answer,) = trace_record(tmp_path, 2, with_event=False)
    assert "reaches back a day" in answer["unknown"]
    (answer,) = trace_record(tmp_path, 2, **{"hdfs.useLocalTimeStamp": "true"})  # nor is it known then
    assert "unknown" in answer


def test_a_removed_file_and_an_undelivered_record_are_reported(two_commits: FakeWebHdfs, tmp_path: Path) -> None:
    (location,) = trace_record(tmp_path, 6)
    del two_commits.files[location["path"]]
    (answer,) = trace_record(tmp_path, 6)
    assert answer["missing"] == f"{location['path']} was delivered, and was moved or deleted since"
    (answer,) = trace_record(tmp_path, 10)
    assert answer["missing"] == "no file of /logs/h0 has record 10"


@pytest.mark.parametrize("moves", [False, True])
def test_a_file_below_a_former_path_is_not_missing(two_commits: FakeWebHdfs, tmp_path: Path, moves: bool) -> None:
    """The last committed offset has the location of the commit log, until the first commit below the new path."""
    path = {"hdfs.path": "/logs/new/%{host}"}
    sink, committed = open_sink(tmp_path, **path), OWN
    if moves:
        moved = sink.move_commit_log(OWN.with_offset(10))
        assert moved is not None
        committed = sink.resume(moved)
        sink.write(records(10, 12, host="h{}"))
        sink.commit(sink.stage(committed, OffsetRange(10, 12)))
    sink.close()

    def trace(offset: int) -> list[dict[str, Any]]:
        return sink.trace(committed, id_at(offset), records(offset, offset + 1, host="h0"))

    locations = trace(4)
    if not moves:
        assert sorted(location["path"].split("/")[2] for location in locations) == ["h0", "h1"]
        for file in (location["path"] for location in locations):
            del two_commits.files[file]
        assert "was delivered, and was moved or deleted since" in trace(4)[0]["missing"]
        return
    assert locations == [
        {
            "unknown": "no file of /logs/new/h0 has record 4, and the commit log begins with record 10 below "
            "/logs/new/.flafka: it is below a former hdfs.path, or was skipped"
        }
    ]
    (location,) = trace(10)
    assert location["path"].startswith("/logs/new/h0")
    assert trace(12) == [{"missing": "no file of /logs/new/h0 has record 12"}]


def test_without_a_commit_log_nothing_is_known(two_commits: FakeWebHdfs, tmp_path: Path) -> None:
    (answer,) = trace_record(tmp_path, 4, **{"hdfs.path": "/elsewhere/%{host}"})
    assert answer["unknown"].startswith("no file of /elsewhere/h0 has record 4, and there is no commit log below ")


def test_a_damaged_commit_log_is_reported(two_commits: FakeWebHdfs, tmp_path: Path) -> None:
    first = next(path for path in two_commits.files if "/.flafka/chain/" in path and path.endswith("0" * 20))
    for damage in (b"", b"{", b"\xff"):
        two_commits.files[first] = damage
        with pytest.raises(FlafkaError, match=f"{first} is no manifest of this sink"):
            trace_record(tmp_path, 2)


def test_an_event_that_has_no_path_is_in_no_file(fake: FakeWebHdfs, tmp_path: Path) -> None:
    for hostile in ("..", ".flafka"):
        sink = open_sink(tmp_path, **PATH)
        sink.close()
        (answer,) = sink.trace(ASSIGNMENT, id_at(0), records(0, 1, host=hostile))
        assert answer["missing"].startswith("it has no file: ")


def test_a_replay_has_its_own_files_and_commit_log(two_commits: FakeWebHdfs, tmp_path: Path) -> None:
    before = dict(two_commits.visible())
    replay = ASSIGNMENT.replace(group=replay_group(ASSIGNMENT.group, "a1.sinks.k1", 1, 2))
    assert replay.replay == "a1.sinks.k1.1-2"
    for _ in range(2):  # the second one continues where the first one ended
        sink = open_sink(tmp_path, **PATH)
        resumed = sink.resume(replay.with_offset(2))
        if resumed.next_offset == 2:
            sink.write(records(2, 6, host="h{}"))
            sink.commit(sink.stage(OWN.replace(group=replay.group), OffsetRange(2, 6)))
        sink.close()
    assert resumed.next_offset == 6
    visible = two_commits.visible()
    assert {path: visible[path] for path in before} == before
    replayed = {path: content for path, content in visible.items() if "-replay" in path}
    assert replayed.keys() == visible.keys() - before.keys()
    assert sorted(b"".join(replayed.values()).split()) == [b"2", b"3", b"4", b"5"]
    assert [location["replay"] for location in trace_record(tmp_path, 5)] == [False, True]
