"""The HBase sink: each event a row, written over itself when it is delivered again."""

from flafka.sinks.hbase.config import HBaseConfig
from flafka.sinks.hbase.sink import HBaseSink

__all__ = ["HBaseConfig", "HBaseSink"]
