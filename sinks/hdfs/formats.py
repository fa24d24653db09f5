"""File formats of hdfs.fileType: SequenceFile, and plain or compressed files of a serializer."""

from __future__ import annotations

from typing import Any

from flafka.plugins import Batch
from flafka.sinks import serializers
from flafka.sinks.hdfs.codecs import CODECS, Codec
from flafka.sinks.hdfs.config import HdfsConfig
from flafka.sinks.hdfs.sequencefile import SequenceFile
from flafka.sinks.serializers import Buffer, FileWriter, Serializer
from flafka.sinks.serializers.avro import FetchSchema

COMPRESSED_PART_BYTES = 1 << 20
"""Number of bytes that are compressed at once, which limits the memory of an open file."""


def format_of(config: HdfsConfig, fetch: FetchSchema) -> Serializer:
    """Return the serializer of the configured file type; `fetch` downloads Avro schemas."""
    codec = CODECS.get(config.codec or "none")
    if config.file_type == "SequenceFile":
        return SequenceFile(config.write_format, codec)
    serializer = serializers.make_serializer(config, fetch, config.columns)
    return serializer if codec is None else _Compressed(serializer, codec)


class _Compressed(Serializer):
    """Compressed files of another serializer."""

    def __init__(self, inner: Serializer, codec: Codec) -> None:
        self.inner, self._codec = inner, codec
        self.suffix = inner.suffix + codec.extension

    def records(self, batch: Batch) -> Any:
        return self.inner.records(batch)

    def kinds(self, batch: Batch) -> Any:
        return self.inner.kinds(batch)

    def writer(self, kind: str) -> FileWriter:
        return CompressedFile(self.inner.writer(kind), self._codec)


class CompressedFile(FileWriter):
    """One compressed file, a concatenation of separately compressed parts, as readers of these formats allow."""

    def __init__(self, inner: FileWriter, codec: Codec) -> None:
        self._inner, self._codec = inner, codec
        self._parts = [bytes(inner.header)]
        self._buffered = len(self._parts[0])
        self._empty = True

    def add(self, records: Any) -> Buffer:
        """Append records, and return a compressed part once `COMPRESSED_PART_BYTES` are buffered; until then no
        bytes."""
        self._append(self._inner.add(records))
        data = self._compress() if self._buffered >= COMPRESSED_PART_BYTES else b""
        self.buffered_bytes = self._buffered + self._inner.buffered_bytes
        return data

    def close(self) -> Buffer:
        """Return the last part, or no bytes if all were returned.

        A file without records gets an empty part, as zero bytes are no compressed file.
        """
        self._append(self._inner.close())
        return self._compress() if self._buffered or self._empty else b""

    def _append(self, data: Buffer) -> None:
        self._parts.append(bytes(data))
        self._buffered += len(data)

    def _compress(self) -> bytes:
        """Return the compressed form of the buffered parts, and clear them."""
        data = self._codec.compress(b"".join(self._parts))
        self._parts.clear()
        self._buffered, self._empty = 0, False
        return data
