"""The channel `kafka`: holds events in a replicated topic, which sinks share and Spark can read."""

from channels.kafka.channel import KafkaChannel
from channels.kafka.config import KafkaChannelConfig

__all__ = ["KafkaChannel", "KafkaChannelConfig"]
