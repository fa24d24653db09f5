"""Serializers of sinks that write files, and checks of their options."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

from flafka.plugins import Problem
from flafka.plugins.java.classes import is_java_class, java_class_error
from flafka.plugins.problems import suggest
from flafka.sinks.serializers.avro import CODECS as AVRO_CODECS
from flafka.sinks.serializers.avro import AvroBody, AvroEvent, FetchSchema, fetch_schema
from flafka.sinks.serializers.base import BlockWriter, Buffer, FileWriter, Serialized, Serializer
from flafka.sinks.serializers.parquet import CODECS as PARQUET_CODECS
from flafka.sinks.serializers.parquet import FIELDS, TYPES, Parquet
from flafka.sinks.serializers.text import HeaderAndText, Json, Text

__all__ = [
    "BlockWriter",
    "Buffer",
    "FileWriter",
    "Serialized",
    "Serializer",
    "canonical_codec",
    "canonical_serializer",
    "check_codec",
    "checked_columns",
    "fetch_schema",
    "make_serializer",
    "option_warnings",
]

FLUME_CLASSES = {
    "TEXT": "org.apache.flume.serialization.BodyTextEventSerializer",
    "HEADER_AND_TEXT": "org.apache.flume.serialization.HeaderAndBodyTextEventSerializer",
    "AVRO_EVENT": "org.apache.flume.serialization.FlumeEventAvroEventSerializer",
    "AVRO_BODY": "org.apache.flume.sink.hdfs.AvroEventSerializer",
    "JSON": "",
    "PARQUET": "",
}
"""Flume's class of each serializer; empty if Flume has none."""

SERIALIZERS_BY_OPTION = {
    "append_newline": {"TEXT", "HEADER_AND_TEXT"},
    "compression_codec": {"AVRO_EVENT", "AVRO_BODY", "PARQUET"},
    "sync_interval": {"AVRO_EVENT", "AVRO_BODY"},
    "schema_url": {"AVRO_BODY"},
    "trusted_schema_urls": {"AVRO_BODY"},
}
"""Serializers for which an option has an effect, by its field."""


class SerializerOptions(Protocol):
    """Options of serializers in the configuration of a sink."""

    @property
    def serializer(self) -> str: ...
    @property
    def append_newline(self) -> bool: ...
    @property
    def compression_codec(self) -> str | None: ...
    @property
    def sync_interval(self) -> int: ...
    @property
    def schema_url(self) -> str | None: ...
    @property
    def trusted_schema_urls(self) -> list[str]: ...


def canonical_serializer(name: str) -> str:
    """Return the name in `FLUME_CLASSES` of a serializer or of Flume's class.

    Raises ValueError for an unknown one.
    """
    written = name.removesuffix("$Builder")
    for known, flume in FLUME_CLASSES.items():
        if written.upper() == known or (flume and written.lower() == flume.lower()):
            return known
    if is_java_class(name):
        raise ValueError(java_class_error("serializer", name))
    hint = suggest(name, list(FLUME_CLASSES)) or f"; built are: {', '.join(FLUME_CLASSES)}"
    raise ValueError(f"there is no serializer {name!r}{hint}")


def canonical_codec(name: str | None) -> str | None:
    """Return the name of a compression in `CODECS` of Avro and Parquet; an unknown name stays as it is."""
    return name and {"zstd": "zstandard", "bz2": "bzip2", "none": "null"}.get(name.lower(), name.lower())


def check_codec(options: SerializerOptions) -> None:
    """Raise ValueError if the serializer does not have the configured compression."""
    name, codec = options.serializer, options.compression_codec
    known = PARQUET_CODECS if name == "PARQUET" else AVRO_CODECS
    if codec is not None and name in SERIALIZERS_BY_OPTION["compression_codec"] and codec not in known:
        raise ValueError(f"must be one of {', '.join(known)} for {name}, not {codec!r}")


def checked_columns(columns: dict[str, str]) -> dict[str, str]:
    """Return the columns, types by header, unchanged. Raises ValueError for a wrong type or a reserved name."""
    for header, kind in columns.items():
        if kind not in TYPES:
            raise ValueError(f"{header}: must be one of {', '.join(TYPES)}, not {kind!r}")
        if header in {field.name for field in FIELDS}:
            raise ValueError(f"{header}: is a column of every file: give the header another name")
    return columns


def make_serializer(
    options: SerializerOptions, fetch: FetchSchema = fetch_schema, columns: Mapping[str, str] | None = None
) -> Serializer:
    """Return the configured serializer.

    `fetch` downloads schemas for AVRO_BODY. `columns` are types of headers, for PARQUET.
    """
    codec = options.compression_codec
    match options.serializer:
        case "TEXT":
            return Text(options.append_newline)
        case "HEADER_AND_TEXT":
            return HeaderAndText(options.append_newline)
        case "JSON":
            return Json()
        case "PARQUET":
            return Parquet(codec or "snappy", columns)
        case "AVRO_EVENT":
            return AvroEvent(codec or "null", options.sync_interval)
    return AvroBody(codec or "null", options.sync_interval, options.schema_url, options.trusted_schema_urls, fetch)


def option_warnings(options: SerializerOptions, given: set[str], names: dict[str, str]) -> Iterator[Problem]:
    """Yield a note for each given field without effect on the configured serializer.

    `given` are the fields that the user has set, and `names` the options by field.
    """
    for field, applicable in SERIALIZERS_BY_OPTION.items():
        if field in given and options.serializer not in applicable:
            message = f"has no effect with serializer {options.serializer}, as in Flume"
            yield Problem(names[field], message, is_note=True)
