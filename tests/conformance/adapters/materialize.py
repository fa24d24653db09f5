"""`materialize`: what is made of a configuration, read as leniently as Flume does."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from agent.config import catalogue, load
from agent.topology import AgentSpec, ComponentSpec
from tests.conformance.adapters import components


def op_materialize(input: dict[str, Any]) -> Any:
    """The components that would run, by the simple name of Flume's class."""
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as file:
        file.write(input["properties"])
        file.flush()
        spec, found = load(
            Path(file.name), input.get("agent", "a1"), components=components(), mode="lenient", environment={}
        )
    for diagnostic in found:
        if missing := re.search(r"Flume's .*? (?:is|are) not built yet", diagnostic.message):
            pytest.skip(missing[0])
    if spec is None:
        return {"error": [str(diagnostic) for diagnostic in found]}
    return {
        "sourceRunners": _simple_names(spec.sources),
        "channels": _simple_names(spec.channels),
        "sinkRunners": _sink_runners(spec),
    }


def _sink_runners(spec: AgentSpec) -> dict[str, str]:
    """A group counts as one; so does a sink that is in none."""
    grouped = {name for group in spec.groups for name in group.sinks}
    processors = {known.alias: known.java.rpartition(".")[2] for known in catalogue.FLUME["sink processor"]}
    alone = {sink.name: processors["default"] for sink in spec.sinks if sink.name not in grouped}
    return alone | {group.name: processors[group.processor.kind] for group in spec.groups}


def _simple_names(specs: Iterable[ComponentSpec]) -> dict[str, str]:
    return {
        spec.name: next(name.rpartition(".")[2] for name in spec.cls.aliases if "." in name and "$" not in name)
        for spec in specs
    }


def normalise(op: str, value: Any) -> Any:
    """Flume runs an agent of nothing, or ends without saying so; here both are errors, and nothing runs as well."""
    return value if any(value.get(kind) for kind in ("sourceRunners", "channels", "sinkRunners")) else "nothing"
