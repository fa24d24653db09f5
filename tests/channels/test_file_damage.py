"""File channel on a failing disk: damaged, cut and missing files."""

import os
import re
import shlex
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from flafka.agent.cli import main
from flafka.channels.file import FileChannel
from flafka.plugins import FlafkaError, Retry
from tests.channels.file_running import channel, consumer, events, opened, segments


def test_a_write_or_a_sync_that_fails_stores_nothing_and_the_next_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = opened(tmp_path)
    files.put(events(1))
    for name, real in (("pwritev", os.pwritev), ("fdatasync", os.fdatasync)):
        with monkeypatch.context() as patched:

            def fails(descriptor: int, *arguments: object, real: object = real) -> int:
                if arguments:  # half of it is on the disk
                    os.pwrite(descriptor, b"FLE1", arguments[-1])
                raise OSError(28, "No space left on device")

            patched.setattr(os, name, fails)
            with pytest.raises(Retry, match="No space left"):
                files.put(events(2))
        assert files.metrics.get("ChannelSize") == 1
    files.put(events(3))
    files.close()
    files = opened(tmp_path)
    assert consumer(files).take_all() == [b"1", b"3"]
    files.close()


def end(files: FileChannel, stop: str) -> None:
    """End the channel, cleanly or as a kill does."""
    files._is_open = stop == "clean"
    files.close()


def cut(path: Path, count: int, zeros: int = 0) -> bytes:
    """Cut this many bytes off, and write this many zeros there; return the rest of the last entry."""
    content = path.read_bytes()
    path.write_bytes(content[: len(content) - count] + bytes(zeros))
    return content[content.rindex(b"FLE1") : len(content) - count].rstrip(b"\0")


@pytest.mark.parametrize("stop", ["clean", "killed"])
@pytest.mark.parametrize(("count", "zeros"), [(1, 0), (20, 0), (60, 60), (600, 600)])
def test_a_cut_end_is_kept_and_counts_as_loss_after_a_clean_stop(
    tmp_path: Path, count: int, zeros: int, stop: str, caplog: pytest.LogCaptureFixture
) -> None:
    files = opened(tmp_path)
    files.put(events(1))
    files.put(events(2, 3))
    end(files, stop)
    (path,) = segments(tmp_path)
    tail = cut(path, count, zeros)
    files = opened(tmp_path)
    assert f"{path} ends in {len(tail)} bytes of an incomplete put" in caplog.text
    (damaged,) = tmp_path.glob("?/*.damaged")
    assert damaged.read_bytes() == tail
    assert files.metrics.get("EventLostCount") == (2 if stop == "clean" else 0)
    assert (f"{path} was damaged or truncated since the stop: 2 events" in files.metrics.degradation()) == (
        stop == "clean"
    )
    files.put(events(4))
    assert consumer(files).take_all() == [b"1", b"4"]
    files.close()


def test_an_end_of_zeros_after_a_clean_stop_is_a_loss(tmp_path: Path) -> None:
    files = opened(tmp_path)
    files.put(events(1))
    files.put(events(2, 3))
    files.close()
    (path,) = segments(tmp_path)
    content = path.read_bytes()
    path.write_bytes(content[: content.rindex(b"FLE1")].ljust(len(content), b"\0"))
    files = opened(tmp_path)
    assert files.metrics.get("EventLostCount") == 2
    assert consumer(files).take_all() == [b"1"]
    files.close()


@pytest.mark.parametrize("stop", ["clean", "killed"])
@pytest.mark.parametrize("index", [0, 1, -1])
def test_without_a_file_the_channel_stays_closed_until_it_is_restored_or_its_loss_is_accepted(
    tmp_path: Path, index: int, stop: str
) -> None:
    files = opened(tmp_path)
    for n in range(40):
        files.put(events(n, size=100_000))
    consumer(files).take_all()  # which commits that nothing is delivered
    end(files, stop)
    path = segments(tmp_path)[index]
    missing = [int(body) for body in re.findall(rb"(\d+) {99999}", path.read_bytes())]
    path.rename(tmp_path / "away")
    message = f"{path} is missing, with {f'{len(missing)} ' if stop == 'clean' else ''}undelivered events"
    advice = f"agent group reset files --checkpoint-dir {tmp_path}/c --data-dirs {tmp_path}/a,{tmp_path}/b"
    for _ in range(2):
        sentence = refused(tmp_path)
        assert message in sentence
        assert advice in sentence
        assert sentence in [*channel(tmp_path).check_connectivity()]
        assert sentence in run(advice.replace("reset", "describe"))
    (tmp_path / "away").rename(path)
    opened(tmp_path).close()
    path.rename(tmp_path / "away")
    run(f"{advice} --yes")
    assert not [*channel(tmp_path).check_connectivity()]
    files = opened(tmp_path)
    assert files.metrics.get("EventLostCount") == len(missing)
    assert f"{path} is lost with" in files.metrics.degradation()
    files.put(events(99))
    assert [int(body) for body in consumer(files).take_all()] == [*sorted({*range(40)} - {*missing}), 99]
    files.close()


def run(command: str, code: int = 0) -> str:
    """Return the output of `agent`."""
    words = shlex.split(command)
    assert words.pop(0) == "agent"
    result = CliRunner().invoke(main, words)
    assert result.exit_code == code, result.output
    return result.output


def test_a_reset_does_not_accept_the_loss_of_present_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))  # has the default dataDirs
    files = opened(tmp_path)
    for n in range(15):
        files.put(events(n, size=100_000))
    files.close()
    first, _ = segments(tmp_path)
    named = f"add {tmp_path}/a,{tmp_path}/b to dataDirs"
    for data_dirs in "", f"--data-dirs {tmp_path}":
        options = f"files --checkpoint-dir {tmp_path}/c {data_dirs}"
        sentence = run(f"agent group reset {options} --yes", code=1)
        assert f"{first} and 1 more exist outside of dataDirs" in sentence
        assert named in sentence
        assert named in run(f"agent group describe {options}")
    assert named in refused(tmp_path, dataDirs=str(tmp_path / "d"))
    files = opened(tmp_path)
    assert files.metrics.get("EventLostCount") == 0
    assert len(consumer(files).take_all()) == 15
    files.close()


def refused(directory: Path, **options: str) -> str:
    """Return the reason why the channel cannot be opened."""
    files = channel(directory, **options)
    with pytest.raises(FlafkaError) as raised:
        files.open()
    files.close()
    return str(raised.value)


def test_zeros_after_the_last_put_of_a_killed_process_are_no_damage(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = opened(tmp_path / "killed")
    files.put(events(1))
    size = segments(tmp_path / "killed")[-1].stat().st_size
    shutil.copytree(tmp_path / "killed", tmp_path / "started", ignore=shutil.ignore_patterns("*.lock"))
    files.close()
    ended = segments(tmp_path / "killed")[-1].stat().st_size
    files = opened(tmp_path / "started")
    assert ended == segments(tmp_path / "started")[0].stat().st_size < size
    files.put(events(2))
    assert consumer(files).take_all() == [b"1", b"2"]
    assert files.metrics.get("EventLostCount") == 0
    assert [record for record in caplog.records if "copied" not in record.message] == []
    files.close()


@pytest.mark.parametrize("index", [0, -1])
def test_damage_is_skipped_and_counted(tmp_path: Path, index: int, caplog: pytest.LogCaptureFixture) -> None:
    files = opened(tmp_path)
    for n in range(30):
        files.put(events(n, size=100_000))
    files.close()
    path = segments(tmp_path)[index]
    content = bytearray(path.read_bytes())
    content[150_000] ^= 1  # of the second entry
    path.write_bytes(content)
    files = opened(tmp_path)
    owner = consumer(files)
    bodies = [int(body) for body in owner.take_all()]
    assert len(bodies) == 29
    assert bodies == sorted(set(bodies))
    assert files.metrics.get("EventLostCount") == 1
    assert "1 stored events are lost" in caplog.text
    assert "damaged" in files.metrics.degradation()
    owner.commit()
    assert files.metrics.get("ChannelSize") == 0
    files.put(events(99))
    owner.take_all()
    owner.commit()
    files.close()
    opened(tmp_path).close()
    assert path.with_name(f"{path.name}.damaged").read_bytes() == content, "the damaged file is kept"


def test_a_moved_damaged_file_does_not_keep_others_from_being_deleted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = opened(tmp_path)
    for n in range(40):
        files.put(events(n, size=100_000))
    files.close()
    damaged = segments(tmp_path)[0]
    with damaged.open("r+b") as file:
        file.seek(150_000)
        file.write(b"x")
    files = opened(tmp_path)
    owner = consumer(files)
    owner.take_all()
    damaged.rename(tmp_path / "away")
    owner.commit()
    assert "cannot be deleted" not in caplog.text
    assert len(segments(tmp_path)) == 1
    files.close()


def test_missing_entries_at_the_end_of_a_file_are_counted_for_that_file(tmp_path: Path) -> None:
    files = opened(tmp_path)
    for n in range(30):
        files.put(events(n, size=100_000))
    end(files, "killed")
    first, second, *_ = segments(tmp_path)
    cut(first, 350_000)
    content = first.read_bytes()
    files = opened(tmp_path)
    assert f"{first} lacks 3 puts" in files.metrics.degradation()
    assert str(second) not in files.metrics.degradation()
    owner = consumer(files)
    assert len(owner.take_all()) == 26
    assert files.metrics.get("EventLostCount") == 4, "the header of one is there"
    owner.commit()
    files.close()
    opened(tmp_path).close()
    assert [path.name for path in tmp_path.glob("?/*.damaged")] == [f"{first.name}.damaged"]
    assert first.with_name(f"{first.name}.damaged").read_bytes() == content
    assert not second.exists()


@pytest.mark.parametrize("index", [0, 1])
def test_an_emptied_file_differs_from_one_that_never_had_entries(tmp_path: Path, index: int) -> None:
    files = opened(tmp_path)
    for n in range(30):
        files.put(events(n, size=100_000))
    end(files, "killed")
    emptied = segments(tmp_path)[index]
    cut(emptied, emptied.stat().st_size)
    files = opened(tmp_path)
    lost = int(files.metrics.get("EventLostCount"))
    assert lost > 5
    assert files.metrics.degradation() == f"{emptied} lacks {lost} puts: their events, at least as many, are lost"
    owner = consumer(files)
    assert len(owner.take_all()) == 30 - lost
    owner.commit()
    files.close()
    opened(tmp_path).close()
    assert [path.name for path in tmp_path.glob("?/*.damaged")] == [f"{emptied.name}.damaged"]


def test_after_damaged_positions_everything_is_redelivered(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = opened(tmp_path)
    files.put(events(1))
    owner = consumer(files)
    owner.take_all()
    owner.commit()
    files.close()
    positions = tmp_path / "c" / "flafka.positions"
    positions.write_bytes(positions.read_bytes().replace(b'"position": 1', b'"position": 7'))
    files = opened(tmp_path)
    assert "is damaged" in caplog.text
    assert consumer(files).take_all() == [b"1"]
    files.close()


def test_a_new_channel_gives_other_ids(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ids = []
    for _ in range(2):
        files = opened(tmp_path)
        files.put(events(1))
        owner = consumer(files)
        assert owner.take_all() == [b"1"]
        ids += owner.got[0].batch.ids()
        owner.commit()
        files.close()
        for directory in ("a", "b"):
            for path in (tmp_path / directory).iterdir():
                path.unlink()
    assert ids[0] != ids[1]
    assert caplog.text == "", "nothing that was waiting is lost"


def test_numbers_of_delivered_events_are_not_given_again(tmp_path: Path) -> None:
    files = opened(tmp_path)
    files.put(events(1))
    files.put(events(2))
    owner = consumer(files)
    owner.take_all()
    ids = {*owner.got[0].batch.ids()}
    owner.commit()
    files.close()
    with segments(tmp_path)[-1].open("r+b") as file:
        file.truncate(0)  # the disk has lost synced data
    files = opened(tmp_path)
    files.put(events(3))
    owner = consumer(files)
    assert owner.take_all() == [b"3"]
    assert not ids & {*owner.got[0].batch.ids()}
    files.close()
