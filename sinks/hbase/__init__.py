"""The HBase sink: each event a row, written over itself when it is delivered again."""

from sinks.hbase.config import HBaseConfig
from sinks.hbase.sink import HBaseSink

__all__ = ["HBaseConfig", "HBaseSink"]
