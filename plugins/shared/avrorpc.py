"""Flume's RPC: Avro's protocol AvroSourceProtocol in the frames of Avro's Netty transport.

A frame is a serial number, a number of buffers, and the buffers, each behind its length; all numbers are big-endian
int32. The first request of a connection begins with a handshake, in which both sides name their protocol by its MD5.
"""

from __future__ import annotations

import enum
import json
import struct
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

from flafka.plugins.options import ANY_CASE, Config, option
from flafka.plugins.shared.flumeevent import AvroReader, long_at, varint


class CompressionConfig(Config):
    """The option of both ends of a connection that compresses."""

    compression_type: Annotated[Literal["none", "deflate"], ANY_CASE] = option(
        "none",
        name="compression-type",
        description="Compression of the connection. It must be the same for client and source.",
    )


PROTOCOL_HASH = bytes.fromhex("86aadae2c45474c0fe93ffd0f2350a65")
"""MD5 of Flume's own text of the protocol, comments included: what its clients and servers know it by."""

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
"""The same without comments, for clients that know another text."""


class AvroStatus(enum.IntEnum):
    """What a server answers."""

    OK = 0
    FAILED = 1
    UNKNOWN = 2


# --- frames


def frame(serial: int, buffers: Sequence[bytes]) -> bytes:
    """One frame."""
    pieces = [struct.pack(">II", serial, len(buffers))]
    for buffer in buffers:
        pieces += (struct.pack(">I", len(buffer)), buffer)
    return b"".join(pieces)


class AvroFrames:
    """Cuts a stream into frames of at most `max_bytes`; nothing is allocated for bytes that have not come."""

    def __init__(self, max_bytes: int) -> None:
        self.held = 0
        """Bytes of the frame that has begun and not ended."""
        self._max = max_bytes
        self._buffer = bytearray()
        self._known = False
        self._serial = 0
        self._left: int | None = None
        """Buffers of the frame still to come; None between frames."""
        self._size = 0
        self._pieces: list[bytes] = []

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Serial number and content of each frame that is complete now. ValueError for what is no frame."""
        buffer = self._buffer
        buffer += data
        at = 0
        while True:
            if self._left is None:
                if len(buffer) - at < 8:
                    break
                self._serial, self._left = struct.unpack_from(">II", buffer, at)
                if not self._known:
                    _recognise(bytes(buffer[:8]))
                    self._known = True
                self._check(4 * self._left)
                at += 8
            elif self._left:
                if len(buffer) - at < 4:
                    break
                (size,) = struct.unpack_from(">I", buffer, at)
                self._check(self._size + size + 4 * self._left)
                if len(buffer) - at - 4 < size:
                    break
                self._pieces.append(bytes(buffer[at + 4 : at + 4 + size]))
                self._size += size
                self._left -= 1
                at += 4 + size
            if self._left == 0:
                content = b"".join(self._pieces)
                self._left, self._size = None, 0
                self._pieces.clear()
                yield self._serial, content
        del buffer[:at]
        self.held = len(buffer) + self._size + 4 * len(self._pieces)

    def _check(self, size: int) -> None:
        if size > self._max:
            raise ValueError(f"a frame of {size} bytes or more; at most {self._max} are accepted")


def _recognise(head: bytes) -> None:
    """ValueError for the first bytes of something else; as serial numbers no client begins with them."""
    if head[:2] == b"\x16\x03":
        raise ValueError("it speaks TLS, which is off here: set ssl = true")
    if head[0] == 0x78 and head[1] in (0x01, 0x5E, 0x9C, 0xDA):
        raise ValueError("it sends compressed data, which is off here: set compression-type = deflate")
    if head.isascii() and head[:3].isalpha():
        raise ValueError(f"it does not speak Avro RPC: it begins with {head!r}")


# --- handshakes and messages


def opening(*, first: bool, message: str) -> bytes:
    """The first buffer of a request; the `first` one of a connection shakes hands."""
    name = message.encode()
    # No protocol text, as the server knows it by its hash; empty maps of metadata.
    handshake = PROTOCOL_HASH + b"\0" + PROTOCOL_HASH + b"\2\0" if first else b""
    return handshake + b"\0" + varint(len(name)) + name


def read_answer(content: bytes, *, first: bool) -> AvroStatus:
    """What the server says. ValueError where it reports an error, or is not to be understood."""
    reader = _AvroReader(content)
    if first:
        match = reader.number()
        text, _ = reader.optional(reader.text), reader.optional(lambda: reader.take(16))
        reader.optional(reader.skip_map)
        if match == 2 and reader.at == len(content):
            raise ValueError(f"the server speaks another protocol: {(text or b'')[:100]!r}")
    reader.skip_map()
    if reader.take(1) != b"\0":
        reader.number()  # the kind of error: a text is the only one
        raise ValueError(f"the server reports: {reader.text().decode(errors='replace')[:500]}")
    return AvroStatus(reader.number())


def answer(handshake: bytes, status: AvroStatus) -> list[bytes]:
    """The buffers of an answer, cut as Flume's server cuts them."""
    return [handshake, b"\0", b"\0" + varint(status)]


def complaint(handshake: bytes, text: str) -> list[bytes]:
    """The buffers of an answer that reports an error, which the client raises."""
    data = text.encode()
    return [handshake, b"\0", b"\1\0" + varint(len(data)) + data]


class Greeting:
    """One connection as the server sees it: knows whether hands have been shaken."""

    def __init__(self) -> None:
        self._done = False

    def read(self, content: bytes) -> tuple[bytes, str, int]:
        """The handshake to answer with (empty after the first), the message's name, and where its arguments begin.

        The name is empty where the client only shakes hands, or must do so again with the text of its protocol.
        ValueError for what is no request.
        """
        reader = _AvroReader(content)
        handshake = b""
        if not self._done:
            client_hash = reader.take(16)
            text = reader.optional(reader.text)
            server_hash = reader.take(16)
            reader.optional(reader.skip_map)
            if client_hash != PROTOCOL_HASH and not (text and compatible(text)):
                return _handshake(2), "", 0
            self._done = True
            handshake = bytes(4) if server_hash == PROTOCOL_HASH else _handshake(1)
        if reader.at == len(content):
            return handshake, "", 0
        reader.skip_map()
        return handshake, reader.text().decode(errors="replace"), reader.at


def _handshake(match: int) -> bytes:
    text = json.dumps(PROTOCOL).encode()
    return varint(match) + b"\2" + varint(len(text)) + text + b"\2" + PROTOCOL_HASH + b"\0"


def compatible(text: bytes) -> bool:
    """Whether a client with this protocol sends the messages that we read, and nothing else."""
    try:
        theirs = json.loads(text)
        types = {t["name"]: _plain(t) for t in theirs["types"]}
        messages = {name: _plain(message["request"]) for name, message in theirs["messages"].items()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return False
    ours = {name: _plain(message["request"]) for name, message in PROTOCOL["messages"].items()}
    event = _plain(PROTOCOL["types"][1])
    return types.get("AvroFlumeEvent") == event and bool(messages) and messages.items() <= ours.items()


def _plain(schema: Any) -> Any:
    """A schema without comments and without what concerns Java only."""
    if isinstance(schema, dict):
        kept = {
            k: _plain(v) for k, v in schema.items() if k not in ("doc", "namespace") and not k.startswith("avro.")
        }
        return kept["type"] if kept.keys() == {"type"} else kept
    return [_plain(part) for part in schema] if isinstance(schema, list) else schema


# --- events


_ONE: Sequence[int | None] = [None if byte & 0x81 else byte >> 1 for byte in range(256)]
"""The length that this byte is; None where more bytes belong to it, or where it is none."""
_MANY = 1 << 40
_FIRST = [-_MANY if byte & 1 else byte >> 1 & 0x3F for byte in range(256)]
_SECOND = [-_MANY if byte & 0x80 else byte << 6 for byte in range(256)]
"""The length that two bytes are is the sum of what both have here; below 0 where they are none."""


def scan(data: bytes, at: int, *, many: bool) -> tuple[list[bytes], list[bytes]]:
    """Return headers, still encoded, and body of each event, or with `many` of the array of events."""
    heads: list[bytes] = []
    bodies: list[bytes] = []
    head, size = b"\xff", 1
    while True:
        count = 1
        if many:
            count, at = _block(data, at)
        for _ in range(count):
            begin = at + size
            if data[at:begin] != head:  # other headers than those of the event before
                begin = _after_headers(data, at)
                head, size = data[at:begin], begin - at
            length = _ONE[data[begin]]
            if length is not None:
                begin += 1
            elif (length := _FIRST[data[begin]] + _SECOND[data[begin + 1]]) >= 0:
                begin += 2
            else:
                length, begin = long_at(data, begin)
                _length(length)
            at = begin + length
            heads.append(head)
            bodies.append(data[begin:at])
        if at > len(data):
            raise ValueError("the request ends within an event")
        if not many or not count:
            break
    if at != len(data):
        raise ValueError(f"{len(data) - at} bytes follow the events")
    return heads, bodies


def _after_headers(data: bytes, at: int) -> int:
    """Where the headers that begin there end."""
    entries, at = _block(data, at)
    while entries:
        for _ in range(2 * entries):
            length = _ONE[data[at]]
            if length is None:
                length, at = long_at(data, at)
                at += _length(length)
            else:
                at += 1 + length
        entries, at = _block(data, at)
    return at


def _block(data: bytes, at: int) -> tuple[int, int]:
    """How many items a block of an array or a map has, and where they begin."""
    count = data[at]
    at += 1
    if count & 0x81:
        count, at = long_at(data, at - 1)
        if count < 0:  # the size of the block follows
            _, at = long_at(data, at)
        return abs(count), at
    return count >> 1, at


def _length(number: int) -> int:
    if number < 0:
        raise ValueError(f"a length of {number}")
    return number


class _AvroReader(AvroReader):
    def optional(self, read: Any) -> Any:
        """A union of null and that."""
        branch = self.number()
        if branch not in (0, 1):
            raise ValueError(f"branch {branch} of a union of two")
        return read() if branch else None

    def block(self) -> int:
        count = self.number()
        if count < 0:
            self.number()
        return abs(count)

    def skip_map(self) -> None:
        while count := self.block():
            for _ in range(count):
                self.text()
                self.text()


def array(events: Sequence[bytes]) -> bytes:
    """Events, each encoded by `flumeevent`, as one array."""
    return b"".join((varint(len(events)), *events, b"\0")) if events else b"\0"
