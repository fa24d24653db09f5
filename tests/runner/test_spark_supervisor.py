"""What the agent's side of the Spark runner leaves behind."""

import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from agent.runner.spark.supervisor import workplace

KILLED = """
import os, signal
from agent.runner.spark.supervisor import workplace
with workplace() as directory:
    open(f"{directory}/left", "w").close()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_agent_left_goes_with_the_next_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    killed = subprocess.run([sys.executable, "-c", KILLED], check=False)
    assert killed.returncode == -signal.SIGKILL
    (left,) = tmp_path.glob("*/left")
    with workplace() as first, workplace() as second:
        assert not left.exists()
        assert sorted(tmp_path.iterdir()) == sorted([Path(first), Path(second)])
    assert list(tmp_path.iterdir()) == []
