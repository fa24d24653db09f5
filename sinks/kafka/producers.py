"""Producers of the Kafka sink, with transactions or without: one for each partition of the channel."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from flafka.plugins import Assignment, Batch, Conflict, NotCommitted, OutcomeUnknown, Receipt, Retry
from flafka.plugins.kafka.clients import new_producer
from flafka.plugins.kafka.errors import PURGED, RECORD_REFUSALS, explain_error, is_fatal, transaction_error
from flafka.plugins.kafka.offsets import OffsetMetadata
from flafka.plugins.threads import call_within
from flafka.sinks.kafka.config import SINK

TRANSACTION_CALL_SECONDS = 30.0
"""Timeout of one call about a transaction: its begin, commit or abort."""
OFFSETS_CALL_SECONDS = 15.0
"""Longest time of a call that adds offsets to a transaction. librdkafka's own timeout has no effect while it waits
for a group coordinator that it knew before an outage (its issues 5456 and 5511)."""
FLUSH_SECONDS = 60.0
"""Time in which brokers have to acknowledge all records."""
REPORT_SECONDS = 1.0
"""Time until the delivery report of a refused record, once the client has the refusal."""
REFUSALS = RECORD_REFUSALS | {KafkaError.INVALID_TIMESTAMP}
"""Errors of one record. Its timestamp may come from a header of the event."""
_FENCED = frozenset({KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH})

_NOT_AUTHORIZED = frozenset(
    {
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)

Row = tuple[Batch, int]
"""Event, as a row of a batch."""


class RecordProducer:
    """Idempotent producer of records.

    With `single_record_batches`, each record has its own request batch, so that an error is that of the record.
    """

    keeps_acknowledged = True
    """True if acknowledged records stay in the topic in all cases."""

    def __init__(self, properties: Mapping[str, Any], *, single_record_batches: bool = False) -> None:
        self.single_record_batches = single_record_batches
        self.name, self._topic = str(properties.get("transactional.id", "")), ""
        self._client = dict(properties)
        self._topics = set[str]()
        """Topics of the records since the last commit or abort."""
        self.acknowledged: list[Row] = []
        """Events that brokers have acknowledged since the last commit or `flush`."""
        self.refused: list[tuple[Row, KafkaError]] = []
        """Events whose request batch a broker has refused, with the error."""
        self.events = 0
        """Number of events since the last commit."""
        self.in_transaction = False
        """True in a transaction, even if its records have no events."""
        self.is_flushed = True
        """True if there are no records since the last `flush` or `abort`."""
        self._error: KafkaError | None = None
        self._timed_out = False
        """True after a missing acknowledgement, as after an outage a stalled client may never send again."""
        self._producer = new_producer(
            SINK, {**properties, **({"batch.num.messages": 1} if single_record_batches else {})}
        )

    def produce(self, topic: str, *, event: Row | None = None, **record: Any) -> None:
        """Enqueue one record. `event` is acknowledged with it; None for a record without an event.

        Blocks while the queue is full. Raises Retry after `FLUSH_SECONDS`, Conflict if the producer was fenced, and
        KafkaException if no broker can ever accept the record.
        """
        report = partial(self._on_delivery, event)
        deadline = time.monotonic() + FLUSH_SECONDS
        while True:
            try:
                self._producer.produce(topic, on_delivery=report, **record)
                self.is_flushed = False
                self._topics.add(topic)
                self.events += event is not None
                return
            except BufferError:
                self._run_callbacks(self._producer.poll, 0.05)
                if time.monotonic() > deadline:
                    raise self._timeout_error() from None

    def flush(self) -> None:
        """Return when all in-sync replicas have all records, and forget the acknowledged events.

        Raises Retry after `FLUSH_SECONDS` or if a record was not stored, and Conflict if the producer was fenced.
        """
        if self._run_callbacks(self._producer.flush, FLUSH_SECONDS):
            raise self._timeout_error()
        self._check()
        self.is_flushed = True
        self.acknowledged.clear()

    def _check(self) -> None:
        """Raise Retry if a record was not stored, and Conflict if the producer was fenced."""
        if (error := self._error) is not None:
            failure = Conflict if is_fatal(error) or error.code() in _FENCED else Retry
            why = self.explain(error, self._topic)
            raise failure(f"Kafka did not store a record: {why}")

    def explain(self, error: object, topic: str = "") -> str:
        """Return the text of an error, with the missing right on the topic, or else on one of the latest topics."""
        topics = topic or sorted(self._topics)
        return explain_error(error, topic=topics, right="Write", transactional_id=self.name, client=self._client)

    @property
    def is_idle(self) -> bool:
        """True if another producer may take over before the next record."""
        return self.is_flushed and not self.in_transaction

    @property
    def is_outdated(self) -> bool:
        """True if another producer should take over as soon as this one is idle."""
        return False

    def successor(self, properties: Mapping[str, Any]) -> RecordProducer:
        """Return a producer with these properties that takes over from this idle one. Raises Retry."""
        return RecordProducer(properties, single_record_batches=self.single_record_batches)

    def _timeout_error(self) -> Retry:
        """Return the error to raise for a missing acknowledgement, after which this producer cannot be used again."""
        self._timed_out = True
        return Retry(f"no acknowledgement from Kafka within {FLUSH_SECONDS:.0f} s")

    def commit(self, receipt: Receipt, group_metadata: Any) -> None:
        """Set the number of uncommitted events to 0. Flushed records are final; the arguments have no effect."""
        self.events = 0
        self._topics.clear()

    def abort(self) -> bool:
        """Drop unsent records and reset the state. Return False if this producer cannot be used any more.

        Without transactions, records that were sent stay in their topics.
        """
        self._producer.purge()
        try:
            self._run_callbacks(self._producer.flush, 1)
        except Conflict:
            return False
        return self._reset()

    def close(self) -> None:
        """Drop unsent records, wait up to 1 s for their delivery reports, and release the client."""
        self._producer.purge()
        with contextlib.suppress(Conflict):
            # A delivery report without its callback keeps the client, and its threads, alive.
            self._run_callbacks(self._producer.flush, 1)

    def _reset(self) -> bool:
        """Reset the counts and errors. Return False if this producer cannot be used any more.

        That is so if the client may be stalled, or would send the same refused request batch again.
        """
        error, self._error, self._topic, self.events = self._error, None, "", 0
        self.is_flushed = True
        refused, code = bool(self.refused), error.code() if error is not None else None
        self.acknowledged.clear()
        self.refused.clear()
        self._topics.clear()
        return not self._timed_out and not refused and code not in (KafkaError._MSG_TIMED_OUT, *REFUSALS)

    def _run_callbacks(self, call: Callable[[float], int], seconds: float) -> int:
        """Return the result of `call(seconds)`, which runs callbacks. Raises Conflict if the producer was fenced."""
        try:
            return call(seconds)
        except (KafkaException, SystemError) as e:
            # The client sets its fatal error during callbacks of deliveries, which Python turns into SystemError.
            raise self._conflict(e.__cause__ or (self._error if isinstance(e, SystemError) else None) or e) from e

    def _conflict(self, error: object, why: str = "") -> Conflict:
        """Return the exception for a fatal error, after which only another producer can continue.

        That is so after a takeover, and after brokers have refused a right. `why` replaces the text of the error.
        """
        known = error.args[0] if isinstance(error, KafkaException) else error
        is_refused = isinstance(known, KafkaError) and known.code() in _NOT_AUTHORIZED
        what = "Kafka's client cannot continue" if is_refused else "another owner has taken over"
        return Conflict(f"{what} ({why or self.explain(error)})")

    def _on_delivery(self, event: Row | None, error: KafkaError | None, message: Message) -> None:
        """Store the result of a delivery: an acknowledged or refused event, and the first error with its topic."""
        if error is None:
            if event is not None:
                self.acknowledged.append(event)
            return
        if self._error is None:
            self._error, self._topic = error, message.topic() or ""
        if event is not None and error.code() in REFUSALS:
            self.refused.append((event, error))


class TransactionalProducer(RecordProducer):
    """Producer in transactions that also commit the channel's offsets.

    Creation fences the earlier producer of the same partition, and aborts its transaction.
    """

    keeps_acknowledged = False

    def __init__(
        self, properties: Mapping[str, Any], assignment: Assignment, *, single_record_batches: bool = False
    ) -> None:
        channel = assignment.topic_partition
        name = f"flafka.{assignment.group}.{channel.topic}.{channel.topic_id}.{channel.partition}"
        lost = self._lost_brokers = threading.Event()

        def on_error(error: KafkaError) -> None:  # without a reference to this object, which refers to the client
            if error.code() == KafkaError._ALL_BROKERS_DOWN:
                lost.set()

        properties = {**properties, "transactional.id": name, "error_cb": on_error}
        super().__init__(properties, single_record_batches=single_record_batches)
        self._assignment = assignment
        try:
            self._producer.init_transactions(TRANSACTION_CALL_SECONDS)
        except KafkaException as e:
            raise Retry(f"Kafka does not accept transactions now: {self.explain(e)}") from e

    @property
    def is_outdated(self) -> bool:
        """True after an outage of all brokers: the client may wait for a coordinator that it knew before."""
        with contextlib.suppress(Conflict):  # the next record shows it
            self._run_callbacks(self._producer.poll, 0)
        return self._lost_brokers.is_set()

    def successor(self, properties: Mapping[str, Any]) -> RecordProducer:
        """Return a producer of the same partition, as the base class. Raises Retry if it cannot fence this one."""
        single = self.single_record_batches
        return TransactionalProducer(properties, self._assignment, single_record_batches=single)

    def produce(self, topic: str, *, event: Row | None = None, **record: Any) -> None:
        """Enqueue one record in a transaction, which the first record begins.

        Raises Retry if the transaction has failed already, and else as `RecordProducer.produce`.
        """
        if not self.in_transaction:
            self._producer.begin_transaction()
            self.in_transaction = True
        try:
            super().produce(topic, event=event, **record)
        except KafkaException as e:
            if e.args[0].code() != KafkaError._STATE:
                raise
            # A broker has refused an earlier record, whose delivery report follows.
            if self._error is None:
                self._run_callbacks(self._producer.poll, REPORT_SECONDS)
            self._check()
            raise Retry(f"a transaction has failed and accepts no more records: {self.explain(e)}") from e

    def _check(self) -> None:
        """Raise as `RecordProducer._check`; records that the client purged have the error of the transaction."""
        if self._error is not None and self._error.code() in PURGED:
            self._error, self._topic = transaction_error(self._producer) or self._error, ""
        super()._check()

    def commit(self, receipt: Receipt, group_metadata: Any) -> None:
        """Commit the records and the channel's offset, atomically. Does nothing without a transaction.

        `group_metadata` is the consumer's membership in the channel's group. The leader epoch of the receipt's last
        record is negative if unknown. The next owner needs it to notice that brokers have lost records before the
        committed offset.

        Raises Conflict if another owner was faster, NotCommitted if the transaction is not committed, and
        OutcomeUnknown if that is not known.
        """
        if not self.in_transaction:
            return
        assignment, end, leader_epoch = receipt.assignment, receipt.offsets.end, receipt.last_record.leader_epoch
        metadata = OffsetMetadata.of(assignment.with_offset(end)).text()
        topic, partition = assignment.topic, assignment.partition
        offset = TopicPartition(topic, partition, end, metadata=metadata, leader_epoch=leader_epoch)
        resources = {"topic": topic, "right": "Read", "group": assignment.group, "transactional_id": self.name}
        send = partial(self._producer.send_offsets_to_transaction, [offset], group_metadata, OFFSETS_CALL_SECONDS)
        try:
            call_within(OFFSETS_CALL_SECONDS + REPORT_SECONDS, send, f"{self.name}-offsets")
        except TimeoutError:
            self._timed_out = True
            why = f"no answer within {OFFSETS_CALL_SECONDS:.0f} s"
            raise NotCommitted(f"Kafka did not accept the offsets: {why}; a new client tries again") from None
        except KafkaException as e:
            why = explain_error(e, client=self._client, **resources)
            if is_fatal(e) or e.args[0].code() in _FENCED:
                raise self._conflict(e, why) from e
            raise NotCommitted(f"Kafka did not accept the offsets: {why}") from e
        try:
            self._producer.commit_transaction(TRANSACTION_CALL_SECONDS)
        except KafkaException as e:
            if e.args[0].txn_requires_abort():
                raise NotCommitted(f"a transaction was aborted: {self.explain(e)}") from e
            # Fenced, timed out or disconnected: only a new producer, which ends the transaction, shows the outcome.
            raise OutcomeUnknown(
                f"the outcome of a transaction is unknown, and is read from Kafka: {self.explain(e)}"
            ) from e
        self.in_transaction, self.events = False, 0
        self._topics.clear()

    def abort(self) -> bool:
        """Abort the transaction, if there is one. Return False if this producer cannot be used any more.

        The next producer of the partition aborts the transaction of a producer that has timed out.
        """
        if self.in_transaction and self._timed_out:
            return False
        if self.in_transaction:
            try:
                self._producer.abort_transaction(TRANSACTION_CALL_SECONDS)
            except KafkaException:
                return False
        self.in_transaction = False
        return self._reset()
