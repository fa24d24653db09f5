"""Options that the Kafka channel, source and sink share."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Self

import pydantic
from confluent_kafka import Consumer, Producer
from pydantic import PrivateAttr

from flafka.plugins.kafka.clients import CONSUMER, PRODUCER
from flafka.plugins.kafka.properties import QUIET, accepted, number, without_effect
from flafka.plugins.options import Config, option
from flafka.plugins.problems import Problem

INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
"""Topics of the brokers themselves, which take no records of a client (`Topic.INTERNAL_TOPICS` of Kafka 4)."""


def checked_topic(name: str, *, most: int = 249) -> str:
    """Return the name of a topic of at most so many characters. Raises ValueError for one that Kafka cannot have."""
    if not name:
        raise ValueError("must not be empty")
    if name in (".", ".."):
        raise ValueError(f"must not be {name!r}, which Kafka does not take as a name")
    if wrong := re.search(r"[^a-zA-Z0-9._-]", name):
        raise ValueError(f"{name[:80]!r} must consist of A-Z, a-z, 0-9, '.', '_' and '-', and has {wrong[0]!r}")
    if len(name) > most:
        raise ValueError(f"must have at most {most} characters, not {len(name)}")
    return name


def own_topic(name: str, *, most: int = 249) -> str:
    """Return the name of a topic that clients may write to. Raises ValueError for any other name."""
    if checked_topic(name, most=most) in INTERNAL_TOPICS:
        raise ValueError(f"must not be {name!r}, a topic of the brokers themselves: name a topic of your own")
    return name


_PROTOCOLS = frozenset({"PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"})


class KafkaEndConfig(Config):
    """Options of a component that reads or writes topics: `check` looks for loops in what it answers here."""

    section = "Kafka's clients"
    bootstrap_servers: str | None = option(
        None,
        name="kafka.bootstrap.servers",
        description="Brokers as host:port, separated by commas. If unset, the cluster of `agent cluster start`.",
    )

    _cluster_id: str | None = PrivateAttr(None)

    @pydantic.field_validator("bootstrap_servers")
    @classmethod
    def _are_addresses(cls, servers: str | None) -> str | None:
        for server in (servers or "").replace(",", " ").split():
            scheme, _, address = server.rpartition("://")
            if scheme and scheme.upper() not in _PROTOCOLS:
                raise ValueError(f"{server!r} must be written as host:port, without {scheme}://")
            if not re.fullmatch(r"(\[[^]]+\]|[^:/]+)(:\d{1,5})?", address):
                raise ValueError(f"{server!r} must be written as host:port")
        return servers

    def of_cluster(self, servers: str, cluster_id: str) -> Self:
        """A copy that names these brokers, as long as they are of that cluster."""
        copy = self.model_copy(update={"bootstrap_servers": servers})
        copy._cluster_id = cluster_id
        return copy

    def foreign(self, cluster_id: str | None) -> str | None:
        """Return why brokers of that cluster must not be used; None if they may be.

        Only the cluster of `agent cluster start` has to be the user's own: named brokers may be of any cluster.
        """
        if self._cluster_id in (None, cluster_id):
            return None
        return (
            f"at {self.bootstrap_servers} answers the Kafka cluster {cluster_id}, not your own, "
            f"{self._cluster_id}: `agent cluster status` tells more. If it is the one you mean, name its brokers: "
            "kafka.bootstrap.servers"
        )

    def client(self, name: str) -> dict[str, Any]:
        """librdkafka's properties for the component of that name, but for those that its options add."""
        return {
            "bootstrap.servers": self.bootstrap_servers,
            "client.id": f"flafka-{name}",
            "socket.keepalive.enable": True,
            "reconnect.backoff.max.ms": 2000,
            **QUIET,
        }

    def brokers(self) -> frozenset[str]:
        """Return the addresses that are named; empty for the project's own cluster."""
        return frozenset((self.bootstrap_servers or "").replace(",", " ").split())

    def reads(self, topic: str) -> bool:
        """Return True if the component consumes this topic."""
        return False

    def writes(self) -> list[str]:
        """The topics it produces to, as far as the configuration says."""
        return []

    def marks(self) -> str | None:
        """The header in which a source leaves the name of the topic that an event came from."""
        return None

    def follows(self) -> str | None:
        """The header whose value a sink takes for the topic to write to."""
        return None


class ProducerConfig(KafkaEndConfig):
    """Options of a component that writes to topics."""

    section = "Kafka's clients"
    partition_id_header: str | None = option(
        None, name="partitionIdHeader", description="Header that contains the number of the partition to write to."
    )
    default_partition_id: int | None = option(
        None,
        name="defaultPartitionId",
        ge=0,
        description="Partition for events without the header partitionIdHeader. If unset, it follows from the header "
        "`key`, or else it is any.",
    )
    producer: dict[str, str] = option(
        {},
        name="kafka.producer.",
        description="Properties of the Kafka producer, by the names of librdkafka or of Java's client. `acks` is "
        "always `all`.",
    )

    def warnings(self) -> Iterator[Problem]:
        """Properties that have no effect here."""
        yield from super().warnings()
        yield from without_effect("kafka.producer.", self.producer)

    @pydantic.field_validator("producer")
    @classmethod
    def _producer_accepts(cls, properties: dict[str, str]) -> dict[str, str]:
        return accepted(properties, lambda client: Producer({**QUIET, **cls.producer_properties(client)}))

    @classmethod
    def producer_properties(cls, client: Mapping[str, Any]) -> dict[str, Any]:
        """Return all properties of a producer, given the configured ones under librdkafka's names."""
        return {**PRODUCER, **client}


class ConsumerConfig(KafkaEndConfig):
    """Options of a component that reads topics."""

    section = "Kafka's clients"
    consumer: dict[str, str] = option(
        {},
        name="kafka.consumer.",
        description="Properties of the Kafka consumer, by the names of librdkafka or of Java's client. "
        "`auto.offset.reset` says where a new group of a source begins, `earliest` if unset. A new group of a "
        "channel always begins with the first event.",
    )

    def warnings(self) -> Iterator[Problem]:
        """Properties that have no effect here."""
        yield from super().warnings()
        yield from without_effect("kafka.consumer.", self.consumer)

    @pydantic.field_validator("consumer")
    @classmethod
    def _consumer_accepts(cls, properties: dict[str, str]) -> dict[str, str]:
        heartbeat = number(properties.get("heartbeat.interval.ms", 3_000)) or 0
        session = number(properties.get("session.timeout.ms", CONSUMER["session.timeout.ms"])) or 0
        if 0 < session <= heartbeat and number(heartbeat) is not None:
            given = [name for name in ("heartbeat.interval.ms", "session.timeout.ms") if name in properties]
            raise ValueError(
                f"{given[0]}: heartbeat.interval.ms ({heartbeat:.0f}) must be lower than session.timeout.ms "
                f"({session:.0f}), or the group puts this member out again and again"
            )
        return accepted(
            properties, lambda client: Consumer({**CONSUMER, **QUIET, **client, "group.id": "none"}).close()
        )
