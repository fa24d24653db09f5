"""`selector`: the channels of each event."""

from __future__ import annotations

from typing import Any

from flafka.agent.config.diagnostics import DiagnosticCollector
from flafka.agent.config.parts import ComponentProperties
from flafka.agent.config.properties import Property
from flafka.agent.config.selectors import SelectorReader
from flafka.agent.runner.local.routing import Selector
from flafka.agent.topology import ConfigLocation
from flafka.plugins import Batch, Event


def op_selector(input: dict[str, Any]) -> Any:
    """Return the channels of each event."""
    location, report = ConfigLocation("case", 1), DiagnosticCollector("normal")
    part = ComponentProperties("source", "s", "a.sources.s", location, {})
    properties = {name: Property(f"a.sources.s.selector.{name}", v, location) for name, v in input["config"].items()}
    spec = SelectorReader(part, properties, tuple(input["channels"]), report).read()
    if report.has_errors:
        return {"error": [str(diagnostic) for diagnostic in report.diagnostics()]}
    selector = Selector(spec)
    routes = []
    for event in input["events"]:
        routed = selector.route(Batch.of([Event(b"", event["headers"])]))
        names: dict[bool, list[str]] = {True: [], False: []}
        for channel, _, required in routed:
            names[required].append(channel)
        routes.append({"required": names[True], "optional": names[False]})
    return {"routes": routes}


def normalise(op: str, value: Any) -> Any:
    """Return the value without the messages of errors and with sorted channels, as their order has no meaning."""
    if "error" in value:
        return {"error": True}
    return [
        {kind: sorted(names, key=str) for kind, names in route.items()}  # Flume's may hold a null
        for route in value["routes"]
    ]
