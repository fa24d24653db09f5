"""Reloads after a changed file, and files that are half written."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from flafka.agent.cli import main
from flafka.agent.cli.reloader import Reloader
from flafka.agent.config import load
from flafka.agent.services.running import until
from flafka.plugins import Components

CONF = """
a1.sources = s
a1.channels = c
a1.sources.s.type = seq
a1.sources.s.channels = c
a1.channels.c.type = memory
a1.channels.c.capacity = 500
"""


class RecordingAgent:
    """Agent and page that record each reload."""

    def __init__(self, file: Path) -> None:
        spec, diagnostics = load(file, components=Components())
        assert spec is not None, diagnostics
        self.spec, self.view = spec, self
        self.capacities: list[int] = []
        self.reloads: list[tuple[bool, str]] = []

    def reload(self, spec: Any) -> str:
        self.spec = spec
        self.capacities.append(spec.channel("c").config.capacity)
        return "channels c"

    def record_reload(self, *, ok: bool, message: str) -> None:
        self.reloads.append((ok, message))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "agent.conf"
    made.write_text(CONF)
    return made


def reloader_of(*words: str, monkeypatch: pytest.MonkeyPatch) -> Reloader:
    """Return the reloader of `agent start`."""
    reloaders: list[Reloader] = []

    def run(spec: Any, *, drain: bool, reloader: Reloader) -> int:
        reloaders.append(reloader)
        return 0

    monkeypatch.setattr("flafka.agent.cli.start.run", run)
    result = CliRunner().invoke(main, ["start", "-n", "a1", *words])
    assert result.exit_code == 0, result.output
    return reloaders[0]


@pytest.mark.parametrize(
    ("words", "looks"),
    [(["-f"], True), (["--no-reload-conf", "-f"], False), (["-c"], False), (["--reload-conf", "-c"], True)],
)
def test_a_changed_file_is_reloaded_in_flumes_spelling_and_on_request(
    words: list[str], looks: bool, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr("flafka.agent.cli.reloader.time", SimpleNamespace(monotonic=lambda: now[0]))
    reloader, agent = reloader_of(*words, str(file), monkeypatch=monkeypatch), RecordingAgent(file)
    running_agent: Any = agent

    def poll() -> None:
        """Poll after half a minute, and return the result."""
        now[0] += 30
        reloader.poll(running_agent, requested=False)
        if reloader._thread is not None:
            reloader._thread.join(60)

    poll()
    assert agent.reloads == []
    file.write_text(CONF.replace("500", "700"))
    now[0] -= 29
    poll()
    assert agent.reloads == [], "it looks each half minute"
    now[0] += 29
    poll()
    assert agent.capacities == ([700] if looks else [])
    poll()
    assert len(agent.reloads) == looks, "what has not changed since is not read again"
    file.write_text(CONF.replace("500", "7x"))  # half written, or wrong
    poll()
    file.unlink()  # an editor is about to replace it
    poll()
    file.write_text(CONF.replace("500", "9000"))
    poll()
    assert agent.capacities == ([700, 9000] if looks else [])
    assert [ok for ok, _ in agent.reloads] == ([True, False, False, True] if looks else [])
    assert all(
        "nothing was changed" in message or "no such file" in message.lower()
        for ok, message in agent.reloads
        if not ok
    )


def test_a_requested_reload_reads_unchanged_files_too(file: Path) -> None:
    from flafka.agent.cli.configuration import ChosenConfiguration

    reloader, agent = Reloader(ChosenConfiguration(file, None, "normal", {}), watch_files=False), RecordingAgent(file)
    running_agent: Any = agent
    reloader.poll(running_agent, requested=True)
    until(lambda: agent.reloads, "the reload", 60)
    assert agent.reloads == [(True, "channels c")]
