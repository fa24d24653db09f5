"""The Kafka sink."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any, ClassVar

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from plugins import (
    Batch,
    Claim,
    CommittingSink,
    Conflict,
    EventId,
    FlafkaError,
    Receipt,
    Rejected,
    Retry,
    flumeevent,
)
from plugins.bucketpath import BucketPath
from plugins.kafkaclient import (
    CONNECT_SECONDS,
    CONSUMER,
    NO_BROKERS,
    QUIET,
    client_properties,
    committed,
    missing,
    reason,
)
from sinks.kafka.config import KafkaSinkConfig
from sinks.kafka.topics import BATCH_BYTES, Topics
from sinks.kafka.writers import TransactionalWriter, Writer

_PASSING = frozenset(
    {
        KafkaError.NOT_COORDINATOR,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    }
)


class KafkaSink(CommittingSink[KafkaSinkConfig]):
    """Writes to topics exactly once from a Kafka channel of the same cluster: in transactions that hold the channel's
    offsets too, for readers with isolation.level = read_committed. From any other channel at least once.
    """

    type_name = "kafka"
    aliases = ("org.apache.flume.sink.kafka.KafkaSink",)
    counters = ("KafkaEventSendTimer", "RollbackCount")
    remote: ClassVar[bool] = False  # a transaction ends where it began

    def __init__(self, config: KafkaSinkConfig, name: str = "") -> None:
        super().__init__(config, name)
        self._cluster_id = ""
        self._topics: Topics | None = None
        self._onlookers: dict[str, Consumer] = {}
        self._writers: dict[int, Writer] = {}
        """By partition of the channel."""
        self._lost: set[int] = set()
        """Partitions that have no writer and were written to."""
        self._since: dict[int, float] = {}
        self._path = BucketPath(config.topic)

    # --- life

    def open(self) -> None:
        """Find the cluster. Raises Retry while brokers are away, or the topic is missing."""
        if not self.config.bootstrap_servers:
            raise FlafkaError(f"sink {self.name}: {NO_BROKERS}")
        for trouble in self.probe():
            raise Retry(trouble)
        admin = AdminClient(self._client())
        self._cluster_id = admin.list_topics(timeout=CONNECT_SECONDS).cluster_id or ""
        self._topics = Topics(self.config, admin)

    def close(self) -> None:
        """Give up what is not committed."""
        self.reset()
        for writer in self._writers.values():
            writer.close()
        for consumer in self._onlookers.values():
            consumer.close()
        for known in (self._writers, self._onlookers, self._lost):
            known.clear()
        self._topics = None

    def probe(self) -> Iterator[str]:
        """Whether brokers answer, and the topic is there."""
        yield from missing(self._client, self.config.bootstrap_servers, self.config.writes())

    # --- partitions

    def resume(self, claim: Claim, committed: int | None) -> int | None:
        """Fence whoever wrote this partition before; with transactions the group's offset is the sink's record."""
        self._drop(claim.partition)
        if not claim.cluster_id or claim.cluster_id != self._cluster_id:
            self._writers[claim.partition] = Writer(self._properties())
            return committed
        name = f"flafka.{claim.group}.{claim.topic}.{claim.topic_id}.{claim.partition}"
        self._writers[claim.partition] = TransactionalWriter(self._properties(), name)
        try:
            at = self._committed(claim)
        except KafkaException as e:
            self._drop(claim.partition)
            raise Retry(f"group {claim.group}: its offsets cannot be read: {reason(e)}") from e
        return at.offset if at.offset >= 0 else committed

    def _committed(self, claim: Claim) -> TopicPartition:
        """The group's position, once its coordinator, which may be moving or be very new, can tell."""
        deadline = time.monotonic() + 2 * CONNECT_SECONDS
        while True:
            try:
                onlooker = self._onlooker(claim.group)
                (at,) = committed(onlooker, [TopicPartition(claim.topic, claim.partition)], CONNECT_SECONDS)
                return at
            except KafkaException as e:
                passing = e.args[0].code() in _PASSING and time.monotonic() < deadline
                if not passing or self.stopping.wait(0.1):
                    raise

    def due(self) -> set[int]:
        """Partitions with a transaction that is large or old enough."""
        now, config = time.monotonic(), self.config
        old = {p for p, since in self._since.items() if now - since >= config.flush_interval / 1000}
        return old | self._lost | {p for p, w in self._writers.items() if w.events >= config.batch_size}

    def reset(self, partition: int | None = None) -> None:
        """Abort transactions; a producer that cannot is thrown away, and the next one fences it."""
        partitions = {*self._writers, *self._lost} if partition is None else {partition}
        for number in partitions:
            self._since.pop(number, None)
            self._lost.discard(number)
            writer = self._writers.get(number)
            if writer is not None and writer.events:
                self.metrics.add("RollbackCount")
                if not writer.abort():
                    self._drop(number)

    def _writer(self, claim: Claim) -> Writer:
        """That of the partition. Conflict where its last transaction is in doubt."""
        writer = self._writers.get(claim.partition)
        if writer is None:
            place = f"{claim.topic}-{claim.partition}"
            raise Conflict(f"the producer of {place} was thrown away: asking Kafka where it got")
        return writer

    def _drop(self, partition: int) -> None:
        self._lost.discard(partition)
        self._since.pop(partition, None)
        writer = self._writers.pop(partition, None)
        if writer is not None:
            writer.close()

    # --- events

    def write(self, batch: Batch) -> None:
        """Produce. Rejected names events that no topic takes."""
        assert batch.origin is not None
        partition = batch.origin.partition
        writer = self._writers.get(partition)
        self._since.setdefault(partition, time.monotonic())
        if writer is None:  # its last transaction is in doubt: `stage` has the runner ask where to go on
            self._lost.add(partition)
            return
        try:
            rejected = self._produce(writer, batch)
        except Conflict:  # fenced
            self._drop(partition)
            self._lost.add(partition)
            return
        if rejected:
            raise Rejected(rejected)

    def stage(self, claim: Claim, start: int, end: int) -> Receipt:
        """Return when all records are stored, those of a transaction invisibly."""
        writer = self._writer(claim)
        with self.metrics.timed("KafkaEventSendTimer"):
            writer.settle()
        return Receipt(claim, start, end, writer.events, None)

    def commit(self, receipt: Receipt) -> None:
        """End the transaction, the channel's offset in it."""
        claim = receipt.claim
        writer = self._writer(claim)
        metadata = self._onlooker(claim.group).consumer_group_metadata() if writer.events else None
        try:
            writer.commit(claim, receipt.end, metadata)
        except Conflict:
            self._drop(claim.partition)
            raise
        self._since.pop(claim.partition, None)

    def _produce(self, writer: Writer, batch: Batch) -> dict[EventId, str]:
        assert self._topics is not None
        config = self.config
        rejected: dict[EventId, str] = {}
        values: list[bytes] = (
            flumeevent.encode(batch) if config.use_flume_event_format else batch.bodies
        ).to_pylist()
        keys = batch.header("key").to_pylist()
        topics = self._topics_of(batch)
        wanted = self._numbers(batch, config.partition_id_header)
        times = self._numbers(batch, config.timestamp_header)
        headers = [(new, batch.header(name).to_pylist()) for name, new in config.headers.items()]
        known = {name: self._topics.get(name) for name in {*topics} if isinstance(name, str)}
        for row, value in enumerate(values):
            try:
                name = topics[row]
                topic = known[name] if isinstance(name, str) else str(name)
                if isinstance(topic, str):
                    raise ValueError(topic)
                record: dict[str, Any] = {"value": value, "key": keys[row]}
                number = wanted[row] if wanted[row] is not None else config.default_partition_id
                if number is not None:
                    record["partition"] = number
                if times[row] is not None and times[row] >= 0:
                    record["timestamp"] = times[row]
                if headers:
                    record["headers"] = [(new, column[row]) for new, column in headers if column[row] is not None]
                topic.check(record)
                writer.produce(topic.name, **record)
            except ValueError as e:
                rejected[batch.id(row)] = str(e)
            except KafkaException as e:
                if e.args[0].fatal():
                    raise Conflict(reason(e)) from e
                if e.args[0].code() != KafkaError.MSG_SIZE_TOO_LARGE:
                    raise Retry(f"sink {self.name}: {reason(e)}") from e
                rejected[batch.id(row)] = "with its key and headers it is more than a record holds"
        return rejected

    def _topics_of(self, batch: Batch) -> list[str | ValueError]:
        buckets = self._path.resolve_batch(batch)
        topics: list[str | ValueError] = [buckets.paths[code] for code in buckets.codes.tolist()]
        if self.config.allow_topic_override and self.config.topic_header in batch.header_names:
            named = batch.header(self.config.topic_header).to_pylist()
            topics = [name if name is not None else topic for name, topic in zip(named, topics, strict=True)]
        return topics

    def _numbers(self, batch: Batch, header: str | None) -> list[Any]:
        """What a header says, by row: -1 for what is no number."""
        if header is None:
            return [None] * len(batch)
        texts = batch.header(header).to_pylist()
        return [
            None if text is None else int(text) if re.fullmatch(r"[0-9]{1,15}", text.strip()) else -1
            for text in texts
        ]

    # --- clients

    def _onlooker(self, group: str) -> Consumer:
        """Reads the group's offsets without being a member, waiting for transactions that are about to end."""
        if group not in self._onlookers:
            self._onlookers[group] = Consumer({**CONSUMER, **self._base(), **self._security(), "group.id": group})
        return self._onlookers[group]

    def _security(self) -> dict[str, Any]:
        properties = client_properties(self.config.producer)
        return {name: value for name, value in properties.items() if name.startswith(("security.", "sasl.", "ssl."))}

    def _base(self) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.config.bootstrap_servers,
            "client.id": f"flafka-{self.name}",
            "socket.keepalive.enable": True,
            "reconnect.backoff.max.ms": 2000,
            **QUIET,
        }

    def _client(self) -> dict[str, Any]:
        return {**self._base(), **self._security()}

    def _properties(self) -> dict[str, Any]:
        given = client_properties(self.config.producer)
        most = self._topics.smallest if self._topics is not None else BATCH_BYTES
        return {**self._base(), **given, "batch.size": min(int(given.get("batch.size", most)), most)}
