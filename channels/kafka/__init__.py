"""The channel `kafka`: holds events in a replicated topic, which sinks share and Spark can read."""

from flafka.channels.kafka.channel import KafkaChannel
from flafka.channels.kafka.config import KafkaChannelConfig

__all__ = ["KafkaChannel", "KafkaChannelConfig"]
