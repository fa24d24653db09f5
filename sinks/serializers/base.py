"""Base of serializers, which encode batches as records, and records as the bytes of files."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from flafka.plugins import Batch

Buffer = bytes | memoryview


class Serialized(NamedTuple):
    """Encoded records of a batch."""

    data: memoryview
    """Records without gaps."""
    ends: npt.NDArray[np.int64]
    """End of each record in `data`, exclusive."""

    def __len__(self) -> int:
        return len(self.ends)

    def part(self, begin: int, stop: int) -> Serialized:
        """Return the records `begin` up to, not including, `stop`; at least one. Copies no data."""
        start = int(self.ends[begin - 1]) if begin else 0
        ends = self.ends[begin:stop]
        return Serialized(self.data[start : int(ends[-1])], ends - start)


class FileWriter:
    """Encoder of one file, which adds the bytes before, between and behind its records. This one adds nothing."""

    buffered_bytes = 0
    """Number of buffered bytes, which no call has returned yet."""
    header: Buffer = b""
    """Beginning of the file."""

    def add(self, records: Any) -> Buffer:
        """Append records, and return the bytes that can be written now; buffered ones follow later."""
        data: memoryview = records.data
        return data

    def flush(self) -> Buffer:
        """Return the buffered bytes, after which readers find all records so far. This base buffers none."""
        return b""

    def close(self) -> Buffer:
        """Return the buffered bytes and the end of the file."""
        return self.flush()

    def discard(self) -> None:
        """Drop the buffered records, which the runner redelivers. This base has none."""


class Serializer(ABC):
    """Encoder of events as files of one format."""

    suffix: str = ""
    """Default suffix of file names."""

    @abstractmethod
    def records(self, batch: Batch) -> Any:
        """Return one record for each event, in order. The result has a method `part`, like `Serialized`."""

    def writer(self, kind: str) -> FileWriter:
        """Return the writer of a new file of that kind, which `kinds` has returned, or the empty text."""
        return FileWriter()

    def kinds(self, batch: Batch) -> tuple[list[str | ValueError], npt.NDArray[np.int64]] | None:
        """Return the kinds of files for these events, and the index of its kind for each event.

        A ValueError instead of a kind is the reason why its events fit no file. Return None if all files are of one
        kind, the empty text.
        """
        return None


class BlockWriter(FileWriter, ABC):
    """Writer of a file of blocks, which have at least `size` bytes before encoding."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._parts: list[bytes] = []
        self._ends: list[npt.NDArray[np.int64]] = []

    def add(self, records: Serialized) -> Buffer:
        """Append records, and return a block of all buffered records once they have its size, else no bytes."""
        # A copy: a view of a few events would keep the whole batch in memory.
        self._parts.append(bytes(records.data))
        self._ends.append(records.ends + self.buffered_bytes)
        self.buffered_bytes += len(records.data)
        return self.flush() if self.buffered_bytes >= self._size else b""

    def flush(self) -> Buffer:
        """Return a block of the buffered records; no bytes if there are none."""
        if not self._parts:
            return b""
        records = Serialized(memoryview(b"".join(self._parts)), np.concatenate(self._ends))
        self.discard()
        return self.block(records)

    def discard(self) -> None:
        """Drop the buffered records."""
        self._parts.clear()
        self._ends.clear()
        self.buffered_bytes = 0

    @abstractmethod
    def block(self, records: Serialized) -> bytes:
        """Return the encoding of the records as one block."""


# --- columns of bytes


def as_records(records: Any) -> Serialized:
    """Return the values of a binary array without nulls as records. Copies no values."""
    _, offsets, data = records.buffers()
    bounds = np.frombuffer(offsets, np.int32, len(records) + 1, records.offset * 4).astype(np.int64)
    values = memoryview(data if data is not None else b"")[bounds[0] : bounds[-1]]
    return Serialized(values, bounds[1:] - bounds[0])


def join_columns(*columns: Any) -> Any:
    """Return the concatenation of binary columns, or constants, row by row; null if one is null."""
    constants = [pa.scalar(c, pa.binary()) if isinstance(c, bytes) else c for c in columns]
    return pc.binary_join_element_wise(*constants, pa.scalar(b"", pa.binary()))


def join_present(columns: list[Any], separator: bytes, rows: int) -> Any:
    """Return the values of each row that are not null, joined by the separator.

    `columns` are binary, and empty rows give empty values. `rows` is the number of rows, for no columns at all.
    """
    if not columns:
        return pa.repeat(pa.scalar(b"", pa.binary()), rows)
    # Not with null_handling="skip": Arrow leaves rows without any value out of the result.
    parts = [join_columns(separator, column) for column in columns]
    empty = pa.scalar(b"", pa.binary())
    result = pc.binary_join_element_wise(*parts, empty, null_handling="replace", null_replacement="")
    return pc.binary_replace_slice(result, 0, len(separator), b"")


def join_entries(maps: Any, name: Any, value: Any, separator: bytes) -> Any:
    """Return the entries of each map joined by the separator.

    `name` and `value` encode binary columns of names and values, which are then concatenated.
    """
    offsets = maps.offsets
    entries = join_columns(name(maps.keys.cast(pa.binary())), value(maps.items.cast(pa.binary())))
    return pc.binary_join(pa.ListArray.from_arrays(offsets, entries), pa.scalar(separator, pa.binary()))


def encode_values(column: Any, encode: Any) -> Any:
    """Return the encoded texts of a header column, each distinct one encoded once.

    The result is binary, null if an event lacks the header. `encode` maps a binary column to another one.
    """
    if len(column.dictionary) > len(column):  # the dictionary is shared with other batches
        column = column.dictionary_decode().dictionary_encode()
    return encode(column.dictionary.cast(pa.binary())).take(column.indices)


def encode_numbers(numbers: npt.NDArray[Any], encode: Any) -> Any:
    """Return the encoded numbers as a binary array; `encode` is called once for each distinct number."""
    distinct, indexes = np.unique(numbers, return_inverse=True)
    return pa.array([encode(int(number)) for number in distinct], pa.binary()).take(pa.array(indexes))


def byte_lengths(values: Any) -> npt.NDArray[np.int64]:
    """Return the length in bytes of each value of a binary array without nulls."""
    return np.asarray(pc.binary_length(values).to_numpy(zero_copy_only=False)).astype(np.int64)


def number_bytes(numbers: npt.NDArray[Any]) -> Any:
    """Return the bytes of each number, as in memory, as a binary array."""
    kind = pa.binary(numbers.dtype.itemsize)
    array = pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(np.ascontiguousarray(numbers))])
    return array.cast(pa.binary())
