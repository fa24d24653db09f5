"""Topics on a channel's brokers for dead letters and for audit reports."""

from __future__ import annotations

import contextlib
from typing import Any

from confluent_kafka import KafkaException

from flafka.plugins import KafkaStream, Retry
from flafka.plugins.kafka.admin import create_topic, refused_operations
from flafka.plugins.kafka.clients import new_admin, new_producer, stream_client
from flafka.plugins.kafka.errors import explain_error, to_retry
from flafka.plugins.kafka.rights import Access, Role

DEAD_LETTERS = Role("dead letters", (Access("topic", "`<topic>.deadletters`", ("Write", "Create")),))
DEAD_LETTER_READER = Role(
    "`agent dlq list`, `agent dlq show`", (Access("topic", "`<topic>.deadletters`", ("Read",)),)
)
AUDIT = Role("reports for the audit", (Access("topic", "`audit.topic`", ("Write", "Create")),))
AUDIT_READER = Role("`agent audit`", (Access("topic", "`audit.topic`", ("Read",)),))


def new_auxiliary_producer(
    role: Role, stream: KafkaStream, topic: str, replication: int, *, days: int, **properties: Any
) -> Any:
    """Return a producer for a topic on the brokers of `stream`.

    A missing topic is created with one partition, `replication` replicas, and a retention of `days`. `properties`
    override the stream's client properties. Raises Unreachable while brokers do not answer, and Retry if they refuse.
    """
    client = {**stream_client(stream), **properties}
    try:
        admin = new_admin(role, client)
        if topic not in admin.list_topics(timeout=10).topics:
            try:
                create_topic(admin, topic, 1, replication, {"retention.ms": str(days * 86_400_000)}, 10)
            except KafkaException as e:
                right = refused_operations(admin, topic, ["Write"])
                raise Retry(explain_error(e, topic=topic, right=right, client=client)) from e
        return new_producer(role, {**client, "message.max.bytes": 2 << 20})
    except (KafkaException, TimeoutError) as e:
        raise to_retry(e, explain_error(e)) from e


def explain_write_error(error: object, stream: KafkaStream, topic: str) -> str:
    """Return the text of an error of such a producer, with the right that is missing on its topic."""
    client: dict[str, Any] | None = None
    with contextlib.suppress(Retry):  # a key store that cannot be read now
        client = stream_client(stream)
    return explain_error(error, topic=topic, right="Write", client=client)
