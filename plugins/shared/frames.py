"""Events as Spark's DataFrames have them, and what a processor needs to read their bodies."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
import pyarrow as pa

from flafka.plugins.batch import Batch
from flafka.plugins.component import require

EVENTS = (
    "topic string, partition int, offset bigint, index int, timestamp timestamp, "
    "headers map<string,string>, body binary"
)
"""Columns of events, in Spark's words. The first four are the event's id; `timestamp` is when the channel took it."""


def json_body(schema: Any) -> Any:
    """A column: the body read as JSON of that schema (as `"user string, amount double"`).

    Its fields are null where the body has none of them, or none of that type, and all of them where it is no JSON.
    """
    functions = require("pyspark.sql.functions", "spark")
    return functions.from_json(functions.col("body").cast("string"), schema)


def avro_body(schema: str | dict[str, Any]) -> Any:
    """A column: the body read as one Avro datum of that schema (JSON, as text or read), null where it is none.

    Decoded event by event. Of a logical type that Spark has none for (a time of day, a uuid) it is what lies under
    it. ValueError for a schema with what Spark has no type for at all, as unions of several types.
    """
    fastavro, functions = require("fastavro", "spark"), require("pyspark.sql.functions", "spark")
    parsed = fastavro.parse_schema(_known(json.loads(schema) if isinstance(schema, str) else schema))
    kind = _spark_type(parsed)

    def decode(body: bytes | None) -> Any:
        if body is None:
            return None
        data = io.BytesIO(body)
        try:
            value = fastavro.schemaless_reader(data, parsed)
        except Exception:  # noqa: BLE001  # fastavro raises whatever the bytes lead it to
            return None
        return value if data.tell() == len(body) else None

    return functions.udf(decode, kind)(functions.col("body"))


def to_arrow(batch: Batch) -> Any:
    """A `pyarrow.RecordBatch` with the columns of `EVENTS`. Only for a batch that came from a channel."""
    origin = batch.origin
    assert origin is not None
    rows = len(batch)
    columns = {
        "topic": pa.array([origin.topic] * rows, pa.string()),
        "partition": pa.array(np.full(rows, origin.partition, np.int32)),
        "offset": pa.array(origin.offsets),
        "index": pa.array(origin.indexes),
        "timestamp": pa.array(origin.timestamps * 1000).cast(pa.timestamp("us", "UTC")),
        "headers": batch.header_maps(),
        "body": batch.bodies,
    }
    return pa.RecordBatch.from_arrays(list(columns.values()), list(columns))


_PRIMITIVES = {
    "boolean": "boolean",
    "int": "int",
    "long": "bigint",
    "float": "float",
    "double": "double",
    "bytes": "binary",
    "fixed": "binary",
    "string": "string",
    "enum": "string",
}
_LOGICAL = {
    "timestamp-millis": "timestamp",
    "timestamp-micros": "timestamp",
    "local-timestamp-millis": "timestamp_ntz",
    "local-timestamp-micros": "timestamp_ntz",
    "date": "date",
}


def _known(schema: Any) -> Any:
    """An Avro schema without the logical types that Spark has none for: their values would not fit its columns."""
    if isinstance(schema, list):
        return [_known(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    parts = ("type", "fields", "items", "values")
    return {
        name: _known(value) if name in parts else value
        for name, value in schema.items()
        if name != "logicalType" or value in _LOGICAL or value == "decimal"
    }


def _spark_type(schema: Any) -> str:
    """Spark's type for values of an Avro schema, as DDL."""
    if isinstance(schema, list):
        others = [branch for branch in schema if branch != "null"]
        if len(others) != 1:
            raise ValueError(f"Spark has no type for Avro's union {json.dumps(schema)}")
        return _spark_type(others[0])
    kind = schema["type"] if isinstance(schema, dict) else schema
    if isinstance(schema, dict):
        if (logical := schema.get("logicalType")) in _LOGICAL:
            return _LOGICAL[logical]
        if logical == "decimal":
            return f"decimal({schema['precision']},{schema.get('scale', 0)})"
        if kind == "record":
            fields = (f"`{field['name']}`: {_spark_type(field['type'])}" for field in schema["fields"])
            return f"struct<{', '.join(fields)}>"
        if kind == "array":
            return f"array<{_spark_type(schema['items'])}>"
        if kind == "map":
            return f"map<string, {_spark_type(schema['values'])}>"
        if isinstance(kind, dict | list):
            return _spark_type(kind)
    if kind not in _PRIMITIVES:
        raise ValueError(f"Spark has no type for Avro's {kind!r}; a record that holds itself has none either")
    return _PRIMITIVES[kind]
