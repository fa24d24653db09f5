"""Import of Flume's file channel: every event once, and each unreadable one named."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flafka.agent.flumechannel import files as flume
from flafka.agent.flumechannel.importing import Imported, describe_undelivered, import_events
from flafka.channels.file import FileChannel, bulkload
from flafka.channels.file.log import delete_from
from flafka.plugins import ConnectivityWarning, FlafkaError, Retry
from tests.channels.file_running import channel, consumer, events, opened, segments

RECORDED = Path(__file__).parents[1] / "data/flume_file_channel"
NAMES = ("records", "checkpoint")


def copy_recorded(directory: Path, name: str) -> list[bytes]:
    """Copy a recorded channel of Flume into the directories of `channel`; return its undelivered bodies."""
    for source, target in (("checkpoint", "c"), ("a", "a"), ("b", "b"), ("backup", "backup")):
        if (RECORDED / name / source).exists():
            shutil.copytree(RECORDED / name / source, directory / target, dirs_exist_ok=True)
    return [body.encode() for body in json.loads((RECORDED / name / "bodies.json").read_text())]


def read(directory: Path) -> flume.FlumeChannel:
    return flume.FlumeChannel(directory / "c", directory / "backup", [directory / "a", directory / "b"])


def plain(body: bytes) -> bytes:
    return body.rstrip(b"_")


def imported(directory: Path, **more: str) -> Imported:
    """Import into a channel that no process uses."""
    return import_events(channel(directory, **more))


def delivered(of: FileChannel) -> list[bytes]:
    """Deliver all events of the channel, and return them."""
    owner = consumer(of)
    bodies = [plain(body) for body in owner.take_all()]
    owner.commit()
    assert owner.reader is not None
    owner.reader.close()
    return bodies


@pytest.mark.parametrize("name", NAMES)
def test_events_that_were_put_and_not_taken_are_read(memory: Path, name: str) -> None:
    bodies = copy_recorded(memory, name)
    contents = read(memory)
    got = [*contents.events()]
    assert [plain(event.body) for event in got] == bodies
    assert [event.headers for event in got] == [{"n": body.decode(), "schön": "grüße 😀"} for body in bodies]
    assert contents.damages == []


def test_the_contents_are_reported_before_any_change(memory: Path) -> None:
    of = channel(memory)
    assert [*describe_undelivered(of, "import")] == []
    copy_recorded(memory, "records")
    names = sorted(path for path in memory.rglob("*"))
    (warning,) = describe_undelivered(of, "import")
    assert isinstance(warning, ConnectivityWarning)
    assert warning.startswith(
        "dataDirs has 3 events that Flume has not delivered: run `import` before the agent starts"
    )
    log = next((memory / "a").glob("log-?"))
    with log.open("r+b"):  # as a Flume locks it
        (warning,) = describe_undelivered(of, "import")
        assert isinstance(warning, ConnectivityWarning)
        assert warning.startswith("dataDirs is in use by a running Flume: stop it")
    assert sorted(path for path in memory.rglob("*")) == names


def test_an_incomplete_checkpoint_is_ignored(memory: Path) -> None:
    bodies = copy_recorded(memory, "checkpoint")
    shutil.copytree(memory, memory / "whole")
    for damage in (
        lambda: (memory / "c/checkpoint").write_bytes(b""),
        lambda: write(memory / "c/checkpoint", 4 * 8 + 7, b"\1"),
        lambda: write(memory / "c/inflighttakes", 0, b"\0\0"),
        lambda: (memory / "c/checkpoint.meta").unlink(),
        lambda: (memory / "backup/checkpoint.snappy").write_bytes(b"\x82SNAPPY\0" + b"\0" * 8 + b"\0\0\0\4abcd"),
        lambda: shutil.rmtree(memory / "backup"),
    ):
        damage()
        # Without a checkpoint the order is that of the commits: an open take does not put its event first.
        assert sorted(plain(event.body) for event in read(memory).events()) == sorted(bodies)


def test_a_checkpoint_knows_of_takes_that_were_in_deleted_files(memory: Path) -> None:
    bodies = copy_recorded(memory, "taken")
    (takes,) = (log for log in memory.glob("?/log-?") if "schön".encode() not in log.read_bytes())
    takes.unlink()
    assert [plain(event.body) for event in read(memory).events()] == bodies


def write(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def offset_of(log: Path, text: bytes) -> int:
    """Return the offset of these bytes."""
    return log.read_bytes().index(text)


def test_a_damaged_event_is_named_and_the_others_are_read(memory: Path) -> None:
    copy_recorded(memory, "records")
    log = memory / "a/log-1"
    begin = log.read_bytes().rindex(b"\x7f", 0, offset_of(log, b"2" + b"_" * 50))
    write(log, offset_of(log, b"2" + b"_" * 50) + 3, b"X")
    done = imported(memory)
    assert (done.events, done.lost) == (2, 1)
    assert done.damages == [f"{memory}/a/log-1 is damaged at byte {begin}: the event there is lost"]
    files = opened(memory)
    assert delivered(files) == [b"4", b"5"]
    files.close()


def test_records_after_a_damaged_one_are_read(memory: Path) -> None:
    copy_recorded(memory, "records")
    log = memory / "a/log-1"
    begin = log.read_bytes().rindex(b"\x7f", 0, offset_of(log, b"2" + b"_" * 50))
    write(log, begin + 1, b"\x70")  # its length, so the next record is at an unknown offset
    contents = read(memory)
    # Only event 1 is in the transaction then, and is taken.
    assert [plain(event.body) for event in contents.events()] == [b"4", b"5"]
    assert len(contents.damages) == 1
    assert f"log-1 is damaged from byte {begin} to " in contents.damages[0]


@pytest.mark.parametrize("cut", range(1, 9, 3))
def test_a_torn_end_counts_as_uncommitted(memory: Path, cut: int) -> None:
    bodies = copy_recorded(memory, "records")
    log = memory / "a/log-1"
    log.write_bytes(log.read_bytes().rstrip(b"\x80")[:-cut])
    contents = read(memory)
    assert [plain(event.body) for event in contents.events()] == bodies
    assert "ends at byte" in contents.damages[0]


def test_records_removed_by_flumes_tool_are_skipped(memory: Path) -> None:
    copy_recorded(memory, "records")
    log = memory / "a/log-1"
    write(log, log.read_bytes().rindex(b"\x7f", 0, offset_of(log, b"2" + b"_" * 50)), b"\0")
    contents = read(memory)
    assert [plain(event.body) for event in contents.events()] == [b"4", b"5"]
    assert contents.damages == []


def test_a_file_that_is_missing_is_named(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bodies = copy_recorded(memory, "checkpoint")
    for log in memory.glob("?/log-?"):
        log.unlink()
    contents = read(memory)
    assert [*contents.events()] == []
    assert contents.lost == len(contents.damages) >= 1
    assert re.match(r"log-[12] is missing: the event at its byte \d+ is lost", contents.damages[0])
    monkeypatch.setattr(flume, "_MAX_LOSS_MESSAGES", 0)
    contents = read(memory)
    assert [*contents.events()] == contents.damages == []
    assert 1 <= contents.lost <= len(bodies)


@pytest.mark.parametrize(
    ("file", "data", "message"),
    [
        ("log-1.meta", b"\x04\x2a\x02\x0a\x00", "is encrypted, which only Flume can read: let Flume deliver"),
        ("log-1", b"\0\0\0\2\0\0\0\1", "is of a Flume before 1.3: start Flume 1.11 on it once"),
    ],
)
def test_an_unreadable_channel_is_not_imported(memory: Path, file: str, data: bytes, message: str) -> None:
    copy_recorded(memory, "records")
    (memory / "a" / file).write_bytes(data)
    files = channel(memory)
    with pytest.raises(FlafkaError, match=message):
        import_events(files)
    assert (memory / "a" / "log-1").exists()
    (error,) = describe_undelivered(files, "import")
    assert message in error
    assert not isinstance(error, ConnectivityWarning)


@pytest.mark.parametrize("name", NAMES)
def test_events_of_flume_are_delivered_first(memory: Path, name: str) -> None:
    files = opened(memory)
    files.put(events(7))
    files.close()
    bodies = copy_recorded(memory, name)
    refused = (
        f"{memory}/a has events of Flume's file channel: import them by `agent migrate --import-channel files FILE`"
    )
    assert any(problem.startswith(refused) for problem in channel(memory).check_connectivity())
    files = channel(memory)
    with pytest.raises(FlafkaError, match=re.escape(refused)):
        files.open()
    files.close()
    assert imported(memory, backupCheckpointDir=str(memory / "backup")).events == len(bodies)
    assert imported(memory) == Imported()
    files = opened(memory)
    files.put(events(8))
    assert files.metrics.get("ChannelSize") == len(bodies) + 2
    owner = consumer(files)
    assert [plain(body) for body in owner.take_all()] == [b"7", *bodies, b"8"]
    ids = [id for taken in owner.got for id in taken.batch.ids()]
    files.close()

    files = opened(memory)
    owner = consumer(files)
    owner.take_all()
    assert [id for taken in owner.got for id in taken.batch.ids()] == ids
    owner.commit()
    files.close()
    for directory in (memory / "a", memory / "b", memory / "c", memory / "backup"):
        assert flume.channel_files(directory) == []
    kept = {path.name for path in memory.glob("*/flume-*/*")}
    assert {path.name for path in (RECORDED / name).glob("*/*")} == kept
    assert [*channel(memory).check_connectivity()] == []


def test_a_second_flume_channel_is_imported_too(memory: Path) -> None:
    bodies = copy_recorded(memory, "records")
    imported(memory)
    later_bodies = copy_recorded(memory, "records")
    imported(memory)
    files = opened(memory)
    assert delivered(files) == bodies + later_bodies
    assert len([*memory.glob("a/flume-*")]) == 2
    files.close()


def test_without_free_space_flumes_files_stay(memory: Path) -> None:
    bodies = copy_recorded(memory, "records")
    with pytest.raises(Retry, match="less free space than minimumRequiredSpace"):
        imported(memory, minimumRequiredSpace=str(1 << 60))
    imported(memory)
    files = opened(memory)
    assert delivered(files) == bodies
    files.close()


class Killed(BaseException):
    """Death of the process."""


def dying(monkeypatch: pytest.MonkeyPatch, calls: int) -> Callable[[], bool]:
    """Let the process die at its `calls`-th call that changes the disk; yield a function that returns True after
    that."""
    done = iter(range(calls))
    dead = False

    def wrap(owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def call(*arguments: Any, **named: Any) -> Any:
            nonlocal dead
            if dead or next(done, None) is None:
                dead = True
                raise Killed
            return real(*arguments, **named)

        monkeypatch.setattr(owner, name, call)

    for name in ("pwritev", "write", "ftruncate"):
        wrap(os, name)
    for name in ("replace", "rename", "unlink", "mkdir"):
        wrap(Path, name)
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, lambda _: None)
    return lambda: dead


def steps(directory: Path) -> Iterator[Path]:
    number = 0
    while True:
        yield directory / str(number)
        number += 1


@pytest.mark.usefixtures("lengthy")
@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("name", NAMES)
def test_a_kill_at_any_moment_loses_and_repeats_nothing(memory: Path, name: str, first: int) -> None:
    """Killed at every call that changes the disk, again a little later, and then run to the end."""
    kills = 0
    for number, directory in enumerate(steps(memory)):
        directory.mkdir()
        before = opened(directory)
        if first:
            before.put(events(7))
        before.close()
        bodies = [b"7"] * first + copy_recorded(directory, name)
        for calls in (number, 5):
            with pytest.MonkeyPatch.context() as patch:
                died = dying(patch, calls)
                files = channel(directory, backupCheckpointDir=str(directory / "backup"))
                try:
                    import_events(files)
                except Killed:
                    kills += 1
                finally:
                    with contextlib.suppress(Killed):
                        files.close()
            if not died():
                break
            if bulkload.import_error([directory / "a", directory / "b"], "c"):
                files = channel(directory)
                with pytest.raises(FlafkaError, match="--import-channel"):
                    files.open()
                files.close()
        imported(directory, backupCheckpointDir=str(directory / "backup"))
        files = opened(directory)
        assert delivered(files) == bodies
        assert len({segment.name for segment in segments(directory)}) == len(segments(directory))
        files.put(events(8))
        assert delivered(files) == [b"8"]
        files.close()
        shutil.rmtree(directory)
        if not died() and calls == number:
            break
    assert kills > 15


def test_segments_from_an_entry_on_are_dropped(memory: Path) -> None:
    files = opened(memory)
    for n in range(20):
        files.put(events(n, size=300_000))
    firsts = [int(path.name[7:27]) for path in segments(memory)]
    files.close()
    delete_from([memory / "a", memory / "b"], firsts[2])
    assert [int(path.name[7:27]) for path in segments(memory)] == firsts[:2]
