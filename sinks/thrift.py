"""The thrift sink."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import MappingProxyType

from flafka.plugins import Batch
from flafka.plugins.shared.flumeevent import encode
from flafka.plugins.shared.thriftrpc import PROTOCOLS, Protocol, ThriftConfig, ThriftFrames, ThriftStatus, frame
from flafka.sinks.rpc import DIFFERENCES, MAX_ANSWER, ClientProtocol, RpcSink, RpcSinkConfig


class ThriftSinkConfig(ThriftConfig, RpcSinkConfig):
    """Options of the thrift sink."""

    options_without_effect = MappingProxyType(
        {
            "maxConnections": "one connection carries all requests",
            "connection-reset-interval": "Flume does not read it either: the option is `reset-connection-interval`",
            "client-principal": "Kerberos is not spoken",
            "client-keytab": "Kerberos is not spoken",
            "server-principal": "Kerberos is not spoken",
        }
    )


class ThriftSink(RpcSink[ThriftSinkConfig]):
    """Sends events to a thrift source, Flume's or ours, at least once: what was not answered OK is sent again."""

    type_name = "thrift"
    aliases = ("org.apache.flume.sink.ThriftSink",)
    compatibility_notes = DIFFERENCES

    def _encoded(self, batch: Batch) -> list[bytes]:
        return list(encode(batch, PROTOCOLS[self.config.protocol].layout).to_pylist())

    def _wire(self) -> _ThriftClientProtocol:
        return _ThriftClientProtocol(PROTOCOLS[self.config.protocol])


class _ThriftClientProtocol(ClientProtocol):
    """Thrift's messages in frames."""

    def __init__(self, protocol: Protocol) -> None:
        self._protocol = protocol
        self._frames = ThriftFrames(MAX_ANSWER)

    def request(self, serial: int, events: Sequence[bytes]) -> bytes:
        return frame(self._protocol.call(serial, events))

    def answers(self, data: bytes) -> Iterator[tuple[int, Callable[[], ThriftStatus]]]:
        for content in self._frames.feed(data):
            answer = self._protocol.read_answer(content)
            yield answer.serial, partial(self._protocol.read_status, content, answer)
