"""The consumer of the Kafka source."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, Message, TopicPartition

from flafka.plugins import FlafkaError, Metrics
from flafka.plugins.kafka.admin import PROBE_SECONDS, committed_offsets, watermarks
from flafka.plugins.kafka.clients import BUSY_POLL_SECONDS, REQUEST_SECONDS
from flafka.plugins.kafka.consumer import Poller, weight
from flafka.plugins.kafka.offsets import OffsetMetadata, metadata_of
from flafka.sources.kafka.config import SOURCE
from flafka.sources.kafka.topicids import TopicIdRequests

COMMIT_SECONDS = 0.5
NEW_TOPICS_SECONDS = 30.0
"""Time between two looks for new topics."""
HANDOVER_SECONDS = 30.0
"""Longest time for which a revoked partition waits until its taken records are stored."""

Place = tuple[str, int]
"""Topic and partition."""


@dataclass(frozen=True)
class ConsumerPosition:
    """The record to read next of a partition, by a consumer that had it for the `turn`th time."""

    turn: int
    offset: int


class TopicConsumer(Poller):
    """Reads some topics, and commits what is stored."""

    def __init__(
        self,
        properties: Mapping[str, Any],
        topics: list[str],
        begins: str,
        metrics: Metrics,
        log: logging.Logger,
        matches: Callable[[str], bool] | None = None,
    ) -> None:
        """Reads these topics; with `matches` those that it says of, the ones that are created later too."""
        name = f"{properties['group.id']}-source"
        super().__init__(SOURCE, {"enable.partition.eof": False, **properties}, name, BUSY_POLL_SECONDS, metrics, log)
        self._begins = begins
        self._topics, self._matches, self._look_due = topics, matches, 0.0
        self._queue: deque[Message] = deque()
        self._turns: dict[Place, int] = {}
        """The partitions that are ours."""
        self._turn = 0
        self._taken: dict[Place, ConsumerPosition] = {}
        self._stored: dict[Place, ConsumerPosition] = {}
        self._committed: dict[Place, ConsumerPosition] = {}
        self._topic_ids = TopicIdRequests(properties)
        self._ids: dict[Place, str] = {}
        """Ids of the topics that the positions belong to; empty while unknown. Kept when partitions are revoked."""
        self._complaints: set[str] = set()
        self._commit_due = 0.0
        self._queued = 0
        """Bytes in the queue: see `weight`."""
        self.start()

    # --- the source's threads

    def take(
        self, most: int, most_bytes: int, patience: float, wait: float
    ) -> tuple[list[Message], dict[Place, ConsumerPosition]]:
        """The next records, as many as come within `patience` seconds of the first, and the positions behind them.

        Empty after `wait` seconds without any. Raises what keeps the consumer from going on.
        """
        messages: list[Message] = []
        positions: dict[Place, ConsumerPosition] = {}
        size = 0
        due = time.monotonic() + wait
        with self.changed:
            while len(messages) < most and size < most_bytes:
                if self.error is not None:
                    raise self.error
                if not self._queue:
                    left = due - time.monotonic()
                    if left <= 0 or not self.changed.wait(left):
                        break
                    continue
                if not messages:
                    due = time.monotonic() + patience
                while self._queue and len(messages) < most and size < most_bytes:
                    message = self._queue.popleft()
                    size += len(message)
                    messages.append(message)
                    place = _place(message)
                    positions[place] = ConsumerPosition(self._turns[place], cast("int", message.offset()) + 1)
            self._queued -= sum(map(weight, messages))
            self._taken.update(positions)
        return messages, positions

    def stored(self, positions: Mapping[Place, ConsumerPosition]) -> None:
        """Note that all records before these offsets are in the channels; they are committed soon."""
        with self.changed:
            self._stored.update(positions)
            self.changed.notify_all()

    # --- the polling thread

    def begin(self) -> None:
        """Read the topics, where they are named."""
        if self._matches is None:
            self.subscribe(self._topics)

    def turn(self) -> None:
        """Look for new and for recreated topics, and commit, each when it is due."""
        if self._matches is not None and time.monotonic() >= self._look_due:
            self._look()
        for topic, id in self._topic_ids.poll({topic for topic, _ in self._turns}).items():
            self._compare(topic, id)
        if time.monotonic() >= self._commit_due:
            self._commit()

    def ended(self) -> None:
        """Commit what is stored."""
        if self.error is None:
            self._commit()

    def _look(self) -> None:
        """Subscribe to the topics there are now that match."""
        assert self._matches is not None
        try:
            topics = sorted(filter(self._matches, self.consumer.list_topics(timeout=PROBE_SECONDS).topics))
        except KafkaException:
            if not self._topics:
                raise
            topics = self._topics  # what is read already is read on while brokers are away
        self._look_due = time.monotonic() + NEW_TOPICS_SECONDS
        if topics and topics != self._topics:
            self._log.info("group %s reads %s", self.group, ", ".join(topics))
            self._topics = topics
            self.subscribe(topics)

    def waiting_bytes(self) -> int:
        """Return the bytes of the queued records."""
        return self._queued

    def received(self, messages: Sequence[Message]) -> None:
        """Keep records until they are taken."""
        failed: list[tuple[Message, KafkaError]] = []
        turn = self._turn
        with self.changed:
            for message in messages:
                if (error := message.error()) is not None:
                    failed.append((message, error))
                elif _place(message) in self._turns:
                    self._queue.append(message)
                    self._queued += weight(message)
            self.changed.notify_all()
        for message, error in failed:
            if self._turns.get(_place(message), turn) <= turn:  # later: of the topic that was deleted
                self._on_error(message, error)

    def _on_error(self, message: Message, error: KafkaError) -> None:
        if error.code() == KafkaError._AUTO_OFFSET_RESET:
            topic, partition = _place(message)
            if self._compare(topic, self._topic_ids.get(topic)):
                return
            offset, at = cast("int", message.offset()), TopicPartition(topic, partition, OFFSET_BEGINNING)
            low, _ = watermarks(self.consumer, at, REQUEST_SECONDS)
            lost = f"{low - offset:,} records are lost" if low > offset else "What was there is lost"
            self._log.error(
                "group %s stands at offset %d of %s-%d, which the brokers no longer have: retention removed it, or "
                "the topic was created again. %s; it goes on with the earliest record there is, %d",
                *(self.group, offset, topic, partition, lost, low),
            )
            self._metrics.add("KafkaOffsetLostCount")
            self._begin_at([at])
            return
        self.refuse_fenced(error)
        topic = message.topic() or ""
        if len(self._topics) == 1 or error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
            self.refuse_unauthorized(error, topic or self._topics[0])
        if (text := self.explained(error, topic)) not in self._complaints:
            self._complaints.add(text)
            self._log.warning("group %s: %s", self.group, text)

    def _compare(self, topic: str, id: str) -> bool:
        """Read a topic that has that id now from its first record if it was created again. Return True if it was.

        The client takes the new topic for the deleted one: it would skip the records before the old position.
        """
        owned = sorted(place for place in self._turns if place[0] == topic)
        stale = {place for place in owned if id and self._ids[place] not in ("", id)}
        if id:
            self._ids.update(dict.fromkeys(owned, id))
        if not stale:
            return False
        self._drop_queued(stale)
        with self.changed:
            self._turn += 1
            for place in stale:
                for positions in (self._taken, self._stored, self._committed):
                    positions.pop(place, None)
                self._turns[place] = self._turn
        self._log.error(
            "topic %s was deleted and created again: group %s begins with the first record of partitions %s; what it "
            "had not read of the deleted topic is lost",
            *(topic, self.group, ", ".join(str(partition) for _, partition in sorted(stale))),
        )
        self._metrics.add("KafkaOffsetLostCount", len(stale))
        self._begin_at([TopicPartition(*place, OFFSET_BEGINNING) for place in sorted(stale)])
        return True

    def _begin_at(self, starts: list[TopicPartition]) -> None:
        # The client refuses to seek in a partition that it has given up.
        self.consumer.incremental_unassign(starts)
        self.consumer.incremental_assign(starts)
        if self._paused:
            self.consumer.pause(starts)

    def _commit(self) -> None:
        self._commit_due = time.monotonic() + COMMIT_SECONDS
        with self.changed:
            ready = {
                place: position
                for place, position in self._stored.items()
                if self._turns.get(place) == position.turn and self._committed.get(place) != position
            }
        if not ready:
            return
        offsets = [
            TopicPartition(*place, position.offset, metadata=OffsetMetadata(topic_id=self._ids[place]).text())
            for place, position in ready.items()
        ]
        try:
            with self._metrics.timed("KafkaCommitTimer"):
                self.consumer.commit(offsets=offsets, asynchronous=False)
            self._committed.update(ready)
        except KafkaException as e:  # what is not committed is committed the next time, or read again
            self._log.warning("group %s: committing offsets failed: %s", self.group, self.explained(e))

    # --- partitions come and go

    def assigned(self, partitions: list[TopicPartition]) -> Sequence[TopicPartition]:
        """Begin where the group has committed."""
        starts = []
        with self.changed:
            self._turn += 1
        for tp in committed_offsets(self.consumer, partitions, REQUEST_SECONDS):
            place = tp.topic, tp.partition
            offset = tp.offset if tp.offset >= 0 else self._beginning(tp)
            starts.append(TopicPartition(*place, offset))
            # A member that has not noticed yet commits offsets of a deleted topic to the new one.
            of = OffsetMetadata.parse(metadata_of(tp)).topic_id if tp.offset >= 0 else ""
            self._ids[place] = of or self._ids.get(place, "")
            with self.changed:
                self._turns[place] = self._turn
                if tp.offset < 0 <= offset:
                    # A crash before the first commit would else begin at an even later end, and pass over events.
                    self._stored[place] = ConsumerPosition(self._turn, offset)
        self._topic_ids.ask_anew()
        return starts

    def _beginning(self, tp: TopicPartition) -> int:
        if self._begins == "none":
            raise FlafkaError(
                f"group {self.group} has no position in {tp.topic}-{tp.partition}, and auto.offset.reset = none: "
                f"agent group reset {self.group} --topic {tp.topic} --to earliest"
            )
        if self._begins == "latest":
            return watermarks(self.consumer, tp, REQUEST_SECONDS)[1]
        return OFFSET_BEGINNING

    def revoked(self, partitions: list[TopicPartition]) -> None:
        """Wait a while for what was taken of them to be stored, and commit it."""
        places = {(tp.topic, tp.partition) for tp in partitions}
        self._drop_queued(places)
        with self.changed:
            self.changed.wait_for(lambda: self.closing or not self._under_way(places), HANDOVER_SECONDS)
        self._commit()
        self._forget(places)

    def lost(self, partitions: list[TopicPartition]) -> None:
        """Drop what was fetched of them."""
        places = {(tp.topic, tp.partition) for tp in partitions}
        self._drop_queued(places)
        self._forget(places)

    def _under_way(self, places: set[Place]) -> bool:
        return any(self._taken.get(place) not in (None, self._stored.get(place)) for place in places)

    def _drop_queued(self, places: set[Place]) -> None:
        with self.changed:
            kept = [message for message in self._queue if _place(message) not in places]
            self._queue = deque(kept)
            self._queued = sum(map(weight, kept))

    def _forget(self, places: set[Place]) -> None:
        with self.changed:
            for place in places:
                for known in (self._turns, self._taken, self._stored, self._committed):
                    known.pop(place, None)


def _place(message: Message) -> Place:
    return cast("str", message.topic()), cast("int", message.partition())
