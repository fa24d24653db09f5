"""Suite `substitution`: files with `${…}` → the properties of each component, resolved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flafka.agent.config.diagnostics import DiagnosticCollector
from flafka.agent.config.filters import config_filters
from flafka.agent.config.properties import last_wins, parse
from flafka.agent.config.substitution import Resolver


def op_resolve(input: dict[str, Any]) -> Any:
    report, environment = DiagnosticCollector("normal"), input.get("env", {})
    lines = [prop for n, text in enumerate(input["files"]) for prop in parse(text, f"file{n}", report)]
    properties = last_wins(lines, report)
    agents = {name.partition(".")[0] for name in properties if name.endswith((".sources", ".channels", ".sinks"))}
    contexts: dict[str, dict[str, str]] = {}
    for agent in agents:
        agent_properties = {
            n.removeprefix(f"{agent}."): prop for n, prop in properties.items() if n.startswith(f"{agent}.")
        }
        resolver = Resolver(
            properties,
            report,
            directory=Path.cwd(),
            system=input.get("sysprops", {}),
            environment=environment,
            filters=config_filters(agent, agent_properties, environment, report),
        )
        for key, prop in agent_properties.items():
            kind, _, subkey = key.partition(".")
            name, dot, option = subkey.partition(".")
            if dot and kind in ("sources", "channels", "sinks"):
                contexts.setdefault(f"{kind}.{name}", {})[option] = resolver.resolve(prop.name).value
    return {"contexts": contexts}


def normalise(op: str, value: Any) -> Any:
    """Return the value without logger sinks: Flume keeps an object for them, which the cases do not show."""
    return {name: options for name, options in value["contexts"].items() if options.get("type") != "logger"}
