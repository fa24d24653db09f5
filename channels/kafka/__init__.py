"""The Kafka channel: replicated, shared, and readable by Spark."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stubs forget to export three of them
    AdminClient,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from channels.kafka.config import QUIET, KafkaChannelConfig, settable
from channels.kafka.reader import CONSUMER, KafkaReader, epoch_of
from channels.kafka.records import ARROW, FORMAT, KEY, KafkaHeaders, decode, encode, raw_headers
from plugins import (
    Batch,
    Caution,
    Channel,
    Claim,
    EventId,
    FlafkaError,
    KafkaStream,
    Owner,
    Reader,
    Record,
    Rejected,
    Retry,
    Taken,
    flumeevent,
)

__all__ = ["KafkaChannel", "KafkaChannelConfig"]

MAX_RECORD_BYTES = 8 << 20
CONNECT_SECONDS = 10.0
STALL_SECONDS = 5.0
ANY_PARTITION = -1
"""The client's word for it: the one of the key, else one after another."""


class KafkaChannel(Channel[KafkaChannelConfig]):
    """Holds events in a replicated topic: `put` returns when all in-sync replicas have them, and nothing that it
    accepted is lost while one of them lives. Into it at least once: a put cut off in the middle may be repeated.
    """

    type_name = "kafka"
    aliases = ("org.apache.flume.channel.kafka.KafkaChannel",)
    durable: ClassVar[bool] = True
    counters = ("KafkaEventGetTimer", "KafkaEventSendTimer", "KafkaCommitTimer", "RollbackCount")

    def __init__(self, config: KafkaChannelConfig, name: str = "") -> None:
        super().__init__(config, name)
        self._producer: Producer | None = None
        self._lock = threading.Lock()
        self._stalled, self._stalled_since = 0, 0.0
        self._closed = threading.Event()
        self._cluster_id = self._topic_id = ""
        self._partitions, self._limit = 0, MAX_RECORD_BYTES
        self._poller: threading.Thread | None = None

    # --- life

    def open(self) -> None:
        """Create the topic where it is missing, and start the producer. Raises Retry while brokers are away."""
        config = self.config
        if not config.bootstrap_servers:
            raise FlafkaError(f"channel {self.name}: no kafka.bootstrap.servers, and no cluster was started")
        admin = AdminClient(self._client(config.producer))
        try:
            there = config.topic in admin.list_topics(timeout=CONNECT_SECONDS).topics
            if not there:
                self._create_topic(admin)
            description = self._describe(admin)
            self._topic_id, self._partitions = str(description.topic_id), len(description.partitions)
            self._limit = min(MAX_RECORD_BYTES, self._largest_record(admin))
            self._cluster_id = admin.list_topics(config.topic, timeout=CONNECT_SECONDS).cluster_id or ""
            for warning in self._weaknesses(admin, description) if there else ():
                self.log.warning("%s", warning)
        except KafkaException as e:
            raise Retry(self._unreachable(e)) from e
        self._closed.clear()
        self._producer = Producer(self._producer_properties())
        self._poller = threading.Thread(target=self._poll, name=f"{self.name}-producer", daemon=True)
        self._poller.start()

    def close(self) -> None:
        """Stop the producer; what is still under way is given up."""
        self._closed.set()
        if self._poller is not None:
            self._poller.join()
            self._poller = None
        if self._producer is not None:
            self._producer.purge()
            self._producer.flush(1)
            self._producer = None

    def probe(self) -> Iterator[str]:
        """Brokers away, too few of them, or a topic less safe than it should be."""
        config = self.config
        if not config.bootstrap_servers:
            yield "no kafka.bootstrap.servers, and no cluster of this user's is started: run `agent cluster start`"
            return
        admin = AdminClient(self._client(config.producer))
        try:
            metadata = admin.list_topics(timeout=CONNECT_SECONDS)
            if config.topic in metadata.topics:
                topics = admin.describe_topics(TopicCollection([config.topic]))
                yield from map(Caution, self._weaknesses(admin, topics[config.topic].result(CONNECT_SECONDS)))
            elif len(metadata.brokers) < config.replication:
                yield (
                    f"replication = {config.replication}, but only {len(metadata.brokers)} brokers are up at "
                    f"{config.bootstrap_servers}: start the others or set `replication = {len(metadata.brokers)}`"
                )
        except KafkaException as e:
            yield self._unreachable(e)

    # --- in

    def put(self, batch: Batch) -> None:
        """Return when every in-sync replica has the batch. Rejected names rows that no record can hold."""
        self.metrics.add("EventPutAttemptCount", len(batch))
        delivery = _Delivery()
        put = self._put_batches if self.config.format == "arrow" else self._put_events
        rejected = put(batch, delivery)
        with self.metrics.timed("KafkaEventSendTimer"):
            self._await(delivery, len(batch))
        if delivery.error is not None:
            self._replace_producer()
            raise Retry(f"channel {self.name}: {delivery.error}")
        self.metrics.add("EventPutSuccessCount", len(batch) - len(rejected))
        if rejected:
            raise Rejected({EventId("", -1, -1, row): reason for row, reason in rejected.items()})

    def _put_batches(self, batch: Batch, delivery: _Delivery) -> dict[int, str]:
        """Many events a record."""
        rejected: dict[int, str] = {}
        pieces = list(batch.split(self.config.batch_events, self.config.batch_bytes))
        pieces.reverse()
        start = 0
        while pieces:
            piece = pieces.pop()
            value, rows = encode(piece), len(piece)
            if len(value) > self._record_bytes and rows > 1:  # what does not compress, in a topic that takes less
                pieces += reversed(list(piece.split((rows + 1) // 2, piece.nbytes)))
                continue
            if len(value) > self._record_bytes:
                rejected[start] = self._too_large(len(value))
            else:
                self._produce(value, None, self._default_partition, [(FORMAT, ARROW)], delivery)
            start += rows
        return rejected

    def _put_events(self, batch: Batch, delivery: _Delivery) -> dict[int, str]:
        """One event a record."""
        config = self.config
        values: list[bytes] = (flumeevent.encode(batch) if config.format == "flume" else batch.bodies).to_pylist()
        keys: list[str | None] = batch.header(KEY).to_pylist()
        headers = raw_headers(batch) if config.format == "raw" else None
        partitions, rejected = self._partitions_of(batch)
        for row, value in enumerate(values):
            if len(value) > self._record_bytes:
                rejected[row] = self._too_large(len(value))
        rows = [row for row in range(len(batch)) if row not in rejected] if rejected else range(len(batch))
        if headers is not None:
            for row in rows:
                self._produce(values[row], keys[row], partitions[row], headers[row], delivery)
        else:
            messages: dict[int, list[dict[str, Any]]] = {}
            for row in rows:
                messages.setdefault(partitions[row], []).append({"value": values[row], "key": keys[row]})
            for partition, some in messages.items():
                self._produce_batch(some, partition, delivery)
        return rejected

    def _partitions_of(self, batch: Batch) -> tuple[list[int], dict[int, str]]:
        """The partition that each event asks for, and the rows that ask for none there is."""
        config = self.config
        chosen = [self._default_partition] * len(batch)
        unknown: dict[int, str] = {}
        if config.partition_id_header:
            for row, text in enumerate(batch.header(config.partition_id_header).to_pylist()):
                if text is None:
                    continue
                number = int(text) if re.fullmatch(r"[+-]?[0-9]{1,9}", text) else -1
                if 0 <= number < self._partitions:
                    chosen[row] = number
                else:
                    unknown[row] = (
                        f"header {config.partition_id_header!r} is {text[:40]!r}, and topic {config.topic} has "
                        f"partitions 0 to {self._partitions - 1}"
                    )
        return chosen, unknown

    @property
    def _default_partition(self) -> int:
        number = self.config.default_partition_id
        return ANY_PARTITION if number is None else number

    def _too_large(self, size: int) -> str:
        return f"an event of {size:,} bytes is more than a record of the channel holds ({self._limit:,})"

    def _await(self, delivery: _Delivery, events: int) -> None:
        started = time.monotonic()
        stalled = False
        while not delivery.wait(0.2):
            if self.stopping.is_set():
                raise Retry(f"channel {self.name} did not store {events} events before the agent stopped")
            if not stalled and time.monotonic() - started > STALL_SECONDS:
                stalled = True
                self._stall(+1)
        if stalled:
            self._stall(-1)

    def _stall(self, change: int) -> None:
        """Tell when puts begin to wait for long, and when none does any more: several are under way at once."""
        with self._lock:
            self._stalled += change
            if (self._stalled, change) == (1, +1):
                self._stalled_since = time.monotonic() - STALL_SECONDS
                text = (
                    f"no acknowledgement from Kafka at {self.config.bootstrap_servers} for {STALL_SECONDS:.0f} s: "
                    "too few brokers are up or in sync; sources wait, nothing is lost"
                )
                self.log.warning("%s", text)
                self.metrics.error(text)
            elif not self._stalled:
                self.log.info("Kafka acknowledges again after %.0f s", time.monotonic() - self._stalled_since)
                self.metrics.error("")

    def _produce(
        self, value: bytes, key: str | None, partition: int, headers: KafkaHeaders, delivery: _Delivery
    ) -> None:
        delivery.expect(1)
        while True:
            try:
                self._connected().produce(
                    self.config.topic, value, key, partition, headers=headers, on_delivery=delivery.report
                )
                return
            except BufferError:
                self._wait_for_room()
            except KafkaException as e:
                raise Retry(f"channel {self.name}: {e.args[0].str()}") from e

    def _produce_batch(self, messages: list[dict[str, Any]], partition: int, delivery: _Delivery) -> None:
        """Several records in one call, which knows no record headers."""
        while messages:
            delivery.expect(len(messages))
            try:
                self._connected().produce_batch(self.config.topic, messages, partition, on_delivery=delivery.report)
            except KafkaException as e:
                raise Retry(f"channel {self.name}: {e.args[0].str()}") from e
            failed = [message for message in messages if "_error" in message]
            delivery.expect(-len(failed))
            for message in failed:
                error = message.pop("_error")
                if error.code() != KafkaError._QUEUE_FULL:
                    raise Retry(f"channel {self.name}: {error.str()}")
            messages = failed
            if messages:
                self._wait_for_room()

    def _connected(self) -> Producer:
        if self._producer is None:
            raise Retry(f"channel {self.name} is not connected")
        return self._producer

    def _wait_for_room(self) -> None:
        if self.stopping.wait(0.005):
            raise Retry(f"channel {self.name} is full and the agent is stopping")

    def _poll(self) -> None:
        while not self._closed.is_set():
            producer = self._producer
            if producer is not None:
                producer.poll(0.2)

    def _replace_producer(self) -> None:
        # After a fatal error an idempotent producer refuses all work for ever.
        with self._lock:
            old, self._producer = self._producer, Producer(self._producer_properties())
        if old is not None:
            old.purge()
            old.flush(1)

    # --- out

    def reader(self, owner: Owner, *, group: str | None, member: str) -> Reader:
        """A consumer of the topic, a static member of its group."""
        config = self.config
        properties = {
            **self._client(config.consumer),
            "group.id": group or config.group_id,
            # With its topic: a static member that returns within its session gets its old partitions, and with them
            # those of another topic, if it was configured anew meanwhile.
            "group.instance.id": re.sub(r"[^\w.-]", "_", f"{member}.{config.topic}", flags=re.ASCII),
        }
        return KafkaReader(properties, self._claim(group), owner, self.metrics, self.decode)

    def stream(self, group: str | None) -> KafkaStream | None:
        """The topic, for Spark."""
        config = self.config
        return KafkaStream(
            config.bootstrap_servers or "", config.topic, group or config.group_id, client=config.consumer
        )

    def positions(self, group: str | None) -> Mapping[Claim, int | None]:
        """The group's committed offsets, with the epoch its latest deliberate reset left in their metadata."""
        consumer = self._onlooker(group)
        try:
            partitions = consumer.list_topics(self.config.topic, timeout=CONNECT_SECONDS).topics[self.config.topic]
            found = consumer.committed(
                [TopicPartition(self.config.topic, p) for p in partitions.partitions], timeout=CONNECT_SECONDS
            )
        except KafkaException as e:
            raise Retry(self._unreachable(e)) from e
        finally:
            consumer.close()
        claim = self._claim(group)
        return {
            claim._replace(epoch=epoch_of(tp.metadata), partition=tp.partition): tp.offset if tp.offset >= 0 else None
            for tp in found
        }

    def record(self, positions: Mapping[Claim, int]) -> None:
        """Commit offsets from outside the group, which works while the group has no members."""
        for group in {claim.group for claim in positions}:
            consumer = self._onlooker(group)
            offsets = [
                TopicPartition(claim.topic, claim.partition, end, metadata=f"epoch={claim.epoch}")
                for claim, end in positions.items()
                if claim.group == group
            ]
            try:
                consumer.commit(offsets=offsets, asynchronous=False)
            except KafkaException as e:
                raise Retry(f"group {group}: committing offsets failed: {e.args[0].str()}") from e
            finally:
                consumer.close()

    def decode(self, records: Iterator[Record], claim: Claim) -> Taken | None:
        """The next records of the topic, of any format."""
        return decode(records, claim, parse_as_flume_event=self.config.parse_as_flume_event)

    # --- within

    def _claim(self, group: str | None) -> Claim:
        config = self.config
        return Claim(self._cluster_id, config.topic, self._topic_id, group or config.group_id, 0, -1)

    def _onlooker(self, group: str | None) -> Consumer:
        group = group or self.config.group_id
        return Consumer({**CONSUMER, **self._client(self.config.consumer), "group.id": group})

    def _client(self, properties: Mapping[str, str]) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.config.bootstrap_servers,
            "client.id": f"flafka-{self.name}",
            "socket.keepalive.enable": True,
            "reconnect.backoff.max.ms": 2000,
            **QUIET,
            **settable(properties),
        }

    def _producer_properties(self) -> dict[str, Any]:
        return {
            "acks": "all",
            "enable.idempotence": True,
            "message.timeout.ms": 0,  # never give up: a source waits, and its sender with it
            "linger.ms": 5,
            "batch.size": min(1 << 20, self._limit),
            "message.max.bytes": MAX_RECORD_BYTES,
            "partitioner": "murmur2_random",  # Java's: a key has one partition, whoever writes
            "queue.buffering.max.kbytes": 64 << 10,
            "compression.type": "lz4",
            **self._client(self.config.producer),
        }

    def _create_topic(self, admin: AdminClient) -> None:
        config = self.config
        topic = NewTopic(
            config.topic,
            num_partitions=config.partitions,
            replication_factor=config.replication,
            config={
                "min.insync.replicas": str(min(2, config.replication)),
                "max.message.bytes": str(MAX_RECORD_BYTES),
                "retention.ms": str(config.retention * 3_600_000),
                "cleanup.policy": "delete",
            },
        )
        try:
            admin.create_topics([topic])[config.topic].result(CONNECT_SECONDS)
            self.log.info(
                "created topic %s: %d partitions, %d replicas", config.topic, config.partitions, config.replication
            )
        except KafkaException as e:
            code = e.args[0].code()
            if code == KafkaError.INVALID_REPLICATION_FACTOR:
                raise Retry(
                    f"channel {self.name}: replication = {config.replication} needs as many brokers; start them, or "
                    f"set replication lower"
                ) from e
            if code != KafkaError.TOPIC_ALREADY_EXISTS:
                raise

    def _describe(self, admin: AdminClient) -> Any:
        topic = self.config.topic
        return self._known(lambda: admin.describe_topics(TopicCollection([topic]))[topic])

    def _settings(self, admin: AdminClient) -> Any:
        resource = ConfigResource(ResourceType.TOPIC, self.config.topic)
        return self._known(lambda: admin.describe_configs([resource])[resource])

    def _known(self, ask: Callable[[], Any]) -> Any:
        """The answer about the topic; the broker that answers may not have heard yet of one just created."""
        deadline = time.monotonic() + CONNECT_SECONDS
        while True:
            try:
                return ask().result(CONNECT_SECONDS)
            except KafkaException as e:
                unknown = e.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART
                if not unknown or time.monotonic() > deadline or self.stopping.wait(0.05):
                    raise

    @property
    def _record_bytes(self) -> int:
        """What the value of a record may take of `_limit`; the rest is for its key, headers and framing."""
        return self._limit - 4096

    def _largest_record(self, admin: AdminClient) -> int:
        """Bytes; a topic of the user's may take less than ours do."""
        try:
            return int(self._settings(admin)["max.message.bytes"].value)
        except KafkaException as e:
            if e.args[0].code() not in (
                KafkaError.TOPIC_AUTHORIZATION_FAILED,
                KafkaError.CLUSTER_AUTHORIZATION_FAILED,
            ):
                raise
            return MAX_RECORD_BYTES

    def _weaknesses(self, admin: AdminClient, description: Any) -> Iterator[str]:
        topic = self.config.topic
        replicas = min((len(p.replicas) for p in description.partitions), default=0)
        if replicas < 3:
            yield f"topic {topic} has {replicas} replicas: 3 survive the loss of a broker without a pause"
        settings = self._settings(admin)
        in_sync = int(settings["min.insync.replicas"].value)
        if replicas > 1 and in_sync < 2:
            yield f"topic {topic} has min.insync.replicas={in_sync}: one broker lost may lose events; set it to 2"
        if settings["cleanup.policy"].value != "delete":
            yield f"topic {topic} is compacted: it would drop events; set cleanup.policy=delete"

    def _unreachable(self, error: KafkaException) -> str:
        return (
            f"channel {self.name}: no Kafka broker answers at {self.config.bootstrap_servers} "
            f"({error.args[0].str()}); is it running? `agent cluster status` tells for the project's own"
        )


class _Delivery:
    """Waits for the delivery reports of one put."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._open = 0
        self.error: str | None = None

    def expect(self, records: int) -> None:
        with self._condition:
            self._open += records

    def report(self, error: KafkaError | None, message: Message) -> None:
        with self._condition:
            self._open -= 1
            if error is not None:
                self.error = error.str()
            if self._open == 0:
                self._condition.notify_all()

    def wait(self, timeout: float) -> bool:
        with self._condition:
            return self._condition.wait_for(lambda: self._open == 0, timeout)
