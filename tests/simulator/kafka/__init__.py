"""Kafka as the simulation has it: its brokers, and the clients of confluent_kafka and kafka-python over them."""

from tests.simulator.kafka.admin import AdminClient
from tests.simulator.kafka.brokers import Brokers
from tests.simulator.kafka.consumer import Consumer
from tests.simulator.kafka.messages import Message
from tests.simulator.kafka.producer import Producer
from tests.simulator.kafka.python_client import KafkaAdminClient

__all__ = ["AdminClient", "Brokers", "Consumer", "KafkaAdminClient", "Message", "Producer"]
