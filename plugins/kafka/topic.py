"""One topic as consumer groups read it, and the channel whose events lie in it."""

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
    assigned,
    called,
    committed_offsets,
    members_of,
    offsets_at,
    read_up_to,
    watermarks,
)
from flafka.plugins.kafka.backlog import TopicMonitor
from flafka.plugins.kafka.clients import REQUEST_SECONDS, Role, new_admin, new_consumer
from flafka.plugins.kafka.errors import ReportedErrors, metadata, sentence, unusable
from flafka.plugins.kafka.offsets import (
    MemberlessCommits,
    RecordsLost,
    assignments_of,
    kept_refusals,
    refusals_of,
    with_last_record,
)
from flafka.plugins.kafka.truncation import truncations
from flafka.plugins.partitions import Assignment, Generation, OffsetRange
from flafka.plugins.streaming import KafkaStream


class KafkaTopic:
    """One topic as consumer groups read it.

    It joins no group. Each call makes clients of its own, except for the topic's id, so that any thread may use it.
    Every method raises Retry where brokers do not answer. A `group` of None is the one that the topic was made with.
    """

    def __init__(
        self,
        role: Role,
        stream: KafkaStream,
        client: Callable[[], dict[str, Any]],
        decode: Decode,
        log: logging.Logger,
        whose: str = "",
    ) -> None:
        """`client` returns the properties of a consumer; errors begin with `whose`, such as `channel c1: `."""
        self._role, self._stream, self._client, self._decode = role, stream, client, decode
        self._log, self._whose = log, whose
        self.topic, self.group, self.cluster = stream.topic, stream.group, ""
        self._topic_ids: TopicIds | None = None
        self._logged = set[tuple[str, str, int, int]]()
        """Offsets of deleted topics that were logged, see `assignments_of`: a drain asks for offsets again and again.
        """

    def use(self, cluster: str, topic_ids: TopicIds | None) -> None:
        """Use the id of the cluster, and the client that asks for the topic's id, of an open channel."""
        self.cluster, self._topic_ids = cluster, topic_ids

    def stream(self, group: str | None) -> KafkaStream:
        """Return how another engine, such as Spark, reads it in that group."""
        return replace(self._stream, group=group or self.group)

    def assignment(self, group: str | None) -> Assignment:
        """Return the template of the group's assignments, which names no partition and no topic id."""
        topic = partitions.TopicPartition(self.cluster, self.topic, "", -1)
        return Assignment(topic, group or self.group, Generation())

    def monitor(self) -> TopicMonitor:
        """Return what looks at the brokers and backlogs, with connections of its own."""
        return TopicMonitor(self._role, self.topic, self.group, self._client())

    # --- offsets of groups

    def committed(self, group: str | None) -> Sequence[Assignment]:
        """Return the group's committed offset of every partition, with what its metadata says."""
        return self._committed(group)[0]

    def refusals(self, group: str | None, starts: Collection[Assignment] | None = None) -> Sequence[FlafkaError]:
        """Return an error, with the command that resolves it, for each partition that needs a person's decision.

        So it is where brokers have lost records, or retention has removed them unread. `starts` are the next offsets
        by a sink's own commit log; if unset, the group's committed offsets count. What was kept with the group's
        offsets, by `refuse` or a reader, is returned in any case.
        """
        assignments, offsets = self._committed(group)
        starts = assignments if starts is None else starts
        marks = cache(lambda: self._watermarks({"isolation.level": "read_uncommitted"}))
        found = refusals_of(starts, marks()) if starts else {}
        known = {one.partition: one for one in assignments}
        there = [with_last_record(one, known[one.partition]) for one in starts if one.partition in known]
        client = {**self._client(), "group.id": group or self.group}
        with self._asking():
            lost = [one for one in truncations(self._role, client, there, known) if isinstance(one, RecordsLost)]
        kept = kept_refusals(assignments, offsets, lambda partition: marks()[partition])
        found |= {one.assignment.partition: one for one in (*lost, *kept)}
        if found:
            self.confirm(assignments[0])  # a topic made again meanwhile has lost nothing
        return [error for _, error in sorted(found.items())]

    def members(self, group: str | None) -> Mapping[str, Collection[int]]:
        """Return, by member of that group and its host, the partitions that it reads at present."""
        name = group or self.group
        try:
            members = members_of(new_admin(self._role, self._client()), name, REQUEST_SECONDS)
        except KafkaException as e:
            raise Retry(f"group {name} cannot be looked at: {sentence(e)}") from e
        found: dict[str, list[int]] = {}
        for member in members:  # several may have one name
            found.setdefault(called(member), []).extend(assigned(member.assignment, self.topic))
        return found

    def commit_offsets(self, assignments: Collection[Assignment]) -> None:
        """Commit the next offsets of a group that no reader is a member of.

        Raises Retry, also while the group has a member. Raises Conflict where the group was reset since, or another
        sink's commit log has replaced that of this owner. `MemberlessCommits` describes how.
        """
        self._commits().commit_offsets(assignments)

    def refuse(self, error: FlafkaError) -> None:
        """Keep that error with the offset of a group that no reader is a member of, if a person has to decide.

        It is one of `refusals` from then on, until the group is reset, whatever comes into the topic. Raises as
        `commit_offsets` does.
        """
        if isinstance(error, RecordsLost):
            self._commits().refuse(error)

    def restore(self, assignments: Collection[Assignment]) -> None:
        """Commit those offsets that an earlier owner has undone, and log it: its commit reached the brokers late.

        What other programs have committed stays, and so does it that there is no offset. Raises as `commit_offsets`
        does.
        """
        self._commits().restore(assignments)

    def confirm(self, assignment: Assignment) -> None:
        """Return when records read before this call are known to be of the assignment's topic.

        Raises Retry where the topic was deleted and created again: what was read may be of the other one.
        """
        if self.topic_ids.get() != assignment.topic_partition.topic_id:
            raise Retry(
                f"topic {assignment.topic} was deleted and created again: group {assignment.group} begins with the "
                "first record of the new one; what the old one still held is lost"
            )

    # --- records

    def starts(self) -> Mapping[int, int]:
        """Return, by partition, the offset of the oldest record, or where the next one comes."""
        return {partition: low for partition, (low, _) in self._watermarks().items()}

    def ends(self) -> Mapping[int, int]:
        """Return, by partition, the offset behind the newest record: up to where a drain has to come."""
        return {partition: high for partition, (_, high) in self._watermarks().items()}

    def at(self, time: int) -> Mapping[int, int]:
        """Return, by partition, the offset of the first record of that time (ms since the epoch) or later.

        Where there is none, it is the offset of the next one to come.
        """
        with self._asking(), closing(self._consumer(None)) as consumer:
            wanted = [TopicPartition(self.topic, partition, time) for partition in self._numbers(consumer)]
            found = {one.partition: one.offset for one in offsets_at(consumer, wanted, REQUEST_SECONDS)}
            if ends := {p: self._marks(consumer, p)[1] for p, offset in found.items() if offset < 0}:
                again = [one for one in wanted if one.partition in ends]  # a newer one may have come before its end
                for one in offsets_at(consumer, again, REQUEST_SECONDS):
                    found[one.partition] = one.offset if one.offset >= 0 else ends[one.partition]
            return found

    def is_vacant(self, partition: int, start: int | None, end: int) -> bool:
        """Return True if no reader is ever given anything of that partition from `start` (None: the earliest record)
        up to, not including, `end`.

        So it is in an empty partition, and where there are the ends of transactions and what these took back alone.
        An open transaction, which may be committed yet, counts as something.
        """
        with self._asking(), closing(self._consumer(None)) as consumer:
            consumer.assign([TopicPartition(self.topic, partition, OFFSET_BEGINNING if start is None else start)])
            message = consumer.poll(REQUEST_SECONDS)
        if message is None:
            raise Retry(f"partition {partition} of {self.topic} does not answer")
        error = message.error()
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            return False
        return (message.offset() or 0) >= end

    def read(self, assignment: Assignment, offsets: OffsetRange) -> Iterator[PolledBatch]:
        """Yield records of the assignment's partition: of committed transactions, and of none."""
        consumer = self._consumer(None)
        try:
            at = TopicPartition(self.topic, assignment.partition, offsets.start)
            records = (_record(one) for one in read_up_to(consumer, at, offsets.end, REQUEST_SECONDS))
            within = (record for record in records if offsets.start <= record.offset < offsets.end)
            while (polled := self._decode(within, assignment)) is not None:
                yield polled
        except KafkaException as e:
            raise Retry(f"topic {self.topic} cannot be read: {sentence(e)}") from e
        finally:
            consumer.close()

    def find(self, id: EventId, groups: Collection[str | None]) -> EventLocation | None:
        """Return where that event is, as `Channel.find` does, by the topic as it is now."""
        if id.topic.partition("~")[0] != self.topic:
            return None
        cluster = str(metadata(self._client(), REQUEST_SECONDS).cluster_id)
        at: dict[str | None, Assignment] = {}
        for group in groups or [None]:
            for one in self.committed(group):
                if one.partition == id.partition:
                    at[group] = replace(one, topic_partition=one.topic_partition._replace(cluster=cluster))
        kinds = [named for one in at.values() for named in (one, one.of(id_scheme=Generation().id_scheme))]
        assignment = next((one for one in kinds if one.id_prefix == id.topic), None)
        if assignment is None:
            return None
        with self._asking(), closing(self._consumer(None)) as consumer:
            low, high = self._marks(consumer, id.partition)
        there = OffsetRange(id.offset, id.offset + 1)
        polled = next(self.read(assignment, there), None) if low <= id.offset < high else None
        place: dict[str, str | int] = {"topic": self.topic, "partition": id.partition, "offset": id.offset}
        return EventLocation(place, polled, _missing(id, polled, low, high), at)

    # --- within

    def _committed(self, group: str | None) -> tuple[list[Assignment], list[TopicPartition]]:
        """Return the assignments of all partitions, and the committed offsets that these were made of."""
        assignment = self.assignment(group).of(topic_id=self.topic_ids.get())
        with self._asking(), closing(self._consumer(group)) as consumer:
            wanted = [TopicPartition(self.topic, partition) for partition in self._numbers(consumer)]
            found = committed_offsets(consumer, wanted, REQUEST_SECONDS)
        return assignments_of(assignment, found, self._log, self._logged), found

    def _watermarks(self, properties: Mapping[str, str] = MappingProxyType({})) -> dict[int, tuple[int, int]]:
        with self._asking(), closing(self._consumer(None, properties)) as consumer:
            return {partition: self._marks(consumer, partition) for partition in self._numbers(consumer)}

    def _numbers(self, consumer: Consumer) -> Collection[int]:
        """Return the numbers of the topic's partitions."""
        found = consumer.list_topics(self.topic, timeout=REQUEST_SECONDS)
        return [*found.topics[self.topic].partitions]

    def _marks(self, consumer: Consumer, partition: int) -> tuple[int, int]:
        return watermarks(consumer, TopicPartition(self.topic, partition), REQUEST_SECONDS)

    def _consumer(self, group: str | None, properties: Mapping[str, str] = MappingProxyType({})) -> Consumer:
        return new_consumer(self._role, {**self._client(), "group.id": group or self.group, **properties})

    @property
    def topic_ids(self) -> TopicIds:
        """Requests for the id of the topic, by one client for all of them."""
        if self._topic_ids is None:
            self._topic_ids = TopicIds(new_admin(self._role, self._client()), self.topic)
        return self._topic_ids

    def _commits(self) -> MemberlessCommits:
        return MemberlessCommits(self._consumer, self.confirm, self._log)

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """Raise the reason as Retry where brokers do not answer, or refuse the client."""
        try:
            yield
        except KafkaException as e:
            why = unusable(self._client(), e, ReportedErrors(), self._whose, topic=self.topic, right="Read")
            raise Retry(str(why)) from e


Decode = Callable[[Iterator[Record], Assignment], PolledBatch | None]


class KafkaBackedChannel(Channel[C]):
    """A channel whose events are records of a Kafka topic.

    The agent asks a channel's class, before it makes one, whether its events lie in Kafka: only then Spark can read
    them, and drains and replays go by offsets.
    """

    durable: ClassVar[bool] = True

    @property
    @abstractmethod
    def kafka(self) -> KafkaTopic:
        """The topic. It needs no `open` of the channel."""

    @property
    def refusal(self) -> str:
        """Reason why brokers that answer do not serve this client, such as a wrong password.

        Empty while they do, and while they are away.
        """
        return ""

    @property
    @abstractmethod
    def replication(self) -> int:
        """Number of replicas that the topics beside it have, too."""

    @property
    @abstractmethod
    def holds_batches(self) -> bool:
        """True if a record has a whole batch of events, rather than one of them."""

    @abstractmethod
    def decode(self, records: Iterator[Record], assignment: Assignment) -> PolledBatch | None:
        """Return the next records of one partition, decoded; None when there are no more.

        Small records are joined. What is undecodable comes back as such.
        """

    @abstractmethod
    def redelivery(self, lost: Event | Record, id: EventId, arrival: int, group: str) -> Record:
        """Return a record that offers an event, or a record as it is, once more to one group alone.

        Read in the partition that `id` names, the event has that id again. Its time of arrival in the channel is
        `arrival`, in milliseconds since the epoch.
        """


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
