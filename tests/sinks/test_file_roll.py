"""Sink `file_roll`: flushed events are on the disk, others are cut off."""

from __future__ import annotations

import errno
import io
import os
import random
import shutil
from pathlib import Path
from typing import Any

import fastavro
import pytest

from flafka.plugins import Batch, Event, Retry, conformance
from flafka.sinks.file_roll import FileRollConfig, FileRollSink
from tests.fixtures.power import Disk, Note, losses


def make(directory: Path, **options: str) -> FileRollSink:
    config, problems = FileRollConfig.parse({"sink.directory": str(directory), **options})
    assert config is not None, problems
    sink = FileRollSink(config)
    sink.open()
    return sink


def batch(*bodies: bytes) -> Batch:
    return Batch.of(Event(body) for body in bodies)


def contents(directory: Path) -> list[bytes]:
    files = sorted(directory.iterdir(), key=lambda path: int(path.name.partition("-")[2]))
    return [file.read_bytes() for file in files]


def test_conformance(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    conformance.check_sink(
        FileRollSink,
        {"sink.directory": str(tmp_path / "out")},
        delivered=lambda: [line for file in contents(tmp_path / "out") for line in file.splitlines()],
        failing={"sink.directory": str(tmp_path / "file")},
    )


def test_a_removed_directory_is_recreated_and_its_last_events_are_rewritten(tmp_path: Path) -> None:
    sink = make(tmp_path / "out")
    sink.write(batch(b"one"))
    sink.flush()
    sink.write(batch(b"two"))
    shutil.rmtree(tmp_path / "out")
    with pytest.raises(Retry, match="was removed while it was written"):
        sink.flush()
    sink.reset()
    sink.write(batch(b"two"))
    sink.flush()
    sink.close()
    assert contents(tmp_path / "out") == [b"two\n"]


def test_a_reset_cuts_off_unflushed_events(tmp_path: Path) -> None:
    sink = make(tmp_path / "made" / "for it")
    sink.write(batch(b"one", b"\xff"))
    sink.flush()
    sink.write(batch(b"two"))
    sink.reset()
    sink.write(batch(b"three"))
    sink.flush()
    sink.write(batch(b"four"))
    sink.close()
    sink.close()
    assert contents(tmp_path / "made" / "for it") == [b"one\n\xff\nthree\n"]


def test_a_flush_is_an_fsync_of_file_and_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda number: synced.append(str(Path(f"/proc/self/fd/{number}").readlink())))
    sink = make(tmp_path)
    synced.clear()
    sink.write(batch(b"one"))
    assert synced == [str(tmp_path)]
    sink.flush()
    assert synced[1:] == [str(next(tmp_path.iterdir()))]
    sink.close()


@pytest.mark.parametrize(("interval", "files"), [("30", [b"a\nb\n", b"c\n"]), ("0", [b"a\nb\nc\n"])])
def test_files_roll_by_age(tmp_path: Path, interval: str, files: list[bytes]) -> None:
    now = 1_700_000_000.0
    sink = make(tmp_path, **{"sink.rollInterval": interval})
    sink.clock = lambda: now
    for body, later in ((b"a", 29.0), (b"b", 1.0), (b"c", 0.0)):
        sink.write(batch(body))
        now += later
    sink.flush()
    sink.close()
    assert contents(tmp_path) == files


def test_names_are_unique(tmp_path: Path) -> None:
    options = {"sink.pathManager": "rolltime", "sink.pathManager.prefix": "p", "sink.pathManager.extension": "log"}
    sinks = [make(tmp_path, **options) for _ in range(2)]
    for sink in sinks:
        sink.clock = lambda: 1_700_000_000.0
        sink.write(batch(b"x"))
        sink.flush()
        sink.close()
    names = sorted(path.name for path in tmp_path.iterdir())
    assert [name[-6:] for name in names] == ["-1.log", "-2.log"]
    assert len({name[:-6] for name in names}) == 1


def avro(directory: Path) -> list[list[Any]]:
    return [list(fastavro.reader(io.BytesIO(content))) for content in contents(directory)]


def test_avro_is_complete_after_each_flush_and_a_reset_keeps_the_header(tmp_path: Path) -> None:
    sink = make(tmp_path, **{"sink.serializer": "avro_event", "sink.serializer.compressionCodec": "deflate"})
    sink.write(batch(b"lost"))
    sink.reset()
    sink.write(Batch.of([Event(b"\xff", {"a": "é"}), Event(b"two")]))
    sink.flush()
    events = [{"headers": {"a": "é"}, "body": b"\xff"}, {"headers": {}, "body": b"two"}]
    assert avro(tmp_path) == [events]
    sink.write(batch(b"lost"))
    sink.close()
    assert avro(tmp_path) == [events]


def test_a_full_disk_is_named_and_recovered_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = make(tmp_path)
    sink.write(batch(b"one"))
    sink.flush()

    class Full(io.FileIO):
        def write(self, data: Any) -> int:
            super().write(bytes(data)[:2])
            raise OSError(errno.ENOSPC, "No space left on device")

    assert sink._file is not None
    original, sink._file = sink._file, Full(os.dup(sink._file.fileno()), "ab")
    with pytest.raises(Retry, match="the disk is full"):
        sink.write(batch(b"two"))
    sink._file.close()
    sink._file = original
    sink.reset()
    sink.write(batch(b"two"))
    sink.flush()
    sink.close()
    assert contents(tmp_path) == [b"one\ntwo\n"]


def test_a_directory_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(Retry, match=f"cannot write into {tmp_path / 'file' / 'below'}: Not a directory"):
        make(tmp_path / "file" / "below")
    config, _ = FileRollConfig.parse({"sink.directory": str(tmp_path / "file")})
    assert config is not None
    assert list(FileRollSink(config).check_connectivity()) == [f"cannot write into {tmp_path / 'file'}"]


def test_invalid_options_are_refused(tmp_path: Path) -> None:
    wrong = {"sink.pathManager": "mine", "sink.serializer": "parquet", "sink.rollInterval": "-1"}
    _, problems = FileRollConfig.parse(wrong)
    assert {p.option for p in problems} == {"sink.directory", *wrong}


@pytest.mark.parametrize(
    "site",
    [
        "",
        "FileRollSink.flush",
        "sync_directory < FileRollSink._create_file",
        "sync_directory < make_directory < FileRollSink.open",
    ],
)
def test_flushed_events_survive_a_loss_of_power_by_each_sync(memory: Path, site: str) -> None:
    """Each sync is needed."""
    chances = random.Random(1)
    (memory / "live").mkdir()
    with Disk(memory / "live", site) as disk:
        for life in range(4):
            with disk.killing(chances.randrange(30)):
                sink = make(memory / "live" / "out")
                for number in range(4):
                    sink.write(batch(b"%d %d" % (life, number)))
                    sink.flush()
                    disk.record_note(b"%d %d" % (life, number))
    assert disk.sites.keys() > {site} if site else len(disk.sites) == 3
    missing = 0
    for count, (tree, changes) in enumerate(losses(disk, chances)):
        tree.write(memory / str(count))
        lines = {line for path in (memory / str(count)).glob("out/*") for line in path.read_bytes().split(b"\n")}
        missing += len({note.what for note in changes if isinstance(note, Note)} - lines)
    assert bool(missing) == bool(site)


@pytest.mark.parametrize("option", ["prefix", "extension"])
@pytest.mark.parametrize("value", ["a/b", "/x", "x" * 101])
def test_characters_outside_of_file_names_are_an_error(tmp_path, option, value):
    name = f"sink.pathManager.{option}"
    parsed, problems = FileRollSink.config_class.parse({"sink.directory": str(tmp_path), name: value})
    assert parsed is None
    assert [problem.option for problem in problems] == [name]
