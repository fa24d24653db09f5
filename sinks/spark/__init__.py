"""The Spark sink: a function of yours over the stream of events."""

from sinks.spark.config import SparkSinkConfig
from sinks.spark.sink import SparkSink

__all__ = ["SparkSink", "SparkSinkConfig"]
