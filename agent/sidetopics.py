"""Topics beside a channel's, on its brokers: dead letters, and reports for the audit."""

from __future__ import annotations

from typing import Any

from flafka.plugins import KafkaStream
from flafka.plugins.kafka.admin import create_topic
from flafka.plugins.kafka.clients import Access, Role, new_admin, new_producer, stream_client

BESIDE = Role(
    "dead letters, and reports for the audit",
    (Access("`<topic>.deadletters` and `audit.topic`", ("Read", "Write", "Describe", "Create")),),
)


def producer_to(stream: KafkaStream, topic: str, replication: int, *, days: int, **client: Any) -> Any:
    """Return a producer for a topic beside a channel's. A missing topic is created with one partition.

    Such a topic keeps its records for so many days. Raises KafkaException.
    """
    client = {**stream_client(stream), **client}
    admin = new_admin(BESIDE, client)
    if topic not in admin.list_topics(timeout=10).topics:
        create_topic(admin, topic, 1, replication, {"retention.ms": str(days * 86_400_000)}, 10)
    return new_producer(BESIDE, {**client, "message.max.bytes": 2 << 20})
