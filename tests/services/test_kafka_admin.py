"""`--command-config`: the files that users of Kafka's own tools have."""

from pathlib import Path

import click
import pytest
from kafka import KafkaAdminClient

from agent.cli.kafka_admin import MILLISECONDS, OPTIONS, read_config


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "client.properties"
    path.write_text(text)
    return path


def test_every_option_is_one_of_kafka_python() -> None:
    assert {*OPTIONS.values(), *MILLISECONDS.values()} <= KafkaAdminClient.DEFAULT_CONFIG.keys()


def test_java_spelling_of_sasl_over_tls(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        """\
security.protocol=SASL_SSL
sasl.mechanism=SCRAM-SHA-512
sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required \\
  username="ann" password="p;w=1";
ssl.truststore.location=/etc/ca.pem
ssl.truststore.type=PEM
ssl.endpoint.identification.algorithm=
request.timeout.ms=5000
""",
    )
    assert read_config(path) == {
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": "ann",
        "sasl_plain_password": "p;w=1",
        "ssl_cafile": "/etc/ca.pem",
        "ssl_check_hostname": False,
        "request_timeout_ms": 5000,
    }


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("ssl.truststore.location=/etc/ca.jks", "only PEM can be read"),
        ("ssl.keystore.type=PKCS12", "only PEM can be read"),
        ("sasl.jaas.config=com.sun.security.auth.module.Krb5LoginModule required;", "no username and password"),
        ("request.timeout.ms=soon", "not a number of milliseconds"),
    ],
)
def test_what_cannot_be_used_is_refused(line: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(click.UsageError, match=reason):
        read_config(written(tmp_path, line + "\n"))
