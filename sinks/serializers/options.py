"""Options of serializers, for the configurations of sinks. `prefix` precedes the options' names."""

from __future__ import annotations

from typing import Any

from flafka.plugins import option


def serializer(prefix: str = "", more: str = "") -> Any:
    """Return the option `serializer`; `prefix` is that of the sink's options, `more` ends the description."""
    return option(
        "TEXT",
        name=f"{prefix}serializer",
        description="Format of the file. `TEXT`: bodies. `HEADER_AND_TEXT`: the headers in braces before each body. "
        "`AVRO_EVENT`: Flume's events in Avro. `AVRO_BODY` (Flume's "
        "`org.apache.flume.sink.hdfs.AvroEventSerializer$Builder`): bodies that are Avro already. `JSON`: an object "
        f"in each line.{more}",
    )


def append_newline(prefix: str = "") -> Any:
    """Return the option `serializer.appendNewline`."""
    return option(True, name=f"{prefix}serializer.appendNewline", description="Write a newline after each body.")


def compression_codec(prefix: str = "", more: str = "") -> Any:
    """Return the option `serializer.compressionCodec`; `more` describes values that only this sink has."""
    return option(
        None,
        name=f"{prefix}serializer.compressionCodec",
        description="Compression within Avro: null (if unset), deflate, snappy, bzip2, xz or zstandard." + more,
    )


def sync_interval(prefix: str = "") -> Any:
    """Return the option `serializer.syncIntervalBytes`."""
    return option(
        2_048_000,
        name=f"{prefix}serializer.syncIntervalBytes",
        unit="bytes",
        ge=32,
        le=1 << 30,
        description="Size of a block in an Avro file. A flush ends a block early.",
    )


def schema_url(prefix: str = "", places: str = "`http://…` or a local file") -> Any:
    """Return the option `serializer.schemaURL`."""
    return option(
        None,
        name=f"{prefix}serializer.schemaURL",
        must_exist=True,
        path="flume",
        description=f"With `AVRO_BODY`: schema of events whose headers name none, {places}.",
    )


def trusted_schema_urls(prefix: str = "") -> Any:
    """Return the option `serializer.trustedSchemaURLs`."""
    return option(
        [],
        name=f"{prefix}serializer.trustedSchemaURLs",
        description="With `AVRO_BODY`: allowed prefixes of the schema URLs that events name in the header "
        "`flume.avro.schema.url`. No other URL is fetched.",
    )
