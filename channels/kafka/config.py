"""Options of the channel `kafka`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import pydantic

from flafka.channels.kafka.records import Format
from flafka.plugins import Config, OverflowConfig, Problem, cross_field_validator, option, with_default
from flafka.plugins.kafka.config import ConsumerConfig, ProducerConfig, check_writable_topic
from flafka.plugins.kafka.rights import Access, Role

CHANNEL = Role(
    "the channel `kafka`",
    (
        Access(
            *("topic", "the topic of a channel `kafka`", ("Read", "Write", "Create")),
            (("DescribeConfigs", "too large events show when brokers refuse them, and `check` warns less"),),
        ),
        Access("group", "the consumer groups of a channel `kafka` and of its sinks", ("Read",)),
    ),
)


class KafkaChannelConfig(ProducerConfig, ConsumerConfig, OverflowConfig):
    """Options of the channel `kafka`."""

    topic: str = option("flafka", name="kafka.topic", description="Topic that contains the events.", min_length=1)
    group_id: str = option(
        "flafka",
        name="kafka.consumer.group.id",
        description="Consumer group of the sinks that do not set their own with `group`.",
    )
    format: Format = option(
        "arrow",
        name="format",
        description="How events are written. `arrow`: many in each record, which Flume cannot read. `flume`: one in "
        "each record, as Flume's channel writes them. `raw`: one in each record, the body as its value and the "
        "headers as record headers. All three are read, whichever is set. Under Flume's class name, "
        "`parseAsFlumeEvent = false` makes it `raw`.",
    )
    parse_as_flume_event: bool = option(
        True,
        name="parseAsFlumeEvent",
        description="Read records that do not name their format as Flume's events; otherwise the value of each is "
        "a body.",
    )
    partitions: int = option(
        6, name="partitions", gt=0, description="Number of partitions of the topic, if the channel creates it."
    )
    replication: int = option(
        3,
        name="replication",
        gt=0,
        description="Number of replicas of each partition, if the channel creates the topic.",
    )
    retention: int = option(
        168,
        name="retention",
        unit="h",
        gt=0,
        description="Time for which the topic keeps events, if the channel creates it.",
    )
    batch_events: int = option(
        30_000, name="batchEvents", unit="events", gt=0, description="Maximum number of events in a record."
    )
    batch_bytes: int = option(
        5_000_000,  # a batch of syslog: 3 MiB of lines, and its headers in columns
        name="batchBytes",
        unit="bytes",
        gt=0,
        description="Maximum size of a record before compression. A larger event becomes a record of its own.",
    )

    @classmethod
    def for_type(cls, written_type: str) -> type[Config]:
        """Return the class of options.

        For Flume's class name, it has Flume's format by default, and requires brokers.
        """
        return FlumeKafkaChannelConfig if "." in written_type else cls

    @cross_field_validator("format", "parse_as_flume_event")
    def _check_format_is_readable(self) -> None:
        if self.format == "flume" and not self.parse_as_flume_event:
            raise ValueError(
                "must not be flume with parseAsFlumeEvent = false, which reads Flume's events as bodies: remove one "
                "of them"
            )

    @cross_field_validator("partition_id_header", "format")
    def _check_one_event_per_record(self) -> None:
        if self.format == "arrow" and self.partition_id_header:
            raise ValueError("requires one event in each record: write format = flume or format = raw")

    def warnings(self) -> Iterator[Problem]:
        """Yield a warning for each Kafka property without effect."""
        yield from super().warnings()
        if self.consumer.get("auto.offset.reset") in ("latest", "largest", "end"):
            yield Problem(
                "kafka.consumer.auto.offset.reset",
                "has no effect: a new group of a channel always begins with the first event",
                replacement={},
            )

    @pydantic.field_validator("topic")
    @classmethod
    def _check_topic(cls, topic: str) -> str:
        return check_writable_topic(topic, most=249 - len(".deadletters"))

    @classmethod
    def producer_properties(cls, client: Mapping[str, Any]) -> dict[str, Any]:
        """Return all properties of a producer, which by default never times out: sources wait instead."""
        timeout = {} if client.keys() & {"message.timeout.ms", "delivery.timeout.ms"} else {"message.timeout.ms": 0}
        return super().producer_properties({**timeout, **client})

    def produced_topics(self) -> list[str]:
        """Return the topic of the channel as a list."""
        return [self.topic]


class FlumeKafkaChannelConfig(KafkaChannelConfig):
    """Options under Flume's class name, with deprecated names of early versions of Flume."""

    deprecated_aliases = MappingProxyType(
        {"kafka.topic": "topic", "kafka.bootstrap.servers": "brokerList", "kafka.consumer.group.id": "groupId"}
    )
    bootstrap_servers: str = with_default(KafkaChannelConfig, "bootstrap_servers")
    topic: str = with_default(KafkaChannelConfig, "topic", "flume-channel")
    group_id: str = with_default(KafkaChannelConfig, "group_id", "flume")
    format: Format = with_default(KafkaChannelConfig, "format", "flume")
    options_without_effect = MappingProxyType(
        {
            "kafka.pollTimeout": "events are delivered as soon as they arrive",
            "pollTimeout": "events are delivered as soon as they arrive",
            "readSmallestOffset": "a new group always begins with the first event",
            "zookeeperConnect": "offsets are in Kafka alone",
            "migrateZookeeperOffsets": "offsets are in Kafka alone",
        }
    )

    @pydantic.model_validator(mode="before")
    @classmethod
    def _set_raw_format(cls, values: dict[str, Any]) -> dict[str, Any]:
        parse = values.get("parseAsFlumeEvent")
        return {"format": "raw", **values} if str(parse).lower() == "false" else values
