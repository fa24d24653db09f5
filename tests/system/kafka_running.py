"""Kafka channel without an agent, on real brokers: open it, fill it and read it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from flafka.agent.services.kafka import KafkaCluster
from flafka.agent.services.running import until
from flafka.channels.kafka import KafkaChannel, KafkaChannelConfig
from flafka.channels.kafka.records import ARROW, FORMAT, encode
from flafka.plugins import Assignment, Batch, Event, PolledBatch, Reader


class RebalanceListener:
    """Listener that follows its reader's partitions and starts at the committed offsets."""

    def __init__(self) -> None:
        self.assignments: dict[int, Assignment] = {}
        """Assignment and committed offset by partition."""

    def assigned(self, committed: Sequence[Assignment]) -> Sequence[Assignment]:
        self.assignments.update({assignment.partition: assignment for assignment in committed})
        return committed

    def next_assignments(self, polled: list[PolledBatch]) -> list[Assignment]:
        """Return the assignment of each partition, and the offset after the last batch."""
        ends: dict[int, int] = {}
        for batch in polled:
            ends[batch.assignment.partition] = max(ends.get(batch.assignment.partition, 0), batch.offsets.end)
        return [self.assignments[partition].with_offset(end) for partition, end in ends.items()]

    def revoked(self, partitions: set[int]) -> None:
        for partition in partitions:
            self.assignments.pop(partition, None)

    lost = revoked


def open_channel(kafka_cluster: KafkaCluster, topic: str, **properties: str) -> KafkaChannel:
    config, problems = KafkaChannelConfig.parse(
        {
            "kafka.bootstrap.servers": kafka_cluster.bootstrap_servers,
            "kafka.topic": topic,
            "kafka.consumer.group.id": topic,
            "partitions": "3",
            **properties,
        }
    )
    assert not problems
    assert config is not None
    opened = KafkaChannel(config, "c")
    opened.open()
    return opened


def alter(kafka_cluster: KafkaCluster, topic: str, **settings: str) -> None:
    """Change settings of a topic, and return when each broker has them."""
    resource = ConfigResource(
        ResourceType.TOPIC,
        topic,
        incremental_configs=[
            ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
            for name, value in settings.items()
        ],
    )
    admin = AdminClient({"bootstrap.servers": kafka_cluster.bootstrap_servers})
    admin.incremental_alter_configs([resource])[resource].result(30)
    for server in kafka_cluster.bootstrap_servers.split(","):
        broker = AdminClient({"bootstrap.servers": server})
        query = ConfigResource(ResourceType.TOPIC, topic)

        def has_setting(broker: AdminClient = broker, query: ConfigResource = query) -> bool:
            entries = broker.describe_configs([query])[query].result(30)
            return all(entries[name.replace("_", ".")].value == value for name, value in settings.items())

        until(has_setting, "a broker to know the settings", 20)


def events(*numbers: int) -> Batch:
    return Batch.of([Event(b"%d \xff" % n, {"n": str(n)}) for n in numbers])


def take(reader: Reader, count: int, seconds: float = 60) -> list[PolledBatch]:
    """Take this many events, or fail."""
    deadline, batches = time.monotonic() + seconds, list[PolledBatch]()
    while sum(len(t.batch) for t in batches) < count:
        assert time.monotonic() < deadline, f"only {sum(len(t.batch) for t in batches)} of {count} events came"
        if (batch := reader.take(0.2)) is not None:
            batches.append(batch)
    return batches


def contents(batches: list[PolledBatch]) -> list[tuple[Any, ...]]:
    return sorted((*id, event.body) for t in batches for id, event in zip(t.batch.ids(), t.batch, strict=True))


def abort_transaction(kafka: KafkaCluster, topic: str, patience: float) -> None:
    """Abort a foreign transaction on three partitions, which leaves invisible records and empty offsets."""
    producer = Producer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "transactional.id": topic,
            "log_level": 0,
            "message.timeout.ms": int(patience * 1000),
            "transaction.timeout.ms": int(patience * 1000),
        }
    )
    producer.init_transactions(patience)
    producer.begin_transaction()
    for partition in range(3):
        producer.produce(topic, encode(Batch.of([Event(b"aborted")])), headers=[(FORMAT, ARROW)], partition=partition)
    producer.flush(patience)
    producer.abort_transaction(patience)
