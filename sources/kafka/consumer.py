"""Consumer of the Kafka source: a member of a consumer group, on a thread of its own."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, Message, TopicPartition

from flafka.plugins import FlafkaError, Metrics
from flafka.plugins.kafka.admin import CONNECTIVITY_SECONDS, committed_offsets, watermarks
from flafka.plugins.kafka.clients import BUSY_POLL_SECONDS, REQUEST_SECONDS
from flafka.plugins.kafka.consumer import ConsumerThread, Fenced, memory_bytes
from flafka.plugins.kafka.offsets import OffsetMetadata, metadata_of
from flafka.plugins.kafka.renewal import ClientRenewal
from flafka.sources.kafka.config import SOURCE
from flafka.sources.kafka.topicids import TopicIdRequests

COMMIT_SECONDS = 0.5
"""Time between two commits of offsets."""
NEW_TOPICS_SECONDS = 30.0
"""Time between two lookups of new topics that match the pattern."""
HANDOVER_SECONDS = 30.0
"""Maximum time that a revocation waits until the taken records of its partitions are stored."""

PartitionKey = tuple[str, int]
"""Topic and partition."""


@dataclass(frozen=True)
class AssignedOffset:
    """Next offset of a partition, with the generation of the partition's assignment to this consumer."""

    generation: int
    offset: int


@dataclass(frozen=True)
class UncommittedOffset:
    """Next offset after the stored records of a partition whose commit has failed."""

    committed: int
    """Committed offset at that time; negative without one."""
    offset: int
    topic_id: str


class TopicConsumer(ConsumerThread):
    """Consumer of one or more topics that commits the offsets of stored records.

    Any thread may call `take` and `stored`.
    """

    def __init__(
        self,
        properties: Mapping[str, Any],
        topics: list[str],
        offset_reset: str,
        metrics: Metrics,
        log: logging.Logger,
        is_consumed: Callable[[str], bool] | None = None,
        uncommitted: dict[PartitionKey, UncommittedOffset] | None = None,
        renewal: ClientRenewal | None = None,
    ) -> None:
        """Start to consume `topics`, or every topic for which `is_consumed` returns True, also if created later.

        `offset_reset` is earliest, latest or none: the initial offset of a partition without a committed offset.
        `uncommitted` is for offsets that this consumer cannot commit, with which the next one begins. `renewal`
        replaces the client once its certificates have changed.
        """
        name = f"{properties['group.id']}-source"
        super().__init__(SOURCE, properties, name, BUSY_POLL_SECONDS, metrics, log, renewal)
        self._offset_reset = offset_reset
        self._topics, self._is_consumed, self._next_topic_refresh = topics, is_consumed, 0.0
        self._queue: deque[Message] = deque()
        self._generations: dict[PartitionKey, int] = {}
        """Generation of the present assignment, for each assigned partition."""
        self._generation = 0
        self._taken: dict[PartitionKey, AssignedOffset] = {}
        self._stored: dict[PartitionKey, AssignedOffset] = {}
        self._committed: dict[PartitionKey, AssignedOffset] = {}
        self._uncommitted = {} if uncommitted is None else uncommitted
        self._group_offsets: dict[PartitionKey, int] = {}
        """Latest known committed offsets of the group; negative without one."""
        self._unstored: dict[PartitionKey, tuple[AssignedOffset, UncommittedOffset]] = {}
        """Offsets after taken records of lost partitions that are not stored yet: as taken, and as they are kept."""
        self._commit_error = ""
        self._is_abandoned = False
        self._topic_ids: TopicIdRequests
        self._ids: dict[PartitionKey, str] = {}
        """Topic ids to which the offsets of partitions belong; empty while unknown. Kept after a revocation."""
        self._logged_errors: set[str] = set()
        self._next_commit = 0.0
        self._queued = 0
        """Memory of the queued records, in bytes: the sum of `memory_bytes`."""
        self.start()

    # --- on the threads of the source

    def take(
        self, max_events: int, max_bytes: int, linger_seconds: float, timeout_seconds: float
    ) -> tuple[list[Message], dict[PartitionKey, AssignedOffset]]:
        """Return the records that arrive within `linger_seconds` of the first one, and the next offset by partition.

        At most `max_events` records are taken, and none after `max_bytes` are reached. Both results are empty after
        `timeout_seconds` without a record. Raises the error that ended the consumer, such as `Fenced`.
        """
        messages: list[Message] = []
        offsets: dict[PartitionKey, AssignedOffset] = {}
        size = 0
        deadline = time.monotonic() + timeout_seconds
        with self.changed:
            while len(messages) < max_events and size < max_bytes:
                if self.error is not None:
                    raise self.error
                if not self._queue:
                    timeout = deadline - time.monotonic()
                    if timeout <= 0 or not self.changed.wait(timeout):
                        break
                    continue
                if not messages:
                    deadline = time.monotonic() + linger_seconds
                while self._queue and len(messages) < max_events and size < max_bytes:
                    message = self._queue.popleft()
                    size += len(message)
                    messages.append(message)
                    key = _partition_key(message)
                    offsets[key] = AssignedOffset(self._generations[key], cast("int", message.offset()) + 1)
            self._queued -= sum(map(memory_bytes, messages))
            self._taken.update(offsets)
        return messages, offsets

    def stored(self, offsets: Mapping[PartitionKey, AssignedOffset]) -> None:
        """Let the polling thread commit these offsets, as all records before them are in the channels.

        Offsets of an assignment that ended meanwhile are not committed. Does not block.
        """
        with self.changed:
            self._stored.update(offsets)
            for key, next_offset in offsets.items():
                if key in self._unstored and self._unstored[key][0] == next_offset:
                    self._uncommitted[key] = self._unstored.pop(key)[1]
            self.changed.notify_all()

    def close(self) -> None:
        """Stop, and commit the offsets of stored records. See the base class."""
        with self.changed:
            self._is_abandoned = True
            self.changed.notify_all()
        super().close()

    # --- on the polling thread

    def on_start(self) -> None:
        """Subscribe to the topics, or have those that a pattern selects looked up."""
        self._topic_ids = TopicIdRequests(self._client)
        if self._is_consumed is None:
            self.subscribe(self._topics)
        else:
            self._topics, self._next_topic_refresh = [], 0.0

    def before_poll(self) -> None:
        """Look up new and recreated topics, and commit offsets, each at its interval."""
        if self._is_consumed is not None and time.monotonic() >= self._next_topic_refresh:
            self._refresh_topics()
        for topic, id in self._topic_ids.poll({topic for topic, _ in self._generations}).items():
            self._detect_recreation(topic, id)
        if time.monotonic() >= self._next_commit:
            self._commit()

    def on_stop(self) -> None:
        """Commit the offsets of stored records, unless this member was fenced. Keep those that are not committed.

        After an error, wait until the taken records are stored, or until `close`, at most `HANDOVER_SECONDS`.
        """
        if isinstance(self.error, Fenced):
            return
        if self.error is not None:
            with self.changed:
                keys = {*self._taken}
                self.changed.wait_for(lambda: self._is_abandoned or not self._has_unstored(keys), HANDOVER_SECONDS)
        self._commit()
        self._keep_uncommitted({*self._stored})

    def _refresh_topics(self) -> None:
        """Subscribe to all present topics that match the pattern, if they have changed.

        While brokers are unavailable, the known topics stay. Raises KafkaException if no topic is known.
        """
        assert self._is_consumed is not None
        try:
            topics = sorted(filter(self._is_consumed, self.consumer.list_topics(timeout=CONNECTIVITY_SECONDS).topics))
        except KafkaException:
            if not self._topics:
                raise
            topics = self._topics  # continue with the known topics while brokers are unavailable
        self._next_topic_refresh = time.monotonic() + NEW_TOPICS_SECONDS
        if topics and topics != self._topics:
            self._log.info("group %s reads %s", self.group, ", ".join(topics))
            self._topics = topics
            self.subscribe(topics)

    def explain(self, error: object, topic: str | Collection[str] = "") -> str:
        """Return the text of an error, with the missing right on the group or the topic, or one of all topics."""
        return super().explain(error, topic or self._topics)

    def waiting_bytes(self) -> int:
        """Return the memory of the queued records, in bytes."""
        return self._queued

    def on_messages(self, messages: Sequence[Message]) -> None:
        """Queue records of assigned partitions until they are taken, and handle errors.

        Records of other partitions are dropped: the partition was revoked, or its topic recreated.
        """
        failed: list[tuple[Message, KafkaError]] = []
        generation = self._generation
        with self.changed:
            for message in messages:
                if (error := message.error()) is not None:
                    failed.append((message, error))
                elif _partition_key(message) in self._generations:
                    self._queue.append(message)
                    self._queued += memory_bytes(message)
            self.changed.notify_all()
        for message, error in failed:
            # A newer generation is that of a recreated topic: the error is of the deleted one.
            if self._generations.get(_partition_key(message), generation) <= generation:
                self._on_error(message, error)

    def _on_error(self, message: Message, error: KafkaError) -> None:
        """Restart the partition at its earliest record if its offset no longer exists; log any other error once.

        Raises Fenced if another process has this instance ID, Retry if the only topic or the group may not be read.
        """
        if error.code() == KafkaError._AUTO_OFFSET_RESET:
            topic, partition = _partition_key(message)
            if self._detect_recreation(topic, self._topic_ids.get(topic)):
                return
            offset, start = cast("int", message.offset()), TopicPartition(topic, partition, OFFSET_BEGINNING)
            low, _ = watermarks(self.consumer, start, REQUEST_SECONDS)
            loss = f"{low - offset:,} records are lost" if low > offset else "The records there are lost"
            self._log.error(
                "group %s stands at offset %d of %s-%d, which the brokers no longer have: retention removed it, or "
                "the topic was created again. %s; it continues with the earliest record, %d",
                *(self.group, offset, topic, partition, loss, low),
            )
            self._metrics.add("KafkaOffsetLostCount")
            self._restart_at([start])
            return
        self.raise_if_fenced(error)
        topic = message.topic() or ""
        if len(self._topics) == 1 or error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
            self.raise_if_unauthorized(error, topic or self._topics[0])
        if (text := self.explain(error, topic)) not in self._logged_errors:
            self._logged_errors.add(text)
            self._log.warning("group %s: %s", self.group, text)

    def _detect_recreation(self, topic: str, id: str) -> bool:
        """Compare the present id of a topic; return True if the topic was recreated, and restart at its first record.

        An empty id is unknown, and is never that of a recreated topic.
        librdkafka does not notice the recreation: it would skip the records of the new topic before the old offset.
        """
        owned = sorted(key for key in self._generations if key[0] == topic)
        stale = {key for key in owned if id and self._ids[key] not in ("", id)}
        if id:
            self._ids.update(dict.fromkeys(owned, id))
        if not stale:
            return False
        self._drop_queued(stale)
        with self.changed:
            self._generation += 1
            for key in stale:
                for offsets in (self._taken, self._stored, self._committed):
                    offsets.pop(key, None)
                self._generations[key] = self._generation
        self._log.error(
            "topic %s was deleted and created again: group %s begins with the first record of partitions %s; unread "
            "records of the deleted topic are lost",
            *(topic, self.group, ", ".join(str(partition) for _, partition in sorted(stale))),
        )
        self._metrics.add("KafkaOffsetLostCount", len(stale))
        self._restart_at([TopicPartition(*key, OFFSET_BEGINNING) for key in sorted(stale)])
        return True

    def _restart_at(self, starts: list[TopicPartition]) -> None:
        """Continue assigned partitions at the offsets in `starts`; a pause of the consumer remains."""
        # librdkafka refuses to seek in a partition whose fetching failed: assign it again.
        self.consumer.incremental_unassign(starts)
        self.consumer.incremental_assign(starts)
        if self._paused:
            self.consumer.pause(starts)

    def _commit(self) -> None:
        """Commit the offsets of stored records that are not committed yet, with the topic id. Blocks.

        A failure is logged, and the next call commits these offsets, too.
        """
        self._next_commit = time.monotonic() + COMMIT_SECONDS
        with self.changed:
            ready = {
                key: next_offset
                for key, next_offset in self._stored.items()
                if self._generations.get(key) == next_offset.generation and self._committed.get(key) != next_offset
            }
        if not ready:
            return
        offsets = [
            TopicPartition(*key, next_offset.offset, metadata=OffsetMetadata(topic_id=self._ids[key]).text())
            for key, next_offset in ready.items()
        ]
        try:
            with self._metrics.timed("KafkaCommitTimer"):
                results = self.consumer.commit(offsets=offsets, asynchronous=False)
            errors = {(result.topic, result.partition): result.error for result in results}
            for key, next_offset in ready.items():
                if errors.get(key) is None:
                    self._committed[key], self._group_offsets[key] = next_offset, next_offset.offset
            for error in filter(None, errors.values()):
                raise KafkaException(error)
            self._report_commit("")
        except KafkaException as e:  # the next commit includes these offsets
            self._report_commit(f"group {self.group}: committing offsets failed: {self.explain(e)}")

    def _report_commit(self, error: str) -> None:
        """Log the error of a commit, once, and report it until a commit succeeds, for which `error` is empty."""
        if error and error != self._commit_error:
            self._log.warning("%s", error)
        if self._metrics.last_error == self._commit_error:
            self._metrics.set_error(error)
        self._commit_error = error

    def _keep_uncommitted(self, keys: set[PartitionKey]) -> None:
        """Keep the offsets of these partitions that are stored and not committed, for their next assignment."""
        with self.changed:
            for key in keys & self._group_offsets.keys():
                committed, id, generation = (
                    self._group_offsets[key],
                    self._ids.get(key, ""),
                    self._generations.get(key),
                )
                stored, taken = self._stored.get(key), self._taken.get(key)
                if stored is not None and stored.generation == generation and stored != self._committed.get(key):
                    self._uncommitted[key] = UncommittedOffset(committed, stored.offset, id)
                if taken is not None and taken.generation == generation and taken != stored:
                    self._unstored[key] = taken, UncommittedOffset(committed, taken.offset, id)

    # --- assignment and revocation

    def assigned(self, partitions: list[TopicPartition]) -> Sequence[TopicPartition]:
        """Return each partition with its committed offset, or its initial offset if it has none.

        Raises FlafkaError for a partition without a committed offset if `auto.offset.reset` is none. Raises
        KafkaException while the brokers do not return the offsets.
        """
        starts = []
        keys = {(tp.topic, tp.partition) for tp in partitions}
        with self.changed:
            self._generation += 1
            # Records taken before the partitions were lost may be on their way into the channels.
            self.changed.wait_for(lambda: self.closing or not keys & self._unstored.keys(), HANDOVER_SECONDS)
            for key in keys:
                self._unstored.pop(key, None)
        for tp in committed_offsets(self.consumer, partitions, REQUEST_SECONDS):
            key = tp.topic, tp.partition
            kept = self._uncommitted.pop(key, None)
            self._group_offsets[key] = max(tp.offset, -1)
            if kept is not None and kept.committed == max(tp.offset, -1):  # nobody has committed since
                offset = kept.offset
            else:
                kept, offset = None, tp.offset if tp.offset >= 0 else self._initial_offset(tp)
            starts.append(TopicPartition(*key, offset))
            # A member that has not detected the recreation yet commits offsets of the deleted topic.
            committed_id = OffsetMetadata.parse(metadata_of(tp)).topic_id if tp.offset >= 0 else ""
            self._ids[key] = (kept.topic_id if kept is not None else committed_id) or self._ids.get(key, "")
            with self.changed:
                self._generations[key] = self._generation
                if tp.offset < 0 <= offset or kept is not None:
                    # Commit the end as the initial offset. After a crash, `latest` would otherwise skip records.
                    self._stored[key] = AssignedOffset(self._generation, offset)
        self._topic_ids.restart_requests()
        return starts

    def _initial_offset(self, tp: TopicPartition) -> int:
        """Return the end offset for `latest`, OFFSET_BEGINNING for `earliest`; raise FlafkaError for `none`."""
        if self._offset_reset == "none":
            raise FlafkaError(
                f"group {self.group} has no position in {tp.topic}-{tp.partition}, and auto.offset.reset = none: "
                f"agent group reset {self.group} --topic {tp.topic} --to earliest"
            )
        if self._offset_reset == "latest":
            return watermarks(self.consumer, tp, REQUEST_SECONDS)[1]
        return OFFSET_BEGINNING

    def revoked(self, partitions: list[TopicPartition]) -> None:
        """Drop the queued records of these partitions, and commit the offsets of their stored records.

        Before the commit, block until the taken records are stored: at most `HANDOVER_SECONDS`, and not while this
        consumer closes.
        """
        keys = {(tp.topic, tp.partition) for tp in partitions}
        self._drop_queued(keys)
        with self.changed:
            self.changed.wait_for(lambda: self.closing or not self._has_unstored(keys), HANDOVER_SECONDS)
        self._commit()
        self._keep_uncommitted(keys)
        self._drop_state(keys)

    def lost(self, partitions: list[TopicPartition]) -> None:
        """Drop the queued records and the offsets of these partitions, without a commit.

        Another member may be their assignee already. If none has committed until this one gets them back, it
        continues after its stored records.
        """
        keys = {(tp.topic, tp.partition) for tp in partitions}
        self._drop_queued(keys)
        self._keep_uncommitted(keys)
        self._drop_state(keys)

    def _has_unstored(self, keys: set[PartitionKey]) -> bool:
        """Return True if records of these partitions were taken and are not stored yet."""
        return any(self._taken.get(key) not in (None, self._stored.get(key)) for key in keys)

    def _drop_queued(self, keys: set[PartitionKey]) -> None:
        """Drop the records of these partitions that were not taken yet."""
        with self.changed:
            kept = [message for message in self._queue if _partition_key(message) not in keys]
            self._queue = deque(kept)
            self._queued = sum(map(memory_bytes, kept))

    def _drop_state(self, keys: set[PartitionKey]) -> None:
        """Drop the generations and the offsets of these partitions; the known topic ids stay."""
        with self.changed:
            for key in keys:
                for known in (self._generations, self._taken, self._stored, self._committed):
                    known.pop(key, None)


def _partition_key(message: Message) -> PartitionKey:
    """Return topic and partition of a record."""
    return cast("str", message.topic()), cast("int", message.partition())
