"""The thrift source: Flume's RPC by Thrift, for its clients and thrift sinks."""

from __future__ import annotations

from collections.abc import Iterator
from types import MappingProxyType

from flafka.plugins import CompatibilityNote
from flafka.plugins.shared.rpcevents import RpcBatchBuilder
from flafka.plugins.shared.thriftrpc import (
    PROTOCOLS,
    UNKNOWN_METHOD,
    Protocol,
    ThriftConfig,
    ThriftFrames,
    ThriftStatus,
    frame,
)
from flafka.sources.listening import Endpoint
from flafka.sources.rpc import CALLS, DIFFERENCES, Call, RpcConfig, RpcServer, RpcSource, ServerProtocol


class ThriftSourceConfig(ThriftConfig, RpcConfig):
    """Options of the thrift source."""

    options_without_effect = MappingProxyType(
        {
            "agent-principal": "Kerberos is not spoken",
            "agent-keytab": "Kerberos is not spoken",
            "keymanager-type": "there is one kind",
        }
    )


class ThriftSource(RpcSource[ThriftSourceConfig]):
    """Receives events by Flume's Thrift RPC at least once: OK is answered when all required channels have them.

    A client that gets FAILED, or no answer, sends its events again; those stored already are then there twice.
    """

    type_name = "thrift"
    aliases = ("org.apache.flume.source.ThriftSource",)
    compatibility_notes = (
        CompatibilityNote(
            flume="frames up to 16,384,000 bytes are read", here="`maxRequestBytes` (32 MiB), `frameTimeout`"
        ),
        CompatibilityNote(
            flume="a client of the other `protocol` waits for its timeout",
            here="its connection is closed at once, and the log names the protocol to set",
        ),
        *DIFFERENCES,
    )

    def _serve(self, endpoint: Endpoint) -> RpcServer[ThriftSourceConfig]:
        protocol, most = PROTOCOLS[self.config.protocol], self.config.max_request_bytes
        return RpcServer(self, endpoint, lambda: _ThriftServerProtocol(protocol, most))

    def _events(self) -> RpcBatchBuilder:
        return RpcBatchBuilder(PROTOCOLS[self.config.protocol].scan)


class _ThriftServerProtocol(ServerProtocol):
    """The calls of one client."""

    what = "Thrift"

    def __init__(self, protocol: Protocol, max_bytes: int) -> None:
        self._protocol = protocol
        self._frames = ThriftFrames(max_bytes)

    @property
    def held(self) -> int:
        return self._frames.held

    def feed(self, data: bytes) -> Iterator[Call | bytes]:
        for content in self._frames.feed(data):
            _, name, serial, at = self._protocol.read_call(content)
            if name in CALLS:
                yield Call(name, serial, b"", content, at)
            else:
                text = f"there is no call {name[:100]!r} here"
                yield frame(self._protocol.complaint(name[:100], serial, text, UNKNOWN_METHOD))

    def answer(self, call: Call, *, stored: bool) -> bytes:
        status = ThriftStatus.OK if stored else ThriftStatus.FAILED
        return frame(self._protocol.answer(call.name, call.serial, status))

    def complaint(self, call: Call, reason: str) -> bytes:
        return frame(self._protocol.complaint(call.name, call.serial, reason))
