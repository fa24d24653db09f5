"""Producers of the Kafka sink: one for each partition of the channel, with transactions or without."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from flafka.plugins import Assignment, Batch, Conflict, NotCommitted, OutcomeUnknown, Receipt, Retry
from flafka.plugins.kafka.clients import new_producer
from flafka.plugins.kafka.errors import RECORD_REFUSALS, sentence
from flafka.plugins.kafka.offsets import OffsetMetadata
from flafka.sinks.kafka.config import SINK

TRANSACTION_CALL_SECONDS = 30.0
"""Time in which brokers answer one call about a transaction: its begin, its offsets, its commit or its abort."""
FLUSH_SECONDS = 60.0
REPORT_SECONDS = 1.0
"""Time that the report of a refused record may take, once the client knows of it."""
REFUSALS = RECORD_REFUSALS | {KafkaError.INVALID_TIMESTAMP}
"""Errors of one record, whose time may come from a header of the event."""
_PURGED = frozenset({KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT})
_FENCED = frozenset({KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH})


Row = tuple[Batch, int]
"""An event: a row of a batch."""


class Writer:
    """Idempotent producer of records. `settle` returns when all are in the topics.

    With `alone`, each record is a request batch of its own, so that an error is that of the record itself.
    """

    keeps_acknowledged = True
    """True if a record that a broker has acknowledged stays in the topic, whatever follows."""

    def __init__(self, properties: Mapping[str, Any], *, alone: bool = False) -> None:
        self.alone, self.name, self._topic = alone, str(properties.get("transactional.id", "")), ""
        self._client = dict(properties)
        self.acknowledged: list[Row] = []
        """Events that brokers have acknowledged since the last commit, while `settle` has not returned."""
        self.refused: list[tuple[Row, KafkaError]] = []
        """Events of which a broker has refused the request batch, with its error."""
        self.events = 0
        """Produced since the last commit."""
        self.began = False
        """True while a transaction is under way, which may hold records that are no events."""
        self._error: KafkaError | None = None
        self._late = False
        """True after a missing acknowledgement: after an outage a client may never send again."""
        self._producer = new_producer(SINK, {**properties, **({"batch.num.messages": 1} if alone else {})})

    def produce(self, topic: str, *, event: Row | None = None, **record: Any) -> None:
        """Queue one record, of an event or of none. Raises Conflict where the producer was fenced, and
        KafkaException where no broker would ever take the record.
        """
        report = partial(self._delivered, event)
        deadline = time.monotonic() + FLUSH_SECONDS
        while True:
            try:
                self._producer.produce(topic, on_delivery=report, **record)
                self.events += event is not None
                return
            except BufferError:
                self._serve(self._producer.poll, 0.05)
                if time.monotonic() > deadline:
                    raise self._too_late() from None

    def settle(self) -> None:
        """Return when all that was produced is stored by all in-sync replicas. Conflict where it was fenced."""
        if self._serve(self._producer.flush, FLUSH_SECONDS):
            raise self._too_late()
        self._check()
        self.acknowledged.clear()

    def _check(self) -> None:
        """Raise Retry where a record was not stored. Conflict where the producer was fenced."""
        if (error := self._error) is not None:
            failure = Conflict if error.fatal() or error.code() in _FENCED else Retry
            why = sentence(error, topic=self._topic, transactional_id=self.name, right="Write", client=self._client)
            raise failure(f"Kafka did not store what was sent: {why}")

    def _too_late(self) -> Retry:
        self._late = True
        return Retry(f"no acknowledgement from Kafka within {FLUSH_SECONDS:.0f} s")

    def commit(self, receipt: Receipt, group_metadata: Any) -> None:
        """Count the settled records as committed."""
        self.events = 0

    def abort(self) -> bool:
        """Forget what is not committed. Whether it can go on after that."""
        self._producer.purge()
        try:
            self._serve(self._producer.flush, 1)
        except Conflict:
            return False
        return self._forget()

    def close(self) -> None:
        """Give up what is not committed."""
        self._producer.purge()
        with contextlib.suppress(Conflict):
            self._serve(self._producer.flush, 1)  # each report not served keeps the client, and its threads

    def _forget(self) -> bool:
        """Start afresh. False if this producer may be stuck, or would send the same request batch again."""
        error, self._error, self._topic, self.events = self._error, None, "", 0
        refused, code = bool(self.refused), error.code() if error is not None else None
        self.acknowledged.clear()
        self.refused.clear()
        return not self._late and not refused and code not in (KafkaError._MSG_TIMED_OUT, *REFUSALS)

    @staticmethod
    def _serve(call: Callable[[float], int], seconds: float) -> int:
        """Let callbacks run. Conflict where the producer was fenced."""
        try:
            return call(seconds)
        except (KafkaException, SystemError) as e:
            # The client raises its fatal error amid the callbacks for deliveries, which Python takes for a bug in it.
            raise Conflict(f"another owner has taken over ({sentence(e.__cause__ or e)})") from e

    def _delivered(self, event: Row | None, error: KafkaError | None, message: Message) -> None:
        if error is None:
            if event is not None:
                self.acknowledged.append(event)
            return
        if self._error is None:
            self._error, self._topic = error, message.topic() or ""
        if event is not None and error.code() in REFUSALS:
            self.refused.append((event, error))


class TransactionalWriter(Writer):
    """Produces in transactions, each of which ends with the channel's offsets behind it.

    Its making fences the writer that had the same partition before, and ends that one's transaction.
    """

    keeps_acknowledged = False

    def __init__(self, properties: Mapping[str, Any], assignment: Assignment, *, alone: bool = False) -> None:
        at = assignment.topic_partition
        name = f"flafka.{assignment.group}.{at.topic}.{at.topic_id}.{at.partition}"
        super().__init__({**properties, "transactional.id": name}, alone=alone)
        try:
            self._producer.init_transactions(TRANSACTION_CALL_SECONDS)
        except KafkaException as e:
            why = sentence(e, transactional_id=name, client=properties)
            raise Retry(f"Kafka does not accept transactions now: {why}") from e

    def produce(self, topic: str, *, event: Row | None = None, **record: Any) -> None:
        """Queue one record, in a transaction. Raises Retry where the transaction has failed already."""
        if not self.began:
            self._producer.begin_transaction()
            self.began = True
        try:
            super().produce(topic, event=event, **record)
        except KafkaException as e:
            if e.args[0].code() != KafkaError._STATE:
                raise
            # A broker has refused an earlier record. Its report says which; the client takes no more until the abort.
            if self._error is None:
                self._serve(self._producer.poll, REPORT_SECONDS)
            self._check()
            raise Retry(f"a transaction takes no more records: {sentence(e)}") from e

    def _check(self) -> None:
        if self._error is not None and self._error.code() in _PURGED:
            self._error, self._topic = self._failed_transaction() or self._error, ""
        super()._check()

    def _failed_transaction(self) -> KafkaError | None:
        """Return the error for which the client drops all records of this transaction, or None if it does not say.

        It is in no delivery report where brokers refuse to add a topic to the transaction.
        """
        try:
            self._producer.begin_transaction()  # always fails within one, with the reason if that has failed
        except KafkaException as e:
            error: KafkaError = e.args[0]
            return error if error.txn_requires_abort() else None
        return None

    def commit(self, receipt: Receipt, group_metadata: Any) -> None:
        """Make the records and the channel's offset count, both or neither.

        The leader epoch of the receipt's last record is negative if unknown: without one, the next owner cannot
        notice that brokers have lost records before the committed offset.

        Raises OutcomeUnknown where it is not known whether they do, Conflict where another owner was faster, and
        NotCommitted where they do not.
        """
        if not self.began:
            return
        assignment, end, leader_epoch = receipt.assignment, receipt.offsets.end, receipt.last_record.leader_epoch
        metadata = OffsetMetadata.of(assignment.at(end)).text()
        at = TopicPartition(assignment.topic, assignment.partition, end, metadata=metadata, leader_epoch=leader_epoch)
        try:
            self._producer.send_offsets_to_transaction([at], group_metadata, TRANSACTION_CALL_SECONDS)
        except KafkaException as e:
            if e.args[0].code() in _FENCED or e.args[0].fatal():
                raise Conflict(f"another owner has taken over ({sentence(e)})") from e
            raise NotCommitted(f"Kafka did not take the offsets: {sentence(e)}") from e
        try:
            self._producer.commit_transaction(TRANSACTION_CALL_SECONDS)
        except KafkaException as e:
            if e.args[0].txn_requires_abort():
                raise NotCommitted(f"a transaction was aborted: {sentence(e)}") from e
            # Fenced, timed out or cut off: it may have come about. Only a new producer, which ends it, can tell.
            raise OutcomeUnknown(
                f"it is not known whether a transaction was committed ({sentence(e)}): asking Kafka"
            ) from e
        self.began, self.events = False, 0

    def abort(self) -> bool:
        """Abort the transaction; one whose producer is late is ended by the next one."""
        if self.began and self._late:
            return False
        if self.began:
            try:
                self._producer.abort_transaction(TRANSACTION_CALL_SECONDS)
            except KafkaException:
                return False
        self.began = False
        return self._forget()
