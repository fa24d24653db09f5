"""Properties and answers of Kafka's client."""

import pickle

import pytest
from confluent_kafka import Producer

from flafka.channels.kafka import KafkaChannelConfig
from flafka.plugins import Retry
from flafka.plugins.kafka.clients import PRODUCER
from flafka.plugins.kafka.properties import client_properties, java_properties
from flafka.sinks.kafka import KafkaSink, KafkaSinkConfig
from flafka.sinks.kafka.producers import TransactionalProducer
from flafka.sources.kafka import KafkaSourceConfig
from tests.fixtures.partitions import assignment
from tests.plugins.certificates import certificate

BROKERS = {"kafka.bootstrap.servers": "h:1"}


@pytest.mark.parametrize(
    "weak", [{"acks": "1"}, {"acks": "0", "enable.idempotence": "false"}, {"transactional.id": "x"}]
)
@pytest.mark.parametrize("config", [KafkaChannelConfig, KafkaSinkConfig])
def test_no_property_weakens_the_guarantees(config, weak):
    properties = {**BROKERS, "kafka.topic": "t", **{f"kafka.producer.{name}": text for name, text in weak.items()}}
    parsed, problems = config.parse(properties)
    assert parsed is not None, problems
    properties = {**PRODUCER, **client_properties(parsed.producer)}
    assert properties == PRODUCER
    assert Producer({**properties, "log_level": 0}) is not None
    assert [problem.option for problem in parsed.warnings()] == [f"kafka.producer.{name}" for name in weak]


@pytest.mark.parametrize("kind", ["consumer", "producer"])
def test_an_unknown_client_property_is_reported_and_omitted(kind):
    properties = {f"kafka.{kind}.timeout.ms": "100", f"kafka.{kind}.linger.ms": "7"}
    parsed, problems = KafkaChannelConfig.parse({**BROKERS, **properties})
    assert parsed is not None, problems
    cautions = {problem.option: problem.message for problem in parsed.warnings()}
    assert cautions == {f"kafka.{kind}.timeout.ms": "has no effect: Kafka's clients have no such property"}
    assert client_properties(getattr(parsed, kind)) == {"linger.ms": "7"}
    parsed, problems = KafkaChannelConfig.parse({**BROKERS, f"kafka.{kind}.linger.ms": "x"})
    assert parsed is None
    assert problems[0].message == "'x' is not a number, written in digits alone"


@pytest.mark.parametrize(
    ("properties", "option", "message"),
    [
        ({"receive.buffer.bytes": "x"}, "receive.buffer.bytes", "is not a number"),
        ({"linger.ms": "5x"}, "linger.ms", "'5x' is not a number, written in digits alone"),
        ({"buffer.memory": "100m"}, "buffer.memory", "'100m' is not a number"),
        (
            {"heartbeat.interval.ms": "15000"},
            "heartbeat.interval.ms",
            "must be lower than session.timeout.ms (15000)",
        ),
        (
            {"security.protocol": "SSL", "ssl.ca.location": "/nowhere.pem"},
            "ssl.ca.location",
            "cannot read /nowhere.pem: No such file or directory",
        ),
        ({"session.timeout.ms": "0"}, "session.timeout.ms", "outside allowed range"),
        (
            {"compression.type": "zst"},
            "compression.type",
            "none of gzip, snappy, lz4, zstd, none, did you mean 'zstd'?",
        ),
        ({"security.protocol": "TLS"}, "security.protocol", "none of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
    ],
)
def test_a_value_that_the_client_refuses_is_reported_with_its_property(properties, option, message):
    _, problems = KafkaChannelConfig.parse({**BROKERS, **{f"kafka.consumer.{n}": v for n, v in properties.items()}})
    assert [problem.option for problem in problems] == [f"kafka.consumer.{option}"]
    assert message in problems[0].message


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({"queuing.strategy": "lifo"}, "must be set to `fifo`"),
        ({"linger.ms": "400000", "delivery.timeout.ms": "200000"}, "must be greater than `linger.ms`"),
    ],
)
@pytest.mark.parametrize("config", [KafkaChannelConfig, KafkaSinkConfig])
def test_a_property_that_a_component_cannot_work_with_is_an_error(config, properties, message):
    """Each is valid by itself, and refused beside the properties that the component always sets."""
    options = {**BROKERS, "kafka.topic": "t", **{f"kafka.producer.{name}": text for name, text in properties.items()}}
    parsed, problems = config.parse(options)
    assert parsed is None
    assert [problem.option for problem in problems] == [f"kafka.producer.{next(iter(properties))}"]
    assert message in problems[0].message


@pytest.mark.parametrize(
    "properties",
    [
        {"retries": "0"},
        {"message.send.max.retries": "0"},
        {"max.in.flight.requests.per.connection": "10"},
        {"delivery.timeout.ms": "120000"},
        {"batch.size": "0x4000"},
        {"max.in.flight": "1", "retries": "3"},
    ],
)
def test_properties_that_run_in_flume_run(brokers, properties):
    options = {**BROKERS, "kafka.topic": "t", **{f"kafka.producer.{name}": text for name, text in properties.items()}}
    config, problems = KafkaSinkConfig.parse(options | {"kafka.bootstrap.servers": brokers})
    assert config is not None, problems
    TransactionalProducer(KafkaSink(config)._properties(), assignment("", "t", "", "g", 0, 0)).close()
    changed = properties.keys() & {"retries", "message.send.max.retries", "max.in.flight.requests.per.connection"}
    noted = {problem.option for problem in config.warnings()}
    assert noted == {f"kafka.producer.{name}" for name in changed if properties[name] != "3"}


@pytest.mark.parametrize("name", ["a b", "a/b", "a:b", "ü", "x" * 250, ".", ".."])
@pytest.mark.parametrize(
    ("config", "option"),
    [(KafkaChannelConfig, "kafka.topic"), (KafkaSinkConfig, "kafka.topic"), (KafkaSourceConfig, "kafka.topics")],
)
def test_a_name_that_no_topic_can_have_is_an_error(config, option, name):
    if (option, name) == ("kafka.topics", "a b"):  # two names
        return
    parsed, problems = config.parse({**BROKERS, option: name})
    assert parsed is None
    assert [problem.option for problem in problems] == [option]


def test_all_values_that_the_client_refuses_are_reported_at_once():
    properties = {
        "compression.type": "zst",
        "client.id": "right",
        "linger.ms": "-5",
        "allow.auto.create.topics": "perhaps",
        "security.protocol": "SASL_SSL",  # requires a user, which is reported once these are right
        "sasl.mechanism": "PLAIN",
    }
    _, problems = KafkaChannelConfig.parse({**BROKERS, **{f"kafka.consumer.{n}": v for n, v in properties.items()}})
    assert {problem.option.removeprefix("kafka.consumer."): problem.message for problem in problems} == {
        "compression.type": "'zst' is none of gzip, snappy, lz4, zstd, none, did you mean 'zstd'?",
        "linger.ms": 'Configuration property "queue.buffering.max.ms" value -5 is outside allowed range 0..900000',
        "allow.auto.create.topics": 'Expected bool value for "allow.auto.create.topics": true or false',
    }


def test_a_callback_is_no_property_of_a_file():
    parsed, problems = KafkaChannelConfig.parse({**BROKERS, "kafka.consumer.stats_cb": "x"})
    assert parsed is not None, problems
    assert [problem.option for problem in parsed.warnings()] == ["kafka.consumer.stats_cb"]


def test_javas_certificates_in_the_configuration_itself():
    properties = {
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": "those of authorities",
        "ssl.keystore.key": "a key",
        "ssl.keystore.certificate.chain": "its certificates",
    }
    assert client_properties(properties) == {
        "ssl.ca.pem": "those of authorities",
        "ssl.key.pem": "a key",
        "ssl.certificate.pem": "its certificates",
    }


@pytest.mark.parametrize(("mechanism", "module"), [("PLAIN", "plain.Plain"), ("SCRAM-SHA-512", "scram.Scram")])
def test_librdkafkas_names_for_javas_client(tmp_path, mechanism, module):
    (tmp_path / "ca.pem").write_text("those of authorities")
    properties = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanisms": mechanism,
        "sasl.username": "amy",
        "sasl.password": 'a"b\\c',
        "ssl.ca.location": str(tmp_path / "ca.pem"),
        "ssl.key.pem": "a key",
        "ssl.certificate.pem": "its certificates",
        "ssl.endpoint.identification.algorithm": "none",
    }
    java = java_properties(properties)
    assert java == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": f"org.apache.kafka.common.security.{module}LoginModule required "
        'username="amy" password="a\\"b\\\\c";',
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": "those of authorities",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.key": "a key",
        "ssl.keystore.certificate.chain": "its certificates",
        "ssl.endpoint.identification.algorithm": "",
    }
    assert client_properties(java)["sasl.password"] == properties["sasl.password"]
    with pytest.raises(Retry, match="cannot read /nowhere: No such file"):
        java_properties({"ssl.ca.location": "/nowhere"})


def test_javas_names_stay_except_names_that_spark_refuses():
    java = {
        "ssl.truststore.location": "/t.jks",
        "sasl.jaas.config": "x",
        "sasl.mechanism": "PLAIN",
        "fetch.min.bytes": "5",
    }
    usual = ("auto.offset.reset", "enable.auto.commit", "value.deserializer", "interceptor.classes")
    assert java_properties({**java, **dict.fromkeys(usual, "x")}) == java


def test_java_on_spark_is_told_that_a_store_is_pem(tmp_path, monkeypatch):
    stores = certificate(tmp_path)
    named = {"ssl.keystore.location": str(stores / "server.pem"), "ssl.keystore.password": "changeit"}
    assert java_properties(named) == {
        "ssl.keystore.location": named["ssl.keystore.location"],
        "ssl.keystore.type": "PEM",
    }
    locked = tmp_path / "locked.pem"
    locked.write_text("-----BEGIN ENCRYPTED PRIVATE KEY-----")
    java = java_properties({**named, "ssl.keystore.location": str(locked)})
    assert java == {"ssl.keystore.location": str(locked), "ssl.keystore.type": "PEM", "ssl.key.password": "changeit"}
    pkcs12 = {"ssl.truststore.location": str(stores / "server.p12"), "ssl.truststore.password": "changeit"}
    assert java_properties(pkcs12) == pkcs12
    monkeypatch.setenv("FLUME_SSL_TRUSTSTORE_PATH", str(stores / "server.crt"))
    monkeypatch.setenv("FLUME_SSL_TRUSTSTORE_PASSWORD", "changeit")
    tls = {"security.protocol": "SSL"}
    expected = {"ssl.truststore.location": str(stores / "server.crt"), "ssl.truststore.type": "PEM"}
    assert java_properties(tls) == tls | expected


def test_only_an_unnamed_cluster_has_to_be_the_users_own() -> None:
    named = KafkaChannelConfig.model_validate({"kafka.bootstrap.servers": "a:1"})
    assert named.foreign_cluster_error("any") is None
    # as it arrives at Spark's driver
    config = pickle.loads(pickle.dumps(KafkaChannelConfig().of_cluster("a:1", "mine")))
    assert config.bootstrap_servers == "a:1"
    assert config.foreign_cluster_error("mine") is None
    for other in ("theirs", None):
        assert f"at a:1 answers the Kafka cluster {other}, not your own, mine" in config.foreign_cluster_error(other)


def test_flumes_variables_name_the_stores_that_no_property_does(tmp_path, monkeypatch):
    stores = certificate(tmp_path)
    for store in ("KEYSTORE", "TRUSTSTORE"):
        monkeypatch.setenv(f"FLUME_SSL_{store}_PATH", str(stores / "server.p12"))
        monkeypatch.setenv(f"FLUME_SSL_{store}_PASSWORD", "changeit")
    properties = client_properties({"security.protocol": "SSL"})
    assert {*properties} == {"security.protocol", "ssl.ca.pem", "ssl.key.pem", "ssl.certificate.pem"}
    assert java_properties({"security.protocol": "SASL_SSL"})["ssl.keystore.location"] == str(stores / "server.p12")
    locations = {"ssl.ca.location": "/ca.pem", "ssl.certificate.location": "/c.pem", "ssl.key.location": "/k.pem"}
    assert client_properties({"security.protocol": "SSL", **locations}) == {"security.protocol": "SSL", **locations}
    no_tls = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
    assert client_properties(no_tls) == no_tls


@pytest.mark.parametrize(("written", "wanted"), [("true", "none"), ("false", None)])
def test_flumes_switch_for_names_in_certificates(written, wanted):
    properties = {"security.protocol": "SSL", "ssl.disableTLSHostnameVerification": written}
    assert client_properties(properties).get("ssl.endpoint.identification.algorithm") == wanted
    assert java_properties(properties).get("ssl.endpoint.identification.algorithm") == ("" if wanted else None)
    named = {f"kafka.producer.{name}": value for name, value in properties.items()}
    parsed, problems = KafkaSinkConfig.parse({**BROKERS, "kafka.topic": "t", **named})
    assert parsed is not None, problems
    assert [*parsed.warnings()] == []
