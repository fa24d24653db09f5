"""Source `avro`: Flume's RPC by Avro, for its clients, appenders and avro sinks."""

from __future__ import annotations

from collections.abc import Iterator

from flafka.plugins import CompatibilityNote, cross_field_validator, option
from flafka.plugins.shared.avrorpc import (
    AvroFrames,
    AvroStatus,
    CompressionConfig,
    Greeting,
    answer,
    complaint,
    frame,
    scan,
)
from flafka.plugins.shared.rpcevents import RpcBatchBuilder
from flafka.sources.ipfilter import IpFilter, Rule
from flafka.sources.listening import Endpoint
from flafka.sources.rpc import CALLS, DIFFERENCES, Call, RpcConfig, RpcServer, RpcSource, ServerProtocol


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
        if self.ip_filter and not self.rules():
            raise ValueError("is required with ipFilter = true")

    def rules(self) -> list[Rule]:
        """Return the rules in force, in their order."""
        texts = [text.strip() for text in self.ip_filter_rules.split(",") if text.strip()]
        return [Rule.parse(text) for text in texts] if self.ip_filter else []


class _AvroServerProtocol(ServerProtocol):
    """Requests of one client, which begin with a handshake."""

    what = "Avro RPC"

    def __init__(self, max_bytes: int) -> None:
        self._frames = AvroFrames(max_bytes)
        self._greeting = Greeting()

    @property
    def held(self) -> int:
        return self._frames.held

    def feed(self, data: bytes) -> Iterator[Call | bytes]:
        for serial, content in self._frames.feed(data):
            handshake, name, at = self._greeting.read(content)
            if not name:
                yield frame(serial, [handshake])
            elif name in CALLS:
                yield Call(name, serial, handshake, content, at)
            else:
                yield frame(serial, complaint(handshake, f"there is no message {name[:100]!r} here"))

    def answer(self, call: Call, *, stored: bool) -> bytes:
        return frame(call.serial, answer(call.handshake, AvroStatus.OK if stored else AvroStatus.FAILED))

    def complaint(self, call: Call, reason: str) -> bytes:
        return frame(call.serial, complaint(call.handshake, reason))


class AvroSource(RpcSource[AvroConfig]):
    """Receives events by Flume's Avro RPC at least once: OK is answered when every required channel has stored them.

    A client that gets FAILED, or no answer, sends its events again; those stored already are then there twice.
    """

    type_name = "avro"
    aliases = ("org.apache.flume.source.AvroSource",)
    compatibility_notes = (
        CompatibilityNote(
            flume="a request of any size is read",
            here="`maxRequestBytes`, `frameTimeout`",
        ),
        *DIFFERENCES,
        CompatibilityNote(
            flume="ssl and deflate together deflate what is encrypted already, from version 1.11 on",
            here="what is encrypted was deflated before, as Flume did up to 1.10; beside a Flume 1.11, switch "
            "compression off where TLS is on",
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
            admission=IpFilter(config.rules()),
        )

    def _events(self) -> RpcBatchBuilder:
        return RpcBatchBuilder(scan)
