"""Thrift's protocol compact."""

from __future__ import annotations

from plugins.shared.flumeevent import varint as zigzag
from plugins.shared.thriftrpc.protocol import Kind, Message, Protocol, after, text_at


class Compact(Protocol):
    """Short fields and numbers; Flume's default."""

    name = "compact"
    one, many, headers, body = b"\x1c", b"\x19", b"\x1b", b"\x18"

    def begins(self, content: bytes) -> bool:
        """See `Protocol`."""
        return content[:1] == b"\x82" and content[1:2] in (b"\x21", b"\x41", b"\x61", b"\x81")

    def read(self, content: bytes) -> Message:
        """See `Protocol`."""
        serial, at = self.number(content, 2)
        size, at = self.number(content, at)
        return Message(content[1] >> 5, text_at(content, at, size), serial, at + size)

    def message(self, kind: Kind, name: str, serial: int) -> bytes:
        """See `Protocol`."""
        text = name.encode()
        return bytes((0x82, kind << 5 | 1)) + self.written(serial & 0xFFFFFFFF) + self.written(len(text)) + text

    def number(self, data: bytes, at: int) -> tuple[int, int]:
        """See `Protocol`."""
        byte = data[at]
        if byte < 0x80:
            return byte, at + 1
        number, shift = byte & 0x7F, 7
        while shift < 35:
            at += 1
            byte = data[at]
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number, at + 1
            shift += 7
        raise ValueError("a number of more than five bytes")

    def written(self, number: int) -> bytes:
        """See `Protocol`."""
        data = bytearray()
        while number > 0x7F:
            data.append(number & 0x7F | 0x80)
            number >>= 7
        data.append(number)
        return bytes(data)

    def count(self, data: bytes, at: int) -> tuple[int, int]:
        """See `Protocol`."""
        head = data[at]
        if head & 0x0F != 0x0C:
            raise ValueError("a list of something else than events")
        return self.number(data, at + 1) if head == 0xFC else (head >> 4, at + 1)

    def counted(self, events: int) -> bytes:
        """See `Protocol`."""
        return bytes((events << 4 | 0x0C,)) if events < 15 else b"\xfc" + self.written(events)

    def entries(self, data: bytes, at: int) -> tuple[int, int]:
        """See `Protocol`."""
        count, at = self.number(data, at)
        return count, after(b"\x88", data, at) if count else at

    def begin(self, headers: int) -> bytes:
        """See `Protocol`."""
        return self.headers + self.written(headers) + b"\x88" if headers else self.headers + b"\0"

    def status(self, status: int) -> bytes:
        """See `Protocol`."""
        return b"\5\0" + zigzag(status) + b"\0"

    def status_at(self, content: bytes, at: int) -> int:
        """See `Protocol`."""
        return self.number(content, after(b"\5\0", content, at))[0] >> 1

    def error(self, text: bytes, kind: int) -> bytes:
        """See `Protocol`."""
        return b"\x18" + self.written(len(text)) + text + b"\x15" + zigzag(kind) + b"\0"

    def error_at(self, content: bytes, at: int) -> bytes:
        """See `Protocol`."""
        size, at = self.number(content, after(b"\x18", content, at))
        return content[at : at + size]
