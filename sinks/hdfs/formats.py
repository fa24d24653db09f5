"""What hdfs.fileType makes of a serializer."""

from __future__ import annotations

from typing import Any

from flafka.plugins import Batch
from flafka.sinks import serializers
from flafka.sinks.hdfs.codecs import CODECS, Codec
from flafka.sinks.hdfs.config import HdfsConfig
from flafka.sinks.hdfs.sequencefile import SequenceFile
from flafka.sinks.serializers import Buffer, FileWriter, Serializer
from flafka.sinks.serializers.avro import Fetch

COMPRESSED_BYTES = 1 << 20
"""So much is compressed at once: what a file of many such parts needs in memory is no more, whatever the codec."""


def format_of(config: HdfsConfig, fetch: Fetch) -> Serializer:
    """Events to the bytes of files, as the configuration says; `fetch` gets Avro schemas."""
    codec = CODECS.get(config.codec or "none")
    if config.file_type == "SequenceFile":
        return SequenceFile(config.write_format, codec)
    serializer = serializers.make(config, fetch, config.columns)
    return serializer if codec is None else _Compressed(serializer, codec)


class _Compressed(Serializer):
    """The files of another serializer, compressed."""

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
    """One compressed file, of parts that are each compressed by itself: every reader of these formats joins them."""

    def __init__(self, inner: FileWriter, codec: Codec) -> None:
        self._inner, self._codec = inner, codec
        self._parts = [bytes(inner.header)]
        self._waiting = len(self._parts[0])
        self._empty = True

    def add(self, records: Any) -> Buffer:
        """The next part, once there is enough for it."""
        self._take(self._inner.add(records))
        data = self._compressed() if self._waiting >= COMPRESSED_BYTES else b""
        self.held = self._waiting + self._inner.held
        return data

    def close(self) -> Buffer:
        """The last part; a file without any has an empty one, as zero bytes are no compressed file."""
        self._take(self._inner.close())
        return self._compressed() if self._waiting or self._empty else b""

    def _take(self, data: Buffer) -> None:
        self._parts.append(bytes(data))
        self._waiting += len(data)

    def _compressed(self) -> bytes:
        data = self._codec.compress(b"".join(self._parts))
        self._parts.clear()
        self._waiting, self._empty = 0, False
        return data
