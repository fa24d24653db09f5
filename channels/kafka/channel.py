"""The channel `kafka`, and requests of its admin client about the topic."""

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
from flafka.channels.kafka.records import address_to_group, decode, encode_event
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
from flafka.plugins.kafka.admin import (
    NO_BROKERS,
    create_topic,
    is_answering,
    lacking_operations,
    refused_operations,
    required_topic_id,
    unreachable_warnings,
)
from flafka.plugins.kafka.clients import REQUEST_SECONDS, new_admin
from flafka.plugins.kafka.errors import ReportedErrors, connection_error, explain_error, fetch_metadata
from flafka.plugins.kafka.metrics import (
    COMMIT_TIMER,
    GET_TIMER,
    RECORDS_LOST,
    ROLLBACKS,
    SEND_TIMER,
    TOPIC_RECREATED,
)
from flafka.plugins.kafka.properties import client_properties
from flafka.plugins.kafka.renewal import ClientRenewal
from flafka.plugins.kafka.topic import KafkaBackedChannel, KafkaTopic

EXISTS_SECONDS = 2.0
"""Longest time that a put waits for the answer whether the topic exists."""
CONCURRENT_CLIENTS = 8
"""Maximum number of concurrent clients for requests to single brokers."""
_UNAUTHORIZED = (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED)


class KafkaChannel(KafkaBackedChannel[KafkaChannelConfig]):
    """Stores events in a replicated topic. `put` returns once all in-sync replicas have them: no stored event is lost
    while one of these replicas is alive. Puts are at least once: an interrupted put may be repeated.
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
        """Number of times that a member had to join its group with another instance id, by member."""

    @cached_property
    def kafka(self) -> KafkaTopic:
        """Topic of the channel, read by clients with the properties of the channel's consumers."""
        config = self.config
        stream = KafkaStream(config.bootstrap_servers or "", config.topic, config.group_id, client=config.consumer)
        consumer = partial(self._client, config.consumer)
        return KafkaTopic(CHANNEL, stream, consumer, self.decode, self.log, f"channel {self.name}: ")

    @property
    def replication(self) -> int:
        """Configured number of replicas."""
        return self.config.replication

    @property
    def holds_batches(self) -> bool:
        """True for the format `arrow`."""
        return self.config.format == "arrow"

    def open(self) -> None:
        """Create the topic if it is missing, and start the producer.

        Raises Unreachable while brokers do not answer, and Retry if they refuse. Raises FlafkaError for a compacted
        topic, for brokers that are too old, and without configured brokers.
        """
        config = self.config
        if not config.bootstrap_servers:
            raise FlafkaError(f"channel {self.name}: {NO_BROKERS}")
        reported, prefix = ReportedErrors(), f"channel {self.name}: "
        renewal = ClientRenewal(config.producer, partial(self._client, config.producer), self.log)
        client = self._client(config.producer)
        metadata = fetch_metadata(client, REQUEST_SECONDS, prefix)
        if error := config.foreign_cluster_error(metadata.cluster_id):
            raise Retry(f"{prefix}{error}")
        topic_exists = config.topic in metadata.topics
        properties: dict[str, Any] = {**client, "error_cb": reported}
        admin = new_admin(CHANNEL, properties)
        self.kafka.attach(metadata.cluster_id or "")
        try:
            topic = TopicAdmin(admin, self)
            if not topic_exists:
                topic.refuse_old_brokers(metadata.topics)
                topic.create()
            description = topic.description()
            required_topic_id(description)
            limits = topic.limits()
            if limits.compacted:
                raise FlafkaError(f"channel {self.name}: {COMPACTED.format(config.topic)}")
            for warning in topic.weaknesses(description) if topic_exists else ():
                self.log.warning("%s", warning)
        except (KafkaException, TimeoutError) as e:
            admin.poll(0)  # calls `error_cb`
            right = "Describe" if topic_exists else refused_operations(admin, config.topic, ["Read", "Write"])
            raise connection_error(client, e, reported, prefix, topic=config.topic, right=right) from e
        partitions = len(description.partitions)
        requests = self._is_writable, self._request_limits, self._topic_exists
        self._producer = ChannelProducer(self, client, partitions, limits, *requests, renewal)

    def close(self) -> None:
        """Stop the producer, and purge records in flight."""
        if self._producer is not None:
            self._producer.close()
            self._producer = None
        if "kafka" in self.__dict__:  # release the client now, not when cycles are collected
            self.kafka.attach(self.kafka.cluster)

    def check_connectivity(self) -> Iterator[str]:
        """Yield errors about missing brokers, rights and a compacted topic, and warnings about an unsafe topic.

        A missing topic is no error if there are enough brokers to create it.
        """
        config = self.config
        if not config.bootstrap_servers:
            yield NO_BROKERS
            return
        client = self._client(config.producer)
        try:
            metadata = fetch_metadata(client, REQUEST_SECONDS)
        except Retry as e:
            yield str(e)
            return
        admin = new_admin(CHANNEL, client)
        try:
            yield from map(ConnectivityWarning, unreachable_warnings(config.bootstrap_servers))
            topic = TopicAdmin(admin, self)
            if error := config.foreign_cluster_error(metadata.cluster_id):
                yield error
                return
            topic.refuse_old_brokers(metadata.topics)
            if config.topic in metadata.topics:
                if topic.limits().compacted:
                    yield COMPACTED.format(config.topic)
                yield from map(ConnectivityWarning, topic.weaknesses(topic.description()))
                for right in lacking_operations(admin, config.topic, ["Read", "Write"]):  # of sinks, of sources
                    denied = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
                    text = explain_error(denied, topic=config.topic, right=right, client=client)
                    yield ConnectivityWarning(text)
            elif len(metadata.brokers) < config.replication:
                yield (
                    f"replication = {config.replication}, but only {len(metadata.brokers)} brokers are up at "
                    f"{config.bootstrap_servers}: start the others or set `replication = {len(metadata.brokers)}`"
                )
        except (KafkaException, TimeoutError) as e:
            yield str(connection_error(client, e, ReportedErrors(), topic=config.topic, right="Describe"))

    @property
    def refusal(self) -> str:
        """Reason why brokers refuse this client's login; empty while they do not, and while the channel is closed."""
        return self._producer.refusal if self._producer is not None else ""

    def _is_writable(self) -> bool:
        """Return True if the brokers could take a record in each partition now; False without an answer."""
        try:
            client = self._client(self.config.producer)
            return TopicAdmin(new_admin(CHANNEL, client), self).is_writable(client)
        except Exception as e:  # noqa: BLE001  # a keystore that cannot be read now, a broker that answers oddly
            self.log.debug("the brokers cannot be asked: %s", e)
            return False

    def _topic_exists(self) -> bool:
        """Return False if the brokers report that there is no such topic; True without an answer."""
        try:
            return TopicAdmin(new_admin(CHANNEL, self._client(self.config.producer)), self).exists()
        except Exception as e:  # noqa: BLE001  # a keystore that cannot be read now, a broker that answers oddly
            self.log.debug("the brokers cannot be asked: %s", e)
            return True

    def _request_limits(self) -> Limits:
        """Return the topic's limits, requested from the brokers now. Raises KafkaException or TimeoutError."""
        return TopicAdmin(new_admin(CHANNEL, self._client(self.config.producer)), self).limits()

    def put(self, batch: Batch) -> None:
        """Return once every in-sync replica has the batch.

        Raises Retry, and Rejected for rows that no record can hold.
        """
        self.put_in_order(batch, lambda: None)

    def put_in_order(self, batch: Batch, enqueued: Callable[[], None]) -> None:
        """Put the batch, in the order of the client's queue, which sends to each partition in order.

        `enqueued` is called once all records are in the queue. Raises as `put`.
        """
        if self._producer is None:
            raise Retry(f"channel {self.name} is not connected")
        self._producer.put(batch, enqueued)

    def reader(self, owner: RebalanceListener, *, group: str | None, member: str) -> Reader:
        """Return a consumer of the topic, a static member of its group.

        Raises Retry while the channel is not open.
        """
        config = self.config
        name = f"{member}.{config.topic}"

        def join_anew() -> None:
            self._joined[name] += 1

        instance = f"{name}.{self._joined[name]}" if self._joined[name] else name

        def properties() -> dict[str, Any]:
            return {
                **self._client({"client.id": f"flafka-{self.name}", **config.consumer}),
                "group.id": group or config.group_id,
                # The id includes the topic: a static member that returns within its session gets its former
                # partitions, also of another topic that was configured before.
                "group.instance.id": re.sub(r"[^\w.-]", "_", instance, flags=re.ASCII),
            }

        if self._producer is None:
            raise Retry(f"channel {self.name} is not connected")
        assignment, topic_ids = self.kafka.assignment(group), self.kafka.topic_ids
        renewal = ClientRenewal(config.consumer, properties, self.log)
        return KafkaReader(
            *(properties(), assignment, owner, self.metrics, self.decode, topic_ids, self.log, join_anew, renewal)
        )

    def find_event(self, id: EventId, groups: Collection[str | None]) -> EventLocation | None:
        """Return the state of the event, by its present record in the topic; None if its id is not of this topic."""
        return self.kafka.find_event(id, groups)

    def decode(self, records: Iterator[Record], assignment: Assignment) -> PolledBatch | None:
        """Return the next records of the topic, in any of its formats; None if there are no more."""
        return decode(records, assignment, parse_as_flume_event=self.config.parse_as_flume_event)

    def redelivery(self, lost: Event | Record, id: EventId, arrival: int, group: str) -> Record:
        """Return a record of the event or undecodable record, which only this group reads.

        An event has the channel's format. The record has that id, and that time of arrival in milliseconds.
        """
        record = lost if isinstance(lost, Record) else encode_event(lost, self.config.format)
        return address_to_group(record, id, arrival, group)

    def _client(self, properties: Mapping[str, str]) -> dict[str, Any]:
        """Return librdkafka's properties of a client of the channel, with the configured `properties`.

        Raises Retry.
        """
        return {**self.config.client(self.name), **client_properties(properties)}


class TopicAdmin:
    """Requests of one admin client about the topic. Each method raises KafkaException, and TimeoutError."""

    def __init__(self, admin: AdminClient, channel: KafkaBackedChannel[KafkaChannelConfig]) -> None:
        self._admin, self._channel, self._config = admin, channel, channel.config

    def create(self) -> None:
        """Create the topic as configured, unless it exists. Raises Retry if there are fewer brokers than replicas."""
        config, channel = self._config, self._channel
        settings = {
            "max.message.bytes": str(MAX_RECORD_BYTES),
            "retention.ms": str(config.retention * 3_600_000),
            "cleanup.policy": "delete",
        }
        parameters = config.topic, config.partitions, config.replication
        try:
            if create_topic(self._admin, *parameters, settings, REQUEST_SECONDS):
                channel.log.info("created topic %s: %d partitions, %d replicas", *parameters)
        except KafkaException as e:
            if e.args[0].code() != KafkaError.INVALID_REPLICATION_FACTOR:
                raise
            raise Retry(
                f"channel {channel.name}: replication = {config.replication} needs as many brokers; start them, or "
                f"set replication lower"
            ) from e

    def description(self) -> Any:
        """Return librdkafka's description of the topic: its id, partitions and replicas."""
        topic = self._config.topic
        return self._request(lambda: self._admin.describe_topics(TopicCollection([topic]))[topic])

    def refuse_old_brokers(self, topics: Iterable[str]) -> None:
        """Raise FlafkaError if the brokers are too old for the channel, by the description of one of these topics.

        Without any topic, nothing is known, and nothing raised.
        """
        names = sorted(topics, key=lambda name: name != self._config.topic)  # any topic, if the own one is missing
        if names:
            # Another channel may have created that topic just now: not each broker knows it yet.
            required_topic_id(
                self._request(lambda: self._admin.describe_topics(TopicCollection(names[:1]))[names[0]])
            )

    def exists(self) -> bool:
        """Return False if the brokers report that there is no such topic, else True.

        Blocks for up to `EXISTS_SECONDS`.
        """
        topic = self._config.topic
        futures = self._admin.describe_topics(TopicCollection([topic]), request_timeout=EXISTS_SECONDS)
        try:
            futures[topic].result(EXISTS_SECONDS)
        except KafkaException as e:
            if e.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise
            return False
        return True

    def _settings(self) -> Mapping[str, str]:
        """Return the topic's settings by name; empty if this client lacks the right `DescribeConfigs`."""
        resource = ConfigResource(ResourceType.TOPIC, self._config.topic)
        try:
            entries = self._request(lambda: self._admin.describe_configs([resource])[resource])
        except KafkaException as e:
            if e.args[0].code() not in _UNAUTHORIZED:
                raise
            return {}
        return {name: entry.value for name, entry in entries.items()}

    def _request(self, request: Callable[[], Any]) -> Any:
        """Return the result of a request, repeated while the broker does not know yet a topic just created."""
        deadline = time.monotonic() + REQUEST_SECONDS
        while True:
            try:
                return request().result(REQUEST_SECONDS)
            except KafkaException as e:
                is_unknown = e.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART
                if not is_unknown or time.monotonic() > deadline or self._channel.stopping.wait(0.05):
                    raise

    def limits(self) -> Limits:
        """Return the topic's limits; the channel's own limits if this client may not read settings."""
        settings = self._settings()
        limit = int(settings.get("max.message.bytes", MAX_RECORD_BYTES))
        return Limits(min(MAX_RECORD_BYTES, limit), "compact" in settings.get("cleanup.policy", ""))

    def is_writable(self, client: Mapping[str, Any]) -> bool:
        """Return True if each partition's leader and `min.insync.replicas` of its in-sync replicas answer.

        All replicas must answer if this client may not read the setting. Each broker gets a request from another
        client, with the properties of `client`: brokers without controllers return outdated metadata, and a frozen
        broker still accepts connections.
        """
        partitions = self.description().partitions
        latest: Any = OffsetSpec.latest()  # type: ignore[no-untyped-call]  # the client types its classes but not this
        ends = {TopicPartition(self._config.topic, partition.id): latest for partition in partitions}
        for future in self._admin.list_offsets(ends, request_timeout=REQUEST_SECONDS).values():
            future.result(REQUEST_SECONDS)
        addresses = list({(node.host, node.port) for partition in partitions for node in partition.isr})
        with ThreadPoolExecutor(max(1, min(len(addresses), CONCURRENT_CLIENTS))) as threads:
            results = threads.map(lambda address: is_answering(client, address, self._config.topic), addresses)
            is_up = dict(zip(addresses, results, strict=True))
        all_replicas = max(len(partition.replicas) for partition in partitions)
        required = int(self._settings().get("min.insync.replicas", all_replicas))
        return all(sum(is_up[node.host, node.port] for node in partition.isr) >= required for partition in partitions)

    def weaknesses(self, description: Any) -> Iterator[str]:
        """Yield a sentence for each setting of the topic that may cause a loss of events or a pause.

        `description` is the result of `description()`.
        """
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
