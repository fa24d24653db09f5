"""Flume's Thrift RPC: the service ThriftSourceProtocol, in frames, with the protocols compact and binary.

A frame is its size, a big-endian int32, and a message. The service has two calls, whose argument is one event or a
list of events. An event is a struct of a map of headers and a body, both required. The service has not changed since
Flume 1.4. All writers of a struct write its fields in order, and no other order is read.

Thrift's libraries for Python create an object for each event, also for a wrong number of events in a malformed
request. thriftpy2 takes 80 µs for an event of the compact protocol, and 34 s and 400 MB for 4 MB of zeros.
"""

from __future__ import annotations

import enum
import struct
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Annotated, Literal, NamedTuple

import pydantic

from flafka.plugins.options import ANY_CASE, Config, option
from flafka.plugins.wire.flumeevent import Layout, encode_long, encode_unsigned_varint

UNKNOWN_METHOD = 1
PROTOCOL_ERROR = 7
"""Types of Thrift's `TApplicationException`."""
_SASL = b"\1\0\0\0\6GSSAPI"
_LENGTHS = tuple(encode_long(size) for size in range(256))
"""Avro's encoding of most lengths, by length."""
_UINT = struct.Struct(">I")


class ThriftConfig(Config):
    """Options of both ends of a connection."""

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


def encode_frame(content: bytes) -> bytes:
    """Return a frame with this message."""
    return _UINT.pack(len(content)) + content


class ThriftFrameDecoder:
    """Decoder of a stream of frames of at most `max_bytes`. Allocates memory only for received bytes."""

    def __init__(self, max_bytes: int) -> None:
        self._max = max_bytes
        self._buffer = bytearray()

    @property
    def buffered_bytes(self) -> int:
        """Bytes of the incomplete frame."""
        return len(self._buffer)

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the content of each frame that `data` completes; keep the remainder for the next call.

        Raises ValueError for a frame of more than `max_bytes`, and for other protocols and Kerberos.
        """
        buffer = self._buffer
        buffer += data
        offset = 0
        while len(buffer) - offset >= 4:
            (size,) = _UINT.unpack_from(buffer, offset)
            if size > self._max:
                raise ValueError(_frame_fault(bytes(buffer[offset : offset + 4]), size, self._max))
            if len(buffer) - offset - 4 < size:
                if buffer.startswith(_SASL, offset):
                    raise ValueError("it asks for Kerberos, which is not spoken here")
                break
            content = bytes(buffer[offset + 4 : offset + 4 + size])
            offset += 4 + size
            yield content
        del buffer[:offset]


def _frame_fault(head: bytes, size: int, max_bytes: int) -> str:
    """Return the reason for a refused frame: the protocol to which its first 4 bytes belong, or its size."""
    if head[:2] == b"\x16\x03":
        return "it speaks TLS, which is off here: set ssl = true"
    if head[:3] == b"\x80\1\0" or head[:2] == b"\x82\x21":
        return "it sends messages without frames, which Flume does not take either: let it use TFramedTransport"
    if head.isascii() and head[:3].isalpha():
        return f"it begins with {head!r}"
    return f"a frame of {size} bytes; at most {max_bytes} are accepted"


# --- messages


class ThriftStatus(enum.IntEnum):
    """Status in a response."""

    OK = 0
    FAILED = 1
    ERROR = 2
    UNKNOWN = 3


class MessageKind(enum.IntEnum):
    """Kind of a message."""

    CALL = 1
    REPLY = 2
    EXCEPTION = 3


class ThriftMessage(NamedTuple):
    """Head of a message."""

    kind: int
    name: str
    serial: int
    offset: int
    """Offset of the arguments or the result."""


class ThriftProtocol(ABC):
    """Protocol of Thrift. The constants are the bytes before a part of a message."""

    name: str
    event: bytes
    """Before the event of `append`."""
    events: bytes
    """Before the number of events of `appendBatch`."""
    headers: bytes
    """Before the number of headers."""
    body: bytes
    """Before the length of a body."""
    result: bytes
    """Before the status of a call."""
    text: bytes
    """Before the length of an error's text."""
    error: bytes
    """Before the type of an error."""

    def __init__(self) -> None:
        self.layout = Layout(self._event_start, self._encode_length, lambda _: self.body, b"\0")
        """Layout with which `flumeevent` encodes events for this protocol."""

    @abstractmethod
    def _is_start(self, content: bytes) -> bool:
        """Return True if `content` begins like a message of this protocol."""

    @abstractmethod
    def _read_head(self, content: bytes) -> ThriftMessage:
        """Return the head of a message. Raises ValueError, IndexError or struct.error for malformed data."""

    @abstractmethod
    def _encode_head(self, kind: MessageKind, name: str, serial: int) -> bytes:
        """Return the head of a message."""

    @abstractmethod
    def _decode_length(self, data: bytes, offset: int) -> tuple[int, int]:
        """Return the length at `offset`, and its end.

        Raises IndexError or struct.error if the data ends within it.
        """

    @abstractmethod
    def _encode_length(self, number: int) -> bytes:
        """Return the bytes of a length."""

    def _encode_integer(self, number: int) -> bytes:
        """Return the bytes of a status, or of the type of an error."""
        return self._encode_length(number)

    def _decode_integer(self, data: bytes, offset: int) -> int:
        """Return the status, or the type of an error, at `offset`."""
        return self._decode_length(data, offset)[0]

    def _decode_event_count(self, data: bytes, offset: int) -> tuple[int, int]:
        """Return the number of events of the list at `offset`, and the offset of the first event."""
        return self._decode_length(data, offset)

    def _encode_event_count(self, events: int) -> bytes:
        """Return the bytes of the number of events of a list."""
        return self._encode_length(events)

    def _decode_header_count(self, data: bytes, offset: int) -> tuple[int, int]:
        """Return the number of headers of an event, and the offset of the first header."""
        return self._decode_length(data, offset)

    def _event_start(self, headers: int) -> bytes:
        """Return the bytes of an event before its first header, given the number of its headers."""
        return self.headers + self._encode_length(headers)

    # --- both ends

    def encode_call(self, serial: int, events: Sequence[bytes]) -> bytes:
        """Return a call of `appendBatch` with events that are encoded with `layout`.

        The response has the same `serial`.
        """
        head = self._encode_head(MessageKind.CALL, "appendBatch", serial)
        return b"".join((head, self.events, self._encode_event_count(len(events)), *events, b"\0"))

    def encode_response(self, name: str, serial: int, status: ThriftStatus) -> bytes:
        """Return the response to the call of this method name and serial number."""
        return self._encode_head(MessageKind.REPLY, name, serial) + self.result + self._encode_integer(status) + b"\0"

    def encode_error(self, name: str, serial: int, text: str, kind: int = PROTOCOL_ERROR) -> bytes:
        """Return the response to an unreadable call, which the client raises as an error.

        `kind` is a type of `TApplicationException`.
        """
        data = text.encode()
        error = self.text + self._encode_length(len(data)) + data + self.error + self._encode_integer(kind) + b"\0"
        return self._encode_head(MessageKind.EXCEPTION, name, serial) + error

    def read_call(self, content: bytes) -> ThriftMessage:
        """Return the head of a call.

        Raises ValueError for any other message, with a hint at the protocol that it speaks.
        """
        if not self._is_start(content):
            other = next((protocol.name for protocol in PROTOCOLS.values() if protocol._is_start(content)), "")
            hint = (
                f"it speaks the protocol {other}: set protocol = {other}" if other else f"it sends {content[:20]!r}"
            )
            raise ValueError(hint)
        try:
            message = self._read_head(content)
        except (IndexError, struct.error):
            raise ValueError("a message ends within its head") from None
        if message.kind != MessageKind.CALL:
            raise ValueError(f"a message of kind {message.kind} is no call")
        return message

    def read_response(self, content: bytes) -> ThriftMessage:
        """Return the head of a response. Raises ValueError for another protocol, or a message that ends too early."""
        if not self._is_start(content):
            raise ValueError(f"what it answers is not Thrift's protocol {self.name}")
        try:
            return self._read_head(content)
        except (IndexError, struct.error):
            raise ValueError("its answer ends within its head") from None

    def read_status(self, content: bytes, response: ThriftMessage) -> ThriftStatus:
        """Return the status in a response, whose head is `response`.

        Raises ValueError if the server reports an error, or for malformed data.
        """
        try:
            if response.kind == MessageKind.EXCEPTION:
                size, offset = self._decode_length(content, _end_of(self.text, content, response.offset))
                raise ValueError(
                    f"the server reports: {content[offset : offset + size].decode(errors='replace')[:500]}"
                )
            return ThriftStatus(self._decode_integer(content, _end_of(self.result, content, response.offset)))
        except (IndexError, struct.error):
            raise ValueError("its answer ends too early") from None

    # --- events

    def scan(self, data: bytes, offset: int, *, is_batch: bool) -> tuple[list[bytes], list[bytes]]:
        """Return two lists for `RpcBatchBuilder`: the headers of each event, encoded by Avro, and the bodies.

        Without `is_batch` there is one event. Raises ValueError, IndexError or struct.error for malformed data.
        """
        heads: list[bytes] = []
        bodies: list[bytes] = []
        offset = _end_of(self.events if is_batch else self.event, data, offset)
        count, offset = self._decode_event_count(data, offset) if is_batch else (1, offset)
        known, encoded, startswith, number = b"\xff", b"", data.startswith, self._decode_length
        for _ in range(count):
            if startswith(known, offset):  # the headers of the previous event
                offset += len(known)
            else:
                start = offset
                encoded, offset = self._transcode_headers(data, offset)
                offset = _end_of(self.body, data, offset)
                known = data[start:offset]
            size, offset = number(data, offset)
            stop = offset + size
            if stop >= len(data):
                raise ValueError("the request ends within an event")
            if data[stop]:
                raise ValueError("an event has more than headers and body")
            heads.append(encoded)
            bodies.append(data[offset:stop])
            offset = stop + 1
        if data[offset:] != b"\0":
            raise ValueError(f"{len(data) - offset} bytes follow the events")
        return heads, bodies

    def _transcode_headers(self, data: bytes, offset: int) -> tuple[bytes, int]:
        """Return the headers at `offset` in Avro's encoding, and their end. Raises as `scan`."""
        count, offset = self._decode_header_count(data, _end_of(self.headers, data, offset))
        encoded = bytearray(encode_long(count))
        for _ in range(2 * count):
            size, offset = self._decode_length(data, offset)
            stop = offset + size
            if stop > len(data):
                raise ValueError("the request ends within an event")
            encoded += _LENGTHS[size] if size < len(_LENGTHS) else encode_long(size)
            encoded += data[offset:stop]
            offset = stop
        if count:
            encoded += b"\0"
        return bytes(encoded), offset


def _end_of(expected: bytes, data: bytes, offset: int) -> int:
    """Return the end of `expected` at `offset`. Raises ValueError if other bytes are there."""
    if not data.startswith(expected, offset):
        raise ValueError(f"{data[offset : offset + len(expected)]!r} where {expected!r} belongs: no event of Flume's")
    return offset + len(expected)


def _decode_name(content: bytes, offset: int, size: int) -> str:
    """Return a name of `size` bytes. Raises ValueError if the message ends before."""
    if offset + size > len(content):
        raise ValueError("a message ends within its name")
    return content[offset : offset + size].decode(errors="replace")


class _Compact(ThriftProtocol):
    """The compact protocol: short fields and numbers; Flume's default."""

    name = "compact"
    event, events, headers, body = b"\x1c", b"\x19", b"\x1b", b"\x18"
    result, text, error = b"\5\0", b"\x18", b"\x15"

    def _is_start(self, content: bytes) -> bool:
        return content[:1] == b"\x82" and content[1:2] in (b"\x21", b"\x41", b"\x61", b"\x81")

    def _read_head(self, content: bytes) -> ThriftMessage:
        serial, offset = self._decode_length(content, 2)
        size, offset = self._decode_length(content, offset)
        return ThriftMessage(content[1] >> 5, _decode_name(content, offset, size), serial, offset + size)

    def _encode_head(self, kind: MessageKind, name: str, serial: int) -> bytes:
        text = name.encode()
        return (
            bytes((0x82, kind << 5 | 1))
            + self._encode_length(serial & 0xFFFFFFFF)
            + self._encode_length(len(text))
            + text
        )

    def _decode_length(self, data: bytes, offset: int) -> tuple[int, int]:
        byte = data[offset]
        if byte < 0x80:
            return byte, offset + 1
        number, shift = byte & 0x7F, 7
        while shift < 35:
            offset += 1
            byte = data[offset]
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number, offset + 1
            shift += 7
        raise ValueError("a number of more than five bytes")

    def _encode_length(self, number: int) -> bytes:
        return encode_unsigned_varint(number)

    def _encode_integer(self, number: int) -> bytes:
        return encode_long(number)

    def _decode_integer(self, data: bytes, offset: int) -> int:
        return self._decode_length(data, offset)[0] >> 1

    def _decode_event_count(self, data: bytes, offset: int) -> tuple[int, int]:
        head = data[offset]
        if head & 0x0F != 0x0C:
            raise ValueError("a list of something else than events")
        return self._decode_length(data, offset + 1) if head == 0xFC else (head >> 4, offset + 1)

    def _encode_event_count(self, events: int) -> bytes:
        return bytes((events << 4 | 0x0C,)) if events < 15 else b"\xfc" + self._encode_length(events)

    def _decode_header_count(self, data: bytes, offset: int) -> tuple[int, int]:
        count, offset = self._decode_length(data, offset)
        return count, _end_of(b"\x88", data, offset) if count else offset

    def _event_start(self, headers: int) -> bytes:
        return self.headers + self._encode_length(headers) + b"\x88" if headers else self.headers + b"\0"


class _Binary(ThriftProtocol):
    """The binary protocol: fields and numbers of fixed size."""

    name = "binary"
    event, events, headers, body = b"\x0c\0\1", b"\x0f\0\1\x0c", b"\x0d\0\1\x0b\x0b", b"\x0b\0\2"
    result, text, error = b"\x08\0\0", b"\x0b\0\1", b"\x08\0\2"

    def _is_start(self, content: bytes) -> bool:
        return content[:3] == b"\x80\1\0" or content[:3] == b"\0\0\0"  # the latter before Thrift 0.2

    def _read_head(self, content: bytes) -> ThriftMessage:
        if content[:1] == b"\x80":
            size, offset = self._decode_length(content, 4)
            serial, _ = self._decode_length(content, offset + size)
            return ThriftMessage(content[3], _decode_name(content, offset, size), serial, offset + size + 4)
        size, offset = self._decode_length(content, 0)
        kind, serial = struct.unpack_from(">BI", content, offset + size)
        return ThriftMessage(kind, _decode_name(content, offset, size), serial, offset + size + 5)

    def _encode_head(self, kind: MessageKind, name: str, serial: int) -> bytes:
        text = name.encode()
        return b"\x80\1\0" + struct.pack(">BI", kind, len(text)) + text + _UINT.pack(serial & 0xFFFFFFFF)

    def _decode_length(self, data: bytes, offset: int) -> tuple[int, int]:
        return int(_UINT.unpack_from(data, offset)[0]), offset + 4

    def _encode_length(self, number: int) -> bytes:
        return _UINT.pack(number)


PROTOCOLS: dict[str, ThriftProtocol] = {protocol.name: protocol for protocol in (_Compact(), _Binary())}
"""Protocols by value of the option `protocol`."""
