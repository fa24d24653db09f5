"""Thrift sink."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import MappingProxyType

from flafka.plugins import Batch
from flafka.plugins.wire.flumeevent import encode
from flafka.plugins.wire.thriftrpc import (
    PROTOCOLS,
    ThriftConfig,
    ThriftFrameDecoder,
    ThriftProtocol,
    ThriftStatus,
    encode_frame,
)
from flafka.sinks.rpc import MAX_RESPONSE_BYTES, RPC_COMPATIBILITY, ClientProtocol, RpcSink, RpcSinkConfig


class ThriftSinkConfig(ThriftConfig, RpcSinkConfig):
    """Options of the thrift sink."""

    options_without_effect = MappingProxyType(
        {
            "maxConnections": "one connection carries all requests",
            "connection-reset-interval": "Flume ignores it, too: the option is `reset-connection-interval`",
            "client-principal": "Kerberos is not supported",
            "client-keytab": "Kerberos is not supported",
            "server-principal": "Kerberos is not supported",
        }
    )


class ThriftSink(RpcSink[ThriftSinkConfig]):
    """Sends events to a thrift source of Flume or Flafka at least once: unanswered requests are repeated."""

    type_name = "thrift"
    aliases = ("org.apache.flume.sink.ThriftSink",)
    compatibility_notes = RPC_COMPATIBILITY

    def _encode_events(self, batch: Batch) -> list[bytes]:
        return list(encode(batch, PROTOCOLS[self.config.protocol].layout).to_pylist())

    def _new_protocol(self) -> _ThriftClientProtocol:
        return _ThriftClientProtocol(PROTOCOLS[self.config.protocol])


class _ThriftClientProtocol(ClientProtocol):
    """Thrift messages in frames."""

    def __init__(self, protocol: ThriftProtocol) -> None:
        self._protocol = protocol
        self._frames = ThriftFrameDecoder(MAX_RESPONSE_BYTES)

    def encode_request(self, serial: int, events: Sequence[bytes]) -> bytes:
        return encode_frame(self._protocol.encode_call(serial, events))

    def decode_responses(self, data: bytes) -> Iterator[tuple[int, Callable[[], ThriftStatus]]]:
        for content in self._frames.feed(data):
            answer = self._protocol.read_response(content)
            yield answer.serial, partial(self._protocol.read_status, content, answer)
