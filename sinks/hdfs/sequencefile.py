"""Hadoop's SequenceFile, version 6: keys are times, values are bodies."""

from __future__ import annotations

import functools
import secrets

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from flafka.plugins import Batch
from flafka.sinks.hdfs.codecs import Codec
from flafka.sinks.serializers import BlockWriter, Buffer, FileWriter, Serialized, Serializer
from flafka.sinks.serializers.base import as_records, byte_lengths, encode_numbers, join_columns, number_bytes

SYNC_INTERVAL_BYTES = 100 * 1024
"""Distance of sync markers, at which readers may begin."""
SYNC_ESCAPE = b"\xff\xff\xff\xff"
"""Length -1, which stands before each sync marker."""
BLOCK_BYTES = 1_000_000
"""Hadoop's default size of a compressed block."""
KEY_BYTES = 8


class SequenceFile(Serializer):
    """Records of a time (LongWritable) in milliseconds since the epoch, and a body (BytesWritable or Text).

    The time is the header `timestamp`, or else the time of arrival in the channel. With a codec, blocks are
    compressed.
    """

    def __init__(self, write_format: str, codec: Codec | None) -> None:
        self._text, self._codec = write_format == "Text", codec
        self.suffix = codec.extension if codec else ""

    def records(self, batch: Batch) -> Serialized:
        """Return keys, lengths of values, and values; in a file without compression, with record and key lengths
        first."""
        keys, sizes = number_bytes(_times(batch).astype(">i8")), byte_lengths(batch.bodies)
        size = encode_numbers(sizes, vint) if self._text else number_bytes(sizes.astype(">i4"))
        if self._codec is not None:
            return as_records(join_columns(keys, size, batch.bodies))
        values = sizes + byte_lengths(size)
        record_lengths = number_bytes((values + KEY_BYTES).astype(">i4"))
        return as_records(join_columns(record_lengths, KEY_BYTES.to_bytes(4, "big"), keys, size, batch.bodies))

    def writer(self, kind: str) -> FileWriter:
        """Return the writer of one file, in blocks if there is a codec. `kind` has no effect."""
        header = _header("Text" if self._text else "BytesWritable", self._codec)
        return PlainFile(header) if self._codec is None else BlockFile(header, self._codec)


class PlainFile(FileWriter):
    """A file without compression."""

    def __init__(self, header: bytes) -> None:
        self._sync = secrets.token_bytes(16)
        self.header, self._since = header + self._sync, 0

    def add(self, records: Serialized) -> Buffer:
        """Return the records, with a sync marker behind each record that completes `SYNC_INTERVAL_BYTES`."""
        parts: list[Buffer] = []
        begin, ends = 0, records.ends
        while begin < len(ends):
            start = int(ends[begin - 1]) if begin else 0
            # Up to the record that crosses the interval: a sync marker stands between records.
            stop = int(np.searchsorted(ends, start + SYNC_INTERVAL_BYTES - self._since)) + 1
            stop = min(stop, len(ends))
            parts.append(records.data[start : int(ends[stop - 1])])
            self._since += int(ends[stop - 1]) - start
            if self._since >= SYNC_INTERVAL_BYTES:
                parts.append(SYNC_ESCAPE + self._sync)
                self._since = 0
            begin = stop
        return b"".join(parts) if len(parts) > 1 else parts[0]

    def close(self) -> Buffer:
        """Return a last sync marker, as Flume writes it; no bytes if the file ends with one, or has no records."""
        return SYNC_ESCAPE + self._sync if self._since else b""


class BlockFile(BlockWriter):
    """A file of compressed blocks."""

    def __init__(self, header: bytes, codec: Codec) -> None:
        super().__init__(BLOCK_BYTES)
        self._sync = secrets.token_bytes(16)
        self.header, self._codec = header + self._sync, codec

    def block(self, records: Serialized) -> bytes:
        """Return one block: a sync marker, the number of records, then lengths and bytes of keys and of values.

        Each of these four parts is compressed, with its length before it.
        """
        data = np.frombuffer(records.data, np.uint8)
        starts = np.concatenate((np.zeros(1, np.int64), records.ends[:-1]))
        key_indexes = starts[:, None] + np.arange(KEY_BYTES)
        is_value = np.ones(len(data), bool)
        is_value[key_indexes] = False
        sizes = records.ends - starts - KEY_BYTES
        columns = (
            (np.full(len(records), KEY_BYTES), data[key_indexes]),
            (sizes, data[is_value]),
        )
        parts = [SYNC_ESCAPE + self._sync, vint(len(records))]
        for widths, content in columns:
            for column in (as_records(encode_numbers(widths, vint)).data, content):
                compressed = self._codec.compress(bytes(column))
                parts += [vint(len(compressed)), compressed]
        return b"".join(parts)


def _header(value: str, codec: Codec | None) -> bytes:
    """Return the header of a file up to its sync marker; `value` is the class name of values, without package."""
    compression = b"\1\1" + _text(codec.java) if codec else b"\0\0"
    classes = _text("org.apache.hadoop.io.LongWritable") + _text(f"org.apache.hadoop.io.{value}")
    return b"SEQ\x06" + classes + compression + bytes(4)


def _times(batch: Batch) -> npt.NDArray[np.int64]:
    """Return each event's time in milliseconds: its header `timestamp` if valid, else its arrival in the channel."""
    assert batch.origin is not None
    text = batch.header("timestamp").dictionary_decode()
    # An event without a valid time gets another key; Flume would retry it forever.
    valid = pc.match_substring_regex(text, r"^-?[0-9]{1,18}$").fill_null(False)
    times = batch.origin.timestamps.copy()
    given = pc.if_else(valid, text, "0").cast("int64").to_numpy(zero_copy_only=False)
    return np.where(valid.to_numpy(zero_copy_only=False), given, times).astype(np.int64)


@functools.lru_cache(10_000)
def vint(number: int) -> bytes:
    """Return Hadoop's variable-length form (VInt) of a number, at least 0."""
    if number <= 127:
        return bytes([number])
    size = (number.bit_length() + 7) // 8
    return bytes([256 - 112 - size]) + number.to_bytes(size, "big")


def _text(text: str) -> bytes:
    """Return Hadoop's form of an ASCII text: its length as VInt, and its bytes."""
    return vint(len(text)) + text.encode()
