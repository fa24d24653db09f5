"""The messages of Protocol Buffers in the files of Flume's file channel."""

from __future__ import annotations

import struct
import zlib

from flafka.plugins import Event

POINTER = struct.Struct("<BBiBi")
"""The message of a take, with its length: the number of a file, and a place in it."""


class Damaged(Exception):
    """Something is not as Flume writes it."""


def event(payload: bytes) -> Event:
    """The event of a put. Raises Damaged, also where the checksum is not the body's."""
    put = fields(delimited(payload))
    written = fields(_message(put, 1))
    body = _message(written, 2)
    if put.get(2, [zlib.crc32(body)])[0] != zlib.crc32(body):
        raise Damaged
    headers = {}
    for one in written.get(1, ()):
        header = fields(one if isinstance(one, bytes) else b"")
        headers[_message(header, 1).decode(errors="replace")] = _message(header, 2).decode(errors="replace")
    return Event(body, headers)


def pointed(payload: bytes) -> int:
    """What a take points to."""
    _, _, number, _, offset = POINTER.unpack_from(payload)
    return int(number << 32 | offset)


def committed(payload: bytes) -> int:
    """The kind of records that a commit is about."""
    return int.from_bytes(payload[2:6], "little")


def _message(fields: dict[int, list[int | bytes]], number: int) -> bytes:
    found = fields.get(number, [b""])[0]
    if not isinstance(found, bytes):
        raise Damaged
    return found


def delimited(data: bytes) -> bytes:
    """A message behind its length. Raises Damaged."""
    length, at = varint(data, 0)
    if at + length > len(data):
        raise Damaged
    return data[at : at + length]


def fields(data: bytes) -> dict[int, list[int | bytes]]:
    """The fields of a message by their numbers. Raises Damaged."""
    found: dict[int, list[int | bytes]] = {}
    at = 0
    while at < len(data):
        tag, at = varint(data, at)
        if (width := {1: 8, 5: 4}.get(tag & 7)) is not None:
            value: int | bytes = int.from_bytes(data[at : at + width], "little", signed=True)
        elif tag & 7 == 2:
            width, at = varint(data, at)
            value = data[at : at + width]
        else:
            raise Damaged
        if at + width > len(data):
            raise Damaged
        at += width
        found.setdefault(tag >> 3, []).append(value)
    return found


def varint(data: bytes, at: int) -> tuple[int, int]:
    """The number there, and where what follows it begins. Raises Damaged."""
    value = 0
    for shift in range(0, 64, 7):
        if at >= len(data):
            break
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise Damaged
