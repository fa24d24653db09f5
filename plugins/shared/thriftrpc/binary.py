"""Thrift's protocol binary."""

from __future__ import annotations

import struct

from plugins.shared.thriftrpc.protocol import Kind, Message, Protocol, after, text_at

_UINT = struct.Struct(">I")


class Binary(Protocol):
    """Fields and numbers of fixed sizes."""

    name = "binary"
    one, many, headers, body = b"\x0c\0\1", b"\x0f\0\1\x0c", b"\x0d\0\1\x0b\x0b", b"\x0b\0\2"

    def begins(self, content: bytes) -> bool:
        """See `Protocol`."""
        return content[:3] == b"\x80\1\0" or content[:3] == b"\0\0\0"  # the latter as before Thrift 0.2

    def read(self, content: bytes) -> Message:
        """See `Protocol`."""
        if content[:1] == b"\x80":
            size, at = self.number(content, 4)
            (serial,) = struct.unpack_from(">I", content, at + size)
            return Message(content[3], text_at(content, at, size), serial, at + size + 4)
        size, at = self.number(content, 0)
        kind, serial = struct.unpack_from(">BI", content, at + size)
        return Message(kind, text_at(content, at, size), serial, at + size + 5)

    def message(self, kind: Kind, name: str, serial: int) -> bytes:
        """See `Protocol`."""
        text = name.encode()
        return b"\x80\1\0" + struct.pack(">BI", kind, len(text)) + text + struct.pack(">I", serial & 0xFFFFFFFF)

    def number(self, data: bytes, at: int) -> tuple[int, int]:
        """See `Protocol`."""
        return int(_UINT.unpack_from(data, at)[0]), at + 4

    def written(self, number: int) -> bytes:
        """See `Protocol`."""
        return _UINT.pack(number)

    def count(self, data: bytes, at: int) -> tuple[int, int]:
        """See `Protocol`."""
        return self.number(data, at)

    def counted(self, events: int) -> bytes:
        """See `Protocol`."""
        return self.written(events)

    def entries(self, data: bytes, at: int) -> tuple[int, int]:
        """See `Protocol`."""
        return self.number(data, at)

    def begin(self, headers: int) -> bytes:
        """See `Protocol`."""
        return self.headers + self.written(headers)

    def status(self, status: int) -> bytes:
        """See `Protocol`."""
        return b"\x08\0\0" + self.written(status) + b"\0"

    def status_at(self, content: bytes, at: int) -> int:
        """See `Protocol`."""
        return self.number(content, after(b"\x08\0\0", content, at))[0]

    def error(self, text: bytes, kind: int) -> bytes:
        """See `Protocol`."""
        return b"\x0b\0\1" + self.written(len(text)) + text + b"\x08\0\2" + self.written(kind) + b"\0"

    def error_at(self, content: bytes, at: int) -> bytes:
        """See `Protocol`."""
        size, at = self.number(content, after(b"\x0b\0\1", content, at))
        return content[at : at + size]
