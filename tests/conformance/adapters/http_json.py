"""`http_json`: events of the handler `json` for a request's body."""

from typing import Any

from flafka.sources.http.handlers import HandlerError, json


def op_json_handler(input: dict[str, Any]) -> Any:
    """Return the events, or the status of the answer."""
    charset = input.get("charset")
    java = {"utf-16": "utf-16", "utf-32": "utf-32-be"}.get((charset or "utf-8").lower(), charset or "utf-8")
    try:
        content = input["body"].encode(java)
    except LookupError:
        content = input["body"].encode()
    try:
        events = json(content, charset)
    except HandlerError as e:
        return {"status": e.status}
    return {"events": [{"headers": event.headers, "body": event.body.decode(java)} for event in events]}


def normalise(op: str, value: dict[str, Any]) -> Any:
    """Return Java's exceptions as the status of Flume's source."""
    if "error" in value:
        return {"status": 400 if value["error"] == "HTTPBadRequestException" else 500}
    return {name: value[name] for name in ("status", "events") if name in value}
