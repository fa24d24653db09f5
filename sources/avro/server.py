"""What is Avro's about the avro source: whom it lets in, its frames and its answers."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator

from plugins.shared.avrorpc import AvroFrames, AvroStatus, Greeting, answer, complaint, frame
from sources.avro.config import Rule, admitted
from sources.rpc import CALLS, Call, ServerProtocol
from sources.serving import Admission


class IpFilter(Admission):
    """Lets in whom `ipFilterRules` do."""

    def __init__(self, rules: list[Rule]) -> None:
        self._rules = rules
        self._by_name = any(rule.by_name for rule in rules)

    def denies(self, address: tuple[str, int]) -> bool:
        """Whether no rule needs the client's name, and they do not admit its address."""
        return not self._by_name and not admitted(self._rules, address[0], "")

    async def denies_name(self, address: tuple[str, int]) -> bool:
        """Whether a rule needs the client's name, and they do not admit it."""
        if not self._by_name:
            return False
        name = ""
        with contextlib.suppress(OSError):
            name, _ = await asyncio.get_running_loop().getnameinfo(address, socket.NI_NAMEREQD)
        return not admitted(self._rules, address[0], name)


class AvroServerProtocol(ServerProtocol):
    """The requests of one client, which began with a handshake."""

    what = "Avro RPC"

    def __init__(self, max_bytes: int) -> None:
        self._frames = AvroFrames(max_bytes)
        self._greeting = Greeting()

    @property
    def held(self) -> int:
        """See `ServerProtocol`."""
        return self._frames.held

    def feed(self, data: bytes) -> Iterator[Call | bytes]:
        """See `ServerProtocol`."""
        for serial, content in self._frames.feed(data):
            handshake, name, at = self._greeting.read(content)
            if not name:
                yield frame(serial, [handshake])
            elif name in CALLS:
                yield Call(name, serial, handshake, content, at)
            else:
                yield frame(serial, complaint(handshake, f"there is no message {name[:100]!r} here"))

    def answer(self, call: Call, *, stored: bool) -> bytes:
        """See `ServerProtocol`."""
        return frame(call.serial, answer(call.handshake, AvroStatus.OK if stored else AvroStatus.FAILED))

    def complaint(self, call: Call, reason: str) -> bytes:
        """See `ServerProtocol`."""
        return frame(call.serial, complaint(call.handshake, reason))
