"""`materialize`: components of a configuration, without those that `agent check` names."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from flafka.agent.config import catalogue
from flafka.agent.config.diagnostics import DiagnosticCollector
from flafka.agent.config.load import load_partially
from flafka.agent.config.properties import last_wins, parse, split_names
from flafka.agent.topology import AgentSpec, ComponentSpec
from tests.conformance.adapters import components
from tests.conformance.adapters.config import is_named, named_in


def op_materialize(input: dict[str, Any]) -> Any:
    """Return the components without an error, by the simple name of Flume's class."""
    agent, text = input.get("agent", "a1"), input["properties"]
    report = DiagnosticCollector("normal")
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as file:
        file.write(text)
        file.flush()
        spec = load_partially(Path(file.name), agent, report, components=components(), environment={})
    diagnostics = report.diagnostics(notes=True)
    for diagnostic in diagnostics:
        if missing := re.search(r"Flume's .*? is not supported", diagnostic.message):
            pytest.skip(missing[0])
    if spec is None:
        return {"error": [str(diagnostic) for diagnostic in diagnostics]}
    named = named_in(diagnostics)
    properties = last_wins(parse(text, "case", report), report)
    for path in [path for path in named if path.startswith(f"{agent}.sinkgroups.")]:  # with all its sinks
        named |= {f"{agent}.sinks.{name}" for name in split_names(properties[f"{path}.sinks"].value)}
    return {
        "starts": not report.has_errors,
        "sourceRunners": _simple_names(source for source in spec.sources if not is_named(source.path, named)),
        "channels": _simple_names(channel for channel in spec.channels if not is_named(channel.path, named)),
        "sinkRunners": {
            name: processor
            for name, processor in _sink_runners(spec).items()
            if not is_named(f"{agent}.sinks.{name}", named) and not is_named(f"{agent}.sinkgroups.{name}", named)
        },
    }


def _sink_runners(spec: AgentSpec) -> dict[str, str]:
    """Return the number of sink runners: a group counts as one, and so does a sink outside of groups."""
    grouped = {name for group in spec.groups for name in group.sinks}
    processors = {
        flume_type.alias: flume_type.java.rpartition(".")[2] for flume_type in catalogue.FLUME_TYPES["sink processor"]
    }
    alone = {sink.name: processors["default"] for sink in spec.sinks if sink.name not in grouped}
    return alone | {group.name: processors[group.processor.kind] for group in spec.groups}


def _simple_names(specs: Iterable[ComponentSpec]) -> dict[str, str]:
    return {
        spec.name: next(name.rpartition(".")[2] for name in spec.cls.aliases if "." in name and "$" not in name)
        for spec in specs
    }


RUNNERS = ("sourceRunners", "channels", "sinkRunners")


def agree(actual: Any, expected: Any) -> bool:
    """Return True if what `check` does not name is what Flume runs; Flume starts nothing if a type is unknown."""
    remaining = {kind: actual.get(kind) or {} for kind in RUNNERS}
    runs = {kind: expected.get(kind) or {} for kind in RUNNERS}
    return remaining == runs or (not any(runs.values()) and not actual.get("starts"))
