"""`metrics`: the answer of `GET /metrics`."""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from typing import Any

import pytest

from flafka.agent.config import catalogue
from flafka.agent.graph import Graph
from flafka.agent.monitoring.registry import Registry
from flafka.agent.monitoring.server import MetricsServer
from flafka.agent.monitoring.view import View
from flafka.plugins import Component, Metrics, UnknownType
from tests.conformance.adapters import components


def op_metrics(input: dict[str, Any]) -> Any:
    """Return the names that a component shows, or the answer to a request."""
    if "path" in input:
        return _answer(input["method"], input["path"])
    if "type" in input:
        kind = input["component"]
        return _counters(kind, _class(kind, input["type"]))
    if counter := re.match(r"(\w+)Counter \((\w+)\)", input["component"]):
        types = catalogue.FLUME_TYPES[counter[2].lower()]
        java = next(flume_type.java for flume_type in types if flume_type.java.endswith(f".{counter[1]}"))
        return {"counters_besides_the_base_class": _at_zero(_class(counter[2], java))}
    return {"no_entry_for": []}  # the agent registers every component that it runs


def _at_zero(cls: type[Component[Any]]) -> list[str]:
    return [metric.name for metric in cls.declared_metrics if metric.shown == "always"]


def _class(kind: str, type_name: str) -> type[Component[Any]]:
    try:
        return components().get(kind.lower(), type_name)
    except UnknownType:
        pytest.skip(f"the {kind.lower()} {type_name} is not supported")


def _counters(kind: str, cls: type[Component[Any]]) -> Any:
    registry = Registry("a1")
    registry.add(kind, "<name>", Metrics(), cls.declared_metrics)
    ((key, values),) = registry.flume().items()
    kinds = {type(value) for value in values.values()}
    return {"key": key, "counters": sorted(values), "values": "all JSON strings" if kinds == {str} else str(kinds)}


def _answer(method: str, path: str) -> Any:
    registry = Registry("a1")
    page = View(Graph("a1", "agent.conf", (), (), ()), registry)
    server = MetricsServer(registry, "127.0.0.1", 0, page)
    server.start()
    try:
        with urllib.request.urlopen(
            urllib.request.Request(f"http://127.0.0.1:{server.port}{path}", method=method), timeout=10
        ) as answer:
            return {"status": answer.status, "content_type": answer.headers["content-type"]}
    except urllib.error.HTTPError as e:
        return {"status": e.code, "content_type": None}
    finally:
        server.stop()


def normalise(op: str, value: Any) -> Any:
    """Return the value without the web server's page of an error, and without blanks in content types."""
    if value.get("status", 0) >= 400:
        return value["status"]
    if "content_type" in value:
        return value["status"], value["content_type"].replace(" ", "").lower()
    return value
