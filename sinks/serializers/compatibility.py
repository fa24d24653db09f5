"""What the serializers of files do otherwise than Flume's."""

from __future__ import annotations

from flafka.plugins import CompatibilityNote

SERIALIZERS = (
    CompatibilityNote(
        flume="`AvroEventSerializer` writes all events of a file under the schema of the first",
        here="each schema has its own files; the file's name ends in a hash of it",
        option="serializer",
    ),
    CompatibilityNote(
        flume="`AvroEventSerializer` fetches whatever address a header `flume.avro.schema.url` names, and "
        "fails for ever without a schema",
        here="only `schemaURL` and URLs with a prefix that is in `trustedSchemaURLs`; other events go to the "
        "dead letters",
        option="serializer",
    ),
    CompatibilityNote(
        flume="an unknown `compressionCodec` writes uncompressed files",
        here="an error that lists the codecs",
        option="serializer.compressionCodec",
    ),
)
