"""The source `kafka`: topics of other programs."""

from flafka.sources.kafka.config import KafkaSourceConfig
from flafka.sources.kafka.source import KafkaSource

__all__ = ["KafkaSource", "KafkaSourceConfig"]
