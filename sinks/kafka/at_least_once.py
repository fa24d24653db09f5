"""Kafka sink without transactions, for sink groups and Spark."""

from __future__ import annotations

from confluent_kafka import KafkaError, KafkaException

from flafka.plugins import Assignment, AtLeastOnceSink, Batch, Conflict, Generation, Rejected, Retry, TopicPartition
from flafka.sinks.kafka.config import KafkaSinkConfig
from flafka.sinks.kafka.producers import RecordProducer, TransactionalProducer
from flafka.sinks.kafka.records import KafkaRecordSink

_NOT_ALLOWED = KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


class AtLeastOnceKafkaSink(KafkaRecordSink, AtLeastOnceSink[KafkaSinkConfig]):
    """Writes to topics at least once. Duplicates have the same event id, in the record header flafka.id."""

    type_name = "kafka"
    adds_event_ids = True

    def __init__(self, config: KafkaSinkConfig, name: str = "") -> None:
        super().__init__(config, name)
        self.batch_size, self.flush_interval = config.batch_size, config.flush_interval / 1000
        self._producer: RecordProducer | None = None
        self._outdated: RecordProducer | None = None
        """Latest producer whose certificates have changed."""
        self._own_channels: dict[str, bool] = {}
        """True for a topic of the sink's cluster, by prefix of event ids."""

    def close(self) -> None:
        """Drop records that are not flushed, and the state of the cluster."""
        self._drop()
        super().close()

    def write(self, batch: Batch) -> None:
        """Produce the events. Raises Retry, and Rejected for events that no topic accepts.

        All other events of the batch are produced then.
        """
        if self._renew_clients() is not None and self._producer is not None:
            self._outdated = self._producer
        if self._outdated is not None and self._outdated is self._producer and self._outdated.is_idle:
            self._drop()
        if self._producer is None:
            self._producer = RecordProducer(self._properties(), single_record_batches=self._single_record_batches)
        try:
            rejected = self._produce(self._producer, batch)
        except Conflict as e:
            self._drop()
            raise Retry(str(e)) from e
        if rejected:
            raise Rejected(rejected)

    def _is_own_channel(self, topic: str, batch: Batch) -> bool:
        """Return True if this topic of the sink's cluster is the channel of the batch, by the prefix of event ids.

        After a reset of the group with `--new-ids`, ids have another prefix, and the result is False. Raises Retry.
        """
        assert self._topics is not None
        assert batch.origin is not None
        prefix = batch.origin.id_prefix
        if prefix not in self._own_channels:
            id = self._topics.topic_id(topic)
            own = Assignment(TopicPartition(self._cluster_id, topic, id, 0), "", Generation())
            self._own_channels[prefix] = bool(id) and own.id_prefix == prefix
        return self._own_channels[prefix]

    def flush(self) -> None:
        """Return when all in-sync replicas have all records. Raises Retry, also if the producer was fenced."""
        if self._producer is None:
            return
        try:
            with self.metrics.timed("KafkaEventSendTimer"):
                self._flush(self._producer)
        except Conflict as e:
            self._drop()
            raise Retry(str(e)) from e
        self._forget_committed()
        if self._producer.single_record_batches:
            self._single_record_batches = False
            self._drop()

    def reset(self) -> None:
        """Drop records that are not flushed, and the producer."""
        self._drop()

    def recover(self, committed: Assignment) -> None:
        """Abort the open transaction of the committing form, for which readers would wait until its timeout.

        Does nothing for a channel of another cluster, or if this client has no right to use transactions. Raises
        Retry.
        """
        cluster = committed.topic_partition.cluster
        if cluster and cluster == self._find_cluster():
            try:
                TransactionalProducer(self._properties(), committed).close()
            except Retry as e:
                if not isinstance(e.__cause__, KafkaException) or e.__cause__.args[0].code() != _NOT_ALLOWED:
                    raise  # without the right to use transactions there is none

    def _drop(self) -> None:
        """Drop records that are not flushed, with their producer; the next `write` makes a new one."""
        if self._producer is not None:
            self._producer.close()
            self._producer = None
