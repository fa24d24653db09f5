"""Commit log of the Kafka sink: a compacted topic, written in the transactions whose offsets it holds."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any, NamedTuple

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from flafka.plugins import Assignment, FlafkaError, Retry
from flafka.plugins.kafka.admin import PROBE_SECONDS, create_topic, read_up_to, watermarks
from flafka.plugins.kafka.clients import new_admin, new_consumer
from flafka.plugins.kafka.errors import sentence
from flafka.sinks.kafka.config import COMMIT_LOG
from flafka.sinks.kafka.writers import Writer

SUFFIX = ".positions"
VERSION = 1
"""Version of the entries: a list of epoch, offset and 0. A later one is an object with a field `version`."""
READ_SECONDS = 10.0
_NOT_ALLOWED = frozenset({KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED})


class CommitLogEntry(NamedTuple):
    """Newest entry of one partition of a group."""

    epoch: int
    offset: int
    """Offset of the next record of the channel to deliver."""


class CommitLog:
    """Commit log of all partitions of one channel's topic.

    The group's offsets say the same, and are committed with it: this is for when they are lost, with the group or by
    another program's commit.
    """

    def __init__(self, client: Mapping[str, Any], topic: str, log: logging.Logger) -> None:
        self.name = topic + SUFFIX
        self._client, self._channel, self._log = dict(client), topic, log
        self._partitions = 0

    def write(self, writer: Writer, assignment: Assignment, next_offset: int) -> None:
        """Add an entry to the writer's transaction. Conflict where it was fenced."""
        entry = json.dumps([assignment.generation.epoch, next_offset, 0]).encode()
        writer.produce(self.name, value=entry, key=_key(assignment), partition=self._partition(assignment))

    def read(self, assignment: Assignment) -> CommitLogEntry | None:
        """The newest entry up to now, but for transactions that did not come about. Retry where it is not reached."""
        key, found = _key(assignment), None
        for name, value in self._records(self._partition(assignment), assignment.group):
            if name == key:
                found = value
        if found is None:
            return None
        if not isinstance(found, list):
            version = found.get("version", "unknown") if isinstance(found, dict) else "unknown"
            raise FlafkaError(
                f"topic {self.name} has an entry of version {version} for group {assignment.group}, and this sink "
                f"reads version {VERSION}: deliver what the channel holds with the agent that wrote it (agent start "
                "--drain), then delete that topic"
            )
        return CommitLogEntry(*found[:2])

    def _records(self, partition: int, group: str) -> Iterator[tuple[str, Any]]:
        at = TopicPartition(self.name, partition, OFFSET_BEGINNING)
        try:
            # With open transactions, of which a reader of committed records sees nothing.
            with closing(self._consumer(group, isolation="read_uncommitted")) as consumer:
                _, high = watermarks(consumer, at, PROBE_SECONDS)
            with closing(self._consumer(group)) as consumer:
                for message in read_up_to(consumer, at, high, READ_SECONDS, wait=True):
                    yield (message.key() or b"").decode(errors="replace"), json.loads(message.value() or b"null")
        except KafkaException as e:
            raise Retry(f"topic {self.name} cannot be read: {sentence(e)}") from e

    def _consumer(self, group: str, isolation: str = "read_committed") -> Consumer:
        # The channel's group, which it neither joins nor commits to: clients with ACLs may use no other.
        properties = {"group.id": group, "isolation.level": isolation}
        return new_consumer(COMMIT_LOG, {**self._client, **properties})

    def _partition(self, assignment: Assignment) -> int:
        return assignment.partition % self._partitions

    def open(self) -> bool:
        """Create the topic where it is missing. False where that is not allowed. Raises Retry."""
        admin = new_admin(COMMIT_LOG, self._client)
        try:
            topics = admin.list_topics(timeout=PROBE_SECONDS).topics
            if self.name in topics:
                self._partitions = len(topics[self.name].partitions)
            else:
                channel = topics[self._channel].partitions
                self._partitions = len(channel)
                replicas = len(next(iter(channel.values())).replicas)
                settings = {
                    "cleanup.policy": "compact",
                    "segment.ms": "600000",
                    "min.cleanable.dirty.ratio": "0.1",
                }
                create_topic(admin, self.name, len(channel), replicas, settings, PROBE_SECONDS)
        except (KafkaException, TimeoutError) as e:
            if isinstance(e, KafkaException) and e.args[0].code() in _NOT_ALLOWED:
                self._log.warning(
                    "cannot create topic %s (%s): if the group's offsets are lost, records are written again",
                    self.name, sentence(e),
                )  # fmt: skip
                return False
            raise Retry(f"topic {self.name} cannot be created: {sentence(e)}") from e
        if not self._partitions:
            raise Retry(f"topic {self.name} was created and is not there yet")
        return True


def _key(assignment: Assignment) -> str:
    return f"{assignment.group}/{assignment.topic_partition.topic_id}/{assignment.partition}"
