"""Flume's RPC by Thrift: the service ThriftSourceProtocol, in frames, by the protocols compact and binary.

A frame is its size, a big-endian int32, and a message. The service has two calls, whose arguments are one event or a
list of events; an event is a struct of a map of headers and a body, both required. It has been the same since Flume
1.4, and whoever writes a struct writes its fields in their order, so that no other way to write them is read.

Thrift's libraries for Python make an object of each event, of each that a damaged request claims to have too:
thriftpy2 takes 80 µs for an event of the compact protocol, and 34 s and 400 MB for 4 MB of nothing.
"""

from __future__ import annotations

import enum
import struct
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import pydantic

from plugins.options import Config, option
from plugins.shared.flumeevent import Layout
from plugins.shared.flumeevent import varint as zigzag


class ProtocolConfig(Config):
    """The option of both ends of a connection."""

    protocol: Literal["compact", "binary"] = option(
        "compact",
        name="protocol",
        description="Thrift's protocol. It must be the same for client and source.",
    )

    @pydantic.field_validator("protocol", mode="before")
    @classmethod
    def _any_case(cls, value: object) -> object:
        return value.lower() if isinstance(value, str) else value


class Status(enum.IntEnum):
    """What a server answers."""

    OK = 0
    FAILED = 1
    ERROR = 2
    UNKNOWN = 3


class Kind(enum.IntEnum):
    """What a message is."""

    CALL = 1
    REPLY = 2
    EXCEPTION = 3


class Message(NamedTuple):
    """The beginning of a message."""

    kind: int
    name: str
    serial: int
    at: int
    """Where the arguments, or the result, begin."""


UNKNOWN_METHOD = 1
PROTOCOL_ERROR = 7
"""Of Thrift's kinds of errors."""


# --- frames


def frame(content: bytes) -> bytes:
    """One frame."""
    return struct.pack(">I", len(content)) + content


class Frames:
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


# --- messages


class Protocol(ABC):
    """One of Thrift's protocols."""

    name: str
    one: bytes
    """What stands before the event of `append`."""
    many: bytes
    """What stands before the number of events of `appendBatch`."""
    headers: bytes
    """What stands before the number of headers."""
    body: bytes
    """What stands before the length of a body."""

    @abstractmethod
    def begins(self, content: bytes) -> bool:
        """Whether a message of this protocol begins like that."""

    @abstractmethod
    def read(self, content: bytes) -> Message:
        """How the message begins. ValueError, IndexError or struct.error for what is none."""

    @abstractmethod
    def message(self, kind: Kind, name: str, serial: int) -> bytes:
        """The beginning of a message."""

    @abstractmethod
    def number(self, data: bytes, at: int) -> tuple[int, int]:
        """A length, and where the next thing begins."""

    @abstractmethod
    def written(self, number: int) -> bytes:
        """A length."""

    @abstractmethod
    def count(self, data: bytes, at: int) -> tuple[int, int]:
        """How many events a list has, and where they begin."""

    @abstractmethod
    def counted(self, events: int) -> bytes:
        """The number of events of a list."""

    @abstractmethod
    def entries(self, data: bytes, at: int) -> tuple[int, int]:
        """How many headers there are, and where they begin."""

    @abstractmethod
    def begin(self, headers: int) -> bytes:
        """What an event with so many headers begins with."""

    @abstractmethod
    def status(self, status: int) -> bytes:
        """The result of a call."""

    @abstractmethod
    def status_at(self, content: bytes, at: int) -> int:
        """The same, read. ValueError, IndexError or struct.error for what is none."""

    @abstractmethod
    def error(self, text: bytes, kind: int) -> bytes:
        """The content of an exception."""

    @abstractmethod
    def error_at(self, content: bytes, at: int) -> bytes:
        """Its text."""

    def __init__(self) -> None:
        self.layout = Layout(self.begin, self.written, lambda _: self.body, b"\0")
        """How `flumeevent` encodes events for it."""

    # --- both ends

    def call(self, serial: int, events: Sequence[bytes]) -> bytes:
        """The call of `appendBatch` with these events, encoded by `layout`."""
        head = self.message(Kind.CALL, "appendBatch", serial)
        return b"".join((head, self.many, self.counted(len(events)), *events, b"\0"))

    def answer(self, name: str, serial: int, status: Status) -> bytes:
        """What a server answers to a call."""
        return self.message(Kind.REPLY, name, serial) + self.status(status)

    def complaint(self, name: str, serial: int, text: str, kind: int = PROTOCOL_ERROR) -> bytes:
        """What a server answers to a call that it cannot read, which the client raises."""
        return self.message(Kind.EXCEPTION, name, serial) + self.error(text.encode(), kind)

    def read_call(self, content: bytes) -> Message:
        """How a client's message begins. ValueError for what is none."""
        if not self.begins(content):
            other = next((protocol.name for protocol in PROTOCOLS.values() if protocol.begins(content)), "")
            why = f"it speaks the protocol {other}: set protocol = {other}" if other else f"it sends {content[:20]!r}"
            raise ValueError(why)
        try:
            message = self.read(content)
        except (IndexError, struct.error):
            raise ValueError("a message ends within its head") from None
        if message.kind != Kind.CALL:
            raise ValueError(f"a message of kind {message.kind} is no call")
        return message

    def read_answer(self, content: bytes) -> Message:
        """How a server's message begins. ValueError for what is none."""
        if not self.begins(content):
            raise ValueError(f"what it answers is not Thrift's protocol {self.name}")
        try:
            return self.read(content)
        except (IndexError, struct.error):
            raise ValueError("its answer ends within its head") from None

    def read_status(self, content: bytes, answer: Message) -> Status:
        """What it answers. ValueError where it reports an error, or is not to be understood."""
        try:
            if answer.kind == Kind.EXCEPTION:
                text = self.error_at(content, answer.at).decode(errors="replace")
                raise ValueError(f"the server reports: {text[:500]}")
            return Status(self.status_at(content, answer.at))
        except (IndexError, struct.error):
            raise ValueError("its answer ends too early") from None

    # --- events

    def scan(self, data: bytes, at: int, *, many: bool) -> tuple[list[bytes], list[bytes]]:
        """For `Events`: headers, as Avro encodes them, and body of each event."""
        heads: list[bytes] = []
        bodies: list[bytes] = []
        at = _after(self.many if many else self.one, data, at)
        count, at = self.count(data, at) if many else (1, at)
        known, encoded, starts, number = b"\xff", b"", data.startswith, self.number
        for _ in range(count):
            if starts(known, at):  # the same headers again
                at += len(known)
            else:
                begin = at
                encoded, at = self._headers(data, at)
                at = _after(self.body, data, at)
                known = data[begin:at]
            size, at = number(data, at)
            stop = at + size
            if stop >= len(data):
                raise ValueError("the request ends within an event")
            if data[stop]:
                raise ValueError("an event has more than headers and body")
            heads.append(encoded)
            bodies.append(data[at:stop])
            at = stop + 1
        if data[at:] != b"\0":
            raise ValueError(f"{len(data) - at} bytes follow the events")
        return heads, bodies

    def _headers(self, data: bytes, at: int) -> tuple[bytes, int]:
        count, at = self.entries(data, _after(self.headers, data, at))
        encoded = bytearray(zigzag(count))
        for _ in range(2 * count):
            size, at = self.number(data, at)
            stop = at + size
            if stop > len(data):
                raise ValueError("the request ends within an event")
            encoded += _LENGTHS[size] if size < len(_LENGTHS) else zigzag(size)
            encoded += data[at:stop]
            at = stop
        if count:
            encoded += b"\0"
        return bytes(encoded), at


_LENGTHS = tuple(zigzag(size) for size in range(256))
"""Of most texts, as Avro encodes them."""


def _after(wanted: bytes, data: bytes, at: int) -> int:
    if not data.startswith(wanted, at):
        raise ValueError(f"{data[at : at + len(wanted)]!r} where {wanted!r} belongs: no event of Flume's")
    return at + len(wanted)


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
        return Message(content[1] >> 5, _name(content, at, size), serial, at + size)

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
        return count, _after(b"\x88", data, at) if count else at

    def begin(self, headers: int) -> bytes:
        """See `Protocol`."""
        return self.headers + self.written(headers) + b"\x88" if headers else self.headers + b"\0"

    def status(self, status: int) -> bytes:
        """See `Protocol`."""
        return b"\5\0" + zigzag(status) + b"\0"

    def status_at(self, content: bytes, at: int) -> int:
        """See `Protocol`."""
        return self.number(content, _after(b"\5\0", content, at))[0] >> 1

    def error(self, text: bytes, kind: int) -> bytes:
        """See `Protocol`."""
        return b"\x18" + self.written(len(text)) + text + b"\x15" + zigzag(kind) + b"\0"

    def error_at(self, content: bytes, at: int) -> bytes:
        """See `Protocol`."""
        size, at = self.number(content, _after(b"\x18", content, at))
        return content[at : at + size]


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
            return Message(content[3], _name(content, at, size), serial, at + size + 4)
        size, at = self.number(content, 0)
        kind, serial = struct.unpack_from(">BI", content, at + size)
        return Message(kind, _name(content, at, size), serial, at + size + 5)

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
        return self.number(content, _after(b"\x08\0\0", content, at))[0]

    def error(self, text: bytes, kind: int) -> bytes:
        """See `Protocol`."""
        return b"\x0b\0\1" + self.written(len(text)) + text + b"\x08\0\2" + self.written(kind) + b"\0"

    def error_at(self, content: bytes, at: int) -> bytes:
        """See `Protocol`."""
        size, at = self.number(content, _after(b"\x0b\0\1", content, at))
        return content[at : at + size]


_UINT = struct.Struct(">I")


def _name(content: bytes, at: int, size: int) -> str:
    if at + size > len(content):
        raise ValueError("a message ends within its name")
    return content[at : at + size].decode(errors="replace")


PROTOCOLS: dict[str, Protocol] = {protocol.name: protocol for protocol in (Compact(), Binary())}
"""By the names of the option `protocol`."""
