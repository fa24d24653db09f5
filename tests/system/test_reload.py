"""Configuration that changes under a running agent, checked by event ids."""

from __future__ import annotations

import json
import os
import pty
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flafka.agent.services.running import RunningAgent, until
from tests.fixtures.ports import free_port
from tests.system.running import agent_command


def configuration(home: Path, port: int, round_: int, *options: str) -> str:
    """Return the configuration of a round: it changes an interceptor, a sink, a channel and its users, or nothing."""
    change = [f"x{(round_ - part) // 4}" for part in range(3)]
    return f"""
a1.sources = tcp files
a1.channels = steady kept quick
a1.sinks = steady kept quick
a1.sources.tcp.type = netcat
a1.sources.tcp.bind = 127.0.0.1
a1.sources.tcp.port = {port}
a1.sources.tcp.ack-every-event = false
a1.sources.tcp.channels = steady
a1.sources.files.type = taildir
a1.sources.files.filegroups = f
a1.sources.files.filegroups.f = {home}/in[.]log
a1.sources.files.positionFile = {home}/positions.json
a1.sources.files.channels = kept quick
a1.sources.files.interceptors = mark
a1.sources.files.interceptors.mark.type = static
a1.sources.files.interceptors.mark.value = {change[0]}
a1.channels.steady.type = memory
a1.channels.kept.type = file
a1.channels.kept.checkpointDir = {home}/checkpoint
a1.channels.kept.dataDirs = {home}/data
a1.channels.quick.type = memory
a1.channels.quick.capacity = {20000 + (round_ - 2) // 4}
{"".join(sink(home, name, change[1] if name == "kept" else "x") for name in ("steady", "kept", "quick"))}
{chr(10).join(options)}
"""


def sink(home: Path, name: str, mark: str) -> str:
    return f"""
a1.sinks.{name}.type = file_roll
a1.sinks.{name}.channel = {name}
a1.sinks.{name}.sink.directory = {home}/{name}
a1.sinks.{name}.sink.rollInterval = 0
a1.sinks.{name}.sink.pathManager.prefix = {name}-{mark}-
"""


class Load:
    """Thread that writes numbered lines without a pause until it is stopped."""

    def __init__(self, write: Callable[[bytes], Any]) -> None:
        self.written = 0
        self._write, self._stopping = write, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while not self._stopping.wait(0.002):
            self._write(b"".join(b"%d\n" % n for n in range(self.written, self.written + 10)))
            self.written += 10

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()


def arrived(directory: Path) -> Counter[int]:
    return Counter(int(line) for file in directory.iterdir() for line in file.read_bytes().split())


def state(agent: RunningAgent) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(agent.get("/api/state")[1])
    return answer


def outcome(agent: RunningAgent, number: int) -> str:
    """Return the changes of that reload."""
    agent.until(lambda: state(agent)["reloads"]["number"] == number, f"reload {number}")
    reloads = state(agent)["reloads"]
    assert reloads["ok"], reloads["told"]
    changes: str = reloads["told"]
    return changes


@pytest.fixture
def home(tmp_path: Path) -> Path:
    for name in ("steady", "kept", "quick"):
        (tmp_path / name).mkdir()
    (tmp_path / "in.log").touch()
    return tmp_path


@pytest.mark.timeout(900)
@pytest.mark.parametrize("rounds", [24, pytest.param(100, marks=pytest.mark.soak)])
def test_reloads_under_load_lose_and_double_nothing(servers: None, home: Path, rounds: int) -> None:
    port, option = free_port(), f"a1.monitoring.port = {free_port()}"
    with RunningAgent(home / "a", configuration(home, port, 0, option)) as agent:
        agent.until(lambda: agent.get("/readyz")[0] == 200, "the agent to be ready")
        with (
            socket.create_connection(("127.0.0.1", port)) as connection,
            (home / "in.log").open("ab", 0) as log,
            Load(connection.sendall) as sent,
            Load(log.write) as written,
        ):
            outcomes = []
            for round_ in range(1, rounds + 1):
                agent.file.write_text(configuration(home, port, round_, option))
                agent.process.send_signal(signal.SIGHUP)
                outcomes.append(outcome(agent, round_))
        assert {"sources files", "sinks kept", "nothing"} <= set(outcomes), outcomes
        assert "channels quick; sources files; sinks quick" in outcomes
        agent.until(lambda: agent.count("SOURCE.tcp", "EventAcceptedCount") == sent.written, "what was sent")
        agent.until(lambda: len(arrived(home / "kept")) == written.written, "what was written")
        assert agent.stop() == 0
    assert arrived(home / "steady") == Counter(range(sent.written))
    for name in ("kept", "quick"):
        assert arrived(home / name) == Counter(range(written.written)), name


def test_a_wrong_configuration_changes_nothing(servers: None, home: Path) -> None:
    port, option = free_port(), f"a1.monitoring.port = {free_port()}"
    with RunningAgent(home / "a", configuration(home, port, 0, option)) as agent:
        agent.until(lambda: agent.get("/readyz")[0] == 200, "the agent to be ready")
        good = agent.file.read_text()
        agent.file.write_text(good.replace("a1.sinks.kept.type = file_roll", "a1.sinks.kept.type = file_rol"))
        answer = agent_command("reload", "-c", str(agent.file))
        assert (answer.returncode, "did you mean 'file_roll'" in answer.stderr) == (2, True)
        agent.process.send_signal(signal.SIGHUP)
        agent.until(lambda: state(agent)["reloads"]["number"] == 1, "the reload")
        assert not state(agent)["reloads"]["ok"]
        assert "did you mean 'file_roll'" in agent.log
        assert "the configuration has errors: nothing was changed" in agent.log
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(b"1\n")
            until(lambda: arrived(home / "steady") == Counter([1]), "an event", 60)
        agent.file.write_text(good)
        answer = agent_command("reload", "-c", str(agent.file))
        assert (answer.returncode, answer.stdout.splitlines()[-1]) == (0, "changed: nothing"), answer
        reported = json.loads(agent_command("reload", "-c", str(agent.file), "--json").stdout)
        assert reported == {"agent": "a1", "processes": [agent.process.pid], "ok": True, "told": "nothing"}
        assert agent.stop() == 0


def test_a_process_that_does_not_know_reloads_is_left_alone(servers: None, home: Path) -> None:
    """The signal would end such a process: an earlier version, or one that has just started."""
    file = home / "agent.conf"
    file.write_text(configuration(home, free_port(), 0))
    idle = [sys.executable, "-c", "import time; time.sleep(600)", "agent", "start", "-c", str(file)]
    with subprocess.Popen(idle) as other:
        try:
            answer = agent_command("reload", "-c", str(file))
            assert answer.returncode == 1
            assert f"process {other.pid} cannot reload" in answer.stderr
            assert other.poll() is None
        finally:
            other.kill()


@pytest.mark.parametrize("under", [(), ("nohup",)])
def test_a_terminal_that_is_closed_ends_the_agent_but_for_nohup(
    servers: None, home: Path, under: tuple[str, ...]
) -> None:
    port = free_port()
    (home / "agent.conf").write_text(configuration(home, port, 0, "a1.monitoring.port = 0"))
    log = home / "log"
    command = [*under, sys.executable, "-m", "flafka", "start", "-c", str(home / "agent.conf")]
    child, terminal = pty.fork()
    if not child:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup
        out = os.open(log, os.O_WRONLY | os.O_CREAT)
        os.dup2(out, 1)
        os.dup2(out, 2)
        os.execvp(command[0], command)
    try:
        until(lambda: log.exists() and ".tcp: listening" in log.read_text(), "the agent to listen")
        os.close(terminal)
        if under:
            until(lambda: "changed: nothing" in log.read_text(), "the reload")
            os.kill(child, signal.SIGTERM)
        assert os.waitpid(child, 0)[1] == 0
        child = 0
        assert "stopped" in log.read_text()
    finally:
        if child:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
