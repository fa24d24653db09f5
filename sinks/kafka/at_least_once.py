"""The Kafka sink where it cannot commit by itself."""

from __future__ import annotations

from confluent_kafka import KafkaError, KafkaException

from flafka.plugins import Assignment, AtLeastOnceSink, Batch, Conflict, Generation, Rejected, Retry, TopicPartition
from flafka.sinks.kafka.config import KafkaSinkConfig
from flafka.sinks.kafka.records import KafkaRecords
from flafka.sinks.kafka.writers import TransactionalWriter, Writer

_NOT_ALLOWED = KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


class AtLeastOnceKafkaSink(KafkaRecords, AtLeastOnceSink[KafkaSinkConfig]):
    """Writes to topics at least once; duplicates are known by the event's id, the record header flafka.id."""

    type_name = "kafka"
    names_events = True

    def __init__(self, config: KafkaSinkConfig, name: str = "") -> None:
        super().__init__(config, name)
        self.batch_size, self.flush_interval = config.batch_size, config.flush_interval / 1000
        self._writer: Writer | None = None
        self._own: dict[str, bool] = {}
        """By prefix of event ids: True if that is a topic of the sink's cluster."""

    def close(self) -> None:
        """Give up what is not flushed."""
        self._drop()
        super().close()

    def write(self, batch: Batch) -> None:
        """Produce. Rejected names events that no topic takes."""
        if self._writer is None:
            self._writer = Writer(self._properties(), alone=self._alone)
        try:
            rejected = self._produce(self._writer, batch)
        except Conflict as e:
            self._drop()
            raise Retry(str(e)) from e
        if rejected:
            raise Rejected(rejected)

    def _is_channel(self, topic: str, batch: Batch) -> bool:
        """Return True if events of this topic have such ids.

        Where the group was reset with `--new-ids`, its ids have another origin, and the answer is False.
        """
        assert self._topics is not None
        assert batch.origin is not None
        prefix = batch.origin.id_prefix
        if prefix not in self._own:
            id = self._topics.id_of(topic)
            own = Assignment(TopicPartition(self._cluster_id, topic, id, 0), "", Generation())
            self._own[prefix] = bool(id) and own.id_prefix == prefix
        return self._own[prefix]

    def flush(self) -> None:
        """Return when all in-sync replicas have all records."""
        if self._writer is None:
            return
        try:
            with self.metrics.timed("KafkaEventSendTimer"):
                self._settle(self._writer)
        except Conflict as e:
            self._drop()
            raise Retry(str(e)) from e
        self._committed_all()
        if self._writer.alone:
            self._alone = False
            self._drop()

    def reset(self) -> None:
        """Give up what is not flushed; the next producer is a new one."""
        self._drop()

    def recover(self, committed: Assignment) -> None:
        """End the transaction of the committing form: its topics' readers would wait until it times out."""
        cluster = committed.topic_partition.cluster
        if cluster and cluster == self._find_cluster():
            try:
                TransactionalWriter(self._properties(), committed).close()
            except Retry as e:
                if not isinstance(e.__cause__, KafkaException) or e.__cause__.args[0].code() != _NOT_ALLOWED:
                    raise  # who may use no transactions has left none under way

    def _drop(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
