"""Suite `config`: properties text → what survives Flume's checks, and its error list."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from agent.config.diagnostics import Report
from agent.config.flume import validate
from agent.config.properties import last_wins, parse
from tests.conformance.adapters import cases


def op_config(input: dict[str, Any]) -> Any:
    text = input["properties"] if "properties" in input else (cases() / input["file"]).read_text("utf-8")
    report = Report("normal")
    properties = last_wins(parse(text, "case", report), report)
    if report.failed:
        return {"error": "IllegalArgumentException"}
    try:
        agents, findings = validate({name: prop.value for name, prop in properties.items()})
    except ValueError:
        return {"error": "NullPointerException"}
    survivors = {name: asdict(agent) if agent else None for name, agent in agents.items()}
    return {"agents": survivors, "errors": [*map(str, findings)]}


def normalise(op: str, value: Any) -> Any:
    """Names and errors come in the order of Java's hash sets: order free."""
    if "error" in value:
        return value["error"]
    agents = {
        name: agent and {kind: sorted(names) for kind, names in agent.items()}
        for name, agent in value["agents"].items()
    }
    return agents, sorted(value["errors"])
