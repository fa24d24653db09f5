"""Options, questions and errors that the Kafka channel, source and sink share as clients."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self

import pydantic
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pydantic import PrivateAttr

from flafka.plugins.component import Caution
from flafka.plugins.errors import Retry, Unreachable
from flafka.plugins.kafka.errors import AWAY, metadata, sentence
from flafka.plugins.kafka.properties import QUIET, accepted, client_properties, number, without_effect
from flafka.plugins.kafka.properties import java_properties as java_properties  # plugins found it here
from flafka.plugins.kafka.timeouts import CONNECT_SECONDS
from flafka.plugins.kafkachannel import KafkaStream
from flafka.plugins.options import Config, option
from flafka.plugins.problems import Problem

PROBE_SECONDS = 5.0
"""Time in which brokers must answer, or they count as away."""
_PROTOCOLS = frozenset({"PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"})
NO_BROKERS = "kafka.bootstrap.servers is not set, and this user has started no cluster: run `agent cluster start`"
CONSUMER: Mapping[str, Any] = {
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "error",
    "partition.assignment.strategy": "cooperative-sticky",
    "session.timeout.ms": 15_000,
    "fetch.message.max.bytes": 8 << 20,
    "queued.max.messages.kbytes": 16 << 10,
    "isolation.level": "read_committed",
}
"""Properties of a consumer that its component does not set otherwise."""
PRODUCER: Mapping[str, Any] = {
    "acks": "all",
    "enable.idempotence": True,
    "linger.ms": 5,
    "message.max.bytes": 8 << 20,
    "partitioner": "murmur2_random",  # Java's: a key has one partition, whoever writes
    "queue.buffering.max.kbytes": 64 << 10,
    "compression.type": "lz4",
}
"""Properties of a producer that its component does not set otherwise."""

BROKEN = (KafkaException, SystemError)
"""Exceptions that `poll` and `flush` of a producer raise once after a fatal error.

SystemError comes amid delivery callbacks, where Python takes the client's exception for a bug."""


def stream_client(stream: KafkaStream) -> dict[str, Any]:
    """librdkafka's properties for what works beside a channel, on its brokers."""
    return {"bootstrap.servers": stream.bootstrap_servers, **QUIET, **client_properties(stream.client)}


def create_topic(
    admin: AdminClient, name: str, partitions: int, replication: int, settings: Mapping[str, str], seconds: float
) -> bool:
    """Create a topic that survives the loss of a broker if it has several replicas. False if the topic exists.

    Raises KafkaException.

    Its records have the brokers' time. Brokers would refuse the time of a host whose clock is hours ahead. With the
    time of a slow clock, records would soon be older than the topic's retention.
    """
    safe = {"min.insync.replicas": str(min(2, replication)), "message.timestamp.type": "LogAppendTime"}
    settings = {**safe, **settings}
    wanted = NewTopic(name, num_partitions=partitions, replication_factor=replication, config=settings)
    try:
        admin.create_topics([wanted])[name].result(seconds)
    except KafkaException as e:
        if e.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise
        return False
    return True


reason = sentence
"""Alias of `errors.sentence`, under which other modules know it."""


def failure(error: Any, text: str) -> Retry:
    """Return the exception with that text for a client's error: Unreachable where brokers are away, else Retry."""
    known = error.args[0] if isinstance(error, KafkaException) else error
    away = isinstance(error, TimeoutError) or known.code() in AWAY
    return Unreachable(text) if away else Retry(text)


def accepts(address: tuple[str, int]) -> bool:
    """Return True if somebody accepts a connection there."""
    try:
        socket.create_connection(address, timeout=CONNECT_SECONDS).close()
    except OSError:
        return False
    return True


def answers(client: Mapping[str, Any], address: tuple[str, int], topic: str) -> bool:
    """Return True if the broker there answers a question about that topic, asked with these properties."""
    host, port = address
    there = {**client, "bootstrap.servers": f"[{host}]:{port}" if ":" in host else f"{host}:{port}"}
    try:
        AdminClient(there).list_topics(topic, timeout=PROBE_SECONDS)
    except KafkaException:
        return False
    return True


def unreachable(servers: str) -> list[str]:
    """Return the brokers of `host:port,…` that accept no connection, as `127.0.0.1:9092 (Connection refused)`."""

    def failure(server: str) -> str | None:
        host, _, port = server.rpartition("://")[2].rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS).close()
        except (OSError, ValueError) as e:
            return f"{server} ({getattr(e, 'strerror', None) or e})"
        return None

    named = [server for server in servers.replace(",", " ").split() if ":" in server]
    if not named:
        return []
    with ThreadPoolExecutor(len(named)) as threads:
        return [text for text in threads.map(failure, named) if text is not None]


def away(servers: str) -> str:
    """For the end of an error message: the brokers that take no connection; empty where all do."""
    found = unreachable(servers)
    return f"; no connection to {', '.join(found)}" if found else ""


def unanswered(servers: str) -> Iterator[str]:
    """A sentence for each of those brokers that takes no connection, beside others that do."""
    for text in unreachable(servers):
        yield f"no connection to broker {text}: is it running?"


def refused_group(group: str) -> str:
    """Return why the client takes no offsets of this consumer group into a transaction; empty if it does.

    The name has to consist of printable characters of ASCII (`str_is_printable` in librdkafka's rdkafka_cgrp.c).
    """
    wrong = next((character for character in group if not " " <= character <= "~"), "")
    if not wrong:
        return ""
    return (
        f"consumer group {group!r} has {wrong!r}, and the Kafka client takes printable ASCII alone into a "
        "transaction: give it another name, and the new group begins with the first event that the channel holds"
    )


def is_broken(error: Exception) -> bool:
    """Return True if the producer that raised the error refuses all work from now on."""
    if isinstance(error, KafkaException):
        return bool(error.args[0].fatal() or error.args[0].code() == KafkaError._FATAL)
    return isinstance(error, SystemError)


def raising(callback: Callable[[Consumer, list[TopicPartition]], None]) -> Callable[..., None]:
    """Return that rebalance callback with the client's errors as Retry.

    What the client itself raised, and a callback lets through, comes out of `poll` as something that no `except`
    clause for an Exception catches: the thread would end without a word.
    """

    def wrapped(consumer: Consumer, partitions: list[TopicPartition]) -> None:
        try:
            callback(consumer, partitions)
        except KafkaException as e:
            raise Retry(reason(e)) from e

    return wrapped


class TopicMissing(str):
    """Sentence about a topic that does not exist. It is no error where the agent itself creates the topic."""

    topic: str

    def __new__(cls, topic: str, servers: str) -> TopicMissing:
        """Make the sentence from the names of the topic and of its brokers."""
        create = f"agent topic create {topic} --bootstrap-server {servers}"
        self = super().__new__(cls, f"there is no topic {topic} at {servers}: {create}")
        self.topic = topic
        return self


def missing(client: Callable[[], Mapping[str, Any]], config: KafkaEndConfig, topics: Sequence[str]) -> Iterator[str]:
    """Yield a sentence for each reason why a component cannot work.

    No brokers are known, none answers, they are of another cluster, or topics do not exist.

    `client` makes the properties; what it raises as Retry is a sentence too.
    """
    servers = config.bootstrap_servers
    if not servers:
        yield NO_BROKERS
        return
    try:
        properties = dict(client())
        found = metadata(properties, PROBE_SECONDS)
    except Retry as e:
        yield str(e)
        return
    if foreign := config.foreign(found.cluster_id):
        yield foreign
        return
    for topic in topics:
        if topic not in found.topics:
            yield _unseen(properties, topic, servers)


def _unseen(client: Mapping[str, Any], topic: str, servers: str) -> str:
    """Return why a topic is not among those that brokers name to this client."""
    topics = TopicCollection([topic])
    admin = AdminClient(dict(client))  # which has to outlive its answer
    try:
        admin.describe_topics(topics, request_timeout=PROBE_SECONDS)[topic].result()
    except KafkaException as e:
        if e.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            return sentence(e, topic=topic, right="Describe", client=client)
    return TopicMissing(topic, servers)


def probed(client: Callable[[], Mapping[str, Any]], config: KafkaEndConfig, topics: Sequence[str]) -> Iterator[str]:
    """Yield the answers of `Component.probe`: the sentences of `missing`, and a warning for each absent broker."""
    yield from missing(client, config, topics)
    servers = config.bootstrap_servers or ""
    if len(found := list(unanswered(servers))) < len(servers.replace(",", " ").split()):
        yield from map(Caution, found)


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

    def cautions(self) -> Iterator[Problem]:
        """Properties that have no effect here."""
        yield from super().cautions()
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

    def cautions(self) -> Iterator[Problem]:
        """Properties that have no effect here."""
        yield from super().cautions()
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
