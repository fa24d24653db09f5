"""Options of the Kafka sink."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pydantic

from flafka.plugins import Config, option, with_default
from flafka.plugins.kafka.config import ProducerConfig, check_topic_name, check_writable_topic
from flafka.plugins.kafka.properties import parse_number
from flafka.plugins.kafka.rights import Access, Role
from flafka.sinks.bucketpath import BucketPath, literal_text

TRANSACTION_MS = 60_000
"""Default of `transaction.timeout.ms`."""
SINK = Role(
    "the sink `kafka`",
    (
        Access(
            *("topic", "topics that a sink `kafka` writes", ("Write",)),
            (("DescribeConfigs", "too large events show when brokers refuse their whole request"),),
        ),
        Access("topic", "the topic of a channel `kafka`", ("Read",)),
        Access("group", "the consumer groups of a channel `kafka` and of its sinks", ("Read",)),
        Access("transactional id", "the transactional ids that begin with `flafka.`", ("Write",)),
    ),
)
COMMIT_LOG = Role(
    "the commit log of a sink `kafka`",
    (Access("topic", "`<topic>.positions`", ("Read", "Write", "Create")),),
)


class KafkaSinkConfig(ProducerConfig):
    """Options of the Kafka sink."""

    topic: str = option(
        name="kafka.topic",
        description="Topic to write to. It may contain Flume's escape sequences, as in logs-%{host}.",
        min_length=1,
    )
    allow_topic_override: bool = option(
        True,
        name="allowTopicOverride",
        description="Write an event to the topic that its header topicHeader names, if it has that header. An event "
        "that names the topic of the sink's own channel is rejected.",
    )
    topic_header: str = option(
        "topic",
        name="topicHeader",
        description="Header that contains the name of the topic; see allowTopicOverride.",
        min_length=1,
    )
    batch_size: int = option(
        10_000,
        name="flumeBatchSize",
        unit="events",
        ge=1,
        description="Number of events after which a transaction ends.",
    )
    flush_interval: int = option(
        200,
        name="flushInterval",
        unit="ms",
        ge=1,
        description="Time after which a transaction ends, even if it has fewer events.",
    )
    use_flume_event_format: bool = option(
        False,
        name="useFlumeEventFormat",
        description="Write records as Flume's Avro events, which include the headers; otherwise bodies alone.",
    )
    timestamp_header: str | None = option(
        None,
        name="timestampHeader",
        description="Header that contains the time of the record, in milliseconds since the epoch.",
    )
    headers: dict[str, str] = option(
        {},
        name="header.",
        description="`header.<name>` is the record header that gets the value of the event's header <name>.",
    )

    @classmethod
    def for_type(cls, written_type: str) -> type[Config]:
        """Return the class of options, which has Flume's defaults if the type is written as Flume's class name."""
        return FlumeKafkaSinkConfig if "." in written_type else cls

    @classmethod
    def producer_properties(cls, client: Mapping[str, Any]) -> dict[str, Any]:
        """Return all properties of a producer with transactions, from the client properties of the options.

        A record may not outlast its transaction: configured timeouts of delivery are cut to `transaction.timeout.ms`.
        The value of `transactional.id` is a placeholder.
        """
        timeouts = [name for name in client if name in ("message.timeout.ms", "delivery.timeout.ms")]
        limit = parse_number(client.get("transaction.timeout.ms", TRANSACTION_MS)) or TRANSACTION_MS
        capped = {name: str(int(limit)) for name in timeouts if not 0 < (parse_number(client[name]) or 0) <= limit}
        return {**super().producer_properties({**client, **capped}), "transactional.id": "flafka"}

    def produced_topics(self) -> list[str]:
        """Return the topic as a list if it is the same for all events; an empty list if it has escapes."""
        return [] if "%" in self.topic else [self.topic]

    def topic_header_used(self) -> str | None:
        """Return the name of the header that names a topic; None if allowTopicOverride is off."""
        return self.topic_header if self.allow_topic_override else None

    @pydantic.field_validator("topic")
    @classmethod
    def _check_topic(cls, topic: str) -> str:
        if BucketPath(topic).fixed_prefix == topic:
            return check_writable_topic(topic)
        if text := literal_text(topic):
            check_topic_name(text)
        return topic


class FlumeKafkaSinkConfig(KafkaSinkConfig):
    """Options under Flume's class name, with the names of its oldest versions."""

    deprecated_aliases = MappingProxyType(
        {"kafka.topic": "topic", "kafka.bootstrap.servers": "brokerList", "flumeBatchSize": "batchSize"}
    )
    bootstrap_servers: str = with_default(KafkaSinkConfig, "bootstrap_servers")
    topic: str = with_default(KafkaSinkConfig, "topic", "default-flume-topic")
    batch_size: int = with_default(KafkaSinkConfig, "batch_size", 100)
    options_without_effect = MappingProxyType({"requiredAcks": "all in-sync replicas always acknowledge"})
