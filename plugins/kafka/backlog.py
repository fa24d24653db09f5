"""Monitor of a topic's brokers and of the backlogs of its consumer groups."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from flafka.plugins.errors import Retry
from flafka.plugins.kafka.admin import is_accepting, memberless_offsets, partition_numbers, watermarks
from flafka.plugins.kafka.clients import new_admin, new_consumer
from flafka.plugins.kafka.errors import explain_error
from flafka.plugins.kafka.renewal import ClientRenewal
from flafka.plugins.kafka.rights import Role


class Broker(NamedTuple):
    """One broker of a cluster."""

    id: int
    address: str
    up: bool
    """True if the broker accepts connections now."""
    leads: int
    """Number of partitions of the topic with this leader."""


class ClusterState(NamedTuple):
    """Present state of a cluster and of a channel's topic."""

    id: str
    topic: str
    brokers: tuple[Broker, ...]
    """Brokers seen since the start of the monitor, up or not."""
    partitions: int
    under_replicated: int
    """Number of partitions without all replicas in sync."""
    leaderless: int
    """Number of partitions without a leader, which no client can read or write."""


class Backlog(NamedTuple):
    """Uncommitted records of a consumer group."""

    records: int
    """Number of records, at most: it may include ends of transactions."""
    oldest: int | None
    """Timestamp of the oldest record, in milliseconds since the epoch; None if there are no records."""
    retention: float | None
    """Seconds until the brokers delete the oldest record; None if they keep it, or if there are no records."""


MONITORING_REQUEST_SECONDS = 3.0
"""Time in which brokers answer a request of a monitor."""
OLDEST_RECORD_SECONDS = 2.0
"""Time for reading the oldest records of a backlog. Unread ones are read on the next call."""
MAX_CONNECTION_CHECKS = 16
"""Maximum number of connections to brokers that are tried at once."""
RETENTION_INTERVAL_SECONDS = 300.0
"""Interval between requests for the topic's retention."""
_Range = tuple[int, int]
"""Offsets of a partition, the end exclusive."""
_SMALL: Mapping[str, Any] = {
    "fetch.message.max.bytes": 1024,  # brokers return at least one batch of records
    "queued.max.messages.kbytes": 64,
}


class TopicMonitor:
    """Requests for the state of brokers and backlogs. Not thread-safe. Raises Retry if brokers do not answer.

    The monitor has one client for each consumer group, which neither joins the group nor commits offsets.
    """

    def __init__(
        self, role: Role, topic: str, group: str, client: Mapping[str, Any], renewal: ClientRenewal | None = None
    ) -> None:
        """`client` are the properties of the clients, which `renewal` replaces once certificates have changed."""
        self._renewal = renewal
        self._role, self._topic, self._group, self._client = role, topic, group, dict(client)
        self._admin: AdminClient | None = None
        self._consumers: dict[str, Consumer] = {}
        self._threads = ThreadPoolExecutor(MAX_CONNECTION_CHECKS, thread_name_prefix="kafka watch")
        """Threads of the checks for connections, kept as each start of a thread costs more than a check."""
        self._brokers: dict[int, tuple[str, int]] = {}
        """Address by id of every broker seen so far."""
        self._times: dict[str, dict[tuple[int, int], int]] = {}
        """Timestamps of the oldest records on the latest call, by group, and by partition and offset."""
        self._empty: dict[str, dict[int, _Range]] = {}
        """Offsets from the committed one on without records (only ends of transactions), by group and partition."""
        self._retention: float | None = None
        self._retention_due = 0.0

    def close(self) -> None:
        """Close the consumers, and have the threads end."""
        self._threads.shutdown(wait=False)
        self._close_clients()

    def _close_clients(self) -> None:
        """Close the consumers. The next request makes new ones."""
        for consumer in self._consumers.values():
            consumer.close()
        self._consumers.clear()
        self._admin = None

    def _renew_clients(self) -> None:
        """Have the next requests make new clients if the certificates have changed."""
        if self._renewal is None:
            return
        made = self._renewal.renew(lambda properties: (properties, new_admin(self._role, properties)))
        if made is not None:
            self._close_clients()
            self._client, self._admin = made

    def cluster(self) -> ClusterState:
        """Return the state of the brokers, by the cluster's metadata and by a connection to each broker.

        Without an answer it has the brokers seen before, no id, and no partitions. Raises Retry if none was ever
        seen.
        """
        self._renew_clients()
        try:
            metadata = self._consumer(None).list_topics(self._topic, timeout=MONITORING_REQUEST_SECONDS)
        except KafkaException as e:
            if not self._brokers:
                raise Retry(f"no broker answers: {self._explain(e, self._group)}") from e
            metadata = None
        partitions: list[Any] = []
        if metadata is not None:
            self._brokers |= {broker.id: (broker.host, broker.port) for broker in metadata.brokers.values()}
            partitions = [*metadata.topics[self._topic].partitions.values()]
        accepting = self._threads.map(is_accepting, self._brokers.values())
        up = dict(zip(self._brokers, accepting, strict=True))
        brokers = tuple(
            Broker(id, f"{host}:{port}", up[id], sum(partition.leader == id for partition in partitions))
            for id, (host, port) in sorted(self._brokers.items())
        )
        return ClusterState(
            (metadata.cluster_id or "") if metadata is not None else "",
            self._topic,
            brokers,
            len(partitions),
            sum(len(partition.isrs) < len(partition.replicas) for partition in partitions),
            sum(partition.leader < 0 for partition in partitions),
        )

    def backlog(self, group: str | None) -> Backlog:
        """Return the records between the group's committed offsets and the ends of the partitions.

        `group` is None for the group of the monitor. A partition without a committed offset counts from its first
        record. Raises Retry.
        """
        consumer = self._consumer(group)
        times = self._times.setdefault(group or self._group, {})
        empty = self._empty.setdefault(group or self._group, {})
        try:
            ranges = {p: offsets for p, offsets in self._uncommitted(consumer).items() if empty.get(p) != offsets}
            oldest = self._oldest(consumer, ranges, times, empty)
            retention = None if oldest is None else self._retention_seconds()
        except (KafkaException, TimeoutError) as e:
            name = group or self._group
            raise Retry(f"the backlog of group {name} cannot be read: {self._explain(e, name)}") from e
        records = sum(high - start for p, (start, high) in ranges.items() if empty.get(p) != (start, high))
        if oldest is None or retention is None:
            return Backlog(records, oldest, None)
        return Backlog(records, oldest, oldest / 1000 + retention - time.time())

    def _explain(self, error: object, group: str) -> str:
        return explain_error(error, topic=self._topic, right="Read", group=group, client=self._client)

    def _consumer(self, group: str | None) -> Consumer:
        """Return the consumer of a group, made once, which never joins it."""
        # A producer's metadata requests would make brokers create the topic.
        name = group or self._group
        consumer = self._consumers.get(name)
        if consumer is None:
            consumer = self._consumers[name] = new_consumer(self._role, {**self._client, **_SMALL, "group.id": name})
        return consumer

    def _uncommitted(self, consumer: Consumer) -> dict[int, _Range]:
        """Return the range from the group's committed offset to the end, by partition, without empty ranges."""
        numbers = partition_numbers(consumer, self._topic, MONITORING_REQUEST_SECONDS)
        partitions = [TopicPartition(self._topic, partition) for partition in numbers]
        ranges: dict[int, _Range] = {}
        for committed in memberless_offsets(consumer, partitions, MONITORING_REQUEST_SECONDS):
            low, high = watermarks(consumer, committed, MONITORING_REQUEST_SECONDS)
            start = max(committed.offset, low)  # negative without a committed offset
            if start < high:
                ranges[committed.partition] = start, high
        return ranges

    def _oldest(
        self,
        consumer: Consumer,
        ranges: Mapping[int, _Range],
        times: dict[tuple[int, int], int],
        empty: dict[int, _Range],
    ) -> int | None:
        """Return the timestamp of the oldest record of the ranges, in milliseconds; None if there is none.

        Ranges without records are added to `empty`. `times` are the group's timestamps of the latest call, and are
        updated. Timestamps that cannot be read within `OLDEST_RECORD_SECONDS` do not count.
        """
        wanted = {(partition, start) for partition, (start, _) in ranges.items()}
        for stale in times.keys() - wanted:
            del times[stale]
        unknown = wanted - times.keys()
        if unknown:
            consumer.assign([TopicPartition(self._topic, partition, offset) for partition, offset in unknown])
            deadline = time.monotonic() + OLDEST_RECORD_SECONDS
            while unknown and (seconds := deadline - time.monotonic()) > 0:
                message = consumer.poll(seconds)
                if message is None:
                    continue
                partition, offset, error = message.partition() or 0, message.offset() or 0, message.error()
                resolved = {start for start in unknown if start[0] == partition and start[1] <= offset}
                if error is None:  # the first record after the offset, if that was deleted or ends a transaction
                    times |= dict.fromkeys(resolved, message.timestamp()[1])
                elif error.code() == KafkaError._PARTITION_EOF and resolved and offset >= ranges[partition][1]:
                    empty[partition] = ranges[partition]
                else:
                    continue
                unknown -= resolved
                if resolved:
                    consumer.incremental_unassign([TopicPartition(self._topic, partition)])
            consumer.unassign()
        return min(times.values(), default=None)

    def _retention_seconds(self) -> float | None:
        """Return the topic's retention in seconds; None if it is unlimited, or if this client may not read it.

        The result is cached for `RETENTION_INTERVAL_SECONDS`.
        """
        if time.monotonic() < self._retention_due:
            return self._retention
        if self._admin is None:
            self._admin = new_admin(self._role, self._client)
        resource = ConfigResource(ResourceType.TOPIC, self._topic)
        self._retention = None
        with contextlib.suppress(KafkaException, TimeoutError):
            settings = self._admin.describe_configs([resource])[resource].result(MONITORING_REQUEST_SECONDS)
            milliseconds = int(settings["retention.ms"].value or -1)
            self._retention = None if milliseconds < 0 else milliseconds / 1000
        self._retention_due = time.monotonic() + RETENTION_INTERVAL_SECONDS
        return self._retention
