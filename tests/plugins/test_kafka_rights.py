"""Errors about missing rights; tests/system has proofs with a real authorizer."""

import shlex

import pytest
from confluent_kafka import KafkaError

from flafka.plugins.kafka.errors import explain_error
from flafka.plugins.kafka.rights import principal
from tests.plugins.certificates import certificate

DENIED = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
LOGIN = {"security.protocol": "SASL_SSL", "bootstrap.servers": "k:1"}


@pytest.mark.parametrize(
    ("client", "expected"),
    [
        ({}, "User:ANONYMOUS"),
        ({"security.protocol": "SSL"}, "User:ANONYMOUS"),
        ({"sasl.mechanism": "SCRAM-SHA-256", "sasl.username": "a b"}, "User:a b"),
        ({"sasl.mechanism": "OAUTHBEARER", "sasl.username": "unused"}, ""),
        ({"sasl.kerberos.principal": "flafka/host@EXAMPLE.COM", "sasl.kerberos.keytab": "/k"}, "User:flafka"),
        ({"sasl.kerberos.principal": "flafka@EXAMPLE.COM", "sasl.mechanism": "GSSAPI"}, ""),  # of a ticket cache
    ],
)
def test_the_principal_is_the_one_that_brokers_take(client, expected):
    assert principal((LOGIN if client.keys() - {"security.protocol"} else {}) | client) == expected


def test_the_principal_of_a_certificate_is_its_subject(tmp_path):
    path = certificate(tmp_path) / "server.pem"
    assert principal({"security.protocol": "ssl", "ssl.certificate.location": str(path)}) == "User:CN=localhost"
    assert principal({"security.protocol": "ssl", "ssl.certificate.pem": path.read_text()}) == "User:CN=localhost"
    assert principal({"security.protocol": "ssl", "ssl.certificate.location": "/nowhere"}) == ""


def test_a_name_with_a_blank_is_quoted_in_the_command():
    client = LOGIN | {"sasl.mechanism": "PLAIN", "sasl.username": "a b"}
    denied = KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED)
    text = explain_error(denied, group="my group", client=client)
    assert text.startswith("user a b lacks the right Read on consumer group my group (")
    command = shlex.split(text.partition(": kafka-acls ")[2])
    assert command[-6:] == ["--allow-principal", "User:a b", "--operation", "Read", "--group", "my group"]


def test_one_of_several_topics_is_refused_and_the_cluster_means_the_topic():
    client = LOGIN | {"sasl.mechanism": "PLAIN", "sasl.username": "u"}
    text = explain_error(DENIED, topic=["a", "b"], right="Write", client=client)
    assert text.startswith("user u lacks the right Write on one of the topics a, b (")
    assert text.endswith("--operation Write --topic a --topic b")
    refused = KafkaError(KafkaError.CLUSTER_AUTHORIZATION_FAILED)
    text = explain_error(refused, topic="a", right="Write", client=client)
    assert "lacks the right Write on topic a (" in text
    assert "; brokers before Kafka 2.8 want IdempotentWrite on the cluster as well): kafka-acls" in text
    assert "2.8" not in explain_error(refused, topic="a", right="Create", client=client)
    assert explain_error(refused, client=client).endswith("--operation IdempotentWrite --cluster")


def test_without_properties_of_the_client_there_is_no_command():
    assert explain_error(DENIED, topic="t", right="Read") == (
        "this client lacks the right Read on topic t (Broker: Topic authorization failed)"
    )
