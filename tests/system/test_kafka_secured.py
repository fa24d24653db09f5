"""Kafka components and commands on a broker with TLS, passwords and access rights."""

from __future__ import annotations

from pathlib import Path

from confluent_kafka.admin import AclOperation, ResourceType

from agent.services.running import RunningAgent
from tests.fixtures.secured import SecuredKafka
from tests.system.running import send, unique

TOPIC, GROUP, TRANSACTIONS = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID
CHANNEL = """
a1.sources = s1 s2
a1.channels = c1
a1.sources.s1.type = netcat
a1.sources.s1.bind = 127.0.0.1
a1.sources.s1.port = 0
a1.sources.s1.channels = c1
a1.channels.c1.type = kafka
a1.channels.c1.replication = 1
a1.channels.c1.partitions = 1
"""


RIGHTS = {
    "the topic": (TOPIC, "{}", "Read Write Describe Create"),
    "`<topic>.deadletters`": (TOPIC, "{}.deadletters", "Read Write Describe Create"),
    "`<topic>.positions`": (TOPIC, "{}.positions", "Read Write Describe Create"),
    "topics that a sink `kafka` writes": (TOPIC, "{}.out", "Write Describe"),
    "topics that a source `kafka` reads": (TOPIC, "{}.in", "Read Describe"),
    "the consumer groups of sinks and sources `kafka`": (GROUP, "{}", "Read Describe"),
    "the transactional ids that begin with `flafka`": (TRANSACTIONS, "flafka", "Write Describe"),
}
"""Rights that docs/production.md names."""


def rights(topic: str, *, without: str = "") -> list[tuple[ResourceType, str, AclOperation]]:
    """The documented rights of an agent whose topic and consumer group have that name."""
    page = (Path(__file__).parents[2] / "docs/production.md").read_text()
    assert all(f"| {on} | " in page for on in RIGHTS)
    return [
        (kind, name.format(topic), AclOperation[operation.upper()])
        for kind, name, operations in RIGHTS.values()
        for operation in operations.split()
        if without != f"{operation} {name}"
    ]


def test_the_documented_rights_suffice_for_every_start(tmp_path: Path, secured_kafka: SecuredKafka) -> None:
    """A channel whose topic is there already is opened in another way than one that creates its topic."""
    topic = unique("rights")
    text = CHANNEL + secured_kafka.client("login", component="a1.channels.c1")
    text += f"a1.channels.c1.kafka.topic = {topic}\na1.channels.c1.kafka.consumer.group.id = {topic}\n"
    text += (
        f"a1.sinks = k1\na1.sinks.k1.type = kafka\na1.sinks.k1.channel = c1\na1.sinks.k1.kafka.topic = {topic}.out\n"
    )
    text += secured_kafka.client("login", component="a1.sinks.k1", kinds=("producer",))
    text += "a1.channels.c1.defaultPartitionId = 0\n"
    text += "a1.sources.s2.setTopicHeader = false\na1.sources.s2.type = kafka\na1.sources.s2.channels = c1\n"
    text += f"a1.sources.s2.kafka.topics = {topic}.in\na1.sources.s2.kafka.consumer.group.id = {topic}\n"
    text += secured_kafka.client("login", component="a1.sources.s2", kinds=("consumer",))
    secured_kafka.allow(*rights(topic))
    secured_kafka.create(f"{topic}.out")
    secured_kafka.create(f"{topic}.in")
    for start in range(2):
        with RunningAgent(tmp_path, text) as agent:
            agent.until(lambda: agent.get("/healthz")[0] == 200, "the agent to be healthy", 30)
            send(agent.port("s1"), b"event %d\n" % start)
            agent.until(lambda: agent.count("SINK.k1", "EventDrainSuccessCount") == 1, "the event", 30)
            assert agent.stop() == 0
            told = [line for line in agent.log.splitlines() if " INFO " not in line and "has 1 replicas" not in line]
            assert not told
