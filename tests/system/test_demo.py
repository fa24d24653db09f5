"""Demo that is ended half way. Every run of CI shows that it works otherwise."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from flafka.agent.services import ServiceError
from flafka.agent.services.running import until
from tests.system.running import ROOT


def test_a_demo_that_is_ended_leaves_nothing_behind(tmp_path: Path) -> None:
    temporary, log = tmp_path / "tmp", tmp_path / "log"
    temporary.mkdir()
    with log.open("wb") as out:
        command = [sys.executable, "-m", "flafka", "demo", "--exit"]
        demo = subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, "TMPDIR": str(temporary)}, stdout=out, stderr=out
        )
    try:
        until(lambda: "✓ agent start" in log.read_text() or demo.poll() is not None, "the demo's agent")
        demo.send_signal(signal.SIGTERM)
        assert demo.wait(180) == 130, log.read_text()
    finally:
        demo.kill()
    assert "Traceback" not in log.read_text()
    try:
        until(lambda: not running_in(temporary), "the end of all processes")
    except ServiceError:
        pytest.fail("\n".join(["these go on:", *running_in(temporary)]))
    until(lambda: not list(temporary.glob("*")), "the end of all files")


def running_in(directory: Path) -> list[str]:
    """Return the command lines of the processes whose files are below that directory."""
    commands = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            environment = (process / "environ").read_bytes()
            command = (process / "cmdline").read_text().replace("\0", " ")
        except OSError:
            continue
        if str(directory).encode() in environment or str(directory) in command:
            commands.append(command)
    return commands
