"""Ports for programs that take a while until they listen, and errors about agents that do not answer."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from flafka.agent.services import ServiceError, running
from flafka.agent.services.running import FIRST_PORT, MIN_PORTS, RunningAgent, free_ports
from tests.fixtures.ports import free_port

STOPPED = """
import os, signal
signal.signal(signal.SIGQUIT, lambda *_: None)
print("started", flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
"""
OF_ANOTHER_PROCESS = "from flafka.agent.services.running import free_ports; print(*free_ports(20))"


@pytest.fixture(autouse=True)
def outgoing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Range of the kernel's own ports, as a file."""
    path = tmp_path / "ip_local_port_range"
    path.write_text("30000\t60999\n")
    monkeypatch.setattr(running, "_OUTGOING_PORTS", path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return path


def test_no_port_is_given_out_twice_nor_to_an_outgoing_connection() -> None:
    own = [free_port() for _ in range(20)] + free_ports(20)
    process = subprocess.run([sys.executable, "-c", OF_ANOTHER_PROCESS], capture_output=True, text=True, check=True)
    ports = own + [int(port) for port in process.stdout.split()]
    assert len(set(ports)) == 60
    assert free_ports(0) == []
    assert all(port >= FIRST_PORT for port in ports)
    assert all(port < 30_000 for port in own)


def test_a_port_with_a_listener_is_skipped(outgoing: Path) -> None:
    outgoing.write_text(f"{FIRST_PORT + MIN_PORTS}\t60999\n")
    port = free_port()
    with socket.create_server(("127.0.0.1", port)), pytest.raises(ServiceError, match=f"{MIN_PORTS} are free"):
        free_ports(MIN_PORTS)


@pytest.mark.parametrize("content", ["1024\t65535\n", ""])
def test_the_kernel_chooses_if_its_own_range_leaves_no_ports(outgoing: Path, content: str) -> None:
    if content:
        outgoing.write_text(content)
    else:
        outgoing.unlink()
    assert len(set(free_ports(5))) == 5


@pytest.mark.usefixtures("servers")
def test_the_error_of_a_stopped_process_says_so(tmp_path: Path) -> None:
    configuration = "a1.sources = s1\na1.channels = c1\n"  # the program does not read it
    command = (sys.executable, "-c", STOPPED)
    with RunningAgent(tmp_path, configuration, command=command) as agent:
        agent.until(lambda: "started" in agent.log, "the program to start")
        with pytest.raises(ServiceError, match=r"no response to SIGQUIT.*State:\s+T \(stopped"):
            agent.until(lambda: False, "an answer", 0)
