"""Compatibility notes of serializers."""

from __future__ import annotations

from flafka.plugins import CompatibilityNote

SERIALIZERS = (
    CompatibilityNote(
        flume="`AvroEventSerializer` writes all events of a file with the schema of the first",
        here="each schema has its own files, with its hash at the end of the file name",
        option="serializer",
    ),
    CompatibilityNote(
        flume="`AvroEventSerializer` fetches any URL in a header `flume.avro.schema.url`, and fails forever "
        "without a schema",
        here="only `schemaURL`, and URLs with a prefix in `trustedSchemaURLs`, are fetched; other events go to the "
        "dead letters",
        option="serializer",
    ),
    CompatibilityNote(
        flume="an unknown `compressionCodec` writes uncompressed files",
        here="an error that lists the codecs",
        option="serializer.compressionCodec",
    ),
)
