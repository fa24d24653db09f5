"""State of the brokers of a topic, and the backlog of its consumer groups, for monitoring."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from flafka.plugins.errors import Retry
from flafka.plugins.kafka.admin import accepts, committed_offsets, watermarks
from flafka.plugins.kafka.clients import Role, new_admin, new_consumer
from flafka.plugins.kafka.errors import sentence


class Broker(NamedTuple):
    """One broker of a cluster."""

    id: int
    address: str
    up: bool
    """True if it accepts connections now."""
    leads: int
    """Number of the topic's partitions that it leads."""


class ClusterState(NamedTuple):
    """A cluster and a channel's topic as they are now."""

    id: str
    topic: str
    brokers: tuple[Broker, ...]
    """Brokers that were seen since the first look, up or not."""
    partitions: int
    under_replicated: int
    """Partitions of which not all replicas are in sync."""
    leaderless: int
    """Partitions that nobody can read or write."""


class Backlog(NamedTuple):
    """Records that a consumer group has not committed yet."""

    records: int
    oldest: int | None
    """Time at which the oldest of them came, in milliseconds since the epoch; None where there is none."""
    retention: float | None
    """Seconds until the brokers delete it; None where they keep it, or there is none."""


MONITORING_REQUEST_SECONDS = 3.0
"""A broker that takes no connection in that time is shown as one that does not answer."""


RECORD_SECONDS = 2.0
"""For the oldest records of a backlog; what was not read by then is looked for again the next time."""


RETENTION_SECONDS = 300.0
"""The topic's retention is asked for so often."""


_Range = tuple[int, int]
"""Offsets of a partition, the end exclusive."""


_SMALL: Mapping[str, Any] = {
    "fetch.message.max.bytes": 1024,  # brokers answer with one batch of records at least
    "queued.max.messages.kbytes": 64,
}


class TopicMonitor:
    """Requests for the state of brokers and backlogs. Used by one thread; raises Retry where brokers do not answer.

    It keeps one client a consumer group. None of them becomes a member of it, and nothing is committed.
    """

    def __init__(self, role: Role, topic: str, group: str, client: Mapping[str, Any]) -> None:
        self._role, self._topic, self._group, self._client = role, topic, group, dict(client)
        self._admin: AdminClient | None = None
        self._consumers: dict[str, Consumer] = {}
        self._brokers: dict[int, tuple[str, int]] = {}
        """By id: every broker that was ever seen."""
        self._times: dict[str, dict[tuple[int, int], int]] = {}
        """By group, partition and offset: time of a record that was the oldest one at the latest look."""
        self._empty: dict[str, dict[int, _Range]] = {}
        """By group and partition: offsets from the committed one on that hold ends of transactions, and no record."""
        self._retention: float | None = None
        self._retention_due = 0.0

    def close(self) -> None:
        """Close the consumers."""
        for consumer in self._consumers.values():
            consumer.close()
        self._consumers.clear()
        self._admin = None

    def cluster(self) -> ClusterState:
        """By the metadata that the first broker that answers has, and by connecting to each."""
        try:
            metadata = self._consumer(None).list_topics(self._topic, timeout=MONITORING_REQUEST_SECONDS)
        except KafkaException as e:
            if not self._brokers:
                raise Retry(f"no broker answers: {sentence(e)}") from e
            metadata = None
        partitions: list[Any] = []
        if metadata is not None:
            self._brokers |= {broker.id: (broker.host, broker.port) for broker in metadata.brokers.values()}
            partitions = [*metadata.topics[self._topic].partitions.values()]
        with ThreadPoolExecutor(len(self._brokers) or 1) as pool:
            up = dict(zip(self._brokers, pool.map(accepts, self._brokers.values()), strict=True))
        brokers = tuple(
            Broker(id, f"{host}:{port}", up[id], sum(one.leader == id for one in partitions))
            for id, (host, port) in sorted(self._brokers.items())
        )
        return ClusterState(
            (metadata.cluster_id or "") if metadata is not None else "",
            self._topic,
            brokers,
            len(partitions),
            sum(len(one.isrs) < len(one.replicas) for one in partitions),
            sum(one.leader < 0 for one in partitions),
        )

    def backlog(self, group: str | None) -> Backlog:
        """From the group's offsets to the ends of the partitions."""
        consumer = self._consumer(group)
        times = self._times.setdefault(group or self._group, {})
        empty = self._empty.setdefault(group or self._group, {})
        try:
            left = {p: at for p, at in self._left(consumer).items() if empty.get(p) != at}
            oldest = self._oldest(consumer, left, times, empty)
            retention = None if oldest is None else self._kept_for()
        except (KafkaException, TimeoutError) as e:
            name = group or self._group
            raise Retry(f"the backlog of group {name} cannot be looked at: {sentence(e)}") from e
        records = sum(high - start for p, (start, high) in left.items() if empty.get(p) != (start, high))
        if oldest is None or retention is None:
            return Backlog(records, oldest, None)
        return Backlog(records, oldest, oldest / 1000 + retention - time.time())

    def _consumer(self, group: str | None) -> Consumer:
        """Not the client of a producer, which makes brokers create a topic that it asks for."""
        name = group or self._group
        consumer = self._consumers.get(name)
        if consumer is None:
            consumer = self._consumers[name] = new_consumer(self._role, {**self._client, **_SMALL, "group.id": name})
        return consumer

    def _left(self, consumer: Consumer) -> dict[int, _Range]:
        """By partition with more to read: the committed offset of the group, and the end."""
        found = consumer.list_topics(self._topic, timeout=MONITORING_REQUEST_SECONDS).topics[self._topic].partitions
        partitions = [TopicPartition(self._topic, partition) for partition in found]
        left: dict[int, _Range] = {}
        for at in committed_offsets(consumer, partitions, MONITORING_REQUEST_SECONDS):
            low, high = watermarks(consumer, at, MONITORING_REQUEST_SECONDS)
            start = max(at.offset, low)  # below 0 where there is no committed offset
            if start < high:
                left[at.partition] = start, high
        return left

    def _oldest(
        self,
        consumer: Consumer,
        left: Mapping[int, _Range],
        times: dict[tuple[int, int], int],
        empty: dict[int, _Range],
    ) -> int | None:
        """Return the time of the oldest record of `left`, and note in `empty` which of its ranges hold none.

        `times` are known from the group's earlier looks.
        """
        wanted = {(partition, start) for partition, (start, _) in left.items()}
        for at in times.keys() - wanted:
            del times[at]
        unknown = wanted - times.keys()
        if unknown:
            consumer.assign([TopicPartition(self._topic, partition, offset) for partition, offset in unknown])
            deadline = time.monotonic() + RECORD_SECONDS
            while unknown and (seconds := deadline - time.monotonic()) > 0:
                message = consumer.poll(seconds)
                if message is None:
                    continue
                partition, offset, error = message.partition() or 0, message.offset() or 0, message.error()
                found = {at for at in unknown if at[0] == partition and at[1] <= offset}
                if error is None:  # what was there may be gone, or be the end of a transaction: the next one counts
                    times |= dict.fromkeys(found, message.timestamp()[1])
                elif error.code() == KafkaError._PARTITION_EOF and found and offset >= left[partition][1]:
                    empty[partition] = left[partition]
                else:
                    continue
                unknown -= found
                if found:
                    consumer.incremental_unassign([TopicPartition(self._topic, partition)])
            consumer.unassign()
        return min(times.values(), default=None)

    def _kept_for(self) -> float | None:
        """Seconds; None for ever, and where the brokers do not tell: that may be forbidden, and all else is known."""
        if time.monotonic() < self._retention_due:
            return self._retention
        if self._admin is None:
            self._admin = new_admin(self._role, self._client)
        resource = ConfigResource(ResourceType.TOPIC, self._topic)
        self._retention = None
        with contextlib.suppress(KafkaException, TimeoutError):
            settings = self._admin.describe_configs([resource])[resource].result(MONITORING_REQUEST_SECONDS)
            kept = int(settings["retention.ms"].value or -1)
            self._retention = None if kept < 0 else kept / 1000
        self._retention_due = time.monotonic() + RETENTION_SECONDS
        return self._retention
