"""HBase sink: writes each event to a row, which a redelivery overwrites."""

from flafka.sinks.hbase.config import HBaseConfig
from flafka.sinks.hbase.sink import HBaseSink

__all__ = ["HBaseConfig", "HBaseSink"]
