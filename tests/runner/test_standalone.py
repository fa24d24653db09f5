"""Sink that hangs under `agent dlq replay` and `agent replay`: the command ends nevertheless."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from flafka.agent.runner.deadletters.store import DeadLetter, FileDeadLetterStore
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
from flafka.agent.runner.local import standalone
hangs, standalone.HANG_SECONDS = standalone.hangs, 0.5
standalone.hangs = lambda sink: os.path.exists({connected!r}) and hangs(sink)  # opening may take long
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
    """Server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


@contextmanager
def replaying(directory: Path, server: socket.socket, before: str) -> Iterator[subprocess.Popen[str]]:
    """Run the command until its sink hangs, with the changes of `before`; end it with the test."""
    conf = directory / "agent.conf"
    conf.write_text(CONF.format(directory=directory, port=server.getsockname()[1]))
    letters = FileDeadLetterStore(directory / "a1.c1.deadletters.jsonl")
    letters.put([DeadLetter("a1.sinks.k1", EventId("c1", 0, 1, 0), Event(b"body"), "it was refused")])
    letters.close()
    arguments = ["dlq", "replay", "-c", str(conf), "--yes"]
    # The tests may have been started in the background with SIGINT ignored.
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
def test_a_hanging_sink_ends_the_command_with_a_message(silent: socket.socket, tmp_path: Path, pool: bool) -> None:
    before = HASTY.format(connected=str(tmp_path / "connected"))
    with replaying(tmp_path, silent, before + (WITH_A_POOL.format(call="write") if pool else "")) as process:
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "the replay stopped, a1.sinks.k1 hangs: for 0 s it has been in " in stderr
    assert "letters may be delivered and are not marked as replayed" in stderr
    assert "Traceback" not in stderr


@pytest.mark.parametrize("pool", [False, True])
def test_ctrl_c_ends_a_command_with_a_hanging_sink(silent: socket.socket, tmp_path: Path, pool: bool) -> None:
    with replaying(tmp_path, silent, WITH_A_POOL.format(call="write") if pool else "") as process:
        assert process.stderr is not None
        process.send_signal(signal.SIGINT)
        until(lambda: "Ctrl-C again ends at once" in process.stderr.readline(), "the warning", 60)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "Aborted!" in stderr
    assert "Traceback" not in stderr
