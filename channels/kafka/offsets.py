"""Committed offsets of the channel's groups: their metadata, loss of records, commits without membership."""

from __future__ import annotations

import contextlib
import logging
import re
import struct
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient

from flafka.channels.kafka.config import CHANNEL
from flafka.plugins import Assignment, Conflict, FlafkaError, LastRecord, Retry
from flafka.plugins.kafka.clients import new_consumer
from flafka.plugins.kafka.errors import sentence
from flafka.plugins.kafka.offsets import (
    NO_TOPIC_ID,
    OUTSIDE_SECONDS,
    VERSION,
    OffsetMetadata,
    RecordsLost,
    committed,
    metadata_of,
    out_of_range,
    overtaken,
    truncated,
    undone,
    unreadable,
    watermarks,
)
from flafka.plugins.kafka.timeouts import METADATA_SECONDS, REQUEST_SECONDS
from flafka.plugins.partitions import UNKNOWN_RECORD

ONE_RECORD = {"isolation.level": "read_uncommitted", "fetch.message.max.bytes": 4096, "fetch.wait.max.ms": 10}
"""For a look at single records: the brokers send at least one, whatever its size."""
_UNIQUE = re.compile(r"-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")


def topic_id_of(description: Any) -> str:
    """Return the id of the topic that librdkafka describes so. Raises FlafkaError where brokers are too old."""
    id = str(description.topic_id)
    if id == NO_TOPIC_ID:
        raise FlafkaError(
            "the brokers are older than Apache Kafka 2.8, the oldest that the channel kafka can use: without topic "
            "ids it would take a topic that was created again for the deleted one, and lose its first events. "
            "Upgrade the brokers or use a channel of type file"
        )
    return id


class TopicIds:
    """Asks the brokers which topic has a name now."""

    def __init__(self, admin: AdminClient, topic: str) -> None:
        self._admin, self._topic = admin, topic
        self._partitions = 0
        self._unanswered = False

    def get(self) -> str:
        """Return the topic's id. Raises Retry where there is no such topic, or no answer, and FlafkaError where
        brokers are too old.
        """
        try:
            found = self._request().result(REQUEST_SECONDS)
        except (KafkaException, TimeoutError) as e:
            self._unanswered = True
            raise Retry(f"topic {self._topic} cannot be looked at: {sentence(e)}") from e
        self._partitions = len(found.partitions)
        return topic_id_of(found)

    def ask(self, answer: Callable[[str | None], None]) -> None:
        """Have it called, on a thread of the client's, with the id; with none where there is no answer.

        Where there is no such topic now, the id is empty.
        """

        def told(future: Any) -> None:
            error = future.exception()
            if error is None:
                self._partitions = len(future.result().partitions)
                answer(str(future.result().topic_id))
            else:
                gone = isinstance(error, KafkaException) and error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART
                self._unanswered = not gone
                answer("" if gone else None)

        try:
            request = self._request()
        except KafkaException:
            answer(None)
        else:
            request.add_done_callback(told)

    def unread(self, group: str) -> frozenset[int]:
        """Return the partitions that no member of that group has; none during a rebalance, and without an answer."""
        # Not by `describe_consumer_groups`: when a group's coordinator is lost, what the admin client asked of it
        # aborts the process (librdkafka 2.16, issue 4605).
        try:
            found: list[Any] = self._admin.list_groups(group, timeout=METADATA_SECONDS)
        except KafkaException:
            return frozenset()
        known = [one for one in found if one.error is None and one.state == "Stable"]
        members = [member for one in known for member in one.members]
        owned = (partition for member in members for partition in assigned(member.assignment, self._topic))
        return frozenset(range(self._partitions)).difference(owned) if members else frozenset()

    def _request(self) -> Any:
        if self._unanswered:
            # The client goes on asking the broker that it took for the controller, which may be lost, for minutes;
            # whatever metadata it gets names another one.
            with contextlib.suppress(KafkaException):
                self._admin.list_topics(self._topic, timeout=METADATA_SECONDS)
            self._unanswered = False
        topics = TopicCollection([self._topic])
        return self._admin.describe_topics(topics, request_timeout=REQUEST_SECONDS)[self._topic]


class PartitionLog:
    """One partition as the brokers have it now, seen by a consumer that is nobody's otherwise."""

    def __init__(self, consumer: Consumer, assignment: Assignment) -> None:
        self._consumer, self._topic, self._partition = consumer, assignment.topic, assignment.partition

    def truncated(self, end: int, leader_epoch: int) -> int | None:
        """Return the first offset of the records before offset `end` that the brokers have lost; None if none is.

        The latest record that was read there had that leader epoch. A replica that was behind and became leader
        opens a later epoch at its own end. So records of a later epoch before offset `end` are not those that
        were read. Raises Retry, and KafkaException.
        """
        at = TopicPartition(self._topic, self._partition)
        low, high = watermarks(self._consumer, at, REQUEST_SECONDS)
        after, before, step = end, end - 1, 1  # usually the record just before is the one
        while before >= low and self._is_later(before, end, leader_epoch):
            after, before, step = before, before - step, step * 2
        before = max(before, low - 1)
        while after - before > 1:
            middle = (before + after) // 2
            if self._is_later(middle, end, leader_epoch):
                after = middle
            else:
                before = middle
        found = self._first(after) if after < end <= high else None
        lost = high < end or (found is not None and found.offset() < end)
        return after if lost else None

    def is_other(self, offset: int, timestamp: int) -> bool:
        """Return True if a record with another timestamp has that offset now. Raises as `truncated`."""
        found = self._first(offset)
        return found is not None and found.offset() == offset and found.timestamp()[1] != timestamp

    def leader_epoch(self, offset: int) -> int:
        """Return the leader epoch of the record at that offset; -1 where there is none. Raises as `truncated`."""
        found = self._first(offset)
        return found.leader_epoch() if found is not None and found.offset() == offset else -1

    def low(self) -> int:
        """Return the offset of the oldest record. Raises as `truncated`."""
        return watermarks(self._consumer, TopicPartition(self._topic, self._partition), REQUEST_SECONDS)[0]

    def _is_later(self, offset: int, end: int, leader_epoch: int) -> bool:
        """Return True if the next record from that offset on is of a later epoch, or not before offset `end`."""
        found = self._first(offset)
        return found is None or found.offset() >= end or found.leader_epoch() > leader_epoch

    def _first(self, offset: int) -> Any:
        """The first record from there on; None where there is none."""
        self._consumer.assign([TopicPartition(self._topic, self._partition, offset)])
        message = self._consumer.poll(REQUEST_SECONDS)
        if message is None:
            raise Retry(f"{self._topic}-{self._partition} does not answer")
        error = message.error()
        if error is None:
            return message
        if error.code() in (KafkaError._PARTITION_EOF, KafkaError._AUTO_OFFSET_RESET):
            return None
        raise KafkaException(error)


def with_last_record(start: Assignment, committed: Assignment) -> Assignment:
    """Return where to go on, with what the group's committed offset says of the last record if it is the same offset.

    Of the two, the committed leader epoch is preferred, and the timestamp of `start`.
    """
    if start.next_offset != committed.next_offset:
        return start
    ours, theirs = start.last_record, committed.last_record
    timestamp = ours.timestamp if ours.timestamp >= 0 else theirs.timestamp
    leader_epoch = theirs.leader_epoch if theirs.leader_epoch >= 0 else ours.leader_epoch
    return start.at(start.next_offset, LastRecord(timestamp, leader_epoch))


def truncations(
    properties: Mapping[str, Any], starts: Iterable[Assignment], committed: Mapping[int, Assignment]
) -> Iterator[FlafkaError]:
    """Yield an error for each partition before whose next offset brokers have lost a record.

    Another record may have its offset now. `committed`, by partition, are the group's committed offsets, which are
    set back with the brokers. Raises as `PartitionLog.truncated` does.
    """
    known = [one for one in starts if one.next_offset and one.last_record != UNKNOWN_RECORD]
    if not known:
        return
    with contextlib.closing(new_consumer(CHANNEL, {**properties, **ONE_RECORD})) as consumer:
        for one in known:
            log, offset, last, start = PartitionLog(consumer, one), one.next_offset or 0, one.last_record, None
            if last.leader_epoch >= 0:
                start = log.truncated(offset, last.leader_epoch)
            if start is not None:
                yield truncated(one, start)
            elif last.timestamp >= 0 and not one.replay and log.is_other(offset - 1, last.timestamp):
                # Brokers that were stopped for a backup begin the same leader epoch twice.
                low, left = log.low(), committed[one.partition].next_offset
                yield RecordsLost(one, f"{left if left is not None and left < offset else low}+", low)


def with_leader_epochs(properties: Mapping[str, Any], starts: Collection[Assignment]) -> dict[int, Assignment]:
    """Return these, by partition, with the leader epoch that brokers have for the record before each next offset.

    Partitions of which brokers do not tell it now are left out.
    """
    found: dict[int, Assignment] = {}
    if not starts:
        return found
    with (
        contextlib.closing(new_consumer(CHANNEL, {**properties, **ONE_RECORD})) as consumer,
        contextlib.suppress(KafkaException, Retry),  # not worth a failure: the partition is read without it
    ):
        for start in starts:
            epoch = PartitionLog(consumer, start).leader_epoch((start.next_offset or 0) - 1)
            if epoch >= 0:
                last = start.last_record._replace(leader_epoch=epoch)
                found[start.partition] = start.at(start.next_offset, last)
    return found


def called(member: Any) -> str:
    """A member of a group, as an operator knows it: the name that lasts, where it has one, and its host."""
    return f"{_UNIQUE.sub('', member.id)} on {member.client_host.lstrip('/')}"


def assigned(assignment: bytes, topic: str) -> Iterator[int]:
    """The partitions of that topic in what the leader of a group has assigned to a member."""
    if not assignment:
        return
    _, topics = struct.unpack_from(">hi", assignment)
    at = 6
    for _ in range(topics):
        (length,) = struct.unpack_from(">h", assignment, at)
        name = assignment[at + 2 : at + 2 + length].decode()
        at += 2 + length
        (count,) = struct.unpack_from(">i", assignment, at)
        if name == topic:
            yield from struct.unpack_from(f">{count}i", assignment, at + 4)
        at += 4 + 4 * count


def assignments_of(
    assignment: Assignment,
    committed: Iterable[TopicPartition],
    log: logging.Logger,
    logged: set[tuple[str, str, int, int]] | None = None,
) -> list[Assignment]:
    """Return the group's committed offset of each partition, as an assignment with what its metadata says.

    `assignment` names the topic and the group. An offset of another topic of that name counts as none, and is logged
    once: `logged` holds the earlier ones, by group, topic id, partition and offset. Raises FlafkaError, as
    `unreadable` returns it.
    """
    logged = set() if logged is None else logged
    topic_id, found = assignment.topic_partition.topic_id, []
    for tp in committed:
        said = OffsetMetadata.parse(metadata_of(tp))
        one = assignment.of(partition=tp.partition)
        if tp.offset < 0:
            found.append(one)
        elif said.version == VERSION and said.topic_id not in ("", topic_id):
            stale = (one.group, topic_id, tp.partition, tp.offset)
            if stale not in logged:
                log.warning(
                    "group %s stood at offset %d of a topic %s that was deleted: it begins with the first record of "
                    "the topic of that name; what the old one still held of partition %d is lost",
                    one.group, tp.offset, one.topic, tp.partition,
                )  # fmt: skip
            logged.add(stale)
            found.append(one)
        elif (error := unreadable(one, said)) is not None:
            raise error
        else:
            last = LastRecord(said.time, -1 if tp.leader_epoch is None else tp.leader_epoch)
            found.append(replace(one, generation=said.generation, next_offset=tp.offset, last_record=last))
    return found


def kept_refusals(
    assignments: Iterable[Assignment],
    committed: Iterable[TopicPartition],
    watermarks: Callable[[int], tuple[int, int]],
) -> Iterator[RecordsLost]:
    """Yield the losses of records that are kept in the metadata of these offsets, of which the assignments were made.

    `watermarks` returns the low and the high watermark of a partition: retention may have removed the records to
    which a loss had advised to reset the group, or brokers may have lost more records since.
    """
    for one, tp in zip(assignments, committed, strict=True):
        if one.next_offset is not None and (lost := OffsetMetadata.parse(metadata_of(tp)).lost):
            low, high = watermarks(tp.partition)
            yield RecordsLost(one, lost if int(lost.rstrip("?+")) <= high else f"{high}?", low)


def refusals_of(
    assignments: Iterable[Assignment], watermarks: Mapping[int, tuple[int, int]]
) -> dict[int, FlafkaError]:
    """Return, by partition, why its group cannot go on from its next offset before a person decides.

    The upper watermarks count all records, in open transactions too: `agent group reset --to latest` moves a
    group behind these.
    """
    found = {
        one.partition: out_of_range(one, *watermarks[one.partition])
        for one in assignments
        if one.next_offset is not None and one.partition in watermarks and not one.replay
    }
    return {partition: error for partition, error in found.items() if error is not None}


UNANSWERED = (KafkaError._TIMED_OUT, KafkaError.REQUEST_TIMED_OUT, KafkaError._TRANSPORT)
"""Errors after which brokers may have done what they were asked for."""


class OutsideCommits:
    """Commits offsets of groups without members. Raises Retry where the brokers do not take them.

    `consumer` makes one of the named group, which it does not join; `confirm` is that of `KafkaBackedChannel`.
    """

    def __init__(
        self, consumer: Callable[[str], Consumer], confirm: Callable[[Assignment], None], log: logging.Logger
    ) -> None:
        self._consumer, self._confirm, self._log = consumer, confirm, log

    def commit_offsets(self, assignments: Collection[Assignment]) -> None:
        """Commit offsets without membership, which works while the group has no members.

        Without a member nothing fences an owner that was overtaken. So the group is looked at before, and within
        an epoch no offset goes back. If its metadata does not name the topic, the brokers have to. An owner that
        slept between the two may undo a reset, and logs that.
        """
        self._commit_where(assignments, lambda assignment, said: True)

    def refuse(self, error: RecordsLost) -> None:
        """Commit with the group's offset that brokers have lost records before it. Conflict as for
        `commit_offsets`.
        """
        lost = error.assignment.at(error.assignment.next_offset)
        self._commit_where([lost], lambda assignment, said: True, error.lost)

    def restore(self, assignments: Collection[Assignment]) -> None:
        """Commit again what a late commit has undone, one from before a reset or for a topic that was deleted."""

        def late(assignment: Assignment, said: OffsetMetadata) -> bool:
            if found := undone(assignment, said):
                reset = said.topic_id in ("", assignment.topic_partition.topic_id)
                self._log.warning(
                    "group %s: a commit from before %s reached the brokers late, and had undone it for %s: the "
                    "group's position is %d again",
                    *(assignment.group, "its latest reset" if reset else "the topic was made again"),
                    *(assignment.topic_partition, assignment.next_offset),
                )
            return found

        self._commit_where([one.at(one.next_offset) for one in assignments], late)

    def _commit_where(
        self,
        assignments: Collection[Assignment],
        wanted: Callable[[Assignment, OffsetMetadata], bool],
        lost: str = "",
    ) -> None:
        for group in {one.group for one in assignments}:
            of_group = {one.partition: one for one in assignments if one.group == group}
            consumer = self._consumer(group)
            looked = time.monotonic()
            try:
                offsets = {
                    partition: TopicPartition(
                        one.topic,
                        partition,
                        one.next_offset or 0,
                        metadata=OffsetMetadata.of(one)._replace(lost=lost).text(),
                    )
                    for partition, one in of_group.items()
                }
                for at in committed(consumer, [*offsets.values()], REQUEST_SECONDS):
                    assignment, said = of_group[at.partition], OffsetMetadata.parse(metadata_of(at))
                    epoch, topic_id = assignment.generation.epoch, assignment.topic_partition.topic_id
                    if said.topic_id != topic_id:  # of another topic, or gone with that
                        self._confirm(assignment)
                    elif why := overtaken(assignment, said):
                        raise Conflict(why)
                    same = (said.generation.epoch, said.topic_id) == (epoch, topic_id)
                    if (same and at.offset > offsets[at.partition].offset) or not wanted(assignment, said):
                        del offsets[at.partition]
                if offsets:
                    self._commit(consumer, group, [*offsets.values()], looked)
            except KafkaException as e:
                raise Retry(f"group {group}: committing offsets failed: {e.args[0].str()}") from e
            finally:
                consumer.close()

    def _commit(self, consumer: Consumer, group: str, offsets: list[TopicPartition], looked: float) -> None:
        why = ""
        try:
            consumer.commit(offsets=offsets, asynchronous=False)
            why = _slept(looked)
        except KafkaException as e:
            if (code := e.args[0].code()) in UNANSWERED:
                why = "a commit of its offsets was not answered and may still take effect"
            elif code == KafkaError.UNKNOWN_TOPIC_OR_PART:  # a topic made again has fewer: of the others it counts
                why = _slept(looked)
            raise
        finally:
            if why:
                self._log.warning(
                    "group %s: %s: if agent group reset moved the group in that time, this was undone, and it is to "
                    "be run again",
                    *(group, why),
                )


def _slept(since: float) -> str:
    """Return the words for a process that seems to have slept between a look at a group and a commit."""
    took = time.monotonic() - since
    if took <= OUTSIDE_SECONDS:
        return ""
    return f"{took:.1f} s passed between reading its offsets and committing them, as when this process is suspended"
