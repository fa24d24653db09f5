"""Options of the source `spooldir`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Literal

import pydantic

from flafka.plugins import Config, Problem, cross_field_validator, option
from flafka.plugins.java.charsets import text_codec
from flafka.plugins.java.classes import is_java_class, java_class_error
from flafka.plugins.options import ANY_CASE
from flafka.plugins.problems import suggest
from flafka.sources.filenames import compile_name_pattern, glob_directory_warning, glob_pattern_warning

DESERIALIZERS = {
    "LINE": "org.apache.flume.serialization.LineDeserializer",
    "AVRO": "org.apache.flume.serialization.AvroEventDeserializer",
    "BLOB": "org.apache.flume.sink.solr.morphline.BlobDeserializer",
}
"""Flume's class of each deserializer."""
_DESERIALIZER_OF = {
    "max_line_length": "LINE",
    "output_charset": "LINE",
    "buffer_max_line_length": "LINE",
    "input_charset": "LINE",
    "decode_error_policy": "LINE",
    "schema_type": "AVRO",
    "max_blob_length": "BLOB",
}
"""Deserializer to which each option belongs."""


class SpooldirConfig(Config):
    """Options of the source `spooldir`."""

    options_without_effect = MappingProxyType(
        {
            "maxBackoff": "the source waits for a full channel, and continues as soon as there is room",
            "bufferMaxLines": "Flume ignores this option, too",
        }
    )

    spool_dir: str = option(
        name="spoolDir",
        path="flume",
        description="Directory to read files from. Files must not change once they are there.",
        min_length=1,
    )
    file_suffix: str = option(
        ".COMPLETED",
        name="fileSuffix",
        description="Suffix that a file gets when it has been read. Files with this suffix are not read.",
        min_length=1,
        pattern="^[^/]*$",
    )
    delete_policy: Annotated[Literal["never", "immediate"], ANY_CASE] = option(
        "never", name="deletePolicy", description="`immediate`: delete files that have been read."
    )
    tracking_policy: Annotated[Literal["rename", "tracker_dir"], ANY_CASE] = option(
        "rename",
        name="trackingPolicy",
        description="Marking of files that have been read. `rename`: add `fileSuffix`. `tracker_dir`: create an "
        "empty file in `trackerDir`; the file that was read is unchanged.",
    )
    tracker_dir: str = option(
        ".flumespool",
        name="trackerDir",
        description="Directory with the offset in the present file, in Flume's format, and a list of the skipped "
        "files. A relative path begins at `spoolDir`. Each source needs a separate directory.",
        min_length=1,
    )
    include_pattern: str = option(
        "^.*$",
        name="includePattern",
        description="Regular expression that must match the whole name of a file for it to be read.",
    )
    ignore_pattern: str = option(
        "^$",
        name="ignorePattern",
        description="Regular expression: a file whose whole name matches it is not read, and a directory is not "
        "searched. Takes precedence over `includePattern`.",
    )
    consume_order: Annotated[Literal["oldest", "youngest", "random"], ANY_CASE] = option(
        "oldest",
        name="consumeOrder",
        description="Order of files, by modification time and then by name. `random`: the order in which the system "
        "lists them.",
    )
    poll_delay: int = option(
        500, name="pollDelay", description="Time between two scans for new files.", unit="ms", ge=0
    )
    recursive: bool = option(
        False,
        name="recursiveDirectorySearch",
        description="Read files in sub-directories, too, but not in those whose names begin with a dot.",
    )
    batch_size: int = option(
        10_000,
        name="batchSize",
        description="Maximum number of events in a batch. A batch also ends at 512 KiB. It may be larger by one line "
        "or one Avro block, which are not split.",
        unit="events",
        ge=1,
    )
    file_header: bool = option(
        False, name="fileHeader", description="Set a header with the absolute path of the file."
    )
    file_header_key: str = option(
        "file", name="fileHeaderKey", description="Name of the header for the path of the file.", min_length=1
    )
    basename_header: bool = option(
        False, name="basenameHeader", description="Set a header with the name of the file."
    )
    basename_header_key: str = option(
        "basename",
        name="basenameHeaderKey",
        description="Name of the header for the name of the file.",
        min_length=1,
    )
    input_charset: str = option("UTF-8", name="inputCharset", description="With `LINE`: character set of the files.")
    decode_error_policy: Literal["FAIL", "REPLACE", "IGNORE"] = option(
        "FAIL",
        name="decodeErrorPolicy",
        description="With `LINE`: handling of bytes that are invalid in `inputCharset`. `FAIL`: skip the file from "
        "that line on. `REPLACE`: replace the bytes by U+FFFD. `IGNORE`: drop the bytes.",
    )
    deserializer: str = option(
        "LINE",
        name="deserializer",
        description="Unit that becomes an event. `LINE`: lines. `AVRO`: the records of Avro files, in Avro's binary "
        "encoding, with their schema in a header. `BLOB` (Flume's "
        "`org.apache.flume.sink.solr.morphline.BlobDeserializer$Builder`): whole files.",
    )
    max_line_length: int = option(
        2048,
        name="deserializer.maxLineLength",
        description="With `LINE`: maximum length of an event. A longer line becomes several events, "
        "at most 64 MiB each.",
        unit="characters",
        ge=1,
    )
    output_charset: str = option(
        "UTF-8", name="deserializer.outputCharset", description="With `LINE`: character set of the bodies."
    )
    schema_type: Literal["HASH", "LITERAL"] = option(
        "HASH",
        name="deserializer.schemaType",
        description="With `AVRO`: representation of the schema. `HASH`: its fingerprint (CRC-64-AVRO), in the header "
        "`flume.avro.schema.hash`. `LITERAL`: the schema itself in `flume.avro.schema.literal`.",
    )
    max_blob_length: int = option(
        100_000_000,
        name="deserializer.maxBlobLength",
        description="With `BLOB`: maximum size of an event. A larger file becomes several events.",
        unit="bytes",
        ge=1,
        le=1 << 30,
    )
    buffer_max_line_length: int | None = option(
        None,
        name="bufferMaxLineLength",
        description="Flume's former name of `deserializer.maxLineLength`. Takes precedence where both are set.",
        unit="characters",
        ge=1,
    )

    @pydantic.field_validator("decode_error_policy", "schema_type", mode="before")
    @classmethod
    def _uppercase(cls, value: object) -> object:
        return value.upper() if isinstance(value, str) else value

    @pydantic.field_validator("include_pattern", "ignore_pattern")
    @classmethod
    def _check_pattern(cls, pattern: str) -> str:
        compile_name_pattern(pattern)
        return pattern

    @pydantic.field_validator("input_charset", "output_charset")
    @classmethod
    def _check_charset(cls, name: str) -> str:
        text_codec(name)
        return name

    @pydantic.field_validator("deserializer")
    @classmethod
    def _check_deserializer(cls, name: str) -> str:
        written = name.removesuffix("$Builder")
        for known, flume in DESERIALIZERS.items():
            if written.upper() == known or written.lower() == flume.lower():
                return known
        if is_java_class(name):
            raise ValueError(java_class_error("deserializer", name))
        hint = suggest(name, list(DESERIALIZERS)) or f"; built are: {', '.join(DESERIALIZERS)}"
        raise ValueError(f"there is no deserializer {name!r}{hint}")

    @cross_field_validator("file_header", "file_header_key", "basename_header", "basename_header_key")
    def _names_differ(self) -> None:
        if self.file_header and self.basename_header and self.file_header_key == self.basename_header_key:
            raise ValueError("sets the header that basenameHeaderKey names: the two need different names")

    def warnings(self) -> Iterator[Problem]:
        """Yield a warning for each directory or pattern like a shell glob, and a note for options without effect.

        Options of another deserializer have no effect.
        """
        for option_name, text in {
            "spoolDir": glob_directory_warning(self.spool_dir, "write a source for each directory"),
            "includePattern": glob_pattern_warning(self.include_pattern),
            "ignorePattern": glob_pattern_warning(self.ignore_pattern),
        }.items():
            if text:
                yield Problem(option_name, text, is_flume_behavior=True)
        for field, owner in _DESERIALIZER_OF.items():
            if field in self.model_fields_set and self.deserializer != owner:
                name = type(self).model_fields[field].alias or field
                yield Problem(name, f"has no effect with deserializer {self.deserializer}, as in Flume", is_note=True)

    @property
    def directory(self) -> str:
        """Spool directory, with paths normalised as in Java: no repeated or trailing slash."""
        return re.sub("/{2,}", "/", self.spool_dir).rstrip("/") or "/"

    @property
    def tracker_directory(self) -> Path:
        """Directory of offsets and marker files."""
        return Path(os.path.join(self.directory, self.tracker_dir))  # noqa: PTH118  # join() lets an absolute path replace the directory

    @property
    def line_length(self) -> int:
        """Maximum number of characters of an event with deserializer `LINE`."""
        return self.buffer_max_line_length or self.max_line_length
