"""Connections of a whole fleet: a real agent, its connection limits, and its stop during a burst."""

from __future__ import annotations

import contextlib
import resource
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from flafka.agent.services.running import RunningAgent
from tests.system.running import connected, send

FLEET = 12_000
ADDRESSES = 8
"""Loopback addresses of the clients: one address has too few ports while others are in TIME_WAIT."""


@pytest.fixture
def files() -> Iterator[None]:
    """Raise the limit of open files of this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard * 7 // 8 < FLEET + 100:
        pytest.skip(f"a process may have {hard} files open here (`ulimit -Hn`)")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, FLEET + 2000), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def configured(home: Path, *lines: str) -> str:
    own = "\n".join(f"a1.sources.tcp.{line}" for line in lines)
    return f"""
a1.sources = tcp
a1.channels = memory
a1.sinks = out
a1.sources.tcp.type = syslogtcp
a1.sources.tcp.host = 127.0.0.1
a1.sources.tcp.port = 0
a1.sources.tcp.channels = memory
{own}
a1.channels.memory.type = memory
a1.channels.memory.capacity = 100000
a1.sinks.out.type = file_roll
a1.sinks.out.channel = memory
a1.sinks.out.sink.directory = {home}/out
a1.sinks.out.sink.rollInterval = 0
"""


def delivered(home: Path) -> list[str]:
    return [line for file in (home / "out").iterdir() for line in file.read_text().splitlines()]


def line(text: str) -> bytes:
    return b"<13>Oct 11 22:14:15 h %s\n" % text.encode()


@pytest.mark.usefixtures("files")
def test_every_connection_of_a_fleet_delivers(tmp_path: Path) -> None:
    command = ("sh", "-c", 'ulimit -Sn 1024; exec "$@"', "sh", sys.executable, "-m", "flafka", "start")
    (tmp_path / "out").mkdir()
    with (
        RunningAgent(tmp_path / "a", configured(tmp_path), command=command) as agent,
        contextlib.ExitStack() as stack,
    ):
        address = "127.0.0.1", agent.port("tcp")
        fleet = []
        for number in range(FLEET):
            source = f"127.0.0.{1 + number % ADDRESSES}", 0
            fleet.append(stack.enter_context(socket.create_connection(address, timeout=60, source_address=source)))
        agent.until(lambda: agent.count("SOURCE.tcp", "OpenConnectionCount") == FLEET, "all connections")
        assert not agent.failing()
        for number, connection in enumerate(fleet):
            connection.sendall(line(f"{number}"))
        agent.until(lambda: agent.count("SINK.out", "EventDrainSuccessCount") == FLEET, "all messages")
        for number, connection in enumerate(fleet):
            connection.sendall(line(f"last words of {number}"))
        assert agent.stop() == 0
        assert "Traceback" not in agent.log
        assert "maxConnections" not in agent.log
    names = [str(number) for number in range(FLEET)]
    assert sorted(delivered(tmp_path)) == sorted(names + [f"last words of {name}" for name in names])


@pytest.mark.skipif(shutil.which("logger") is None, reason="no logger (util-linux)")
def test_the_limit_is_reported_and_logger_delivers_at_it(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with RunningAgent(tmp_path / "a", configured(tmp_path, "maxConnections = 100")) as agent:
        port = agent.port("tcp")
        with contextlib.ExitStack() as stack:
            for _ in range(100):
                stack.enter_context(connected(port))
            agent.until(lambda: agent.count("SOURCE.tcp", "OpenConnectionCount") == 100, "all connections")
            assert agent.count("SOURCE.tcp", "OpenConnectionLimit") == 100
            assert "maxConnections = 100" in agent.degraded()["SOURCE.tcp"]
            to = ["--server", "127.0.0.1", "--port", str(port), "--tcp", "--rfc3164"]
            subprocess.run(["logger", *to, "--tag", "t", "among the idle"], check=True, timeout=60)
            agent.until(lambda: agent.count("SINK.out", "EventDrainSuccessCount") == 1, "what logger sent")
            assert agent.count("SOURCE.tcp", "ConnectionEvictedCount") == 1
        agent.wait_until_healthy()
        status, exposition = agent.get("/metrics/prometheus")
        assert status == 200
        assert b'flafka_open_connection_limit{agent="a1",kind="source",name="tcp"} 100.0' in exposition
        assert agent.stop() == 0
    assert delivered(tmp_path) == ["t: among the idle"]


def test_a_burst_right_before_the_end_is_delivered(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with RunningAgent(tmp_path / "a", configured(tmp_path)) as agent:
        port = agent.port("tcp")
        for number in range(2000):
            send(port, line(f"burst {number}"))
        assert agent.stop() == 0
        assert "Traceback" not in agent.log
    assert sorted(delivered(tmp_path)) == sorted(f"burst {number}" for number in range(2000))
