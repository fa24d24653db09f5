"""`timestamp_round`: times rounded down on a zone's clock."""

from typing import Any

from flafka.sinks.bucketpath import parse_zone, round_down


def op_round_down(input: dict[str, Any]) -> Any:
    """Return the time rounded down."""
    try:
        local = parse_zone(input.get("timeZone") or input.get("tz", "UTC"))
        return {"millis": round_down(input["timestamp"], input["unit"], input["value"], local)}
    except ValueError as e:
        return {"error": type(e).__name__, "message": str(e)}


def normalise(op: str, value: Any) -> Any:
    """Return the value without the message of an error, which is Java's there and ours here."""
    return {"error": True} if "error" in value else value
