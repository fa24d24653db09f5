"""Options of the Kafka source."""

from __future__ import annotations

import re
from collections.abc import Iterator
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import pydantic

from flafka.plugins import Config, Problem, cross_field_validator, option, with_default
from flafka.plugins.java.regex import compile_backtracking
from flafka.plugins.kafka.config import INTERNAL_TOPICS, ConsumerConfig, check_topic_name
from flafka.plugins.kafka.rights import Access, Role

if TYPE_CHECKING:
    from regex import Pattern

OFFSET_RESET = "auto.offset.reset"
_OFFSET_RESETS: dict[str, Literal["earliest", "latest", "none"]] = {
    "earliest": "earliest",
    "smallest": "earliest",
    "beginning": "earliest",
    "latest": "latest",
    "largest": "latest",
    "end": "latest",
    "none": "none",
    "error": "none",
}
"""Kafka's value for each accepted value of auto.offset.reset."""
SOURCE = Role(
    "the source `kafka`",
    (
        Access("topic", "topics that a source `kafka` reads", ("Read",)),
        Access("group", "the consumer group of a source `kafka`", ("Read",)),
    ),
)


class KafkaSourceConfig(ConsumerConfig):
    """Options of the Kafka source."""

    topics: str = option("", name="kafka.topics", description="Topics to read, separated by commas.")
    topics_regex: str | None = option(
        None,
        name="kafka.topics.regex",
        description="Read every topic whose whole name matches this regular expression, also those created later; "
        "replaces `kafka.topics`.",
    )
    group_id: str = option(
        "flafka-source", name="kafka.consumer.group.id", description="Consumer group. Its members share the topics."
    )
    batch_size: int = option(
        10_000, name="batchSize", unit="events", ge=1, description="Maximum number of events in a batch."
    )
    batch_duration: int = option(
        100,
        name="batchDurationMillis",
        unit="ms",
        ge=1,
        description="Maximum time that a batch waits for more events.",
    )
    use_flume_event_format: bool = option(
        False,
        name="useFlumeEventFormat",
        description="Read records as Flume's Avro events with headers, as Flume's Kafka sink and channel write them.",
    )
    set_topic_header: bool = option(
        True, name="setTopicHeader", description="Put the topic's name into the header `topicHeader`."
    )
    topic_header: str = option(
        "topic", name="topicHeader", description="Header for the name of the topic.", min_length=1
    )
    timestamp_header: str | None = option(
        None,
        name="timestampHeader",
        description="Header for the timestamp of the Kafka record, in milliseconds since the epoch. If unset, "
        "there is none.",
    )
    headers: dict[str, str] = option(
        {},
        name="header.",
        description="`header.<name>` is the record header whose value the event's header <name> gets.",
    )

    @classmethod
    def for_type(cls, written_type: str) -> type[Config]:
        """Return the class of the options: with Flume's names and defaults if `type` is Flume's class name."""
        return FlumeKafkaSourceConfig if "." in written_type else cls

    @property
    def offset_reset(self) -> Literal["earliest", "latest", "none"]:
        """Initial offset of a group without a committed offset; with `none` that is an error."""
        return _OFFSET_RESETS[self.consumer.get(OFFSET_RESET, self._default_offset_reset)]

    _default_offset_reset = "earliest"

    @property
    def topic_names(self) -> list[str]:
        """Topics in `kafka.topics`."""
        return [name for name in re.split(r"[,\s]+", self.topics) if name]

    def consumes(self, topic: str) -> bool:
        """Return True if `kafka.topics.regex` matches the whole name, or without it, if `kafka.topics` has the name.

        The regular expression never selects Kafka's internal topics.
        """
        if self.topics_regex:
            return topic not in INTERNAL_TOPICS and self.pattern().fullmatch(topic) is not None
        return topic in self.topic_names

    def pattern(self) -> Pattern[str]:
        """Return the compiled `kafka.topics.regex`, in Java's syntax, to be used with `fullmatch`."""
        return compile_backtracking(self.topics_regex or "")

    def topic_header_set(self) -> str | None:
        """Return the name of the header for the topic; None if `setTopicHeader` is false."""
        return self.topic_header if self.set_topic_header else None

    @cross_field_validator("topics", "topics_regex")
    def _require_topics(self) -> None:
        if not self.topics_regex and not self.topic_names:
            raise ValueError("is required, or kafka.topics.regex")

    @pydantic.field_validator("topics")
    @classmethod
    def _check_topics(cls, topics: str) -> str:
        for name in filter(None, re.split(r"[,\s]+", topics)):
            check_topic_name(name)
        return topics

    @pydantic.field_validator("topics_regex")
    @classmethod
    def _check_pattern(cls, pattern: str | None) -> str | None:
        try:
            compile_backtracking(pattern or "")
        except ValueError as e:
            raise ValueError(f"is not a regular expression: {e}") from None
        return pattern

    @pydantic.field_validator("consumer")
    @classmethod
    def _check_offset_reset(cls, properties: dict[str, str]) -> dict[str, str]:
        if properties.get(OFFSET_RESET, "latest") not in _OFFSET_RESETS:
            raise ValueError(f"{OFFSET_RESET}: must be earliest, latest or none, not {properties[OFFSET_RESET]!r}")
        return properties


class FlumeKafkaSourceConfig(KafkaSourceConfig):
    """Options under Flume's class name, with the option names of its oldest versions."""

    deprecated_aliases = MappingProxyType({"kafka.topics": "topic", "kafka.consumer.group.id": "groupId"})
    options_without_effect = MappingProxyType(
        {
            "migrateZookeeperOffsets": "offsets are in Kafka alone",
            "backoffSleepIncrement": "an idle topic costs nothing",
            "maxBackoffSleep": "an idle topic costs nothing",
        }
    )
    bootstrap_servers: str = with_default(KafkaSourceConfig, "bootstrap_servers")
    zookeeper_connect: str | None = option(
        None,
        name="zookeeperConnect",
        without_effect=True,
        description="offsets are in Kafka alone; without `kafka.bootstrap.servers`, brokers are looked for on "
        "ZooKeeper's hosts, at port 9092",
    )

    _brokers_assumed: bool = pydantic.PrivateAttr(False)

    @pydantic.model_validator(mode="wrap")
    @classmethod
    def _brokers_beside_zookeeper(cls, values: Any, handler: Any) -> Any:
        """Take ZooKeeper's hosts at port 9092 as brokers if `zookeeperConnect` is set without brokers."""
        zookeeper = values.get("zookeeperConnect")
        assumed = bool(zookeeper) and "kafka.bootstrap.servers" not in values
        if assumed:
            hosts = dict.fromkeys(part.strip().partition(":")[0] for part in zookeeper.partition("/")[0].split(","))
            values = {**values, "kafka.bootstrap.servers": ",".join(f"{host}:9092" for host in hosts if host)}
        config = handler(values)
        config._brokers_assumed = assumed
        return config

    def warnings(self) -> Iterator[Problem]:
        """Yield warnings about properties without effect, and about brokers taken from ZooKeeper's hosts."""
        yield from super().warnings()
        if self._brokers_assumed:
            yield Problem(
                "zookeeperConnect",
                f"does not lead to the brokers here: they are looked for at {self.bootstrap_servers}; name them with "
                "kafka.bootstrap.servers = host:9092",
                replacement={"kafka.bootstrap.servers": self.bootstrap_servers},
            )

    group_id: str = with_default(KafkaSourceConfig, "group_id", "flume")
    batch_size: int = with_default(KafkaSourceConfig, "batch_size", 1000)
    batch_duration: int = with_default(KafkaSourceConfig, "batch_duration", 1000)

    _default_offset_reset = "latest"
