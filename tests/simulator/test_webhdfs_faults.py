"""Model of HDFS with failing calls."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyhdfs
import pytest

from flafka.plugins import Retry
from flafka.sinks.hdfs import namenodes, webhdfs
from flafka.sinks.hdfs.webhdfs import WebHdfs
from tests.simulator import http
from tests.simulator.faults import Fault, Kind
from tests.simulator.processes import Process
from tests.simulator.running import replaced, run_in
from tests.simulator.webhdfs import Hdfs
from tests.simulator.world import World, simulation

TIMEOUT_SECONDS = 30.0


def run(body: Callable[[WebHdfs, World], Any], *faults: Fault, files: dict[str, bytes] | None = None) -> Hdfs:
    """Run this in a process named "p"; what HDFS is like afterwards."""
    with simulation(World(1, given=list(faults))) as world:
        hdfs = Hdfs(world)
        for path, data in (files or {}).items():
            hdfs.put(path, data)
        with replaced(webhdfs, namenodes, pyhdfs, imported={"requests": http.requests}):
            client = WebHdfs(
                ["nn:9870"], scheme="http", user="u", timeout=TIMEOUT_SECONDS, threads=2, stopping=threading.Event()
            )
            run_in(world, Process(world, "p"), lambda: body(client, world))
        return hdfs


def fault(what: str, kind: Kind, number: int = 1) -> Fault:
    return Fault("p", f"hdfs.{what}", number, kind, 20.0)


def rename(client: WebHdfs, world: World) -> None:
    assert client.rename("/a", "/b")


def test_a_request_that_is_lost_is_sent_again() -> None:
    seconds: list[float] = []

    def body(client: WebHdfs, world: World) -> None:
        rename(client, world)
        seconds.append(world.now)

    assert run(body, fault("rename", Kind.LOST), files={"/a": b"1"}).files() == {"/b": b"1"}
    assert seconds[0] == pytest.approx(TIMEOUT_SECONDS + 0.5 + 0.02), "the timeout, a pause, and two calls"


@pytest.mark.parametrize("kind", [Kind.UNANSWERED, Kind.DOUBLED])
@pytest.mark.parametrize("number", [1, 2])
def test_a_rename_that_is_done_twice_answers_that_it_is_not_done(kind: Kind, number: int) -> None:
    def body(client: WebHdfs, world: World) -> None:
        if number == 2:
            assert client.rename("/x", "/y")
        assert not client.rename("/a", "/b")

    hdfs = run(body, fault("rename", kind, number), files={"/a": b"1", "/x": b"2"})
    assert hdfs.files()["/b"] == b"1"


def test_a_late_rename_overtakes_what_came_after() -> None:
    def body(client: WebHdfs, world: World) -> None:
        client._namenodes.failover_rounds = 1
        with pytest.raises(Retry, match="no NameNode answers"):
            client.rename("/a", "/b")
        assert world.now >= TIMEOUT_SECONDS
        assert client.status("/b") is None
        world.sleep(30)
        assert client.status("/b") is not None

    run(body, fault("rename", Kind.LATE), files={"/a": b"1"})


def test_a_namenode_that_refuses() -> None:
    def body(client: WebHdfs, world: World) -> None:
        with pytest.raises(Retry, match="safe mode"):
            client.rename("/a", "/b")
        rename(client, world)  # a standby, which is asked again

    hdfs = run(body, fault("rename", Kind.REFUSED), fault("rename", Kind.REFUSED, 2), files={"/a": b"1"})
    assert hdfs.files() == {"/b": b"1"}


@pytest.mark.parametrize("kind", list(Kind))
def test_an_upload_never_overwrites_what_another_left(kind: Kind, tmp_path: Path) -> None:
    (tmp_path / "local").write_bytes(b"12345678")
    names: list[str] = []

    def body(client: WebHdfs, world: World) -> None:
        try:
            names.append(client.upload("/d/up", tmp_path / "local"))
        except Retry:
            names.append("")

    hdfs = run(body, fault("upload", kind))
    if kind in (Kind.KILLED, Kind.KILLED_AFTER):
        assert not names
        assert hdfs.files() == {"/d/up-0": b"1234" if kind is Kind.KILLED else b"12345678"}
    elif kind in (Kind.REFUSED, Kind.DOUBLED):
        assert names == [""], "the name is taken, or HDFS cannot"
    else:
        renamed = kind in (Kind.LOST, Kind.UNANSWERED, Kind.LATE)
        assert names == ["/d/up-1" if renamed else "/d/up-0"]
        assert hdfs.files()[names[0]] == b"12345678"
        assert (hdfs.files().get("/d/up-0") == b"12345678") == (kind not in (Kind.LOST, Kind.LATE))


def test_a_lost_upload_may_leave_its_first_half() -> None:
    hdfs = run(lambda client, _: client.upload("/up", b"12345678"), fault("upload", Kind.LOST, 3))
    assert hdfs.files() == {"/up-0": b"12345678"}

    def body(client: WebHdfs, world: World) -> None:
        for number in range(3):
            client.upload(f"/{number}", b"12345678")

    hdfs = run(body, fault("upload", Kind.LOST, 3))
    assert hdfs.files()["/2-0"] == b"1234"
    assert hdfs.files()["/2-1"] == b"12345678"


def test_nobody_listens() -> None:
    def body(client: WebHdfs, world: World) -> None:
        world.models["hdfs"].away = True
        for act in (lambda: client.rename("/a", "/b"), lambda: client.upload("/u", b"x"), lambda: client.read("/a")):
            with pytest.raises(Retry):
                act()
        world.models["hdfs"].away = False
        rename(client, world)

    assert run(body, files={"/a": b"1"}).files() == {"/b": b"1"}
