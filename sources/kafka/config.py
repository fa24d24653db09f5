"""Options of the Kafka source."""

from __future__ import annotations

import re
from collections.abc import Iterator
from types import MappingProxyType
from typing import Literal, Self

import pydantic
from confluent_kafka import Consumer, KafkaException

from plugins import Config, Problem, option
from plugins.shared.javaregex import JavaPattern
from plugins.shared.kafkaclient import CONSUMER, QUIET, KafkaEndConfig, client_properties, ignored

RESET = "auto.offset.reset"
INTERNAL = frozenset({"__consumer_offsets", "__transaction_state"})
"""Kafka's own topics, which a pattern never means."""


class KafkaSourceConfig(KafkaEndConfig):
    """Options of the Kafka source."""

    bootstrap_servers: str | None = option(
        None,
        name="kafka.bootstrap.servers",
        description="Brokers as host:port, separated by commas. If unset, the cluster of `agent cluster start`.",
    )
    topics: str = option("", name="kafka.topics", description="Topics to read, separated by commas.")
    topics_regex: str | None = option(
        None,
        name="kafka.topics.regex",
        description="Read every topic whose whole name matches this regular expression, also those created later; "
        "replaces `kafka.topics`.",
    )
    group_id: str = option(
        "flafka-source", name="kafka.consumer.group.id", description="Consumer group; its members share the topics."
    )
    batch_size: int = option(10_000, name="batchSize", unit="events", ge=1, description="Most events in a batch.")
    batch_duration: int = option(
        100,
        name="batchDurationMillis",
        unit="ms",
        ge=1,
        description="Longest time that a batch waits for more events.",
    )
    use_flume_event_format: bool = option(
        False,
        name="useFlumeEventFormat",
        description="Read records as Flume's Avro events with headers, as Flume's Kafka sink and channel write them.",
    )
    set_topic_header: bool = option(
        True, name="setTopicHeader", description="Put the topic's name into the header `topicHeader`."
    )
    topic_header: str = option("topic", name="topicHeader", description="Header for the topic's name.", min_length=1)
    timestamp_header: str | None = option(
        None,
        name="timestampHeader",
        description="Header for the timestamp of the Kafka record, in milliseconds since the epoch. If unset, "
        "there is none.",
    )
    headers: dict[str, str] = option(
        {}, name="header.", description="`header.NAME = KEY` puts the record header KEY into the event header NAME."
    )
    consumer: dict[str, str] = option(
        {},
        name="kafka.consumer.",
        description="Client properties, by the names of librdkafka or of Java's client. `auto.offset.reset` says "
        "where a new group begins: `earliest` unless set.",
    )

    @classmethod
    def for_type(cls, written_type: str) -> type[Config]:
        """Under Flume's class name its rules and defaults hold."""
        return FlumeKafkaSourceConfig if "." in written_type else cls

    @property
    def begins(self) -> Literal["earliest", "latest", "none"]:
        """Where a group without a position begins; `none` is an error."""
        names: dict[str, Literal["earliest", "latest", "none"]] = {
            "earliest": "earliest",
            "smallest": "earliest",
            "beginning": "earliest",
            "latest": "latest",
            "largest": "latest",
            "end": "latest",
            "none": "none",
            "error": "none",
        }
        return names[self.consumer.get(RESET, self._begins)]

    _begins = "earliest"

    @property
    def names(self) -> list[str]:
        """The topics that are named."""
        return [name for name in re.split(r"[,\s]+", self.topics) if name]

    def reads(self, topic: str) -> bool:
        """Whether it consumes this topic."""
        if self.topics_regex:
            return topic not in INTERNAL and self.pattern().fullmatch(topic) is not None
        return topic in self.names

    def pattern(self) -> re.Pattern[str]:
        r"""kafka.topics.regex, for whole names. The client's own patterns are not Java's: it takes `\d` for a d."""
        return re.compile("".join(JavaPattern(self.topics_regex or "", backtracking=True).out), re.ASCII)

    def marks(self) -> str | None:
        """The header with the topic's name."""
        return self.topic_header if self.set_topic_header else None

    def cautions(self) -> Iterator[Problem]:
        """Properties of Java's client alone."""
        yield from ignored("kafka.consumer.", self.consumer)

    @pydantic.model_validator(mode="after")
    def _what_to_read(self) -> Self:
        if not self.topics_regex and not self.names:
            raise ValueError("kafka.topics or kafka.topics.regex is required")
        if self.topics_regex:
            try:
                self.pattern()
            except (ValueError, re.error) as e:
                raise ValueError(f"kafka.topics.regex is not a regular expression: {e}") from None
        try:
            _ = self.begins
        except KeyError as e:
            raise ValueError(f"kafka.consumer.{RESET} must be earliest, latest or none, not {e}") from None
        if self.consumer:
            try:
                Consumer(
                    {**CONSUMER, **QUIET, **client_properties(self.consumer, stores=False), "group.id": "none"}
                ).close()
            except KafkaException as e:
                raise ValueError(f"kafka.consumer.*: {e.args[0].str()}") from None
        return self


_OFFSETS = "Ignored; kept for Flume files: offsets are kept in Kafka."
_IDLE = "Ignored; kept for Flume files: an idle topic costs nothing."


class FlumeKafkaSourceConfig(KafkaSourceConfig):
    """The options as they are under Flume's class name, those of its oldest versions among them."""

    older = MappingProxyType({"kafka.topics": "topic", "kafka.consumer.group.id": "groupId"})
    bootstrap_servers: str = option(
        name="kafka.bootstrap.servers", description="Brokers as host:port, separated by commas."
    )
    group_id: str = option(
        "flume", name="kafka.consumer.group.id", description="Consumer group; its members share the topics."
    )
    batch_size: int = option(1000, name="batchSize", unit="events", ge=1, description="Most events in a batch.")
    batch_duration: int = option(
        1000,
        name="batchDurationMillis",
        unit="ms",
        ge=1,
        description="Longest time that a batch waits for more events.",
    )
    topic: str | None = option(None, name="topic", description="Older name of `kafka.topics`.")
    old_group_id: str | None = option(None, name="groupId", description="Older name of `kafka.consumer.group.id`.")
    zookeeper_connect: str | None = option(None, name="zookeeperConnect", description=_OFFSETS)
    migrate_offsets: bool = option(True, name="migrateZookeeperOffsets", description=_OFFSETS)
    backoff_increment: int = option(1000, name="backoffSleepIncrement", unit="ms", description=_IDLE)
    max_backoff: int = option(5000, name="maxBackoffSleep", unit="ms", description=_IDLE)

    _begins = "latest"
