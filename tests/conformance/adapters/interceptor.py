"""`interceptor`: events through one interceptor, or through several in order."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from typing import Any

from flafka.plugins import Batch, Event, Origin, UnknownType
from tests.conformance.adapters import components


def op_interceptor(input: dict[str, Any]) -> Any:
    """Return the result for each event."""
    return _through([input], input["events"])


def op_interceptor_chain(input: dict[str, Any]) -> Any:
    """Return the result of several interceptors: a list of them, or properties as in a file."""
    chain = input.get("interceptors") or input.get("chain") or input["config"]
    return _through(chain if isinstance(chain, list) else _listed(chain), input["events"])


def _listed(properties: dict[str, str]) -> list[dict[str, Any]]:
    chain = []
    for name in properties["interceptors"].split():
        prefix = f"interceptors.{name}."
        config = {key.removeprefix(prefix): value for key, value in properties.items() if key.startswith(prefix)}
        chain.append({"type": config.pop("type"), "config": config})
    return chain


def _through(chain: Iterable[dict[str, Any]], events: list[dict[str, Any]]) -> Any:
    batch = Batch.of(map(_event, events), Origin.of_record("t", 0, 0, 0, len(events)))
    for link in chain:
        try:
            cls = components().get("interceptor", link["type"])
        except UnknownType as e:
            return {"error": str(e)}
        config, problems = cls.config_class.parse(link.get("config", {}))
        if config is None:
            return {"error": str(problems)}
        interceptor: Any = cls(config)
        interceptor.open()
        batch = interceptor.intercept(batch)
        interceptor.close()
    remaining = dict(zip((id.index for id in batch.ids()), batch, strict=True))
    return {"events": [_as_json(remaining.get(row), before) for row, before in enumerate(events)]}


def _event(event: dict[str, Any]) -> Event:
    body = base64.b64decode(event["body_b64"]) if "body_b64" in event else event["body"].encode()
    return Event(body, event.get("headers") or {})


def _as_json(event: Event | None, before: dict[str, Any]) -> dict[str, Any] | None:
    if event is None:
        return None
    if "body_b64" in before:
        return {"headers": event.headers, "body_b64": base64.b64encode(event.body).decode()}
    return {"headers": event.headers, "body": event.body.decode("utf-8", "replace")}


def normalise(op: str, value: Any) -> Any:
    """Return the value without the messages of errors and without headers that are null for Flume."""
    if "error" in value:
        return {"error": True}
    for event in filter(None, value["events"]):
        event["headers"] = {name: text for name, text in (event["headers"] or {}).items() if text is not None}
    return value
