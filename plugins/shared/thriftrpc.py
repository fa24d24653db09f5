"""Flume's RPC by Thrift: the service ThriftSourceProtocol, in frames, by the protocols compact and binary.

A frame is its size, a big-endian int32, and a message. The service has two calls, whose arguments are one event or a
list of events. An event is a struct of a map of headers and a body, both required. The service has not changed since
Flume 1.4. All that write a struct write its fields in order, and no other order is read.

Thrift's libraries for Python make an object of each event, also where the number of events in a damaged request is
wrong. thriftpy2 takes 80 µs for an event of the compact protocol, and 34 s and 400 MB for 4 MB of nothing.
"""

from __future__ import annotations

import enum
import struct
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Annotated, Literal, NamedTuple

import pydantic

from flafka.plugins.options import ANY_CASE, Config, option
from flafka.plugins.shared.flumeevent import Layout, unsigned_varint
from flafka.plugins.shared.flumeevent import varint as zigzag

UNKNOWN_METHOD = 1
PROTOCOL_ERROR = 7
"""Kinds of errors in Thrift (`TApplicationException`)."""
_SASL = b"\1\0\0\0\6GSSAPI"
_LENGTHS = tuple(zigzag(size) for size in range(256))
"""Lengths of most texts, as Avro encodes them."""
_UINT = struct.Struct(">I")


class ThriftConfig(Config):
    """The options of both ends of a connection."""

    protocol: Annotated[Literal["compact", "binary"], ANY_CASE] = option(
        "compact",
        name="protocol",
        description="Thrift's protocol. It must be the same for client and source.",
    )
    kerberos: bool = option(False, name="kerberos", description="Must be `false`: Kerberos is not spoken.")

    @pydantic.field_validator("kerberos")
    @classmethod
    def _not_spoken(cls, value: bool) -> bool:
        if value:
            raise ValueError(
                "is not built yet: write ssl = true instead; with a truststore, a source asks for certificates"
            )
        return value


# --- frames


def frame(content: bytes) -> bytes:
    """One frame."""
    return _UINT.pack(len(content)) + content


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
            (size,) = _UINT.unpack_from(buffer, at)
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


def _not_a_frame(head: bytes, size: int, most: int) -> str:
    if head[:2] == b"\x16\x03":
        return "it speaks TLS, which is off here: set ssl = true"
    if head[:3] == b"\x80\1\0" or head[:2] == b"\x82\x21":
        return "it sends messages without frames, which Flume does not take either: let it use TFramedTransport"
    if head.isascii() and head[:3].isalpha():
        return f"it begins with {head!r}"
    return f"a frame of {size} bytes; at most {most} are accepted"


# --- messages


class ThriftStatus(enum.IntEnum):
    """Status that a server answers."""

    OK = 0
    FAILED = 1
    ERROR = 2
    UNKNOWN = 3


class Kind(enum.IntEnum):
    """Kind of a message."""

    CALL = 1
    REPLY = 2
    EXCEPTION = 3


class Message(NamedTuple):
    """The beginning of a message."""

    kind: int
    name: str
    serial: int
    at: int
    """Byte at which the arguments, or the result, begin."""


class Protocol(ABC):
    """One of Thrift's protocols. The bytes are what stands before something in a message."""

    name: str
    one: bytes
    """The event of `append`."""
    many: bytes
    """The number of events of `appendBatch`."""
    headers: bytes
    """The number of headers."""
    body: bytes
    """The length of a body."""
    result: bytes
    """The status that a call results in."""
    text: bytes
    """The length of an error's text."""
    error: bytes
    """The kind of an error."""

    def __init__(self) -> None:
        self.layout = Layout(self._begin, self._written, lambda _: self.body, b"\0")
        """Layout in which `flumeevent` encodes events for this protocol."""

    @abstractmethod
    def _begins(self, content: bytes) -> bool:
        """Return True if a message of this protocol begins like that."""

    @abstractmethod
    def _read(self, content: bytes) -> Message:
        """Read the beginning of a message. ValueError, IndexError or struct.error for what is none."""

    @abstractmethod
    def _message(self, kind: Kind, name: str, serial: int) -> bytes:
        """Return the beginning of a message."""

    @abstractmethod
    def _number(self, data: bytes, at: int) -> tuple[int, int]:
        """A length, and where the next thing begins."""

    @abstractmethod
    def _written(self, number: int) -> bytes:
        """A length."""

    def _integer(self, number: int) -> bytes:
        """A status, or the kind of an error."""
        return self._written(number)

    def _integer_at(self, data: bytes, at: int) -> int:
        return self._number(data, at)[0]

    def _count(self, data: bytes, at: int) -> tuple[int, int]:
        """Return how many events a list has, and where they begin."""
        return self._number(data, at)

    def _counted(self, events: int) -> bytes:
        """The number of events of a list."""
        return self._written(events)

    def _entries(self, data: bytes, at: int) -> tuple[int, int]:
        """Return how many headers an event has, and where they begin."""
        return self._number(data, at)

    def _begin(self, headers: int) -> bytes:
        """Return the first bytes of an event with so many headers."""
        return self.headers + self._written(headers)

    # --- both ends

    def call(self, serial: int, events: Sequence[bytes]) -> bytes:
        """The call of `appendBatch` with these events, encoded by `layout`."""
        head = self._message(Kind.CALL, "appendBatch", serial)
        return b"".join((head, self.many, self._counted(len(events)), *events, b"\0"))

    def answer(self, name: str, serial: int, status: ThriftStatus) -> bytes:
        """Return the answer of a server to a call."""
        return self._message(Kind.REPLY, name, serial) + self.result + self._integer(status) + b"\0"

    def complaint(self, name: str, serial: int, text: str, kind: int = PROTOCOL_ERROR) -> bytes:
        """Return the answer of a server to a call that it cannot read. The client raises it."""
        data = text.encode()
        error = self.text + self._written(len(data)) + data + self.error + self._integer(kind) + b"\0"
        return self._message(Kind.EXCEPTION, name, serial) + error

    def read_call(self, content: bytes) -> Message:
        """Read the beginning of a client's message. Raises ValueError if there is none."""
        if not self._begins(content):
            other = next((protocol.name for protocol in PROTOCOLS.values() if protocol._begins(content)), "")
            why = f"it speaks the protocol {other}: set protocol = {other}" if other else f"it sends {content[:20]!r}"
            raise ValueError(why)
        try:
            message = self._read(content)
        except (IndexError, struct.error):
            raise ValueError("a message ends within its head") from None
        if message.kind != Kind.CALL:
            raise ValueError(f"a message of kind {message.kind} is no call")
        return message

    def read_answer(self, content: bytes) -> Message:
        """Read the beginning of a server's message. Raises ValueError if there is none."""
        if not self._begins(content):
            raise ValueError(f"what it answers is not Thrift's protocol {self.name}")
        try:
            return self._read(content)
        except (IndexError, struct.error):
            raise ValueError("its answer ends within its head") from None

    def read_status(self, content: bytes, answer: Message) -> ThriftStatus:
        """Return the status in an answer. Raises ValueError if it reports an error, or cannot be read."""
        try:
            if answer.kind == Kind.EXCEPTION:
                size, at = self._number(content, _after(self.text, content, answer.at))
                raise ValueError(f"the server reports: {content[at : at + size].decode(errors='replace')[:500]}")
            return ThriftStatus(self._integer_at(content, _after(self.result, content, answer.at)))
        except (IndexError, struct.error):
            raise ValueError("its answer ends too early") from None

    # --- events

    def scan(self, data: bytes, at: int, *, many: bool) -> tuple[list[bytes], list[bytes]]:
        """For `RpcBatchBuilder`: headers, as Avro encodes them, and body of each event."""
        heads: list[bytes] = []
        bodies: list[bytes] = []
        at = _after(self.many if many else self.one, data, at)
        count, at = self._count(data, at) if many else (1, at)
        known, encoded, starts, number = b"\xff", b"", data.startswith, self._number
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
        count, at = self._entries(data, _after(self.headers, data, at))
        encoded = bytearray(zigzag(count))
        for _ in range(2 * count):
            size, at = self._number(data, at)
            stop = at + size
            if stop > len(data):
                raise ValueError("the request ends within an event")
            encoded += _LENGTHS[size] if size < len(_LENGTHS) else zigzag(size)
            encoded += data[at:stop]
            at = stop
        if count:
            encoded += b"\0"
        return bytes(encoded), at


def _after(wanted: bytes, data: bytes, at: int) -> int:
    """Return where `wanted`, which stands at `at`, ends. Raises ValueError if something else stands there."""
    if not data.startswith(wanted, at):
        raise ValueError(f"{data[at : at + len(wanted)]!r} where {wanted!r} belongs: no event of Flume's")
    return at + len(wanted)


def _text_at(content: bytes, at: int, size: int) -> str:
    """A name of so many bytes. ValueError where it is cut off."""
    if at + size > len(content):
        raise ValueError("a message ends within its name")
    return content[at : at + size].decode(errors="replace")


class _Compact(Protocol):
    """Short fields and numbers; Flume's default."""

    name = "compact"
    one, many, headers, body = b"\x1c", b"\x19", b"\x1b", b"\x18"
    result, text, error = b"\5\0", b"\x18", b"\x15"

    def _begins(self, content: bytes) -> bool:
        return content[:1] == b"\x82" and content[1:2] in (b"\x21", b"\x41", b"\x61", b"\x81")

    def _read(self, content: bytes) -> Message:
        serial, at = self._number(content, 2)
        size, at = self._number(content, at)
        return Message(content[1] >> 5, _text_at(content, at, size), serial, at + size)

    def _message(self, kind: Kind, name: str, serial: int) -> bytes:
        text = name.encode()
        return bytes((0x82, kind << 5 | 1)) + self._written(serial & 0xFFFFFFFF) + self._written(len(text)) + text

    def _number(self, data: bytes, at: int) -> tuple[int, int]:
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

    def _written(self, number: int) -> bytes:
        return unsigned_varint(number)

    def _integer(self, number: int) -> bytes:
        return zigzag(number)

    def _integer_at(self, data: bytes, at: int) -> int:
        return self._number(data, at)[0] >> 1

    def _count(self, data: bytes, at: int) -> tuple[int, int]:
        head = data[at]
        if head & 0x0F != 0x0C:
            raise ValueError("a list of something else than events")
        return self._number(data, at + 1) if head == 0xFC else (head >> 4, at + 1)

    def _counted(self, events: int) -> bytes:
        return bytes((events << 4 | 0x0C,)) if events < 15 else b"\xfc" + self._written(events)

    def _entries(self, data: bytes, at: int) -> tuple[int, int]:
        count, at = self._number(data, at)
        return count, _after(b"\x88", data, at) if count else at

    def _begin(self, headers: int) -> bytes:
        return self.headers + self._written(headers) + b"\x88" if headers else self.headers + b"\0"


class _Binary(Protocol):
    """Fields and numbers of fixed sizes."""

    name = "binary"
    one, many, headers, body = b"\x0c\0\1", b"\x0f\0\1\x0c", b"\x0d\0\1\x0b\x0b", b"\x0b\0\2"
    result, text, error = b"\x08\0\0", b"\x0b\0\1", b"\x08\0\2"

    def _begins(self, content: bytes) -> bool:
        return content[:3] == b"\x80\1\0" or content[:3] == b"\0\0\0"  # the latter as before Thrift 0.2

    def _read(self, content: bytes) -> Message:
        if content[:1] == b"\x80":
            size, at = self._number(content, 4)
            serial, _ = self._number(content, at + size)
            return Message(content[3], _text_at(content, at, size), serial, at + size + 4)
        size, at = self._number(content, 0)
        kind, serial = struct.unpack_from(">BI", content, at + size)
        return Message(kind, _text_at(content, at, size), serial, at + size + 5)

    def _message(self, kind: Kind, name: str, serial: int) -> bytes:
        text = name.encode()
        return b"\x80\1\0" + struct.pack(">BI", kind, len(text)) + text + _UINT.pack(serial & 0xFFFFFFFF)

    def _number(self, data: bytes, at: int) -> tuple[int, int]:
        return int(_UINT.unpack_from(data, at)[0]), at + 4

    def _written(self, number: int) -> bytes:
        return _UINT.pack(number)


PROTOCOLS: dict[str, Protocol] = {protocol.name: protocol for protocol in (_Compact(), _Binary())}
"""By the names of the option `protocol`."""
