"""Serializer of Parquet files."""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from flafka.plugins import Batch
from flafka.sinks.serializers.base import Buffer, FileWriter, Serializer

FIELDS = (
    pa.field("headers", pa.map_(pa.string(), pa.string()), nullable=False),
    pa.field("body", pa.binary(), nullable=False),
)
TYPES = {
    "string": pa.string(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
}
"""Arrow types of columns that are made from headers, by Spark's names."""
_MILLIS = re.compile(r"-?[0-9]{1,15}")
ROW_GROUP_BYTES = 64 << 20
"""Size in memory at which a row group is written."""
MAX_ROW_GROUP_ROWS = 1 << 20
CODECS = {"null": "none", "snappy": "snappy", "gzip": "gzip", "zstandard": "zstd", "lz4": "lz4", "brotli": "brotli"}
"""Parquet's compressions, by Avro's names as far as Avro has them."""


class Rows:
    """Events as columns of a Parquet file."""

    def __init__(self, records: Any) -> None:
        self.records = records

    def part(self, begin: int, stop: int) -> Rows:
        """Return the rows `begin` up to, not including, `stop`."""
        return Rows(self.records.slice(begin, stop - begin))


class Parquet(Serializer):
    """Serializer with columns `headers`, a map, and `body`, bytes, after columns that are made from headers.

    A header that is no value of its column's type is null there; `headers` has all texts.
    """

    suffix = ".parquet"

    def __init__(self, codec: str, columns: Mapping[str, str] | None = None) -> None:
        """Create a serializer; `columns` are keys of `TYPES`, by header."""
        # Imported here, as it loads file systems such as S3, which other serializers do not need, and may fail.
        importlib.import_module("pyarrow.parquet")
        self._codec = codec
        self._types = {header: TYPES[name] for header, name in (columns or {}).items()}
        self._schema = pa.schema([*(pa.field(header, kind) for header, kind in self._types.items()), *FIELDS])

    def records(self, batch: Batch) -> Rows:
        """Return the events as columns: one for each typed header, then `headers` and `body`."""
        typed = [_typed_column(batch.header(header), kind) for header, kind in self._types.items()]
        return Rows(pa.RecordBatch.from_arrays([*typed, batch.header_maps(), batch.bodies], schema=self._schema))

    def writer(self, kind: str) -> FileWriter:
        """Return the writer of one file; `kind` has no effect."""
        return ParquetFile(CODECS[self._codec], self._schema)


class ParquetFile(FileWriter):
    """Writer of one file of row groups, which is readable only after `close`."""

    def __init__(self, codec: str, schema: Any) -> None:
        import pyarrow.parquet as pq

        self._out = _ChunkBuffer()
        self._writer = pq.ParquetWriter(self._out, schema, compression=codec)
        self._rows: list[Any] = []

    def add(self, records: Rows) -> Buffer:
        """Append rows, and return a row group once `ROW_GROUP_BYTES` are buffered, else no bytes."""
        rows = pa.Table.from_batches([records.records])
        if (
            rows.get_total_buffer_size() > 2 * rows.nbytes
        ):  # a view of a few events would keep a whole batch in memory
            rows = rows.take(pa.array(np.arange(rows.num_rows)))
        self._rows.append(rows)
        self.buffered_bytes += rows.nbytes
        return self.flush() if self.buffered_bytes >= ROW_GROUP_BYTES else b""

    def flush(self) -> Buffer:
        """Return a row group of the buffered rows, and what Parquet's writer has not returned yet."""
        if self._rows:
            self._writer.write_table(pa.concat_tables(self._rows), row_group_size=MAX_ROW_GROUP_ROWS)
            self.discard()
        return self._out.take()

    def close(self) -> Buffer:
        """Return the last row group and the footer."""
        last = bytes(self.flush())
        self._writer.close()
        return last + self._out.take()

    def discard(self) -> None:
        """Drop the buffered rows."""
        self._rows.clear()
        self.buffered_bytes = 0


class _ChunkBuffer:
    """File object of Parquet's writer, which returns and forgets the bytes written so far."""

    closed = False

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._length = 0

    def write(self, data: Any) -> int:
        self._parts.append(bytes(data))
        self._length += len(self._parts[-1])
        return len(self._parts[-1])

    def tell(self) -> int:
        return self._length

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True

    def take(self) -> bytes:
        """Return the bytes written since the last call."""
        data = b"".join(self._parts)
        self._parts.clear()
        return data


def _typed_column(column: Any, kind: Any) -> Any:
    """Return a header column as values of a type, null for a missing header and for other texts.

    Each distinct text is parsed once.
    """
    texts = column.dictionary
    if kind == pa.string():
        return column.dictionary_decode()
    try:
        values = texts.cast(kind)
    except pa.ArrowInvalid:
        values = pa.array([_parse_value(text, kind) for text in texts.to_pylist()], kind)
    return values.take(column.indices)


def _parse_value(text: str, kind: Any) -> Any:
    """Return the value of a text as an Arrow scalar; None if it is no value of this type.

    A time may also be in milliseconds since the epoch, as in Flume's header `timestamp`.
    """
    if pa.types.is_timestamp(kind) and _MILLIS.fullmatch(text):
        return pa.scalar(int(text) * 1000, pa.int64()).cast(kind)
    try:
        return pa.scalar(text, pa.string()).cast(kind)
    except pa.ArrowInvalid:
        return None
