"""The avro sink."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import MappingProxyType

from flafka.plugins import Batch, option
from flafka.plugins.shared.avrorpc import (
    AvroFrames,
    AvroStatus,
    CompressionConfig,
    array,
    frame,
    opening,
    read_answer,
)
from flafka.plugins.shared.flumeevent import encode
from flafka.sinks.rpc import DIFFERENCES, MAX_ANSWER, ClientProtocol, RpcSink, RpcSinkConfig


class AvroSinkConfig(CompressionConfig, RpcSinkConfig):
    """Options of the avro sink."""

    options_without_effect = MappingProxyType({"maxIoWorkers": "one thread sends all requests"})
    compression_level: int = option(
        6,
        name="compression-level",
        description="Level of compression with deflate, from 0 (fastest) to 9 (smallest requests).",
        ge=0,
        le=9,
    )


class AvroSink(RpcSink[AvroSinkConfig]):
    """Sends events to an avro source, Flume's or ours, at least once: what was not answered OK is sent again."""

    type_name = "avro"
    aliases = ("org.apache.flume.sink.AvroSink",)
    compatibility_notes = DIFFERENCES

    def _encoded(self, batch: Batch) -> list[bytes]:
        return list(encode(batch).to_pylist())

    def _wire(self) -> _AvroClientProtocol:
        return _AvroClientProtocol(self.config)


class _AvroClientProtocol(ClientProtocol):
    """Avro's frames, deflated where that is wished."""

    def __init__(self, config: AvroSinkConfig) -> None:
        self._frames = AvroFrames(MAX_ANSWER)
        deflate = config.compression_type == "deflate"
        self._deflate = zlib.compressobj(config.compression_level) if deflate else None
        self._inflate = zlib.decompressobj() if deflate else None

    def request(self, serial: int, events: Sequence[bytes]) -> bytes:
        data = frame(serial, [opening(first=serial == 1, message="appendBatch"), array(events)])
        if self._deflate is not None:
            data = self._deflate.compress(data) + self._deflate.flush(zlib.Z_SYNC_FLUSH)
        return data

    def answers(self, data: bytes) -> Iterator[tuple[int, Callable[[], AvroStatus]]]:
        if self._inflate is not None:
            data = self._inflate.decompress(data, MAX_ANSWER)
        for serial, content in self._frames.feed(data):
            yield serial, partial(read_answer, content, first=serial == 1)
