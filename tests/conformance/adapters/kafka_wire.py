"""`kafka_wire`: the value of a Kafka channel's record in `format = flume`, written and read."""

import base64
from typing import Any

from flafka.plugins import Batch, Event
from flafka.plugins.wire import flumeevent


def op_kafka_wire(input: dict[str, Any]) -> Any:
    """Return the value of one event; by columns, as the channel writes it."""
    (value,) = flumeevent.encode(Batch.of([_event(input)])).to_pylist()
    return {"value_hex": value.hex()}


def op_kafka_unwire(input: dict[str, Any]) -> Any:
    """Return the event of one value."""
    try:
        event = flumeevent.decode_event(bytes.fromhex(input["value_hex"]))
    except ValueError as e:
        return {"error": type(e).__name__, "message": str(e)}
    return {"headers": event.headers, "body": event.body}


def normalise(op: str, value: Any) -> Any:
    """Return the value with sorted maps and without the messages of errors."""
    if "error" in value:
        return {"error": True}
    if op == "kafka_unwire":
        event = _event(value)
        return event.headers, event.body
    if value["value_hex"][:2] in ("00", "02"):  # no header or one: only one encoding
        return value
    event = flumeevent.decode_event(bytes.fromhex(value["value_hex"]))
    return len(value["value_hex"]), event.headers, event.body


def _event(value: dict[str, Any]) -> Event:
    if "body_b64" in value:
        body = base64.b64decode(value["body_b64"])
    else:
        body = value["body"] if isinstance(value["body"], bytes) else value["body"].encode()
    return Event(body, value["headers"])
