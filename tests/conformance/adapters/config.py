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
    found: dict[str, Any] = {}
    for agent in filter(None, agent_names(properties)):
        with tempfile.NamedTemporaryFile("wb", suffix=".conf") as file:
            file.write(text.encode("utf-8", "surrogatepass"))
            file.flush()
            spec, diagnostics = load(file.name, agent, components=components(), environment={}, notes=True)
        own = {
            name.removeprefix(f"{agent}."): prop.value
            for name, prop in properties.items()
            if name.startswith(f"{agent}.")
        }
        lists = {kind: split_names(own[kind]) for kind in LISTS if own.get(kind) and "${" not in own[kind]}
        left = _remaining(agent, lists, own, named_in(diagnostics))
        found[agent] = {"starts": spec is not None} | left
    return {"agents": found}


def _remaining(
    agent: str, lists: Mapping[str, list[str]], own: Mapping[str, str], named: Collection[str]
) -> dict[str, list[str]]:
    """Return the listed components without the named ones, and without those that need named ones alone."""
    left = {
        kind: [name for name in names if not is_named(f"{agent}.{kind}.{name}", named)]
        for kind, names in lists.items()
        if f"{agent}.{kind}" not in named
    }
    for kind, needs, needed in (
        ("sources", "channels", "channels"),
        ("sinks", "channel", "channels"),
        ("sinkgroups", "sinks", "sinks"),
    ):
        there = {*left.get(needed, ())}
        left[kind] = [
            name for name in left.get(kind, ()) if there & {*split_names(own.get(f"{kind}.{name}.{needs}", ""))}
        ]
    return left


def named_in(diagnostics: Iterable[Diagnostic]) -> set[str]:
    """Return the paths of what does not run here, does not run in Flume, or is joined to nothing."""
    without_effect = "(ignored)", "no source fills it and no sink drains it"
    return {
        one.component
        for one in diagnostics
        if one.severity == "error" or one.differs or one.message.endswith(without_effect)
    }


def is_named(path: str, named: Collection[str]) -> bool:
    """Return True if a component, or one of its parts, is among the named ones."""
    return any(one == path or one.startswith(f"{path}.") for one in named)


def agree(got: Any, expected: Any) -> bool:
    """Return True if `check` names every component, and refuses every agent, that Flume leaves out in silence."""
    return not skipped(got, expected)


def skipped(got: Any, expected: Any) -> list[str]:
    """Return the agents and components that Flume leaves out, or fails on, and `check` does not name."""
    if "error" in got:
        return []
    if "error" in expected:
        return [name for name, agent in got["agents"].items() if agent["starts"]]
    found: list[str] = []
    for name, agent in got["agents"].items():
        kept = expected["agents"].get(name)
        if kept is None:
            found += [name] * bool(agent["starts"] and agent["sources"] + agent["sinks"])
            continue
        for kind in LISTS:
            found += [f"{name}.{kind}.{one}" for one in agent.get(kind, ()) if one not in kept[kind]]
    return found
