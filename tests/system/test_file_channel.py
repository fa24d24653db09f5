"""File channel before a real HDFS, and on a full disk."""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
from collections import Counter
from pathlib import Path

from flafka.agent.services.hdfs import HdfsCluster
from flafka.agent.services.running import RunningAgent, until
from tests.fixtures.ports import free_port
from tests.system.running import fill, hdfs_sink, in_hdfs, small_disk, unique


def configuration(directory: Path, port: int, sink: str) -> str:
    return f"""
a1.sources = s
a1.channels = c1
a1.sinks = k1
a1.sources.s.type = netcat
a1.sources.s.bind = 127.0.0.1
a1.sources.s.port = {port}
a1.sources.s.channels = c1
a1.channels.c1.type = file
a1.channels.c1.checkpointDir = {directory}/checkpoint
a1.channels.c1.dataDirs = {directory}/data
a1.channels.c1.maxFileSize = 1048576
a1.channels.c1.minimumRequiredSpace = 1048576
{sink}
"""


class Sender:
    """Client that sends numbered lines, each once, and keeps the acknowledged ones."""

    def __init__(self, port: int, padding: str = "") -> None:
        self.port, self.padding = port, padding
        self.sent = itertools.count()
        self.acknowledged: set[bytes] = set()
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self.over.is_set():
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("127.0.0.1", self.port), timeout=30) as client,
                client.makefile("rb") as answers,
            ):
                while not self.over.is_set():
                    line = b"%d%s" % (next(self.sent), self.padding.encode())
                    client.sendall(line + b"\n")
                    if answers.readline() != b"OK\n":
                        break
                    self.acknowledged.add(line)

    def __enter__(self) -> Sender:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.thread.join()


def test_hdfs_has_each_event_once_whatever_is_killed(tmp_path: Path, hdfs_cluster: HdfsCluster) -> None:
    root, port = f"/test/{unique('file')}", free_port()
    text = configuration(tmp_path, port, hdfs_sink(hdfs_cluster.webhdfs, root))
    with Sender(port) as sender:
        for _ in range(3):
            seen = len(sender.acknowledged)
            files = len(in_hdfs(hdfs_cluster, root))
            with RunningAgent(tmp_path / "a", text) as agent:
                agent.until(lambda seen=seen: len(sender.acknowledged) > seen + 300, "events")
                agent.until(lambda files=files: len(in_hdfs(hdfs_cluster, root)) > files, "files")
                agent.process.kill()
                agent.wait_for_exit()
    with RunningAgent(tmp_path / "a", text, "-c", str(tmp_path / "a/agent.conf"), "--drain") as agent:
        assert agent.wait_for_exit() == 0, agent.log
    delivered = Counter(in_hdfs(hdfs_cluster, root))
    assert sender.acknowledged <= delivered.keys()
    assert max(delivered.values()) == 1


def test_a_full_disk_blocks_sources_until_there_is_room(tmp_path: Path) -> None:
    port, out = free_port(), tmp_path / "out"
    out.mkdir()
    sink = f"a1.sinks.k1.type = file_roll\na1.sinks.k1.channel = c1\na1.sinks.k1.sink.directory = {out}\n"
    with small_disk(tmp_path / "disk", 8) as disk:
        text = configuration(disk, port, sink)
        with RunningAgent(tmp_path / "a", text) as agent, Sender(port, " " * 400) as sender:
            agent.until(lambda: len(sender.acknowledged) > 100, "events")
            filler = fill(disk)
            agent.until(lambda: "less free space than minimumRequiredSpace" in agent.log, "word of the full disk")
            held = len(sender.acknowledged)
            filler.unlink()
            until(lambda: len(sender.acknowledged) > held + 100, "events after there was room")
            sender.over.set()
            sender.thread.join()
            agent.wait_until_healthy()  # the sink may wait for its next try if the disk was full when it committed
            assert agent.stop() == 0
        with RunningAgent(tmp_path / "a", text, "-c", str(tmp_path / "a/agent.conf"), "--drain") as agent:
            assert agent.wait_for_exit() == 0, agent.log
    delivered = Counter(line for file in out.iterdir() for line in file.read_bytes().splitlines())
    assert sender.acknowledged <= delivered.keys()
    assert max(delivered.values()) == 1
