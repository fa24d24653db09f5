"""`logger_dump`: an event as the logger sink writes it."""

import base64
from typing import Any

from flafka.plugins import Event
from flafka.sinks.logger import dump


def op_logger_dump(input: dict[str, Any]) -> Any:
    """The text behind `Event: `."""
    body = base64.b64decode(input["body_b64"]) if "body_b64" in input else input["body"].encode()
    return {"text": dump(Event(body, input.get("headers", {})), input.get("maxBytesToLog", 16))}
