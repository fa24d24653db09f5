"""The conformance kit on the Kafka channel."""

import uuid

from flafka.agent.services.kafka import KafkaCluster
from flafka.channels.kafka import KafkaChannel
from flafka.plugins import conformance
from tests.fixtures.kit import exercises


@exercises("channel kafka")
def test_kafka_channel(kafka_cluster: KafkaCluster) -> None:
    name = f"conformance-{uuid.uuid4().hex}"
    conformance.check_channel(
        KafkaChannel,
        {
            "kafka.bootstrap.servers": kafka_cluster.bootstrap_servers,
            "kafka.topic": name,
            "kafka.consumer.group.id": name,
            "partitions": "2",
        },
    )
