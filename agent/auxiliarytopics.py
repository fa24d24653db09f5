"""Topics on a channel's brokers for dead letters and for audit reports."""

from __future__ import annotations

from typing import Any

from flafka.plugins import KafkaStream
from flafka.plugins.kafka.admin import create_topic
from flafka.plugins.kafka.clients import Access, Role, new_admin, new_producer, stream_client

AUXILIARY_TOPICS = Role(
    "dead letters, and reports for the audit",
    (Access("`<topic>.deadletters` and `audit.topic`", ("Read", "Write", "Describe", "Create")),),
)


def new_auxiliary_producer(stream: KafkaStream, topic: str, replication: int, *, days: int, **client: Any) -> Any:
    """Return a producer for a topic on the brokers of `stream`.

    A missing topic is created with one partition, `replication` replicas, and a retention of `days`. `client`
    overrides client properties. Raises KafkaException.
    """
    client = {**stream_client(stream), **client}
    admin = new_admin(AUXILIARY_TOPICS, client)
    if topic not in admin.list_topics(timeout=10).topics:
        create_topic(admin, topic, 1, replication, {"retention.ms": str(days * 86_400_000)}, 10)
    return new_producer(AUXILIARY_TOPICS, {**client, "message.max.bytes": 2 << 20})
