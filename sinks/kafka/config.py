"""Options of the Kafka sink."""

from __future__ import annotations

from collections.abc import Iterator
from types import MappingProxyType
from typing import Self

import pydantic
from confluent_kafka import KafkaException, Producer

from plugins import Config, Problem, option
from plugins.shared.kafkaclient import QUIET, KafkaEndConfig, client_properties, ignored
from sinks.bucketpath import BucketPath


class KafkaSinkConfig(KafkaEndConfig):
    """Options of the Kafka sink."""

    bootstrap_servers: str | None = option(
        None,
        name="kafka.bootstrap.servers",
        description="Addresses of brokers, host:port, separated by commas. Default: the cluster of `agent cluster "
        "start`.",
    )
    topic: str = option(
        name="kafka.topic",
        description="Topic to write to. It may contain Flume's escapes, as in logs-%{host}.",
        min_length=1,
    )
    allow_topic_override: bool = option(
        True,
        name="allowTopicOverride",
        description="Whether an event goes to the topic that its header topicHeader names, where it has that header.",
    )
    topic_header: str = option(
        "topic",
        name="topicHeader",
        description="Header that names the topic of an event; see allowTopicOverride.",
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
        description="Time after which a transaction ends, however few events it has.",
    )
    use_flume_event_format: bool = option(
        False,
        name="useFlumeEventFormat",
        description="Whether records are Flume's Avro events, which include headers; false writes bodies alone.",
    )
    partition_id_header: str | None = option(
        None, name="partitionIdHeader", description="Header that contains the number of the partition to write to."
    )
    default_partition_id: int | None = option(
        None,
        name="defaultPartitionId",
        ge=0,
        description="Partition for events without the header partitionIdHeader. Default: that of the header "
        "`key`, or else any.",
    )
    timestamp_header: str | None = option(
        None,
        name="timestampHeader",
        description="Header that contains the time of the record, in milliseconds since the epoch.",
    )
    headers: dict[str, str] = option(
        {},
        name="header.",
        description="`header.<name>`: name of the record header that gets the value of the event's header <name>.",
    )
    producer: dict[str, str] = option(
        {},
        name="kafka.producer.",
        description="Properties of the Kafka producer, by librdkafka's names or Java's. `acks` is always `all`.",
    )

    @classmethod
    def for_type(cls, written_type: str) -> type[Config]:
        """Under Flume's class name its rules and defaults hold."""
        return FlumeKafkaSinkConfig if "." in written_type else cls

    def writes(self) -> list[str]:
        """Its topic, where that is the same for all events."""
        return [] if "%" in self.topic else [self.topic]

    def follows(self) -> str | None:
        """The header that names a topic."""
        return self.topic_header if self.allow_topic_override else None

    def cautions(self) -> Iterator[Problem]:
        """Properties that do nothing here."""
        yield from ignored("kafka.producer.", self.producer)

    @pydantic.field_validator("topic")
    @classmethod
    def _check_topic(cls, value: str) -> str:
        BucketPath(value)
        return value

    @pydantic.model_validator(mode="after")
    def _usable(self) -> Self:
        try:
            if self.producer:
                Producer({**QUIET, **client_properties(self.producer, stores=False)})
        except KafkaException as e:
            raise ValueError(f"kafka.producer.*: {e.args[0].str()}") from None
        return self


class FlumeKafkaSinkConfig(KafkaSinkConfig):
    """The options as they are under Flume's class name, those of its oldest versions among them."""

    older = MappingProxyType(
        {"kafka.topic": "topic", "kafka.bootstrap.servers": "brokerList", "flumeBatchSize": "batchSize"}
    )
    bootstrap_servers: str = option(name="kafka.bootstrap.servers", description="host:port of brokers.")
    topic: str = option("default-flume-topic", name="kafka.topic", description="Topic to write to.", min_length=1)
    batch_size: int = option(
        100,
        name="flumeBatchSize",
        unit="events",
        ge=1,
        description="Number of events after which a transaction ends.",
    )
    old_topic: str | None = option(None, name="topic", description="Older name of kafka.topic.")
    broker_list: str | None = option(None, name="brokerList", description="Older name of kafka.bootstrap.servers.")
    old_batch_size: int | None = option(None, name="batchSize", description="Older name of flumeBatchSize.")
    ignored = MappingProxyType({"requiredAcks": "all in-sync replicas always acknowledge"})
