"""`--command-config`: the files of Kafka's own tools."""

from pathlib import Path

import click
import pytest
from kafka import KafkaAdminClient
from kafka.errors import SaslAuthenticationFailedError

from flafka.agent.cli import kafka_kerberos
from flafka.agent.cli.kafka_admin import MILLISECONDS, OPTIONS, read_config
from flafka.plugins.kafka.kerberos import KafkaLogin
from flafka.plugins.net.gssapi import KerberosError
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


def test_newer_names_of_a_tokens_client(tmp_path: Path) -> None:
    named = "".join(f"sasl.oauthbearer.client.credentials.client.{name}=amy\n" for name in ("id", "secret"))
    login = "security.protocol=SASL_SSL\nsasl.mechanism=OAUTHBEARER\n"
    endpoint = "sasl.oauthbearer.token.endpoint.url=http://127.0.0.1:1/\n"
    options, asking = read_config(properties_file(tmp_path, login + endpoint + named))
    assert asking["sasl.oauthbearer.client.id"] == asking["sasl.oauthbearer.client.secret"] == "amy"
    with pytest.raises(SaslAuthenticationFailedError, match="Connection refused"):
        options["sasl_oauth_token_provider"].token()


def test_properties_without_effect_may_have_any_value_of_javas(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unused = ("connections.max.idle.ms", "send.buffer.bytes", "receive.buffer.bytes", "reconnect.backoff.ms")
    values = dict.fromkeys(unused[:3], "-1") | {unused[3]: "99999999"}
    text = "".join(f"{name}={value}\n" for name, value in values.items())
    path = properties_file(tmp_path, f"bootstrap.servers=h:1\n{text}default.api.timeout.ms=2147483647\n")
    assert read_config(path) == (
        {"bootstrap_servers": "h:1", "bootstrap_timeout_ms": 2147483647},
        {"bootstrap.servers": "h:1"},
    )
    assert capsys.readouterr().err.splitlines() == [f"{path}: {name} is not used" for name in unused]


def test_a_failed_ticket_is_the_error_of_the_login(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[object] = []

    class Failing:
        def __init__(self, *_: object) -> None:
            pass

        def step(self) -> bytes:
            raise KerberosError("Cannot contact any KDC")

        def close(self) -> None:
            closed.append(self)

    for name in ("Credential", "SecurityContext"):
        monkeypatch.setattr(kafka_kerberos, name, Failing)
    login = KafkaLogin("flafka@EXAMPLE.COM", "/k", None)
    with pytest.raises(SaslAuthenticationFailedError, match="Cannot contact any KDC"):
        kafka_kerberos.KerberosMechanism(login, host="h", sasl_kerberos_service_name="kafka")
    assert len(closed) == 2


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("security.protocol=SSL\nssl.truststore.location=/etc/ca.jks", "/etc/ca.jks: No such file"),
        (
            "security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\nsasl.jaas.config=x.PlainLoginModule required;",
            "sasl.mechanism: PLAIN needs sasl.username and sasl.password, or the equivalent options",
        ),
        (
            "security.protocol=SASL_SSL\nsasl.mechanism=OAUTHBEARER",
            "sasl.mechanism: OAUTHBEARER needs sasl.oauthbearer.token.endpoint.url",
        ),
        ("request.timeout.ms=soon", "not a number"),
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
