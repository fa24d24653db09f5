"""The consumer of the Kafka source, polled on a thread of its own: a slow channel never costs it its group."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

from plugins import FlafkaError, Metrics, Retry
from plugins.kafkaclient import CONNECT_SECONDS, CONSUMER, committed, raising, reason

QUEUE_BYTES = 32 << 20
"""Partitions are paused once so much waits."""
MESSAGE_BYTES = 512
"""What a waiting record takes beside its value."""
POLL_SECONDS = 0.02
COMMIT_SECONDS = 0.5
ANSWER_SECONDS = 10.0
LOOK_SECONDS = 30.0
"""How often new topics are looked for."""
HANDOVER_SECONDS = 30.0
"""How long a partition that another member wants waits for what was taken of it to be stored."""

Place = tuple[str, int]
"""Topic and partition."""
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Position:
    """The record to read next of a partition, by a consumer that had it for the `turn`th time."""

    turn: int
    offset: int


class TopicConsumer:
    """A member of a consumer group. Every call to the client is made on the polling thread: while it is in a
    rebalance callback, a call from another never returns.
    """

    def __init__(
        self,
        properties: Mapping[str, Any],
        topics: list[str],
        begins: str,
        metrics: Metrics,
        matches: Callable[[str], bool] | None = None,
    ) -> None:
        """Reads these topics; with `matches` those that it says of, the ones that are created later too."""
        self._group, self._begins, self._metrics = properties["group.id"], begins, metrics
        self._topics, self._matches, self._look_due = topics, matches, 0.0
        self._changed = threading.Condition()
        self._queue: deque[Message] = deque()
        self._queued = 0
        self._turns: dict[Place, int] = {}
        """The partitions that are ours."""
        self._turn = 0
        self._taken: dict[Place, Position] = {}
        self._stored: dict[Place, Position] = {}
        self._committed: dict[Place, Position] = {}
        self._complaints: set[str] = set()
        self._error: Exception | None = None
        self._closing = self._paused = False
        self._commit_due = 0.0
        self._consumer = Consumer({**CONSUMER, "enable.partition.eof": False, **properties})
        self._thread = threading.Thread(target=self._run, name=f"{self._group}-source", daemon=True)
        self._thread.start()

    # --- the source's threads

    def take(
        self, most: int, most_bytes: int, patience: float, wait: float
    ) -> tuple[list[Message], dict[Place, Position]]:
        """The next records, as many as come within `patience` seconds of the first, and the positions behind them.

        Empty after `wait` seconds without any. Raises what keeps the consumer from going on.
        """
        messages: list[Message] = []
        positions: dict[Place, Position] = {}
        size = 0
        due = time.monotonic() + wait
        with self._changed:
            while len(messages) < most and size < most_bytes:
                if self._error is not None:
                    raise self._error
                if not self._queue:
                    left = due - time.monotonic()
                    if left <= 0 or not self._changed.wait(left):
                        break
                    continue
                if not messages:
                    due = time.monotonic() + patience
                while self._queue and len(messages) < most and size < most_bytes:
                    message = self._queue.popleft()
                    size += len(message)
                    messages.append(message)
                    place = _place(message)
                    positions[place] = Position(self._turns[place], cast("int", message.offset()) + 1)
            self._queued -= sum(map(_weight, messages))
            self._taken.update(positions)
        return messages, positions

    def stored(self, positions: Mapping[Place, Position]) -> None:
        """Everything before these positions is in the channels: they are committed soon."""
        with self._changed:
            self._stored.update(positions)
            self._changed.notify_all()

    def close(self) -> None:
        """Commit what is stored, and stop. A static member keeps its partitions until its session times out."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()

    # --- the polling thread

    def _run(self) -> None:
        consumer = self._consumer
        try:
            if self._matches is None:
                self._subscribe()
            while not self._closing:
                if self._matches is not None and time.monotonic() >= self._look_due:
                    self._look()
                message = consumer.poll(POLL_SECONDS)
                if message is not None:
                    self._receive([message, *consumer.consume(1000, timeout=0)])
                self._throttle()
                if time.monotonic() >= self._commit_due:
                    self._commit()
            self._commit()
        except Exception as e:  # noqa: BLE001  # carried to the source's thread, which retries
            text = f"group {self._group}: {reason(e)}"
            with self._changed:
                self._error = e if isinstance(e, FlafkaError) else Retry(text)
                self._changed.notify_all()
        finally:
            self._closing = True
            with contextlib.suppress(FlafkaError):  # of a callback that was still due: it is of no use any more
                consumer.close()

    def _subscribe(self) -> None:
        self._consumer.subscribe(
            self._topics,
            on_assign=raising(self._on_assign),
            on_revoke=raising(self._on_revoke),
            on_lost=raising(self._on_lost),
        )

    def _look(self) -> None:
        """Subscribe to the topics there are now that match."""
        assert self._matches is not None
        try:
            topics = sorted(filter(self._matches, self._consumer.list_topics(timeout=CONNECT_SECONDS).topics))
        except KafkaException:
            if not self._topics:
                raise
            topics = self._topics  # what is read already is read on while brokers are away
        self._look_due = time.monotonic() + LOOK_SECONDS
        if topics and topics != self._topics:
            log.info("group %s reads %s", self._group, ", ".join(topics))
            self._topics = topics
            self._subscribe()

    def _receive(self, messages: Iterable[Message]) -> None:
        failed: list[tuple[Message, KafkaError]] = []
        with self._changed:
            for message in messages:
                if (error := message.error()) is not None:
                    failed.append((message, error))
                elif _place(message) in self._turns:
                    self._queue.append(message)
                    self._queued += _weight(message)
            self._changed.notify_all()
        for message, error in failed:
            self._on_error(message, error)

    def _on_error(self, message: Message, error: KafkaError) -> None:
        if error.code() == KafkaError._AUTO_OFFSET_RESET:
            topic, partition = _place(message)
            offset, at = cast("int", message.offset()), TopicPartition(topic, partition, OFFSET_BEGINNING)
            low, _ = self._consumer.get_watermark_offsets(at, timeout=ANSWER_SECONDS)
            lost = f"{low - offset:,} records are lost" if low > offset else "What was there is lost"
            log.error(
                "group %s stands at offset %d of %s-%d, which the brokers no longer have: retention removed it, or "
                "the topic was made anew. %s; it goes on with the earliest record there is, %d",
                *(self._group, offset, topic, partition, lost, low),
            )
            self._metrics.add("KafkaOffsetLostCount")
            # The client has given the partition up, and refuses to seek in it.
            self._consumer.incremental_unassign([at])
            self._consumer.incremental_assign([at])
        elif error.fatal() or error.code() in (KafkaError.FENCED_INSTANCE_ID, KafkaError._FATAL):
            raise Retry(f"group {self._group}: {error.str()}; does another agent run with this name on this host?", 5)
        elif (text := error.str()) not in self._complaints:
            self._complaints.add(text)
            log.warning("group %s: %s", self._group, text)

    def _throttle(self) -> None:
        full = self._queued > (QUEUE_BYTES // 2 if self._paused else QUEUE_BYTES)
        if full != self._paused:
            self._paused = full
            (self._consumer.pause if full else self._consumer.resume)(self._consumer.assignment())

    def _commit(self) -> None:
        self._commit_due = time.monotonic() + COMMIT_SECONDS
        with self._changed:
            ready = {
                place: position
                for place, position in self._stored.items()
                if self._turns.get(place) == position.turn and self._committed.get(place) != position
            }
        if not ready:
            return
        offsets = [TopicPartition(topic, partition, p.offset) for (topic, partition), p in ready.items()]
        try:
            with self._metrics.timed("KafkaCommitTimer"):
                self._consumer.commit(offsets=offsets, asynchronous=False)
            self._committed.update(ready)
        except KafkaException as e:  # what is not committed is committed the next time, or read again
            log.warning("group %s: committing offsets failed: %s", self._group, reason(e))

    # --- partitions come and go

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        starts = []
        with self._changed:
            self._turn += 1
        for tp in committed(consumer, partitions, ANSWER_SECONDS):
            offset = tp.offset if tp.offset >= 0 else self._beginning(consumer, tp)
            starts.append(TopicPartition(tp.topic, tp.partition, offset))
            with self._changed:
                self._turns[tp.topic, tp.partition] = self._turn
                if tp.offset < 0 <= offset:
                    # A crash before the first commit would else begin at an even later end, and pass over events.
                    self._stored[tp.topic, tp.partition] = Position(self._turn, offset)
        consumer.incremental_assign(starts)
        if self._paused:
            consumer.pause(partitions)

    def _beginning(self, consumer: Consumer, tp: TopicPartition) -> int:
        if self._begins == "none":
            raise FlafkaError(
                f"group {self._group} has no position in {tp.topic}-{tp.partition}, and auto.offset.reset = none: "
                f"agent group reset {self._group} --topic {tp.topic} --to earliest"
            )
        if self._begins == "latest":
            return consumer.get_watermark_offsets(tp, timeout=ANSWER_SECONDS)[1]
        return OFFSET_BEGINNING

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        places = {(tp.topic, tp.partition) for tp in partitions}
        self._drop_queued(places)
        with self._changed:
            self._changed.wait_for(lambda: self._closing or not self._under_way(places), HANDOVER_SECONDS)
        self._commit()
        self._forget(places)
        consumer.incremental_unassign(partitions)

    def _on_lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        places = {(tp.topic, tp.partition) for tp in partitions}
        self._drop_queued(places)
        self._forget(places)

    def _under_way(self, places: set[Place]) -> bool:
        return any(self._taken.get(place) not in (None, self._stored.get(place)) for place in places)

    def _drop_queued(self, places: set[Place]) -> None:
        with self._changed:
            kept = [message for message in self._queue if _place(message) not in places]
            self._queue = deque(kept)
            self._queued = sum(map(_weight, kept))

    def _forget(self, places: set[Place]) -> None:
        with self._changed:
            for place in places:
                for known in (self._turns, self._taken, self._stored, self._committed):
                    known.pop(place, None)


def _place(message: Message) -> Place:
    return cast("str", message.topic()), cast("int", message.partition())


def _weight(message: Message) -> int:
    return len(message) + MESSAGE_BYTES
