"""The Kafka channel: one topic, which it makes, and what goes into it, comes out of it and is known of it."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec, ResourceType

from flafka.channels.kafka.compatibility import KAFKA
from flafka.channels.kafka.config import CHANNEL, KafkaChannelConfig
from flafka.channels.kafka.consumer import KafkaReader
from flafka.channels.kafka.producer import COMPACTED, MAX_RECORD_BYTES, ChannelProducer, Limits
from flafka.channels.kafka.records import decode, encode_event, readdressed
from flafka.plugins import (
    Assignment,
    Batch,
    ConnectivityWarning,
    Event,
    EventId,
    EventLocation,
    FlafkaError,
    KafkaStream,
    PolledBatch,
    Reader,
    RebalanceListener,
    Record,
    Retry,
)
from flafka.plugins.kafka.admin import NO_BROKERS, TopicIds, answers, create_topic, required_topic_id, unanswered
from flafka.plugins.kafka.clients import REQUEST_SECONDS, new_admin
from flafka.plugins.kafka.errors import ReportedErrors, metadata, unusable
from flafka.plugins.kafka.metrics import (
    COMMIT_TIMER,
    GET_TIMER,
    RECORDS_LOST,
    ROLLBACKS,
    SEND_TIMER,
    TOPIC_RECREATED,
)
from flafka.plugins.kafka.properties import client_properties
from flafka.plugins.kafka.topic import KafkaBackedChannel, KafkaTopic

EXISTS_SECONDS = 2.0
"""Maximum time that a put waits for the answer whether the topic exists."""
AT_ONCE = 8
"""Brokers that are asked by a client each."""
_NOT_ALLOWED = (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED)


class KafkaChannel(KafkaBackedChannel[KafkaChannelConfig]):
    """Holds events in a replicated topic: `put` returns when all in-sync replicas have them, and nothing that it
    accepted is lost while one of them lives. Into it at least once: a put cut off in the middle may be repeated.
    Batches are compressed with LZ4, from 1 MiB on with Zstandard, unless `kafka.producer.compression.type` is set.
    """

    type_name = "kafka"
    aliases = ("org.apache.flume.channel.kafka.KafkaChannel",)
    compatibility_notes = KAFKA
    declared_metrics = (GET_TIMER, SEND_TIMER, COMMIT_TIMER, ROLLBACKS, TOPIC_RECREATED, RECORDS_LOST)

    def __init__(self, config: KafkaChannelConfig, name: str = "") -> None:
        super().__init__(config, name)
        self._producer: ChannelProducer | None = None
        self._joined = Counter[str]()
        """Number of times that a member had to join its group under another name."""

    @cached_property
    def kafka(self) -> KafkaTopic:
        """The topic, by clients with the properties of the channel's consumers."""
        config = self.config
        stream = KafkaStream(config.bootstrap_servers or "", config.topic, config.group_id, client=config.consumer)
        consumer = partial(self._client, config.consumer)
        return KafkaTopic(CHANNEL, stream, consumer, self.decode, self.log, f"channel {self.name}: ")

    # --- life

    @property
    def replication(self) -> int:
        """Number of replicas, as configured."""
        return self.config.replication

    @property
    def holds_batches(self) -> bool:
        """In the format of Arrow."""
        return self.config.format == "arrow"

    def open(self) -> None:
        """Create the topic where it is missing, and start the producer. Raises Unreachable while brokers are away."""
        config = self.config
        if not config.bootstrap_servers:
            raise FlafkaError(f"channel {self.name}: {NO_BROKERS}")
        client, heard, whose = self._client(config.producer), ReportedErrors(), f"channel {self.name}: "
        found = metadata(client, REQUEST_SECONDS, whose)
        if foreign := config.foreign(found.cluster_id):
            raise Retry(f"{whose}{foreign}")
        there = config.topic in found.topics
        properties: dict[str, Any] = {**client, "error_cb": heard}
        admin = new_admin(CHANNEL, properties)
        self.kafka.use(found.cluster_id or "", TopicIds(admin, config.topic))
        try:
            topic = Topic(admin, self)
            if not there:
                topic.refuse_old(found.topics)
                topic.create()
            description = topic.description()
            required_topic_id(description)
            limits = topic.limits()
            if limits.compacted:
                raise FlafkaError(f"channel {self.name}: {COMPACTED.format(config.topic)}")
            for warning in topic.weaknesses(description) if there else ():
                self.log.warning("%s", warning)
        except (KafkaException, TimeoutError) as e:
            admin.poll(0)  # the callback runs within it
            right = "Describe" if there else "Create"
            raise unusable(client, e, heard, whose, topic=config.topic, right=right) from e
        partitions = len(description.partitions)
        asking = self._writable, self._limits, self._exists
        self._producer = ChannelProducer(self, client, partitions, limits, *asking)

    def close(self) -> None:
        """Stop the producer; what is still under way is given up."""
        if self._producer is not None:
            self._producer.close()
            self._producer = None
        if "kafka" in self.__dict__:  # its client must not wait for the collection of cycles
            self.kafka.use(self.kafka.cluster, None)

    def check_connectivity(self) -> Iterator[str]:
        """Brokers away, too few of them, or a topic less safe than it should be."""
        config = self.config
        if not config.bootstrap_servers:
            yield NO_BROKERS
            return
        client = self._client(config.producer)
        try:
            found = metadata(client, REQUEST_SECONDS)
        except Retry as e:
            yield str(e)
            return
        admin = new_admin(CHANNEL, client)
        try:
            yield from map(ConnectivityWarning, unanswered(config.bootstrap_servers))
            topic = Topic(admin, self)
            if foreign := config.foreign(found.cluster_id):
                yield foreign
                return
            topic.refuse_old(found.topics)
            if config.topic in found.topics:
                if topic.limits().compacted:
                    yield COMPACTED.format(config.topic)
                yield from map(ConnectivityWarning, topic.weaknesses(topic.description()))
            elif len(found.brokers) < config.replication:
                yield (
                    f"replication = {config.replication}, but only {len(found.brokers)} brokers are up at "
                    f"{config.bootstrap_servers}: start the others or set `replication = {len(found.brokers)}`"
                )
        except (KafkaException, TimeoutError) as e:
            yield str(unusable(client, e, ReportedErrors(), topic=config.topic, right="Describe"))

    # --- in

    @property
    def refusal(self) -> str:
        """Reason why brokers refuse this client's login; empty while they do not."""
        return self._producer.refusal if self._producer is not None else ""

    def _writable(self) -> bool:
        """Return True if the brokers say that they could take a record in each partition now.

        Without an answer, whatever the reason, a put still waits.
        """
        try:
            client = self._client(self.config.producer)
            return Topic(new_admin(CHANNEL, client), self).writable(client)
        except Exception as e:  # noqa: BLE001  # a keystore that cannot be read now, a broker that answers oddly
            self.log.debug("the brokers cannot be asked: %s", e)
            return False

    def _exists(self) -> bool:
        """Return False if the brokers say that there is no such topic; True where they do not answer."""
        try:
            return Topic(new_admin(CHANNEL, self._client(self.config.producer)), self).exists()
        except Exception as e:  # noqa: BLE001  # a keystore that cannot be read now, a broker that answers oddly
            self.log.debug("the brokers cannot be asked: %s", e)
            return True

    def _limits(self) -> Limits:
        """Ask the brokers for the topic's limits. Raises KafkaException or TimeoutError."""
        return Topic(new_admin(CHANNEL, self._client(self.config.producer)), self).limits()

    def put(self, batch: Batch) -> None:
        """Return when every in-sync replica has the batch. Rejected names rows that no record can hold."""
        self.put_in_order(batch, lambda: None)

    def put_in_order(self, batch: Batch, enqueued: Callable[[], None]) -> None:
        """Put the batch, in the order of the client's queue, which sends to each partition in order."""
        if self._producer is None:
            raise Retry(f"channel {self.name} is not connected")
        self._producer.put(batch, enqueued)

    # --- out

    def reader(self, owner: RebalanceListener, *, group: str | None, member: str) -> Reader:
        """A consumer of the topic, a static member of its group."""
        config = self.config
        name = f"{member}.{config.topic}"

        def join_anew() -> None:
            self._joined[name] += 1

        instance = f"{name}.{self._joined[name]}" if self._joined[name] else name
        properties = {
            **self._client({"client.id": f"flafka-{self.name}", **config.consumer}),
            "group.id": group or config.group_id,
            # With its topic: a static member that returns within its session gets its old partitions, and with them
            # those of another topic, if it was configured anew meanwhile.
            "group.instance.id": re.sub(r"[^\w.-]", "_", instance, flags=re.ASCII),
        }
        if self._producer is None:
            raise Retry(f"channel {self.name} is not connected")
        assignment, topic_ids = self.kafka.assignment(group), self.kafka.topic_ids
        return KafkaReader(properties, assignment, owner, self.metrics, self.decode, topic_ids, self.log, join_anew)

    def find(self, id: EventId, groups: Collection[str | None]) -> EventLocation | None:
        """The record, as it lies in the topic now."""
        return self.kafka.find(id, groups)

    def decode(self, records: Iterator[Record], assignment: Assignment) -> PolledBatch | None:
        """The next records of the topic, of any format."""
        return decode(records, assignment, parse_as_flume_event=self.config.parse_as_flume_event)

    def redelivery(self, lost: Event | Record, id: EventId, arrival: int, group: str) -> Record:
        """The event in a record of its own, in the channel's format; other groups pass over it."""
        record = lost if isinstance(lost, Record) else encode_event(lost, self.config.format)
        return readdressed(record, id, arrival, group)

    # --- within

    def _client(self, properties: Mapping[str, str]) -> dict[str, Any]:
        return {**self.config.client(self.name), **client_properties(properties)}


class Topic:
    """Questions of one client about the topic. Each call raises KafkaException where brokers do not answer."""

    def __init__(self, admin: AdminClient, channel: KafkaBackedChannel[KafkaChannelConfig]) -> None:
        self._admin, self._channel, self._config = admin, channel, channel.config

    def create(self) -> None:
        """Create it as configured; another agent may do so too. Raises Retry where brokers are too few."""
        config, channel = self._config, self._channel
        settings = {
            "max.message.bytes": str(MAX_RECORD_BYTES),
            "retention.ms": str(config.retention * 3_600_000),
            "cleanup.policy": "delete",
        }
        made = config.topic, config.partitions, config.replication
        try:
            if create_topic(self._admin, *made, settings, REQUEST_SECONDS):
                channel.log.info("created topic %s: %d partitions, %d replicas", *made)
        except KafkaException as e:
            if e.args[0].code() != KafkaError.INVALID_REPLICATION_FACTOR:
                raise
            raise Retry(
                f"channel {channel.name}: replication = {config.replication} needs as many brokers; start them, or "
                f"set replication lower"
            ) from e

    def description(self) -> Any:
        """Return its partitions and their replicas."""
        topic = self._config.topic
        return self._known(lambda: self._admin.describe_topics(TopicCollection([topic]))[topic])

    def refuse_old(self, topics: Iterable[str]) -> None:
        """Raise FlafkaError where the brokers, which have these topics, are too old for the channel."""
        names = sorted(topics, key=lambda name: name != self._config.topic)  # another one, before it is created
        if names:
            required_topic_id(
                self._admin.describe_topics(TopicCollection(names[:1]))[names[0]].result(REQUEST_SECONDS)
            )

    def exists(self) -> bool:
        """Return False if the brokers say that there is no such topic. Raises TimeoutError after `EXISTS_SECONDS`."""
        topic = self._config.topic
        asked = self._admin.describe_topics(TopicCollection([topic]), request_timeout=EXISTS_SECONDS)
        try:
            asked[topic].result(EXISTS_SECONDS)
        except KafkaException as e:
            if e.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise
            return False
        return True

    def _settings(self) -> Mapping[str, str]:
        """Settings by name; empty if this client may not ask for them (`DescribeConfigs`)."""
        resource = ConfigResource(ResourceType.TOPIC, self._config.topic)
        try:
            found = self._known(lambda: self._admin.describe_configs([resource])[resource])
        except KafkaException as e:
            if e.args[0].code() not in _NOT_ALLOWED:
                raise
            return {}
        return {name: entry.value for name, entry in found.items()}

    def _known(self, ask: Callable[[], Any]) -> Any:
        """The answer about the topic; the broker that answers may not have heard yet of one just created."""
        deadline = time.monotonic() + REQUEST_SECONDS
        while True:
            try:
                return ask().result(REQUEST_SECONDS)
            except KafkaException as e:
                unknown = e.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART
                if not unknown or time.monotonic() > deadline or self._channel.stopping.wait(0.05):
                    raise

    def limits(self) -> Limits:
        """Return the topic's limits; the channel's own ones if this client may not ask for settings."""
        settings = self._settings()
        largest = int(settings.get("max.message.bytes", MAX_RECORD_BYTES))
        return Limits(min(MAX_RECORD_BYTES, largest), "compact" in settings.get("cleanup.policy", ""))

    def writable(self, client: Mapping[str, Any]) -> bool:
        """Return True if the leader of each partition answers, and as many replicas in sync as the topic wants.

        Without the right to ask how many that are, all have to answer. Each is asked by itself, by another client
        with the properties of `client`. Brokers that have lost their controllers describe the past. A connection
        is no proof either, as a frozen broker takes one as well.
        """
        partitions = self.description().partitions
        latest: Any = OffsetSpec.latest()  # type: ignore[no-untyped-call]  # the client types its classes but not this
        ends = {TopicPartition(self._config.topic, one.id): latest for one in partitions}
        for answer in self._admin.list_offsets(ends, request_timeout=REQUEST_SECONDS).values():
            answer.result(REQUEST_SECONDS)
        addresses = list({(node.host, node.port) for one in partitions for node in one.isr})
        with ThreadPoolExecutor(max(1, min(len(addresses), AT_ONCE))) as threads:
            answered = threads.map(lambda address: answers(client, address, self._config.topic), addresses)
            up = dict(zip(addresses, answered, strict=True))
        all_replicas = max(len(one.replicas) for one in partitions)
        least = int(self._settings().get("min.insync.replicas", all_replicas))
        return all(sum(up[node.host, node.port] for node in one.isr) >= least for one in partitions)

    def weaknesses(self, description: Any) -> Iterator[str]:
        """Yield a sentence for each setting with which the topic may lose events or pause."""
        topic = self._config.topic
        replicas = min((len(p.replicas) for p in description.partitions), default=0)
        if replicas < 3:
            yield f"topic {topic} has {replicas} replicas: with 3, the loss of a broker causes no pause"
        in_sync = int(self._settings().get("min.insync.replicas", 2))
        if replicas > 1 and in_sync < 2:
            yield (
                f"topic {topic} has min.insync.replicas={in_sync}: the loss of one broker may lose events; set it "
                "to 2"
            )
