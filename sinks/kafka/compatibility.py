"""Compatibility notes of the Kafka sink."""

from __future__ import annotations

from flafka.plugins import CompatibilityNote

KAFKA = (
    CompatibilityNote(
        flume="an event counts as delivered by `kafka.producer.acks`, when one replica has it by default",
        here="it counts as delivered when all in-sync replicas have it",
    ),
    CompatibilityNote(
        flume="an event for a partition or topic that does not exist, one whose time is further from now than "
        "the topic allows, and one without `key` for a compacted topic stop the sink",
        here="they go to the dead letters",
    ),
    CompatibilityNote(
        flume="an event whose header `topicHeader` names the topic of the sink's own channel is written there, and "
        "read again",
        here="it goes to the dead letters",
    ),
)
