"""The file channel on a disk that fails: what is damaged, cut off or missing."""

import os
import shutil
from pathlib import Path

import pytest

from plugins import Retry
from tests.channels.file_running import consumer, events, opened, segments


def test_a_write_or_a_sync_that_fails_stores_nothing_and_the_next_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = opened(tmp_path)
    files.put(events(1))
    for name, real in (("pwritev", os.pwritev), ("fdatasync", os.fdatasync)):
        with monkeypatch.context() as patched:

            def fails(descriptor: int, *rest: object, real: object = real) -> int:
                if rest:  # half of it is on the disk
                    os.pwrite(descriptor, b"FLE1", rest[-1])
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


@pytest.mark.parametrize("cut", [1, 20, 60])
def test_a_torn_last_put_is_cut_off_and_said(tmp_path: Path, cut: int, caplog: pytest.LogCaptureFixture) -> None:
    files = opened(tmp_path)
    files.put(events(1))
    files.put(events(2))
    files.close()
    with segments(tmp_path)[-1].open("r+b") as file:
        file.truncate(file.seek(0, os.SEEK_END) - cut)
    files = opened(tmp_path)
    assert "cut off" in caplog.text
    files.put(events(3))
    assert consumer(files).take_all() == [b"1", b"3"]
    files.close()


def test_zeros_that_a_kill_leaves_behind_the_last_put_are_no_damage(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = opened(tmp_path / "killed")
    files.put(events(1))
    left = segments(tmp_path / "killed")[-1].stat().st_size
    shutil.copytree(tmp_path / "killed", tmp_path / "started", ignore=shutil.ignore_patterns("*.lock"))
    files.close()
    ended = segments(tmp_path / "killed")[-1].stat().st_size
    files = opened(tmp_path / "started")
    assert ended == segments(tmp_path / "started")[-1].stat().st_size < left
    files.put(events(2))
    assert consumer(files).take_all() == [b"1", b"2"]
    assert files.metrics.get("EventLostCount") == 0
    assert caplog.text == ""
    files.close()


@pytest.mark.parametrize("which", [0, -1])
def test_damage_is_passed_over_and_counted(tmp_path: Path, which: int, caplog: pytest.LogCaptureFixture) -> None:
    files = opened(tmp_path)
    for n in range(30):
        files.put(events(n, size=100_000))
    files.close()
    path = segments(tmp_path)[which]
    content = bytearray(path.read_bytes())
    content[150_000] ^= 1  # of the second entry
    path.write_bytes(content)
    files = opened(tmp_path)
    owner = consumer(files)
    got = [int(body) for body in owner.take_all()]
    assert len(got) == 29
    assert got == sorted(set(got))
    assert files.metrics.get("EventLostCount") == 1
    assert "1 events that were stored in it are lost" in caplog.text
    assert "damaged" in files.metrics.degraded()
    owner.commit()
    assert files.metrics.get("ChannelSize") == 0
    files.close()


def test_after_damaged_positions_everything_comes_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
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


def test_a_channel_begun_anew_gives_other_ids_and_ignores_positions_of_the_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
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
    assert "about other files" in caplog.text


def test_numbers_of_what_was_delivered_are_not_given_again(tmp_path: Path) -> None:
    files = opened(tmp_path)
    files.put(events(1))
    files.put(events(2))
    owner = consumer(files)
    owner.take_all()
    ids = {*owner.got[0].batch.ids()}
    owner.commit()
    files.close()
    with segments(tmp_path)[-1].open("r+b") as file:
        file.truncate(0)  # the disk lost what it had said is stored
    files = opened(tmp_path)
    files.put(events(3))
    owner = consumer(files)
    assert owner.take_all() == [b"3"]
    assert not ids & {*owner.got[0].batch.ids()}
    files.close()
