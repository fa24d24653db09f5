"""HDFS sink on a real HDFS: concurrent owners, killed and suspended owners, killed servers."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flafka.agent.services.hdfs import HdfsCluster
from flafka.plugins import Assignment, Batch, Conflict, Event, OffsetRange, Origin, Receipt, Retry, conformance
from flafka.sinks.hdfs import HdfsConfig, HdfsSink, webhdfs
from flafka.sinks.hdfs.webhdfs import WebHdfs
from tests.fixtures.kit import exercises
from tests.fixtures.partitions import assignment
from tests.fixtures.ports import free_port
from tests.fixtures.relay import relayed

ASSIGNMENT = assignment("cluster", "app.logs", "t0p1c", "a group/with signs", 0, 3)
REPOSITORY = Path(__file__).parents[2]


class Target:
    """Directory on HDFS, and sinks that deliver into it."""

    def __init__(self, webhdfs: str, path: str, staging: Path) -> None:
        self.webhdfs, self.path, self.staging = webhdfs, path, staging
        self.sinks: list[HdfsSink] = []

    def sink(self, **options: str) -> HdfsSink:
        properties = {
            "hdfs.path": f"{self.path}/%{{host}}",
            "hdfs.webhdfs": self.webhdfs,
            "hdfs.fileType": "DataStream",
            "hdfs.stagingDir": str(self.staging),
            "hdfs.callTimeout": "10000",
            **options,
        }
        config, problems = HdfsConfig.parse(properties)
        assert config is not None, problems
        sink = HdfsSink(config)
        sink.open()
        self.sinks.append(sink)
        return sink

    def close(self) -> None:
        for sink in self.sinks:
            sink.close()

    def visible(self) -> dict[str, bytes]:
        """Return the files that readers see."""
        hdfs = self.sink()._hdfs
        assert hdfs is not None
        return {
            f"{self.path}/{directory.name}/{file.name}": hdfs.read(f"{self.path}/{directory.name}/{file.name}") or b""
            for directory in hdfs.list(self.path)
            if directory.name != ".flafka"
            for file in hdfs.list(f"{self.path}/{directory.name}")
        }

    def delivered(self) -> Counter[int]:
        """Return the number of visible copies of each record."""
        return Counter(int(line) for content in self.visible().values() for line in content.split())


@pytest.fixture
def target(hdfs_cluster: HdfsCluster, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Target]:
    target = Target(hdfs_cluster.webhdfs, f"/test/{request.node.name}", tmp_path)
    yield target
    target.close()


def records(start: int, end: int) -> Batch:
    """Return one event a record, its body its offset, in two buckets."""
    count = end - start
    origin = Origin(
        ASSIGNMENT.topic, ASSIGNMENT.partition, np.arange(start, end), np.zeros(count, np.int32), np.zeros(count, int)
    )
    return Batch.of((Event(b"%d" % n, {"host": f"h{n % 2}"}) for n in range(start, end)), origin)


def _own(sink: HdfsSink) -> Assignment:
    """Return the assignment of `resume`."""
    return ASSIGNMENT.replace(commit_log=f"hdfs:{sink.state}")


def staged(sink: HdfsSink, start: int, end: int) -> Receipt:
    sink.write(records(start, end))
    return sink.stage(_own(sink), OffsetRange(start, end))


def staged_anew(sink: HdfsSink, start: int, end: int) -> Receipt:
    sink.reset()
    return staged(sink, start, end)


@exercises("sink hdfs")
def test_conformance(target: Target) -> None:
    conformance.check_sink(
        HdfsSink,
        {"hdfs.path": f"{target.path}/%{{host}}", "hdfs.webhdfs": target.webhdfs, "hdfs.fileType": "DataStream"},
        delivered=lambda: [line for content in target.visible().values() for line in content.splitlines()],
        failing={"hdfs.path": "webhdfs://127.0.0.1:1/x", "hdfs.fileType": "DataStream"},
    )


def test_of_twenty_commits_at_once_one_wins(target: Target) -> None:
    sinks = [target.sink() for _ in range(20)]
    for sink in sinks:
        sink.resume(ASSIGNMENT)
    receipts = [staged(sink, 0, 10) for sink in sinks]
    together = threading.Barrier(len(sinks))

    def commit(sink: HdfsSink, receipt: Receipt) -> bool:
        together.wait(60)
        try:
            sink.commit(receipt)
        except Conflict:
            return False
        return True

    with ThreadPoolExecutor(len(sinks)) as threads:
        won = list(threads.map(commit, sinks, receipts))
    assert won.count(True) == 1
    assert target.delivered() == Counter(range(10))
    assert {sink.resume(ASSIGNMENT).next_offset for sink in sinks} == {10}


# --- killed and suspended owners, as processes

POINTS = {
    "upload": ("upload", 1, "after"),
    "before the commit": ("rename", 3, "before"),
    "committed": ("rename", 3, "after"),
    "one file in place": ("rename", 4, "after"),
    "all files in place": ("rename", 5, "after"),
}
"""Number of the call of an operation in one commit of two files, and whether it is executed. Two renames are tries.
"""


def child(webhdfs: str, path: str, staging: str, end: str, point: str, deadly: str) -> None:
    """Deliver records up to `end` in fives; send the signal `deadly` to this process at that point of a commit."""
    sink = Target(webhdfs, path, Path(staging)).sink(**{"hdfs.threadsPoolSize": "1"})
    hdfs = sink._hdfs
    position = sink.resume(ASSIGNMENT).next_offset or 0
    if point:
        _stop_at(hdfs, POINTS[point], signal.Signals[deadly])
    while position < int(end):
        try:
            sink.commit(staged(sink, position, position + 5))
            position += 5
        except Conflict:
            print("conflict", flush=True)
            sink.reset()
            position = sink.resume(ASSIGNMENT.with_offset(position)).next_offset or 0
        except Retry:  # its uploads were removed
            sink.reset()
    print("done", position, flush=True)


def _stop_at(hdfs: Any, point: tuple[str, int, str], number: signal.Signals) -> None:
    operation, nth, when = point
    real: Callable[..., Any] = getattr(hdfs, operation)
    calls = 0

    def call(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == nth and when == "before":
            os.kill(os.getpid(), number)
        result = real(*args)
        if calls == nth and when == "after":
            os.kill(os.getpid(), number)
        return result

    setattr(hdfs, operation, call)


def start_child(target: Target, end: int, point: str = "", deadly: str = "SIGKILL") -> subprocess.Popen[str]:
    arguments = [target.webhdfs, target.path, str(target.staging), str(end), point, deadly]
    code = f"from tests.system.test_hdfs_sink import child; child(*{arguments!r})"
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    return subprocess.Popen([sys.executable, "-c", code], text=True, stdout=subprocess.PIPE, env=environment)


@pytest.mark.drawn(1)
@pytest.mark.parametrize("point", POINTS)
def test_an_owner_killed_within_a_commit(target: Target, point: str) -> None:
    rounds = 3
    for number in range(1, rounds + 1):
        process = start_child(target, 100, point)
        assert process.wait(60) == -signal.SIGKILL
        seen = target.delivered()
        assert set(seen.values()) <= {1}
        assert max(seen, default=-1) < 5 * number
    process = start_child(target, 40)
    assert process.communicate(timeout=60)[0] == "done 40\n"
    assert target.delivered() == Counter(range(40))


@pytest.mark.parametrize("point", POINTS)
def test_an_owner_suspended_past_a_takeover_does_no_harm(target: Target, point: str) -> None:
    zombie = start_child(target, 10, point, "SIGSTOP")
    try:
        _, status = os.waitpid(zombie.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        sink = target.sink()
        position = sink.resume(ASSIGNMENT).next_offset or 0
        for start in range(position, 20, 5):
            sink.commit(staged(sink, start, start + 5))
        zombie.send_signal(signal.SIGCONT)
        output = zombie.communicate(timeout=60)[0]
    finally:
        zombie.kill()
    # At first the zombie only finishes its own commit; then it detects the other owner.
    assert output == "conflict\ndone 20\n"
    assert target.delivered() == Counter(range(20))


# --- unavailable servers


def until_it_works(act: Callable[[], Any]) -> Any:
    """Retry after Retry, as the runner does."""
    deadline = time.monotonic() + 90
    while True:
        try:
            return act()
        except Retry:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


@pytest.mark.drawn(1)
@pytest.mark.parametrize("renames", [0, 1, 2], ids=["before the commit", "committed", "one file in place"])
@pytest.mark.parametrize("retry", [True, False], ids=["committed again", "taken again"])
def test_a_namenode_killed_within_a_commit(
    target: Target, hdfs_cluster: HdfsCluster, monkeypatch: pytest.MonkeyPatch, renames: int, retry: bool
) -> None:
    sink = target.sink(**{"hdfs.threadsPoolSize": "1"})
    sink.resume(ASSIGNMENT)
    sink.commit(staged(sink, 0, 5))
    receipt = staged(sink, 5, 10)
    real, calls = WebHdfs.rename, 0

    def rename(hdfs: WebHdfs, source: str, target: str) -> bool:
        nonlocal calls
        if calls == renames:
            hdfs_cluster.kill("namenode")
        calls += 1
        return real(hdfs, source, target)

    try:
        with monkeypatch.context() as patch:
            patch.setattr(WebHdfs, "rename", rename)
            with pytest.raises(Retry, match="HDFS is away: no NameNode answers"):
                sink.commit(receipt)
    finally:
        hdfs_cluster.start()
    if retry:
        until_it_works(lambda: sink.commit(receipt))
        position = 10
    else:
        try:
            receipt = until_it_works(lambda: staged_anew(sink, 5, 12))
            until_it_works(lambda: sink.commit(receipt))
            position = 12
        except Conflict:
            position = until_it_works(lambda: sink.resume(ASSIGNMENT.with_offset(5)).next_offset)
    assert target.delivered() == Counter(range(position))
    assert position == (12 if renames == 0 and not retry else 10)


def test_a_stopped_datanode_is_named_soon_and_its_return_detected(target: Target, hdfs_cluster: HdfsCluster) -> None:
    sink = target.sink()
    sink.resume(ASSIGNMENT)
    sink.write(records(0, 5))
    hdfs_cluster.kill("datanode-1")
    try:
        began = time.monotonic()
        with pytest.raises(Retry, match=r"HDFS cannot write .*: .*([Dd]atanode|DataNode)"):
            sink.stage(_own(sink), OffsetRange(0, 5))
        assert time.monotonic() - began < 40
    finally:
        hdfs_cluster.start()
    receipt = until_it_works(lambda: staged_anew(sink, 0, 5))
    sink.commit(receipt)
    assert target.delivered() == Counter(range(5))


def test_files_have_the_group_and_acl_of_their_directory_and_what_is_hidden_is_private(target: Target) -> None:
    """Files get the group and ACL of their directory; `.flafka` is private, also where another user created it."""
    hdfs = target.sink()._hdfs
    assert isinstance(hdfs, WebHdfs)
    hdfs._namenodes.clients[0].mkdirs(f"{target.path}/.flafka")
    hdfs.mkdirs(f"{target.path}/h0")
    hdfs._namenodes.clients[0].set_owner(f"{target.path}/h0", group="hr")
    acl = (
        "user::rwx,group::r-x,other::---,default:user::rwx,default:group::r-x,default:user:ann:rwx,default:other::---"
    )
    hdfs._namenodes.clients[0]._put(f"{target.path}/h0", "SETACL", aclspec=acl)
    sink = target.sink()
    sink.resume(ASSIGNMENT)
    sink.commit(staged(sink, 0, 4))
    for directory in ("h0", "h1"):
        permissions = {"permission": "644", "unmaskedpermission": "666"}  # as Hadoop's client
        hdfs._namenodes.clients[0].create(f"{target.path}/{directory}/plain", b"", **permissions)
        attributes = []
        for file in hdfs.list(f"{target.path}/{directory}"):
            acl_status = (
                hdfs._namenodes.clients[0]
                ._get(f"{target.path}/{directory}/{file.name}", "GETACLSTATUS")
                .json()["AclStatus"]
            )
            attributes.append((acl_status["group"], acl_status["permission"], sorted(acl_status["entries"])))
        assert len(attributes) == 2
        assert attributes[0] == attributes[1]
        assert (attributes[0][0] == "hr") == (directory == "h0")
    assert hdfs._namenodes.clients[0].get_file_status(f"{target.path}/.flafka").permission == "700"


def test_files_are_made_as_hadoops_configuration_says(
    target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {"fs.permissions.umask-mode": "027", "dfs.replication": "2", "dfs.blocksize": "2m"}
    text = "".join(
        f"<property><name>{name}</name><value>{value}</value></property>" for name, value in values.items()
    )
    (tmp_path / "hdfs-site.xml").write_text(f"<configuration>{text}</configuration>")
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    sink = target.sink()
    sink.resume(ASSIGNMENT)
    sink.commit(staged(sink, 0, 4))
    hdfs = sink._hdfs
    assert isinstance(hdfs, WebHdfs)
    [path, _] = target.visible()
    status = hdfs._namenodes.clients[0].get_file_status(path)
    assert (status.permission, status.replication, status.blockSize) == ("640", 2, 2 << 20)
    assert hdfs._namenodes.clients[0].get_file_status(path.rpartition("/")[0]).permission == "750"


@pytest.mark.parametrize("namenodes", [1, 2])
def test_lost_answers_of_changes_lose_and_double_nothing(
    target: Target, hdfs_cluster: HdfsCluster, namenodes: int
) -> None:
    """HDFS has executed the call whose answer does not arrive; it is repeated, also at another NameNode."""
    lost: Counter[str] = Counter()
    calls = itertools.count(1)

    def lose(op: str) -> bool:
        if op not in ("CREATE", "CREATE data", "RENAME", "MKDIRS", "DELETE") or next(calls) % 4:
            return False
        lost[op] += 1
        return True

    with contextlib.ExitStack() as stack:
        relays = [stack.enter_context(relayed(hdfs_cluster.webhdfs)) for _ in range(namenodes)]
        addresses = ",".join(relay.address for relay in relays)
        sink = target.sink(**{"hdfs.webhdfs": addresses, "hdfs.callTimeout": "60000"})
        next_offset = sink.resume(ASSIGNMENT).next_offset or 0
        for relay in relays:
            relay.lose = lose
        failures: list[Retry] = []
        while next_offset < 50 or len(lost) < 4 or lost["RENAME"] < 3:
            try:
                receipt = staged_anew(sink, next_offset, next_offset + 10)
                _repeated(sink.commit, receipt)
                next_offset += 10
            except Conflict:  # as the runner of a sink does
                next_offset = _repeated(sink.resume, _own(sink)).next_offset or 0
            except Retry as e:
                failures.append(e)
                if len(failures) == 200:
                    raise
            assert next_offset < 1000
        for relay in relays:
            relay.lose = lambda op: False
        assert sink.resume(_own(sink)).next_offset == next_offset
    assert target.delivered() == Counter(range(next_offset))


def _repeated(call: Callable[[Any], Any], argument: Any) -> Any:
    """Return the result of a call that is repeated while it raises Retry and no Conflict."""
    for _ in range(50):
        try:
            return call(argument)
        except Conflict:
            raise
        except Retry as e:
            failure = e
    raise failure


def test_probe_reports_mistakes_and_leaves_no_files(target: Target) -> None:
    sink = target.sink()
    assert list(sink.check_connectivity()) == []
    assert sink._hdfs is not None
    assert sink._hdfs.status(target.path) is None
    sink._hdfs.upload(f"{target.path}/file", b"")
    wrong = target.sink(**{"hdfs.path": f"{target.path}/file-0/%Y"})
    assert [f"{target.path}/file-0 is a file, so that" in sentence for sentence in wrong.check_connectivity()] == [
        True
    ]
    config, _ = HdfsConfig.parse({"hdfs.path": "webhdfs://127.0.0.1:1/x", "hdfs.fileType": "DataStream"})
    assert config is not None
    assert list(HdfsSink(config).check_connectivity()) == [
        "HDFS is away: no NameNode answers, or none is active, at 127.0.0.1:1"
    ]
    assert config.staging_dir is None


def test_odd_names_arrive_as_they_are(target: Target) -> None:
    hosts = ["a b", "é", "100%", "%41", "a+b", "a;b?c#d&e=f", "{x}", "back\\slash", "😀", "'\"", "=2F"]
    sink = target.sink()
    sink.resume(ASSIGNMENT)
    origin = Origin.of_record(ASSIGNMENT.topic, ASSIGNMENT.partition, 0, 0, len(hosts))
    sink.write(Batch.of((Event(b"%d" % n, {"host": host}) for n, host in enumerate(hosts)), origin))
    sink.commit(sink.stage(_own(sink), OffsetRange(0, 1)))
    assert {path.split("/")[-2]: int(content) for path, content in target.visible().items()} == {
        host: number for number, host in enumerate(hosts)
    }


def test_a_large_file_arrives_whole(target: Target) -> None:
    sink = target.sink()
    sink.resume(ASSIGNMENT)
    line = os.urandom(100).replace(b"\n", b"").replace(b"\r", b"")
    batch = Batch.of([Event(line, {"host": "big"})] * 10_000)
    for offset in range(30):
        sink.write(Batch(batch.records, Origin.of_record(ASSIGNMENT.topic, ASSIGNMENT.partition, offset, 0, 10_000)))
    sink.commit(sink.stage(_own(sink), OffsetRange(0, 30)))
    assert list(target.visible().values()) == [(line + b"\n") * 300_000]


def test_a_namenode_is_found_at_a_default_port_and_a_relative_path_lies_in_the_users_home(
    hdfs_cluster: HdfsCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file has Flume's values: Hadoop's RPC address, and a path without a leading slash."""
    for variable in ("FLUME_CONF_DIR", "HADOOP_CONF_DIR"):
        monkeypatch.delenv(variable, raising=False)
    _, _, port = hdfs_cluster.webhdfs.rpartition(":")
    monkeypatch.setitem(webhdfs.HTTP_PORTS, "http", (free_port(), int(port)))
    monkeypatch.setenv("HADOOP_USER_NAME", "ann")
    roots = {"data/%{host}": "/user/ann/data", f"{hdfs_cluster.rpc}/found/%{{host}}": "/found"}
    for path, root in roots.items():
        config, problems = HdfsConfig.parse({"hdfs.path": path, "hdfs.fileType": "DataStream"})
        assert config is not None, problems
        sink = HdfsSink(config)
        assert [*sink.check_connectivity()] == []
        sink.open()
        try:
            owned = sink.resume(ASSIGNMENT)
            sink.write(records(0, 10))
            sink.commit(sink.stage(owned, OffsetRange(0, 10)))
            assert sink._hdfs is not None
            assert sorted(file.name for file in sink._hdfs.list(root)) == [".flafka", "h0", "h1"]
        finally:
            sink.close()
