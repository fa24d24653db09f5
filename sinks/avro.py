"""Avro sink."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import MappingProxyType

from flafka.plugins import Batch, option
from flafka.plugins.wire.avrorpc import (
    AvroFrameDecoder,
    AvroStatus,
    CompressionConfig,
    encode_array,
    encode_frame,
    encode_request_head,
    read_response,
)
from flafka.plugins.wire.flumeevent import encode
from flafka.sinks.rpc import MAX_RESPONSE_BYTES, RPC_COMPATIBILITY, ClientProtocol, RpcSink, RpcSinkConfig


class AvroSinkConfig(CompressionConfig, RpcSinkConfig):
    """Options of the avro sink."""

    options_without_effect = MappingProxyType({"maxIoWorkers": "one thread sends all requests"})
    compression_level: int = option(
        6,
        name="compression-level",
        description="Compression level of deflate, from 0 (fastest) to 9 (smallest requests).",
        ge=0,
        le=9,
    )


class AvroSink(RpcSink[AvroSinkConfig]):
    """Sends events to an avro source of Flume or Flafka at least once: unanswered requests are repeated."""

    type_name = "avro"
    aliases = ("org.apache.flume.sink.AvroSink",)
    compatibility_notes = RPC_COMPATIBILITY

    def _encode_events(self, batch: Batch) -> list[bytes]:
        return list(encode(batch).to_pylist())

    def _new_protocol(self) -> _AvroClientProtocol:
        return _AvroClientProtocol(self.config)


class _AvroClientProtocol(ClientProtocol):
    """Avro's frames, with deflate if configured."""

    def __init__(self, config: AvroSinkConfig) -> None:
        self._frames = AvroFrameDecoder(MAX_RESPONSE_BYTES)
        deflate = config.compression_type == "deflate"
        self._deflate = zlib.compressobj(config.compression_level) if deflate else None
        self._inflate = zlib.decompressobj() if deflate else None

    def encode_request(self, serial: int, events: Sequence[bytes]) -> bytes:
        data = encode_frame(
            serial, [encode_request_head(first=serial == 1, message="appendBatch"), encode_array(events)]
        )
        if self._deflate is not None:
            data = self._deflate.compress(data) + self._deflate.flush(zlib.Z_SYNC_FLUSH)
        return data

    def decode_responses(self, data: bytes) -> Iterator[tuple[int, Callable[[], AvroStatus]]]:
        if self._inflate is not None:
            data = self._inflate.decompress(data, MAX_RESPONSE_BYTES)
        for serial, content in self._frames.feed(data):
            yield serial, partial(read_response, content, first=serial == 1)
