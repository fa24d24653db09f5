"""Source `thrift`: Flume's RPC by Thrift, for its clients and thrift sinks."""

from __future__ import annotations

from collections.abc import Iterator
from types import MappingProxyType

from flafka.plugins import CompatibilityNote
from flafka.plugins.wire.rpcevents import RpcBatchBuilder
from flafka.plugins.wire.thriftrpc import (
    PROTOCOLS,
    UNKNOWN_METHOD,
    ThriftConfig,
    ThriftFrameDecoder,
    ThriftProtocol,
    ThriftStatus,
    encode_frame,
)
from flafka.sources.listening import Endpoint
from flafka.sources.rpc import CALLS, RPC_COMPATIBILITY, Call, RpcConfig, RpcServer, RpcSource, ServerProtocol


class ThriftSourceConfig(ThriftConfig, RpcConfig):
    """Options of the source `thrift`."""

    options_without_effect = MappingProxyType(
        {
            "agent-principal": "Kerberos is not spoken",
            "agent-keytab": "Kerberos is not spoken",
            "keymanager-type": "there is one kind",
        }
    )


class ThriftSource(RpcSource[ThriftSourceConfig]):
    """Receive events by Flume's Thrift RPC at least once: OK is answered when all required channels have them.

    A client that gets FAILED, or no answer, sends its events again: events stored before are then duplicated.
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
        *RPC_COMPATIBILITY,
    )

    def _serve(self, endpoint: Endpoint) -> RpcServer[ThriftSourceConfig]:
        protocol, max_bytes = PROTOCOLS[self.config.protocol], self.config.max_request_bytes
        return RpcServer(self, endpoint, lambda: _ThriftServerProtocol(protocol, max_bytes))

    def _events(self) -> RpcBatchBuilder:
        return RpcBatchBuilder(PROTOCOLS[self.config.protocol].scan)


class _ThriftServerProtocol(ServerProtocol):
    """Thrift calls of one client."""

    protocol_name = "Thrift"

    def __init__(self, protocol: ThriftProtocol, max_bytes: int) -> None:
        self._protocol = protocol
        self._frames = ThriftFrameDecoder(max_bytes)

    @property
    def partial_bytes(self) -> int:
        return self._frames.buffered_bytes

    def feed(self, data: bytes) -> Iterator[Call | bytes]:
        """Yield complete calls, and an error answer for each unknown method.

        Raises ValueError for data that is no Thrift RPC, or a request larger than `max_bytes`.
        """
        for content in self._frames.feed(data):
            _, name, serial, offset = self._protocol.read_call(content)
            if name in CALLS:
                yield Call(name, serial, b"", content, offset)
            else:
                text = f"there is no call {name[:100]!r} here"
                yield encode_frame(self._protocol.encode_error(name[:100], serial, text, UNKNOWN_METHOD))

    def answer(self, call: Call, *, stored: bool) -> bytes:
        status = ThriftStatus.OK if stored else ThriftStatus.FAILED
        return encode_frame(self._protocol.encode_response(call.name, call.serial, status))

    def error_answer(self, call: Call, reason: str) -> bytes:
        return encode_frame(self._protocol.encode_error(call.name, call.serial, reason))
