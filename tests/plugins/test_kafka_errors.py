"""Messages about Kafka brokers that cannot be used; tests/system has those about secured ones."""

import pytest

from flafka.plugins import Retry
from flafka.plugins.kafka.errors import BrokerFailure, ReportedErrors, diagnose_broker, fetch_metadata

LONG = f"{'k' * 64}.example.com"


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL", "SASL_SSL"])
@pytest.mark.parametrize(
    ("server", "text"),
    [
        ("kafka1..example.com:9092", "kafka1..example.com is no name of a host"),
        ("SSL://.example.com:9092", ".example.com is no name of a host"),
        (f"{LONG}:9092", f"{LONG} is no name of a host"),
        (":9092", "it must be written as host:port"),
        ("[]:9092", "it must be written as host:port"),
        ("h:", "it must be written as host:port"),
    ],
)
def test_a_malformed_server_is_reported(protocol, server, text):
    failure = diagnose_broker({"security.protocol": protocol}, server, ReportedErrors())
    assert failure == BrokerFailure(text, text.endswith("a host"))


def test_brokers_behind_a_name_that_no_host_has_are_named():
    client = {"bootstrap.servers": "kafka1..example.com:9092", "log_level": 0}
    with pytest.raises(Retry) as failed:
        fetch_metadata(client, 0.5, "channel c1: ")
    assert str(failed.value) == (
        "channel c1: no Kafka broker answers at kafka1..example.com:9092: kafka1..example.com is no name of a host"
    )
