"""Kafka sink: writes events to topics for other programs."""

from flafka.sinks.kafka.config import KafkaSinkConfig
from flafka.sinks.kafka.sink import KafkaSink

__all__ = ["KafkaSink", "KafkaSinkConfig"]
