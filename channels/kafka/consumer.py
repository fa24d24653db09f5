"""Reader of the channel: a member of a consumer group that decodes the topic's records."""

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
from flafka.plugins.kafka.consumer import CallQueue, ConsumerThread, Fenced, memory_bytes
from flafka.plugins.kafka.offsets import (
    OffsetMetadata,
    RecordsLost,
    assignments_of,
    missing_offset_warning,
    out_of_range_error,
    recreated_error,
    stored_losses,
    with_last_record,
)
from flafka.plugins.kafka.renewal import ClientRenewal
from flafka.plugins.kafka.truncation import find_truncations, with_leader_epochs

CONFIRM_SECONDS = 0.01
"""Shortest time between two requests for the topic's id."""
POLLING_THREAD_SECONDS = 60.0
"""Longest wait for a call on the polling thread, which a rebalance may block."""
END_OFFSETS_SECONDS = 1.0
"""Interval at which end offsets are cached."""
REBALANCE_SECONDS = 240.0
"""Longest time for which a rebalance waits for the sink; less than max.poll.interval.ms."""


class KafkaReader(ConsumerThread, Reader):
    """Reader of one sink. The polling thread assigns and revokes partitions; `take` calls the owner on its own
    thread.

    Records are handed out once the brokers have confirmed the topic's id after the fetch. The client does not detect
    a recreated topic with at least as many records: it would continue with offsets of the old topic.
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
        renewal: ClientRenewal | None = None,
    ) -> None:
        """Join the group of the template `assignment`, and start polling.

        `join_anew` makes the next reader join with another instance id. `renewal` replaces the client once its
        certificates have changed.
        """
        name = f"{assignment.group}-consumer"
        super().__init__(CHANNEL, properties, name, BUSY_POLL_SECONDS, metrics, log, renewal)
        self._assignment, self._owner, self._decode = assignment, owner, decode
        self._topic_ids, self._join_anew = topic_ids, join_anew
        self._unassigned = UnassignedPartitions(topic_ids, assignment.group)
        self._ends: dict[int, int] = {}
        """High watermark of the latest fetch, by partition."""
        self._ends_read_at = float("-inf")
        self._fetched = FetchBuffer(self.changed)
        self._id_requested_at = float("-inf")
        self._id_requested = False
        self._owner_calls = CallQueue(self.changed)
        """Calls for the owner's thread, from the polling thread."""
        self._polling_calls = CallQueue(self.changed)
        """Calls for the polling thread, from the owner's thread."""
        self._new_partitions = set[int]()
        """Partitions assigned since the latest poll."""
        self._uncommitted = set[int]()
        """Partitions of which records were taken since their latest commit."""
        self._member: str | None = None
        """Member id at the latest assignment of partitions."""
        self.start()

    @property
    def _properties(self) -> Mapping[str, Any]:
        """Properties of the group's clients that are no members."""
        return {name: value for name, value in self._client.items() if name != "group.instance.id"}

    def take(self, timeout: float) -> PolledBatch | None:
        """Return the next records of one partition, small ones joined; None after `timeout` seconds without any.

        Calls the owner about rebalances. Raises the error that has ended the polling.
        """
        with self.changed:
            self.changed.wait_for(lambda: self._owner_calls or self._fetched.has_confirmed or self.error, timeout)
        if self.error is not None:
            raise self.error
        self._owner_calls.run(raises=True)
        taken = self._fetched.take_records()
        if taken is None:
            return None
        assignment, records = taken
        polled = self._decode(records, assignment)
        if polled is None:
            return None
        self.expect_activity()  # the commit of these records waits for the end of a poll
        self._uncommitted.add(assignment.partition)
        self._metrics.add("EventTakeSuccessCount", len(polled.batch))
        leader_epoch = self._fetched.leader_epoch(assignment.partition, polled.offsets.end)
        return replace(polled, last_record=polled.last_record._replace(leader_epoch=leader_epoch))

    def commit(self, delivered: Collection[Assignment]) -> None:
        """Commit offsets, with their metadata, of the partitions that are still assigned. Raises Retry."""
        owned = [assignment for assignment in delivered if assignment.partition in self._fetched.assignments]
        if not owned:
            return
        try:
            with self._metrics.timed("KafkaCommitTimer"):
                self._call_on_polling_thread(lambda: self._commit(owned))
        except KafkaException as e:
            raise Retry(f"group {self._assignment.group}: committing offsets failed: {self.explain(e)}") from e

    def _commit(self, delivered: Collection[Assignment]) -> None:
        """Commit offsets, on the polling thread. Raises KafkaException, also for the error of one partition."""
        offsets = [
            TopicPartition(
                assignment.topic,
                assignment.partition,
                assignment.next_offset or 0,
                metadata=_metadata(assignment).text(),
                leader_epoch=self._fetched.leader_epoch(assignment.partition, assignment.next_offset or 0),
            )
            for assignment in delivered
        ]
        for committed in self.consumer.commit(offsets=offsets, asynchronous=False):
            if committed.error is not None:
                raise KafkaException(committed.error)
        self._uncommitted.difference_update(assignment.partition for assignment in delivered)

    def expects_calls(self) -> bool:
        """Return True while taken records are not committed."""
        return bool(self._uncommitted)

    def rewind(self, starts: Collection[Assignment]) -> None:
        """Drop fetched records of these partitions, and continue at the next offset of each assignment.

        The polling thread seeks before its next poll.
        """
        self._metrics.add("RollbackCount")
        self._fetched.rewind(starts)

    def stop_at(self, ends: Mapping[int, int]) -> None:
        """Hand out only records before these ends, and pause each partition there.

        Partitions without an end are paused at once.
        """
        self._fetched.stop_at(ends)

    def membership(self) -> Any:
        """Return the group metadata for a transaction, which fences its offsets.

        Raises Retry if membership is lost, or after `POLLING_THREAD_SECONDS`.
        """
        return self._call_on_polling_thread(self._membership)

    def _membership(self) -> Any:
        """Return the group metadata, on the polling thread. Raises Retry if the member id has changed."""
        metadata = self.consumer.consumer_group_metadata()
        # After the loss of membership, brokers accept the client's metadata like that of an administrator.
        if self.consumer.memberid() != self._member:
            raise Retry(f"group {self._assignment.group}: the consumer is no longer a member")
        return metadata

    def _call_on_polling_thread(self, call: Callable[[], Any], seconds: float = POLLING_THREAD_SECONDS) -> Any:
        """Return the result of a call on the polling thread. Raises Retry after `seconds` without a result."""
        with self.changed:
            if self.closing:
                raise Retry(f"group {self._assignment.group}: the consumer is closed")
            future = self._polling_calls.add(call)
        try:
            return future.result(seconds)
        except TimeoutError:
            raise Retry(f"group {self._assignment.group}: no answer from Kafka for {seconds:.0f} s") from None

    def on_start(self) -> None:
        """Subscribe to the channel's topic."""
        self.subscribe([self._assignment.topic])

    def before_poll(self) -> None:
        """Make the calls that wait for this thread, requests to the brokers, and seeks."""
        self._request_topic_id()
        self._check_unassigned()
        self._cache_ends()
        self._polling_calls.run()
        self._apply_seeks()

    def _cache_ends(self) -> None:
        """Cache end offsets, with which lost records are counted once the topic is recreated."""
        if time.monotonic() - self._ends_read_at < END_OFFSETS_SECONDS:
            return
        self._ends_read_at = time.monotonic()
        for partition in self._fetched.next_offsets():
            topic_partition = TopicPartition(self._assignment.topic, partition)
            _, high = self.consumer.get_watermark_offsets(topic_partition, cached=True)
            if high >= 0:
                self._ends[partition] = high

    def on_stop(self) -> None:
        """Make the calls that still wait for this thread."""
        self._polling_calls.run()

    def explain(self, error: object, topic: str | Collection[str] = "") -> str:
        """Return the text of an error, with the missing right on the group or the channel's topic."""
        return super().explain(error, topic or self._assignment.topic)

    def waiting_bytes(self) -> int:
        """Return the size of all records that were not handed out, in bytes."""
        return self._fetched.bytes

    def on_messages(self, messages: Sequence[Message]) -> None:
        """Buffer records until the topic's id is confirmed, and pause partitions at the ends of `stop_at`.

        Raises as `_on_error` for an error of the client.
        """
        failed: list[tuple[Message, KafkaError]] = []
        finished = set[int]()
        with self.changed:
            for message in messages:
                error = message.error()
                if error is not None and error.code() != KafkaError._PARTITION_EOF:
                    failed.append((message, error))
                elif not self._fetched.add_message(message):
                    finished.add(cast("int", message.partition()))
        if finished:  # paused once more after each resumption
            self.consumer.pause([TopicPartition(self._assignment.topic, partition) for partition in finished])
        for message, error in failed:  # without the lock, for which the client's callback thread may wait
            self._on_error(message, error)

    def _request_topic_id(self) -> None:
        """Request the topic's id if it is due: soon after records were fetched, else every `TOPIC_ID_SECONDS`.

        One request confirms all records fetched before it.
        """
        wait = CONFIRM_SECONDS if self._fetched.has_unconfirmed else TOPIC_ID_SECONDS
        topic_id = self._assignment.topic_partition.topic_id
        if self._id_requested or not topic_id or time.monotonic() - self._id_requested_at < wait:
            return
        self._fetched.start_confirmation()
        self._id_requested, self._id_requested_at = True, time.monotonic()
        self._topic_ids.request(self._on_topic_id)

    def _on_topic_id(self, topic_id: str | None) -> None:
        """Confirm fetched records with the topic's id, on a thread of the client's.

        None is no answer: records wait. An empty or another id ends the polling with an error.
        """
        if topic_id in (None, self._assignment.topic_partition.topic_id):
            self._fetched.finish_confirmation(confirmed=topic_id is not None)
        elif topic_id == "":
            topic, group = self._assignment.topic, self._assignment.group
            self.fail(Retry(f"topic {topic}, which group {group} reads, was deleted"))
        else:
            self.fail(self._recreated_error())
        self._id_requested = False

    def _check_unassigned(self) -> None:
        """Raise Retry, to join under another instance id, if partitions stay without a member."""
        if self._assignment.topic_partition.topic_id and (unassigned := self._unassigned.persistent()):
            self._join_anew()
            group, topic = self._assignment.group, self._assignment.topic
            raise Retry(
                f"group {group}: no member reads partitions {sorted(unassigned)} of {topic}: joining the group again"
            )

    def _recreated_error(self) -> Retry:
        """Return the error for a recreated topic, and count its lost records."""
        lost = unknown = 0
        for partition, first in self._fetched.first_pending_offsets().items():
            if first >= 0 and partition in self._ends:
                lost += max(0, self._ends[partition] - first)
            else:
                unknown += 1
        self._metrics.add("TopicRecreatedCount")
        self._metrics.add("RecordLostCount", lost)
        return Retry(recreated_error(self._assignment, lost, unknown))

    def _on_error(self, message: Message, error: KafkaError) -> None:
        """Log an error of the client, or raise it as Retry or FlafkaError if the reader cannot continue."""
        assignment = self._assignment
        if error.code() == KafkaError._AUTO_OFFSET_RESET:
            if self._topic_ids.get() != assignment.topic_partition.topic_id:
                raise self._recreated_error()
            partition, offset = cast("int", message.partition()), cast("int", message.offset())
            marks = self._watermarks(partition)
            assignment = self._fetched.assignments.get(partition, assignment.replace(partition=partition))
            last = LastRecord(leader_epoch=self._fetched.leader_epoch(partition, offset))
            assignment = assignment.with_offset(offset, last)
            self._refuse_truncated([assignment], {})
            raise self._store_loss(
                self._unless_recreated(out_of_range_error(assignment, *marks) or Retry(error.str()))
            )
        try:
            self.raise_if_fenced(error)
        except Fenced:
            self._join_anew()  # under the same name the two would fence each other for ever
            raise
        self.raise_if_unauthorized(error, assignment.topic)
        self._log.warning("group %s: %s", assignment.group, error.str())

    def _unless_recreated(self, error: FlafkaError) -> FlafkaError:
        """Return the error, or that of a recreated topic if it was recreated: no record of the new topic is lost."""
        is_same = self._topic_ids.get() == self._assignment.topic_partition.topic_id
        return error if is_same else self._recreated_error()

    def _store_loss(self, error: FlafkaError) -> FlafkaError:
        """Return the error, and commit a loss of records with the offset, as a person must decide.

        Otherwise the sink would skip records once new ones have the lost offsets. If the commit fails, the next
        attempt finds the loss again. Return a Retry instead while fetched records are not delivered yet.
        """
        if isinstance(error, RecordsLost):
            assignment, metadata = error.assignment, _metadata(error.assignment)._replace(lost=error.lost).text()
            offset = TopicPartition(
                assignment.topic, assignment.partition, assignment.next_offset or 0, metadata=metadata
            )
            if assignment.partition in self._fetched.assignments and not self._is_delivered(offset):
                # The error's offset is that of the fetch: a reset to it would skip undelivered records.
                return Retry(f"{assignment.topic_partition}: brokers have lost records: joining the group again")
            with suppress(KafkaException):
                self.consumer.commit(offsets=[offset], asynchronous=False)
        return error

    def _is_delivered(self, end: TopicPartition) -> bool:
        """Return True if the group has committed all records before that offset.

        False without an answer from the brokers, or without a committed offset.
        """
        try:
            (committed,) = committed_offsets(
                self.consumer, [TopicPartition(end.topic, end.partition)], REQUEST_SECONDS
            )
        except KafkaException:
            return False
        return committed.offset >= end.offset

    def _apply_seeks(self) -> None:
        """Seek as requested, and resume the partitions that `stop_at` had paused at their ends."""
        seeks = self._fetched.take_seeks()
        for partition, offset in seeks.items():
            self.consumer.seek(TopicPartition(self._assignment.topic, partition, offset))
        resumed, self._new_partitions = self._fetched.bounded({*seeks, *self._new_partitions}), set()
        if resumed and not self._paused:
            self.consumer.resume([TopicPartition(self._assignment.topic, partition) for partition in resumed])

    def assigned(self, partitions: list[TopicPartition]) -> Sequence[TopicPartition]:
        """Have the owner take over the partitions; return the offsets at which they start.

        Commits changed offsets and generations first. Raises Retry if the owner is busy for `REBALANCE_SECONDS`, or
        if the topic was recreated. Raises FlafkaError for a loss of records.
        """
        # Not by this consumer's `list_topics`: called within a callback, it makes the next callback of the same
        # `poll` abort the process, because the Python binding assumes that this thread no longer polls.
        topic_id = self._topic_ids.get()
        if self._fetched.assignments and topic_id != self._assignment.topic_partition.topic_id:
            raise self._recreated_error()
        self._assignment = self._assignment.replace(topic_id=topic_id)
        self._member = self.consumer.memberid()
        numbers = {tp.partition for tp in partitions}
        self._unassigned.request()
        wanted = [TopicPartition(self._assignment.topic, partition) for partition in sorted(numbers)]
        offsets = committed_offsets(self.consumer, wanted, REQUEST_SECONDS) if wanted else []
        assignments = assignments_of(self._assignment, offsets, self._log)
        for error in stored_losses(assignments, offsets, self._watermarks):
            raise self._store_loss(error)
        returned: list[Assignment] = []
        if not self._call_owner(lambda: returned.extend(self._owner.assigned(assignments))):
            group = self._assignment.group
            raise Retry(f"group {group}: its sink was busy for {REBALANCE_SECONDS:.0f} s without a pause", 1)
        committed = {assignment.partition: assignment for assignment in assignments}
        # An owner that is closing returns no assignments.
        starts = [with_last_record(start, committed[start.partition]) for start in returned or assignments]
        self._refuse_truncated(starts, committed)
        starts = [self._start_at_earliest(start) if start.next_offset is None else start for start in starts]
        # Offsets of other programs and of resets have no leader epoch: a later loss before them would be undetected.
        without_epoch = [
            start for start in starts if start.next_offset and start.last_record.leader_epoch < 0 and not start.replay
        ]
        with_epoch = with_leader_epochs(CHANNEL, self._properties, without_epoch)
        starts = [with_epoch.get(start.partition, start) for start in starts]
        self._fetched.add(starts)
        self._new_partitions |= {start.partition for start in starts}
        changed = [
            start
            for start in starts
            if start.partition in with_epoch or _is_changed(start, committed[start.partition])
        ]
        if changed:
            self._commit(changed)  # the start offset and the generation, before any record is taken
        return [TopicPartition(start.topic, start.partition, start.next_offset or 0) for start in starts]

    def _refuse_truncated(self, starts: Collection[Assignment], committed: Mapping[int, Assignment]) -> None:
        """Raise FlafkaError, with its remedy, if the brokers have lost the record before a next offset."""
        for error in find_truncations(CHANNEL, self._properties, starts, committed):
            raise self._store_loss(self._unless_recreated(error))

    def _start_at_earliest(self, assignment: Assignment) -> Assignment:
        """Return the assignment at the first record, for a partition without a committed offset.

        The offset is fixed now, so that records that retention removes later are detected as missing.
        """
        low, _ = self._watermarks(assignment.partition)
        start = assignment.with_offset(low)
        if low:
            self._log.warning("%s", missing_offset_warning(start))
        return start

    def _watermarks(self, partition: int) -> tuple[int, int]:
        """Return the low and the high watermark of a partition of the topic. Raises KafkaException."""
        return watermarks(self.consumer, TopicPartition(self._assignment.topic, partition), REQUEST_SECONDS)

    def revoked(self, partitions: list[TopicPartition]) -> None:
        """Have the owner deliver and commit the taken records of the partitions, then drop their waiting records.

        Waits for the owner for up to `REBALANCE_SECONDS`. Other partitions keep their records.
        """
        numbers = {tp.partition for tp in partitions}
        self._call_owner(lambda: self._owner.revoked(numbers))
        self._fetched.remove(numbers)
        self._uncommitted -= numbers

    def lost(self, partitions: list[TopicPartition]) -> None:
        """Drop the fetched records of the partitions, also in the owner."""
        numbers = {tp.partition for tp in partitions}
        self._fetched.remove(numbers)
        self._uncommitted -= numbers
        self._call_owner(lambda: self._owner.lost(numbers))

    def _call_owner(self, call: Callable[[], None]) -> bool:
        """Make a call on the owner's thread; return False after `REBALANCE_SECONDS` without its end.

        The call may be made later then. Raises the exception of the call.
        """
        with self.changed:
            if self.closing:
                return True
            future = self._owner_calls.add(call)
        deadline = time.monotonic() + REBALANCE_SECONDS
        while not future.done() and not self.closing and time.monotonic() < deadline:
            with suppress(TimeoutError):
                future.exception(0.005)
            self._polling_calls.run()
        if future.done():
            future.result()
        return future.done() or self.closing


class FetchBuffer:
    """Fetched records of a consumer's partitions, in order, and the next offset of each. Guarded by `changed`.

    A record waits until the topic's id is confirmed, and then to be handed out. `changed` is notified when more
    records can be handed out.
    """

    def __init__(self, changed: threading.Condition) -> None:
        self._changed = changed
        self.bytes = 0
        """Size of the waiting records, in bytes: the sum of `memory_bytes`."""
        self.assignments: dict[int, Assignment] = {}
        """Assignments of the consumer, by partition."""
        self._confirmed: dict[int, deque[Message]] = {}
        """Confirmed records by partition, which are taken without the lock."""
        self._confirming: list[Message] = []
        """Records received before the pending request for the topic's id."""
        self._unconfirmed: list[Message] = []
        """Records received since."""
        self._next: dict[int, int] = {}
        """Next offset to receive, by partition."""
        self._leaders: dict[int, list[tuple[int, int]]] = {}
        """First offset and leader epoch of the received records, in order, by partition."""
        self._seeks: dict[int, int] = {}
        """Offset of a pending seek, by partition."""
        self._until: Mapping[int, int] | None = None

    def add(self, starts: Collection[Assignment]) -> None:
        """Add newly assigned partitions, each with its start."""
        with self._changed:
            for start in starts:
                partition, offset = start.partition, start.next_offset or 0
                self.assignments[partition], self._confirmed[partition] = start, deque()
                self._next[partition] = offset
                leader_epoch = start.last_record.leader_epoch
                self._leaders[partition] = [(offset - 1, leader_epoch)] if offset and leader_epoch >= 0 else []

    def remove(self, partitions: Collection[int]) -> None:
        """Remove partitions that are no longer assigned, with their waiting records."""
        with self._changed:
            for partition in partitions:
                self._drop_waiting(partition)
                for by_partition in (self.assignments, self._confirmed, self._next, self._leaders, self._seeks):
                    by_partition.pop(partition, None)

    def rewind(self, starts: Collection[Assignment]) -> None:
        """Drop the waiting records of these partitions, and request a seek to the start of each.

        Partitions that are not assigned are ignored.
        """
        with self._changed:
            owned = {
                assignment.partition: assignment for assignment in starts if assignment.partition in self.assignments
            }
            for partition in owned:
                self._drop_waiting(partition)
            self.assignments.update(owned)
            seeks = {partition: assignment.next_offset or 0 for partition, assignment in owned.items()}
            self._seeks.update(seeks)
            self._next.update(seeks)

    def take_seeks(self) -> Mapping[int, int]:
        """Return the seeks requested since the last call, as offsets by partition."""
        with self._changed:
            seeks, self._seeks = self._seeks, {}
        return seeks

    def stop_at(self, ends: Mapping[int, int]) -> None:
        """Keep no records from these offsets on, by partition, and no records of partitions without an offset."""
        self._until = dict(ends)

    def bounded(self, partitions: Collection[int]) -> Collection[int]:
        """Return the partitions among these that have an end of `stop_at`."""
        return partitions & (self._until or {}).keys()

    def add_message(self, message: Message) -> bool:
        """Append a record, or note the end of a partition. Return False for a record after the end of `stop_at`.

        Records of other partitions, and records before a pending seek, are dropped.
        """
        partition, offset = cast("int", message.partition()), cast("int", message.offset())
        with self._changed:
            # Records fetched before a pending seek have later offsets: handing them out would skip events.
            if partition not in self.assignments or partition in self._seeks:
                return True
            if self._until is not None and offset >= self._until.get(partition, 0):
                return False
            if message.error() is not None:
                self._next[partition] = offset  # also after the end of a transaction
                return True
            self._next[partition] = offset + 1
            leader_epoch, epochs = message.leader_epoch(), self._leaders[partition]
            if leader_epoch is not None and (not epochs or epochs[-1][1] < leader_epoch):
                epochs.append((offset, leader_epoch))
            self._unconfirmed.append(message)
            self.bytes += memory_bytes(message)
        return True

    @property
    def has_unconfirmed(self) -> bool:
        """True if records wait for the next request for the topic's id."""
        return bool(self._unconfirmed)

    def start_confirmation(self) -> None:
        """Let the unconfirmed records wait for the request for the topic's id that starts now.

        The former request must have ended.
        """
        with self._changed:
            self._confirming, self._unconfirmed = self._unconfirmed, []

    def finish_confirmation(self, *, confirmed: bool) -> None:
        """Confirm the records of the pending request, or, without an answer, add them to the next request."""
        with self._changed:
            if confirmed:
                for message in self._confirming:
                    self._confirmed[cast("int", message.partition())].append(message)
                self._changed.notify_all()
            else:
                self._unconfirmed = self._confirming + self._unconfirmed
            self._confirming = []

    @property
    def has_confirmed(self) -> bool:
        """True if a record can be handed out."""
        return any(self._confirmed.values())

    def take_records(self) -> tuple[Assignment, Iterator[Record]] | None:
        """Return the next partition's assignment, and a lazy iterator over its confirmed records.

        Partitions take turns. None if no record is confirmed.
        """
        with self._changed:
            partition = next((p for p, queue in self._confirmed.items() if queue), None)
            if partition is None:
                return None
            # Round robin: move the partition to the end.
            queue = self._confirmed[partition] = self._confirmed.pop(partition)
            return self.assignments[partition], self._records(queue)

    def _records(self, queue: deque[Message]) -> Iterator[Record]:
        """Yield the records of a queue, each removed from it, and subtract their size at the end."""
        size = 0
        try:
            for message in _drain_queue(queue):
                size += memory_bytes(message)
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

    def _drop_waiting(self, partition: int) -> None:
        """Drop all waiting records of a partition."""
        self.bytes -= sum(map(memory_bytes, _drain_queue(self._confirmed.get(partition, deque()))))
        for waiting in (self._confirming, self._unconfirmed):
            dropped = [message for message in waiting if message.partition() == partition]
            if dropped:
                self.bytes -= sum(map(memory_bytes, dropped))
                waiting[:] = [message for message in waiting if message.partition() != partition]

    def next_offsets(self) -> Mapping[int, int]:
        """Return the next offset to receive, by partition."""
        with self._changed:
            return dict(self._next)

    def first_pending_offsets(self) -> Mapping[int, int]:
        """Return, by partition, the offset of the first record that was not handed out, received or not."""
        with self._changed:
            firsts = dict(self._next)
            for message in (*self._unconfirmed, *self._confirming, *itertools.chain(*self._confirmed.values())):
                partition, offset = cast("int", message.partition()), cast("int", message.offset())
                firsts[partition] = min(firsts[partition], offset)
            return firsts

    def leader_epoch(self, partition: int, end: int) -> int:
        """Return the leader epoch of the latest record before `end`; -1 if unknown."""
        with self._changed:
            return max((epoch for first, epoch in self._leaders.get(partition, ()) if first < end), default=-1)


def _metadata(assignment: Assignment) -> OffsetMetadata:
    """Return the metadata of an offset, without the last record's timestamp, as its leader epoch is committed."""
    return OffsetMetadata.of(assignment)._replace(time=-1)


def _is_changed(one: Assignment, other: Assignment) -> bool:
    """Return True if two assignments of one partition have different generations or next offsets."""
    return (one.generation, one.next_offset) != (other.generation, other.next_offset)


def _drain_queue(queue: deque[Message]) -> Iterator[Message]:
    """Yield the messages of a queue, each removed from it. Two threads never get the same message."""
    with suppress(IndexError):
        while True:
            yield queue.popleft()


class UnassignedPartitions:
    """Partitions without a member of the group, requested at each assignment and every 15 to 30 s.

    A static member that restarts during a rebalance gets its former assignment, without partitions in transfer. No
    member has these until the next rebalance, which a member with another instance id triggers.
    """

    def __init__(self, topic_ids: TopicIds, group: str) -> None:
        self._topic_ids, self._group = topic_ids, group
        self._latest = frozenset[int]()
        """Partitions without a member at the latest request."""
        self._next_request = time.monotonic() + _request_interval()

    def request(self) -> frozenset[int]:
        """Request the partitions without a member from the brokers, and return them."""
        self._next_request = time.monotonic() + _request_interval()
        self._latest = self._topic_ids.unassigned_partitions(self._group)
        return self._latest

    def persistent(self) -> frozenset[int]:
        """Return the partitions without a member at two requests in a row.

        The result is empty until the next request is due.
        """
        if time.monotonic() < self._next_request:
            return frozenset()
        before = self._latest
        return before & self.request()


def _request_interval() -> float:
    """Return a random interval in seconds, as it suffices that one member joins anew.

    The interval and the session of the former member end within the minute after which a drain is aborted.
    """
    return random.uniform(15, 30)
