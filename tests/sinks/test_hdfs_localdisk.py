"""`file:///…` in hdfs.path: a directory of this host, with all guarantees of HDFS."""

from __future__ import annotations

import itertools
import os
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from flafka.agent.config import load
from flafka.plugins import Components, Conflict, OffsetRange, Retry
from flafka.sinks.hdfs import HdfsConfig, HdfsSink
from flafka.sinks.hdfs.localdisk import LocalDisk
from tests.fixtures.examples import some
from tests.sinks.hdfs_running import ASSIGNMENT, NEVER, records

CALLS = ("link", "fsync", "mkdir", "unlink", "rmdir")


class Killed(BaseException):
    """Death of the process at that call."""


@pytest.fixture(autouse=True)
def _quick() -> Iterator[None]:
    with mock.patch.object(os, "fsync", return_value=None):
        yield


@pytest.fixture
def disk() -> Iterator[LocalDisk]:
    opened = LocalDisk(2)
    yield opened
    opened.close()


def sink_of(directory: Path, **options: str) -> HdfsSink:
    staging = {"hdfs.stagingDir": str(directory / "staging"), "hdfs.threadsPoolSize": "1"}
    defaults = {"hdfs.path": f"file://{directory}/out/%{{app}}", "hdfs.fileType": "DataStream", **NEVER, **staging}
    config, problems = HdfsConfig.parse({**defaults, **options})
    assert config is not None, problems
    sink = HdfsSink(config, "k1")
    sink.open()
    return sink


def deliver(sink: HdfsSink, end: int, step: int = 2) -> None:
    """Deliver all records up to that one that were not delivered yet."""
    resumed = sink.resume(ASSIGNMENT)
    for start in range(resumed.next_offset or 0, end, step):
        stop = min(end, start + step)
        sink.write(records(start, stop, app="app-{}"))
        sink.commit(sink.stage(resumed, OffsetRange(start, stop)))


def visible(directory: Path) -> list[Path]:
    return [path for path in directory.glob("out/**/*") if path.is_file() and ".flafka" not in path.parts]


def delivered(directory: Path) -> Counter[int]:
    return Counter(int(line) for path in visible(directory) for line in path.read_bytes().split())


@contextmanager
def killed_at(number: int) -> Iterator[Iterator[int]]:
    """Have the process die at that moment: there is one before and one after each call that changes the disk.

    Yield the counter of moments; the first is 1.
    """
    moments = itertools.count(1)

    def pass_moment() -> None:
        if next(moments) == number:
            raise Killed

    def watched(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            pass_moment()
            answer = real(*arguments, **options)
            pass_moment()
            return answer

        return call

    with mock.patch.multiple(os, **{name: watched(getattr(os, name)) for name in CALLS}):
        yield moments


def test_files_appear_in_their_directories_and_uncommitted_ones_are_hidden(tmp_path: Path) -> None:
    sink = sink_of(tmp_path)
    assert sink.commit_log == f"file:{tmp_path}/out/.flafka"
    owned = sink.resume(ASSIGNMENT)
    sink.write(records(0, 10, app="app-{}"))
    receipt = sink.stage(owned, OffsetRange(0, 10))
    assert not visible(tmp_path)
    sink.commit(receipt)
    assert {path.parent.name for path in visible(tmp_path)} == {"app-0", "app-1"}
    assert delivered(tmp_path) == Counter(range(10))
    sink.close()


def test_files_have_the_acl_of_their_directory_and_hidden_ones_are_private(tmp_path: Path) -> None:
    """Before the commit no other user may read a file, also if 0.2 has created the directory."""
    (tmp_path / "out/.flafka").mkdir(parents=True, mode=0o755)
    (tmp_path / "out/app-0").mkdir()
    entries = [(0x01, 7, NOBODY), (0x02, 7, 4242), (0x04, 5, NOBODY), (0x10, 7, NOBODY), (0x20, 0, NOBODY)]
    acl = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
    try:
        os.setxattr(tmp_path / "out/app-0", "system.posix_acl_default", acl)
    except OSError:
        pytest.skip("the file system has no ACLs")
    deliver(sink_of(tmp_path), 2)
    for directory in ("app-0", "app-1"):
        plain = tmp_path / "out" / directory / "plain"
        [file] = (tmp_path / "out" / directory).iterdir()
        plain.touch()
        assert file.stat().st_mode == plain.stat().st_mode
        assert [_acl(path) for path in (file, plain)] == [_acl(plain)] * 2
    assert (tmp_path / "out/.flafka").stat().st_mode & 0o777 == 0o700


NOBODY = 0xFFFFFFFF


def _acl(path: Path) -> bytes:
    return os.getxattr(path, "system.posix_acl_access") if os.listxattr(path) else b""


def test_of_two_owners_one_commits(tmp_path: Path) -> None:
    first, second = sink_of(tmp_path), sink_of(tmp_path)
    owned = [sink.resume(ASSIGNMENT) for sink in (first, second)]
    for sink in (first, second):
        sink.write(records(0, 5, app="a"))
    first.commit(first.stage(owned[0], OffsetRange(0, 5)))
    with pytest.raises(Conflict):
        second.commit(second.stage(owned[1], OffsetRange(0, 5)))
    assert second.resume(ASSIGNMENT).next_offset == 5
    assert delivered(tmp_path) == Counter(range(5))
    first.close()
    second.close()


@pytest.mark.usefixtures("lengthy")
def test_a_kill_at_any_moment_loses_and_repeats_nothing(memory: Path) -> None:
    with killed_at(0) as moments:
        deliver(sink_of(memory / "alive"), 2)
    assert delivered(memory / "alive") == Counter(range(2))
    until = next(moments)
    assert until > 40
    for number in some(range(1, until), 4):
        home = memory / str(number)
        with pytest.raises(Killed), killed_at(number):
            deliver(sink_of(home), 2)
        assert not delivered(home) - Counter(range(2))
        deliver(sink_of(home), 3)
        assert delivered(home) == Counter(range(3)), number


def test_a_rename_overwrites_nothing(tmp_path: Path, disk: LocalDisk) -> None:
    source, other_source, target = (str(tmp_path / name) for name in ("one", "other", "target"))
    disk.upload(source, b"1")
    disk.upload(other_source, b"2")
    assert not disk.rename(str(tmp_path / "none"), target)
    assert not disk.rename(source, str(tmp_path / "missing/target"))
    assert disk.rename(source, target)
    assert not disk.rename(other_source, target)
    assert (disk.read(target), disk.read(other_source), disk.status(source)) == (b"1", b"2", None)
    disk.mkdirs(str(tmp_path / "directory"))
    assert disk.rename(other_source, str(tmp_path / "directory"))
    assert [(status.name, status.is_file, status.length) for status in disk.list(str(tmp_path / "directory"))] == [
        ("other", True, 1)
    ]


def test_missing_files_are_none_and_failures_are_messages(tmp_path: Path, disk: LocalDisk) -> None:
    missing = str(tmp_path / "missing")
    assert (disk.status(missing), disk.list(missing), disk.read(missing)) == (None, [], None)
    disk.delete(missing)
    disk.upload(f"{missing}/made", b"")
    assert disk.status(missing) is not None
    assert disk.list(f"{missing}/made") == []
    with pytest.raises(Retry, match=r"cannot write .*made/x: File exists"):
        disk.upload(f"{missing}/made/x", b"")
    disk.delete(missing)
    assert disk.status(missing) is None


@pytest.mark.parametrize(
    ("properties", "option", "message"),
    [
        ({"hdfs.path": "file://logs/app"}, "hdfs.path", "write file:///logs/app"),
        ({"hdfs.path": "file:logs"}, "hdfs.path", "write file:///logs"),
        ({"hdfs.path": "file:///logs", "hdfs.webhdfs": "nn:9870"}, "hdfs.webhdfs", "remove it"),
    ],
)
def test_a_wrong_path_is_reported(properties: dict[str, str], option: str, message: str) -> None:
    _, problems = HdfsConfig.parse(properties)
    assert [problem.option for problem in problems] == [option]
    assert message in problems[0].message


def test_a_probe_names_an_unwritable_directory(tmp_path: Path) -> None:
    sink = sink_of(tmp_path)
    assert list(sink.check_connectivity()) == []
    (tmp_path / "file").write_bytes(b"")
    other = sink_of(tmp_path, **{"hdfs.path": f"file:{tmp_path}/file/out"})
    assert "cannot be a directory" in next(other.check_connectivity())


@pytest.mark.parametrize(("master", "runs"), [("local[2]", True), ("spark://host:7077", False)])
def test_executors_on_other_hosts_have_other_disks(tmp_path: Path, master: str, runs: bool) -> None:
    file = tmp_path / "agent.conf"
    file.write_text(f"""
        a1.channels = c1
        a1.sinks = k1
        a1.spark.master = {master}
        a1.channels.c1.type = kafka
        a1.channels.c1.kafka.bootstrap.servers = host:9092
        a1.channels.c1.kafka.topic = events
        a1.sinks.k1.type = hdfs
        a1.sinks.k1.channel = c1
        a1.sinks.k1.runner = spark
        a1.sinks.k1.hdfs.path = file:///out
    """)
    spec, diagnostics = load(file, components=Components())
    assert (spec is not None) == runs
    assert runs or "its own disk" in str(diagnostics[0])


def test_a_file_that_is_renamed_to_itself_stays(disk: LocalDisk, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    file = str(tmp_path / "file")
    for target in (file, str(tmp_path), str(tmp_path / "link" / "file"), f"{tmp_path}/./file"):
        disk.upload(file, b"kept")
        assert disk.rename(file, target), target
        assert disk.read(file) == b"kept", target
        disk.delete(file)
    disk.upload(file, b"kept")
    os.link(file, tmp_path / "other")  # a kill came before the first name was removed
    assert disk.rename(file, str(tmp_path / "other"))
    assert (disk.read(file), disk.read(str(tmp_path / "other"))) == (None, b"kept")
