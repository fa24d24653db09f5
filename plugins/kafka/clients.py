"""Kafka clients of components: their default properties, the three functions that make them, times that they wait.

Each place that makes a client names its role, which declares the rights that the client needs on a cluster with ACLs.
`docs/build.py` makes the table of rights from all roles. Commands have other clients, of kafka-python
(`agent/cli/kafka_admin.py`), and options are checked by clients that connect to nothing (`config.py`,
`properties.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from flafka.plugins.kafka.properties import QUIET, client_properties
from flafka.plugins.streaming import KafkaStream

_log = logging.getLogger(__name__)
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


@dataclass(frozen=True)
class Access:
    """Operations of Kafka's ACLs on one resource, such as Read and Describe on a topic."""

    resource: str
    """Resource as the documentation names it: "the topic of the channel"."""
    operations: tuple[str, ...]


@dataclass(frozen=True)
class Role:
    """Purpose of a client, and the rights that it needs on a cluster with ACLs."""

    purpose: str
    access: tuple[Access, ...]


ASK = Role("a question about brokers or a topic, for a component whose own role has the rights", ())


def new_consumer(role: Role, properties: Mapping[str, Any]) -> Consumer:
    """Return a consumer with these properties of librdkafka, on top of `CONSUMER`. Raises KafkaException."""
    _log.debug("new consumer: %s", role.purpose)
    return Consumer({**CONSUMER, **properties})


def new_producer(role: Role, properties: Mapping[str, Any]) -> Producer:
    """Return a producer with these properties of librdkafka, on top of `PRODUCER`. Raises KafkaException."""
    _log.debug("new producer: %s", role.purpose)
    return Producer({**PRODUCER, **properties})


def new_admin(role: Role, properties: Mapping[str, Any]) -> AdminClient:
    """Return a client for administration with these properties of librdkafka. Raises KafkaException.

    Keep a reference to it until its last answer has come.
    """
    _log.debug("new client for administration: %s", role.purpose)
    return AdminClient(dict(properties))


def stream_client(stream: KafkaStream) -> dict[str, Any]:
    """librdkafka's properties for what works beside a channel, on its brokers."""
    return {"bootstrap.servers": stream.bootstrap_servers, **QUIET, **client_properties(stream.client)}


REQUEST_SECONDS = 10.0
"""Time in which brokers answer one request: for offsets, watermarks, metadata, or the settings of a topic.

Brokers that take longer count as away: the caller reports that, and tries again later.
"""
METADATA_SECONDS = 2.0
"""Time in which brokers answer a list of topics or groups that a polling thread asks for, which fetches nothing
meanwhile.
"""
CONNECT_SECONDS = 2.0
"""Time in which a broker accepts a connection, and gives each answer on it, when a client's failure is explained."""
TOPIC_ID_SECONDS = 5.0
"""Longest time between two requests for the id of a topic: one that was recreated may have records before the
offset.
"""
BUSY_POLL_SECONDS = 0.02
"""Timeout of a poll of a consumer that has just received records: commits and rebalances wait for its end."""
