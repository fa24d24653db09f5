"""Flume's event on the wire: the Avro binary of AvroFlumeEvent {headers: map<string>, body: bytes}.

Whole batches are encoded and decoded by columns: fastavro takes 3.5 µs an event, this a tenth of it. Records that the
columns cannot hold (several map blocks, bytes that are no text, damage) are decoded one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from flafka.plugins import Batch, Event
from flafka.plugins.columns import MAX_HEADER_COLUMNS, OVERFLOW_TYPE
from flafka.plugins.shared.octets import slices

Numbers = npt.NDArray[np.int64]

PADDING = bytes(16)
"""Behind the last record, so that a number cut off there is read without leaving the buffer."""
MOST_HEADERS = 256
"""Events with more headers are decoded one by one."""


# --- encoding


def varint(number: int) -> bytes:
    """Encode a long of Avro: zig-zag, seven bits a byte, the lowest first."""
    return unsigned_varint((number << 1) ^ (number >> 63))


def unsigned_varint(number: int) -> bytes:
    """Encode a number that is not negative in seven bits a byte, the lowest first."""
    data = bytearray()
    while number > 0x7F:
        data.append(number & 0x7F | 0x80)
        number >>= 7
    data.append(number)
    return bytes(data)


class Layout(NamedTuple):
    """What stands before, between and after the headers and the body of an encoded event."""

    begin: Callable[[int], bytes]
    """What an event with so many headers begins with."""
    length: Callable[[int], bytes]
    """What stands before each text of so many bytes."""
    between: Callable[[int], bytes]
    """What follows so many headers, before the length of the body."""
    end: bytes


AVRO = Layout(varint, varint, lambda headers: b"\0" if headers else b"", b"")
"""An empty map is its end alone; any other is one block, and the end."""


def encode(batch: Batch, layout: Layout = AVRO) -> Any:
    """One value a row, as a binary array."""
    begin, length, between, end = layout
    names = batch.records.schema.names[1:]
    columns = batch.records.columns[1:]
    if any(column.type == OVERFLOW_TYPE for column in columns):
        return pa.array([encode_event(event, layout) for event in batch], pa.binary())
    counts = np.zeros(len(batch), np.int64)
    parts: list[Any] = []
    for name, column in zip(names, columns, strict=True):
        texts = column.dictionary.cast(pa.binary())
        key = name.encode()
        entries = _joined(pa.scalar(length(len(key)) + key), _lengths(texts, length), texts)
        if len(entries) == 1 and not column.null_count and not texts.null_count:
            counts += 1
            parts.append(entries[0])
            continue
        fragments = entries.take(column.indices)
        if column.null_count or texts.null_count:
            counts += fragments.is_valid().to_numpy(zero_copy_only=False)
            fragments = fragments.fill_null(b"")
        else:
            counts += 1
        parts.append(fragments)
    lengths = _lengths(batch.bodies, length)
    return _joined(_each(counts, begin), *parts, _each(counts, between), lengths, batch.bodies, pa.scalar(end))


def encode_event(event: Event, layout: Layout = AVRO) -> bytes:
    """The value of one event."""
    begin, length, between, end = layout
    count = len(event.headers)
    pieces = [begin(count)]
    for name, value in event.headers.items():
        for text in (name.encode(), value.encode()):
            pieces += (length(len(text)), text)
    pieces += (between(count), length(len(event.body)), event.body, end)
    return b"".join(pieces)


def _lengths(texts: Any, length: Callable[[int], bytes]) -> Any:
    return _each(pc.binary_length(texts).fill_null(0).to_numpy(zero_copy_only=False), length)


def _each(numbers: npt.NDArray[Any], encoded: Callable[[int], bytes]) -> Any:
    """What each number is encoded as; each different one is encoded once."""
    distinct, rows = np.unique(numbers, return_inverse=True)
    values = pa.array([encoded(number) for number in distinct.tolist()], pa.binary())
    return values[0] if len(values) == 1 else values.take(pa.array(rows))


def _joined(*columns: Any) -> Any:
    """The columns, row by row one behind the other. What is the same for all rows is joined once."""
    parts: list[Any] = []
    for column in columns:
        if isinstance(column, pa.Scalar) and parts and isinstance(parts[-1], pa.Scalar):
            parts[-1] = pa.scalar(parts[-1].as_py() + column.as_py())
        else:
            parts.append(column)
    return pc.binary_join_element_wise(*parts, pa.scalar(b""))


# --- decoding


def decode(values: Sequence[bytes]) -> Batch | None:
    """The events of these values, at least one; None where some have to be decoded one by one."""
    data = b"".join((*values, PADDING))
    stops = np.cumsum(np.fromiter(map(len, values), np.int64, len(values)))
    view = np.frombuffer(data, np.uint8)
    counts, at = _read(view, np.concatenate(([0], stops[:-1])))
    if counts.min() < 0 or counts.max() > MOST_HEADERS:
        return None
    headers: list[tuple[Numbers, Numbers, Numbers, Numbers, Numbers]] = []
    for place in range(int(counts.max())):
        rows = np.flatnonzero(counts > place)
        key_starts, key_stops = _span(view, at[rows])
        if not _within(key_starts, key_stops, stops[rows]):
            return None
        value_starts, value_stops = _span(view, key_stops)
        if not _within(value_starts, value_stops, stops[rows]):
            return None
        at[rows] = value_stops
        headers.append((rows, key_starts, key_stops, value_starts, value_stops))
    if headers:
        more, after = _read(view, at)
        if more[counts > 0].any():
            return None  # a second block
        at = np.where(counts > 0, after, at)
    body_starts, body_stops = _span(view, at)
    if (body_stops != stops).any() or (body_stops < body_starts).any():
        return None
    buffer = pa.py_buffer(data)
    try:
        columns = _columns(buffer, len(values), headers)
    except pa.ArrowInvalid:
        return None  # bytes that are no text
    if len(columns) > MAX_HEADER_COLUMNS:
        return None
    return Batch.of_columns(slices(buffer, body_starts, body_stops), columns)


def _read(data: npt.NDArray[np.uint8], at: Numbers) -> tuple[Numbers, Numbers]:
    """The numbers that start there, and where they end."""
    byte = data[at]
    value = (byte & 0x7F).astype(np.int64)
    after = at + 1
    rows = np.flatnonzero(byte & 0x80)
    shift = 7
    while len(rows) and shift < 35:
        byte = data[np.minimum(after[rows], len(data) - 1)]
        value[rows] |= (byte & 0x7F).astype(np.int64) << shift
        after[rows] += 1
        rows, shift = rows[(byte & 0x80) != 0], shift + 7
    value[rows] = 1  # too large for any record: reads as -1
    return (value >> 1) ^ -(value & 1), after


def _within(starts: Numbers, stops: Numbers, ends: Numbers) -> bool:
    return bool(((starts <= stops) & (stops <= ends)).all())


def _span(data: npt.NDArray[np.uint8], at: Numbers) -> tuple[Numbers, Numbers]:
    """Where the bytes start and stop whose length is written there; a stop before the start means damage."""
    length, start = _read(data, at)
    return start, start + length


def _columns(buffer: Any, count: int, headers: Sequence[tuple[Numbers, ...]]) -> dict[str, Any]:
    """One string array a header name, null where an event lacks it. Of a name that occurs twice the last counts."""
    if not headers:
        return {}
    rows = np.concatenate([header[0] for header in headers])
    names = pa.concat_arrays([slices(buffer, starts, stops) for _, starts, stops, _, _ in headers])
    values = pa.concat_arrays([slices(buffer, starts, stops) for _, _, _, starts, stops in headers])
    values = values.cast(pa.string())
    named = names.dictionary_encode()
    codes = named.indices.to_numpy(zero_copy_only=False)
    columns: dict[str, Any] = {}
    for code, name in enumerate(named.dictionary.cast(pa.string()).to_pylist()):
        if code > MAX_HEADER_COLUMNS:
            break
        entries = np.flatnonzero(codes == code)
        places = np.full(count, -1, np.int64)
        places[rows[entries]] = entries
        columns[name] = values.take(pa.array(places, mask=places < 0))
    return columns


def decode_event(value: bytes) -> Event:
    """One event. ValueError, which says what is wrong, for anything else than one AvroFlumeEvent."""
    reader = AvroReader(value)
    headers: dict[str, str] = {}
    while count := reader.number("the number of headers"):
        if count < 0:
            count = -count
            reader.number("the size of a block of headers")
        for _ in range(count):
            name = reader.text("a header's name")
            # As Java does: what is no text is replaced, so that the event gets through.
            headers[name.decode(errors="replace")] = reader.text("a header").decode(errors="replace")
    body = reader.text("the body")
    if reader.at != len(value):
        raise ValueError(f"{len(value) - reader.at} bytes follow the event")
    return Event(body, headers)


def long_at(data: bytes, at: int) -> tuple[int, int]:
    """Avro's long at that place, and where the next thing begins. IndexError where the data ends within it."""
    number = shift = 0
    while shift < 70:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), at
        shift += 7
    raise ValueError("a number of more than ten bytes")


class AvroReader:
    """Avro's binary, read step by step. Raises ValueError, with what was read, where it ends too early."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def number(self, what: str = "a number") -> int:
        """Read a number."""
        try:
            number, self.at = long_at(self.data, self.at)
        except IndexError:
            raise ValueError(f"it ends within {what}") from None
        return number

    def text(self, what: str = "a text") -> bytes:
        """Read bytes behind their length."""
        return self.take(self.number(f"the length of {what}"), what)

    def take(self, size: int, what: str = "a text") -> bytes:
        """Read so many bytes."""
        if size < 0:
            raise ValueError(f"the length of {what} is negative: {size}")
        start, self.at = self.at, self.at + size
        if self.at > len(self.data):
            raise ValueError(f"it ends within {what}")
        return self.data[start : self.at]
