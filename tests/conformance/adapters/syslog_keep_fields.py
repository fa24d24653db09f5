"""`syslog_keep_fields`: fields that `keepFields` names."""

from typing import Any

from flafka.sources.syslog import ParserOptions


def op_keep_fields(input: dict[str, Any]) -> Any:
    """Return the fields that stay in the body."""
    try:
        options = ParserOptions.from_keep_fields(input["keepFields"])
    except ValueError as e:
        return {"error": str(e)}
    return {"fields": ["--all--"] if options.keep_all else sorted(options.keep)}


def normalise(op: str, value: Any) -> Any:
    """Return the value; None and an empty set of Flume's are the same."""
    return value if "error" in value else sorted(value["fields"] or [])
