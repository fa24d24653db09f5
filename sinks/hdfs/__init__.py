"""The HDFS sink: each event in exactly one file."""

from sinks.hdfs.config import HdfsConfig
from sinks.hdfs.sink import HdfsSink

__all__ = ["HdfsConfig", "HdfsSink"]
