"""Real agents for tests: `agent start` as a process of its own, watched from outside as a user would."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from agent.books import Books, HdfsReader, audit, lines, read_topic
from agent.services.hdfs import HdfsCluster
from agent.services.kafka import KafkaCluster
from plugins import Channel, Components, Event

ROOT = Path(__file__).parents[2]
KAFKA = cast(type[Channel[Any]], Components().get("channel", "kafka"))


class Agent:
    """One agent process; `with` it, so that it never outlives its test.

    `configuration` is a file, or the text of one; a text without a monitoring port takes a free one. Ports of syslog
    sources may be 0 as well; `port` tells which they got. `tree` is where the code lies, of this version or another.
    """

    def __init__(
        self,
        directory: Path,
        configuration: str | Path,
        *arguments: str,
        environment: Mapping[str, str] | None = None,
        command: Sequence[str] = (sys.executable, "-m", "agent", "start"),
        tree: Path = ROOT,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.file = configuration if isinstance(configuration, Path) else directory / "agent.conf"
        self._log = directory / "agent.log"
        if isinstance(configuration, str):
            monitoring = "" if "a1.monitoring.port" in configuration else "\na1.monitoring.port = 0\n"
            self.file.write_text(configuration + monitoring)
        self._command = [*command, *(arguments or ("-c", str(self.file)))]
        self._tree = tree
        self._environment = {**os.environ, "XDG_STATE_HOME": str(directory / "state"), **(environment or {})}
        if tree != ROOT:
            self._environment["PYTHONPATH"] = str(tree)
        self._read = self._log.stat().st_size if self._log.exists() else 0
        self._url: str | None = None
        self.process: subprocess.Popen[bytes]

    def __enter__(self) -> Agent:
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                self._command, env=self._environment, stdout=log, stderr=log, cwd=self._tree
            )
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    # --- looking

    @property
    def log(self) -> str:
        """What this process has said so far."""
        with self._log.open("rb") as file:
            file.seek(self._read)
            return file.read().decode(errors="replace")

    def get(self, path: str) -> tuple[int, bytes]:
        """Status and body of a page of its HTTP server; `(0, b"")` while there is none."""
        if self._url is None:
            found = re.search(r"metrics on (http://[\d.]+:\d+)/", self.log)
            if found is None:
                return 0, b""
            self._url = found[1]
        try:
            with urllib.request.urlopen(self._url + path, timeout=5) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as e:
            return e.code, e.read()
        except OSError:
            return 0, b""

    def metrics(self) -> dict[str, dict[str, str]]:
        """Flume's JSON."""
        return cast("dict[str, dict[str, str]]", json.loads(self.get("/metrics")[1] or b"{}"))

    def count(self, component: str, counter: str) -> int:
        """One counter, such as `count("SOURCE.s1", "EventAcceptedCount")`; 0 where it is not there."""
        return int(float(self.metrics().get(component, {}).get(counter, 0)))

    def failing(self) -> dict[str, str]:
        """What `/healthz` says: failing components and why. Empty only if it answers and all is well."""
        status, body = self.get("/healthz")
        if not body:
            return {"agent": "does not answer"}
        failing: dict[str, str] = json.loads(body)["failing"]
        assert status == (503 if failing else 200)
        return failing

    def port(self, source: str) -> int:
        """The port that syslog source listens on, once it does."""
        listening = re.compile(rf"\.{source}: listening on \S+ port (\d+)")
        self.until(lambda: listening.search(self.log), f"source {source} to listen")
        found = listening.findall(self.log)
        return int(found[-1])

    # --- waiting and stopping

    def until(self, condition: Callable[[], Any], what: str, seconds: float = 400) -> None:
        """Wait until the condition holds; fail, with the end of the log, where it does not or the agent ends."""

        met = False  # asked once: what was so may have passed

        def met_or_ended() -> bool:
            nonlocal met
            ended = self.process.poll() is not None  # asked first: what ends may meet the condition by that
            met = bool(condition())
            return met or ended

        try:
            until(met_or_ended, what, seconds)
            assert met, f"the agent ended with {self.process.poll()} before {what}"
        except AssertionError as e:
            raise AssertionError(f"{e}; its log ends:\n{self.log[-4000:]}") from None

    def healthy(self) -> None:
        """Wait until nothing fails."""
        self.until(lambda: not self.failing(), "the agent to be healthy")

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal, wait for the end, return the exit code."""
        self.process.send_signal(number)
        return self.ended()

    def ended(self, seconds: float = 180) -> int:
        """The exit code, once it has ended."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the agent did not end:\n{self.log[-4000:]}") from None


def until(condition: Callable[[], Any], what: str, seconds: float = 400) -> None:
    """Wait until the condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds:.0f} s in vain for {what}")
        time.sleep(0.05)


def agent_command(
    *arguments: str, environment: Mapping[str, str] | None = None, tree: Path = ROOT
) -> subprocess.CompletedProcess[str]:
    """Run another `agent` command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "agent", *arguments],
        env={**os.environ, **({"PYTHONPATH": str(tree)} if tree != ROOT else {}), **(environment or {})},
        capture_output=True,
        text=True,
        check=False,
        cwd=tree,
        timeout=300,
    )


# --- configurations


def unique(name: str) -> str:
    """A name for a topic or a directory that no other test has."""
    return f"{name}-{uuid.uuid4().hex[:8]}"


def kafka_channel(servers: str, topic: str, *, name: str = "c1", partitions: int = 3) -> str:
    """Lines of a Kafka channel of agent `a1`, with a group of its own."""
    return f"""
a1.channels.{name}.type = kafka
a1.channels.{name}.kafka.bootstrap.servers = {servers}
a1.channels.{name}.kafka.topic = {topic}
a1.channels.{name}.kafka.consumer.group.id = {topic}
a1.channels.{name}.partitions = {partitions}
"""


def hdfs_sink(webhdfs: str, path: str, *, name: str = "k1", channel: str = "c1", roll_seconds: int = 1) -> str:
    """Lines of an HDFS sink of agent `a1`, text, rolled by age alone."""
    return f"""
a1.sinks.{name}.type = hdfs
a1.sinks.{name}.channel = {channel}
a1.sinks.{name}.hdfs.path = webhdfs://{webhdfs}{path}
a1.sinks.{name}.hdfs.fileType = DataStream
a1.sinks.{name}.hdfs.rollInterval = {roll_seconds}
a1.sinks.{name}.hdfs.rollSize = 0
a1.sinks.{name}.hdfs.rollCount = 0
"""


# --- what came of it


def in_topic(kafka: KafkaCluster, topic: str) -> list[Event]:
    """Every event that a topic of the Kafka channel holds; in the order of each partition."""
    records = read_topic(kafka.bootstrap_servers, topic, KAFKA)
    return [event for takes in records.values() for taken in takes for event in taken.batch]


def in_hdfs(hdfs: HdfsCluster, root: str) -> list[bytes]:
    """Every line of the files that a reader of that directory sees; files in the order of their names."""
    reader = HdfsReader(hdfs.webhdfs)
    return [line for path in sorted(reader.visible(root)) for line in lines(reader.read(path))]


def books(kafka: KafkaCluster, topic: str, hdfs: HdfsCluster, root: str) -> Books:
    """The audit: what the topic holds against what lies below that directory."""
    return audit(read_topic(kafka.bootstrap_servers, topic, KAFKA), HdfsReader(hdfs.webhdfs), root)


@contextlib.contextmanager
def connected(port: int) -> Iterator[socket.socket]:
    """A TCP connection to a port of this machine."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        yield connection


def send(port: int, data: bytes) -> None:
    """Send that over one TCP connection, and close it."""
    with connected(port) as connection:
        connection.sendall(data)


def free_ports(count: int = 1) -> list[int]:
    """TCP ports that were free a moment ago."""
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]


# --- disks


@contextlib.contextmanager
def small_disk(path: Path, megabytes: int) -> Iterator[Path]:
    """A file system of that size, empty, at that path. Skips the test where this user may not mount one."""
    path.mkdir(parents=True, exist_ok=True)
    _mount("-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(path))
    try:
        yield path
    finally:
        _unmount(path)


@contextlib.contextmanager
def read_only(path: Path) -> Iterator[None]:
    """Nothing can be written below that directory meanwhile, not even by root. Skips like `small_disk`."""
    _mount("-t", "tmpfs", "-o", "ro", "tmpfs", str(path))
    try:
        yield
    finally:
        _unmount(path)


def fill(path: Path) -> Path:
    """Write a file there until the disk is full; returns it."""
    filler = path / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(size))
    return filler


def _mount(*arguments: str) -> None:
    done = subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"a file system cannot be mounted here: {done.stderr.strip()}")


def _unmount(path: Path) -> None:
    subprocess.run(["umount", "--lazy", str(path)], check=True)
