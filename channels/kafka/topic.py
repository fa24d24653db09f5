"""The topic of a Kafka channel: how it is created, and what is said of one that is less safe than it should be."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec, ResourceType

from flafka.channels.kafka.config import KafkaChannelConfig
from flafka.channels.kafka.positions import topic_id_of
from flafka.channels.kafka.producing import MAX_RECORD_BYTES, Limits
from flafka.plugins import KafkaBackedChannel, Retry
from flafka.plugins.kafka.admin import answers, create_topic
from flafka.plugins.kafka.timeouts import REQUEST_SECONDS

EXISTS_SECONDS = 2.0
"""Maximum time that a put waits for the answer whether the topic exists."""
AT_ONCE = 8
"""Brokers that are asked by a client each."""
_NOT_ALLOWED = (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED)


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
            topic_id_of(self._admin.describe_topics(TopicCollection(names[:1]))[names[0]].result(REQUEST_SECONDS))

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
