"""Configurations of real agents, other commands, and delivered events."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from flafka.agent.audit.reconciliation import HdfsReader, Reconciliation, lines, read_topic, reconcile
from flafka.agent.services.cluster import Cluster
from flafka.agent.services.hdfs import HdfsCluster
from flafka.agent.services.kafka import KafkaCluster
from flafka.plugins import Components, Event, Retry
from flafka.plugins.kafka.topic import KafkaBackedChannel

ROOT = Path(__file__).parents[2]
NO_HDFS = "HDFS is away: no NameNode answers, or none is active, at {}"
KAFKA = cast(type[KafkaBackedChannel[Any]], Components().get("channel", "kafka"))


def agent_command(*arguments: str, environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run another `agent` command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "flafka", *arguments],
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        timeout=300,
    )


def processes(cluster: Cluster, kind: str) -> list[int]:
    """Return the JVMs of that kind in the directory of a cluster that starts them itself: executors, containers."""
    pids = []
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            command, cwd = (directory / "cmdline").read_bytes(), (directory / "cwd").readlink()
        except OSError:
            continue
        if kind.encode() in command and b"/bin/bash" not in command and cwd.is_relative_to(cluster.directory):
            pids.append(int(directory.name))
    return pids


# --- configurations


def unique(name: str) -> str:
    """Return a name for a topic or a directory that no other test has."""
    return f"{name}-{uuid.uuid4().hex[:8]}"


def syslog_sources() -> str:
    """Return lines of the sources `tcp` and `udp` of agent `a1`, on free ports, into channel `c1`."""
    return """
a1.sources = tcp udp
a1.sources.tcp.type = syslogtcp
a1.sources.tcp.host = 127.0.0.1
a1.sources.tcp.port = 0
a1.sources.tcp.channels = c1
a1.sources.udp.type = syslogudp
a1.sources.udp.host = 127.0.0.1
a1.sources.udp.port = 0
a1.sources.udp.channels = c1
"""


def kafka_channel(servers: str, topic: str, *, name: str = "c1", partitions: int = 3) -> str:
    """Return lines of a Kafka channel of agent `a1`, with its own group.

    Brokers remove dead members after six seconds, the shortest session timeout that they allow.
    """
    return f"""
a1.channels.{name}.type = kafka
a1.channels.{name}.kafka.bootstrap.servers = {servers}
a1.channels.{name}.kafka.topic = {topic}
a1.channels.{name}.kafka.consumer.group.id = {topic}
a1.channels.{name}.kafka.consumer.session.timeout.ms = 6000
a1.channels.{name}.kafka.consumer.heartbeat.interval.ms = 1000
a1.channels.{name}.partitions = {partitions}
"""


def hdfs_sink(webhdfs: str, path: str, *, name: str = "k1", channel: str = "c1", roll_seconds: int = 1) -> str:
    """Return lines of an HDFS sink of agent `a1`: text, rolled by age alone."""
    return f"""
a1.sinks.{name}.type = hdfs
a1.sinks.{name}.channel = {channel}
a1.sinks.{name}.hdfs.path = webhdfs://{webhdfs}{path}
a1.sinks.{name}.hdfs.fileType = DataStream
a1.sinks.{name}.hdfs.rollInterval = {roll_seconds}
a1.sinks.{name}.hdfs.rollSize = 0
a1.sinks.{name}.hdfs.rollCount = 0
"""


# --- delivered events


def in_topic(kafka: KafkaCluster, topic: str) -> list[Event]:
    """Return every event in a topic of the Kafka channel, in the order of each partition.

    A broker without metadata of a new topic is asked repeatedly.
    """
    deadline = time.monotonic() + 60
    while True:
        try:
            records = read_topic(kafka.bootstrap_servers, topic, KAFKA)
        except Retry as e:
            if "Unknown topic" not in str(e) or time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        else:
            return [event for polls in records.values() for poll in polls for event in poll.batch]


def in_hdfs(hdfs: HdfsCluster, root: str) -> list[bytes]:
    """Return every line of the visible files below that directory; files in the order of their names."""
    reader = HdfsReader(hdfs.webhdfs)
    return [line for path in sorted(reader.visible(root)) for line in lines(reader.read(path))]


def reconciliation(kafka: KafkaCluster, topic: str, hdfs: HdfsCluster, root: str) -> Reconciliation:
    """Return the audit of a topic against the files below that directory."""
    return reconcile(read_topic(kafka.bootstrap_servers, topic, KAFKA), HdfsReader(hdfs.webhdfs), root)


@contextlib.contextmanager
def connected(port: int) -> Iterator[socket.socket]:
    """Return a TCP connection to a port of this machine."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        yield connection


def send(port: int, data: bytes) -> None:
    """Send data over one TCP connection, and close it."""
    with connected(port) as connection:
        connection.sendall(data)


# --- disks


@contextlib.contextmanager
def small_disk(path: Path, megabytes: int) -> Iterator[Path]:
    """Mount an empty file system of that size at that path. Skip the test where this user may not mount one."""
    path.mkdir(parents=True, exist_ok=True)
    _mount("-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(path))
    try:
        yield path
    finally:
        _unmount(path)


@contextlib.contextmanager
def read_only(path: Path) -> Iterator[None]:
    """Make that directory read-only meanwhile, also for root. Skip like `small_disk`."""
    _mount("-t", "tmpfs", "-o", "ro", "tmpfs", str(path))
    try:
        yield
    finally:
        _unmount(path)


def fill(path: Path) -> Path:
    """Write a file there until the disk is full; return the file."""
    filler = path / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(size))
    return filler


def _mount(*arguments: str) -> None:
    result = subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)
    if result.returncode:
        pytest.skip(f"a file system cannot be mounted here: {result.stderr.strip()}")


def _unmount(path: Path) -> None:
    subprocess.run(["umount", "--lazy", str(path)], check=True)
