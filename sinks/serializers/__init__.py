"""How sinks that write files turn events into bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

from flafka.plugins import Problem
from flafka.plugins.problems import suggestion
from flafka.plugins.shared.javaclass import cannot_run, is_java_class
from flafka.sinks.serializers.avro import CODECS as AVRO_CODECS
from flafka.sinks.serializers.avro import AvroBody, AvroEvent, Fetch, fetch
from flafka.sinks.serializers.base import Blocks, Buffer, FileWriter, Serialized, Serializer
from flafka.sinks.serializers.parquet import CODECS as PARQUET_CODECS
from flafka.sinks.serializers.parquet import FIELDS, TYPES, Parquet
from flafka.sinks.serializers.text import HeaderAndText, Json, Text

__all__ = [
    "Blocks",
    "Buffer",
    "FileWriter",
    "Serialized",
    "Serializer",
    "canonical",
    "canonical_codec",
    "cautions",
    "check_codec",
    "checked_columns",
    "fetch",
    "make",
]

NAMES = {
    "TEXT": "org.apache.flume.serialization.BodyTextEventSerializer",
    "HEADER_AND_TEXT": "org.apache.flume.serialization.HeaderAndBodyTextEventSerializer",
    "AVRO_EVENT": "org.apache.flume.serialization.FlumeEventAvroEventSerializer",
    "AVRO_BODY": "org.apache.flume.sink.hdfs.AvroEventSerializer",
    "JSON": "",
    "PARQUET": "",
}
"""The serializers, each with the name of Flume's class, where it is Flume's."""

APPLIES = {
    "append_newline": {"TEXT", "HEADER_AND_TEXT"},
    "compression_codec": {"AVRO_EVENT", "AVRO_BODY", "PARQUET"},
    "sync_interval": {"AVRO_EVENT", "AVRO_BODY"},
    "schema_url": {"AVRO_BODY"},
    "trusted_schema_urls": {"AVRO_BODY"},
}
"""Options of serializers, and whose they are."""


class Options(Protocol):
    """What the configuration of a sink with serializers holds."""

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


def canonical(name: str) -> str:
    """For a validator: our name of a serializer, or ValueError where there is none of that name."""
    written = name.removesuffix("$Builder")
    for known, flume in NAMES.items():
        if written.upper() == known or (flume and written.lower() == flume.lower()):
            return known
    if is_java_class(name):
        raise ValueError(cannot_run("serializer", name))
    near = suggestion(name, list(NAMES)) or f"; built are: {', '.join(NAMES)}"
    raise ValueError(f"there is no serializer {name!r}{near}")


def canonical_codec(name: str | None) -> str | None:
    """For a validator: a compression within files as it is called here, or the name as it is."""
    return name and {"zstd": "zstandard", "bz2": "bzip2", "none": "null"}.get(name.lower(), name.lower())


def check_codec(options: Options) -> None:
    """ValueError where the serializer does not have that compression."""
    name, codec = options.serializer, options.compression_codec
    known = PARQUET_CODECS if name == "PARQUET" else AVRO_CODECS
    if codec is not None and name in APPLIES["compression_codec"] and codec not in known:
        raise ValueError(f"must be one of {', '.join(known)} for {name}, not {codec!r}")


def checked_columns(columns: dict[str, str]) -> dict[str, str]:
    """For a validator of `make`'s columns: the same. ValueError about the first that cannot be."""
    for header, kind in columns.items():
        if kind not in TYPES:
            raise ValueError(f"{header}: must be one of {', '.join(TYPES)}, not {kind!r}")
        if header in {field.name for field in FIELDS}:
            raise ValueError(f"{header}: is a column of every file: give the header another name")
    return columns


def make(options: Options, fetch: Fetch = fetch, columns: Mapping[str, str] | None = None) -> Serializer:
    """The serializer that a configuration asks for; `fetch` gets schemas, `columns` are Parquet's, of headers."""
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


def warnings(options: Options, given: set[str], names: dict[str, str]) -> Iterator[Problem]:
    """What was given and has no effect with the serializer. `names` are the options as they are written."""
    for field, owners in APPLIES.items():
        if field in given and options.serializer not in owners:
            message = f"has no effect with serializer {options.serializer}, as in Flume"
            yield Problem(names[field], message, note=True)
