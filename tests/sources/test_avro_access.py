"""Clients that the avro source admits: its filter of addresses, and TLS."""

import ssl

import pytest

from flafka.agent.services.running import until
from flafka.plugins import Event
from flafka.plugins.wire.avrorpc import AvroStatus
from flafka.sources.avro import AvroConfig
from flafka.sources.ipfilter import IpFilter, Rule
from tests.plugins.certificates import certificate
from tests.sources.calling import HELLO, Client, Running


@pytest.mark.parametrize(
    ("rules", "address", "name", "expected"),
    [
        ("allow:ip:127.*,deny:ip:*", "127.0.0.1", "", True),
        ("allow:ip:127.*,deny:ip:*", "10.0.0.1", "", False),
        ("allow:ip:127.*,deny:ip:*", "::ffff:127.0.0.1", "", True),
        ("allow:name:localhost,deny:ip:*", "127.0.0.1", "", True),
        ("allow:name:localhost,deny:ip:*", "::1", "", True),
        ("deny:name:localhost,allow:ip:*", "10.0.0.1", "", True),
        ("deny:name:*.example.com", "10.0.0.1", "Web-1.Example.com", False),
        ("deny:name:*.example.com", "10.0.0.1", "web-1.example.org", True),
        ("deny:ip:fe80::*", "fe80::1%eth0", "", False),
    ],
)
def test_ip_filter_rules(rules, address, name, expected):
    assert IpFilter([Rule.parse(rule) for rule in rules.split(",")]).admits(address, name) == expected


def test_ip_filter():
    with (
        Running(ipFilter="true", ipFilterRules="deny:name:localhost, allow:ip:*") as running,
        Client(running) as client,
    ):
        assert client.closed()
    with Running(ipFilterRules="deny:ip:*") as running, Client(running) as client:  # not switched on
        assert client.append(HELLO) == AvroStatus.OK


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({"ipFilter": "true"}, "is required with ipFilter = true"),
        ({"ipFilter": "true", "ipFilterRules": "permit:ip:*"}, "'permit:ip:*' must be"),
        ({"ssl": "true"}, "needs a keystore"),
        ({"include-protocols": "TLSv9"}, "not 'TLSv9'"),
        ({"compression-type": "gzip"}, "must be 'none' or 'deflate'"),
    ],
)
def test_wrong_options(properties, message):
    config, problems = AvroConfig.parse({"bind": "127.0.0.1", "port": "0"} | properties)
    assert config is None
    assert len(problems) == 1
    assert message in problems[0].message


@pytest.fixture(scope="module")
def server_certificate(tmp_path_factory):
    return certificate(tmp_path_factory.mktemp("tls"))


@pytest.mark.parametrize("kind", ["pem", "p12"])
@pytest.mark.parametrize("deflate", [False, True])
def test_tls(server_certificate, kind, deflate):
    properties = {
        "ssl": "true",
        "keystore": str(server_certificate / f"server.{kind}"),
        "keystore-password": "changeit",
    }
    if deflate:
        properties["compression-type"] = "deflate"
    context = ssl.create_default_context(cafile=server_certificate / "server.crt")
    with Running(**properties) as running, Client(running, deflate, context) as client:
        assert client.append(HELLO) == AvroStatus.OK
        assert client.append(*[Event(bytes(1000))] * 2000) == AvroStatus.OK
        assert len(running.events) == 2001


def test_tls_versions_and_ciphers(server_certificate):
    properties = {"ssl": "true", "keystore": str(server_certificate / "server.pem")}
    restricted = properties | {
        "include-protocols": "TLSv1.2",
        "include-cipher-suites": "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384 TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
        "exclude-cipher-suites": "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
    }
    context = ssl.create_default_context(cafile=server_certificate / "server.crt")
    with Running(**restricted) as running, Client(running, tls=context) as client:
        assert client.socket.cipher()[:2] == ("ECDHE-ECDSA-AES128-GCM-SHA256", "TLSv1.2")
        assert client.append(HELLO) == AvroStatus.OK
    with (
        Running(**properties | {"exclude-protocols": "SSLv3 TLSv1.3"}) as running,
        Client(running, tls=context) as client,
    ):
        assert client.socket.version() == "TLSv1.2"


def test_only_clients_with_a_certificate_of_the_authority_are_admitted(server_certificate, tmp_path_factory, caplog):
    stranger = certificate(tmp_path_factory.mktemp("stranger"), whose="stranger")
    properties = {"ssl": "true", "keystore": str(server_certificate / "server.pem")}
    with Running(**properties, truststore=str(server_certificate / "server.crt")) as running:
        for client_certificate, reason in ((None, "showed no certificate"), (stranger, "certificate is refused")):
            context = ssl.create_default_context(cafile=server_certificate / "server.crt")
            if client_certificate is not None:
                context.load_cert_chain(client_certificate / "server.pem")
            with pytest.raises((OSError, AssertionError)), Client(running, tls=context) as client:
                client.append(HELLO)
            until(lambda reason=reason: reason in caplog.text)
            running.source._warned.clear()
        assert running.events == []
        context.load_cert_chain(server_certificate / "server.pem")
        with Client(running, tls=context) as client:
            assert client.append(HELLO) is AvroStatus.OK
        assert running.events == [HELLO]


def test_plain_text_to_tls_and_tls_to_plain_text(server_certificate, caplog):
    properties = {"ssl": "true", "keystore": str(server_certificate / "server.pem")}
    with Running(**properties, frameTimeout="0.5") as running:
        with Client(running) as plain, Client(running) as silent, Client(running) as http:
            plain.request(HELLO)
            http.socket.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert plain.closed()
            assert http.closed()
            assert silent.closed()
        context = ssl.create_default_context(cafile=server_certificate / "server.crt")
        with Client(running, tls=context) as client:
            assert client.append(HELLO) == AvroStatus.OK
    assert "does not speak TLS, which ssl = true requires" in caplog.text
    caplog.clear()
    with Running() as running, pytest.raises(OSError), Client(running, tls=context):
        pass
    assert "it speaks TLS, which is off here: set ssl = true" in caplog.text
