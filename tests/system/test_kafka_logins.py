"""Every way to log in at a broker whose listeners refuse all others, in the words of both clients."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import javaproperties
import pytest
from click.testing import CliRunner
from confluent_kafka.admin import (
    AclOperation,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from flafka.agent.cli import main
from flafka.agent.jvm.jars import ensure
from flafka.agent.jvm.java import find_java
from flafka.agent.services.cluster import java_command
from flafka.agent.services.running import RunningAgent
from flafka.plugins import Retry
from flafka.plugins.kafka.clients import QUERY, new_admin
from flafka.plugins.kafka.errors import fetch_metadata
from flafka.plugins.kafka.properties import QUIET, client_properties, java_properties
from tests.fixtures.secured import LISTENERS, MECHANISMS, QUOTED_PASSWORD, SecuredKafka
from tests.system.running import agent_command, send, unique

PLANTED = "Xy7zQ"
"""Part of the password that no quoting changes."""
PACKAGE = "org.apache.kafka.common.security."
TOKEN_SECONDS = 4.0
EVERYTHING = (
    (ResourceType.TOPIC, "*", AclOperation.ALL),
    (ResourceType.GROUP, "*", AclOperation.ALL),
    (ResourceType.TRANSACTIONAL_ID, "flafka", AclOperation.ALL),
)


def keytool(*arguments: str) -> None:
    main = [find_java().path, "-XX:TieredStopAtLevel=1", "-m", "java.base/sun.security.tools.keytool.Main"]
    subprocess.run([*main, *arguments, "-noprompt"], check=True, capture_output=True)


@pytest.fixture(scope="module")
def stores(secured_kafka: SecuredKafka, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory with a trust store and a key store of Java's own kind, JKS."""
    directory, kafka = tmp_path_factory.mktemp("stores"), secured_kafka.directory
    trust = ["-importcert", "-file", str(kafka / "server.crt"), "-alias", "broker"]
    keys = ["-importkeystore", "-srckeystore", str(kafka / "client/server.p12"), "-srcstorepass", "changeit"]
    names = ("-keystore", "-storepass"), ("-destkeystore", "-deststorepass")
    with ThreadPoolExecutor(2) as threads:
        for (command, (store, password)), file in zip(
            zip((trust, keys), names, strict=True), ("trust.jks", "key.jks"), strict=True
        ):
            kind = ["-deststoretype" if command is keys else "-storetype", "JKS"]
            threads.submit(keytool, *command, store, str(directory / file), password, "changeit", *kind)
    for name in ("trust.jks", "key.jks"):
        assert (directory / name).read_bytes().startswith(b"\xfe\xed\xfe\xed")
    return directory


def jaas(module: str, quote: str = '"', **options: str) -> str:
    """Return a JAAS text whose values have these quotes."""
    escaped = {name: value.replace("\\", "\\\\").replace(quote, f"\\{quote}") for name, value in options.items()}
    pairs = " ".join(f"{name.replace('__', '.')}={quote}{value}{quote}" for name, value in escaped.items())
    return f"{PACKAGE}{module}LoginModule required {pairs};"


def librdkafkas(kafka: SecuredKafka, listener: str) -> dict[str, str]:
    """Return properties of a client in librdkafka's words."""
    properties = kafka.security(listener)
    if listener == "mutual":
        pem = str(kafka.directory / "client" / "server.pem")
        properties |= {"ssl.certificate.location": pem, "ssl.key.location": pem}
    elif listener != "token":
        properties |= {"sasl.username": "quoted", "sasl.password": QUOTED_PASSWORD}
    return properties


def javas(kafka: SecuredKafka, listener: str, stores: Path) -> dict[str, str]:
    """Return properties of the same client in the words of Java's."""
    jks = {"ssl.truststore.location": str(stores / "trust.jks"), "ssl.truststore.password": "changeit"}
    pkcs12 = {**jks, "ssl.truststore.type": "PKCS12", "ssl.truststore.location": str(kafka.directory / "server.p12")}
    pem = {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(kafka.directory / "server.crt")}
    user = {"username": "quoted", "password": QUOTED_PASSWORD}
    ca = {"ssl__truststore__type": "PEM", "ssl__truststore__location": str(kafka.tokens.ca)}
    properties = {
        "mutual": {**jks, "ssl.keystore.location": str(stores / "key.jks"), "ssl.keystore.password": "changeit"},
        "both": {**pkcs12, "sasl.jaas.config": jaas("plain.Plain", **user)},
        "sha256": {**jks, "sasl.jaas.config": jaas("scram.Scram", "'", **user)},
        "sha512": {**pem, "sasl.jaas.config": jaas("scram.Scram", **user)},
        "token": {
            **jks,
            "sasl.login.callback.handler.class": f"{PACKAGE}oauthbearer.OAuthBearerLoginCallbackHandler",
            "sasl.oauthbearer.token.endpoint.url": kafka.tokens.url,
            "sasl.jaas.config": jaas(
                "oauthbearer.OAuthBearer", clientId="flafka", clientSecret="secret", scope="kafka", **ca
            ),
        },
    }[listener]
    if listener in MECHANISMS:
        properties["sasl.mechanism"] = MECHANISMS[listener]
    return {"security.protocol": LISTENERS[listener], **properties}


def lines(prefix: str, properties: Mapping[str, str]) -> str:
    """Return lines of a file of properties."""
    return "".join(f"{prefix}{name} = {value}\n".replace("\\", "\\\\") for name, value in properties.items())


def pipeline(kafka: SecuredKafka, listener: str, topic: str, stores: Path) -> str:
    """Return lines of components of agent `a1`: netcat, Kafka channel, sink, source, and a file."""
    java = {"flumes": {"security.protocol": "SSL"}, "javas": javas(kafka, listener, stores)}
    source = "flumes" if listener == "mutual" else "javas"
    text = f"""
sources.n-{listener}.type = netcat
sources.n-{listener}.bind = 127.0.0.1
sources.n-{listener}.port = 0
sources.n-{listener}.channels = c-{listener}
channels.c-{listener}.type = kafka
channels.c-{listener}.replication = 1
channels.c-{listener}.partitions = 1
channels.c-{listener}.kafka.topic = {topic}
channels.c-{listener}.kafka.consumer.group.id = {topic}
sinks.k-{listener}.type = kafka
sinks.k-{listener}.channel = c-{listener}
sinks.k-{listener}.kafka.topic = {topic}.out
sources.r-{listener}.type = kafka
sources.r-{listener}.channels = m
sources.r-{listener}.setTopicHeader = false
sources.r-{listener}.kafka.topics = {topic}.out
sources.r-{listener}.kafka.consumer.group.id = {topic}.out
"""
    for component, kind, properties in (
        ("channels.c", "producer", librdkafkas(kafka, listener)),
        ("channels.c", "consumer", librdkafkas(kafka, listener)),
        ("sinks.k", "producer", java["javas"]),
        ("sources.r", "consumer", java[source]),
    ):
        text += lines(f"{component}-{listener}.kafka.{kind}.", properties)
    for component in ("channels.c", "sinks.k", "sources.r"):
        text += f"{component}-{listener}.kafka.bootstrap.servers = {kafka.servers[listener]}\n"
    kafka.create(f"{topic}.out")
    return re.sub("^(?=[a-z])", "a1.", text, flags=re.MULTILINE)


def agent_of(listeners: tuple[str, ...], directory: Path) -> str:
    """Return lines that name the components of `pipeline`."""
    return f"""
a1.sources = {" ".join(f"n-{listener} r-{listener}" for listener in listeners)}
a1.channels = m {" ".join(f"c-{listener}" for listener in listeners)}
a1.sinks = f {" ".join(f"k-{listener}" for listener in listeners)}
a1.channels.m.type = memory
a1.sinks.f.type = file_roll
a1.sinks.f.channel = m
a1.sinks.f.sink.directory = {directory}
a1.sinks.f.sink.rollInterval = 0
"""


def written(directory: Path) -> list[str]:
    """Return the lines that the sink `f` has written, in order."""
    return sorted(line for file in directory.glob("*") for line in file.read_text().splitlines())


def listed(kafka: SecuredKafka, listener: str, stores: Path, directory: Path) -> str:
    """Return the topics and groups that commands print which log in by a file for Kafka's own tools."""
    file, printed = directory / f"{listener}.properties", ""
    file.write_text(lines("", javas(kafka, listener, stores)))
    for what in ("topic", "group"):
        options = ["--bootstrap-server", kafka.servers[listener], "--command-config", str(file)]
        result = CliRunner().invoke(main, [what, "list", *options])
        assert result.exit_code == 0, result.output
        assert not result.stderr
        printed += result.stdout
    return printed


def listed_by_java(kafka: SecuredKafka, directory: Path) -> str:
    """Return the topics that Kafka's own tool prints with a token, by the properties for Spark.

    Java's client of Kafka 4 allows no token endpoint by default, that of Spark 4 all.
    """
    file, jars = directory / "java.properties", [ensure("kafka-tools") / "*", ensure("kafka") / "*"]
    file.write_text(javaproperties.dumps(java_properties(kafka.security("token"))))
    options = [f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={kafka.tokens.url}"]
    tool = java_command(find_java(), jars, "org.apache.kafka.tools.TopicCommand", heap_mb=64, options=options)
    command = [*tool, "--list", "--bootstrap-server", kafka.servers["token"], "--command-config", str(file)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def refusals(agent: RunningAgent) -> list[str]:
    """Return the lines of the log about a login that failed."""
    return [line for line in agent.log.splitlines() if re.search("it refuses|does not take|no token|not trust", line)]


def listed_with_newer_names(kafka: SecuredKafka, directory: Path) -> str:
    """Return the topics that the command prints with the names of Java's client since Kafka 4.1."""
    properties = kafka.security("token")
    for name in ("id", "secret"):
        value = properties.pop(f"sasl.oauthbearer.client.{name}")
        properties[f"sasl.oauthbearer.client.credentials.client.{name}"] = value
    file = directory / "newer.properties"
    file.write_text(lines("", properties))
    options = ["--bootstrap-server", kafka.servers["token"], "--command-config", str(file)]
    result = CliRunner().invoke(main, ["topic", "list", *options])
    assert result.exit_code == 0, result.output
    return result.output


def test_certificates_and_passwords(tmp_path: Path, secured_kafka: SecuredKafka, stores: Path) -> None:
    """The channel has librdkafka's words, the sink and the source Java's, and one source Flume's variables."""
    kafka, listeners = secured_kafka, ("mutual", "both", "sha256", "sha512")
    credentials = [
        UserScramCredentialUpsertion("quoted", ScramCredentialInfo(mechanism, 4096), QUOTED_PASSWORD.encode())
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512)
    ]
    for credential in credentials:
        for answer in kafka.admin.alter_user_scram_credentials([credential]).values():
            answer.result(20)
    kafka.allow(*EVERYTHING, user="*")
    topics = {listener: unique(listener) for listener in listeners}
    text = agent_of(listeners, tmp_path / "out")
    text += "".join(pipeline(kafka, listener, topic, stores) for listener, topic in topics.items())
    text += "a1.sinks.k-sha512.kafka.producer.debug = all\na1.sinks.k-sha512.kafka.producer.log_level = 7\n"
    (tmp_path / "out").mkdir()
    environment = {
        "FLUME_SSL_KEYSTORE_PATH": str(kafka.directory / "client/server.p12"),
        "FLUME_SSL_KEYSTORE_PASSWORD": "changeit",
        "FLUME_SSL_TRUSTSTORE_PATH": str(stores / "trust.jks"),
        "FLUME_SSL_TRUSTSTORE_PASSWORD": "changeit",
    }
    file = tmp_path / "agent.conf"
    options = ("-c", str(file), "--log-level", "DEBUG")
    with RunningAgent(tmp_path, text, *options, environment=environment) as agent:
        agent.wait_until_healthy()
        for listener in listeners:
            send(agent.port(f"n-{listener}"), f"by {listener}\n".encode())
        expected = sorted(f"by {listener}" for listener in listeners)
        agent.until(lambda: written(tmp_path / "out") == expected, "the events", 90)
        checked = agent_command("check", "-c", str(file), "--connect", "--json", environment=environment)
        assert checked.returncode == 0, checked.stdout
        for listener, topic in topics.items():
            assert f"{topic}.out" in listed(kafka, listener, stores, tmp_path)
        agent.until(
            lambda: all(
                agent.metrics()[f"CHANNEL.c-{listener}"].get("BrokersDown") == "0"
                and agent.metrics()[f"SINK.k-{listener}"].get("Lag") == "0"
                for listener in listeners
            ),
            "the dashboard to have seen the brokers",
            30,
        )
        assert agent.stop() == 0
        assert not refusals(agent)
    assert "SASL" in agent.log
    assert PLANTED not in agent.log


def test_tokens_over_three_lives(tmp_path: Path, secured_kafka: SecuredKafka, stores: Path) -> None:
    """Clients idle for three lives of a token, while the broker requires a new login for each."""
    kafka, topic, tokens = secured_kafka, unique("token"), secured_kafka.tokens
    kafka.allow(*EVERYTHING)
    text = agent_of(("token",), tmp_path / "out") + pipeline(kafka, "token", topic, stores)
    text += f"a1.audit.topic = {topic}.audit\n"
    text += """
a1.sources.n-token.interceptors = i
a1.sources.n-token.interceptors.i.type = regex_extractor
a1.sources.n-token.interceptors.i.regex = (__consumer_offsets)
a1.sources.n-token.interceptors.i.serializers = s
a1.sources.n-token.interceptors.i.serializers.s.name = topic
"""
    (tmp_path / "out").mkdir()
    file = tmp_path / "agent.conf"
    tokens.life = TOKEN_SECONDS
    try:
        with RunningAgent(tmp_path, text) as agent:
            agent.wait_until_healthy()
            port = agent.port("n-token")
            send(port, b"first\n__consumer_offsets\n")
            agent.until(lambda: written(tmp_path / "out") == ["first"], "the first event", 60)
            agent.until(lambda: agent.count("SINK.k-token", "EventRejectedCount") == 1, "a dead letter", 30)
            idle = time.time()
            assert f"{topic}.out" in listed(kafka, "token", stores, tmp_path)
            assert f"{topic}.out" in listed_by_java(kafka, tmp_path)
            assert f"{topic}.out" in listed_with_newer_names(kafka, tmp_path)
            for command in (("check", "--connect"), ("dlq", "replay", "--yes"), ("audit",)):
                result = agent_command(*command, "-c", str(file))
                assert result.returncode == 0, (command, result.stdout, result.stderr)
            agent.until(lambda: agent.count("SINK.k-token", "EventRejectedCount") == 2, "the replayed letter", 30)
            assert tokens.scopes == {"none", "kafka"}
            agent.until(lambda: time.time() - idle > 3 * TOKEN_SECONDS, "three lives of a token", 60)
            agent.until(lambda: not agent.failing(), "the agent to be healthy", 60)
            send(port, b"last\n")
            agent.until(lambda: written(tmp_path / "out") == ["first", "last"], "the last event", 60)
            assert agent.stop() == 0
            assert not refusals(agent)
    finally:
        del tokens.life


def test_each_refused_login_has_its_own_message(secured_kafka: SecuredKafka) -> None:
    kafka = secured_kafka
    ca, endpoint = str(kafka.directory / "server.crt"), kafka.tokens.url
    wrong = {"sasl.password": "wrong"}
    foreign = {"ssl.ca.location": str(kafka.tokens.ca)}
    untrusted = "the broker's certificate (CN=localhost) is not trusted (self-signed certificate): name its "
    cases = [
        ("both", wrong, "it refuses user flafka: Invalid username or password (PLAIN; check sasl.username and"),
        ("sha256", wrong, "it refuses user flafka: Authentication failed during authentication due to invalid"),
        ("sha512", {"sasl.username": "nobody"}, "it refuses user nobody: Authentication failed during"),
        ("sha256", {"sasl.mechanism": "SCRAM-SHA-512"}, "SCRAM-SHA-512; it takes SCRAM-SHA-256"),
        ("sha512", {"sasl.mechanism": "PLAIN"}, "sasl.mechanism = PLAIN; it takes SCRAM-SHA-512"),
        ("both", {"sasl.mechanism": "SCRAM-SHA-256"}, "sasl.mechanism = SCRAM-SHA-256; it takes PLAIN"),
        ("token", {"sasl.mechanism": "PLAIN", "sasl.username": "u", **wrong}, "PLAIN; it takes OAUTHBEARER"),
        (
            "token",
            {"sasl.oauthbearer.client.secret": "wrong"},
            f"the token endpoint {endpoint} refuses client flafka (OAUTHBEARER): invalid_client, Unknown client or "
            "wrong secret; check sasl.oauthbearer.client.id, sasl.oauthbearer.client.secret",
        ),
        (
            "token",
            {"https.ca.location": ca},
            f"the certificate of the token endpoint {endpoint} is not trusted (self-signed certificate): name its "
            "authority with https.ca.location",
        ),
        (
            "token",
            {"sasl.oauthbearer.token.endpoint.url": "https://localhost:1/token"},
            "the token endpoint https://localhost:1/token gives no token for client flafka: Failed to connect",
        ),
        (
            "token",
            {"sasl.oauthbearer.scope": "another audience"},
            "it refuses the token of client flafka (OAUTHBEARER): invalid_token; its log has the reason",
        ),
        ("sha256", foreign, untrusted + "authority with ssl.truststore.location or ssl.ca.location"),
        ("token", {**foreign, "ssl.endpoint.identification.algorithm": "none"}, untrusted),
        ("both", {**foreign, "ssl.disableTLSHostnameVerification": "true"}, untrusted),
        ("token", {"ssl.ca.location": "/nowhere"}, "ssl.ca.location"),
    ]

    def refusal(case: tuple[str, dict[str, str], str]) -> str:
        listener, changed, _ = case
        client = client_properties({**kafka.security(listener), **changed})
        with pytest.raises(Retry) as error:
            fetch_metadata({"bootstrap.servers": kafka.servers[listener], **QUIET, **client}, 30, "c1: ")
        return str(error.value)

    for listener in ("both", "sha256", "sha512", "token"):  # first, as a new broker on a busy machine is slow
        right = client_properties(kafka.security(listener))
        assert fetch_metadata({"bootstrap.servers": kafka.servers[listener], **QUIET, **right}, 60).brokers
    with ThreadPoolExecutor(len(cases)) as threads:
        texts = list(threads.map(refusal, cases))
    for (listener, changed, expected), text in zip(cases, texts, strict=True):
        assert expected in text, (listener, changed)
        assert "wrong," not in text
        assert "secret," not in text.replace("client.secret,", "")
    # an admin client whose first call is the request of a token
    properties = {"bootstrap.servers": kafka.servers["token"], **QUIET, **client_properties(kafka.security("token"))}
    assert json.dumps(sorted(new_admin(QUERY, properties).list_topics(timeout=20).brokers)) == "[1]"
