"""Questions about brokers and topics: whether they answer, what is missing, and how a topic is created."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient, NewTopic

from flafka.plugins.component import Caution
from flafka.plugins.errors import Retry
from flafka.plugins.kafka.clients import ASK, new_admin
from flafka.plugins.kafka.config import KafkaEndConfig
from flafka.plugins.kafka.errors import metadata, sentence
from flafka.plugins.kafka.timeouts import CONNECT_SECONDS

PROBE_SECONDS = 5.0
"""Time in which brokers must answer, or they count as away."""
NO_BROKERS = "kafka.bootstrap.servers is not set, and this user has started no cluster: run `agent cluster start`"


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
        new_admin(ASK, there).list_topics(topic, timeout=PROBE_SECONDS)
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
    admin = new_admin(ASK, client)  # which has to outlive its answer
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
