"""Model of `confluent_kafka.Producer` over the simulated brokers.

Delivery callbacks run within `poll` and `flush`, on the calling thread. Records go out a moment after `produce`, by a
timer that pauses and dies with the process. The client repeats lost requests, so a fault of a produce request delays
its records or their acknowledgement.

Records of a partition that go out together are one request batch. Brokers refuse all of it for one record that is too
large, or that has no key in a compacted topic.

Not modelled: sizes of batches, sequence numbers, the order of requests to several brokers, and partitions that a
running producer does not know yet.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AclOperation

from tests.simulator.faults import Kind
from tests.simulator.kafka.admin import metadata_of
from tests.simulator.kafka.brokers import Brokers, Coordinated, brokers, in_background
from tests.simulator.kafka.messages import Transaction, exception
from tests.simulator.kafka.sent import Report, Sent, as_bytes, as_headers, murmur2, size_of
from tests.simulator.processes import Signal

ANSWER_SECONDS = 0.003
LOOK_AGAIN_SECONDS = 0.4
"""A topic that is not there is looked for again after so long."""
PROPAGATION_SECONDS = 30.0
"""A topic that never was there is given up after so long."""
OUT_OF_ORDER = "ProduceRequest failed: Broker: Broker received an out of order sequence number"
NOT_ADDED = "Failed to add partition(s) to transaction on broker 1: Broker: Topic authorization failed"
FENCED = "Local: This instance has been fenced by a newer instance"


class RecordProducer:
    """Producing of records, within a transaction or without."""

    def __init__(self, config: Mapping[str, Any] | None = None, **more: Any) -> None:
        given = {**(config or {}), **more}
        self.cluster: Brokers = brokers()
        self.world = self.cluster.world
        self.process = self.world.process
        self.linger = float(given.get("linger.ms", given.get("queue.buffering.max.ms", 5))) / 1000
        timeout = float(given.get("message.timeout.ms", given.get("delivery.timeout.ms", 300_000))) / 1000
        self.timeout = timeout or math.inf
        self._alone = int(given.get("batch.num.messages", 10_000)) == 1
        self.largest = int(given.get("message.max.bytes", 1_000_000))
        self.most = int(given.get("queue.buffering.max.messages", 100_000)) or math.inf
        self._signal = Signal(self.world)
        self._queue: list[Sent] = []
        self._in_flight: dict[Sent, int] = {}
        """Stored and unacknowledged records with their offsets."""
        self._reports: deque[tuple[Sent, int | None, KafkaError | None]] = deque()
        self._held_until = self._quiet_until = 0.0
        self._due = False
        self._idle = 0.0
        self._known: set[str] = set()
        self._breaks = False
        self._fatal: KafkaError | None = None
        self._fatal_reported = True
        self._transactional: Coordinated | None = None
        self._epoch = -1
        self._state = "none"
        """ready, in (a transaction), abortable, committing, aborting; none before `init_transactions`."""
        self._failure: KafkaError | None = None
        self._transaction: Transaction | None = None
        if id := given.get("transactional.id"):
            self._transactional = self.cluster.coordinated(str(id))
            self._transaction_timeout = float(given.get("transaction.timeout.ms", 60_000)) / 1000
            self.timeout = min(self.timeout, self._transaction_timeout)

    # --- produce

    def produce(
        self,
        topic: str,
        value: bytes | str | None = None,
        key: bytes | str | None = None,
        partition: int = -1,
        callback: Report | None = None,
        on_delivery: Report | None = None,
        timestamp: int = 0,
        headers: Any = None,
    ) -> None:
        self._begin_produce(topic, 1)
        self._enqueue(topic, value, key, partition, on_delivery or callback, timestamp, headers)

    def produce_batch(
        self,
        topic: str,
        messages: list[dict[str, Any]],
        partition: int = -1,
        callback: Report | None = None,
        on_delivery: Report | None = None,
    ) -> int:
        if not messages:
            return 0
        self._begin_produce(topic, len(messages))
        taken = 0
        for message in messages:
            given = message.get("partition", partition)
            report = message.get("on_delivery") or message.get("callback") or on_delivery or callback
            try:
                self._enqueue(
                    topic, message.get("value"), message.get("key"), given, report, message.get("timestamp", 0), None
                )
                taken += 1
            except KafkaException as e:
                message["_error"] = e.args[0]
            except BufferError:
                message["_error"] = KafkaError(KafkaError._QUEUE_FULL)
        return taken

    def _begin_produce(self, topic: str, records: int) -> None:
        if self._fatal is not None:
            raise exception(KafkaError._FATAL, "Unable to produce message: Local: Fatal error")
        if self._transactional is not None and self._state != "in":
            raise exception(KafkaError._STATE, "Unable to produce message: Local: Erroneous state")
        kinds = (
            Kind.LOST,
            Kind.UNANSWERED,
            Kind.LATE,
            Kind.STUCK,
            *((Kind.REFUSED,) if self._transactional is None else ()),
        )
        fault = self.world.call("kafka.produce", *kinds, on=topic)
        if fault is not None and fault.kind in (Kind.LOST, Kind.LATE):
            self._held_until = max(self._held_until, self.world.now + fault.seconds)
        elif fault is not None and fault.kind is Kind.UNANSWERED:
            self._quiet_until = max(self._quiet_until, self.world.now + fault.seconds)
        elif fault is not None and fault.kind is Kind.STUCK:
            self._held_until = math.inf
        elif fault is not None and fault.kind is Kind.REFUSED:  # what an idempotent producer cannot mend
            self._breaks = True
        self.world.answered(fault)

    def _enqueue(
        self, topic: str, value: Any, key: Any, partition: int, report: Report | None, timestamp: int, headers: Any
    ) -> None:
        value, key, pairs = as_bytes(value), as_bytes(key), as_headers(headers)
        if size_of(value, key, pairs) > self.largest:
            raise exception(
                KafkaError.MSG_SIZE_TOO_LARGE, "Unable to produce message: Broker: Message size too large"
            )
        if len(self) >= self.most:
            raise BufferError("Local: Queue full")
        if topic in self._known and partition >= (self.cluster.count(topic) or partition + 1):
            raise exception(KafkaError._UNKNOWN_PARTITION, "Unable to produce message: Local: Unknown partition")
        now = self.world.now
        self._queue.append(
            Sent(
                topic,
                partition,
                value,
                key,
                pairs,
                timestamp or int(self.world.wall() * 1000),
                report,
                now,
                now + self.timeout,
            )
        )
        self._wake(self.linger + ANSWER_SECONDS)

    def _wake(self, delay: float) -> None:
        if not self._due:
            self._due = True
            in_background(self.process, delay, self._send)

    def _send(self) -> None:
        """Send the queued records, as the client's own thread does."""
        self._due = False
        now = self.world.now
        queue, self._queue = self._queue, []
        if not queue:
            return
        stored = False
        self._refused = {} if self._alone else self._refusals(queue)
        if self._breaks:
            self._queue = [*queue]
            self._die(OUT_OF_ORDER, KafkaError._FATAL)
            self._signal.fire()
            return
        if self._transactional is not None and any(self._is_forbidden(sent.topic) for sent in queue):
            # They answer for all partitions that a transaction is to have, and the client drops all records.
            self._reports.extend((sent, None, KafkaError(KafkaError._PURGE_QUEUE)) for sent in queue)
            denied = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED, NOT_ADDED, txn_requires_abort=True)
            self._state, self._failure = "abortable", denied
            self._signal.fire()
            return
        for index, sent in enumerate(queue):
            if self._fatal is not None:
                self._reports.append((sent, None, KafkaError(KafkaError._FATAL)))
                continue
            if now >= sent.deadline:
                self._failed(sent, KafkaError(KafkaError._MSG_TIMED_OUT))
                continue
            if now < self._held_until:
                self._queue += queue[index:]
                break
            if self._fenced():
                self._die("ProduceRequest failed: Broker: Producer attempted an operation with an old epoch")
                self._reports.append((sent, None, KafkaError(KafkaError._FENCED, FENCED)))
                continue
            stored |= self._store(sent)
        if self._queue:
            wait = self._held_until - now if now < self._held_until else LOOK_AGAIN_SECONDS
            soonest = min(sent.deadline for sent in self._queue) - now
            if (delay := min(wait, soonest)) < math.inf:
                self._wake(max(0.001, delay))
        if stored:
            in_background(self.process, max(ANSWER_SECONDS, self._quiet_until - now), self._answered)
        if self._reports or self._fatal is not None:
            self._signal.fire()

    def _refusals(self, queue: list[Sent]) -> dict[tuple[str, int], int]:
        """Choose partitions, and return those whose request batch is refused, with the error."""
        codes: dict[tuple[str, int], int] = {}
        for sent in queue:
            topic = self.cluster.topics.get(sent.topic)
            if topic is None:
                continue
            self._choose(sent, len(topic.partitions))
            if (code := self._refusal(sent, topic.configs)) is not None:
                codes[sent.topic, sent.partition] = code
        return codes

    def _is_forbidden(self, name: str) -> bool:
        topic = self.cluster.topics.get(name)
        return topic is not None and (
            topic.internal or (topic.rights is not None and AclOperation.WRITE not in topic.rights)
        )

    @staticmethod
    def _refusal(sent: Sent, configs: Mapping[str, str]) -> int | None:
        if size_of(sent.value, sent.key, sent.headers) > int(configs["max.message.bytes"]):
            return int(KafkaError.MSG_SIZE_TOO_LARGE)
        if sent.key is None and "compact" in configs["cleanup.policy"]:
            return int(KafkaError.INVALID_RECORD)
        return None

    def _choose(self, sent: Sent, count: int) -> None:
        if sent.partition < 0:
            chance = int(self.world.random.random() * count)
            sent.partition = (murmur2(sent.key) & 0x7FFFFFFF) % count if sent.key is not None else chance

    def _store(self, sent: Sent) -> bool:
        topic = self.cluster.topics.get(sent.topic)
        if topic is None:
            if sent.topic not in self._known and self.world.now - sent.since > PROPAGATION_SECONDS:
                self._failed(sent, KafkaError(KafkaError._UNKNOWN_TOPIC))
            else:
                self._queue.append(sent)
            return False
        self._known.add(sent.topic)
        count = len(topic.partitions)
        self._choose(sent, count)
        code = self._refused.get((sent.topic, sent.partition)) or self._refusal(sent, topic.configs)
        if sent.partition >= count:
            self._failed(sent, KafkaError(KafkaError._UNKNOWN_PARTITION))
        elif code is not None:
            self._failed(sent, KafkaError(code))
        else:
            transaction = self.cluster.begin(self._transactional) if self._transactional is not None else None
            self._transaction = transaction
            self._in_flight[sent] = topic.partitions[sent.partition].append(
                sent.timestamp, sent.key, sent.value, sent.headers, transaction
            )
            return True
        return False

    def _answered(self) -> None:
        """The brokers' answers to what is in flight."""
        if self.world.now < self._quiet_until:
            in_background(self.process, self._quiet_until - self.world.now, self._answered)
            return
        for sent, offset in self._in_flight.items():
            self._reports.append((sent, offset, None))
        self._in_flight.clear()
        self._signal.fire()

    def _failed(self, sent: Sent, error: KafkaError) -> None:
        self._reports.append((sent, None, error))
        if self._transactional is not None and self._state == "in":
            self._state, self._failure = "abortable", abortable(error)

    # --- callbacks

    def poll(self, timeout: float | None = None) -> int:
        if served := self._serve():
            self._idle = 0.0
            return served
        here = self.world
        patience = math.inf if timeout is None or timeout < 0 else timeout
        deadline = here.now + max(patience, self._idle if patience else 0.0)
        while (remaining := deadline - here.now) > 0:
            self._signal.wait(None if remaining == math.inf else remaining)
            if served := self._serve():
                self._idle = 0.0
                return served
        self._idle = min(self.cluster.most_idle, 2 * max(self._idle, patience))
        return 0

    def flush(self, timeout: float | None = None) -> int:
        if len(self):
            topics = " ".join(sorted({sent.topic for sent in self._queue}))
            self.world.answered(self.world.call("kafka.flush", on=topics))
        deadline = math.inf if timeout is None or timeout < 0 else self.world.now + timeout
        while True:
            self._serve()
            if not len(self) or self.world.now >= deadline:
                return len(self)
            if self._queue and self.world.now >= self._held_until:
                self._due = False
                self._send_soon()
            self._signal.wait(None if deadline == math.inf else deadline - self.world.now)

    def _send_soon(self) -> None:
        """A flush does not wait for more."""
        self._wake(
            ANSWER_SECONDS if self.cluster.topics.keys() >= {s.topic for s in self._queue} else LOOK_AGAIN_SECONDS
        )

    def _serve(self) -> int:
        served = 0
        fatal = not self._fatal_reported
        self._fatal_reported = True
        while self._reports:
            sent, offset, error = self._reports.popleft()
            served += 1
            if sent.report is not None:
                sent.report(error, sent.message(offset, error))
        if fatal:
            assert self._fatal is not None
            cause = KafkaException(self._fatal)
            if served:  # as the client does, which raises amid callbacks
                raise SystemError("returned a result with an exception set") from cause
            raise cause
        return served

    def purge(self, in_queue: bool = True, in_flight: bool = True, blocking: bool = True) -> None:
        if in_queue:
            for sent in self._queue:
                self._reports.append((sent, None, KafkaError(KafkaError._PURGE_QUEUE)))
            self._queue.clear()
        if in_flight:
            for sent in self._in_flight:
                self._reports.append((sent, None, KafkaError(KafkaError._PURGE_INFLIGHT)))
            self._in_flight.clear()
        self._signal.fire()

    def __len__(self) -> int:
        return len(self._queue) + len(self._in_flight) + len(self._reports)

    def __bool__(self) -> bool:
        return True

    def _fenced(self) -> bool:
        return self._transactional is not None and self._transactional.epoch != self._epoch

    def _die(self, what: str, code: int = KafkaError._FENCED) -> None:
        if self._fatal is None:
            text = f"{what}: {FENCED}" if code == KafkaError._FENCED else what
            self._fatal = KafkaError(code, text, fatal=True)
            self._fatal_reported = False
            for sent in self._queue:
                self._reports.append((sent, None, KafkaError(KafkaError._FATAL)))
            self._queue.clear()
            self._signal.fire()

    def _raise_fatal(self) -> None:
        if self._fatal is not None:
            raise KafkaException(self._fatal)

    # --- the rest

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> Any:
        metadata = metadata_of(self.cluster, topic, timeout)
        self._known.update(name for name, entry in metadata.topics.items() if entry.error is None)
        return metadata

    def close(self, timeout: float | None = None) -> bool:
        return self.flush(timeout) == 0


def abortable(error: KafkaError) -> KafkaError:
    return KafkaError(error.code(), error.str(), txn_requires_abort=True)
