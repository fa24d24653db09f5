"""Options of the Kafka channel."""

from __future__ import annotations

from collections.abc import Iterator
from types import MappingProxyType
from typing import Any, Self

import pydantic
from confluent_kafka import Consumer, KafkaException, Producer

from channels.kafka.records import Format
from plugins import Config, Problem, option
from plugins.shared.kafkaclient import CONSUMER, QUIET, KafkaEndConfig, client_properties, ignored


class KafkaChannelConfig(KafkaEndConfig):
    """Options of the Kafka channel."""

    bootstrap_servers: str | None = option(
        None,
        name="kafka.bootstrap.servers",
        description="Addresses of brokers, host:port, separated by commas. Default: the cluster of `agent cluster "
        "start`",
    )
    topic: str = option("flafka", name="kafka.topic", description="Topic that contains the events", min_length=1)
    group_id: str = option(
        "flafka",
        name="kafka.consumer.group.id",
        description="Consumer group of all sinks that do not set their own with `group`",
    )
    format: Format = option(
        "arrow",
        name="format",
        description="How events are written: arrow, many a record; flume, one a record as Flume's channel does; raw, "
        "the body as the value and the headers as record headers. All three are read, whichever is set",
    )
    parse_as_flume_event: bool = option(
        True,
        name="parseAsFlumeEvent",
        description="Whether records that do not name their format are Flume's events; false takes the value of "
        "each as a body",
    )
    partition_id_header: str | None = option(
        None, name="partitionIdHeader", description="Header that contains the number of the partition to write to"
    )
    default_partition_id: int | None = option(
        None,
        name="defaultPartitionId",
        ge=0,
        description="Partition for events without the header partitionIdHeader. Default: that of the header "
        "`key`, or else any",
    )
    partitions: int = option(
        6, name="partitions", gt=0, description="Number of partitions of the topic, if it has to be created"
    )
    replication: int = option(
        3,
        name="replication",
        gt=0,
        description="Number of replicas of each partition, if the topic has to be created",
    )
    retention: int = option(
        168,
        name="retention",
        unit="h",
        gt=0,
        description="Time for which the topic keeps events, if it has to be created",
    )
    batch_events: int = option(10_000, name="batchEvents", unit="events", gt=0, description="Most events in a record")
    batch_bytes: int = option(
        1_250_000,  # a batch of syslog: 768 KiB as sent, and what its headers take in columns
        name="batchBytes",
        unit="bytes",
        gt=0,
        description="Most bytes in a record, before compression; a larger event becomes a record of its own",
    )
    producer: dict[str, str] = option(
        {},
        name="kafka.producer.",
        description="Properties of the Kafka producer, by librdkafka's names or Java's",
    )
    consumer: dict[str, str] = option(
        {},
        name="kafka.consumer.",
        description="Properties of the Kafka consumers, by librdkafka's names or Java's",
    )

    @classmethod
    def for_type(cls, written_type: str) -> type[Config]:
        """Under Flume's class name its rules hold: brokers must be named, and the format is Flume's."""
        return FlumeKafkaChannelConfig if "." in written_type else cls

    @pydantic.model_validator(mode="after")
    def _formats_agree(self) -> Self:
        if self.format == "flume" and not self.parse_as_flume_event:
            raise ValueError(
                "format = flume writes what parseAsFlumeEvent = false reads as bodies: leave one of them out"
            )
        if self.format == "arrow" and self.partition_id_header:
            raise ValueError("partitionIdHeader needs one event a record: format = flume or raw")
        return self

    @pydantic.model_validator(mode="after")
    def _clients_accept(self) -> Self:
        try:
            if self.producer:
                Producer({**QUIET, **client_properties(self.producer, stores=False)})
        except KafkaException as e:
            raise ValueError(f"kafka.producer.*: {e.args[0].str()}") from None
        try:
            if self.consumer:
                Consumer(
                    {**CONSUMER, **QUIET, **client_properties(self.consumer, stores=False), "group.id": "none"}
                ).close()
        except KafkaException as e:
            raise ValueError(f"kafka.consumer.*: {e.args[0].str()}") from None
        return self

    def cautions(self) -> Iterator[Problem]:
        """Properties that do nothing here."""
        yield from ignored("kafka.producer.", self.producer)
        yield from ignored("kafka.consumer.", self.consumer)
        if self.consumer.get("auto.offset.reset") in ("latest", "largest", "end"):
            yield Problem(
                "kafka.consumer.auto.offset.reset", "is ignored: a new group of a channel begins with its first event"
            )

    def writes(self) -> list[str]:
        """Its topic; what it reads, it wrote itself."""
        return [self.topic]


class FlumeKafkaChannelConfig(KafkaChannelConfig):
    """The options as they are under Flume's class name, those of its oldest versions among them."""

    older = MappingProxyType(
        {"kafka.topic": "topic", "kafka.bootstrap.servers": "brokerList", "kafka.consumer.group.id": "groupId"}
    )
    bootstrap_servers: str = option(name="kafka.bootstrap.servers", description="host:port of brokers")
    topic: str = option("flume-channel", name="kafka.topic", description="Topic that contains the events")
    group_id: str = option(
        "flume",
        name="kafka.consumer.group.id",
        description="Consumer group of the sinks that do not set their own with `group`",
    )
    format: Format = option(
        "flume",
        name="format",
        description="How events are written: flume, as Flume's channel does; raw, bodies alone, which is the default "
        "with parseAsFlumeEvent = false; arrow, many a record, which Flume cannot read. All three are read",
    )
    old_topic: str | None = option(None, name="topic", description="Older name of kafka.topic")
    broker_list: str | None = option(None, name="brokerList", description="Older name of kafka.bootstrap.servers")
    old_group_id: str | None = option(None, name="groupId", description="Older name of kafka.consumer.group.id")
    ignored = MappingProxyType(
        {
            "kafka.pollTimeout": "events are handed on as soon as they come",
            "pollTimeout": "events are handed on as soon as they come",
            "readSmallestOffset": "a new group always begins with the first event",
            "zookeeperConnect": "offsets are in Kafka alone",
            "migrateZookeeperOffsets": "offsets are in Kafka alone",
        }
    )

    @pydantic.model_validator(mode="before")
    @classmethod
    def _bodies_alone(cls, values: dict[str, Any]) -> dict[str, Any]:
        parse = values.get("parseAsFlumeEvent")
        return {"format": "raw", **values} if str(parse).lower() == "false" else values
