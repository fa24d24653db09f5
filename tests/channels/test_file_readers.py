"""File channel with several readers, and with sinks that have their own commit log."""

import base64
import threading
import zlib
from collections.abc import Sequence
from pathlib import Path

import pytest

from flafka.channels.file.reader import FileReader
from flafka.plugins import Assignment, FlafkaError, Retry
from tests.channels.file_running import Owner, channel, consumer, events, opened
from tests.formats.samples import sample


def test_a_starting_reader_owns_its_partition_alone(tmp_path: Path) -> None:
    files = opened(tmp_path)
    files.put(events(1))
    starting, go_on = threading.Event(), threading.Event()

    class Slow(Owner):
        """Owner that reads its commit log for a while before it begins."""

        def assigned(self, committed: Sequence[Assignment]) -> Sequence[Assignment]:
            starting.set()
            assert go_on.wait(60)
            return super().assigned(committed)

    slow = Slow()
    slow.reader = files.reader(slow, group=None, member="z")
    bodies: list[bytes] = []
    taking = threading.Thread(target=lambda: bodies.extend(slow.take_all()))
    taking.start()
    assert starting.wait(60)
    quick = consumer(files, "a")
    assert not quick.take_all(), "it is the other one's still"
    go_on.set()
    taking.join()
    assert bodies == [b"1"]
    assert slow.take_all() == []
    assert quick.take_all() == [], "the other one has committed it as it gave the partition up"
    files.put(events(2, 3))
    files.put(events(4))
    assert sorted(quick.take_all() + slow.take_all()) == [b"2", b"3", b"4"]
    files.close()


def test_readers_share_the_events_and_a_closed_one_returns_its_own(tmp_path: Path) -> None:
    files = opened(tmp_path)
    first, second = consumer(files, "k1"), consumer(files, "k2")
    assert first.take_all() == second.take_all() == []
    for n in range(10):
        files.put(events(n))
    first_bodies, second_bodies = first.take_all(), second.take_all()
    assert len(first_bodies) == len(second_bodies) == 5
    second.commit()
    assert first.reader is not None
    first.reader.close()  # without a commit: the other one gets them
    assert sorted(second.take_all()) == sorted(first_bodies)
    third = consumer(files, "k0")
    assert third.take_all() == []  # it delivers the events of the second first
    second.take_all()
    third.take_all()
    files.put(events(10))
    files.put(events(11))
    assert len(second.take_all()) == len(third.take_all()) == 1
    files.close()
    files = opened(tmp_path)
    alone = consumer(files, "k2")
    assert sorted(alone.take_all()) == [b"10", b"11"], "a restart with one sink delivers what two had"
    files.close()


def test_a_sinks_own_commit_log_moves_the_offset_and_is_kept_with_it(tmp_path: Path) -> None:
    files = opened(tmp_path)
    for n in range(3):
        files.put(events(n))
    owner = consumer(files)
    owner.answer = {0: 2}
    assert owner.take_all() == [b"2"]
    assert files.metrics.get("ChannelSize") == 1
    delivered = owner.assignments[0].replace(epoch=5, commit_log="hdfs:/x/.flafka").with_offset(3)
    assert owner.reader is not None
    owner.reader.commit([delivered])
    files.close()
    files = opened(tmp_path)
    owner = consumer(files)
    owner.take_all()
    assert owner.assignments[0] == delivered
    files.close()


def test_a_sinks_commit_log_is_ahead_of_the_disk(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = opened(tmp_path)
    files.put(events(0))
    files.close()
    files = opened(tmp_path)
    owner = consumer(files)
    owner.answer = {0: 3}
    assert owner.take_all() == []
    assert "up to 3, but the files end at 1: their disk was reset" in caplog.text
    files.put(events(1))
    files.put(events(2))
    assert owner.take_all() == [b"1", b"2"], "it was put after the disk was set back"
    files.close()


def test_a_process_that_was_cloned_with_its_memory_gives_new_ids(tmp_path: Path) -> None:
    files = opened(tmp_path)
    files.put(events(0))
    files.put(events(1))
    owner = consumer(files)
    assert owner.reader is not None
    assert owner.take_all() == [b"0", b"1"]
    ids = {*owner.got[0].batch.ids()}
    owner.answer = {0: 7}
    with pytest.raises(Retry, match="new ids"):
        # As after Conflict: the clone has delivered entries that this process never had.
        owner.reader.rewind([owner.assignments[0].with_offset(7)])
    with pytest.raises(Retry, match="new ids"):
        owner.reader.take(0)
    owner.reader.close()
    owner = consumer(files)
    assert owner.take_all() == [b"0", b"1"]
    assert not ids & {*owner.got[0].batch.ids()}
    assert "virtual machine" in files.metrics.degradation()
    ids = {*owner.got[0].batch.ids()}
    files.close()
    files = opened(tmp_path)
    owner = consumer(files)
    assert owner.take_all() == [b"0", b"1"]
    assert {*owner.got[0].batch.ids()} == ids
    files.close()


# --- versions

RUN = "8d8797b62938"


def write_killed_channel(directory: Path, version: str = "") -> tuple[Path, Path]:
    """Write files of a killed channel, with one of two events delivered: checkpoint and segment."""
    files = sample("0.3.0", "channel-file")
    for name in "abc":
        (directory / name).mkdir()
    for name in "ab":
        (directory / name / "flafka.channel").write_text(files["flafka.channel"])
    name = f"flafka-{0:020d}-{RUN}.log"
    segment, checkpoint = directory / "a" / name, directory / "c" / "flafka.positions"
    segment.write_bytes(base64.b64decode(files[f"{name}.base64"]) + bytes(100))  # zeros are written ahead
    inode = (directory / "a" / "flafka.channel").stat().st_ino
    text = files["flafka.positions"].partition(" ")[2].rstrip()
    text = text.replace('"/data/', f'"{directory}/a/').replace('"inode": 7', f'"inode": {inode}')
    text = text.replace('"next"', f'{version}"next"')
    checkpoint.write_text(f"{zlib.crc32(text.encode()):08x} {text}\n")
    return checkpoint, segment


def test_a_directory_of_version_1_can_be_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_killed_channel(tmp_path)
    files = opened(tmp_path)
    owner = consumer(files)
    assert owner.take_all() == [b"1"]
    assert [str(id) for id in owner.got[0].batch.ids()] == ["files~406348cc13-0-1-0"]
    assert owner.assignments[0].generation.commit_log == "hdfs:/x/.flafka"
    files.close()
    assert not caplog.records


def refused(directory: Path, path: Path, kind: str) -> None:
    before = {file: file.read_bytes() for file in directory.rglob("flafka*")}
    with pytest.raises(FlafkaError) as error:
        opened(directory)
    assert str(error.value) == (
        f"{path} is a {kind} of version 2, but this channel reads version 1: deliver the events of the channel "
        "with the agent that wrote it (agent start --drain), then remove its checkpointDir and dataDirs"
    )
    assert {file: file.read_bytes() for file in directory.rglob("flafka*")} == before


def test_a_checkpoint_of_another_version_is_refused_with_advice(tmp_path: Path) -> None:
    checkpoint, _ = write_killed_channel(tmp_path, '"version": 2, ')
    refused(tmp_path, checkpoint, "checkpoint")


def test_a_segment_of_another_version_is_refused_with_advice(tmp_path: Path) -> None:
    _, segment = write_killed_channel(tmp_path)
    segment.write_bytes(segment.read_bytes().replace(b"FLE1", b"FLE2"))
    refused(tmp_path, segment, "segment")


def test_after_a_reset_a_sink_begins_a_new_commit_log(tmp_path: Path) -> None:
    """A commit log in an unwritable location blocks the events of its partition for ever."""
    files = opened(tmp_path)
    for n in range(3):
        files.put(events(n))
    owner = consumer(files)
    owner.take_all()
    assert owner.reader is not None
    owner.reader.commit([owner.assignments[0].replace(commit_log="hdfs:/wrong/.flafka").with_offset(1)])
    changes: list[tuple[str, str]] = []
    with pytest.raises(Retry, match="in use by channel files"):
        channel(tmp_path).reset(changes.extend, earliest=False)
    files.close()
    for earliest, write_killed_channel in ((False, [b"1", b"2"]), (True, [b"0", b"1", b"2"])):
        channel(tmp_path).reset(changes.extend, earliest=earliest)
        files = opened(tmp_path)
        owner = consumer(files)
        assert owner.take_all() == write_killed_channel
        assert owner.assignments[0].generation.commit_log == ""
        assert owner.assignments[0].generation.epoch > 0
        files.close()
    assert [change for change in changes if change[0] == "partition 0"] == [
        ("partition 0", "continues at entry 1, with a new commit log of its sink"),
        ("partition 0", "continues at the first entry in the files, with a new commit log of its sink"),
    ]


def test_an_event_of_an_earlier_run_is_found_by_its_id(tmp_path: Path) -> None:
    files = opened(tmp_path)
    files.put(events(1))
    owner = consumer(files)
    owner.take_all()
    id = owner.got[0].batch.id(0)
    files.close()
    files = opened(tmp_path)
    stored = channel(tmp_path).find_event(id, {None})
    assert stored is not None
    assert stored.polled is not None
    owner = consumer(files)
    owner.take_all()
    owner.commit()
    files.close()
    opened(tmp_path).close()
    deleted = channel(tmp_path).find_event(id, {None})
    assert deleted is not None
    assert (deleted.polled, deleted.missing) == (None, "the event was delivered, and its file was deleted")


def test_events_taken_after_a_rewind_have_its_generation(tmp_path: Path) -> None:
    files = opened(tmp_path)
    files.put(events(1))
    owner = consumer(files)
    owner.take_all()
    assert owner.reader is not None
    owner.reader.rewind([owner.assignments[0].replace(epoch=5).with_offset(0)])
    owner.take_all()
    assert [polled.assignment.generation.epoch for polled in owner.got] == [0, 5]
    files.close()


def test_attempts_that_fail_do_not_add_up(tmp_path: Path) -> None:
    files = opened(tmp_path)
    files.put(events(1))
    owner = consumer(files)
    reader = owner.reader
    assert isinstance(reader, FileReader)
    for _ in range(10):
        assert owner.take_all() == [b"1"]
        reader.rewind([owner.assignments[0].with_offset(owner.got.pop().offsets.start)])
    assert sorted(reader._batch_bounds[0]) == [0, 1]
    files.close()
