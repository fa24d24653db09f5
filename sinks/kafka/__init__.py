"""The sink `kafka`: topics for other programs."""

from sinks.kafka.config import KafkaSinkConfig
from sinks.kafka.sink import KafkaSink

__all__ = ["KafkaSink", "KafkaSinkConfig"]
