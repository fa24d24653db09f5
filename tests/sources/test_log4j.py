"""Source `log4j` over a real socket; `test_log4j_encoders.py` has its events for each encoder's JSON."""

import contextlib
import shutil
import socket
import ssl
import threading

import pytest

from flafka.agent.services.running import until
from flafka.plugins import Event, Retry
from flafka.sources.log4j import Log4jConfig, Log4jSource
from tests.fixtures.examples import examples
from tests.plugins.certificates import certificate


@contextlib.contextmanager
def running(**properties):
    config, problems = Log4jConfig.parse({"bind": "127.0.0.1", "port": "0"} | properties)
    assert not problems
    source, events = Log4jSource(config), []
    source.open()

    def pump():
        for batch in source.batches():
            events.extend(batch)

    thread = threading.Thread(target=pump)
    thread.start()
    try:
        yield source, events
    finally:
        source.stopping.set()
        thread.join(60)
        source.close()
    assert not thread.is_alive()


def send(source, *pieces):
    with socket.create_connection(("127.0.0.1", source.port), 10) as client:
        for piece in pieces:
            client.sendall(piece)


@pytest.mark.parametrize("cut", [1, 2, 3, 10])
def test_a_byte_order_mark_is_no_part_of_the_first_event(cut):
    data = b'\xef\xbb\xbf{"message":"one"}\n{"message":"two"}\n'
    with running() as (source, events):
        send(source, data[:cut], data[cut:])
        until(lambda: len(events) == 2)
    assert events == [Event(b"one"), Event(b"two")]


def test_java_objects_are_refused_with_advice(caplog):
    with running() as (source, events):
        with socket.create_connection(("127.0.0.1", source.port), 10) as client:
            client.sendall(b"\xac\xed")
            client.sendall(b"\x00\x05sr\x00!org.apache.log4j.spi.LoggingEvent")
            with contextlib.suppress(ConnectionResetError):
                assert client.recv(1) == b""
        send(source, b'{"message":"next"}\n')
        until(lambda: events)
        assert [event.body for event in events] == [b"next"]
    assert "flume-ng-log4jappender" in caplog.text


# --- TLS


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    return certificate(tmp_path_factory.mktemp("here"))


@pytest.fixture(scope="module")
def stranger(certificates, tmp_path_factory):
    return certificate(tmp_path_factory.mktemp("stranger"), whose="stranger")


def encrypted(certificates, **properties):
    return running(ssl="true", keystore=str(certificates / "server.pem"), **properties)


def connect(source, certificates, client_certificate=None, version=None):
    context = ssl.create_default_context(cafile=str(certificates / "server.crt"))
    if version is not None:
        context.minimum_version = context.maximum_version = version
    if client_certificate is not None:
        context.load_cert_chain(str(client_certificate / "server.pem"))
    return context.wrap_socket(socket.create_connection(("127.0.0.1", source.port), 10), server_hostname="localhost")


def try_to_send(source, certificates, client_certificate):
    with connect(source, certificates, client_certificate) as client:
        client.sendall(b'{"message":"not let in"}\n')
        client.recv(1)  # with TLS 1.3 a client learns only now that it is refused


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_many_lines_through_tls(certificates, version):
    count = examples(30_000)
    with encrypted(certificates) as (source, events):
        with connect(source, certificates, version=version) as client:
            client.sendall(b"".join(b'{"message":"%d"}\n' % number for number in range(count)))
        until(lambda: len(events) == count)
        assert [int(event.body) for event in events] == list(range(count))


def test_only_applications_with_a_certificate_of_the_authority_are_admitted(certificates, stranger, caplog):
    with encrypted(certificates, truststore=str(certificates / "server.crt")) as (source, events):
        for client_certificate, reason in ((None, "showed no certificate"), (stranger, "certificate is refused")):
            with pytest.raises((ssl.SSLError, ConnectionError)):
                try_to_send(source, certificates, client_certificate)
            until(lambda reason=reason: reason in caplog.text)
            source._warned.clear()
        assert source.metrics.get("TlsHandshakeFail") == 2
        with connect(source, certificates, client_certificate=certificates) as client:
            client.sendall(b'{"message":"let in"}\n')
            until(lambda: events)
        assert [event.body for event in events] == [b"let in"]


def test_failed_handshakes_are_closed_and_block_no_one(certificates, caplog):
    with encrypted(certificates, handshakeTimeout="0.5") as (source, events):
        slow = [socket.create_connection(("127.0.0.1", source.port), 10) for _ in range(20)]
        slow[0].sendall(b"\x16\x03\x01")  # the beginning of a hello
        with (
            connect(source, certificates) as client,
            socket.create_connection(("127.0.0.1", source.port), 10) as plain,
        ):
            client.sendall(b'{"message":"meanwhile"}\n')
            until(lambda: len(events) == 1)
            plain.sendall(b'{"message":"in the open"}\n')
            until(lambda: "does not speak TLS" in caplog.text)
            for connection in slow:
                assert connection.recv(1) == b""
                connection.close()
            client.sendall(b'{"message":"still there"}\n')
            until(lambda: len(events) == 2)
        assert source.metrics.get("TlsHandshakeFail") == 21
    assert [event.body for event in events] == [b"meanwhile", b"still there"]


def test_an_unusable_keystore(certificates, tmp_path):
    properties = {"bind": "127.0.0.1", "port": "0", "ssl": "true", "keystore": str(tmp_path / "absent.p12")}
    config, problems = Log4jConfig.parse(properties)
    assert not problems
    source = Log4jSource(config)
    with pytest.raises(Retry, match=r"absent\.p12: No such file"):
        source.open()
    assert "absent.p12" in " ".join(source.check_connectivity())
    source.close()
    config, (problem,) = Log4jConfig.parse({"bind": "127.0.0.1", "port": "0", "truststore": "x"})
    assert config is None
    assert "needs ssl = true" in problem.message
