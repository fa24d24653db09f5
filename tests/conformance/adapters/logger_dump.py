"""`logger_dump`: an event as the logger sink writes it."""

import base64
from typing import Any

from flafka.plugins import Event
from flafka.sinks.logger import format_event


def op_logger_dump(input: dict[str, Any]) -> Any:
    """Return the text after `Event: `."""
    body = base64.b64decode(input["body_b64"]) if "body_b64" in input else input["body"].encode()
    return {"text": format_event(Event(body, input.get("headers", {})), input.get("maxBytesToLog", 16))}
