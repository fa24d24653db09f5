"""Reader of the channel: a member of a consumer group that decodes the records of its topic."""

from __future__ import annotations

import itertools
import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, cast

from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from flafka.channels.kafka.config import CHANNEL
from flafka.plugins import (
    Assignment,
    FlafkaError,
    LastRecord,
    Metrics,
    PolledBatch,
    Reader,
    RebalanceListener,
    Record,
    Retry,
)
from flafka.plugins.kafka.admin import TopicIds, committed_offsets, watermarks
from flafka.plugins.kafka.clients import BUSY_POLL_SECONDS, REQUEST_SECONDS, TOPIC_ID_SECONDS
from flafka.plugins.kafka.consumer import Calls, Fenced, Poller, weight
from flafka.plugins.kafka.offsets import (
    OffsetMetadata,
    RecordsLost,
    assignments_of,
    begins_late,
    kept_refusals,
    made_again,
    out_of_range,
    with_last_record,
)
from flafka.plugins.kafka.truncation import truncations, with_leader_epochs

CONFIRM_SECONDS = 0.01
"""Shortest time between two questions for the topic's id, in seconds."""
POLLING_THREAD_SECONDS = 60.0
"""Longest wait for a call that the polling thread makes for another one: a rebalance may hold it up."""
ENDS_SECONDS = 1.0
"""Interval at which the ends of partitions are noted."""
OWNER_SECONDS = 240.0
"""Longest time for which a rebalance waits for the sink, in seconds; below max.poll.interval.ms."""


class KafkaReader(Poller, Reader):
    """Consumer of one sink. Partitions are assigned and revoked on the polling thread. `take` passes that on to the
    owner, on the owner's thread.

    Records are handed out once the brokers, asked after the fetch, still name the topic by the id of the
    assignment. The client does not notice that a topic was deleted and created again if the new one has as many
    records: it would go on at offsets of the old one.
    """

    def __init__(
        self,
        properties: Mapping[str, Any],
        assignment: Assignment,
        owner: RebalanceListener,
        metrics: Metrics,
        decode: Callable[[Iterator[Record], Assignment], PolledBatch | None],
        topic_ids: TopicIds,
        log: logging.Logger,
        join_anew: Callable[[], None] = lambda: None,
    ) -> None:
        """`assignment` names the topic and the group; its topic id is that of the latest rebalance."""
        super().__init__(CHANNEL, properties, f"{assignment.group}-consumer", BUSY_POLL_SECONDS, metrics, log)
        self._assignment, self._owner, self._decode = assignment, owner, decode
        self._topic_ids, self._join_anew = topic_ids, join_anew
        self._unread = UnreadPartitions(topic_ids, assignment.group)
        self._ends: dict[int, int] = {}
        """By partition: high watermark of the latest fetch."""
        self._ends_at = float("-inf")
        self._fetched = Fetched(self.changed)
        self._asked_at = float("-inf")
        self._asking = False
        self._news = Calls(self.changed)
        """Calls that the polling thread has the owner's thread make."""
        self._requests = Calls(self.changed)
        """Calls that the owner's thread has the polling thread make."""
        self._fresh = set[int]()
        """Partitions that became ours since the last turn."""
        self._member: str | None = None
        """The group's name for this member when it got partitions last."""
        self._properties = {n: value for n, value in properties.items() if n != "group.instance.id"}
        self.start()

    # --- the owner's thread

    def take(self, timeout: float) -> PolledBatch | None:
        """The next records of one partition, small ones joined."""
        with self.changed:
            self.changed.wait_for(lambda: self._news or self._fetched.ready or self.error, timeout)
        if self.error is not None:
            raise self.error
        self._news.make(raises=True)
        found = self._fetched.hand_out()
        if found is None:
            return None
        assignment, records = found
        polled = self._decode(records, assignment)
        if polled is None:
            return None
        self.busy()  # its commit is made between two polls, also once all is fetched
        self._metrics.add("EventTakeSuccessCount", len(polled.batch))
        leader_epoch = self._fetched.leader_epoch(assignment.partition, polled.offsets.end)
        return replace(polled, last_record=polled.last_record._replace(leader_epoch=leader_epoch))

    def commit(self, delivered: Collection[Assignment]) -> None:
        """Commit offsets, with their metadata, of the partitions that are assigned now. Raises Retry."""
        owned = [one for one in delivered if one.partition in self._fetched.assignments]
        if not owned:
            return
        try:
            with self._metrics.timed("KafkaCommitTimer"):
                self._ask(lambda: self._commit(owned))
        except KafkaException as e:
            raise Retry(f"group {self._assignment.group}: committing offsets failed: {self.explained(e)}") from e

    def _commit(self, delivered: Collection[Assignment]) -> None:
        offsets = [
            TopicPartition(
                one.topic,
                one.partition,
                one.next_offset or 0,
                metadata=_metadata(one).text(),
                leader_epoch=self._fetched.leader_epoch(one.partition, one.next_offset or 0),
            )
            for one in delivered
        ]
        for at in self.consumer.commit(offsets=offsets, asynchronous=False):
            if at.error is not None:
                raise KafkaException(at.error)

    def rewind(self, starts: Collection[Assignment]) -> None:
        """Seek, on the polling thread, and drop what was fetched past it."""
        self._metrics.add("RollbackCount")
        self._fetched.rewind(starts)

    def stop_at(self, ends: Mapping[int, int]) -> None:
        """Partitions that have come there are paused, and all that have no end."""
        self._fetched.stop_at(ends)

    def membership(self) -> Any:
        """For a transaction: the brokers refuse its offsets once this is no member any more. Raises Retry then."""
        return self._ask(self._membership)

    def _membership(self) -> Any:
        found = self.consumer.consumer_group_metadata()
        # What the client says of itself once it knows that it was put out is taken for that of an administrator.
        if self.consumer.memberid() != self._member:
            raise Retry(f"group {self._assignment.group}: this is no member any more")
        return found

    def _ask(self, work: Callable[[], Any], seconds: float = POLLING_THREAD_SECONDS) -> Any:
        """The result of a call made on the polling thread. Raises Retry where there is none in time."""
        with self.changed:
            if self.closing:
                raise Retry(f"group {self._assignment.group}: the consumer is closed")
            answer = self._requests.add(work)
        try:
            return answer.result(seconds)
        except TimeoutError:
            raise Retry(f"group {self._assignment.group}: no answer from Kafka for {seconds:.0f} s") from None

    # --- the polling thread

    def begin(self) -> None:
        """Read the channel's topic."""
        self.subscribe([self._assignment.topic])

    def turn(self) -> None:
        """Do what the owner's thread asks for, and ask the brokers what is to be asked."""
        self._confirm()
        self._look_for_unread()
        self._note_ends()
        self._requests.make()
        self._apply_seeks()

    def _note_ends(self) -> None:
        """Cache the end offsets of partitions, from which lost records are counted once the topic is recreated."""
        if time.monotonic() - self._ends_at < ENDS_SECONDS:
            return
        self._ends_at = time.monotonic()
        for partition in self._fetched.next_offsets():
            at = TopicPartition(self._assignment.topic, partition)
            _, high = self.consumer.get_watermark_offsets(at, cached=True)
            if high >= 0:
                self._ends[partition] = high

    def ended(self) -> None:
        """Answer what was asked for meanwhile."""
        self._requests.make()

    def waiting_bytes(self) -> int:
        """Size of all records that were not handed out."""
        return self._fetched.bytes

    def received(self, messages: Sequence[Message]) -> None:
        """Keep records until the topic's id is confirmed."""
        failed: list[tuple[Message, KafkaError]] = []
        past = set[int]()
        with self.changed:
            for message in messages:
                error = message.error()
                if error is not None and error.code() != KafkaError._PARTITION_EOF:
                    failed.append((message, error))
                elif not self._fetched.keep(message):
                    past.add(cast("int", message.partition()))
        if past:  # whatever resumes them has them paused again
            self.consumer.pause([TopicPartition(self._assignment.topic, partition) for partition in past])
        for message, error in failed:  # without the lock: the client's thread that answers may be waiting for it
            self._on_error(message, error)

    def _confirm(self) -> None:
        """Ask for the topic's id, once for all that was fetched meanwhile."""
        wait = CONFIRM_SECONDS if self._fetched.unasked else TOPIC_ID_SECONDS
        topic_id = self._assignment.topic_partition.topic_id
        if self._asking or not topic_id or time.monotonic() - self._asked_at < wait:
            return
        self._fetched.asked()
        self._asking, self._asked_at = True, time.monotonic()
        self._topic_ids.ask(self._confirmed)

    def _confirmed(self, topic_id: str | None) -> None:
        """Take the topic's id from the brokers, on a thread of the client's. After None, which is no answer, records
        wait for the next one.
        """
        if topic_id in (None, self._assignment.topic_partition.topic_id):
            self._fetched.answered(confirmed=topic_id is not None)
        elif topic_id == "":
            topic, group = self._assignment.topic, self._assignment.group
            self.fail(Retry(f"topic {topic}, which group {group} reads, was deleted"))
        else:
            self.fail(self._made_again())
        self._asking = False

    def _look_for_unread(self) -> None:
        if self._assignment.topic_partition.topic_id and (unread := self._unread.lasting()):
            self._join_anew()
            group, topic = self._assignment.group, self._assignment.topic
            raise Retry(
                f"group {group}: no member reads partitions {sorted(unread)} of {topic}: joining the group again"
            )

    def _made_again(self) -> Retry:
        """Return the error for a topic that was recreated, and count the loss."""
        left = unknown = 0
        for partition, first in self._fetched.firsts().items():
            if first >= 0 and partition in self._ends:
                left += max(0, self._ends[partition] - first)
            else:
                unknown += 1
        self._metrics.add("TopicRecreatedCount")
        self._metrics.add("RecordLostCount", left)
        return Retry(made_again(self._assignment, left, unknown))

    def _on_error(self, message: Message, error: KafkaError) -> None:
        assignment = self._assignment
        if error.code() == KafkaError._AUTO_OFFSET_RESET:
            if self._topic_ids.get() != assignment.topic_partition.topic_id:
                raise self._made_again()
            partition, offset = cast("int", message.partition()), cast("int", message.offset())
            marks = self._watermarks(partition)
            assignment = self._fetched.assignments.get(partition, assignment.of(partition=partition))
            last = LastRecord(leader_epoch=self._fetched.leader_epoch(partition, offset))
            assignment = assignment.at(offset, last)
            self._refuse_truncated([assignment], {})
            raise self._lasting(self._of_this_topic(out_of_range(assignment, *marks) or Retry(error.str())))
        try:
            self.refuse_fenced(error)
        except Fenced:
            self._join_anew()  # under the same name the two would fence each other for ever
            raise
        self.refuse_unauthorized(error, assignment.topic)
        self._log.warning("group %s: %s", assignment.group, error.str())

    def _of_this_topic(self, error: FlafkaError) -> FlafkaError:
        """Return that error if the brokers still name the topic by the same id. In a topic that was recreated
        nothing is lost that could be given up.
        """
        same = self._topic_ids.get() == self._assignment.topic_partition.topic_id
        return error if same else self._made_again()

    def _lasting(self, error: FlafkaError) -> FlafkaError:
        """Return that error, which is committed with the offset where a person has to decide.

        Otherwise the sink would go on by itself, past records, once new ones have taken the lost offsets. A commit
        that fails is made at the next attempt, which finds the loss again. Where fetched records are not delivered
        yet, return a Retry instead.
        """
        if isinstance(error, RecordsLost):
            one, metadata = error.assignment, _metadata(error.assignment)._replace(lost=error.lost).text()
            at = TopicPartition(one.topic, one.partition, one.next_offset or 0, metadata=metadata)
            if one.partition in self._fetched.assignments and not self._is_delivered(at):
                # The offset of the error is that of the fetch: a reset to it would skip what brokers still have.
                return Retry(f"{one.topic_partition}: brokers have lost records: joining the group again")
            with suppress(KafkaException):
                self.consumer.commit(offsets=[at], asynchronous=False)
        return error

    def _is_delivered(self, end: TopicPartition) -> bool:
        """Return True if the group has committed all records of that partition before the offset. False where
        brokers do not answer, or the group has no offset.
        """
        try:
            (at,) = committed_offsets(self.consumer, [TopicPartition(end.topic, end.partition)], REQUEST_SECONDS)
        except KafkaException:
            return False
        return at.offset >= end.offset

    def _apply_seeks(self) -> None:
        seeks = self._fetched.seeks()
        for partition, offset in seeks.items():
            self.consumer.seek(TopicPartition(self._assignment.topic, partition, offset))
        again, self._fresh = self._fetched.bounded({*seeks, *self._fresh}), set()
        if again and not self._paused:
            self.consumer.resume([TopicPartition(self._assignment.topic, partition) for partition in again])

    # --- partitions come and go

    def assigned(self, partitions: list[TopicPartition]) -> Sequence[TopicPartition]:
        """Have the owner take them over; begin where it says."""
        # Not by this consumer's `list_topics`: in a callback that has the next callback of the same `poll` abort the
        # process, for the Python binding takes the polling thread for one that is not polling.
        topic_id = self._topic_ids.get()
        if self._fetched.assignments and topic_id != self._assignment.topic_partition.topic_id:
            raise self._made_again()
        self._assignment = self._assignment.of(topic_id=topic_id)
        self._member = self.consumer.memberid()
        numbers = {tp.partition for tp in partitions}
        self._unread.ask()
        wanted = [TopicPartition(self._assignment.topic, partition) for partition in sorted(numbers)]
        at = committed_offsets(self.consumer, wanted, REQUEST_SECONDS) if wanted else []
        assignments = assignments_of(self._assignment, at, self._log)
        for refusal in kept_refusals(assignments, at, self._watermarks):
            raise self._lasting(refusal)
        answer: list[Assignment] = []
        if not self._tell_and_wait(lambda: answer.extend(self._owner.assigned(assignments))):
            group = self._assignment.group
            raise Retry(f"group {group}: its sink was busy for {OWNER_SECONDS:.0f} s without a pause", 1)
        known = {one.partition: one for one in assignments}
        starts = [with_last_record(one, known[one.partition]) for one in answer or assignments]  # none: closing
        self._refuse_truncated(starts, known)
        starts = [self._oldest(one) if one.next_offset is None else one for one in starts]
        # Another program, or a reset, has committed an offset alone: a later loss before it would not be noticed.
        without = [one for one in starts if one.next_offset and one.last_record.leader_epoch < 0 and not one.replay]
        looked_up = with_leader_epochs(CHANNEL, self._properties, without)
        starts = [looked_up.get(one.partition, one) for one in starts]
        self._fetched.add(starts)
        self._fresh |= {one.partition for one in starts}
        if fresh := [one for one in starts if one.partition in looked_up or _differ(one, known[one.partition])]:
            self._commit(fresh)  # where each begins, and in which generation, before anything is taken
        return [TopicPartition(one.topic, one.partition, one.next_offset or 0) for one in starts]

    def _refuse_truncated(self, starts: Collection[Assignment], committed: Mapping[int, Assignment]) -> None:
        """Raise FlafkaError, with the way out, where the brokers have lost the record before a next offset."""
        for error in truncations(CHANNEL, self._properties, starts, committed):
            raise self._lasting(self._of_this_topic(error))

    def _oldest(self, assignment: Assignment) -> Assignment:
        """Return where to go on in a partition in which the group has no offset: at its first record.

        From there on, and not from whatever is the first one later, it is read, so that what retention removes
        meanwhile is missed.
        """
        low, _ = self._watermarks(assignment.partition)
        start = assignment.at(low)
        if low:
            self._log.warning("%s", begins_late(start))
        return start

    def _watermarks(self, partition: int) -> tuple[int, int]:
        """Return the low and the high watermark of a partition of the topic. Raises KafkaException."""
        return watermarks(self.consumer, TopicPartition(self._assignment.topic, partition), REQUEST_SECONDS)

    def revoked(self, partitions: list[TopicPartition]) -> None:
        """Have the owner deliver what it took of them."""
        numbers = {tp.partition for tp in partitions}
        self._tell_and_wait(lambda: self._owner.revoked(numbers))
        self._fetched.remove(numbers)

    def lost(self, partitions: list[TopicPartition]) -> None:
        """Drop what was fetched of them, and have the owner do so."""
        numbers = {tp.partition for tp in partitions}
        self._fetched.remove(numbers)
        self._tell_and_wait(lambda: self._owner.lost(numbers))

    def _tell_and_wait(self, tell: Callable[[], None]) -> bool:
        """Have the owner's thread do that. Whether it has; it may do so later otherwise. Raises what it raises."""
        with self.changed:
            if self.closing:
                return True
            told = self._news.add(tell)
        deadline = time.monotonic() + OWNER_SECONDS
        while not told.done() and not self.closing and time.monotonic() < deadline:
            with suppress(TimeoutError):
                told.exception(0.005)
            self._requests.make()
        if told.done():
            told.result()
        return told.done() or self.closing


class Fetched:
    """The records of the partitions that one consumer has, in order, and where it stands in each.

    A record is kept, waits until the topic's id is confirmed, and waits then to be handed out. All of it is guarded
    by `changed`, which is notified when there is more to hand out.
    """

    def __init__(self, changed: threading.Condition) -> None:
        self._changed = changed
        self.bytes = 0
        """Size of the records that are kept, in bytes: the sum of `weight`."""
        self.assignments: dict[int, Assignment] = {}
        """By partition, of those that the consumer has."""
        self._confirmed: dict[int, deque[Message]] = {}
        """By partition; who hands them out takes them without the lock."""
        self._asked: list[Message] = []
        """Received before the topic's id was asked for, which is not answered yet."""
        self._unasked: list[Message] = []
        self._next: dict[int, int] = {}
        """The offset to be received next of each partition."""
        self._leaders: dict[int, list[tuple[int, int]]] = {}
        """By partition: from which offset on what was received had which leader epoch, in order."""
        self._seeks: dict[int, int] = {}
        """By partition: offset of a seek that the client has not made yet."""
        self._until: Mapping[int, int] | None = None

    # --- which partitions there are, and where they begin and end

    def add(self, starts: Collection[Assignment]) -> None:
        """Add partitions that the consumer has from now on."""
        with self._changed:
            for start in starts:
                partition, offset = start.partition, start.next_offset or 0
                self.assignments[partition], self._confirmed[partition] = start, deque()
                self._next[partition] = offset
                leader_epoch = start.last_record.leader_epoch
                self._leaders[partition] = [(offset - 1, leader_epoch)] if offset and leader_epoch >= 0 else []

    def remove(self, partitions: Collection[int]) -> None:
        """Partitions that the consumer does not have any more, with all that waits of them."""
        with self._changed:
            for partition in partitions:
                self._forget(partition)
                for known in (self.assignments, self._confirmed, self._next, self._leaders, self._seeks):
                    known.pop(partition, None)

    def rewind(self, starts: Collection[Assignment]) -> None:
        """Drop the waiting records of these partitions, and request a seek to the start of each."""
        with self._changed:
            owned = {one.partition: one for one in starts if one.partition in self.assignments}
            for partition in owned:
                self._forget(partition)
            self.assignments.update(owned)
            seeks = {partition: one.next_offset or 0 for partition, one in owned.items()}
            self._seeks.update(seeks)
            self._next.update(seeks)

    def seeks(self) -> Mapping[int, int]:
        """Return the seeks requested since the last call, as offsets by partition."""
        with self._changed:
            seeks, self._seeks = self._seeks, {}
        return seeks

    def stop_at(self, ends: Mapping[int, int]) -> None:
        """From there on nothing is kept, and nothing of partitions that are not among them."""
        self._until = dict(ends)

    def bounded(self, partitions: Collection[int]) -> Collection[int]:
        """Subset of the partitions for which `stop_at` has set an end, up to which records are kept."""
        return partitions & (self._until or {}).keys()

    # --- records come, are confirmed, and go

    def keep(self, message: Message) -> bool:
        """Keep a record, or learn where a partition ends, where that is the message. False for what is not wanted, as
        `stop_at` says."""
        partition, offset = cast("int", message.partition()), cast("int", message.offset())
        with self._changed:
            # What was fetched before a pending seek lies past it: handing it out would skip events.
            if partition not in self.assignments or partition in self._seeks:
                return True
            if self._until is not None and offset >= self._until.get(partition, 0):
                return False
            if message.error() is not None:
                self._next[partition] = offset  # behind the last record, where that is the end of a transaction
                return True
            self._next[partition] = offset + 1
            leader_epoch, known = message.leader_epoch(), self._leaders[partition]
            if leader_epoch is not None and (not known or known[-1][1] < leader_epoch):
                known.append((offset, leader_epoch))
            self._unasked.append(message)
            self.bytes += weight(message)
        return True

    @property
    def unasked(self) -> bool:
        """True if records wait for a request for the topic's id."""
        return bool(self._unasked)

    def asked(self) -> None:
        """The topic's id is asked for now. The answer to the question before has come."""
        with self._changed:
            self._asked, self._unasked = self._unasked, []

    def answered(self, *, confirmed: bool) -> None:
        """The topic is that of the assignments; or there was no answer, and what waits waits for the next."""
        with self._changed:
            if confirmed:
                for message in self._asked:
                    self._confirmed[cast("int", message.partition())].append(message)
                self._changed.notify_all()
            else:
                self._unasked = self._asked + self._unasked
            self._asked = []

    @property
    def ready(self) -> bool:
        """True if a record can be handed out."""
        return any(self._confirmed.values())

    def hand_out(self) -> tuple[Assignment, Iterator[Record]] | None:
        """The records of the partition whose turn it is, which are handed out one by one as they are asked for."""
        with self._changed:
            partition = next((p for p, queue in self._confirmed.items() if queue), None)
            if partition is None:
                return None
            # Round robin: the partition served goes to the end.
            queue = self._confirmed[partition] = self._confirmed.pop(partition)
            return self.assignments[partition], self._records(queue)

    def _records(self, queue: deque[Message]) -> Iterator[Record]:
        size = 0
        try:
            for message in _emptied(queue):
                size += weight(message)
                yield Record(
                    cast("int", message.offset()),
                    message.timestamp()[1],
                    message.key(),
                    message.value(),
                    cast("list[tuple[str, bytes | None]]", message.headers() or ()),
                )
        finally:
            with self._changed:
                self.bytes -= size

    def _forget(self, partition: int) -> None:
        self.bytes -= sum(map(weight, _emptied(self._confirmed.get(partition, deque()))))
        for waiting in (self._asked, self._unasked):
            dropped = [message for message in waiting if message.partition() == partition]
            if dropped:
                self.bytes -= sum(map(weight, dropped))
                waiting[:] = [message for message in waiting if message.partition() != partition]

    # --- where each partition stands

    def next_offsets(self) -> Mapping[int, int]:
        """The offset to be received next of each partition."""
        with self._changed:
            return dict(self._next)

    def firsts(self) -> Mapping[int, int]:
        """The first record of each partition that was not handed out, which may not have been received yet."""
        with self._changed:
            firsts = dict(self._next)
            for message in (*self._unasked, *self._asked, *itertools.chain(*self._confirmed.values())):
                partition, offset = cast("int", message.partition()), cast("int", message.offset())
                firsts[partition] = min(firsts[partition], offset)
            return firsts

    def leader_epoch(self, partition: int, end: int) -> int:
        """Leader epoch of the latest record before `end`; negative where it is not known."""
        with self._changed:
            return max((epoch for first, epoch in self._leaders.get(partition, ()) if first < end), default=-1)


def _metadata(assignment: Assignment) -> OffsetMetadata:
    """Return the metadata of an offset, without the time of the last record: its leader epoch is committed."""
    return OffsetMetadata.of(assignment)._replace(time=-1)


def _differ(one: Assignment, other: Assignment) -> bool:
    """Return True if two assignments of one partition have different generations or next offsets."""
    return (one.generation, one.next_offset) != (other.generation, other.next_offset)


def _emptied(queue: deque[Message]) -> Iterator[Message]:
    """Yield the messages of a queue, each removed from it. Of two threads, each gets other messages."""
    with suppress(IndexError):
        while True:
            yield queue.popleft()


class UnreadPartitions:
    """Partitions of the topic that no member of the group has; requested at each assignment, and every 15 to 30 s.

    A static member that ends amid a rebalance comes back to its old share, without what it gave up or was to get.
    No member has those partitions until the next rebalance, which a member of another name brings about.
    """

    def __init__(self, topic_ids: TopicIds, group: str) -> None:
        self._topic_ids, self._group = topic_ids, group
        self._before = frozenset[int]()
        """Partitions that no member had at the latest request."""
        self._due = time.monotonic() + _wait_seconds()

    def ask(self) -> frozenset[int]:
        """Ask the brokers, and return the partitions that no member has."""
        self._due = time.monotonic() + _wait_seconds()
        self._before = self._topic_ids.unread(self._group)
        return self._before

    def lasting(self) -> frozenset[int]:
        """Return the partitions that no member had at two requests in a row; none until the next request is due."""
        if time.monotonic() < self._due:
            return frozenset()
        before = self._before
        return before & self.ask()


def _wait_seconds() -> float:
    """Return a random time, as one member that joins anew is enough.

    With the session of the member that it was before, it has what nobody read within the minute after which a drain
    is given up.
    """
    return random.uniform(15, 30)
