"""Agents read from a configuration's text, with the small components."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flafka.agent.config import Diagnostic, load
from flafka.agent.topology import AgentSpec
from tests.agent.config_sample import COMPONENTS


def read(text: str, tmp_path: Path, **more: Any) -> tuple[AgentSpec | None, list[Diagnostic]]:
    file = tmp_path / "agent.conf"
    file.write_text(text, "utf-8")
    return load(file, components=COMPONENTS, **({"environment": {}} | more))


def agent(text: str, tmp_path: Path, **more: Any) -> AgentSpec:
    spec, diagnostics = read(text, tmp_path, **more)
    assert spec is not None, [str(diagnostic) for diagnostic in diagnostics]
    return spec
