"""Commit log of the Kafka sink: a compacted topic with the offsets of transactions, written within these."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing
from typing import Any, NamedTuple

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from flafka.plugins import Assignment, FlafkaError, Retry
from flafka.plugins.kafka.admin import (
    CONNECTIVITY_SECONDS,
    create_topic,
    has_write_access,
    read_up_to,
    refused_operations,
    visibility_error,
    watermarks,
)
from flafka.plugins.kafka.clients import new_admin, new_consumer
from flafka.plugins.kafka.errors import explain_error
from flafka.sinks.kafka.config import COMMIT_LOG
from flafka.sinks.kafka.producers import RecordProducer

TOPIC_SUFFIX = ".positions"
VERSION = 1
"""Version of the entries: a list of epoch, offset and 0. A later one is an object with a field `version`."""
COMMIT_LOG_READ_SECONDS = 10.0
"""Maximum time to read the topic."""
_NOT_ALLOWED = frozenset({KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED})


class CommitLogEntry(NamedTuple):
    """Newest entry of one partition of a group."""

    epoch: int
    offset: int
    """Offset of the next record of the channel to deliver."""


class KafkaCommitLog:
    """Commit log of all partitions of one channel's topic.

    The group's committed offsets are the same, and are committed in the same transaction. The commit log is needed if
    they are lost, with the group or by another program's commit.
    """

    def __init__(self, client: Mapping[str, Any], topic: str, log: logging.Logger) -> None:
        self.name = topic + TOPIC_SUFFIX
        self._client, self._channel, self._log = dict(client), topic, log
        self._partitions = 0

    def use(self, client: Mapping[str, Any]) -> None:
        """Make later clients with these properties."""
        self._client = dict(client)

    def write(self, producer: RecordProducer, assignment: Assignment, next_offset: int) -> None:
        """Add an entry with `next_offset` to the producer's transaction.

        Raises Conflict if the producer was fenced, Retry if its queue stays full, and KafkaException for other
        failures.
        """
        entry = json.dumps([assignment.generation.epoch, next_offset, 0]).encode()
        producer.produce(self.name, value=entry, key=_key(assignment), partition=self._partition(assignment))

    def read(self, assignment: Assignment) -> CommitLogEntry | None:
        """Return the newest entry of committed transactions for a partition and group; None without one.

        Raises Retry if the topic cannot be read, and FlafkaError for an entry of a later version.
        """
        key, entry = _key(assignment), None
        for name, value in self._records(self._partition(assignment), assignment.group):
            if name == key:
                entry = value
        if entry is None:
            return None
        if not isinstance(entry, list):
            version = entry.get("version", "unknown") if isinstance(entry, dict) else "unknown"
            raise FlafkaError(
                f"topic {self.name} has an entry of version {version} for group {assignment.group}, and this sink "
                f"reads version {VERSION}: deliver what the channel holds with the agent that wrote it (agent start "
                "--drain), then delete that topic"
            )
        return CommitLogEntry(*entry[:2])

    def _records(self, partition: int, group: str) -> Iterator[tuple[str, Any]]:
        """Yield key and decoded value of each committed record of a partition, up to the present end.

        Raises Retry if the topic cannot be read.
        """
        start = TopicPartition(self.name, partition, OFFSET_BEGINNING)
        try:
            # The high watermark, behind open transactions, unlike the last stable offset of `read_committed`.
            with closing(self._consumer(group, isolation="read_uncommitted")) as consumer:
                _, high = watermarks(consumer, start, CONNECTIVITY_SECONDS)
            with closing(self._consumer(group)) as consumer:
                for message in read_up_to(consumer, start, high, COMMIT_LOG_READ_SECONDS, wait=True):
                    yield (message.key() or b"").decode(errors="replace"), json.loads(message.value() or b"null")
        except KafkaException as e:
            raise Retry(f"topic {self.name} cannot be read: {self._explain(e, 'Read')}") from e

    def _consumer(self, group: str, isolation: str = "read_committed") -> Consumer:
        """Return a new consumer with the id of that group, as ACLs may allow no other. It does not join the group."""
        # The channel's group, as ACLs may allow no other. The consumer neither joins it nor commits to it.
        properties = {"group.id": group, "isolation.level": isolation}
        return new_consumer(COMMIT_LOG, {**self._client, **properties})

    def _explain(self, error: object, right: str | Collection[str]) -> str:
        return explain_error(error, topic=self.name, right=right, client=self._client)

    def _partition(self, assignment: Assignment) -> int:
        """Return the partition of the commit log that has the entries of this assignment."""
        return assignment.partition % self._partitions

    def open(self) -> bool:
        """Create the topic if it is missing, with as many partitions and replicas as the channel's topic.

        Return False, and log a warning, if this client may not create it. Raises Retry for any other failure.
        """
        admin = new_admin(COMMIT_LOG, self._client)
        try:
            topics = admin.list_topics(timeout=CONNECTIVITY_SECONDS).topics
            if self.name in topics:
                self._partitions = len(topics[self.name].partitions)
                if not has_write_access(admin, self.name):  # brokers would refuse transactions, and not name it
                    denied = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
                    raise Retry(self._explain(denied, "Write"))
            else:
                if self._channel not in topics:  # the sink may have another user than the channel
                    refusal = visibility_error(self._client, self._channel, ["Read"])
                    raise Retry(refusal or f"there is no topic {self._channel}")
                channel = topics[self._channel].partitions
                self._partitions = len(channel)
                replicas = len(next(iter(channel.values())).replicas)
                settings = {
                    "cleanup.policy": "compact",
                    "segment.ms": "600000",
                    "min.cleanable.dirty.ratio": "0.1",
                }
                create_topic(admin, self.name, len(channel), replicas, settings, CONNECTIVITY_SECONDS)
        except (KafkaException, TimeoutError) as e:
            if isinstance(e, KafkaException) and e.args[0].code() in _NOT_ALLOWED:
                self._log.warning(
                    "cannot create topic %s, and if the group's offsets are lost, records are duplicated: %s",
                    self.name, self._explain(e, refused_operations(admin, self.name, ["Read", "Write"])),
                )  # fmt: skip
                return False
            raise Retry(f"topic {self.name} cannot be created: {self._explain(e, 'Create')}") from e
        if not self._partitions:
            raise Retry(f"topic {self.name} is being created")
        return True


def _key(assignment: Assignment) -> str:
    """Return the key of an assignment's entries: group, topic id and partition."""
    return f"{assignment.group}/{assignment.topic_partition.topic_id}/{assignment.partition}"
