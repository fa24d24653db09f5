"""Failing open, write, fork or mmap of an agent: at 20 points, drawn by the seed. `./dev soak faults` has 500."""

import contextlib
import socket
import sys
from pathlib import Path

import pytest

from flafka.agent.services.running import RunningAgent
from tests.failing.campaign import Campaign
from tests.failing.operations import compiler, library

pytestmark = pytest.mark.usefixtures("servers")


@pytest.mark.skipif(compiler() is None, reason="no C compiler: failing operations are injected by a C library")
def test_events_are_stored_or_a_component_is_failing(tmp_path: Path, seed: int, figures: list[str]) -> None:
    campaign = Campaign(tmp_path, library(tmp_path), seed)
    campaign.run(starts=4, loads=16, per_agent=8)
    figures.append(campaign.figures())
    assert campaign.broken_points() == []
    assert campaign.lost() == {}
    assert campaign.unclean == []


def test_an_agent_without_open_files_answers_again_once_it_has_some(tmp_path: Path) -> None:
    """An agent without file descriptors logs a few lines, where asyncio alone would write thousands of tracebacks."""
    limited = ("sh", "-c", 'ulimit -n 48; exec "$@"', "sh", sys.executable, "-m", "flafka", "start")
    with RunningAgent(tmp_path, FEW_FILES.format(directory=tmp_path), command=limited) as agent:
        port = agent.port("s1")
        agent.wait_until_healthy()
        assert agent._address is not None
        with contextlib.ExitStack() as stack:
            for _ in range(60):
                connection = stack.enter_context(socket.socket())
                connection.setblocking(False)  # connections that the agent does not accept would block
                connection.connect_ex(agent._address)
            agent.until(lambda: "Too many open files" in agent.log, "the agent to have no files")
        agent.wait_until_healthy()
        with socket.create_connection(("127.0.0.1", port)) as sender:
            sender.sendall(b"one\n")
            assert sender.recv(10) == b"OK\n"
        agent.until(lambda: b"one" in b"".join(f.read_bytes() for f in tmp_path.glob("out/*")), "the event")
        assert agent.stop() == 0
        assert len(agent.log.splitlines()) < 60, agent.log


FEW_FILES = """
a1.sources = s1
a1.channels = c1
a1.sinks = k1
a1.sources.s1.type = netcat
a1.sources.s1.bind = 127.0.0.1
a1.sources.s1.port = 0
a1.sources.s1.channels = c1
a1.channels.c1.type = memory
a1.sinks.k1.type = file_roll
a1.sinks.k1.channel = c1
a1.sinks.k1.sink.directory = {directory}/out
"""
