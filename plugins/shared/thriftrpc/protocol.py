"""What the protocols of Thrift share: calls, answers and events, and what stands at their places."""

from __future__ import annotations

import enum
import struct
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

from plugins.shared.flumeevent import Layout
from plugins.shared.flumeevent import varint as zigzag

PROTOCOLS: dict[str, Protocol] = {}
"""By the names of the option `protocol`; `thriftrpc` enters them."""
_LENGTHS = tuple(zigzag(size) for size in range(256))
"""Of most texts, as Avro encodes them."""


class ThriftStatus(enum.IntEnum):
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

    def answer(self, name: str, serial: int, status: ThriftStatus) -> bytes:
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

    def read_status(self, content: bytes, answer: Message) -> ThriftStatus:
        """What it answers. ValueError where it reports an error, or is not to be understood."""
        try:
            if answer.kind == Kind.EXCEPTION:
                text = self.error_at(content, answer.at).decode(errors="replace")
                raise ValueError(f"the server reports: {text[:500]}")
            return ThriftStatus(self.status_at(content, answer.at))
        except (IndexError, struct.error):
            raise ValueError("its answer ends too early") from None

    # --- events

    def scan(self, data: bytes, at: int, *, many: bool) -> tuple[list[bytes], list[bytes]]:
        """For `RpcBatchBuilder`: headers, as Avro encodes them, and body of each event."""
        heads: list[bytes] = []
        bodies: list[bytes] = []
        at = after(self.many if many else self.one, data, at)
        count, at = self.count(data, at) if many else (1, at)
        known, encoded, starts, number = b"\xff", b"", data.startswith, self.number
        for _ in range(count):
            if starts(known, at):  # the same headers again
                at += len(known)
            else:
                begin = at
                encoded, at = self._headers(data, at)
                at = after(self.body, data, at)
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
        count, at = self.entries(data, after(self.headers, data, at))
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


def after(wanted: bytes, data: bytes, at: int) -> int:
    """Where what follows `wanted` begins. ValueError where something else stands there."""
    if not data.startswith(wanted, at):
        raise ValueError(f"{data[at : at + len(wanted)]!r} where {wanted!r} belongs: no event of Flume's")
    return at + len(wanted)


def text_at(content: bytes, at: int, size: int) -> str:
    """A name of so many bytes. ValueError where it is cut off."""
    if at + size > len(content):
        raise ValueError("a message ends within its name")
    return content[at : at + size].decode(errors="replace")
