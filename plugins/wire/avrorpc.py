"""Flume's Avro RPC: the protocol AvroSourceProtocol in the frames of Avro's Netty transport.

A frame is a serial number, a number of buffers, and the buffers, each after its length. All numbers are big-endian
int32. The first request of a connection begins with a handshake: both sides identify their protocol by its MD5.
"""

from __future__ import annotations

import enum
import json
import struct
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

from flafka.plugins.options import ANY_CASE, Config, option
from flafka.plugins.wire.flumeevent import AvroReader, decode_long, encode_long


class CompressionConfig(Config):
    """Option of both ends of a connection for its compression."""

    compression_type: Annotated[Literal["none", "deflate"], ANY_CASE] = option(
        "none",
        name="compression-type",
        description="Compression of the connection. It must be the same for client and source.",
    )


PROTOCOL_HASH = bytes.fromhex("86aadae2c45474c0fe93ffd0f2350a65")
"""MD5 of Flume's text of the protocol, with comments, by which clients and servers identify it."""

PROTOCOL: dict[str, Any] = {
    "protocol": "AvroSourceProtocol",
    "namespace": "org.apache.flume.source.avro",
    "types": [
        {"type": "enum", "name": "Status", "symbols": ["OK", "FAILED", "UNKNOWN"]},
        {
            "type": "record",
            "name": "AvroFlumeEvent",
            "fields": [
                {"name": "headers", "type": {"type": "map", "values": "string"}},
                {"name": "body", "type": "bytes"},
            ],
        },
    ],
    "messages": {
        "append": {"request": [{"name": "event", "type": "AvroFlumeEvent"}], "response": "Status"},
        "appendBatch": {
            "request": [{"name": "events", "type": {"type": "array", "items": "AvroFlumeEvent"}}],
            "response": "Status",
        },
    },
}
"""Flume's protocol without comments, for clients with another text of it."""


class AvroStatus(enum.IntEnum):
    """Status in a response."""

    OK = 0
    FAILED = 1
    UNKNOWN = 2


# --- frames


def encode_frame(serial: int, buffers: Sequence[bytes]) -> bytes:
    """Return a frame with this serial number and these buffers."""
    pieces = [struct.pack(">II", serial, len(buffers))]
    for buffer in buffers:
        pieces += (struct.pack(">I", len(buffer)), buffer)
    return b"".join(pieces)


class AvroFrameDecoder:
    """Decoder of a stream of frames of at most `max_bytes`. Allocates memory only for received bytes."""

    def __init__(self, max_bytes: int) -> None:
        self.buffered_bytes = 0
        """Bytes of the incomplete frame."""
        self._max = max_bytes
        self._buffer = bytearray()
        self._is_checked = False
        self._serial = 0
        self._missing_buffers: int | None = None
        """Number of buffers missing in the frame; None between frames."""
        self._size = 0
        self._pieces: list[bytes] = []

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Yield serial number and joined buffers of each frame that `data` completes.

        The remainder is kept for the next call. Raises ValueError for a frame of more than `max_bytes`, or if the
        stream begins with another protocol.
        """
        buffer = self._buffer
        buffer += data
        offset = 0
        while True:
            if self._missing_buffers is None:
                if len(buffer) - offset < 8:
                    break
                self._serial, self._missing_buffers = struct.unpack_from(">II", buffer, offset)
                if not self._is_checked:
                    _check_protocol(bytes(buffer[:8]))
                    self._is_checked = True
                self._check_size(4 * self._missing_buffers)
                offset += 8
            elif self._missing_buffers:
                if len(buffer) - offset < 4:
                    break
                (size,) = struct.unpack_from(">I", buffer, offset)
                self._check_size(self._size + size + 4 * self._missing_buffers)
                if len(buffer) - offset - 4 < size:
                    break
                self._pieces.append(bytes(buffer[offset + 4 : offset + 4 + size]))
                self._size += size
                self._missing_buffers -= 1
                offset += 4 + size
            if self._missing_buffers == 0:
                content = b"".join(self._pieces)
                self._missing_buffers, self._size = None, 0
                self._pieces.clear()
                yield self._serial, content
        del buffer[:offset]
        self.buffered_bytes = len(buffer) + self._size + 4 * len(self._pieces)

    def _check_size(self, size: int) -> None:
        """Raise ValueError if a frame of at least `size` bytes is too large."""
        if size > self._max:
            raise ValueError(f"a frame of {size} bytes or more; at most {self._max} are accepted")


def _check_protocol(head: bytes) -> None:
    """Raise ValueError if the first 8 bytes of a connection belong to another protocol.

    No client starts with these bytes as a serial number.
    """
    if head[:2] == b"\x16\x03":
        raise ValueError("it speaks TLS, which is off here: set ssl = true")
    if head[0] == 0x78 and head[1] in (0x01, 0x5E, 0x9C, 0xDA):
        raise ValueError("it sends compressed data, which is off here: set compression-type = deflate")
    if head.isascii() and head[:3].isalpha():
        raise ValueError(f"it does not speak Avro RPC: it begins with {head!r}")


# --- handshakes and messages


def encode_request_head(*, first: bool, message: str) -> bytes:
    """Return the first buffer of a request: metadata and the name of the message.

    The `first` request of a connection begins with a handshake.
    """
    name = message.encode()
    # The server knows the protocol by its hash, so its text is omitted; the maps of metadata are empty.
    handshake = PROTOCOL_HASH + b"\0" + PROTOCOL_HASH + b"\2\0" if first else b""
    return handshake + b"\0" + encode_long(len(name)) + name


_REQUEST_HEADS = [(encode_request_head(first=False, message=name), name) for name in PROTOCOL["messages"]]
"""First bytes of a request after a handshake, without metadata, and the name of its message."""


def read_response(content: bytes, *, first: bool) -> AvroStatus:
    """Return the status in a response. The `first` response on a connection begins with a handshake.

    Raises ValueError if the server reports an error, speaks another protocol, or sends malformed data.
    """
    reader = _AvroReader(content)
    if first:
        match = reader.number()
        text, _ = reader.optional(reader.text), reader.optional(lambda: reader.take(16))
        reader.optional(reader.skip_map)
        if match == 2 and reader.offset == len(content):
            raise ValueError(f"the server speaks another protocol: {(text or b'')[:100]!r}")
    reader.skip_map()
    if reader.take(1) != b"\0":
        reader.number()  # branch of the union of errors; a text is the only one
        raise ValueError(f"the server reports: {reader.text().decode(errors='replace')[:500]}")
    return AvroStatus(reader.number())


def encode_response(handshake: bytes, status: AvroStatus) -> list[bytes]:
    """Return the buffers of a response, divided as by Flume's server.

    `handshake` is from `ServerHandshake.read_request`, and empty after the first response.
    """
    return [handshake, b"\0", b"\0" + encode_long(status)]


def encode_error(handshake: bytes, text: str) -> list[bytes]:
    """Return the buffers of a response with an error, which the client raises.

    `handshake` is that of `encode_response`.
    """
    data = text.encode()
    return [handshake, b"\0", b"\1\0" + encode_long(len(data)) + data]


class ServerHandshake:
    """Handshake of one connection, on the side of the server."""

    def __init__(self) -> None:
        self._is_complete = False

    def read_request(self, content: bytes) -> tuple[bytes, str, int]:
        """Return the handshake to answer with, the message's name, and the offset of its arguments.

        The handshake is empty after the first request. The name is empty if the client sends only a handshake, or
        must repeat it with the text of its protocol. Raises ValueError for a malformed request.
        """
        if self._is_complete:
            for head, name in _REQUEST_HEADS:
                if content.startswith(head):
                    return b"", name, len(head)
        reader = _AvroReader(content)
        handshake = b""
        if not self._is_complete:
            client_hash = reader.take(16)
            text = reader.optional(reader.text)
            server_hash = reader.take(16)
            reader.optional(reader.skip_map)
            if client_hash != PROTOCOL_HASH and not (text and is_compatible(text)):
                return _handshake(2), "", 0
            self._is_complete = True
            handshake = bytes(4) if server_hash == PROTOCOL_HASH else _handshake(1)
        if reader.offset == len(content):
            return handshake, "", 0
        reader.skip_map()
        return handshake, reader.text().decode(errors="replace"), reader.offset


def _handshake(match: int) -> bytes:
    """Return a server's handshake with the text of its protocol.

    `match` is 1 if the server accepts the client's protocol (CLIENT), and 2 if not (NONE).
    """
    text = json.dumps(PROTOCOL).encode()
    return encode_long(match) + b"\2" + encode_long(len(text)) + text + b"\2" + PROTOCOL_HASH + b"\0"


def is_compatible(text: bytes) -> bool:
    """Return True if all messages of a client's protocol, given as JSON, occur in Flume's protocol."""
    try:
        protocol = json.loads(text)
        types = {t["name"]: _essentials(t) for t in protocol["types"]}
        messages = {name: _essentials(message["request"]) for name, message in protocol["messages"].items()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return False
    known = {name: _essentials(message["request"]) for name, message in PROTOCOL["messages"].items()}
    event = _essentials(PROTOCOL["types"][1])
    return types.get("AvroFlumeEvent") == event and bool(messages) and messages.items() <= known.items()


def _essentials(schema: Any) -> Any:
    """Return a schema without comments, namespaces and properties for Java."""
    if isinstance(schema, dict):
        essentials = {
            k: _essentials(v)
            for k, v in schema.items()
            if k not in ("doc", "namespace") and not k.startswith("avro.")
        }
        return essentials["type"] if essentials.keys() == {"type"} else essentials
    return [_essentials(part) for part in schema] if isinstance(schema, list) else schema


# --- events


_SINGLE_BYTE_LENGTHS: Sequence[int | None] = [None if byte & 0x81 else byte >> 1 for byte in range(256)]
"""Length encoded by one byte; None if the length has more bytes, or is negative."""
_INVALID = 1 << 40
_FIRST_BYTES = [-_INVALID if byte & 1 else byte >> 1 & 0x3F for byte in range(256)]
_SECOND_BYTES = [-_INVALID if byte & 0x80 else byte << 6 for byte in range(256)]
"""Terms of a length of two bytes: the sum of both terms, negative if the length has more bytes, or is negative."""


def scan(data: bytes, offset: int, *, is_batch: bool) -> tuple[list[bytes], list[bytes]]:
    """Return two lists: the encoded headers and the body of one event, or of each event of an array if `is_batch`.

    The events are from `offset` to the end of `data`. Raises ValueError or IndexError for malformed data.
    """
    encoded_headers: list[bytes] = []
    bodies: list[bytes] = []
    head, size = b"\xff", 1
    while True:
        count = 1
        if is_batch:
            count, offset = _block(data, offset)
        for _ in range(count):
            start = offset + size
            if data[offset:start] != head:  # the previous event has other headers
                start = _after_headers(data, offset)
                head, size = data[offset:start], start - offset
            length = _SINGLE_BYTE_LENGTHS[data[start]]
            if length is not None:
                start += 1
            elif (length := _FIRST_BYTES[data[start]] + _SECOND_BYTES[data[start + 1]]) >= 0:
                start += 2
            else:
                length, start = decode_long(data, start)
                _check_length(length)
            offset = start + length
            encoded_headers.append(head)
            bodies.append(data[start:offset])
        if offset > len(data):
            raise ValueError("the request ends within an event")
        if not is_batch or not count:
            break
    if offset != len(data):
        raise ValueError(f"{len(data) - offset} bytes follow the events")
    return encoded_headers, bodies


def _after_headers(data: bytes, offset: int) -> int:
    """Return the end of the headers that begin at `offset`.

    Raises ValueError or IndexError for malformed data.
    """
    entries, offset = _block(data, offset)
    while entries:
        for _ in range(2 * entries):
            length = _SINGLE_BYTE_LENGTHS[data[offset]]
            if length is None:
                length, offset = decode_long(data, offset)
                offset += _check_length(length)
            else:
                offset += 1 + length
        entries, offset = _block(data, offset)
    return offset


def _block(data: bytes, offset: int) -> tuple[int, int]:
    """Return the number of items of the block of an array or map at `offset`, and the offset of the first item.

    The number is 0 at the end of the array or map.
    """
    count = data[offset]
    offset += 1
    if count & 0x81:
        count, offset = decode_long(data, offset - 1)
        if count < 0:  # a negative count is followed by the size of the block
            _, offset = decode_long(data, offset)
        return abs(count), offset
    return count >> 1, offset


def _check_length(number: int) -> int:
    """Return the number. Raises ValueError if it is negative, and so no length."""
    if number < 0:
        raise ValueError(f"a length of {number}")
    return number


class _AvroReader(AvroReader):
    """Reader of Avro's encoding of handshakes and responses.

    Methods raise ValueError if the data ends too early.
    """

    def optional(self, read: Any) -> Any:
        """Return the value of a union of null and a type: the result of `read()`, or None."""
        branch = self.number()
        if branch not in (0, 1):
            raise ValueError(f"branch {branch} of a union of two")
        return read() if branch else None

    def block(self) -> int:
        """Return the number of items of the next block of an array or map; 0 at its end."""
        count = self.number()
        if count < 0:
            self.number()
        return abs(count)

    def skip_map(self) -> None:
        """Move behind a map of texts or bytes."""
        while count := self.block():
            for _ in range(count):
                self.text()
                self.text()


def encode_array(events: Sequence[bytes]) -> bytes:
    """Return an Avro array of events that `flumeevent` has encoded, as one block and the end."""
    return b"".join((encode_long(len(events)), *events, b"\0")) if events else b"\0"
