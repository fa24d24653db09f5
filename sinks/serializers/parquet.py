"""Parquet files of events."""

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
"""Arrow's types for columns that are made of headers, by Spark's names for them."""
_MILLIS = re.compile(r"-?[0-9]{1,15}")
ROW_GROUP_BYTES = 64 << 20
CODECS = {"null": "none", "snappy": "snappy", "gzip": "gzip", "zstandard": "zstd", "lz4": "lz4", "brotli": "brotli"}
"""Parquet's compressions, by the names that Avro has for those it shares."""


class Rows:
    """Events as columns of a file."""

    def __init__(self, records: Any) -> None:
        self.records = records

    def part(self, begin: int, stop: int) -> Rows:
        """The rows `begin` up to, not including, `stop`."""
        return Rows(self.records.slice(begin, stop - begin))


class Parquet(Serializer):
    """Columns `headers`, a map, and `body`, bytes, behind the columns that are made of headers.

    A header that is no value of its column's type is null there; `headers` has the text of all.
    """

    suffix = ".parquet"

    def __init__(self, codec: str, columns: Mapping[str, str] | None = None) -> None:
        """`columns` are names of `TYPES`, by header."""
        # Loads file systems, S3 among them: an agent without Parquet needs none. Now, as it may fail later.
        importlib.import_module("pyarrow.parquet")
        self._codec = codec
        self._types = {header: TYPES[name] for header, name in (columns or {}).items()}
        self._schema = pa.schema([*(pa.field(header, kind) for header, kind in self._types.items()), *FIELDS])

    def records(self, batch: Batch) -> Rows:
        """The columns."""
        typed = [_typed(batch.header(header), kind) for header, kind in self._types.items()]
        return Rows(pa.RecordBatch.from_arrays([*typed, batch.header_maps(), batch.bodies], schema=self._schema))

    def writer(self, kind: str) -> FileWriter:
        """For one file."""
        return ParquetFile(CODECS[self._codec], self._schema)


class ParquetFile(FileWriter):
    """One file, in groups of rows; only `close` makes it readable."""

    def __init__(self, codec: str, schema: Any) -> None:
        import pyarrow.parquet as pq

        self._out = _Out()
        self._writer = pq.ParquetWriter(self._out, schema, compression=codec)
        self._rows: list[Any] = []

    def add(self, records: Rows) -> Buffer:
        """A group of rows, once there is enough for it."""
        rows = pa.Table.from_batches([records.records])
        if rows.get_total_buffer_size() > 2 * rows.nbytes:  # it would keep a whole batch in memory for a few events
            rows = rows.take(pa.array(np.arange(rows.num_rows)))
        self._rows.append(rows)
        self.held += rows.nbytes
        return self.flush() if self.held >= ROW_GROUP_BYTES else b""

    def flush(self) -> Buffer:
        """A group of the rows held."""
        if self._rows:
            self._writer.write_table(pa.concat_tables(self._rows), row_group_size=1 << 20)
            self.forget()
        return self._out.take()

    def close(self) -> Buffer:
        """The last group, and the index of all."""
        last = bytes(self.flush())
        self._writer.close()
        return last + self._out.take()

    def forget(self) -> None:
        """Drop the rows held."""
        self._rows.clear()
        self.held = 0


class _Out:
    """A file for Parquet's writer whose bytes are taken away as they come."""

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
        data = b"".join(self._parts)
        self._parts.clear()
        return data


def _typed(column: Any, kind: Any) -> Any:
    """A header as values of that type, null where it is none; each different text is read once."""
    texts = column.dictionary
    if kind == pa.string():
        return column.dictionary_decode()
    try:
        values = texts.cast(kind)
    except pa.ArrowInvalid:
        values = pa.array([_value(text, kind) for text in texts.to_pylist()], kind)
    return values.take(column.indices)


def _value(text: str, kind: Any) -> Any:
    """One of them; a time may be in milliseconds since the epoch as well, as in Flume's header `timestamp`."""
    if pa.types.is_timestamp(kind) and _MILLIS.fullmatch(text):
        return pa.scalar(int(text) * 1000, pa.int64()).cast(kind)
    try:
        return pa.scalar(text, pa.string()).cast(kind)
    except pa.ArrowInvalid:
        return None
