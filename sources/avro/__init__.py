"""The avro source: Flume's RPC, for its clients, appenders and avro sinks."""

from sources.avro.config import AvroConfig
from sources.avro.source import AvroSource

__all__ = ["AvroConfig", "AvroSource"]
