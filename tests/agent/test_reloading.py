"""When an agent reads its configuration again by itself, and what it makes of one that is half written."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from flafka.agent.cli import main
from flafka.agent.cli.reloading import Reloader
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


class Told:
    """An agent that is told what to go over to, and the page that says so."""

    def __init__(self, file: Path) -> None:
        spec, found = load(file, components=Components())
        assert spec is not None, found
        self.spec, self.view = spec, self
        self.capacities: list[int] = []
        self.reloads: list[tuple[bool, str]] = []

    def reload(self, spec: Any) -> str:
        self.spec = spec
        self.capacities.append(spec.channel("c").config.capacity)
        return "channels c"

    def reloaded(self, *, ok: bool, told: str) -> None:
        self.reloads.append((ok, told))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "agent.conf"
    made.write_text(CONF)
    return made


def reloader_of(*words: str, monkeypatch: pytest.MonkeyPatch) -> Reloader:
    """The one with which `agent start` runs."""
    found: list[Reloader] = []

    def run(spec: Any, *, drain: bool, reloader: Reloader) -> int:
        found.append(reloader)
        return 0

    monkeypatch.setattr("flafka.agent.cli.start.run", run)
    shown = CliRunner().invoke(main, ["start", "-n", "a1", *words])
    assert shown.exit_code == 0, shown.output
    return found[0]


@pytest.mark.parametrize(
    ("words", "looks"),
    [(["-f"], True), (["--no-reload-conf", "-f"], False), (["-c"], False), (["--reload-conf", "-c"], True)],
)
def test_a_change_is_enough_in_flumes_spelling_and_where_asked(
    words: list[str], looks: bool, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr("flafka.agent.cli.reloading.time", SimpleNamespace(monotonic=lambda: now[0]))
    reloader, agent = reloader_of(*words, str(file), monkeypatch=monkeypatch), Told(file)
    told: Any = agent

    def look() -> None:
        """After half a minute, and what comes of it."""
        now[0] += 30
        reloader.look(told, asked=False)
        if reloader._thread is not None:
            reloader._thread.join(60)

    look()
    assert agent.reloads == []
    file.write_text(CONF.replace("500", "700"))
    now[0] -= 29
    look()
    assert agent.reloads == [], "it looks each half minute"
    now[0] += 29
    look()
    assert agent.capacities == ([700] if looks else [])
    look()
    assert len(agent.reloads) == looks, "what has not changed since is not read again"
    file.write_text(CONF.replace("500", "7x"))  # half written, or wrong
    look()
    file.unlink()  # an editor is about to put it there
    look()
    file.write_text(CONF.replace("500", "9000"))
    look()
    assert agent.capacities == ([700, 9000] if looks else [])
    assert [ok for ok, _ in agent.reloads] == ([True, False, False, True] if looks else [])
    assert all(
        "nothing was changed" in said or "no such file" in said.lower() for ok, said in agent.reloads if not ok
    )


def test_a_reload_that_is_asked_for_reads_what_has_not_changed_too(file: Path) -> None:
    from flafka.agent.cli.configured import Chosen

    reloader, agent = Reloader(Chosen(file, None, "normal", {}), looks=False), Told(file)
    told: Any = agent
    reloader.look(told, asked=True)
    until(lambda: agent.reloads, "the reload", 60)
    assert agent.reloads == [(True, "channels c")]
