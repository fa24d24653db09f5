"""A topic and its consumer groups, and the interface of channels that store events in one."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import cache
from types import MappingProxyType
from typing import Any, ClassVar

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from flafka.plugins import partitions
from flafka.plugins.channel import Channel, EventLocation, PolledBatch, Record
from flafka.plugins.component import C
from flafka.plugins.errors import FlafkaError, Retry
from flafka.plugins.event import Event, EventId
from flafka.plugins.kafka.admin import (
    TopicIds,
    assigned_partitions,
    group_refusal,
    member_host,
    member_name,
    memberless_offsets,
    members_of,
    offsets_for_times,
    partition_numbers,
    read_up_to,
    watermarks,
)
from flafka.plugins.kafka.backlog import TopicMonitor
from flafka.plugins.kafka.clients import REQUEST_SECONDS, new_admin, new_consumer
from flafka.plugins.kafka.errors import ReportedErrors, connection_error, explain_error, fetch_metadata
from flafka.plugins.kafka.offsets import (
    MemberlessCommits,
    RecordsLost,
    assignments_of,
    out_of_range_errors,
    stored_losses,
    with_last_record,
)
from flafka.plugins.kafka.renewal import ClientRenewal
from flafka.plugins.kafka.rights import Role
from flafka.plugins.kafka.truncation import find_truncations
from flafka.plugins.partitions import Assignment, Generation, OffsetRange
from flafka.plugins.streaming import KafkaStream


class KafkaTopic:
    """A topic and its consumer groups, for requests without membership in a group. Thread-safe.

    Each call makes its own clients, except those for the topic's id. Every method raises Retry if brokers do not
    answer. A `group` of None is the group of the `stream`.
    """

    def __init__(
        self,
        role: Role,
        stream: KafkaStream,
        client: Callable[[], dict[str, Any]],
        decode: Decode,
        log: logging.Logger,
        prefix: str = "",
    ) -> None:
        """Store the arguments, without a connection.

        Clients have the role `role` and the properties of `client()`. `decode` decodes records. Errors begin with
        `prefix`, such as `channel c1: `.
        """
        self._role, self._stream, self._client, self._decode = role, stream, client, decode
        self._log, self._prefix = log, prefix
        self.topic, self.group, self.cluster = stream.topic, stream.group, ""
        self._topic_ids: TopicIds | None = None
        self._logged = set[tuple[str, str, int, int]]()
        """Offsets of deleted topics that were logged, see `assignments_of`. A drain reads the offsets repeatedly."""

    def attach(self, cluster: str) -> None:
        """Set the cluster's id, and release the client for the topic's id, which the next request makes anew."""
        self.cluster, self._topic_ids = cluster, None

    def stream(self, group: str | None) -> KafkaStream:
        """Return the parameters with which another engine, such as Spark, reads the topic in that group."""
        return replace(self._stream, group=group or self.group)

    def assignment(self, group: str | None) -> Assignment:
        """Return a template of the group's assignments, without partition and topic id."""
        topic = partitions.TopicPartition(self.cluster, self.topic, "", -1)
        return Assignment(topic, group or self.group, Generation())

    def monitor(self) -> TopicMonitor:
        """Return a new monitor of brokers and backlogs, with its own connections."""
        renewal = self._renewal()
        return TopicMonitor(self._role, self.topic, self.group, self._client(), renewal)

    def committed(self, group: str | None) -> Sequence[Assignment]:
        """Return the group's committed offset of every partition, with its metadata, in the order of partitions.

        The next offset is None in a partition without one. Raises FlafkaError if the metadata has an unsupported
        version.
        """
        return self._committed(group)[0]

    def blocking_errors(
        self, group: str | None, starts: Collection[Assignment] | None = None
    ) -> Sequence[FlafkaError]:
        """Return an error, with the command that resolves it, for each partition that needs a person's decision.

        Brokers have lost records of such a partition, or retention has removed undelivered ones. `starts` are the
        next offsets of a sink's commit log, or None for the committed offsets. Errors that `store_error` or a reader
        has stored with the group's offsets are always included.
        """
        assignments, offsets = self._committed(group)
        starts = assignments if starts is None else starts
        marks = cache(lambda: self._watermarks({"isolation.level": "read_uncommitted"}))
        errors = out_of_range_errors(starts, marks()) if starts else {}
        committed = {assignment.partition: assignment for assignment in assignments}
        existing = [
            with_last_record(start, committed[start.partition]) for start in starts if start.partition in committed
        ]
        client = {**self._client(), "group.id": group or self.group}
        with self._translated_errors(group):
            truncations = find_truncations(self._role, client, existing, committed)
            lost = [error for error in truncations if isinstance(error, RecordsLost)]
        stored = stored_losses(assignments, offsets, lambda partition: marks()[partition])
        errors |= {error.assignment.partition: error for error in (*lost, *stored)}
        if errors:
            self.confirm_topic_id(assignments[0])  # a topic that was recreated meanwhile has lost no records
        return [error for _, error in sorted(errors.items())]

    def members(self, group: str | None) -> Mapping[str, Collection[int]]:
        """Return the assigned partitions of this topic by member of the group: name and host."""
        by_name: dict[str, list[int]] = {}
        for member in self._members(group):  # several members may have the same name
            by_name.setdefault(member_name(member), []).extend(assigned_partitions(member.assignment, self.topic))
        return by_name

    def member_hosts(self, group: str | None) -> Collection[str]:
        """Return the hosts of the group's members, as addresses from which the brokers see their connections."""
        fetch_metadata(self._client(), REQUEST_SECONDS, self._prefix)  # its error names the reason within seconds
        members = self._members(group)
        if not members and (refusal := group_refusal(new_admin(self._role, self._client()), group or self.group)):
            raise self._description_error(refusal, group)
        return {member_host(member) for member in members}

    def _members(self, group: str | None) -> list[Any]:
        try:
            return members_of(new_admin(self._role, self._client()), group or self.group, REQUEST_SECONDS)
        except KafkaException as e:
            raise self._description_error(e, group) from e

    def _description_error(self, error: KafkaException, group: str | None) -> Retry:
        name = group or self.group
        return Retry(f"group {name} cannot be described: {explain_error(error, group=name, client=self._client())}")

    def commit_offsets(self, assignments: Collection[Assignment]) -> None:
        """Commit offsets of a consumer group without joining it, as `MemberlessCommits` does.

        Raises Retry, also while the group has members. Raises Conflict if the group was reset, or if another sink's
        commit log has replaced that of the assignments.
        """
        self._commits().commit_offsets(assignments)

    def store_error(self, error: FlafkaError) -> None:
        """Store a loss of records with the committed offset of a group without members; ignore any other error.

        `blocking_errors` returns the error until the group is reset, even once new records have the lost offsets.
        Raises as `commit_offsets`.
        """
        if isinstance(error, RecordsLost):
            self._commits().store_loss(error)

    def restore_offsets(self, assignments: Collection[Assignment]) -> None:
        """Restore committed offsets that a late commit of an earlier owner has overwritten, and log each.

        Offsets of other programs, and missing offsets, are not changed. Raises as `commit_offsets`.
        """
        self._commits().restore_offsets(assignments)

    def confirm_topic_id(self, assignment: Assignment) -> None:
        """Confirm that records read before this call are of the assignment's topic.

        Raises Retry if the topic was recreated: the records may be of the new topic.
        """
        if self.topic_ids.get() != assignment.topic_partition.topic_id:
            raise Retry(
                f"topic {assignment.topic} was deleted and recreated: group {assignment.group} begins with the first "
                "record of the new one; undelivered records of the old one are lost"
            )

    def beginning_offsets(self) -> Mapping[int, int]:
        """Return the offset of the oldest record by partition; the end offset if there is none."""
        return {partition: low for partition, (low, _) in self._watermarks().items()}

    def end_offsets(self) -> Mapping[int, int]:
        """Return the end offset by partition, which a drain must reach."""
        return {partition: high for partition, (_, high) in self._watermarks().items()}

    def offsets_for_time(self, time: int) -> Mapping[int, int]:
        """Return, by partition, the offset of the first record of that time (ms since the epoch) or later.

        It is the end offset if there is no such record.
        """
        with self._translated_errors(), closing(self._consumer(None)) as consumer:
            wanted = [TopicPartition(self.topic, partition, time) for partition in self._numbers(consumer)]
            offsets = {
                result.partition: result.offset for result in offsets_for_times(consumer, wanted, REQUEST_SECONDS)
            }
            if ends := {p: self._marks(consumer, p)[1] for p, offset in offsets.items() if offset < 0}:
                missing = [result for result in wanted if result.partition in ends]
                # A record of that time may have come before the end offset was read.
                for result in offsets_for_times(consumer, missing, REQUEST_SECONDS):
                    offsets[result.partition] = result.offset if result.offset >= 0 else ends[result.partition]
            return offsets

    def is_empty_range(self, partition: int, start: int | None, end: int) -> bool:
        """Return True if a partition has no committed record from `start`, inclusive, to `end`, exclusive.

        None as `start` is the earliest record. Ends of transactions and aborted records do not count. An open
        transaction counts as a record. Blocks for up to `REQUEST_SECONDS`.
        """
        with self._translated_errors(), closing(self._consumer(None)) as consumer:
            consumer.assign([TopicPartition(self.topic, partition, OFFSET_BEGINNING if start is None else start)])
            message = consumer.poll(REQUEST_SECONDS)
        if message is None:
            raise Retry(f"partition {partition} of {self.topic} does not answer")
        error = message.error()
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            return False
        return (message.offset() or 0) >= end

    def read(self, assignment: Assignment, offsets: OffsetRange) -> Iterator[PolledBatch]:
        """Yield the records of a range of the assignment's partition, except records of uncommitted transactions.

        Records are decoded and joined to batches, in order.
        """
        consumer = self._consumer(None)
        try:
            start = TopicPartition(self.topic, assignment.partition, offsets.start)
            records = (_record(message) for message in read_up_to(consumer, start, offsets.end, REQUEST_SECONDS))
            within = (record for record in records if offsets.start <= record.offset < offsets.end)
            while (polled := self._decode(within, assignment)) is not None:
                yield polled
        except KafkaException as e:
            raise Retry(f"topic {self.topic} cannot be read: {self._explain(e)}") from e
        finally:
            consumer.close()

    def find_event(self, id: EventId, groups: Collection[str | None]) -> EventLocation | None:
        """Return the state of that event, as `Channel.find_event`, by the present records of the topic.

        None if the id's topic is another one, or an earlier incarnation of it.
        """
        if id.topic.partition("~")[0] != self.topic:
            return None
        cluster = str(fetch_metadata(self._client(), REQUEST_SECONDS).cluster_id)
        committed: dict[str | None, Assignment] = {}
        for group in groups or [None]:
            for candidate in self.committed(group):
                if candidate.partition == id.partition:
                    committed[group] = replace(
                        candidate, topic_partition=candidate.topic_partition._replace(cluster=cluster)
                    )
        default_scheme = Generation().id_scheme
        candidates = [
            variant
            for candidate in committed.values()
            for variant in (candidate, candidate.replace(id_scheme=default_scheme))
        ]
        assignment = next((candidate for candidate in candidates if candidate.id_prefix == id.topic), None)
        if assignment is None:
            return None
        with self._translated_errors(), closing(self._consumer(None)) as consumer:
            low, high = self._marks(consumer, id.partition)
        offsets = OffsetRange(id.offset, id.offset + 1)
        polled = next(self.read(assignment, offsets), None) if low <= id.offset < high else None
        coordinates: dict[str, str | int] = {"topic": self.topic, "partition": id.partition, "offset": id.offset}
        return EventLocation(coordinates, polled, _missing_reason(id, polled, low, high), committed)

    def _committed(self, group: str | None) -> tuple[list[Assignment], list[TopicPartition]]:
        """Return the group's assignments of all partitions, and the committed offsets from which they are made."""
        assignment = self.assignment(group).replace(topic_id=self.topic_ids.get())
        with self._translated_errors(group), closing(self._consumer(group)) as consumer:
            wanted = [TopicPartition(self.topic, partition) for partition in self._numbers(consumer)]
            offsets = memberless_offsets(consumer, wanted, REQUEST_SECONDS)
        return assignments_of(assignment, offsets, self._log, self._logged), offsets

    def _watermarks(self, properties: Mapping[str, str] = MappingProxyType({})) -> dict[int, tuple[int, int]]:
        """Return the low and the high watermark by partition; `properties` are additional ones of the consumer."""
        with self._translated_errors(), closing(self._consumer(None, properties)) as consumer:
            return {partition: self._marks(consumer, partition) for partition in self._numbers(consumer)}

    def _numbers(self, consumer: Consumer) -> Collection[int]:
        """Return the numbers of the topic's partitions."""
        return partition_numbers(consumer, self.topic, REQUEST_SECONDS)

    def _marks(self, consumer: Consumer, partition: int) -> tuple[int, int]:
        """Return the low and the high watermark of a partition, the latter without open transactions by default."""
        return watermarks(consumer, TopicPartition(self.topic, partition), REQUEST_SECONDS)

    def _consumer(self, group: str | None, properties: Mapping[str, str] = MappingProxyType({})) -> Consumer:
        """Return a new consumer with the id of a group, which it does not join."""
        return new_consumer(self._role, {**self._client(), "group.id": group or self.group, **properties})

    @property
    def topic_ids(self) -> TopicIds:
        """Requests for the topic's id, all by one client."""
        if self._topic_ids is None:
            renewal, client = self._renewal(), self._client()
            self._topic_ids = TopicIds(new_admin(self._role, client), self.topic, client, renewal)
        return self._topic_ids

    def _renewal(self) -> ClientRenewal:
        return ClientRenewal(self._stream.client, self._client, self._log)

    def _commits(self) -> MemberlessCommits:
        return MemberlessCommits(self._consumer, self.confirm_topic_id, self._explain, self._log)

    def _explain(self, error: object, group: str | None = None) -> str:
        """Return the text of a client's error, with the right that is missing on the topic or the group."""
        return explain_error(error, topic=self.topic, right="Read", group=group or self.group, client=self._client())

    @contextmanager
    def _translated_errors(self, group: str | None = None) -> Iterator[None]:
        """Translate errors of clients within the context into Retry, with the reason. The group is for its text."""
        try:
            yield
        except KafkaException as e:
            resources = {"topic": self.topic, "right": "Read", "group": group or self.group}
            error = connection_error(self._client(), e, ReportedErrors(), self._prefix, **resources)
            raise Retry(str(error)) from e


Decode = Callable[[Iterator[Record], Assignment], PolledBatch | None]


class KafkaBackedChannel(Channel[C]):
    """A channel whose events are records of a Kafka topic.

    Only such a channel can be read by Spark, and drained and replayed by offsets. The agent checks the class of a
    channel before it makes an instance.
    """

    durable: ClassVar[bool] = True

    @property
    @abstractmethod
    def kafka(self) -> KafkaTopic:
        """Topic of the channel, also before `open`."""

    @property
    def refusal(self) -> str:
        """Reason why brokers refuse this client, such as a wrong password; empty otherwise.

        Also empty while no broker answers.
        """
        return ""

    @property
    @abstractmethod
    def replication(self) -> int:
        """Number of replicas of the topic, and of topics that the agent creates beside it."""

    @property
    @abstractmethod
    def holds_batches(self) -> bool:
        """True if a record holds a batch of events; False if it holds one event."""

    @abstractmethod
    def decode(self, records: Iterator[Record], assignment: Assignment) -> PolledBatch | None:
        """Return the next records of one partition, decoded; None if there are no more.

        Small records are joined. Undecodable records are in `PolledBatch.undecodable`.
        """

    @abstractmethod
    def redelivery(self, lost: Event | Record, id: EventId, arrival: int, group: str) -> Record:
        """Return a record that redelivers an event, or an undecodable record, to one consumer group only.

        The event has that id once the record is read from the partition of `id`. `arrival` is its time of arrival in
        the channel, in milliseconds since the epoch.
        """


def _record(message: Any) -> Record:
    return Record(message.offset(), message.timestamp()[1], message.key(), message.value(), message.headers() or ())


def _missing_reason(id: EventId, polled: PolledBatch | None, low: int, high: int) -> str:
    """Return the reason why a record holds no event of this id; empty if it does, or if it is undecodable."""
    if id.offset < low:
        return f"retention has removed it: the oldest record of partition {id.partition} is {low}"
    if id.offset >= high:
        return f"no such record came yet: partition {id.partition} ends at {high}"
    if polled is None or not (len(polled.batch) or polled.undecodable):
        return f"record {id.offset} holds no event: it ends a transaction, or replays a dead letter"
    if len(polled.batch) and id not in polled.batch.ids():
        return f"record {id.offset} holds {len(polled.batch)} events, numbered from 0"
    return ""
