"""Kafka clients of components: constructors, default properties and timeouts.

Each caller names the client's role, which declares the rights that the client needs on a cluster with ACLs.
Commands use kafka-python instead (`agent/cli/kafka_admin.py`). Validators of options make clients that never connect
(`config.py`, `properties.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from flafka.plugins.kafka.kerberos import log_in
from flafka.plugins.kafka.logins import verify_tls
from flafka.plugins.kafka.properties import QUIET, client_properties
from flafka.plugins.kafka.rights import Role
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
"""Default properties of a consumer."""
PRODUCER: Mapping[str, Any] = {
    "acks": "all",
    "enable.idempotence": True,
    "linger.ms": 5,
    "message.max.bytes": 8 << 20,
    "partitioner": "murmur2_random",  # of Java's client: a key has the same partition for both clients
    "queue.buffering.max.kbytes": 64 << 10,
    "compression.type": "lz4",
}
"""Default properties of a producer."""


QUERY = Role("a request about brokers or a topic, for a component whose own role has the rights", ())


def new_consumer(role: Role, properties: Mapping[str, Any]) -> Consumer:
    """Return a consumer with these properties of librdkafka, which win over `CONSUMER`. Raises KafkaException."""
    _log.debug("new consumer: %s", role.purpose)
    log_in(properties)
    verify_tls(properties)
    return Consumer({**CONSUMER, **properties})


def new_producer(role: Role, properties: Mapping[str, Any]) -> Producer:
    """Return a producer with these properties of librdkafka, which win over `PRODUCER`. Raises KafkaException."""
    _log.debug("new producer: %s", role.purpose)
    log_in(properties)
    verify_tls(properties)
    return Producer({**PRODUCER, **properties})


def new_admin(role: Role, properties: Mapping[str, Any]) -> AdminClient:
    """Return an admin client with these properties of librdkafka. Raises KafkaException.

    Keep a reference to the client until its last future is done.
    """
    _log.debug("new admin client: %s", role.purpose)
    log_in(properties)
    verify_tls(properties)
    return AdminClient(dict(properties))


def stream_client(stream: KafkaStream) -> dict[str, Any]:
    """Return librdkafka's properties for a client of the stream's brokers. Raises Retry for an unusable key store."""
    return {"bootstrap.servers": stream.bootstrap_servers, **QUIET, **client_properties(stream.client)}


REQUEST_SECONDS = 10.0
"""Timeout of one request for offsets, watermarks, metadata, or the settings of a topic.

The caller reports brokers that take longer as unreachable, and retries later.
"""
METADATA_SECONDS = 2.0
"""Timeout of a request for topics or groups by a polling thread, which fetches no records meanwhile."""
BROKER_CONNECT_SECONDS = 2.0
"""Timeout of a connection to a broker, and of each answer on it, when a client's failure is diagnosed."""
TOPIC_ID_SECONDS = 5.0
"""Longest time between two requests for the id of a topic, which may have been recreated."""
BUSY_POLL_SECONDS = 0.02
"""Timeout of a poll after a consumer has received records. Commits and rebalances wait for the end of the poll."""
