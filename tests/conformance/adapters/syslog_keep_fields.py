"""`syslog_keep_fields`: what `keepFields` names."""

from typing import Any

from flafka.sources.syslog import Reading


def op_keep_fields(input: dict[str, Any]) -> Any:
    """The fields that stay in the body."""
    try:
        reading = Reading.of(input["keepFields"])
    except ValueError as e:
        return {"error": str(e)}
    return {"fields": ["--all--"] if reading.keep_all else sorted(reading.keep)}


def normalise(op: str, value: Any) -> Any:
    """Whether Flume has no set or an empty one: nothing is kept either way."""
    return value if "error" in value else sorted(value["fields"] or [])
