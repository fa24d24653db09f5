"""Logins of Kafka clients: JAAS texts, tokens, and the words of both clients."""

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaError
from confluent_kafka.admin import AdminClient

from flafka.plugins.kafka import errors
from flafka.plugins.kafka.errors import ReportedErrors, describe_login_error
from flafka.plugins.kafka.logins import OAUTH_HANDLER, TokenRequest, java_login, parse_jaas
from flafka.plugins.kafka.properties import (
    QUIET,
    check_accepted,
    client_properties,
    ineffective_properties,
    java_properties,
)
from flafka.plugins.net.keystore import read_keystore
from flafka.sources.kafka import KafkaSourceConfig
from tests.plugins.certificates import certificate

PASSWORD = "a\"b'c\\d;e = f"
TOKENS = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "OAUTHBEARER",
    "sasl.oauthbearer.token.endpoint.url": "https://tokens.test/token",
}
CLIENT = {"sasl.oauthbearer.client.id": "amy", "sasl.oauthbearer.client.secret": PASSWORD}
MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("""x.Module required a="b" c='d' e=f;""", {"a": "b", "c": "d", "e": "f"}),
        (r"""x.Module required a="\"b'c\\" d='e\'f"g';""", {"a": "\"b'c\\", "d": "e'f\"g"}),
        (r"""x.Module required a="b=\"c\"" d = "\n\101;";""", {"a": 'b="c"', "d": "\nA;"}),
        (
            'x.Module required ssl.truststore.type="PEM" useKeyTab=true;',
            {"ssl.truststore.type": "PEM", "useKeyTab": "true"},
        ),
        ("x.Module required;", {}),
    ],
)
def test_jaas_texts_are_read_as_java_reads_them(text, options):
    assert parse_jaas(text) == options


def test_a_password_survives_both_conversions():
    java = java_properties(
        {**TOKENS, **CLIENT, "sasl.oauthbearer.scope": "logs", "sasl.oauthbearer.extensions": "a=b"}
    )
    assert java.keys() == {*TOKENS, "sasl.jaas.config", "sasl.login.callback.handler.class"}
    assert java["sasl.login.callback.handler.class"] == OAUTH_HANDLER
    assert java["sasl.jaas.config"].startswith(f"{MODULE} required clientId=")
    back = client_properties(java)
    newer = {f"sasl.oauthbearer.client.credentials.client.{name}": PASSWORD for name in ("id", "secret")}
    assert client_properties(newer) == dict.fromkeys(CLIENT, PASSWORD)
    assert {name: back[name] for name in CLIENT} == CLIENT
    assert back["sasl.oauthbearer.scope"] == "logs"
    assert back["sasl.oauthbearer.extensions"] == "a=b"
    assert back["sasl.oauthbearer.method"] == "oidc"


def test_authorities_of_a_token_endpoint(tmp_path):
    stores = certificate(tmp_path)
    pem = (stores / "server.crt").read_text()
    java = java_properties({**TOKENS, **CLIENT, "https.ca.location": str(stores / "server.crt")})
    assert "\n" not in java["sasl.jaas.config"]
    assert parse_jaas(java["sasl.jaas.config"])["ssl.truststore.certificates"] == pem
    assert client_properties(java)["https.ca.pem"] == pem
    jaas = f'{MODULE} required clientId="amy" clientSecret="x" ssl.truststore.location="{stores / "server.p12"}"'
    given = client_properties({**TOKENS, "sasl.jaas.config": f'{jaas} ssl.truststore.password="changeit";'})
    assert given["https.ca.pem"].strip() == pem.strip()
    assert java_login({"sasl.mechanism": "PLAIN"}, None) == {}


def test_newer_names_of_java_win_over_its_jaas_text():
    named = {f"sasl.oauthbearer.client.credentials.client.{name}": "new" for name in ("id", "secret")}
    jaas = f'{MODULE} required clientId="old" clientSecret="old" scope="kept";'
    options = parse_jaas(java_properties({**TOKENS, **named, "sasl.jaas.config": jaas})["sasl.jaas.config"])
    assert options == {"clientId": "new", "clientSecret": "new", "scope": "kept"}


def test_a_keytab_for_javas_client():
    properties = {"security.protocol": "SASL_SSL", "sasl.kerberos.keytab": "/k", "sasl.kerberos.principal": "p"}
    java = java_properties({**properties, "sasl.kerberos.service.name": "kafka"})
    assert java["sasl.kerberos.service.name"] == "kafka"
    assert parse_jaas(java["sasl.jaas.config"]) == {
        "keyTab": "/k",
        "principal": "p",
        "useKeyTab": "true",
        "storeKey": "true",
    }
    del properties["sasl.kerberos.keytab"]
    assert parse_jaas(java_properties(properties)["sasl.jaas.config"]) == {"useTicketCache": "true"}


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({"sasl.mechanism": "OAUTHBEARER"}, "sasl.mechanism: OAUTHBEARER needs sasl.oauthbearer.token.endpoint.url"),
        (
            {"sasl.mechanism": "OAUTHBEARER", "sasl.login.callback.handler.class": "a.Handler"},
            "sasl.mechanism: the class a.Handler is of Java's client only; OAUTHBEARER needs",
        ),
        (
            TOKENS,
            "sasl.mechanism: OAUTHBEARER needs sasl.oauthbearer.client.id, or the equivalent options in sasl.jaas",
        ),
        ({**TOKENS, **CLIENT, "ssl.ca.location": "/nowhere"}, "ssl.ca.location: cannot read /nowhere: No such file"),
        ({**TOKENS, **CLIENT, "https.ca.location": "/nowhere"}, "https.ca.location"),
        ({"sasl.mechanism": "SCRAM-SHA-256"}, "sasl.mechanism: SCRAM-SHA-256 needs sasl.username and sasl.password"),
        ({"sasl.mechanism": "SCRAM-SHA-1"}, "sasl.mechanism: 'SCRAM-SHA-1' is none of PLAIN, SCRAM-SHA-256, SCRAM"),
    ],
)
def test_a_login_that_cannot_succeed_is_refused(properties, message):
    with pytest.raises(ValueError, match=r"^(sasl|ssl|https)\.") as error:
        check_accepted({"security.protocol": "SASL_SSL", **properties}, AdminClient)
    assert message in str(error.value)
    assert PASSWORD not in str(error.value)


@pytest.fixture
def endpoint() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def test_a_check_sends_no_secret_and_connects_to_nothing(endpoint: socket.socket) -> None:
    address = f"127.0.0.1:{endpoint.getsockname()[1]}"
    properties = {**TOKENS, **CLIENT, "sasl.oauthbearer.token.endpoint.url": f"http://{address}/token"}
    began = time.monotonic()
    check_accepted({**properties, "bootstrap.servers": address}, lambda client: AdminClient({**QUIET, **client}))
    _, problems = KafkaSourceConfig.parse(
        {"kafka.bootstrap.servers": address, "kafka.topics": "t"}
        | {f"kafka.consumer.{name}": value for name, value in properties.items()}
    )
    assert not problems
    assert time.monotonic() - began < 2
    endpoint.setblocking(False)
    with pytest.raises(BlockingIOError):
        endpoint.accept()


def test_a_redirect_gets_no_secret(endpoint: socket.socket) -> None:
    address, received = f"http://127.0.0.1:{endpoint.getsockname()[1]}/", []

    def answer() -> None:
        connection, _ = endpoint.accept()
        with connection:
            received.append(connection.recv(9999))
            connection.sendall(f"HTTP/1.1 302 Found\r\nLocation: {address}x\r\nContent-Length: 0\r\n\r\n".encode())

    thread = threading.Thread(target=answer)
    thread.start()
    request = TokenRequest({**TOKENS, **CLIENT, "sasl.oauthbearer.token.endpoint.url": address})
    with pytest.raises(ValueError, match=f"{address} redirects to {address}x: if that is right, write it as sasl."):
        request.token()
    thread.join()
    assert b"Authorization: Basic " in received[0]
    endpoint.setblocking(False)
    with pytest.raises(BlockingIOError):
        endpoint.accept()


def test_an_old_failure_to_get_a_token_is_no_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    reported = ReportedErrors()
    reported(KafkaError(KafkaError._AUTHENTICATION, "Failed to acquire SASL OAUTHBEARER token: no answer"))
    assert reported.refusal("k:1").endswith("no answer")
    monkeypatch.setattr(errors, "TOKEN_ERROR_SECONDS", 0.0)
    assert reported.refusal("k:1") == reported.refusal() == ""


def test_a_timeout_during_the_login_is_no_refusal_of_the_mechanism():
    text = "SASL PLAIN mechanism handshake failed: {}: broker's supported mechanisms: {}"
    client = {"sasl.mechanism": "PLAIN"}
    expected = "it breaks off the login (PLAIN): Local: Timed out"
    assert describe_login_error(text.format("Local: Timed out", "(n/a)"), client) == expected
    refused = text.format("Broker: Unsupported SASL mechanism", "GSSAPI,OAUTHBEARER")
    expected = "it does not take sasl.mechanism = PLAIN; it takes GSSAPI, OAUTHBEARER"
    assert describe_login_error(refused, client) == expected


def test_the_handler_of_tokens_is_understood_and_others_are_noted():
    handler = "sasl.login.callback.handler.class"
    assert not [*ineffective_properties("", {handler: OAUTH_HANDLER})]
    assert [problem.is_note for problem in ineffective_properties("", {handler: "a.Handler"})] == [True]


def test_unusable_files_of_tls_do_not_abort_the_process():
    """librdkafka aborts it if tokens come of an endpoint."""
    script = f"""
from confluent_kafka import KafkaException
from flafka.plugins.kafka.clients import QUERY, new_admin
try:
    new_admin(QUERY, {{**{TOKENS | CLIENT!r}, "sasl.oauthbearer.method": "oidc", "ssl.ca.location": "/nowhere"}})
except KafkaException as e:
    print("refused", e)
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert result.stdout.startswith("refused"), result.stderr


@pytest.mark.parametrize("has_rc2", [True, False])
def test_a_keystore_with_rc2_is_read_or_its_conversion_is_named(tmp_path, has_rc2):
    stores = certificate(tmp_path)
    old = tmp_path / "old.p12"
    pack = ["openssl", "pkcs12", "-export", "-legacy", "-in", str(stores / "server.pem"), "-out", str(old)]
    packed = subprocess.run([*pack, "-passout", "pass:changeit"], check=False, capture_output=True, text=True)
    if packed.returncode and "legacy" in packed.stderr:
        pytest.skip("openssl has no module for RC2, legacy.so")
    assert packed.returncode == 0, packed.stderr
    if has_rc2:
        assert (
            read_keystore(str(old), "changeit").chain == read_keystore(str(stores / "server.p12"), "changeit").chain
        )
        return
    script = f"from flafka.plugins.net.keystore import read_keystore\nread_keystore({str(old)!r}, 'changeit')"
    result = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=False,
        env={"CRYPTOGRAPHY_OPENSSL_NO_LEGACY": "1"},
    )
    assert "no RC2, which encrypts it; convert it: keytool -importkeystore" in result.stderr
