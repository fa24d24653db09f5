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
READ, WRITE, CREATE = AclOperation.READ, AclOperation.WRITE, AclOperation.CREATE
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
    suffixes = ("", ".deadletters", ".positions")
    own = [(TOPIC, topic + suffix, operation) for suffix in suffixes for operation in (READ, WRITE, CREATE)]
    own += [(TOPIC, f"{topic}.out", WRITE), (GROUP, topic, READ), (TRANSACTIONS, "flafka.", WRITE)]
    secured_kafka.allow(*own, (TOPIC, f"{topic}.denied", AclOperation.DESCRIBE))
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

    # first, as the first handshake of a new broker on a busy machine may exceed the time of a diagnosis
    right = tls | certificate(directory / "client" / "server.pem")
    assert fetch_metadata({"bootstrap.servers": servers["mutual"], **right}, 60).brokers
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
