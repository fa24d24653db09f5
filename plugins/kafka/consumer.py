"""Thread that polls a member of a consumer group, so that a slow sink keeps its partitions."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from flafka.plugins.errors import FlafkaError, Retry, Unreachable
from flafka.plugins.kafka.clients import new_consumer
from flafka.plugins.kafka.errors import (
    EXPLANATION_SECONDS,
    ReportedErrors,
    connection_error,
    explain_error,
    wrap_callback,
)
from flafka.plugins.kafka.renewal import ClientRenewal
from flafka.plugins.kafka.rights import Role
from flafka.plugins.metrics import Metrics
from flafka.plugins.threads import start_thread

QUEUE_BYTES = 32 << 20
"""Size of waiting records at which all partitions are paused, until half of it was taken."""
MESSAGE_BYTES = 512
"""Memory of a waiting record in addition to its value."""
CONSUME_RECORDS = 500
"""Maximum number of records that one call returns."""
BUSY_SECONDS = 1.0
"""Time after the latest activity during which polls have the timeout of the subclass."""
QUIET_POLL_SECONDS = 0.1
"""Shortest timeout of a poll of a consumer without activity, which saves CPU time. A record ends a poll at once, but
`before_poll` waits for the timeout."""
IDLE_CONSUMER_SECONDS = 0.5
"""Shortest timeout of a poll while no call is expected either."""
CLIENT_CLOSE_SECONDS = 20.0
"""Longest wait of `close` for the current poll. librdkafka uses the wall clock (issue 2145): if the clock was set
back and no record comes, a poll ends once the clock has caught up."""
DIAGNOSIS_SECONDS = 5.0
"""Interval between two attempts to find out why a client without connections is refused."""
_FENCED = frozenset({KafkaError.FENCED_INSTANCE_ID, KafkaError._FATAL})


class Fenced(Retry):
    """Error of a static member after another process has joined with its instance id. It joins with another id."""


class ConsumerThread(ABC):
    """Thread that polls a consumer and calls the methods of a subclass. `changed` guards the state for other threads.

    Only this thread calls the client: a call from another thread during a rebalance callback never returns. A failure
    ends the thread and is stored in `error`, which the taking thread raises.
    """

    def __init__(
        self,
        role: Role,
        properties: Mapping[str, Any],
        name: str,
        poll_seconds: float,
        metrics: Metrics,
        log: logging.Logger,
        renewal: ClientRenewal | None = None,
    ) -> None:
        """Create the client and the thread, which `start` starts.

        `poll_seconds` is the timeout of a poll of a busy consumer. The duration of polls is counted in `metrics` as
        `KafkaEventGetTimer`. `renewal` replaces the client once its certificates have changed.
        """
        self.group = str(properties["group.id"])
        self.changed = threading.Condition()
        """Notified when records can be taken, on a failure, and on close."""
        self.error: Exception | None = None
        self.closing = False
        self._client: Mapping[str, Any] = {**properties}
        self._role, self._renewal = role, renewal
        self._reported = ReportedErrors()
        self._is_disconnected, self._next_diagnosis, self._refusal = False, 0.0, ""
        self.consumer = self._new_consumer(properties)
        self._poll_seconds, self._metrics, self._log, self._paused = poll_seconds, metrics, log, False
        self._busy_until = 0.0
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start polling. Raises RuntimeError if the thread cannot be started."""
        start_thread(self._thread)

    def close(self) -> None:
        """Stop polling, from another thread, and wait up to `CLIENT_CLOSE_SECONDS`.

        A static member keeps its partitions until its session times out. A poll that hangs is abandoned, with a
        warning; its thread closes the client once the poll returns.
        """
        with self.changed:
            self.closing = True
            self.changed.notify_all()
        self._thread.join(CLIENT_CLOSE_SECONDS)
        if self._thread.is_alive():
            self._log.warning(
                "group %s: Kafka's client does not return from a poll and is abandoned: check whether this host's "
                "clock was set back",
                self.group,
            )

    def fail(self, error: Exception) -> None:
        """Store an error for the taking thread, unless there is one already. Any thread may call.

        An error that is no FlafkaError is stored as a Retry.
        """
        with self.changed:
            if not isinstance(error, FlafkaError):
                text = self.explain(error) if isinstance(error, KafkaException) else repr(error)
                error = Retry(f"group {self.group}: {text}")
            self.error = self.error or error
            self.changed.notify_all()

    @abstractmethod
    def on_start(self) -> None:
        """Subscribe, before the first poll. On the polling thread, as all following methods."""

    @abstractmethod
    def before_poll(self) -> None:
        """Do the work between two polls."""

    @abstractmethod
    def on_messages(self, messages: Sequence[Message]) -> None:
        """Handle records, errors, and the ends of partitions, in the order of their arrival.

        Exceptions end the polling.
        """

    @abstractmethod
    def assigned(self, partitions: list[TopicPartition]) -> Sequence[TopicPartition]:
        """Accept assigned partitions, and return the offset at which each begins. Exceptions end the polling."""

    @abstractmethod
    def revoked(self, partitions: list[TopicPartition]) -> None:
        """Finish work on revoked partitions, which another member gets once this returns."""

    @abstractmethod
    def lost(self, partitions: list[TopicPartition]) -> None:
        """Drop lost partitions."""

    @abstractmethod
    def on_stop(self) -> None:
        """Clean up after the last poll; `error` is set if polling has failed."""

    @abstractmethod
    def waiting_bytes(self) -> int:
        """Return the size of the records that wait to be taken, in bytes: the sum of `memory_bytes`."""

    def expects_calls(self) -> bool:
        """Return True if another thread may soon have this thread make a call, such as a commit."""
        return True

    def subscribe(self, topics: list[str]) -> None:
        """Subscribe to these topics, with the rebalance callbacks `assigned`, `revoked` and `lost`."""
        self.consumer.subscribe(
            topics,
            on_assign=wrap_callback(self._on_assign, self.explain),
            on_revoke=wrap_callback(self._on_revoke, self.explain),
            on_lost=wrap_callback(lambda _, partitions: self.lost(partitions), self.explain),
        )

    def raise_if_fenced(self, error: KafkaError) -> None:
        """Raise Fenced if another member has the same instance id, or if the error is fatal; else do nothing."""
        if error.fatal() or error.code() in _FENCED:
            raise Fenced(
                f"group {self.group}: another agent of this name has joined it from this host: joining again under "
                "another name, to share its partitions"
            )

    def raise_if_unauthorized(self, error: KafkaError, topic: str) -> None:
        """Raise Retry if the error is that this user may not read the topic, or not as a member of this group."""
        if error.code() in (KafkaError.GROUP_AUTHORIZATION_FAILED, KafkaError.TOPIC_AUTHORIZATION_FAILED):
            raise Retry(f"group {self.group}: {self.explain(error, topic)}")

    def explain(self, error: object, topic: str | Collection[str] = "") -> str:
        """Return the text of an error, with the missing right on the group or the topic, or on one of the topics."""
        return explain_error(error, topic=topic, group=self.group, right="Read", client=self._client)

    def _run(self) -> None:
        """Poll until `closing` is set or a call fails, then close the client."""
        try:
            self.on_start()
            while not self.closing:
                self._renew_client()
                self._diagnose_connections()
                self.before_poll()
                self._throttle()
                with self._metrics.timed("KafkaEventGetTimer"):
                    message = self.consumer.poll(self._poll_timeout())
                    more = self.consumer.consume(CONSUME_RECORDS, timeout=0) if message is not None else []
                if message is not None:
                    self.expect_activity()
                    self.on_messages([message, *more])
        except Exception as e:  # noqa: BLE001  # raised on the taking thread
            self.fail(e)
        finally:
            with self.changed:
                self.closing = True
            self.on_stop()
            with contextlib.suppress(FlafkaError):  # of a last rebalance callback, which has no effect any more
                self.consumer.close()

    def _renew_client(self) -> None:
        """Replace the client if its certificates have changed, and join the group again under the same instance id.

        Before that, all partitions are revoked, so that taken records are committed rather than delivered again.
        """
        if self._renewal is None:
            return
        made = self._renewal.renew(lambda properties: (properties, self._new_consumer(properties)))
        if made is None:
            return
        if partitions := self.consumer.assignment():
            self.revoked(partitions)
        with contextlib.suppress(FlafkaError):  # of a last rebalance callback
            self.consumer.close()
        self._client, self.consumer = made
        self._paused = False
        self.on_start()

    def _new_consumer(self, properties: Mapping[str, Any]) -> Consumer:
        return new_consumer(self._role, {**properties, "error_cb": self._on_client_error})

    def _on_client_error(self, error: KafkaError) -> None:
        """Record refusals of the login, and the loss of all connections."""
        self._reported(error)
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            self._is_disconnected = True

    def _diagnose_connections(self) -> None:
        """Report brokers that refuse this client, such as its certificate, until they accept it.

        The client itself only retries. Brokers that do not answer are not reported here.
        """
        if not self._is_disconnected or time.monotonic() < self._next_diagnosis:
            return
        self._next_diagnosis = time.monotonic() + DIAGNOSIS_SECONDS
        refusal = ""
        try:
            self.consumer.list_topics(timeout=EXPLANATION_SECONDS)
            self._is_disconnected = False
        except KafkaException as e:
            error = connection_error(self._client, e, self._reported, f"group {self.group}: ")
            refusal = "" if isinstance(error, Unreachable) else str(error)
        if refusal and refusal != self._refusal:
            self._log.warning("%s", refusal)
        if self._metrics.last_error == self._refusal or refusal:
            self._metrics.set_error(refusal)
        self._refusal = refusal

    def expect_activity(self) -> None:
        """Use short polls for `BUSY_SECONDS`, as records or calls are expected."""
        self._busy_until = time.monotonic() + BUSY_SECONDS

    def _poll_timeout(self) -> float:
        """Return the timeout of the next poll in seconds, which is longer for a quiet consumer."""
        if time.monotonic() < self._busy_until:
            return self._poll_seconds
        return max(self._poll_seconds, QUIET_POLL_SECONDS if self.expects_calls() else IDLE_CONSUMER_SECONDS)

    def _throttle(self) -> None:
        """Pause all partitions above `QUEUE_BYTES` of waiting records, and resume them below half of it."""
        full = self.waiting_bytes() > (QUEUE_BYTES // 2 if self._paused else QUEUE_BYTES)
        if full != self._paused:
            self._paused = full
            (self.consumer.pause if full else self.consumer.resume)(self.consumer.assignment())

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        consumer.incremental_assign(list(self.assigned(partitions)))
        if self._paused:
            consumer.pause(partitions)  # like the other partitions of this member

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.revoked(partitions)
        consumer.incremental_unassign(partitions)


def memory_bytes(message: Message) -> int:
    """Return the memory of a waiting record, in bytes: its value and `MESSAGE_BYTES`."""
    return len(message) + MESSAGE_BYTES


class CallQueue:
    """Queue of calls that other threads have one thread make. Thread-safe; `changed` is notified of each call."""

    def __init__(self, changed: threading.Condition) -> None:
        self._changed = changed
        self._queue: deque[tuple[Callable[[], Any], Future[Any]]] = deque()

    def __bool__(self) -> bool:
        """Return True if a call waits."""
        return bool(self._queue)

    def add(self, call: Callable[[], Any]) -> Future[Any]:
        """Append a call, and return the future of its result or exception. Any thread may call."""
        future: Future[Any] = Future()
        with self._changed:
            self._queue.append((call, future))
            self._changed.notify_all()
        return future

    def run(self, *, raises: bool = False) -> None:
        """Make all waiting calls, in order.

        With `raises`, raise the first exception, and leave later calls waiting. Each future has its result or
        exception.
        """
        while True:
            with self._changed:
                if not self._queue:
                    return
                call, future = self._queue.popleft()
            try:
                future.set_result(call())
            except Exception as e:
                future.set_exception(e)
                if raises:
                    raise
