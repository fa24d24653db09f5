"""Topic of the channel: its creation and limits, its backlog, and lookups of events."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any, cast

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec, ResourceType

from flafka.channels.kafka.config import CHANNEL, KafkaChannelConfig
from flafka.channels.kafka.offsets import topic_id_of
from flafka.channels.kafka.producer import MAX_RECORD_BYTES, Limits
from flafka.plugins import (
    Assignment,
    Backlog,
    Broker,
    ClusterLook,
    EventId,
    KafkaBackedChannel,
    OffsetRange,
    Onlooker,
    PolledBatch,
    Record,
    Retry,
    Whereabouts,
)
from flafka.plugins.kafka.admin import accepts, answers, create_topic
from flafka.plugins.kafka.clients import new_admin, new_consumer
from flafka.plugins.kafka.errors import sentence
from flafka.plugins.kafka.offsets import committed, offsets_at, read_up_to, watermarks
from flafka.plugins.kafka.timeouts import REQUEST_SECONDS

EXISTS_SECONDS = 2.0
"""Maximum time that a put waits for the answer whether the topic exists."""
AT_ONCE = 8
"""Brokers that are asked by a client each."""
_NOT_ALLOWED = (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED)


class Topic:
    """Questions of one client about the topic. Each call raises KafkaException where brokers do not answer."""

    def __init__(self, admin: AdminClient, channel: KafkaBackedChannel[KafkaChannelConfig]) -> None:
        self._admin, self._channel, self._config = admin, channel, channel.config

    def create(self) -> None:
        """Create it as configured; another agent may do so too. Raises Retry where brokers are too few."""
        config, channel = self._config, self._channel
        settings = {
            "max.message.bytes": str(MAX_RECORD_BYTES),
            "retention.ms": str(config.retention * 3_600_000),
            "cleanup.policy": "delete",
        }
        made = config.topic, config.partitions, config.replication
        try:
            if create_topic(self._admin, *made, settings, REQUEST_SECONDS):
                channel.log.info("created topic %s: %d partitions, %d replicas", *made)
        except KafkaException as e:
            if e.args[0].code() != KafkaError.INVALID_REPLICATION_FACTOR:
                raise
            raise Retry(
                f"channel {channel.name}: replication = {config.replication} needs as many brokers; start them, or "
                f"set replication lower"
            ) from e

    def description(self) -> Any:
        """Return its partitions and their replicas."""
        topic = self._config.topic
        return self._known(lambda: self._admin.describe_topics(TopicCollection([topic]))[topic])

    def refuse_old(self, topics: Iterable[str]) -> None:
        """Raise FlafkaError where the brokers, which have these topics, are too old for the channel."""
        names = sorted(topics, key=lambda name: name != self._config.topic)  # another one, before it is created
        if names:
            topic_id_of(self._admin.describe_topics(TopicCollection(names[:1]))[names[0]].result(REQUEST_SECONDS))

    def exists(self) -> bool:
        """Return False if the brokers say that there is no such topic. Raises TimeoutError after `EXISTS_SECONDS`."""
        topic = self._config.topic
        asked = self._admin.describe_topics(TopicCollection([topic]), request_timeout=EXISTS_SECONDS)
        try:
            asked[topic].result(EXISTS_SECONDS)
        except KafkaException as e:
            if e.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise
            return False
        return True

    def _settings(self) -> Mapping[str, str]:
        """Settings by name; empty if this client may not ask for them (`DescribeConfigs`)."""
        resource = ConfigResource(ResourceType.TOPIC, self._config.topic)
        try:
            found = self._known(lambda: self._admin.describe_configs([resource])[resource])
        except KafkaException as e:
            if e.args[0].code() not in _NOT_ALLOWED:
                raise
            return {}
        return {name: entry.value for name, entry in found.items()}

    def _known(self, ask: Callable[[], Any]) -> Any:
        """The answer about the topic; the broker that answers may not have heard yet of one just created."""
        deadline = time.monotonic() + REQUEST_SECONDS
        while True:
            try:
                return ask().result(REQUEST_SECONDS)
            except KafkaException as e:
                unknown = e.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART
                if not unknown or time.monotonic() > deadline or self._channel.stopping.wait(0.05):
                    raise

    def limits(self) -> Limits:
        """Return the topic's limits; the channel's own ones if this client may not ask for settings."""
        settings = self._settings()
        largest = int(settings.get("max.message.bytes", MAX_RECORD_BYTES))
        return Limits(min(MAX_RECORD_BYTES, largest), "compact" in settings.get("cleanup.policy", ""))

    def writable(self, client: Mapping[str, Any]) -> bool:
        """Return True if the leader of each partition answers, and as many replicas in sync as the topic wants.

        Without the right to ask how many that are, all have to answer. Each is asked by itself, by another client
        with the properties of `client`. Brokers that have lost their controllers describe the past. A connection
        is no proof either, as a frozen broker takes one as well.
        """
        partitions = self.description().partitions
        latest: Any = OffsetSpec.latest()  # type: ignore[no-untyped-call]  # the client types its classes but not this
        ends = {TopicPartition(self._config.topic, one.id): latest for one in partitions}
        for answer in self._admin.list_offsets(ends, request_timeout=REQUEST_SECONDS).values():
            answer.result(REQUEST_SECONDS)
        addresses = list({(node.host, node.port) for one in partitions for node in one.isr})
        with ThreadPoolExecutor(max(1, min(len(addresses), AT_ONCE))) as threads:
            answered = threads.map(lambda address: answers(client, address, self._config.topic), addresses)
            up = dict(zip(addresses, answered, strict=True))
        all_replicas = max(len(one.replicas) for one in partitions)
        least = int(self._settings().get("min.insync.replicas", all_replicas))
        return all(sum(up[node.host, node.port] for node in one.isr) >= least for one in partitions)

    def weaknesses(self, description: Any) -> Iterator[str]:
        """Yield a sentence for each setting with which the topic may lose events or pause."""
        topic = self._config.topic
        replicas = min((len(p.replicas) for p in description.partitions), default=0)
        if replicas < 3:
            yield f"topic {topic} has {replicas} replicas: with 3, the loss of a broker causes no pause"
        in_sync = int(self._settings().get("min.insync.replicas", 2))
        if replicas > 1 and in_sync < 2:
            yield (
                f"topic {topic} has min.insync.replicas={in_sync}: the loss of one broker may lose events; set it "
                "to 2"
            )


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


class KafkaOnlooker(Onlooker):
    """Keeps one client a consumer group. None of them becomes a member of it, and nothing is committed."""

    def __init__(self, topic: str, group: str, client: Mapping[str, Any]) -> None:
        self._topic, self._group, self._client = topic, group, dict(client)
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

    def cluster(self) -> ClusterLook:
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
        return ClusterLook(
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
            consumer = self._consumers[name] = new_consumer(CHANNEL, {**self._client, **_SMALL, "group.id": name})
        return consumer

    def _left(self, consumer: Consumer) -> dict[int, _Range]:
        """By partition with more to read: the committed offset of the group, and the end."""
        found = consumer.list_topics(self._topic, timeout=MONITORING_REQUEST_SECONDS).topics[self._topic].partitions
        partitions = [TopicPartition(self._topic, partition) for partition in found]
        left: dict[int, _Range] = {}
        for at in committed(consumer, partitions, MONITORING_REQUEST_SECONDS):
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
            self._admin = new_admin(CHANNEL, self._client)
        resource = ConfigResource(ResourceType.TOPIC, self._topic)
        self._retention = None
        with contextlib.suppress(KafkaException, TimeoutError):
            settings = self._admin.describe_configs([resource])[resource].result(MONITORING_REQUEST_SECONDS)
            kept = int(settings["retention.ms"].value or -1)
            self._retention = None if kept < 0 else kept / 1000
        self._retention_due = time.monotonic() + RETENTION_SECONDS
        return self._retention


Decode = Callable[[Iterator[Record], Assignment], PolledBatch | None]


class TopicLookup:
    """A topic, to be looked into. Raises Retry where its brokers do not answer."""

    def __init__(self, properties: Mapping[str, Any], topic: str, group: str, decode: Decode) -> None:
        """`group` is neither joined nor committed to: the name of one that the client's ACLs allow."""
        self._properties = {**properties, "group.id": group}
        self._topic, self._decode = topic, decode

    def at(self, time: int) -> dict[int, int]:
        """Return the first offsets at or after that time, as `KafkaBackedChannel.at` does."""

        def ask(consumer: Consumer) -> dict[int, int]:
            partitions = consumer.list_topics(self._topic, timeout=REQUEST_SECONDS).topics[self._topic].partitions
            wanted = [TopicPartition(self._topic, partition, time) for partition in partitions]
            found = {one.partition: one.offset for one in offsets_at(consumer, wanted, REQUEST_SECONDS)}
            if ends := {p: self._marks(consumer, p)[1] for p, offset in found.items() if offset < 0}:
                again = [one for one in wanted if one.partition in ends]  # a newer one may have come before its end
                for one in offsets_at(consumer, again, REQUEST_SECONDS):
                    found[one.partition] = one.offset if one.offset >= 0 else ends[one.partition]
            return found

        return cast("dict[int, int]", self._asked(ask))

    def read(self, assignment: Assignment, offsets: OffsetRange) -> Iterator[PolledBatch]:
        """Yield a span of records, as `KafkaBackedChannel.read` does."""
        consumer, start, end = new_consumer(CHANNEL, self._properties), offsets.start, offsets.end
        try:
            at = TopicPartition(self._topic, assignment.partition, start)
            records = (_record(one) for one in read_up_to(consumer, at, end, REQUEST_SECONDS))
            within = (record for record in records if start <= record.offset < end)
            while (polled := self._decode(within, assignment)) is not None:
                yield polled
        except KafkaException as e:
            raise Retry(f"topic {self._topic} cannot be read: {sentence(e)}") from e
        finally:
            consumer.close()

    def find(self, id: EventId, known: Mapping[str | None, Sequence[Assignment]]) -> Whereabouts | None:
        """Return the location of that event, as `Channel.find` does, given the committed offsets of the groups."""
        of_partition = {
            group: one for group, assignments in known.items() for one in assignments if one.partition == id.partition
        }
        kinds = [named for one in of_partition.values() for named in (one, one.of(id_scheme=2))]
        assignment = next((one for one in kinds if one.id_prefix == id.topic), None)
        if assignment is None:
            return None
        low, high = self._asked(lambda consumer: self._marks(consumer, id.partition))
        offsets = OffsetRange(id.offset, id.offset + 1)
        polled = next(self.read(assignment, offsets), None) if low <= id.offset < high else None
        place: dict[str, str | int] = {"topic": self._topic, "partition": id.partition, "offset": id.offset}
        return Whereabouts(place, polled, _missing(id, polled, low, high), of_partition)

    def _marks(self, consumer: Consumer, partition: int) -> tuple[int, int]:
        return watermarks(consumer, TopicPartition(self._topic, partition), REQUEST_SECONDS)

    def _asked(self, ask: Callable[[Consumer], Any]) -> Any:
        try:
            with closing(new_consumer(CHANNEL, self._properties)) as consumer:
                return ask(consumer)
        except KafkaException as e:
            raise Retry(f"topic {self._topic} cannot be looked at: {sentence(e)}") from e


def _record(message: Any) -> Record:
    return Record(message.offset(), message.timestamp()[1], message.key(), message.value(), message.headers() or ())


def _missing(id: EventId, polled: PolledBatch | None, low: int, high: int) -> str:
    if id.offset < low:
        return f"retention has removed it: the oldest record of partition {id.partition} is {low}"
    if id.offset >= high:
        return f"no such record came yet: partition {id.partition} ends at {high}"
    if polled is None or not (len(polled.batch) or polled.undecodable):
        return f"record {id.offset} holds no event: it ends a transaction, or replays a dead letter"
    if len(polled.batch) and id not in polled.batch.ids():
        return f"record {id.offset} holds {len(polled.batch)} events, numbered from 0"
    return ""
