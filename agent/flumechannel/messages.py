"""Decoder of the Protocol Buffers messages in the files of Flume's file channel."""

from __future__ import annotations

import struct
import zlib

from flafka.plugins import Event

POINTER = struct.Struct("<BBiBi")
"""Message of a take, with its length: number of a log file, and byte offset in the file."""


class CorruptRecord(Exception):
    """Data that is not in the format of Flume."""


def decode_event(payload: bytes) -> Event:
    """Return the event of a put. Raises CorruptRecord, also if the checksum of the body is wrong."""
    put = message_fields(delimited_message(payload))
    encoded = message_fields(_message(put, 1))
    body = _message(encoded, 2)
    if put.get(2, [zlib.crc32(body)])[0] != zlib.crc32(body):
        raise CorruptRecord
    headers = {}
    for entry in encoded.get(1, ()):
        header = message_fields(entry if isinstance(entry, bytes) else b"")
        headers[_message(header, 1).decode(errors="replace")] = _message(header, 2).decode(errors="replace")
    return Event(body, headers)


def take_pointer(payload: bytes) -> int:
    """Return the pointer of a take to its put: the file number in the upper 32 bits, the offset in the lower."""
    _, _, number, _, offset = POINTER.unpack_from(payload)
    return int(number << 32 | offset)


def commit_kind(payload: bytes) -> int:
    """Return the kind of the records that a commit completes: 1 for puts, 2 for takes."""
    return int.from_bytes(payload[2:6], "little")


def _message(fields: dict[int, list[int | bytes]], number: int) -> bytes:
    """Return the first value of a field, a nested message; empty without a value.

    Raises CorruptRecord for a number.
    """
    value = fields.get(number, [b""])[0]
    if not isinstance(value, bytes):
        raise CorruptRecord
    return value


def delimited_message(data: bytes) -> bytes:
    """Return the message behind its length prefix. Raises CorruptRecord if it is cut off."""
    length, start = read_varint(data, 0)
    if start + length > len(data):
        raise CorruptRecord
    return data[start : start + length]


def message_fields(data: bytes) -> dict[int, list[int | bytes]]:
    """Return field number → values of a message, in order. Raises CorruptRecord.

    Fixed-width numbers are int, everything else with a length is bytes.
    """
    fields: dict[int, list[int | bytes]] = {}
    offset = 0
    while offset < len(data):
        tag, offset = read_varint(data, offset)
        if (width := {1: 8, 5: 4}.get(tag & 7)) is not None:
            value: int | bytes = int.from_bytes(data[offset : offset + width], "little", signed=True)
        elif tag & 7 == 2:
            width, offset = read_varint(data, offset)
            value = data[offset : offset + width]
        else:
            raise CorruptRecord
        if offset + width > len(data):
            raise CorruptRecord
        offset += width
        fields.setdefault(tag >> 3, []).append(value)
    return fields


def read_varint(data: bytes, offset: int) -> tuple[int, int]:
    """Return the variable-length number at `offset`, and the offset after it. Raises CorruptRecord."""
    value = 0
    for shift in range(0, 64, 7):
        if offset >= len(data):
            break
        byte = data[offset]
        offset += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, offset
    raise CorruptRecord
