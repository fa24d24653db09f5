"""The source `kafka`: topics of other programs."""

from sources.kafka.config import KafkaSourceConfig
from sources.kafka.source import KafkaSource

__all__ = ["KafkaSource", "KafkaSourceConfig"]
