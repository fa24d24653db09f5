"""The Kafka channel: one topic, which it makes, and what goes into it, comes out of it and is known of it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import cache
from types import MappingProxyType
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from flafka import plugins
from flafka.channels.kafka.config import CHANNEL, KafkaChannelConfig
from flafka.channels.kafka.consumer import KafkaReader
from flafka.channels.kafka.differences import KAFKA
from flafka.channels.kafka.offsets import (
    OutsideCommits,
    TopicIds,
    assigned,
    assignments_of,
    called,
    kept_refusals,
    refusals_of,
    topic_id_of,
    truncations,
    with_last_record,
)
from flafka.channels.kafka.producer import COMPACTED, ChannelProducer, Limits
from flafka.channels.kafka.records import decode, encode_event, readdressed
from flafka.channels.kafka.topic import KafkaOnlooker, Topic, TopicLookup
from flafka.plugins import (
    Assignment,
    Batch,
    Caution,
    Event,
    EventId,
    FlafkaError,
    Generation,
    KafkaBackedChannel,
    KafkaStream,
    OffsetRange,
    Onlooker,
    PolledBatch,
    Reader,
    RebalanceListener,
    Record,
    Retry,
    Whereabouts,
)
from flafka.plugins.kafka.admin import NO_BROKERS, unanswered
from flafka.plugins.kafka.clients import new_admin, new_consumer
from flafka.plugins.kafka.errors import ReportedErrors, metadata, sentence, unusable
from flafka.plugins.kafka.metrics import (
    COMMIT_TIMER,
    GET_TIMER,
    RECORDS_LOST,
    ROLLBACKS,
    SEND_TIMER,
    TOPIC_RECREATED,
)
from flafka.plugins.kafka.offsets import RecordsLost, committed, members_of, watermarks
from flafka.plugins.kafka.properties import client_properties
from flafka.plugins.kafka.timeouts import REQUEST_SECONDS


class KafkaChannel(KafkaBackedChannel[KafkaChannelConfig]):
    """Holds events in a replicated topic: `put` returns when all in-sync replicas have them, and nothing that it
    accepted is lost while one of them lives. Into it at least once: a put cut off in the middle may be repeated.
    Batches are compressed with LZ4, from 1 MiB on with Zstandard, unless `kafka.producer.compression.type` is set.
    """

    type_name = "kafka"
    aliases = ("org.apache.flume.channel.kafka.KafkaChannel",)
    differences = KAFKA
    declared_metrics = (GET_TIMER, SEND_TIMER, COMMIT_TIMER, ROLLBACKS, TOPIC_RECREATED, RECORDS_LOST)

    def __init__(self, config: KafkaChannelConfig, name: str = "") -> None:
        super().__init__(config, name)
        self._producer: ChannelProducer | None = None
        self._cluster_id = ""
        self._topic_ids: TopicIds | None = None
        self._joined = Counter[str]()
        """Number of times that a member had to join its group under another name."""
        self._logged = set[tuple[str, str, int, int]]()
        """Offsets of deleted topics that were logged, see `assignments_of`: a drain asks for offsets again and again.
        """

    # --- life

    @property
    def replication(self) -> int:
        """Number of replicas, as configured."""
        return self.config.replication

    @property
    def holds_batches(self) -> bool:
        """In the format of Arrow."""
        return self.config.format == "arrow"

    def open(self) -> None:
        """Create the topic where it is missing, and start the producer. Raises Unreachable while brokers are away."""
        config = self.config
        if not config.bootstrap_servers:
            raise FlafkaError(f"channel {self.name}: {NO_BROKERS}")
        client, heard, whose = self._client(config.producer), ReportedErrors(), f"channel {self.name}: "
        found = metadata(client, REQUEST_SECONDS, whose)
        if foreign := config.foreign(found.cluster_id):
            raise Retry(f"{whose}{foreign}")
        self._cluster_id, there = found.cluster_id or "", config.topic in found.topics
        properties: dict[str, Any] = {**client, "error_cb": heard}
        admin = new_admin(CHANNEL, properties)
        self._topic_ids = TopicIds(admin, config.topic)
        try:
            topic = Topic(admin, self)
            if not there:
                topic.refuse_old(found.topics)
                topic.create()
            description = topic.description()
            topic_id_of(description)
            limits = topic.limits()
            if limits.compacted:
                raise FlafkaError(f"channel {self.name}: {COMPACTED.format(config.topic)}")
            for warning in topic.weaknesses(description) if there else ():
                self.log.warning("%s", warning)
        except (KafkaException, TimeoutError) as e:
            admin.poll(0)  # the callback runs within it
            right = "Describe" if there else "Create"
            raise unusable(client, e, heard, whose, topic=config.topic, right=right) from e
        partitions = len(description.partitions)
        asking = self._writable, self._limits, self._exists
        self._producer = ChannelProducer(self, client, partitions, limits, *asking)

    def close(self) -> None:
        """Stop the producer; what is still under way is given up."""
        if self._producer is not None:
            self._producer.close()
            self._producer = None
        self._topic_ids = None

    def probe(self) -> Iterator[str]:
        """Brokers away, too few of them, or a topic less safe than it should be."""
        config = self.config
        if not config.bootstrap_servers:
            yield NO_BROKERS
            return
        client = self._client(config.producer)
        try:
            found = metadata(client, REQUEST_SECONDS)
        except Retry as e:
            yield str(e)
            return
        admin = new_admin(CHANNEL, client)
        try:
            yield from map(Caution, unanswered(config.bootstrap_servers))
            topic = Topic(admin, self)
            if foreign := config.foreign(found.cluster_id):
                yield foreign
                return
            topic.refuse_old(found.topics)
            if config.topic in found.topics:
                if topic.limits().compacted:
                    yield COMPACTED.format(config.topic)
                yield from map(Caution, topic.weaknesses(topic.description()))
            elif len(found.brokers) < config.replication:
                yield (
                    f"replication = {config.replication}, but only {len(found.brokers)} brokers are up at "
                    f"{config.bootstrap_servers}: start the others or set `replication = {len(found.brokers)}`"
                )
        except (KafkaException, TimeoutError) as e:
            yield str(unusable(client, e, ReportedErrors(), topic=config.topic, right="Describe"))

    # --- in

    @property
    def refusal(self) -> str:
        """Reason why brokers refuse this client's login; empty while they do not."""
        return self._producer.refusal if self._producer is not None else ""

    def _writable(self) -> bool:
        """Return True if the brokers say that they could take a record in each partition now.

        Without an answer, whatever the reason, a put still waits.
        """
        try:
            client = self._client(self.config.producer)
            return Topic(new_admin(CHANNEL, client), self).writable(client)
        except Exception as e:  # noqa: BLE001  # a keystore that cannot be read now, a broker that answers oddly
            self.log.debug("the brokers cannot be asked: %s", e)
            return False

    def _exists(self) -> bool:
        """Return False if the brokers say that there is no such topic; True where they do not answer."""
        try:
            return Topic(new_admin(CHANNEL, self._client(self.config.producer)), self).exists()
        except Exception as e:  # noqa: BLE001  # a keystore that cannot be read now, a broker that answers oddly
            self.log.debug("the brokers cannot be asked: %s", e)
            return True

    def _limits(self) -> Limits:
        """Ask the brokers for the topic's limits. Raises KafkaException or TimeoutError."""
        return Topic(new_admin(CHANNEL, self._client(self.config.producer)), self).limits()

    def put(self, batch: Batch) -> None:
        """Return when every in-sync replica has the batch. Rejected names rows that no record can hold."""
        self.put_in_turn(batch, lambda: None)

    def put_in_turn(self, batch: Batch, placed: Callable[[], None]) -> None:
        """Put the batch, in the order of the client's queue, which sends to each partition in order."""
        if self._producer is None:
            raise Retry(f"channel {self.name} is not connected")
        self._producer.put(batch, placed)

    # --- out

    def onlooker(self) -> Onlooker:
        """Connections of its own, which read nothing but the oldest record of a backlog."""
        config = self.config
        return KafkaOnlooker(config.topic, config.group_id, self._client(config.consumer))

    def reader(self, owner: RebalanceListener, *, group: str | None, member: str) -> Reader:
        """A consumer of the topic, a static member of its group."""
        config = self.config
        name = f"{member}.{config.topic}"

        def join_anew() -> None:
            self._joined[name] += 1

        instance = f"{name}.{self._joined[name]}" if self._joined[name] else name
        properties = {
            **self._client({"client.id": f"flafka-{self.name}", **config.consumer}),
            "group.id": group or config.group_id,
            # With its topic: a static member that returns within its session gets its old partitions, and with them
            # those of another topic, if it was configured anew meanwhile.
            "group.instance.id": re.sub(r"[^\w.-]", "_", instance, flags=re.ASCII),
        }
        if self._topic_ids is None:
            raise Retry(f"channel {self.name} is not connected")
        return KafkaReader(
            properties,
            self._assignment(group),
            owner,
            self.metrics,
            self.decode,
            self._topic_ids,
            self.log,
            join_anew,
        )

    def stream(self, group: str | None) -> KafkaStream:
        """The topic, for Spark."""
        config = self.config
        return KafkaStream(
            config.bootstrap_servers or "", config.topic, group or config.group_id, client=config.consumer
        )

    def committed(self, group: str | None) -> Sequence[Assignment]:
        """The group's committed offsets, with what their metadata says."""
        return self._committed(group)[0]

    def refusals(self, group: str | None, starts: Collection[Assignment] | None = None) -> Sequence[FlafkaError]:
        """By the group's committed offsets, the starts, the watermarks, and the last record before each start."""
        assignments, offsets = self._committed(group)
        starts = assignments if starts is None else starts
        marks = cache(lambda: self._watermarks({"isolation.level": "read_uncommitted"}))
        found = refusals_of(starts, marks()) if starts else {}
        known = {one.partition: one for one in assignments}
        there = [with_last_record(one, known[one.partition]) for one in starts if one.partition in known]
        client = {**self._client(self.config.consumer), "group.id": group or self.config.group_id}
        try:
            lost = [one for one in truncations(client, there, known) if isinstance(one, RecordsLost)]
        except KafkaException as e:
            raise Retry(self._unreachable(e)) from e
        kept = kept_refusals(assignments, offsets, lambda partition: marks()[partition])
        found |= {one.assignment.partition: one for one in (*lost, *kept)}
        if found:
            self.confirm(assignments[0])  # a topic made again meanwhile has lost nothing
        return [error for _, error in sorted(found.items())]

    def _committed(self, group: str | None) -> tuple[list[Assignment], list[TopicPartition]]:
        """Return the assignments of all partitions, and the committed offsets that these were made of."""
        assignment = self._assignment(group).of(topic_id=self._ids().get())
        topic = self.config.topic
        try:
            with closing(self._onlooker(group)) as consumer:
                partitions = consumer.list_topics(topic, timeout=REQUEST_SECONDS).topics[topic].partitions
                found = committed(consumer, [TopicPartition(topic, p) for p in partitions], REQUEST_SECONDS)
        except KafkaException as e:
            raise Retry(self._unreachable(e)) from e
        return assignments_of(assignment, found, self.log, self._logged), found

    def ends(self) -> Mapping[int, int]:
        """The high watermarks."""
        return {partition: high for partition, (_, high) in self._watermarks().items()}

    def starts(self) -> Mapping[int, int]:
        """The low watermarks."""
        return {partition: low for partition, (low, _) in self._watermarks().items()}

    def _watermarks(self, properties: Mapping[str, str] = MappingProxyType({})) -> dict[int, tuple[int, int]]:
        topic = self.config.topic
        try:
            with closing(self._onlooker(None, properties)) as consumer:
                partitions = consumer.list_topics(topic, timeout=REQUEST_SECONDS).topics[topic].partitions
                return {p: watermarks(consumer, TopicPartition(topic, p), REQUEST_SECONDS) for p in partitions}
        except KafkaException as e:
            raise Retry(self._unreachable(e)) from e

    def vacant(self, partition: int, start: int | None, end: int) -> bool:
        """Read from there, as the channel's readers do. An open transaction, which may be committed yet, counts."""
        at = TopicPartition(self.config.topic, partition, OFFSET_BEGINNING if start is None else start)
        try:
            with closing(self._onlooker(None)) as consumer:
                consumer.assign([at])
                message = consumer.poll(REQUEST_SECONDS)
        except KafkaException as e:
            raise Retry(self._unreachable(e)) from e
        if message is None:
            raise Retry(f"partition {partition} of {self.config.topic} does not answer")
        error = message.error()
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            return False
        return (message.offset() or 0) >= end

    def at(self, time: int) -> Mapping[int, int]:
        """By the time that the records carry."""
        return self._looking().at(time)

    def read(self, assignment: Assignment, offsets: OffsetRange) -> Iterator[PolledBatch]:
        """Read records of committed transactions, and records outside of transactions."""
        return self._looking().read(assignment, offsets)

    def find(self, id: EventId, groups: Collection[str | None]) -> Whereabouts | None:
        """The record, as it lies in the topic now."""
        if id.topic.partition("~")[0] != self.config.topic:
            return None
        looking = self._looking()
        cluster = str(metadata(self._client(self.config.consumer), REQUEST_SECONDS).cluster_id)
        known = {
            group: [
                replace(one, topic_partition=one.topic_partition._replace(cluster=cluster))
                for one in self.committed(group)
            ]
            for group in (groups or [None])
        }
        return looking.find(id, known)

    def members(self, group: str | None) -> Mapping[str, Collection[int]]:
        """Return the group's members, by their static ids if they have one, and their hosts."""
        name = group or self.config.group_id
        try:
            members = members_of(new_admin(CHANNEL, self._client(self.config.consumer)), name, REQUEST_SECONDS)
        except KafkaException as e:
            raise Retry(f"group {name} cannot be looked at: {sentence(e)}") from e
        found: dict[str, list[int]] = {}
        for member in members:  # several may have one name
            found.setdefault(called(member), []).extend(assigned(member.assignment, self.config.topic))
        return found

    def commit_offsets(self, assignments: Collection[Assignment]) -> None:
        """Commit offsets without membership in the group; `OutsideCommits.commit_offsets` says how."""
        self._outside().commit_offsets(assignments)

    def refuse(self, error: FlafkaError) -> None:
        """See `OutsideCommits.refuse`."""
        if isinstance(error, RecordsLost):
            self._outside().refuse(error)

    def restore(self, assignments: Collection[Assignment]) -> None:
        """Commit offsets that a late commit has undone; `OutsideCommits.restore` says how."""
        self._outside().restore(assignments)

    def confirm(self, assignment: Assignment) -> None:
        """Ask the brokers for the topic's id."""
        if self._ids().get() != assignment.topic_partition.topic_id:
            raise Retry(
                f"topic {assignment.topic} was deleted and created again: group {assignment.group} begins with the "
                "first record of the new one; what the old one still held is lost"
            )

    def decode(self, records: Iterator[Record], assignment: Assignment) -> PolledBatch | None:
        """The next records of the topic, of any format."""
        return decode(records, assignment, parse_as_flume_event=self.config.parse_as_flume_event)

    def redelivery(self, lost: Event | Record, id: EventId, arrival: int, group: str) -> Record:
        """The event in a record of its own, in the channel's format; other groups pass over it."""
        record = lost if isinstance(lost, Record) else encode_event(lost, self.config.format)
        return readdressed(record, id, arrival, group)

    # --- within

    def _assignment(self, group: str | None) -> Assignment:
        """Return the template of the group's assignments, which names no partition and no topic id."""
        config = self.config
        topic = plugins.TopicPartition(self._cluster_id, config.topic, "", -1)
        return Assignment(topic, group or config.group_id, Generation())

    def _ids(self) -> TopicIds:
        if self._topic_ids is None:
            self._topic_ids = TopicIds(new_admin(CHANNEL, self._client(self.config.consumer)), self.config.topic)
        return self._topic_ids

    def _onlooker(self, group: str | None, properties: Mapping[str, str] = MappingProxyType({})) -> Consumer:
        group = group or self.config.group_id
        return new_consumer(CHANNEL, {**self._client(self.config.consumer), "group.id": group, **properties})

    def _outside(self) -> OutsideCommits:
        return OutsideCommits(self._onlooker, self.confirm, self.log)

    def _looking(self) -> TopicLookup:
        config = self.config
        return TopicLookup(self._client(config.consumer), config.topic, config.group_id, self.decode)

    def _client(self, properties: Mapping[str, str]) -> dict[str, Any]:
        return {**self.config.client(self.name), **client_properties(properties)}

    def _unreachable(self, error: Exception) -> str:
        client = self._client(self.config.consumer)
        return str(
            unusable(client, error, ReportedErrors(), f"channel {self.name}: ", topic=self.config.topic, right="Read")
        )
