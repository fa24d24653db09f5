"""Kafka components and commands on a broker with TLS, passwords and access rights."""

from __future__ import annotations

import http.server
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from confluent_kafka.admin import AclOperation, ResourceType

from flafka.agent.services.running import RunningAgent
from flafka.plugins import Retry, Unreachable
from flafka.plugins.kafka.errors import fetch_metadata
from tests.fixtures.secured import SecuredKafka
from tests.system.running import agent_command, send, unique

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
    "the topic of a channel `kafka`": (TOPIC, "{}", "Read Write Describe Create"),
    "`<topic>.deadletters` and `audit.topic`": (TOPIC, "{}.deadletters", "Read Write Describe Create"),
    "`<topic>.positions`": (TOPIC, "{}.positions", "Read Write Describe Create"),
    "topics that a sink `kafka` writes": (TOPIC, "{}.out", "Write Describe"),
    "topics that a source `kafka` reads": (TOPIC, "{}.in", "Read Describe"),
    "the consumer groups of a channel `kafka` and of its sinks": (GROUP, "{}", "Read Describe"),
    "the transactional ids that begin with `flafka`": (TRANSACTIONS, "flafka", "Write Describe"),
}
"""Rights that docs/production.md names."""


def rights(topic: str, *, without: str = "") -> list[tuple[ResourceType, str, AclOperation]]:
    """Return the documented rights of an agent whose topic and consumer group have that name."""
    page = (Path(__file__).parents[2] / "docs/production.md").read_text()
    assert all(f"| {resource} | " in page for resource in RIGHTS)
    return [
        (kind, name.format(topic), AclOperation[operation.upper()])
        for kind, name, operations in RIGHTS.values()
        for operation in operations.split()
        if without != f"{operation} {name}"
    ]


def test_the_documented_rights_suffice_for_every_start(tmp_path: Path, secured_kafka: SecuredKafka) -> None:
    """A channel whose topic exists is opened in another way than one that creates its topic."""
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
            unexpected = [
                line for line in agent.log.splitlines() if " INFO " not in line and "has 1 replicas" not in line
            ]
            assert not unexpected


def test_an_event_for_a_topic_without_the_right_to_write_is_rejected_alone(
    tmp_path: Path, secured_kafka: SecuredKafka
) -> None:
    """Brokers do not report which topic of a transaction they refuse."""
    topic = unique("refused")
    text = CHANNEL + secured_kafka.client("login", component="a1.channels.c1")
    text = text.replace("sources = s1 s2", "sources = s1 s2 s3")
    text += f"a1.channels.c1.kafka.topic = {topic}\na1.channels.c1.kafka.consumer.group.id = {topic}\n"
    text += (
        f"a1.sinks = k1\na1.sinks.k1.type = kafka\na1.sinks.k1.channel = c1\na1.sinks.k1.kafka.topic = {topic}.out\n"
    )
    text += secured_kafka.client("login", component="a1.sinks.k1", kinds=("producer",))
    for source, name in (("s2", "__consumer_offsets"), ("s3", f"{topic}.denied")):
        text += f"a1.sources.{source}.type = seq\na1.sources.{source}.totalEvents = 1\n"
        text += f"a1.sources.{source}.channels = c1\na1.sources.{source}.interceptors = i\n"
        text += f"a1.sources.{source}.interceptors.i.type = static\na1.sources.{source}.interceptors.i.key = topic\n"
        text += f"a1.sources.{source}.interceptors.i.value = {name}\n"
    secured_kafka.allow(*rights(topic), (TOPIC, f"{topic}.denied", AclOperation.DESCRIBE))
    secured_kafka.create(f"{topic}.out")
    secured_kafka.create(f"{topic}.denied")
    with RunningAgent(tmp_path, text) as agent:
        agent.until(lambda: agent.get("/healthz")[0] == 200, "the agent to be healthy", 30)
        send(agent.port("s1"), b"event\n")
        agent.until(lambda: agent.count("SINK.k1", "EventDrainSuccessCount") == 1, "the event", 30)
        agent.until(lambda: agent.count("SINK.k1", "EventRejectedCount") == 2, "the others to be rejected", 30)
        assert agent.stop() == 0
    assert "Traceback" not in agent.log


def test_each_failure_has_its_own_message(secured_kafka: SecuredKafka) -> None:
    """Librdkafka reports `Broker transport failure` for all of them."""
    directory, servers = secured_kafka.directory, secured_kafka.servers
    web = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
    thread = threading.Thread(target=web.serve_forever, args=(0.05,))
    thread.start()
    tls = {"security.protocol": "SSL", "ssl.ca.location": str(directory / "server.crt")}
    login = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "flafka",
        "sasl.password": "secret",
    }

    def certificate(path: Path) -> dict[str, str]:
        return {"ssl.certificate.location": str(path), "ssl.key.location": str(path)}

    cases = [
        ("127.0.0.1:1", {}, "Connection refused; is it running?"),
        ("nowhere.invalid:9092", {}, "unknown host"),
        (f"127.0.0.1:{web.server_port}", {}, "an HTTP server answers, and no Kafka broker"),
        (servers["plain"], tls, "it does not speak TLS, and this client does"),
        (servers["tls"], {}, "it speaks TLS, and this client does not: set security.protocol = SSL"),
        (
            servers["tls"],
            {"security.protocol": "SSL"},
            "the broker's certificate (CN=localhost) is not trusted (self-signed certificate): name its authority",
        ),
        (servers["mutual"], tls, "it wants a certificate of this client, which has none"),
        (servers["mutual"], tls | certificate(directory / "server.pem"), "it refuses this client's certificate"),
        (servers["login"], login | {"sasl.password": "x"}, "it refuses user flafka: Invalid username or password"),
        (servers["login"], login | {"sasl.mechanism": "SCRAM-SHA-256"}, "it takes PLAIN"),
        (servers["login"], {}, "it wants a login: set security.protocol = SASL_PLAINTEXT"),
        (servers["both"], tls, "it wants a login: set security.protocol = SASL_SSL"),
        (servers["plain"], login, "it takes no logins there"),
    ]

    def refusal(case: tuple[str, dict[str, str], str]) -> tuple[str, bool]:
        address, client, _ = case
        with pytest.raises(Retry) as error:
            fetch_metadata({"bootstrap.servers": address, "log_level": 0, **client}, 1.5, "c1: ")
        return str(error.value), isinstance(error.value, Unreachable)

    try:
        with ThreadPoolExecutor(len(cases)) as threads:
            refusals = list(threads.map(refusal, cases))
    finally:
        web.shutdown()
        thread.join()
        web.server_close()
    for (address, _, expected), (text, away) in zip(cases, refusals, strict=True):
        assert expected in text
        assert text.startswith("c1: no Kafka broker")
        assert address in text
        assert away == (expected in ("Connection refused; is it running?", "unknown host")), text
    right = tls | certificate(directory / "client" / "server.pem")
    assert fetch_metadata({"bootstrap.servers": servers["mutual"], **right}, 10).brokers


def test_components_and_commands_report_a_wrong_password_alike(tmp_path: Path, secured_kafka: SecuredKafka) -> None:
    text = CHANNEL + "a1.sinks = k1\n" + secured_kafka.client("login", component="a1.channels.c1")
    text += "a1.sources.s2.type = kafka\na1.sources.s2.channels = c1\na1.sources.s2.kafka.topics = in\n"
    text += "a1.sinks.k1.type = kafka\na1.sinks.k1.channel = c1\na1.sinks.k1.kafka.topic = out\n"
    text += secured_kafka.client("login", component="a1.sinks.k1", kinds=("producer",))
    text += secured_kafka.client("login", component="a1.sources.s2", kinds=("consumer",))
    file, client = tmp_path / "agent.conf", tmp_path / "client.properties"
    file.write_text(text.replace("= secret", "= wrong"))
    client.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.jaas.config=org.apache.kafka.common.security."
        'plain.PlainLoginModule required username="flafka" password="wrong";\n'
    )
    server = secured_kafka.servers["login"]
    expected = f"no Kafka broker at {server} takes this client: it refuses user flafka: Invalid username or password"
    checked = agent_command("check", "-c", str(file), "--connect", "--json")
    diagnostics = json.loads(checked.stdout)["diagnostics"]
    reporting = {diagnostic["component"] for diagnostic in diagnostics if expected in diagnostic["message"]}
    assert reporting == {"a1.channels.c1", "a1.sources.s2", "a1.sinks.k1"}, diagnostics
    for command in ("topic", "group"):
        result = agent_command(command, "list", "--bootstrap-server", server, "--command-config", str(client))
        assert result.returncode == 1
        assert expected in result.stderr


def test_a_right_that_is_missing_is_named_with_its_resource(tmp_path: Path, secured_kafka: SecuredKafka) -> None:
    topic = unique("denied")
    names = [f"{topic}.{name}" for name in ("in", "hidden", "out")]
    for name in names:
        secured_kafka.create(name)
    operations = {name: AclOperation[name.upper()] for name in ("Read", "Write", "Describe", "Create")}
    secured_kafka.allow(
        *((TOPIC, topic, operation) for operation in operations.values()),
        (TOPIC, f"{topic}.in", AclOperation.DESCRIBE),
        (TOPIC, f"{topic}.out", AclOperation.DESCRIBE),
        (GROUP, f"{topic}.in", AclOperation.READ),
    )
    lines = f"""
sources = s1 s2 s3
channels = m c1 c2
sinks = k1 k2 k3
sources.s1.type = seq
sources.s1.totalEvents = 1
sources.s1.channels = m
sources.s2.type = kafka
sources.s2.channels = c1
sources.s2.kafka.topics = {topic}.in
sources.s2.kafka.consumer.group.id = {topic}.in
sources.s3.type = kafka
sources.s3.channels = c1
sources.s3.kafka.topics = {topic}.hidden
channels.m.type = memory
channels.c1.type = kafka
channels.c1.replication = 1
channels.c1.kafka.topic = {topic}
channels.c1.kafka.consumer.group.id = {topic}
channels.c2.type = kafka
channels.c2.replication = 1
channels.c2.kafka.topic = {topic}.none
sinks.k1.type = null
sinks.k1.channel = c1
sinks.k2.type = null
sinks.k2.channel = c2
sinks.k3.type = kafka
sinks.k3.channel = m
sinks.k3.kafka.topic = {topic}.out
"""
    text = "\n".join(f"a1.{line}" for line in lines.split("\n") if line) + "\n"
    for component, kinds in (
        ("sources.s2", ("consumer",)),
        ("sources.s3", ("consumer",)),
        ("channels.c1", ("producer", "consumer")),
        ("channels.c2", ("producer", "consumer")),
        ("sinks.k3", ("producer",)),
    ):
        text += secured_kafka.client("login", component=f"a1.{component}", kinds=kinds)
    expected = {
        "SOURCE.s2": f"user flafka lacks the right Read on topic {topic}.in ",
        "SOURCE.s3": f"user flafka lacks the right Describe on topic {topic}.hidden ",
        "CHANNEL.c2": f"user flafka lacks the right Create on topic {topic}.none ",
        "SINK.k1": f"user flafka lacks the right Read on consumer group {topic} ",
        "SINK.k3": f"user flafka lacks the right Write on topic {topic}.out ",
    }
    secured_kafka.produce(f"{topic}.in")
    with RunningAgent(tmp_path, text) as agent:
        agent.until(
            lambda: all(message in agent.failing().get(name, "") for name, message in expected.items()),
            "the missing rights to be named",
            40,
        )
