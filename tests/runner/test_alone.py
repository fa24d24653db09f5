"""A sink that `agent dlq replay` and `agent replay` run themselves, and that hangs: the command ends all the same."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from flafka.agent.runner.deadletters.letters import DeadLetter, FileDeadLetters
from flafka.agent.services.running import until
from flafka.plugins import Event, EventId
from tests.system.running import ROOT

CONF = """
a1.channels = c1
a1.sinks = k1
a1.deadletters.directory = {directory}
a1.channels.c1.type = memory
a1.sinks.k1.type = http
a1.sinks.k1.channel = c1
a1.sinks.k1.endpoint = http://127.0.0.1:{port}/
a1.sinks.k1.requestTimeout = 3600000
"""
HASTY = """
import os
from flafka.agent.runner.local import alone
hangs, alone.HANG_SECONDS = alone.hangs, 0.5
alone.hangs = lambda sink: os.path.exists({connected!r}) and hangs(sink)  # opening may take long
"""
WITH_A_POOL = """
import concurrent.futures, flafka.sinks.http
send = flafka.sinks.http.HttpSink.{call}
def pooled(*given):
    return concurrent.futures.ThreadPoolExecutor(1).submit(send, *given).result()
flafka.sinks.http.HttpSink.{call} = pooled
"""


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """A server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


@contextmanager
def replaying(directory: Path, server: socket.socket, before: str) -> Iterator[subprocess.Popen[str]]:
    """The command, once its sink hangs, with what `before` does to the program; it must not outlive the test."""
    conf = directory / "agent.conf"
    conf.write_text(CONF.format(directory=directory, port=server.getsockname()[1]))
    letters = FileDeadLetters(directory / "a1.c1.deadletters.jsonl")
    letters.put([DeadLetter("a1.sinks.k1", EventId("c1", 0, 1, 0), Event(b"body"), "it was refused")])
    letters.close()
    arguments = ["dlq", "replay", "-c", str(conf), "--yes"]
    # Whoever started the tests in the background may have had SIGINT ignored.
    listening = "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)"
    command = [sys.executable, "-c", f"{listening}\n{before}\nfrom flafka.agent.cli import main\nmain()", *arguments]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            server.settimeout(60)
            with server.accept()[0]:
                (directory / "connected").touch()
                yield process
        finally:
            process.kill()


@pytest.mark.parametrize("pool", [False, True])
def test_it_ends_with_a_sentence(silent: socket.socket, tmp_path: Path, pool: bool) -> None:
    before = HASTY.format(connected=str(tmp_path / "connected"))
    with replaying(tmp_path, silent, before + (WITH_A_POOL.format(call="write") if pool else "")) as process:
        _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "the replay stopped, a1.sinks.k1 hangs: for 0 s it has been in " in said
    assert "letters may be delivered and are not noted as replayed" in said
    assert "Traceback" not in said


@pytest.mark.parametrize("pool", [False, True])
def test_ctrl_c_ends_it(silent: socket.socket, tmp_path: Path, pool: bool) -> None:
    with replaying(tmp_path, silent, WITH_A_POOL.format(call="write") if pool else "") as process:
        assert process.stderr is not None
        process.send_signal(signal.SIGINT)
        until(lambda: "Ctrl-C again ends at once" in process.stderr.readline(), "the warning", 60)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "Aborted!" in said
    assert "Traceback" not in said
