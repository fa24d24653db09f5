"""Frames: each a size, a big-endian int32, and a message."""

from __future__ import annotations

import struct
from collections.abc import Iterator


def frame(content: bytes) -> bytes:
    """One frame."""
    return struct.pack(">I", len(content)) + content


class ThriftFrames:
    """Cuts a stream into frames of at most `max_bytes`; nothing is allocated for bytes that have not come."""

    def __init__(self, max_bytes: int) -> None:
        self._max = max_bytes
        self._buffer = bytearray()

    @property
    def held(self) -> int:
        """Bytes of the frame that has begun and not ended."""
        return len(self._buffer)

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The content of each frame that is complete now. ValueError for what is no frame."""
        buffer = self._buffer
        buffer += data
        at = 0
        while len(buffer) - at >= 4:
            (size,) = struct.unpack_from(">I", buffer, at)
            if size > self._max:
                raise ValueError(_not_a_frame(bytes(buffer[at : at + 4]), size, self._max))
            if len(buffer) - at - 4 < size:
                if buffer.startswith(_SASL, at):
                    raise ValueError("it asks for Kerberos, which is not spoken here")
                break
            content = bytes(buffer[at + 4 : at + 4 + size])
            at += 4 + size
            yield content
        del buffer[:at]


_SASL = b"\1\0\0\0\6GSSAPI"


def _not_a_frame(head: bytes, size: int, most: int) -> str:
    if head[:2] == b"\x16\x03":
        return "it speaks TLS, which is off here: set ssl = true"
    if head[:3] == b"\x80\1\0" or head[:2] == b"\x82\x21":
        return "it sends messages without frames, which Flume does not take either: let it use TFramedTransport"
    if head.isascii() and head[:3].isalpha():
        return f"it begins with {head!r}"
    return f"a frame of {size} bytes; at most {most} are accepted"
