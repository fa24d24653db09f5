"""`--command-config`: the files of Kafka's own tools."""

from pathlib import Path

import click
import pytest
from kafka import KafkaAdminClient

from flafka.agent.cli.kafka_admin import MILLISECONDS, OPTIONS, read_config
from tests.plugins.certificates import certificate


def properties_file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "client.properties"
    path.write_text(text)
    return path


def test_every_option_is_one_of_kafka_python() -> None:
    assert {*OPTIONS.values(), *MILLISECONDS.values()} <= KafkaAdminClient.DEFAULT_CONFIG.keys()


def test_java_spelling_of_sasl_over_tls(tmp_path: Path) -> None:
    ca = certificate(tmp_path) / "server.crt"
    path = properties_file(
        tmp_path,
        f"""\
security.protocol=SASL_SSL
sasl.mechanism=SCRAM-SHA-512
sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required \\
  username="ann" password="p;w=1";
ssl.truststore.location={ca}
ssl.truststore.type=PEM
ssl.endpoint.identification.algorithm=
request.timeout.ms=5000
""",
    )
    options, asking = read_config(path)
    context = options.pop("ssl_context")
    assert not context.check_hostname
    assert len(context.get_ca_certs()) == 1
    assert asking["sasl.password"] == "p;w=1"
    assert options == {
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": "ann",
        "sasl_plain_password": "p;w=1",
        "request_timeout_ms": 5000,
    }


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("security.protocol=SSL\nssl.truststore.location=/etc/ca.jks", "/etc/ca.jks: No such file"),
        ("sasl.jaas.config=com.sun.security.auth.module.Krb5LoginModule required;", "has no username and password"),
        ("request.timeout.ms=soon", "not a number of milliseconds"),
    ],
)
def test_unusable_properties_are_refused(line: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(click.UsageError, match=reason):
        read_config(properties_file(tmp_path, line + "\n"))


def test_javas_keystores_are_read(tmp_path: Path) -> None:
    stores = certificate(tmp_path)
    properties = "security.protocol=SSL\nssl.keystore.type=PKCS12\nssl.keystore.password=changeit\n"
    properties += f"ssl.keystore.location={stores / 'server.p12'}\nssl.truststore.location={stores / 'server.p12'}\n"
    options, asking = read_config(properties_file(tmp_path, properties + "ssl.truststore.password=changeit\n"))
    assert len(options["ssl_context"].get_ca_certs()) == 1
    assert "PRIVATE KEY" in asking["ssl.key.pem"]
    with pytest.raises(click.UsageError, match="the password is wrong"):
        read_config(properties_file(tmp_path, properties + "ssl.truststore.password=wrong\n"))
