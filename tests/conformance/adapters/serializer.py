"""`serializer`: output of a serializer for events."""

import base64
import io
import json
from typing import Any

import fastavro

from flafka.plugins import Batch, Event
from flafka.sinks import serializers
from flafka.sinks.file_roll import FileRollConfig


def op_serializer(input: dict[str, Any]) -> Any:
    """Return the file's text, or the contents of an Avro file."""
    options = {f"sink.serializer.{name}": value for name, value in input["config"].items()}
    config, problems = FileRollConfig.parse({"sink.directory": ".", "sink.serializer": input["type"], **options})
    if config is None:
        return {"error": "ValueError", "message": str(problems)}
    serializer = serializers.make_serializer(config)
    batch = Batch.of(Event(_body(event), event.get("headers", {})) for event in input["events"])
    writer = serializer.writer("")
    data = bytes(writer.header) + (bytes(writer.add(serializer.records(batch))) if len(batch) else b"")
    data += bytes(writer.close())
    if not data.startswith(b"Obj\x01"):
        return {"output": data.decode()}
    file = fastavro.reader(io.BytesIO(data))
    records = [{"headers": record["headers"], "body": record["body"].decode()} for record in file]
    assert file.metadata is not None
    schema = json.loads(file.metadata["avro.schema"])
    return {"schema": schema, "codec": file.codec, "records": records, "magic_hex": data[:4].hex()}


def _body(event: dict[str, Any]) -> bytes:
    return base64.b64decode(event["body_b64"]) if "body_b64" in event else event["body"].encode()


def normalise(op: str, value: Any) -> Any:
    """Return the value with sorted headers, without Java's messages and without `supportsReopen`, which has no
    counterpart."""
    if "error" in value:
        return {"error": True}
    result = {name: part for name, part in value.items() if name != "supportsReopen"}
    if "output" in result:
        result["output"] = [_sorted(line) for line in result["output"].split("\n")]
    return result


def _sorted(line: str) -> Any:
    headers, end, body = line.partition("} ")
    return (sorted(headers.removeprefix("{").split(", ")), body) if end and line.startswith("{") else line
