"""Common options of the Kafka channel, source and sink."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Self

import pydantic
from confluent_kafka import Consumer, Producer
from pydantic import PrivateAttr

from flafka.plugins.kafka.clients import CONSUMER, PRODUCER
from flafka.plugins.kafka.kerberos import KafkaLogin, find_login, login_problems
from flafka.plugins.kafka.properties import (
    QUIET,
    check_accepted,
    client_properties,
    ineffective_properties,
    parse_number,
)
from flafka.plugins.options import Config, option
from flafka.plugins.problems import Problem

INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
"""Internal topics of the brokers, which accept no records from clients (`Topic.INTERNAL_TOPICS` of Kafka 4)."""


def check_topic_name(name: str, *, most: int = 249) -> str:
    """Return the name of a topic unchanged.

    Raises ValueError if it is invalid or longer than `most` characters.
    """
    if not name:
        raise ValueError("must not be empty")
    if name in (".", ".."):
        raise ValueError(f"must not be {name!r}, which Kafka does not accept as a name")
    if wrong := re.search(r"[^a-zA-Z0-9._-]", name):
        raise ValueError(f"{name[:80]!r} must consist of A-Z, a-z, 0-9, '.', '_' and '-', and has {wrong[0]!r}")
    if len(name) > most:
        raise ValueError(f"must have at most {most} characters, not {len(name)}")
    return name


def check_writable_topic(name: str, *, most: int = 249) -> str:
    """Return the name of a topic unchanged. Raises ValueError for an invalid or internal name."""
    if check_topic_name(name, most=most) in INTERNAL_TOPICS:
        raise ValueError(f"must not be {name!r}, an internal topic of the brokers: name another topic")
    return name


_PROTOCOLS = frozenset({"PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"})


class KafkaClientConfig(Config):
    """Options of a component that reads or writes topics. `agent check` finds loops by the methods of this class."""

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
        """Return a copy with these brokers, which are valid only as long as they are of that cluster."""
        copy = self.model_copy(update={"bootstrap_servers": servers})
        copy._cluster_id = cluster_id
        return copy

    def foreign_cluster_error(self, cluster_id: str | None) -> str | None:
        """Return the reason why brokers of that cluster must not be used; None if they may be used.

        Named brokers may be of any cluster; without names, only the user's own `agent cluster start` is used.
        """
        if self._cluster_id in (None, cluster_id):
            return None
        return (
            f"at {self.bootstrap_servers} answers the Kafka cluster {cluster_id}, not your own, "
            f"{self._cluster_id}: see `agent cluster status`. To use the cluster, name its brokers: "
            "kafka.bootstrap.servers"
        )

    def client(self, name: str) -> dict[str, Any]:
        """Return librdkafka's properties for the component of that name, without its `kafka.*` options."""
        return {
            "bootstrap.servers": self.bootstrap_servers,
            "client.id": f"flafka-{name}",
            "socket.keepalive.enable": True,
            "reconnect.backoff.max.ms": 2000,
            **QUIET,
        }

    def client_options(self) -> dict[str, Mapping[str, str]]:
        """Return the configured properties of each client by the prefix of their options."""
        return {}

    def kerberos_logins(self) -> dict[str, KafkaLogin]:
        """Return the login of each client with Kerberos by the prefix of its options."""
        logins = {
            prefix: find_login(client_properties(properties, stores=False))
            for prefix, properties in self.client_options().items()
        }
        return {prefix: login for prefix, login in logins.items() if login is not None}

    def warnings(self) -> Iterator[Problem]:
        """Yield a warning for each Kafka property without effect, and what a login by Kerberos lacks here."""
        yield from super().warnings()
        for prefix, properties in self.client_options().items():
            yield from ineffective_properties(prefix, properties)
            yield from login_problems(prefix, properties, client_properties(properties, stores=False))

    def brokers(self) -> frozenset[str]:
        """Return the configured addresses; empty for the cluster of `agent cluster start`."""
        return frozenset((self.bootstrap_servers or "").replace(",", " ").split())

    def consumes(self, topic: str) -> bool:
        """Return True if the component consumes the topic; False in this base."""
        return False

    def produced_topics(self) -> list[str]:
        """Return the topics to which the component produces, as far as the configuration names them."""
        return []

    def topic_header_set(self) -> str | None:
        """Return the header in which a source stores the name of an event's topic; None if there is none."""
        return None

    def topic_header_used(self) -> str | None:
        """Return the header whose value is the topic to which a sink writes; None if there is none."""
        return None


class ProducerConfig(KafkaClientConfig):
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

    def client_options(self) -> dict[str, Mapping[str, str]]:
        """Return the properties of the producer and of other clients, by the prefix of their options."""
        return super().client_options() | {"kafka.producer.": self.producer}

    @pydantic.field_validator("producer")
    @classmethod
    def _producer_accepts(cls, properties: dict[str, str]) -> dict[str, str]:
        return check_accepted(properties, lambda client: Producer({**QUIET, **cls.producer_properties(client)}))

    @classmethod
    def producer_properties(cls, client: Mapping[str, Any]) -> dict[str, Any]:
        """Return all properties of a producer: the defaults `PRODUCER`, overridden by the configured ones.

        The configured ones are `client`, under librdkafka's names.
        """
        return {**PRODUCER, **client}


class ConsumerConfig(KafkaClientConfig):
    """Options of a component that reads topics."""

    section = "Kafka's clients"
    consumer: dict[str, str] = option(
        {},
        name="kafka.consumer.",
        description="Properties of the Kafka consumer, by the names of librdkafka or of Java's client. "
        "`auto.offset.reset` says where a new group of a source begins, `earliest` if unset. A new group of a "
        "channel always begins with the first event.",
    )

    def client_options(self) -> dict[str, Mapping[str, str]]:
        """Return the properties of the consumer and of other clients, by the prefix of their options."""
        return super().client_options() | {"kafka.consumer.": self.consumer}

    @pydantic.field_validator("consumer")
    @classmethod
    def _consumer_accepts(cls, properties: dict[str, str]) -> dict[str, str]:
        heartbeat = parse_number(properties.get("heartbeat.interval.ms", 3_000)) or 0
        session = parse_number(properties.get("session.timeout.ms", CONSUMER["session.timeout.ms"])) or 0
        if 0 < session <= heartbeat and parse_number(heartbeat) is not None:
            given = [name for name in ("heartbeat.interval.ms", "session.timeout.ms") if name in properties]
            raise ValueError(
                f"{given[0]}: heartbeat.interval.ms ({heartbeat:.0f}) must be lower than session.timeout.ms "
                f"({session:.0f}), or the group removes this member again and again"
            )
        return check_accepted(
            properties, lambda client: Consumer({**CONSUMER, **QUIET, **client, "group.id": "none"}).close()
        )
