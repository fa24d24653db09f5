"""Suite `config`: properties text → the components of each agent that `agent check` finds nothing wrong with."""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from flafka.agent.config import load
from flafka.agent.config.diagnostics import Diagnostic, DiagnosticCollector
from flafka.agent.config.properties import LISTS, agent_names, last_wins, parse, split_names
from tests.conformance.adapters import cases, components


def op_config(input: dict[str, Any]) -> Any:
    text = input["properties"] if "properties" in input else (cases() / input["file"]).read_text("utf-8")
    return checked(text)


def checked(text: str) -> dict[str, Any]:
    """Return, for each agent, whether it starts, and by kind the listed components that `check` does not name."""
    report = DiagnosticCollector("normal")
    properties = last_wins(parse(text, "case", report), report)
    if report.has_errors:
        return {"error": "IllegalArgumentException"}
    agents: dict[str, Any] = {}
    for agent in filter(None, agent_names(properties)):
        with tempfile.NamedTemporaryFile("wb", suffix=".conf") as file:
            file.write(text.encode("utf-8", "surrogatepass"))
            file.flush()
            spec, diagnostics = load(file.name, agent, components=components(), environment={}, notes=True)
        options = {
            name.removeprefix(f"{agent}."): prop.value
            for name, prop in properties.items()
            if name.startswith(f"{agent}.")
        }
        lists = {
            kind: split_names(options[kind]) for kind in LISTS if options.get(kind) and "${" not in options[kind]
        }
        remaining = _remaining(agent, lists, options, named_in(diagnostics))
        agents[agent] = {"starts": spec is not None} | remaining
    return {"agents": agents}


def _remaining(
    agent: str, lists: Mapping[str, list[str]], options: Mapping[str, str], named: Collection[str]
) -> dict[str, list[str]]:
    """Return the listed components without the named ones, and without those that need named ones alone."""
    remaining = {
        kind: [name for name in names if not is_named(f"{agent}.{kind}.{name}", named)]
        for kind, names in lists.items()
        if f"{agent}.{kind}" not in named
    }
    for kind, needs, needed in (
        ("sources", "channels", "channels"),
        ("sinks", "channel", "channels"),
        ("sinkgroups", "sinks", "sinks"),
    ):
        available = {*remaining.get(needed, ())}
        remaining[kind] = [
            name
            for name in remaining.get(kind, ())
            if available & {*split_names(options.get(f"{kind}.{name}.{needs}", ""))}
        ]
    return remaining


def named_in(diagnostics: Iterable[Diagnostic]) -> set[str]:
    """Return the paths of what does not run here, does not run in Flume, or is joined to nothing."""
    without_effect = "(ignored)", "no source fills it and no sink drains it"
    return {
        diagnostic.component
        for diagnostic in diagnostics
        if diagnostic.severity == "error" or diagnostic.differs or diagnostic.message.endswith(without_effect)
    }


def is_named(path: str, named: Collection[str]) -> bool:
    """Return True if a component, or one of its parts, is among the named ones."""
    return any(name == path or name.startswith(f"{path}.") for name in named)


def agree(actual: Any, expected: Any) -> bool:
    """Return True if `check` names every component, and refuses every agent, that Flume leaves out in silence."""
    return not skipped(actual, expected)


def skipped(actual: Any, expected: Any) -> list[str]:
    """Return the agents and components that Flume leaves out, or fails on, and `check` does not name."""
    if "error" in actual:
        return []
    if "error" in expected:
        return [name for name, agent in actual["agents"].items() if agent["starts"]]
    missed: list[str] = []
    for name, agent in actual["agents"].items():
        in_flume = expected["agents"].get(name)
        if in_flume is None:
            missed += [name] * bool(agent["starts"] and agent["sources"] + agent["sinks"])
            continue
        for kind in LISTS:
            missed += [
                f"{name}.{kind}.{component}" for component in agent.get(kind, ()) if component not in in_flume[kind]
            ]
    return missed
