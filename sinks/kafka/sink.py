"""The Kafka sink."""

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
from flafka.plugins.kafka.admin import committed_offsets, refused_group
from flafka.plugins.kafka.clients import REQUEST_SECONDS, new_consumer
from flafka.plugins.kafka.errors import sentence
from flafka.plugins.kafka.metrics import ROLLBACKS, SEND_TIMER
from flafka.plugins.kafka.offsets import OffsetMetadata, metadata_of
from flafka.sinks.kafka.at_least_once import AtLeastOnceKafkaSink
from flafka.sinks.kafka.commitlog import CommitLog
from flafka.sinks.kafka.compatibility import KAFKA
from flafka.sinks.kafka.config import SINK, KafkaSinkConfig
from flafka.sinks.kafka.records import KafkaRecords
from flafka.sinks.kafka.writers import TransactionalWriter, Writer


class KafkaSink(KafkaRecords, CommittingSink[KafkaSinkConfig]):
    """Writes to topics exactly once from a Kafka channel of the same cluster: in transactions that hold the channel's
    offsets too, for readers with isolation.level = read_committed. From any other channel at least once. On Spark and
    in sink groups at least once too: there the record header flafka.id holds the event's id, by which duplicates
    are known.
    """

    type_name = "kafka"
    aliases = ("org.apache.flume.sink.kafka.KafkaSink",)
    compatibility_notes = KAFKA
    declared_metrics = (SEND_TIMER, ROLLBACKS)
    remote = False  # a transaction ends where it began
    at_least_once = AtLeastOnceKafkaSink

    def __init__(self, config: KafkaSinkConfig, name: str = "") -> None:
        super().__init__(config, name)
        self._onlookers: dict[str, Consumer] = {}
        self._writers: dict[int, Writer] = {}
        """By partition of the channel."""
        self._lost: dict[int, Conflict | None] = {}
        """By partition that has no writer and was written to: error for which the writer was dropped, if known."""
        self._since: dict[int, float] = {}
        self._commit_logs: dict[str, CommitLog | None] = {}
        """By the channel's topic; None where there may be none."""

    def close(self) -> None:
        """Give up what is not committed."""
        self.reset()
        for writer in self._writers.values():
            writer.close()
        for consumer in self._onlookers.values():
            consumer.close()
        for known in (self._writers, self._onlookers, self._lost, self._commit_logs):
            known.clear()
        super().close()

    # --- partitions

    def duplicate_risk(self, assignment: Assignment) -> str:
        """Only where a transaction can hold the channel's offsets."""
        if assignment.topic_partition.cluster == self._find_cluster():
            return ""
        return "its brokers are another cluster than the channel's, so that it is at least once there"

    def resume(self, committed: Assignment) -> Assignment:
        """Fence whoever wrote this partition before, and go on where the last transaction ended.

        The group's offset says so, and a compacted topic does where that offset is lost.
        """
        place, group = committed.topic_partition, committed.group
        self._drop(place.partition)
        if not place.cluster or place.cluster != self._cluster_id:
            self._writers[place.partition] = Writer(self._properties(), alone=self._alone)
            return committed.of(commit_log="")
        if why := refused_group(group):
            raise FlafkaError(why)
        if place.topic in self.config.writes():
            raise FlafkaError(
                f"kafka.topic = {place.topic} is the topic of the sink's own channel, which would get its own events "
                "again without end: name another topic"
            )
        log = self._commit_log_of(place.topic)
        self._writers[place.partition] = TransactionalWriter(self._properties(), committed, alone=self._alone)
        try:
            partition = TopicPartition(place.topic, place.partition)
            (at,) = committed_offsets(self._onlooker(group), [partition], REQUEST_SECONDS)
            entry = log.read(committed) if log is not None else None
        except KafkaException as e:
            self._drop(place.partition)
            raise Retry(f"group {group}: its offsets cannot be read: {sentence(e)}") from e
        except Retry:
            self._drop(place.partition)
            raise
        next_offset, generation = committed.next_offset, committed.generation
        if at.offset >= 0:
            said = OffsetMetadata.parse(metadata_of(at))
            if said.topic_id in ("", place.topic_id):
                next_offset, generation = at.offset, said.generation
        found, epoch = next_offset, generation.epoch
        if entry is not None and entry.epoch >= epoch:
            if entry.epoch > epoch and generation.commit_log:
                next_offset = None  # it belongs to an earlier epoch
            found, epoch = max(next_offset or 0, entry.offset), entry.epoch
            if found != next_offset:
                text = "%s goes on at %d by topic %s (group %s is at %s)"
                self.log.info(text, place, found, log.name if log else "", group, next_offset)
        return committed.of(epoch=epoch, commit_log=f"kafka:{log.name}" if log is not None else "").at(found)

    def _commit_log_of(self, topic: str) -> CommitLog | None:
        if topic not in self._commit_logs:
            log = CommitLog(self._client(), topic, self.log)
            self._commit_logs[topic] = log if log.open() else None
        return self._commit_logs[topic]

    def due(self) -> set[int]:
        """Partitions with a transaction that is large or old enough."""
        now, config = time.monotonic(), self.config
        old = {p for p, since in self._since.items() if now - since >= config.flush_interval / 1000}
        return old | self._lost.keys() | {p for p, w in self._writers.items() if w.events >= config.batch_size}

    def reset(self, partition: int | None = None) -> None:
        """Abort transactions; a producer that cannot is thrown away, and the next one fences it."""
        partitions = {*self._writers, *self._lost} if partition is None else {partition}
        for number in partitions:
            self._since.pop(number, None)
            self._lost.pop(number, None)
            writer = self._writers.get(number)
            if writer is not None and (writer.events or writer.began):
                self.metrics.add("RollbackCount")
                if not writer.abort():
                    self._drop(number)

    def _writer(self, assignment: Assignment) -> Writer:
        """Return the writer of the partition. Raises OutcomeUnknown if its last transaction is in doubt."""
        writer = self._writers.get(assignment.partition)
        if writer is None:
            place, cause = assignment.topic_partition, self._lost.get(assignment.partition)
            raise OutcomeUnknown(f"the producer of {place} was replaced: asking Kafka how far it got") from cause
        return writer

    def _drop(self, partition: int) -> None:
        self._lost.pop(partition, None)
        self._since.pop(partition, None)
        writer = self._writers.pop(partition, None)
        if writer is not None:
            writer.close()

    # --- events

    def _is_channel(self, topic: str, batch: Batch) -> bool:
        """Return True if this topic, of the name of the channel's, is of the same cluster."""
        assert batch.origin is not None
        return isinstance(self._writers.get(batch.origin.partition), TransactionalWriter)

    def write(self, batch: Batch) -> None:
        """Produce. Rejected names events that no topic takes."""
        assert batch.origin is not None
        partition = batch.origin.partition
        writer = self._writers.get(partition)
        self._since.setdefault(partition, time.monotonic())
        if writer is None:  # its last transaction is in doubt: `stage` has the runner ask where to go on
            self._lost.setdefault(partition)
            return
        try:
            rejected = self._produce(writer, batch)
        except Conflict as e:  # fenced
            self._drop(partition)
            self._lost[partition] = e
            return
        if rejected:
            raise Rejected(rejected)

    def stage(self, assignment: Assignment, offsets: OffsetRange) -> Receipt:
        """Return when all records are stored; in a transaction they are invisible yet."""
        writer = self._writer(assignment)
        log = self._commit_logs.get(assignment.topic)
        if isinstance(writer, TransactionalWriter) and log is not None and writer.began:
            try:
                log.write(writer, assignment, offsets.end)
            except Retry:
                self._note_failure(writer)
                raise
            except KafkaException as e:
                if not e.args[0].fatal():
                    raise Retry(f"topic {log.name} cannot be written to: {sentence(e)}") from e
                self._drop(assignment.partition)
                raise Conflict(sentence(e)) from e
        with self.metrics.timed("KafkaEventSendTimer"):
            self._settle(writer)
        return Receipt(assignment, offsets, writer.events, None)

    def commit(self, receipt: Receipt) -> None:
        """End the transaction, the channel's offset in it."""
        assignment = receipt.assignment
        writer = self._writer(assignment)
        metadata = self.membership() or self._onlooker(assignment.group).consumer_group_metadata()
        try:
            writer.commit(receipt, metadata)
        except Conflict:
            self._drop(assignment.partition)
            raise
        self._since.pop(assignment.partition, None)
        self._committed_all(assignment.partition)
        if writer.alone:
            self._renew(assignment, writer)

    def _renew(self, assignment: Assignment, writer: Writer) -> None:
        """Replace a writer that sends each record alone: the refused events are dealt with, and it is slow."""
        self._alone = False
        self._drop(assignment.partition)
        if not isinstance(writer, TransactionalWriter):
            self._writers[assignment.partition] = Writer(self._properties())
            return
        with contextlib.suppress(Retry):  # without one, the next events have the runner call `resume`
            self._writers[assignment.partition] = TransactionalWriter(self._properties(), assignment)

    def _onlooker(self, group: str) -> Consumer:
        """Reads the group's offsets without being a member, waiting for transactions that are about to end."""
        if group not in self._onlookers:
            self._onlookers[group] = new_consumer(SINK, {**self._client(), "group.id": group})
        return self._onlookers[group]
