"""The model of HDFS does what HDFS does, as the sink sees it."""

from __future__ import annotations

import posixpath
import re
import threading
import time
import uuid
from collections.abc import Iterator

import pyhdfs
import pytest

from flafka.plugins import Retry
from flafka.sinks.hdfs import filesystem, namenodes, webhdfs
from flafka.sinks.hdfs.namenodes import RemoteError
from flafka.sinks.hdfs.webhdfs import WebHdfs
from tests.simulator import http
from tests.simulator.running import replaced
from tests.simulator.webhdfs import Hdfs
from tests.simulator.world import World


@pytest.fixture
def hdfs(world: World | None, request: pytest.FixtureRequest) -> Iterator[WebHdfs]:
    if world is not None:
        Hdfs(world)
        with replaced(webhdfs, namenodes, filesystem, pyhdfs, imported={"requests": http.requests}):
            yield _connected(["namenode:9870"])
        return
    connected = _connected([request.getfixturevalue("hdfs_cluster").webhdfs])
    yield connected
    connected.close()


def _connected(hosts: list[str]) -> WebHdfs:
    return WebHdfs(hosts, scheme="http", user="flafka", timeout=30, threads=2, stopping=threading.Event())


@pytest.fixture
def root(hdfs: WebHdfs) -> str:
    """A directory that is not there yet."""
    return f"/contract/{uuid.uuid4().hex}"


def put(hdfs: WebHdfs, path: str, data: bytes = b"x") -> str:
    """A file of that name, with its directories."""
    directory, name = posixpath.split(path)
    hdfs.mkdirs(directory)
    uploaded = hdfs.upload(f"{directory}/up-{name}", data)
    assert hdfs.rename(uploaded, path)
    return path


def names(hdfs: WebHdfs, path: str) -> list[str]:
    return [status.name for status in hdfs.list(path)]


def test_a_file_is_as_it_was_written(hdfs: WebHdfs, root: str) -> None:
    data = bytes(range(256)) * 100
    name = hdfs.upload(f"{root}/deep/er/file", data)
    assert name == f"{root}/deep/er/file-0"
    assert hdfs.read(name) == data
    status = hdfs.status(name)
    assert status is not None
    assert (status.name, status.is_file, status.length) == ("", True, len(data))
    directory = hdfs.status(f"{root}/deep")
    assert directory is not None
    assert (directory.is_file, directory.length) == (False, 0)
    assert hdfs.read(hdfs.upload(f"{root}/empty", b"")) == b""


def test_odd_names(hdfs: WebHdfs, root: str) -> None:
    name = f"{root}/ü %25+&?#=;a b"
    put(hdfs, name, b"1")
    assert hdfs.read(name) == b"1"
    assert names(hdfs, root) == [posixpath.basename(name)]


def test_what_is_not_there(hdfs: WebHdfs, root: str) -> None:
    assert hdfs.status(root) is None
    assert hdfs.list(root) == []
    assert hdfs.read(root) is None
    hdfs.delete(root)
    assert not hdfs.rename(f"{root}/a", f"{root}/b")
    with pytest.raises(Retry, match="it does not exist"):
        hdfs.check_writable(root)


def test_a_directory_is_no_file(hdfs: WebHdfs, root: str) -> None:
    hdfs.mkdirs(root)
    assert hdfs.read(root) is None
    hdfs.check_writable(root)
    with pytest.raises(RemoteError, match="FileAlreadyExistsException"):
        hdfs._namenodes.clients[0].create(root, b"x")


def test_a_list_is_in_order_and_of_a_file_the_file(hdfs: WebHdfs, root: str) -> None:
    for name in ("b", "a", "B", "ä", "a0", "10", "9"):
        put(hdfs, f"{root}/{name}", name.encode())
    hdfs.mkdirs(f"{root}/aa/below")
    assert names(hdfs, root) == ["ä", "10", "9", "B", "a", "a0", "aa", "b"]
    assert [(s.is_file, s.length) for s in hdfs.list(root)][:2] == [(True, 2), (True, 2)]
    assert names(hdfs, f"{root}/a") == [""]


def test_a_file_is_not_overwritten_unless_that_is_asked_for(hdfs: WebHdfs, root: str) -> None:
    hdfs._namenodes.clients[0].create(f"{root}/a", b"first")
    with pytest.raises(RemoteError, match="FileAlreadyExistsException"):
        hdfs._namenodes.clients[0].create(f"{root}/a", b"second")
    assert hdfs.read(f"{root}/a") == b"first"
    hdfs._namenodes.clients[0].create(f"{root}/a", b"third", overwrite="true")
    assert hdfs.read(f"{root}/a") == b"third"


def test_a_rename_moves_once(hdfs: WebHdfs, root: str) -> None:
    put(hdfs, f"{root}/a", b"a")
    put(hdfs, f"{root}/b", b"b")
    assert not hdfs.rename(f"{root}/a", f"{root}/b"), "the target is there"
    assert not hdfs.rename(f"{root}/a", f"{root}/none/a"), "the target's directory is not"
    assert hdfs.rename(f"{root}/a", f"{root}/c")
    assert not hdfs.rename(f"{root}/a", f"{root}/c"), "done already"
    assert names(hdfs, root) == ["b", "c"]
    assert hdfs.read(f"{root}/c") == b"a"
    assert hdfs.rename(f"{root}/c", f"{root}/c"), "a file's own name"


def test_a_rename_to_a_directory_is_one_into_it(hdfs: WebHdfs, root: str) -> None:
    put(hdfs, f"{root}/a", b"a")
    hdfs.mkdirs(f"{root}/d")
    assert hdfs.rename(f"{root}/a", f"{root}/d")
    assert hdfs.read(f"{root}/d/a") == b"a"
    put(hdfs, f"{root}/a", b"another")
    assert not hdfs.rename(f"{root}/a", f"{root}/d"), "there is one of that name"


def test_a_directory_moves_with_all_in_it(hdfs: WebHdfs, root: str) -> None:
    put(hdfs, f"{root}/d/e/a", b"a")
    put(hdfs, f"{root}/dd/a", b"other")
    assert not hdfs.rename(f"{root}/d", f"{root}/d/e/f"), "below itself"
    assert not hdfs.rename(f"{root}/d", f"{root}/d"), "into itself"
    assert hdfs.rename(f"{root}/d", f"{root}/m")
    assert hdfs.read(f"{root}/m/e/a") == b"a"
    assert hdfs.read(f"{root}/dd/a") == b"other"
    assert names(hdfs, root) == ["dd", "m"]


def test_a_rename_keeps_a_files_time(hdfs: WebHdfs, root: str, world: World | None) -> None:
    put(hdfs, f"{root}/a")
    before = hdfs.status(f"{root}/a")
    hdfs.mkdirs(f"{root}/d")
    if world is not None:
        world.sleep(5)
    assert hdfs.rename(f"{root}/a", f"{root}/d/b")
    after, directory = hdfs.status(f"{root}/d/b"), hdfs.status(f"{root}/d")
    assert before is not None
    assert after is not None
    assert directory is not None
    assert after.changed == before.changed
    assert directory.changed > before.changed


def test_deleting(hdfs: WebHdfs, root: str) -> None:
    put(hdfs, f"{root}/d/e/a")
    put(hdfs, f"{root}/dd/a")
    with pytest.raises(RemoteError, match="PathIsNotEmptyDirectoryException"):
        hdfs._namenodes.clients[0].delete(f"{root}/d")
    hdfs.delete(f"{root}/d")
    assert names(hdfs, root) == ["dd"]
    assert hdfs.status(f"{root}/d/e/a") is None
    assert hdfs._namenodes.clients[0].delete(f"{root}/dd/a") is True
    assert hdfs._namenodes.clients[0].delete(f"{root}/dd/a") is False
    assert names(hdfs, root) == ["dd"]


def test_a_file_is_no_directory(hdfs: WebHdfs, root: str) -> None:
    put(hdfs, f"{root}/f")
    put(hdfs, f"{root}/g")
    hdfs.mkdirs(root)
    with pytest.raises(Retry, match=re.escape(f"cannot create the directory {root}/f: ")):
        hdfs.mkdirs(f"{root}/f")
    for act in (
        lambda: hdfs.mkdirs(f"{root}/f/d"),
        lambda: hdfs.upload(f"{root}/f/a", b"x"),
        lambda: hdfs.rename(f"{root}/g", f"{root}/f/a"),
        lambda: hdfs.status(f"{root}/f/a"),
        lambda: hdfs.list(f"{root}/f/a"),
        lambda: hdfs.read(f"{root}/f/a"),
        lambda: hdfs.delete(f"{root}/f/a"),
    ):
        with pytest.raises(Retry, match="not a directory"):
            act()
    assert names(hdfs, root) == ["f", "g"]


def test_calls_side_by_side(hdfs: WebHdfs, root: str) -> None:
    hdfs.mkdirs(root)
    sources = [hdfs.upload(f"{root}/source{n}", b"%d" % n) for n in range(4)]
    won = hdfs.each(lambda source: hdfs.rename(source, f"{root}/target"), sources)
    assert won.count(True) == 1
    assert hdfs.read(f"{root}/target") == b"%d" % won.index(True)


class Breaking:
    """A file of which the first half can be read."""

    def __init__(self) -> None:
        self.half: bytes | None = b"x" * 100_000

    def __len__(self) -> int:
        return 200_000

    def read(self, _: int = -1) -> bytes:
        if self.half is None:
            raise KeyError("the disk")
        half, self.half = self.half, None
        return half


def test_an_upload_that_breaks_off_leaves_a_file_that_looks_whole(
    hdfs: WebHdfs, root: str, world: World | None
) -> None:
    with pytest.raises(KeyError):
        hdfs._namenodes.clients[0].create(f"{root}/a", Breaking())
    deadline = time.monotonic() + 60
    while (status := hdfs.status(f"{root}/a")) is None or not status.length:
        assert world is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    content = hdfs.read(f"{root}/a")
    assert content is not None
    assert 0 < len(content) <= 100_000
    assert content == b"x" * len(content)
