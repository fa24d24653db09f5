"""`bucket_path`: the path escapes of the HDFS and Kafka sinks."""

from typing import Any

from flafka.sinks.bucketpath import BucketPath


def op_bucket_path(input: dict[str, Any]) -> Any:
    """Return the pattern resolved for one event's headers."""
    clock = input.get("clock", 0)
    try:
        path = BucketPath(
            input["pattern"],
            time_zone=input.get("timeZone") or input.get("tz", "UTC"),
            rounding=(input.get("roundUnit", "second"), input.get("roundValue", 1)) if input.get("round") else None,
            local_time=input.get("useLocalTimeStamp", False),
            now=lambda: clock / 1000,
        )
        return {"path": path.resolve(input["headers"])}
    except ValueError as e:
        return {"error": type(e).__name__, "message": str(e)}


def normalise(op: str, value: Any) -> Any:
    """Return the value without the message of an error, which is Java's there and ours here."""
    return {"error": True} if "error" in value else value
