"""What tests on real servers share: they all need servers, and some a Kafka channel of their own."""

from collections.abc import Iterator

import pytest

from flafka.agent.services.kafka import KafkaCluster
from flafka.channels.kafka import KafkaChannel
from tests.system.kafka_running import open_channel
from tests.system.running import unique


@pytest.fixture(autouse=True, scope="session")
def real(servers: None) -> None:
    """Asks for servers, for every test in this folder: an agent that runs as a process is a server as well."""


@pytest.fixture(autouse=True)
def looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have `until` look at a condition that is late ten times a second rather than twenty.

    A look at an agent's figures or at a topic takes a processor for up to 30 ms, from servers that tests wait for.
    """
    monkeypatch.setattr("flafka.agent.services.running.LONGEST_PAUSE", 0.1)


@pytest.fixture
def topic() -> str:
    """A topic, and group, of its own."""
    return unique("test")


@pytest.fixture
def channel(kafka_cluster: KafkaCluster, topic: str) -> Iterator[KafkaChannel]:
    """An open channel on a topic and a group of its own."""
    opened = open_channel(kafka_cluster, topic)
    yield opened
    opened.close()
