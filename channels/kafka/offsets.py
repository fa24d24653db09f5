"""Committed offsets of the channel's groups: their metadata, loss of records, commits without membership."""

from __future__ import annotations

import contextlib
import logging
import re
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient

from flafka.channels.kafka.config import CHANNEL
from flafka.plugins import Conflict, FlafkaError, LastRecord, PartitionClaim, Retry
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

    def __init__(self, consumer: Consumer, claim: PartitionClaim) -> None:
        self._consumer, self._topic, self._partition = consumer, claim.topic, claim.partition

    def truncated(self, position: int, leader_epoch: int) -> int | None:
        """Return the first offset of the records before that position that the brokers have lost; None if none is.

        The latest record that was read there had that leader epoch. A replica that was behind and became leader
        opens a later epoch at its own end. So records of a later epoch before the position are not those that
        were read. Raises Retry, and KafkaException.
        """
        at = TopicPartition(self._topic, self._partition)
        low, high = watermarks(self._consumer, at, REQUEST_SECONDS)
        after, before, step = position, position - 1, 1  # usually the record just before is the one
        while before >= low and self._is_later(before, position, leader_epoch):
            after, before, step = before, before - step, step * 2
        before = max(before, low - 1)
        while after - before > 1:
            middle = (before + after) // 2
            if self._is_later(middle, position, leader_epoch):
                after = middle
            else:
                before = middle
        found = self._first(after) if after < position <= high else None
        lost = high < position or (found is not None and found.offset() < position)
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

    def _is_later(self, offset: int, position: int, leader_epoch: int) -> bool:
        """Return True if the next record from that offset on is of a later epoch, or not before the position."""
        found = self._first(offset)
        return found is None or found.offset() >= position or found.leader_epoch() > leader_epoch

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


class Before(NamedTuple):
    """The record before an offset of a partition, as it was read."""

    offset: int
    last: LastRecord
    committed: int
    """Committed offset of the group, which is set back with the brokers; negative where it has none."""


def read_before(
    positions: Mapping[PartitionClaim, int | None],
    committed: Iterable[TopicPartition],
    last: Mapping[int, LastRecord],
) -> dict[PartitionClaim, Before]:
    """Return what is known of the record before each position: by the sink's commit log (`last`, by partition), or by
    the leader epoch or the timestamp that was committed with the same offset.
    """
    group = {at.partition: at for at in committed}
    found: dict[PartitionClaim, Before] = {}
    for claim, offset in positions.items():
        at = group.get(claim.partition)
        if not offset or at is None:
            continue
        known = last.get(claim.partition, LastRecord())
        if at.offset == offset and at.leader_epoch is not None:
            known = known._replace(leader_epoch=at.leader_epoch)
        if at.offset == offset and known.timestamp < 0:
            known = known._replace(timestamp=OffsetMetadata.parse(metadata_of(at)).time)
        found[claim] = Before(offset, known, at.offset)
    return found


def truncations(properties: Mapping[str, Any], read: Mapping[PartitionClaim, Before]) -> Iterator[FlafkaError]:
    """Yield an error for each partition before whose offset brokers have lost a record; others may lie there now.

    Raises as `PartitionLog.truncated` does.
    """
    known = {claim: before for claim, before in read.items() if before.last != LastRecord()}
    if not known:
        return
    with contextlib.closing(new_consumer(CHANNEL, {**properties, **ONE_RECORD})) as consumer:
        for claim, (offset, last, committed) in known.items():
            log, start = PartitionLog(consumer, claim), None
            if last.leader_epoch >= 0:
                start = log.truncated(offset, last.leader_epoch)
            if start is not None:
                yield truncated(claim, offset, start)
            elif last.timestamp >= 0 and not claim.replay and log.is_other(offset - 1, last.timestamp):
                # Brokers that were stopped for a backup begin the same leader epoch twice.
                low = log.low()
                yield RecordsLost(claim, offset, f"{committed if 0 <= committed < offset else low}+", low)


def leader_epochs(
    properties: Mapping[str, Any], positions: Mapping[PartitionClaim, int]
) -> dict[PartitionClaim, int]:
    """Return the leader epoch of the record before each position. Left out: those that brokers do not tell now."""
    found: dict[PartitionClaim, int] = {}
    if not positions:
        return found
    with (
        contextlib.closing(new_consumer(CHANNEL, {**properties, **ONE_RECORD})) as consumer,
        contextlib.suppress(KafkaException, Retry),  # not worth a failure: the partition is read without it
    ):
        for claim, offset in positions.items():
            if (epoch := PartitionLog(consumer, claim).leader_epoch(offset - 1)) >= 0:
                found[claim] = epoch
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


def claims_of(
    claim: PartitionClaim,
    committed: Iterable[TopicPartition],
    log: logging.Logger,
    logged: set[tuple[PartitionClaim, int]] | None = None,
) -> dict[PartitionClaim, int | None]:
    """Return the group's committed offset of each partition, by the assignment that its metadata describes.

    An offset of another topic of that name counts as none. Each is logged once: `logged` holds the earlier ones.
    Raises FlafkaError, as `unreadable` returns it.
    """
    logged = set() if logged is None else logged
    found: dict[PartitionClaim, int | None] = {}
    for tp in committed:
        said = OffsetMetadata.parse(metadata_of(tp))
        one = claim._replace(partition=tp.partition)
        if tp.offset < 0:
            found[one] = None
        elif said.version == VERSION and said.topic_id not in ("", claim.topic_id):
            if (one, tp.offset) not in logged:
                log.warning(
                    "group %s stood at offset %d of a topic %s that was deleted: it begins with the first record of "
                    "the topic of that name; what the old one still held of partition %d is lost",
                    claim.group, tp.offset, claim.topic, tp.partition,
                )  # fmt: skip
            logged.add((one, tp.offset))
            found[one] = None
        elif (error := unreadable(one, said)) is not None:
            raise error
        else:
            found[one._replace(epoch=said.epoch, ids=said.ids, record=said.record)] = tp.offset
    return found


def kept_refusals(
    claims: Mapping[PartitionClaim, int | None],
    committed: Iterable[TopicPartition],
    watermarks: Callable[[int], tuple[int, int]],
) -> Iterator[RecordsLost]:
    """Yield the losses of records that are kept in the metadata of these offsets.

    `watermarks` returns the low and the high watermark of a partition: retention may have removed the records to
    which a loss had advised to reset the group, or brokers may have lost more records since.
    """
    by_partition = {claim.partition: (claim, offset) for claim, offset in claims.items()}
    for tp in committed:
        claim, offset = by_partition[tp.partition]
        if offset is not None and (lost := OffsetMetadata.parse(metadata_of(tp)).lost):
            low, high = watermarks(tp.partition)
            yield RecordsLost(claim, offset, lost if int(lost.rstrip("?+")) <= high else f"{high}?", low)


def refusals_of(
    positions: Mapping[PartitionClaim, int | None], watermarks: Mapping[int, tuple[int, int]]
) -> dict[int, FlafkaError]:
    """Return, by partition, why its group cannot go on from that position before a person decides.

    The upper watermarks count all records, in open transactions too: `agent group reset --to latest` moves a
    group behind these.
    """
    found = {
        claim.partition: out_of_range(claim, offset, *watermarks[claim.partition])
        for claim, offset in positions.items()
        if offset is not None and claim.partition in watermarks and not claim.replay
    }
    return {partition: error for partition, error in found.items() if error is not None}


UNANSWERED = (KafkaError._TIMED_OUT, KafkaError.REQUEST_TIMED_OUT, KafkaError._TRANSPORT)
"""Errors after which brokers may have done what they were asked for."""


class OutsideCommits:
    """Commits positions of groups without members. Raises Retry where the brokers do not take them.

    `consumer` makes one of the named group, which it does not join; `confirm` is that of `KafkaBackedChannel`.
    """

    def __init__(
        self, consumer: Callable[[str], Consumer], confirm: Callable[[PartitionClaim], None], log: logging.Logger
    ) -> None:
        self._consumer, self._confirm, self._log = consumer, confirm, log

    def record(
        self, positions: Mapping[PartitionClaim, int], last: Mapping[int, LastRecord] = MappingProxyType({})
    ) -> None:
        """Commit offsets without membership, which works while the group has no members.

        Without a member nothing fences an owner that was overtaken. So the group is looked at before, and within
        an epoch no offset goes back. If its metadata does not name the topic, the brokers have to. An owner that
        slept between the two may undo a reset, and logs that.
        """
        self._commit_where(positions, lambda claim, said: True, last=last)

    def refuse(self, error: RecordsLost) -> None:
        """Commit with the group's offset that brokers have lost records before it. Conflict as for `record`."""
        self._commit_where({error.claim: error.offset}, lambda claim, said: True, error.lost)

    def restore(self, positions: Mapping[PartitionClaim, int]) -> None:
        """Commit again what a late commit has undone, one from before a reset or for a topic that was deleted."""

        def late(claim: PartitionClaim, said: OffsetMetadata) -> bool:
            if found := undone(claim, said):
                reset = said.topic_id in ("", claim.topic_id)
                self._log.warning(
                    "group %s: a commit from before %s reached the brokers late, and had undone it for %s-%d: the "
                    "group's position is %d again",
                    *(claim.group, "its latest reset" if reset else "the topic was made again"),
                    *(claim.topic, claim.partition, positions[claim]),
                )
            return found

        self._commit_where(positions, late)

    def _commit_where(
        self,
        positions: Mapping[PartitionClaim, int],
        wanted: Callable[[PartitionClaim, OffsetMetadata], bool],
        lost: str = "",
        last: Mapping[int, LastRecord] = MappingProxyType({}),
    ) -> None:
        for group in {claim.group for claim in positions}:
            claims = {claim.partition: claim for claim in positions if claim.group == group}
            consumer = self._consumer(group)
            looked = time.monotonic()
            try:
                offsets = {
                    partition: TopicPartition(
                        claim.topic,
                        partition,
                        positions[claim],
                        metadata=OffsetMetadata.of(claim)
                        ._replace(lost=lost, time=last.get(partition, LastRecord()).timestamp)
                        .text(),
                    )
                    for partition, claim in claims.items()
                }
                for at in committed(consumer, [*offsets.values()], REQUEST_SECONDS):
                    claim, said = claims[at.partition], OffsetMetadata.parse(metadata_of(at))
                    if said.topic_id != claim.topic_id:  # of another topic, or gone with that
                        self._confirm(claim)
                    elif why := overtaken(claim, said):
                        raise Conflict(why)
                    same = (said.epoch, said.topic_id) == (claim.epoch, claim.topic_id)
                    if (same and at.offset > offsets[at.partition].offset) or not wanted(claim, said):
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
