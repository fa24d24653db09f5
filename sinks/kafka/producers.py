"""Producers of the Kafka sink, with transactions or without: one for each partition of the channel."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from flafka.plugins import Assignment, Batch, Conflict, NotCommitted, OutcomeUnknown, Receipt, Retry
from flafka.plugins.kafka.clients import new_producer
from flafka.plugins.kafka.errors import RECORD_REFUSALS, explain_error
from flafka.plugins.kafka.offsets import OffsetMetadata
from flafka.sinks.kafka.config import SINK

TRANSACTION_CALL_SECONDS = 30.0
"""Timeout of one call about a transaction: its begin, offsets, commit or abort."""
FLUSH_SECONDS = 60.0
"""Time in which brokers have to acknowledge all records."""
REPORT_SECONDS = 1.0
"""Time until the delivery report of a refused record, once the client has the refusal."""
REFUSALS = RECORD_REFUSALS | {KafkaError.INVALID_TIMESTAMP}
"""Errors of one record. Its timestamp may come from a header of the event."""
_PURGED = frozenset({KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT})
_FENCED = frozenset({KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH})

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
        self.acknowledged: list[Row] = []
        """Events that brokers have acknowledged since the last commit or `flush`."""
        self.refused: list[tuple[Row, KafkaError]] = []
        """Events whose request batch a broker has refused, with the error."""
        self.events = 0
        """Number of events since the last commit."""
        self.in_transaction = False
        """True in a transaction, even if its records have no events."""
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
        self.acknowledged.clear()

    def _check(self) -> None:
        """Raise Retry if a record was not stored, and Conflict if the producer was fenced."""
        if (error := self._error) is not None:
            failure = Conflict if error.fatal() or error.code() in _FENCED else Retry
            resource = {"topic": self._topic, "transactional_id": self.name}
            why = explain_error(error, **resource, right="Write", client=self._client)
            raise failure(f"Kafka did not store a record: {why}")

    def _timeout_error(self) -> Retry:
        """Return the error to raise for a missing acknowledgement, after which this producer cannot be used again."""
        self._timed_out = True
        return Retry(f"no acknowledgement from Kafka within {FLUSH_SECONDS:.0f} s")

    def commit(self, receipt: Receipt, group_metadata: Any) -> None:
        """Set the number of uncommitted events to 0. Flushed records are final; the arguments have no effect."""
        self.events = 0

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
        refused, code = bool(self.refused), error.code() if error is not None else None
        self.acknowledged.clear()
        self.refused.clear()
        return not self._timed_out and not refused and code not in (KafkaError._MSG_TIMED_OUT, *REFUSALS)

    @staticmethod
    def _run_callbacks(call: Callable[[float], int], seconds: float) -> int:
        """Return the result of `call(seconds)`, which runs callbacks. Raises Conflict if the producer was fenced."""
        try:
            return call(seconds)
        except (KafkaException, SystemError) as e:
            # The client sets its fatal error during callbacks of deliveries, which Python turns into SystemError.
            raise Conflict(f"another owner has taken over ({explain_error(e.__cause__ or e)})") from e

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
        super().__init__({**properties, "transactional.id": name}, single_record_batches=single_record_batches)
        try:
            self._producer.init_transactions(TRANSACTION_CALL_SECONDS)
        except KafkaException as e:
            why = explain_error(e, transactional_id=name, client=properties)
            raise Retry(f"Kafka does not accept transactions now: {why}") from e

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
            raise Retry(f"a transaction has failed and accepts no more records: {explain_error(e)}") from e

    def _check(self) -> None:
        """Raise as `RecordProducer._check`; records that the client purged have the error of the transaction."""
        if self._error is not None and self._error.code() in _PURGED:
            self._error, self._topic = self._transaction_error() or self._error, ""
        super()._check()

    def _transaction_error(self) -> KafkaError | None:
        """Return the error for which the client drops all records of this transaction; None if unknown.

        If brokers refuse to add a topic to the transaction, the error is in no delivery report.
        """
        try:
            self._producer.begin_transaction()  # always fails in a transaction, with the error of a failed one
        except KafkaException as e:
            error: KafkaError = e.args[0]
            return error if error.txn_requires_abort() else None
        return None

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
        try:
            self._producer.send_offsets_to_transaction([offset], group_metadata, TRANSACTION_CALL_SECONDS)
        except KafkaException as e:
            if e.args[0].code() in _FENCED or e.args[0].fatal():
                raise Conflict(f"another owner has taken over ({explain_error(e)})") from e
            raise NotCommitted(f"Kafka did not accept the offsets: {explain_error(e)}") from e
        try:
            self._producer.commit_transaction(TRANSACTION_CALL_SECONDS)
        except KafkaException as e:
            if e.args[0].txn_requires_abort():
                raise NotCommitted(f"a transaction was aborted: {explain_error(e)}") from e
            # Fenced, timed out or disconnected: only a new producer, which ends the transaction, shows the outcome.
            raise OutcomeUnknown(
                f"the outcome of a transaction is unknown ({explain_error(e)}): reading it from Kafka"
            ) from e
        self.in_transaction, self.events = False, 0

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
