"""Events as a Spark DataFrame, and columns that parse their bodies, for processors."""

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
"""Schema of events as Spark DDL. The first four columns are the event's id; `timestamp` is that of the put."""


def json_body(schema: Any) -> Any:
    """Return a column: the body parsed as JSON of a schema such as `"user string, amount double"`.

    A field that the body lacks, or has with another type, is null. All fields are null if the body is not JSON.
    """
    functions = require("pyspark.sql.functions", "spark")
    return functions.from_json(functions.col("body").cast("string"), schema)


def avro_body(schema: str | dict[str, Any]) -> Any:
    """Return a column: the body decoded as one Avro datum, null if it is not exactly one.

    `schema` is JSON, as text or parsed. Events are decoded one by one. A logical type without a Spark type (time of
    day, uuid) becomes its underlying type. Raises ValueError for a schema without a Spark type, such as a union of
    several types.
    """
    fastavro, functions = require("fastavro", "spark"), require("pyspark.sql.functions", "spark")
    document = json.loads(schema) if isinstance(schema, str) else schema
    parsed = fastavro.parse_schema(_without_unsupported_logical_types(document))
    kind = _spark_type(parsed)

    def decode(body: bytes | None) -> Any:
        if body is None:
            return None
        data = io.BytesIO(body)
        try:
            value = fastavro.schemaless_reader(data, parsed)
        except Exception:  # noqa: BLE001  # fastavro raises many types for malformed bytes
            return None
        return value if data.tell() == len(body) else None

    return functions.udf(decode, kind)(functions.col("body"))


def to_arrow(batch: Batch) -> Any:
    """Return the events as a `pyarrow.RecordBatch` with the columns of `EVENTS`.

    The batch must come from a channel.
    """
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


def _without_unsupported_logical_types(schema: Any) -> Any:
    """Return an Avro schema without logical types that Spark lacks: their values would not fit its columns."""
    if isinstance(schema, list):
        return [_without_unsupported_logical_types(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    parts = ("type", "fields", "items", "values")
    return {
        name: _without_unsupported_logical_types(value) if name in parts else value
        for name, value in schema.items()
        if name != "logicalType" or value in _LOGICAL or value == "decimal"
    }


def _spark_type(schema: Any) -> str:
    """Return Spark's type of an Avro schema, as DDL. Raises ValueError if there is none."""
    if isinstance(schema, list):
        branches = [branch for branch in schema if branch != "null"]
        if len(branches) != 1:
            raise ValueError(f"Spark has no type for Avro's union {json.dumps(schema)}")
        return _spark_type(branches[0])
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
