"""Notifications of a real agent to systemd, and its unit file checked by systemd."""

from __future__ import annotations

import re
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
from tests.release.packages import unit

UNIT = Path(__file__).parents[2] / "conf/systemd/agent.service"


class NotifySocket:
    """Socket like systemd's."""

    def __init__(self, path: Path) -> None:
        self.path, self.lines = path, list[str]()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._thread = threading.Thread(target=self._receive, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RD)
        self._thread.join()
        self._socket.close()

    def _receive(self) -> None:
        while datagram := self._socket.recv(4096):
            self.lines += datagram.decode().splitlines()


@pytest.fixture
def notify_socket(tmp_path: Path) -> Iterator[NotifySocket]:
    notify_socket = NotifySocket(tmp_path / "notify")
    yield notify_socket
    notify_socket.close()


def test_a_service_is_ready_alive_and_stopping(servers: None, tmp_path: Path, notify_socket: NotifySocket) -> None:
    with RunningAgent(
        tmp_path / "a", configuration(0), environment={"NOTIFY_SOCKET": str(notify_socket.path)}
    ) as agent:
        agent.until(lambda: "READY=1" in notify_socket.lines, "the agent to be ready")
        assert "WATCHDOG=1" in notify_socket.lines
        assert "STATUS=takes events, ok" in notify_socket.lines
        assert agent.stop() == 0
    until(lambda: notify_socket.lines[-2:] == ["STOPPING=1", "STATUS=draining"], "the end", 60)


def test_a_wait_is_reported_once_and_extends_the_timeout(
    monkeypatch: pytest.MonkeyPatch, notify_socket: NotifySocket
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(notify_socket.path))
    systemd, waiting = Systemd(), {"a1.channels.c1": "no broker\nanswers"}
    for _ in range(3):
        systemd.update(waiting, "failing")
    systemd.update({}, "degraded")
    systemd.update(waiting, "degraded")  # it was ready before: systemd must not stop it
    until(lambda: "STATUS=takes events, degraded" in notify_socket.lines, "all lines", 60)
    assert notify_socket.lines == [
        *("WATCHDOG=1", "EXTEND_TIMEOUT_USEC=30000000", "STATUS=waiting for a1.channels.c1: no broker answers"),
        *("READY=1", "STATUS=takes events, degraded"),
    ]


def test_without_systemd_nothing_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    Systemd().update({}, "ok")


@pytest.mark.parametrize("text", [UNIT.read_text(), unit()], ids=["by hand", "of packages"])
def test_systemd_accepts_the_unit(tmp_path: Path, text: str) -> None:
    tool = shutil.which("systemd-analyze")
    if tool is None:
        pytest.skip("systemd-analyze is not installed")
    there = re.sub(r"/\S+/bin/agent", "/bin/true", text).replace("=flafka\n", "=root\n", 2)
    file = tmp_path / "flafka.service"
    file.write_text(there)
    done = subprocess.run([tool, "verify", "--man=no", str(file)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
