"""Serializers: events to records, whole batches at a time, and records to the bytes of one file."""

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
    """Records as one run of bytes."""

    data: memoryview
    ends: npt.NDArray[np.int64]
    """End of each record in `data`, exclusive."""

    def __len__(self) -> int:
        return len(self.ends)

    def part(self, begin: int, stop: int) -> Serialized:
        """The records `begin` up to, not including, `stop`; at least one. Copies no data."""
        start = int(self.ends[begin - 1]) if begin else 0
        ends = self.ends[begin:stop]
        return Serialized(self.data[start : int(ends[-1])], ends - start)


class FileWriter:
    """The bytes of one file: what is written before, between and behind its records. This one adds nothing."""

    held = 0
    """Bytes in memory that no call has handed out yet."""
    header: Buffer = b""
    """The begin of the file."""

    def add(self, records: Any) -> Buffer:
        """Take more records; the bytes that can be written now."""
        data: memoryview = records.data
        return data

    def flush(self) -> Buffer:
        """Return what is still held, so that all records taken can be read."""
        return b""

    def close(self) -> Buffer:
        """Return what is still held, and the end of the file."""
        return self.flush()

    def forget(self) -> None:
        """Drop what is held: its records will be taken again."""


class Serializer(ABC):
    """Events to the bytes of files."""

    suffix: str = ""
    """End of the names of its files, where the configuration gives none."""

    @abstractmethod
    def records(self, batch: Batch) -> Any:
        """One record an event, in order; has `part`, for the writers of the files that the events belong to."""

    def writer(self, kind: str) -> FileWriter:
        """For a new file of that kind."""
        return FileWriter()

    def kinds(self, batch: Batch) -> tuple[list[str | ValueError], npt.NDArray[np.int64]] | None:
        """The kinds of files for these events, and which each needs; a ValueError says why an event fits none.

        None where all files are of one kind, "".
        """
        return None


class Blocks(FileWriter):
    """Gathers records and hands them out in blocks of at least `size` bytes."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._parts: list[bytes] = []
        self._ends: list[npt.NDArray[np.int64]] = []

    def add(self, records: Serialized) -> Buffer:
        """The next block, once there is enough for it."""
        # A copy: a view would keep the whole batch in memory for a few events of it.
        self._parts.append(bytes(records.data))
        self._ends.append(records.ends + self.held)
        self.held += len(records.data)
        return self.flush() if self.held >= self._size else b""

    def flush(self) -> Buffer:
        """A block of what is held."""
        if not self._parts:
            return b""
        held = Serialized(memoryview(b"".join(self._parts)), np.concatenate(self._ends))
        self.forget()
        return self.block(held)

    def forget(self) -> None:
        """Drop what is held."""
        self._parts.clear()
        self._ends.clear()
        self.held = 0

    def block(self, records: Serialized) -> bytes:
        """Encode records as one block."""
        raise NotImplementedError


# --- columns of bytes


def serialized(records: Any) -> Serialized:
    """A binary array as one run of bytes; copies nothing."""
    _, offsets, data = records.buffers()
    bounds = np.frombuffer(offsets, np.int32, len(records) + 1, records.offset * 4).astype(np.int64)
    run = memoryview(data if data is not None else b"")[bounds[0] : bounds[-1]]
    return Serialized(run, bounds[1:] - bounds[0])


def joined(*columns: Any) -> Any:
    """Binary columns, or constants, side by side."""
    constants = [pa.scalar(c, pa.binary()) if isinstance(c, bytes) else c for c in columns]
    return pc.binary_join_element_wise(*constants, pa.scalar(b"", pa.binary()))


def joined_present(columns: list[Any], separator: bytes, rows: int) -> Any:
    """Join the values of each row that are not null, with the separator between."""
    if not columns:
        return pa.repeat(pa.scalar(b"", pa.binary()), rows)
    # Not with null_handling="skip": Arrow leaves rows without any value out of the result.
    parts = [joined(separator, column) for column in columns]
    empty = pa.scalar(b"", pa.binary())
    together = pc.binary_join_element_wise(*parts, empty, null_handling="replace", null_replacement="")
    return pc.binary_replace_slice(together, 0, len(separator), b"")


def joined_entries(maps: Any, name: Any, value: Any, separator: bytes) -> Any:
    """Write the entries of each map as its name and its value, as these functions encode binary columns of them."""
    offsets = maps.offsets
    entries = joined(name(maps.keys.cast(pa.binary())), value(maps.items.cast(pa.binary())))
    return pc.binary_join(pa.ListArray.from_arrays(offsets, entries), pa.scalar(separator, pa.binary()))


def by_value(column: Any, encode: Any) -> Any:
    """A header column with each of its different values encoded once: binary, null where an event lacks it."""
    if len(column.dictionary) > len(column):  # it is shared with other batches
        column = column.dictionary_decode().dictionary_encode()
    return encode(column.dictionary.cast(pa.binary())).take(column.indices)


def by_number(numbers: npt.NDArray[Any], encode: Any) -> Any:
    """A binary array of these numbers, each different one encoded once."""
    different, which = np.unique(numbers, return_inverse=True)
    return pa.array([encode(int(number)) for number in different], pa.binary()).take(pa.array(which))


def lengths(values: Any) -> npt.NDArray[np.int64]:
    """The bytes of each value of a binary array without nulls."""
    return np.asarray(pc.binary_length(values).to_numpy(zero_copy_only=False)).astype(np.int64)


def fixed(numbers: npt.NDArray[Any]) -> Any:
    """The bytes of each number, as they are in memory, as a binary array."""
    kind = pa.binary(numbers.dtype.itemsize)
    array = pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(np.ascontiguousarray(numbers))])
    return array.cast(pa.binary())
