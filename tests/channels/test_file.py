"""File channel: stored events come out, in order and with their ids; its bounds, directories and options."""

import os
import threading
from pathlib import Path

import pytest

from flafka.channels.file import FileChannelConfig
from flafka.plugins import Batch, Event, FlafkaError, Retry, Unwritable
from tests.channels.file_running import Owner, channel, consumer, events, opened, segments
from tests.fixtures.processes import Forked


def test_events_are_taken_in_order_and_again_after_a_rewind(tmp_path: Path) -> None:
    files = opened(tmp_path)
    files.put(events(1, 2))
    files.put(events(3))
    owner = consumer(files)
    assert owner.reader is not None
    polled = owner.reader.take(0)
    assert polled is not None, "small puts are handed out together"
    assert [event.headers["n"] for event in polled.batch] == ["1", "2", "3"]
    assert len({*polled.batch.ids()}) == 3
    owner.reader.rewind([polled.assignment.with_offset(polled.offsets.start)])
    redelivered = owner.reader.take(0)
    assert redelivered is not None
    assert redelivered.batch.ids() == polled.batch.ids()
    files.close()


def test_uncommitted_events_are_redelivered_after_a_restart_with_the_same_ids(tmp_path: Path) -> None:
    files = opened(tmp_path)
    files.put(events(1))
    owner = consumer(files)
    assert owner.take_all() == [b"1"]
    owner.commit()
    files.put(events(2, 3))
    owner.take_all()
    ids = owner.got[0].batch.ids()
    files.close()

    files = opened(tmp_path)
    assert files.metrics.get("ChannelSize") == 2
    owner = consumer(files)
    assert owner.take_all() == [b"2", b"3"]
    assert owner.got[0].batch.ids() == ids
    owner.commit()
    assert files.metrics.get("ChannelSize") == 0
    files.close()


def test_a_redelivered_batch_has_the_same_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An overflow relies on it: a start first takes the batch that may have been forwarded before a kill."""
    monkeypatch.setattr("flafka.channels.file.reader.MERGE_EVENTS", 3)
    before: list[bytes] = []
    for last in (1, 2, 4, 7):
        files = opened(tmp_path)
        files.put(events(last))
        owner = consumer(files)
        assert owner.reader is not None
        polled = owner.reader.take(0)
        assert polled is not None
        bodies = [event.body for event in polled.batch]
        assert bodies[: len(before)] == before
        before = bodies
        files.close()
    assert before == [b"1"], "what one run has put is never taken with entries of another run"


def test_files_that_are_delivered_are_deleted(tmp_path: Path) -> None:
    files = opened(tmp_path)
    for n in range(40):
        files.put(events(n, size=100_000))
    assert len(segments(tmp_path)) > 3
    assert {path.parent.name for path in segments(tmp_path)} == {"a", "b"}
    owner = consumer(files)
    assert [int(body) for body in owner.take_all()] == [*range(40)]
    owner.commit()
    assert len(segments(tmp_path)) == 1
    files.close()


def test_a_full_channel_blocks_until_a_sink_takes_its_events(tmp_path: Path) -> None:
    files = opened(tmp_path, capacity="2", transactionCapacity="1")
    files.put(events(1, 2))
    stored = threading.Event()
    thread = threading.Thread(target=lambda: (files.put(events(3)), stored.set()))
    thread.start()
    assert not stored.wait(0.2)
    owner = consumer(files)
    owner.take_all()
    assert stored.wait(60), "what is taken takes no room, though it is not committed: a sink may wait for much more"
    thread.join()
    owner.take_all()
    files.stopping.set()
    files.put(events(4, 5))
    with pytest.raises(Retry, match="is full, and the agent is stopping"):
        files.put(events(6))
    assert owner.reader is not None
    owner.reader.rewind([owner.assignments[0].with_offset(owner.got[0].offsets.start)])
    owner.got.clear()
    assert len(owner.take_all()) == 5
    files.put(events(6, 7))
    files.close()


def test_a_full_disk_requests_a_commit_of_taken_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = opened(tmp_path)
    files.stopping.set()
    files.put(events(1))
    owner = consumer(files)
    assert owner.reader is not None
    with monkeypatch.context() as patched:
        patched.setattr("flafka.channels.file.channel.free_bytes", lambda _: 0)
        with pytest.raises(Retry, match="is full, and the agent is stopping"):
            files.put(events(2))
        assert not owner.reader.needs_commit(), "nothing is taken"
        owner.take_all()
        assert owner.reader.needs_commit()
        owner.commit()
        assert not owner.reader.needs_commit()
    files.put(events(2))
    owner.take_all()
    assert not owner.reader.needs_commit()
    files.close()


def test_small_bounds_are_the_smallest(tmp_path: Path) -> None:
    files = opened(tmp_path, minimumRequiredSpace="1", maxFileSize="146435")
    assert (files.config.minimum_required_space, files.config.max_file_size) == (1 << 20, 1 << 20)
    files.close()


def test_a_full_disk_blocks_and_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = opened(tmp_path, minimumRequiredSpace=str(1 << 60))
    assert "less free space than minimumRequiredSpace" in files.metrics.degradation(), "also before the first put"
    files.stopping.set()
    with pytest.raises(Retry, match="is full, and the agent is stopping"):
        files.put(events(1))
    assert "less free space than minimumRequiredSpace" in caplog.text
    assert "less free space than minimumRequiredSpace" in files.metrics.last_error
    assert not files.metrics.degradation()
    files.stopping.clear()
    monkeypatch.setattr("flafka.channels.file.channel.free_bytes", lambda _: 1 << 61)
    files.put(events(1))
    assert (files.metrics.last_error, files.metrics.degradation()) == ("", "")
    monkeypatch.undo()
    assert any("MiB free, less than minimumRequiredSpace" in problem for problem in files.check_connectivity())
    files.close()


def probed(directory: Path) -> tuple[list[str], str]:
    """Return the messages of a check and of a start in another process about the channel in that directory."""
    files = channel(directory)
    cautions = [*files.check_connectivity()]
    with pytest.raises(Retry) as raised:
        files.open()
    return cautions, str(raised.value)


def test_directories_belong_to_one_channel(tmp_path: Path, forked: Forked) -> None:
    files = opened(tmp_path)
    with pytest.raises(Retry, match="in use by channel files"):
        channel(tmp_path).open()
    cautions, refusal = forked.call(probed, tmp_path)
    reported = f"{cautions}\n{refusal}"
    assert reported.count(f"in use by another process ({os.getpid()})") == 4, reported
    assert [*files.check_connectivity()] == []
    files.close()
    assert [*channel(tmp_path).check_connectivity()] == []


def test_directories_of_several_channels_are_refused(tmp_path: Path) -> None:
    opened(tmp_path).close()
    (tmp_path / "b" / "flafka.channel").write_text("another")
    with pytest.raises(FlafkaError, match="files of several channels"):
        channel(tmp_path).open()


def test_a_capacity_of_zero_is_the_default_as_in_flume() -> None:
    config, problems = FileChannelConfig.parse({"capacity": "0", "transactionCapacity": "-1"})
    assert config is not None, problems
    assert (config.capacity, config.transaction_capacity) == (1_000_000, 10_000)


def test_files_of_flume_are_reported(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "log-3").write_bytes(b"")
    assert any("Flume's file channel" in caution for caution in channel(tmp_path).check_connectivity())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"encryption.activeKey": "k"}, "encryption is not supported"),
        ({"capacity": "5", "transactionCapacity": "10"}, "must be at most capacity, 5"),
        ({"dataDirs": " , "}, "names no directory"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, str], message: str) -> None:
    _, problems = FileChannelConfig.parse(options)
    assert message in problems[0].message


def test_an_event_is_found_by_its_id_until_it_is_delivered(tmp_path: Path) -> None:
    writer, owner = opened(tmp_path), Owner()
    owner.reader = writer.reader(owner, group=None, member="k")
    owner.take_all()
    writer.put(Batch.of([Event(b"a"), Event(b"b", {"host": "h"})]))
    assert owner.take_all() == [b"a", b"b"]
    id = owner.got[0].batch.id(1)
    monitor = channel(tmp_path)  # another process's, while the channel is open
    stored = monitor.find_event(id, {None})
    assert stored is not None
    assert stored.polled is not None
    assert (stored.missing, stored.polled.batch.ids()[1], [*stored.polled.batch][1].body) == ("", id, b"b")
    assert stored.committed[None].next_offset == 0
    past_end = monitor.find_event(id._replace(index=7), {None})
    assert past_end is not None
    assert past_end.missing == "entry 0 has 2 events, numbered from 0"
    assert monitor.find_event(id._replace(topic="another"), {None}) is None

    owner.commit()
    writer._log.begin_segment()  # so that the segment can be deleted
    writer.put(Batch.of([Event(b"c")]))
    owner.take_all()
    owner.commit()
    deleted = monitor.find_event(id, {None})
    assert deleted is not None
    assert (deleted.polled, deleted.missing) == (None, "the event was delivered, and its file was deleted")
    writer.close()


def test_nothing_is_acknowledged_that_only_a_deleted_file_has(tmp_path: Path) -> None:
    files = opened(tmp_path)
    files.put(events(1))
    for path in segments(tmp_path):
        path.unlink()
    with pytest.raises(Unwritable, match="log cannot be written: it was deleted while the channel was open"):
        files.put(events(2))
    assert consumer(files).take_all() == [b"1"], "a sink still gets what the open file has"
    files.close()
