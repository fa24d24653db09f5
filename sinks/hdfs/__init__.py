"""The HDFS sink: each event in exactly one file."""

from flafka.sinks.hdfs.config import HdfsConfig
from flafka.sinks.hdfs.sink import HdfsSink

__all__ = ["HdfsConfig", "HdfsSink"]
