"""What systemd hears of a real agent, and its unit file as systemd reads it."""

from __future__ import annotations

import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from flafka.agent.services.running import RunningAgent, until
from flafka.agent.systemd import Systemd
from tests.agent.test_monitoring import configuration

UNIT = Path(__file__).parents[2] / "conf/systemd/agent.service"


class Heard:
    """A socket as systemd's."""

    def __init__(self, path: Path) -> None:
        self.path, self.lines = path, list[str]()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._thread = threading.Thread(target=self._hear, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RD)
        self._thread.join()
        self._socket.close()

    def _hear(self) -> None:
        while datagram := self._socket.recv(4096):
            self.lines += datagram.decode().splitlines()


@pytest.fixture
def heard(tmp_path: Path) -> Iterator[Heard]:
    heard = Heard(tmp_path / "notify")
    yield heard
    heard.close()


def test_a_service_is_ready_alive_and_stopping(servers: None, tmp_path: Path, heard: Heard) -> None:
    with RunningAgent(tmp_path / "a", configuration(0), environment={"NOTIFY_SOCKET": str(heard.path)}) as agent:
        agent.until(lambda: "READY=1" in heard.lines, "the agent to be ready")
        assert "WATCHDOG=1" in heard.lines
        assert "STATUS=takes events, ok" in heard.lines
        assert agent.stop() == 0
    until(lambda: heard.lines[-2:] == ["STOPPING=1", "STATUS=draining"], "the end", 60)


def test_what_it_waits_for_is_said_once_and_asked_time_for(monkeypatch: pytest.MonkeyPatch, heard: Heard) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(heard.path))
    systemd, waiting = Systemd(), {"a1.channels.c1": "no broker\nanswers"}
    for _ in range(3):
        systemd.look(waiting, "failing")
    systemd.look({}, "degraded")
    systemd.look(waiting, "degraded")  # it was ready before: systemd is not to stop it for this
    until(lambda: "STATUS=takes events, degraded" in heard.lines, "all lines", 60)
    assert heard.lines == [
        *("WATCHDOG=1", "EXTEND_TIMEOUT_USEC=30000000", "STATUS=waiting for a1.channels.c1: no broker answers"),
        *("READY=1", "STATUS=takes events, degraded"),
    ]


def test_nobody_is_told_where_nobody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    Systemd().look({}, "ok")


def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    tool = shutil.which("systemd-analyze")
    if tool is None:
        pytest.skip("systemd-analyze is not installed")
    there = UNIT.read_text().replace("/opt/flafka/bin/agent", "/bin/true").replace("=flafka\n", "=root\n", 2)
    unit = tmp_path / "flafka.service"
    unit.write_text(there)
    done = subprocess.run([tool, "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
