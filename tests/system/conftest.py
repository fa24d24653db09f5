"""Fixtures of tests on real servers; some of them need a Kafka channel."""

from collections.abc import Iterator

import pytest

from flafka.agent.services.kafka import KafkaCluster
from flafka.channels.kafka import KafkaChannel
from tests.system.kafka_running import open_channel
from tests.system.running import unique


@pytest.fixture(autouse=True, scope="session")
def real(servers: None) -> None:
    """Request servers for every test in this folder: an agent that runs as a process is a server as well."""


@pytest.fixture(autouse=True)
def slow_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have `until` check a late condition ten times a second rather than twenty.

    Reading an agent's figures or a topic takes up to 30 ms of a processor that the servers under test need.
    """
    monkeypatch.setattr("flafka.agent.services.running.MAX_PAUSE_SECONDS", 0.1)


@pytest.fixture
def topic() -> str:
    """Name of a new topic, and of its group."""
    return unique("test")


@pytest.fixture
def channel(kafka_cluster: KafkaCluster, topic: str) -> Iterator[KafkaChannel]:
    """Open channel on a new topic with a new group."""
    opened = open_channel(kafka_cluster, topic)
    yield opened
    opened.close()
