"""Member of a Kafka consumer group, polled on a thread of its own so that a slow sink keeps its partitions."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from flafka.plugins.errors import FlafkaError, Retry
from flafka.plugins.kafka.clients import Role, new_consumer
from flafka.plugins.kafka.errors import raising, sentence
from flafka.plugins.metrics import Metrics
from flafka.plugins.threads import start_thread

QUEUE_BYTES = 32 << 20
"""Partitions are paused once so much waits, until half of it was taken."""
MESSAGE_BYTES = 512
"""Memory of a waiting record beside its value, in bytes."""
AT_ONCE = 500
"""Records that are fetched with one call, at most."""
BUSY_SECONDS = 1.0
"""Time after the latest activity during which polls are as short as the subclass wants, in seconds."""
IDLE_POLL_SECONDS = 0.1
"""Shortest timeout of an idle poll, in seconds, which costs a third. A record ends a poll at once; what the subclass
does between two polls waits."""
STANDING_SECONDS = 20.0
"""Longest wait of `close` for the current poll, in seconds. librdkafka waits by the wall clock (its issue 2145).
Where the clock was set back and no record comes, a poll ends once the clock has caught up."""
_FENCED = frozenset({KafkaError.FENCED_INSTANCE_ID, KafkaError._FATAL})


class Fenced(Retry):
    """Error of a static member under whose name another process has joined; the member joins under another name."""


class Poller(ABC):
    """Thread that polls a consumer and calls the subclass. State that other threads read is guarded by `changed`.

    Every call to the client is made on that thread: while it is in a rebalance callback, a call from another never
    returns. What fails there ends the thread, and is in `error` for whoever takes from it.
    """

    def __init__(
        self,
        role: Role,
        properties: Mapping[str, Any],
        name: str,
        poll_seconds: float,
        metrics: Metrics,
        log: logging.Logger,
    ) -> None:
        """`metrics` get the time that polls take, as `KafkaEventGetTimer`."""
        self.group = str(properties["group.id"])
        self.changed = threading.Condition()
        """Notified when something can be taken, when that fails, and when this closes."""
        self.error: Exception | None = None
        self.closing = False
        self._client: Mapping[str, Any] = {**properties}
        self.consumer = new_consumer(role, properties)
        self._poll_seconds, self._metrics, self._log, self._paused = poll_seconds, metrics, log, False
        self._busy_until = 0.0
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin to poll."""
        start_thread(self._thread)

    def close(self) -> None:
        """Stop polling. A static member keeps its partitions until its session times out.

        A poll that hangs is abandoned after `STANDING_SECONDS`; its thread closes the client once the poll returns.
        """
        with self.changed:
            self.closing = True
            self.changed.notify_all()
        self._thread.join(STANDING_SECONDS)
        if self._thread.is_alive():
            self._log.warning(
                "group %s: Kafka's client stands still and is left alone; was this host's clock set back?", self.group
            )

    def fail(self, error: Exception) -> None:
        """Have whoever takes see it. The first one counts."""
        with self.changed:
            if not isinstance(error, FlafkaError):
                text = self.explained(error) if isinstance(error, KafkaException) else repr(error)
                error = Retry(f"group {self.group}: {text}")
            self.error = self.error or error
            self.changed.notify_all()

    # --- on the polling thread

    @abstractmethod
    def begin(self) -> None:
        """Before the first poll: subscribe."""

    @abstractmethod
    def turn(self) -> None:
        """Between two polls."""

    @abstractmethod
    def received(self, messages: Sequence[Message]) -> None:
        """Handle records, and the errors and partition ends that the client reports in their stead."""

    @abstractmethod
    def assigned(self, partitions: list[TopicPartition]) -> Sequence[TopicPartition]:
        """Accept assigned partitions, and return the offset at which each begins. The poll raises its errors."""

    @abstractmethod
    def revoked(self, partitions: list[TopicPartition]) -> None:
        """Finish work on revoked partitions, which go to another member once this returns."""

    @abstractmethod
    def lost(self, partitions: list[TopicPartition]) -> None:
        """Drop lost partitions."""

    @abstractmethod
    def ended(self) -> None:
        """Clean up after the last poll; `error` is set if polling failed."""

    @abstractmethod
    def waiting_bytes(self) -> int:
        """Size of the records that wait to be taken, in bytes: the sum of `weight`."""

    def subscribe(self, topics: list[str]) -> None:
        """Read these topics from now on."""
        self.consumer.subscribe(
            topics,
            on_assign=raising(self._on_assign),
            on_revoke=raising(self._on_revoke),
            on_lost=raising(lambda _, partitions: self.lost(partitions)),
        )

    def refuse_fenced(self, error: KafkaError) -> None:
        """Raise Fenced where another member has this one's name, or the client cannot go on."""
        if error.fatal() or error.code() in _FENCED:
            raise Fenced(
                f"group {self.group}: another agent of this name has joined it from this host: joining again under "
                "another name, to share its partitions"
            )

    def refuse_unauthorized(self, error: KafkaError, topic: str) -> None:
        """Raise Retry where this user may not read the topic, or not as a member of this group."""
        if error.code() in (KafkaError.GROUP_AUTHORIZATION_FAILED, KafkaError.TOPIC_AUTHORIZATION_FAILED):
            raise Retry(f"group {self.group}: {self.explained(error, topic)}")

    def explained(self, error: object, topic: str = "") -> str:
        """Return what went wrong, and which right is missing on the group or the topic."""
        return sentence(error, topic=topic, group=self.group, right="Read", client=self._client)

    def _run(self) -> None:
        try:
            self.begin()
            while not self.closing:
                self.turn()
                self._throttle()
                with self._metrics.timed("KafkaEventGetTimer"):
                    message = self.consumer.poll(self._patience())
                    more = self.consumer.consume(AT_ONCE, timeout=0) if message is not None else []
                if message is not None:
                    self.busy()
                    self.received([message, *more])
        except Exception as e:  # noqa: BLE001  # whatever it is, it is raised on the thread that takes
            self.fail(e)
        finally:
            with self.changed:
                self.closing = True
            self.ended()
            with contextlib.suppress(FlafkaError):  # of a callback that was still due: it is of no use any more
                self.consumer.close()

    def busy(self) -> None:
        """Poll for short times for a while: something is on its way, or who owns this will ask for something."""
        self._busy_until = time.monotonic() + BUSY_SECONDS

    def _patience(self) -> float:
        idle = time.monotonic() >= self._busy_until
        return max(self._poll_seconds, IDLE_POLL_SECONDS) if idle else self._poll_seconds

    def _throttle(self) -> None:
        full = self.waiting_bytes() > (QUEUE_BYTES // 2 if self._paused else QUEUE_BYTES)
        if full != self._paused:
            self._paused = full
            (self.consumer.pause if full else self.consumer.resume)(self.consumer.assignment())

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        consumer.incremental_assign(list(self.assigned(partitions)))
        if self._paused:
            consumer.pause(partitions)  # as those that were ours before, which stay so

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.revoked(partitions)
        consumer.incremental_unassign(partitions)


def weight(message: Message) -> int:
    """Memory of a waiting record, in bytes."""
    return len(message) + MESSAGE_BYTES


class Calls:
    """Made in order, on the thread that asks for them; guarded by `changed`, which is notified of each."""

    def __init__(self, changed: threading.Condition) -> None:
        self._changed = changed
        self._due: deque[tuple[Callable[[], Any], Future[Any]]] = deque()

    def __bool__(self) -> bool:
        """Return True if a call is due."""
        return bool(self._due)

    def add(self, call: Callable[[], Any]) -> Future[Any]:
        """Have it made. What it answers, or raises, is in the future."""
        answer: Future[Any] = Future()
        with self._changed:
            self._due.append((call, answer))
            self._changed.notify_all()
        return answer

    def make(self, *, raises: bool = False) -> None:
        """Make those that are due. `raises` says whether what one raises is raised here, too, without the ones after
        it."""
        while True:
            with self._changed:
                if not self._due:
                    return
                call, answer = self._due.popleft()
            try:
                answer.set_result(call())
            except Exception as e:
                answer.set_exception(e)
                if raises:
                    raise
