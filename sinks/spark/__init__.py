"""Spark sink: runs a user's function over the stream of events."""

from flafka.sinks.spark.config import SparkSinkConfig
from flafka.sinks.spark.sink import SparkSink

__all__ = ["SparkSink", "SparkSinkConfig"]
