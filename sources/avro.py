"""Source `avro`: Flume's RPC by Avro, for its clients, appenders and avro sinks."""

from __future__ import annotations

from collections.abc import Iterator

from flafka.plugins import CompatibilityNote, cross_field_validator, option
from flafka.plugins.wire.avrorpc import (
    AvroFrameDecoder,
    AvroStatus,
    CompressionConfig,
    ServerHandshake,
    encode_error,
    encode_frame,
    encode_response,
    scan,
)
from flafka.plugins.wire.rpcevents import RpcBatchBuilder
from flafka.sources.ipfilter import IpFilter, Rule
from flafka.sources.listening import Endpoint
from flafka.sources.rpc import CALLS, RPC_COMPATIBILITY, Call, RpcConfig, RpcServer, RpcSource, ServerProtocol


class AvroConfig(CompressionConfig, RpcConfig):
    """Options of the source `avro`."""

    ip_filter: bool = option(False, name="ipFilter", description="Check each client against `ipFilterRules`.")
    ip_filter_rules: str = option(
        "",
        name="ipFilterRules",
        description="Rules such as `allow:ip:10.1.*,allow:name:localhost,deny:ip:*`, separated by commas. The "
        "first rule that matches a client decides; clients that match no rule are admitted.",
    )

    @cross_field_validator("ip_filter_rules", "ip_filter")
    def _readable_rules(self) -> None:
        """Raise ValueError if `ipFilter` is true and the rules are missing or have a wrong syntax."""
        if self.ip_filter and not self.rules():
            raise ValueError("is required with ipFilter = true")

    def rules(self) -> list[Rule]:
        """Return the parsed `ipFilterRules` in their order; none unless `ipFilter` is true.

        Raises ValueError for a rule with a wrong syntax.
        """
        texts = [text.strip() for text in self.ip_filter_rules.split(",") if text.strip()]
        return [Rule.parse(text) for text in texts] if self.ip_filter else []


_ANSWERS = {
    stored: encode_frame(0, encode_response(b"", status))[4:]
    for stored, status in ((True, AvroStatus.OK), (False, AvroStatus.FAILED))
}
"""Answer behind its serial number, without a handshake, by success."""


class _AvroServerProtocol(ServerProtocol):
    """Avro RPC of one client, which begins with a handshake."""

    protocol_name = "Avro RPC"

    def __init__(self, max_bytes: int) -> None:
        self._frames = AvroFrameDecoder(max_bytes)
        self._handshake = ServerHandshake()

    @property
    def partial_bytes(self) -> int:
        return self._frames.buffered_bytes

    def feed(self, data: bytes) -> Iterator[Call | bytes]:
        """Yield complete calls; a handshake without a call and an unknown method are answered at once.

        Raises ValueError for data that is no Avro RPC, or a request larger than `max_bytes`.
        """
        for serial, content in self._frames.feed(data):
            handshake, name, offset = self._handshake.read_request(content)
            if not name:
                yield encode_frame(serial, [handshake])
            elif name in CALLS:
                yield Call(name, serial, handshake, content, offset)
            else:
                yield encode_frame(serial, encode_error(handshake, f"there is no message {name[:100]!r} here"))

    def answer(self, call: Call, *, stored: bool) -> bytes:
        if not call.handshake:
            return call.serial.to_bytes(4, "big") + _ANSWERS[stored]
        return encode_frame(
            call.serial, encode_response(call.handshake, AvroStatus.OK if stored else AvroStatus.FAILED)
        )

    def error_answer(self, call: Call, reason: str) -> bytes:
        return encode_frame(call.serial, encode_error(call.handshake, reason))


class AvroSource(RpcSource[AvroConfig]):
    """Receive events by Flume's Avro RPC at least once: OK is answered when every required channel has stored them.

    A client that gets FAILED, or no answer, sends its events again: events stored before are then duplicated.
    """

    type_name = "avro"
    aliases = ("org.apache.flume.source.AvroSource",)
    compatibility_notes = (
        CompatibilityNote(
            flume="a request of any size is read",
            here="`maxRequestBytes`, `frameTimeout`",
        ),
        *RPC_COMPATIBILITY,
        CompatibilityNote(
            flume="from version 1.11 on, ssl with deflate deflates encrypted data",
            here="data is deflated before its encryption, as in Flume up to 1.10; with clients of Flume 1.11, use "
            "either TLS or compression",
            option="compression-type",
        ),
    )

    def _serve(self, endpoint: Endpoint) -> RpcServer[AvroConfig]:
        config = self.config
        return RpcServer(
            self,
            endpoint,
            lambda: _AvroServerProtocol(config.max_request_bytes),
            deflate=config.compression_type == "deflate",
            ip_filter=IpFilter(config.rules()),
        )

    def _events(self) -> RpcBatchBuilder:
        return RpcBatchBuilder(scan)
