"""Kafka sink."""

from __future__ import annotations

import contextlib
import time

from confluent_kafka import Consumer, KafkaException, TopicPartition

from flafka.plugins import (
    Assignment,
    Batch,
    CommittingSink,
    Conflict,
    FlafkaError,
    OffsetRange,
    OutcomeUnknown,
    Receipt,
    Rejected,
    Retry,
)
from flafka.plugins.kafka.admin import group_id_error, memberless_offsets
from flafka.plugins.kafka.clients import REQUEST_SECONDS, new_consumer
from flafka.plugins.kafka.errors import explain_error, is_fatal
from flafka.plugins.kafka.metrics import ROLLBACKS, SEND_TIMER
from flafka.plugins.kafka.offsets import OffsetMetadata, metadata_of
from flafka.sinks.kafka.at_least_once import AtLeastOnceKafkaSink
from flafka.sinks.kafka.commitlog import KafkaCommitLog
from flafka.sinks.kafka.compatibility import KAFKA
from flafka.sinks.kafka.config import SINK, KafkaSinkConfig
from flafka.sinks.kafka.producers import RecordProducer, TransactionalProducer
from flafka.sinks.kafka.records import KafkaRecordSink


class KafkaSink(KafkaRecordSink, CommittingSink[KafkaSinkConfig]):
    """Writes to topics exactly once from a Kafka channel of the same cluster, from other channels at least once.

    Exactly once is for readers with isolation.level = read_committed: the channel's offsets are committed in the
    transactions of the records. On Spark and in sink groups the sink is at least once. There the record header
    flafka.id has the event's id, by which readers recognize duplicates.
    """

    type_name = "kafka"
    aliases = ("org.apache.flume.sink.kafka.KafkaSink",)
    compatibility_notes = KAFKA
    declared_metrics = (SEND_TIMER, ROLLBACKS)
    remote = False  # a transaction cannot be committed by another process
    at_least_once = AtLeastOnceKafkaSink

    def __init__(self, config: KafkaSinkConfig, name: str = "") -> None:
        super().__init__(config, name)
        self._offset_readers: dict[str, Consumer] = {}
        self._producers: dict[int, RecordProducer] = {}
        """Producers by partition of the channel."""
        self._outdated = set[int]()
        """Partitions whose producer has former certificates."""
        self._in_doubt: dict[int, Conflict | None] = {}
        """Error for which the producer was dropped, if known, by partition with events and without a producer."""
        self._resume_errors: dict[int, Retry] = {}
        """Error of the latest `resume`, by partition without a producer."""
        self._transaction_starts: dict[int, float] = {}
        """Begin of transactions, on the monotonic clock, by partition."""
        self._commit_logs: dict[str, KafkaCommitLog | None] = {}
        """Commit logs by the channel's topic; None if this client may not create one."""

    def close(self) -> None:
        """Abort transactions, and close all clients."""
        self.reset()
        for producer in self._producers.values():
            producer.close()
        for consumer in self._offset_readers.values():
            consumer.close()
        for state in (self._producers, self._offset_readers, self._in_doubt, self._commit_logs, self._outdated):
            state.clear()
        self._resume_errors.clear()
        super().close()

    # --- partitions

    def duplicate_risk(self, assignment: Assignment) -> str:
        """Return an empty text if the sink's cluster is the channel's, else the sentence that it is at least once.

        Raises Retry if brokers do not answer.
        """
        if assignment.topic_partition.cluster == self._find_cluster():
            return ""
        return "its cluster is not the channel's, so that it is at least once"

    def resume(self, committed: Assignment) -> Assignment:
        """Fence the earlier owner of this partition, and return the assignment at the end of the last transaction.

        This end is the group's committed offset, or the commit log's if that is later or of a later epoch. For a
        channel of another cluster, the assignment is returned as it is, and nothing is fenced. Raises Retry if Kafka
        fails. Raises FlafkaError if kafka.topic is the channel's topic, or the group's name is not allowed.
        """
        channel, group = committed.topic_partition, committed.group
        self._close_producer(channel.partition)
        if not channel.cluster or channel.cluster != self._cluster_id:
            self._producers[channel.partition] = RecordProducer(
                self._properties(), single_record_batches=self._single_record_batches
            )
            return committed.replace(commit_log="")
        if why := group_id_error(group):
            raise FlafkaError(why)
        if channel.topic in self.config.produced_topics():
            raise FlafkaError(
                f"kafka.topic = {channel.topic} is the topic of the sink's own channel, which would get its own "
                "events in an endless loop: name another topic"
            )
        log = self._open_commit_log(channel.topic)
        try:
            self._producers[channel.partition] = TransactionalProducer(
                self._properties(), committed, single_record_batches=self._single_record_batches
            )
        except Retry as e:
            self._resume_errors[channel.partition] = e
            raise
        try:
            requested = TopicPartition(channel.topic, channel.partition)
            (group_offset,) = memberless_offsets(self._offset_reader(group), [requested], REQUEST_SECONDS)
            entry = log.read(committed) if log is not None else None
        except KafkaException as e:
            self._close_producer(channel.partition)
            why = explain_error(e, topic=channel.topic, right="Read", group=group, client=self._client())
            raise Retry(f"group {group}: its offsets cannot be read: {why}") from e
        except Retry:
            self._close_producer(channel.partition)
            raise
        next_offset, generation = committed.next_offset, committed.generation
        if group_offset.offset >= 0:
            metadata = OffsetMetadata.parse(metadata_of(group_offset))
            if metadata.topic_id in ("", channel.topic_id):
                next_offset, generation = group_offset.offset, metadata.generation
        resumed, epoch = next_offset, generation.epoch
        if entry is not None and entry.epoch >= epoch:
            if entry.epoch > epoch and generation.commit_log:
                next_offset = None  # the group's offset is one of an earlier epoch
            resumed, epoch = max(next_offset or 0, entry.offset), entry.epoch
            if resumed != next_offset:
                text = "%s resumes at %d, by the commit log %s (committed offset of group %s: %s)"
                self.log.info(text, channel, resumed, log.name if log else "", group, next_offset)
        commit_log = f"kafka:{log.name}" if log is not None else ""
        return committed.replace(epoch=epoch, commit_log=commit_log).with_offset(resumed)

    def _open_commit_log(self, topic: str) -> KafkaCommitLog | None:
        """Return the commit log of a channel's topic, opened once; None if it may not be created. Raises Retry."""
        if topic not in self._commit_logs:
            log = KafkaCommitLog(self._client(), topic, self.log)
            self._commit_logs[topic] = log if log.open() else None
        return self._commit_logs[topic]

    def due_partitions(self) -> set[int]:
        """Return the partitions whose transaction has `flumeBatchSize` events or is older than `flushInterval`.

        Partitions whose last transaction is in doubt are due, too.
        """
        now, config = time.monotonic(), self.config
        old = {p for p, since in self._transaction_starts.items() if now - since >= config.flush_interval / 1000}
        return old | self._in_doubt.keys() | {p for p, w in self._producers.items() if w.events >= config.batch_size}

    def reset(self, partition: int | None = None) -> None:
        """Abort the transactions of a partition, or of all if None.

        A producer that fails to abort is closed, and the next one fences it.
        """
        partitions = {*self._producers, *self._in_doubt} if partition is None else {partition}
        for number in partitions:
            self._transaction_starts.pop(number, None)
            self._in_doubt.pop(number, None)
            producer = self._producers.get(number)
            if producer is not None and (producer.events or producer.in_transaction):
                self.metrics.add("RollbackCount")
                if not producer.abort():
                    self._close_producer(number)

    def _producer_of(self, assignment: Assignment) -> RecordProducer:
        """Return the producer of the partition. Raises OutcomeUnknown without one: its transaction is in doubt."""
        producer = self._producers.get(assignment.partition)
        if producer is None:
            partition, cause = assignment.topic_partition, self._in_doubt.get(assignment.partition)
            refused = self._resume_errors.get(assignment.partition)
            why = f"; that fails: {refused}" if refused is not None else ""
            raise OutcomeUnknown(
                f"the producer of {partition} was closed: reading its offset from Kafka{why}"
            ) from cause
        return producer

    def _close_producer(self, partition: int) -> None:
        """Close and forget the producer of a partition, if there is one, with the state of its transaction."""
        self._resume_errors.pop(partition, None)
        self._in_doubt.pop(partition, None)
        self._transaction_starts.pop(partition, None)
        self._outdated.discard(partition)
        producer = self._producers.pop(partition, None)
        if producer is not None:
            producer.close()

    # --- events

    def _renew(self, partition: int) -> None:
        """Replace clients whose certificates have changed, and an outdated producer once it is idle."""
        if (client := self._renew_clients()) is not None:
            self._outdated |= self._producers.keys()
            for consumer in self._offset_readers.values():
                consumer.close()
            self._offset_readers.clear()
            for log in self._commit_logs.values():
                if log is not None:
                    log.use(client)
        producer = self._producers.get(partition)
        if producer is None or not (partition in self._outdated or producer.is_outdated):
            return
        if producer.is_idle and not producer.events:
            self._close_producer(partition)
            with contextlib.suppress(Retry):  # without a producer, the runner calls `resume`
                self._producers[partition] = producer.successor(self._properties())

    def _is_own_channel(self, topic: str, batch: Batch) -> bool:
        """Return True if the channel of the batch is in the sink's cluster, where its name is unique."""
        assert batch.origin is not None
        return isinstance(self._producers.get(batch.origin.partition), TransactionalProducer)

    def write(self, batch: Batch) -> None:
        """Produce the events. Raises Retry, and Rejected for events that no topic accepts.

        All other events of the batch are produced then. If the producer was fenced, or is gone, the events are
        dropped, and the next `stage` raises OutcomeUnknown.
        """
        assert batch.origin is not None
        partition = batch.origin.partition
        self._renew(partition)
        producer = self._producers.get(partition)
        self._transaction_starts.setdefault(partition, time.monotonic())
        if producer is None:  # the last transaction is in doubt: `stage` raises, and the runner calls `resume`
            self._in_doubt.setdefault(partition)
            return
        try:
            rejected = self._produce(producer, batch)
        except Conflict as e:  # fenced
            self._close_producer(partition)
            self._in_doubt[partition] = e
            return
        if rejected:
            raise Rejected(rejected)

    def stage(self, assignment: Assignment, offsets: OffsetRange) -> Receipt:
        """Write the commit log's entry in the transaction, and return the receipt once all records are stored.

        In a transaction they are still invisible to readers of committed records. Raises Retry, Conflict if fenced,
        and OutcomeUnknown if the last transaction is in doubt.
        """
        producer = self._producer_of(assignment)
        log = self._commit_logs.get(assignment.topic)
        if isinstance(producer, TransactionalProducer) and log is not None and producer.in_transaction:
            try:
                log.write(producer, assignment, offsets.end)
            except Retry:
                self._record_failure(producer)
                raise
            except KafkaException as e:
                if not is_fatal(e):
                    why = explain_error(e, topic=log.name, right="Write", client=self._client())
                    raise Retry(f"topic {log.name} cannot be written to: {why}") from e
                self._close_producer(assignment.partition)
                raise Conflict(explain_error(e)) from e
        with self.metrics.timed("KafkaEventSendTimer"):
            self._flush(producer)
        return Receipt(assignment, offsets, producer.events, None)

    def commit(self, receipt: Receipt) -> None:
        """Commit the transaction, with the channel's offset in it.

        Raises Conflict, NotCommitted and OutcomeUnknown as `TransactionalProducer.commit`; after a Conflict or
        OutcomeUnknown the producer is closed.
        """
        assignment = receipt.assignment
        producer = self._producer_of(assignment)
        metadata = self.membership() or self._offset_reader(assignment.group).consumer_group_metadata()
        try:
            producer.commit(receipt, metadata)
        except Conflict:
            self._close_producer(assignment.partition)
            raise
        self._transaction_starts.pop(assignment.partition, None)
        self._forget_committed(assignment.partition)
        if producer.single_record_batches:
            self._replace_producer(assignment, producer)

    def _replace_producer(self, assignment: Assignment, producer: RecordProducer) -> None:
        """Replace a producer that sends each record alone, which is slow, as all refused events are rejected now."""
        self._single_record_batches = False
        self._close_producer(assignment.partition)
        if not isinstance(producer, TransactionalProducer):
            self._producers[assignment.partition] = RecordProducer(self._properties())
            return
        with contextlib.suppress(Retry):  # without a producer, the runner calls `resume` for the next events
            self._producers[assignment.partition] = TransactionalProducer(self._properties(), assignment)

    def _offset_reader(self, group: str) -> Consumer:
        """Return a consumer that reads the group's offsets without membership. It is created once for each group."""
        if group not in self._offset_readers:
            self._offset_readers[group] = new_consumer(SINK, {**self._client(), "group.id": group})
        return self._offset_readers[group]
