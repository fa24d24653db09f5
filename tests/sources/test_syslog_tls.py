"""Syslog over TLS (RFC 5425) with real clients: Python's ssl and openssl."""

import shutil
import socket
import ssl
import subprocess
import threading

import pytest

from flafka.agent.services.running import until
from flafka.plugins import Retry
from flafka.sources.syslog import SyslogTcp
from tests.fixtures.examples import examples
from tests.plugins.certificates import certificate
from tests.sources.syslog_running import Running

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
pytestmark = needs_openssl
LINE = b"<13>1 2024-05-01T10:00:00Z h "


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    return certificate(tmp_path_factory.mktemp("server"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory):
    return certificate(tmp_path_factory.mktemp("stranger"), whose="stranger")


def make(certificates, **options):
    overrides = {name.replace("_", "-"): str(value) for name, value in options.items()}
    properties = {
        "host": "127.0.0.1",
        "port": "0",
        "ssl": "true",
        "keystore": str(certificates / "server.pem"),
    } | overrides
    config, problems = SyslogTcp.config_class.parse(properties)
    assert not problems, problems
    return SyslogTcp(config, "s1")


def connect(source, certificates, *, client_certificate=None, version=None):
    context = ssl.create_default_context(cafile=str(certificates / "server.crt"))
    if version is not None:
        context.minimum_version = context.maximum_version = version
    if client_certificate is not None:
        context.load_cert_chain(str(client_certificate / "server.pem"))
    plain = socket.create_connection(("127.0.0.1", source.port), timeout=10)
    return context.wrap_socket(plain, server_hostname="localhost")


def try_to_send(source, certificates, client_certificate):
    with connect(source, certificates, client_certificate=client_certificate) as sender:
        sender.sendall(LINE + b"not let in\n")
        sender.recv(1)  # with TLS 1.3 a client learns only now that it is refused


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("keystore", ["server.pem", "server.p12"])
def test_many_messages_through_tls(certificates, keystore, version):
    count = examples(30_000)
    source = make(certificates, keystore=certificates / keystore, keystore_password="changeit")
    with Running(source) as running:
        with connect(source, certificates, version=version) as sender:
            sender.sendall(b"".join(LINE + b"%d\n" % i for i in range(count)))
            sender.unwrap().close()
        events = running.wait_for(count)
    assert [int(event.body) for event in events] == list(range(count))


def test_records_of_one_line_each_are_read_together(certificates):
    hold = threading.Event()
    with Running(make(certificates), hold) as running, connect(running.source, certificates) as sender:
        sender.sendall(LINE + b"first\n")
        running.wait_for(1)
        for number in range(300):
            sender.sendall(LINE + b"%d\n" % number)
        hold.set()
        events = running.wait_for(301)
    assert [event.body for event in events[1:]] == [b"%d" % number for number in range(300)]
    assert len(running.batches) <= 4


def test_octet_counted_frames_as_rfc_5425_has_them(certificates):
    messages = [LINE + b"one\nwith a newline", LINE + b"two"]
    with Running(make(certificates)) as running, connect(running.source, certificates) as sender:
        for message in messages:
            sender.sendall(b"%d %s" % (len(message), message))
        events = running.wait_for(2)
    assert [event.body for event in events] == [b"one\nwith a newline", b"two"]


def test_openssl_as_the_client(certificates):
    with Running(make(certificates)) as running:
        command = ["openssl", "s_client", "-quiet", "-no_ign_eof", "-verify_return_error"]
        subprocess.run(
            [*command, "-CAfile", str(certificates / "server.crt"), "-connect", f"127.0.0.1:{running.source.port}"],
            input=LINE + b"from openssl\n",
            check=True,
            timeout=20,
            capture_output=True,
        )
        (event,) = running.wait_for(1)
    assert event.body == b"from openssl"


def test_only_senders_with_a_certificate_of_the_authority_are_admitted(certificates, stranger, caplog):
    source = make(certificates, truststore=certificates / "server.crt")
    with Running(source) as running:
        for client_certificate, reason in ((None, "showed no certificate"), (stranger, "certificate is refused")):
            with pytest.raises((ssl.SSLError, ConnectionError)):
                try_to_send(source, certificates, client_certificate)
            until(lambda reason=reason: reason in caplog.text, reason)
            source._warned.clear()
        assert source.metrics.get("TlsHandshakeFail") == 2
        with connect(source, certificates, client_certificate=certificates) as sender:
            sender.sendall(LINE + b"let in\n")
            (event,) = running.wait_for(1)
        until(lambda: source.metrics.get("OpenConnectionCount") == 0)
    assert event.body == b"let in"


@pytest.mark.parametrize(
    "text", [LINE + b"in the open\n", b"GET / HTTP/1.0\r\n\r\n", b"\x00" * 100], ids=["syslog", "http", "nuls"]
)
def test_plain_text_is_no_event_on_a_tls_port(certificates, text, caplog):
    with Running(make(certificates)) as running:
        with socket.create_connection(("127.0.0.1", running.source.port), timeout=10) as sender:
            sender.sendall(text)
            until(lambda: running.source.metrics.get("TlsHandshakeFail") == 1)
        with connect(running.source, certificates) as other:
            other.sendall(LINE + b"fine\n")
            (event,) = running.wait_for(1)
    assert event.body == b"fine"
    assert "its TLS handshake failed" in caplog.text


def test_slow_handshakes_block_no_one_and_end(certificates, caplog):
    source = make(certificates, handshakeTimeout=0.5)
    with Running(source) as running:
        slow = [socket.create_connection(("127.0.0.1", source.port), timeout=10) for _ in range(50)]
        slow[0].sendall(b"\x16\x03\x01")  # the beginning of a hello
        with connect(source, certificates) as sender:
            sender.sendall(LINE + b"meanwhile\n")
            running.wait_for(1)
            for connection in slow:
                assert connection.recv(1) == b""
                connection.close()
            sender.sendall(LINE + b"still there\n")
            running.wait_for(2)
    assert source.metrics.get("TlsHandshakeFail") == 50
    assert "it took longer than handshakeTimeout = 0.5 s" in caplog.text


def test_a_connection_cut_off_in_tls_keeps_the_read_data(certificates):
    with Running(make(certificates)) as running:
        sender = connect(running.source, certificates)
        sender.sendall(LINE + b"one\n" + LINE + b"two, unfinished")
        running.wait_for(1)
        sender.close()  # without TLS's close_notify
        _, event = running.wait_for(2)
    assert event.body == b"two, unfinished"
    assert event.headers["flume.syslog.status"] == "Incomplete"


def test_a_sender_that_closes_without_reading_loses_nothing(certificates):
    """With unread bytes its kernel would reset the connection, and drop the data that the source has not read."""
    source, hold = make(certificates), threading.Event()
    with Running(source, hold) as running:
        with connect(source, certificates, version=ssl.TLSVersion.TLSv1_3) as sender:
            sender.sendall(LINE + b"0\n")
            running.wait_for(1)  # from now on the source is blocked
            sender.sendall(b"".join(LINE + b"%d\n" % i for i in range(1, 3000)))
        hold.set()
        events = running.wait_for(3000)
    assert [int(event.body) for event in events] == list(range(3000))


def test_a_hello_in_single_bytes(certificates):
    """The handshake waits for bytes without blocking the thread."""
    context = ssl.create_default_context(cafile=str(certificates / "server.crt"))
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    source = make(certificates)
    with Running(source) as running, socket.create_connection(("127.0.0.1", source.port), timeout=10) as sender:
        sender.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def trickle():
            for byte in outgoing.read():
                sender.send(bytes([byte]))

        in_handshake = True
        while in_handshake:
            try:
                client.do_handshake()
                in_handshake = False
            except ssl.SSLWantReadError:
                trickle()
                incoming.write(sender.recv(65536))
        client.write(LINE + b"slowly\n")
        trickle()
        (event,) = running.wait_for(1)
    assert event.body == b"slowly"


def test_an_unusable_keystore_is_a_clear_error(certificates, tmp_path):
    source = make(certificates, keystore=tmp_path / "absent.p12")
    with pytest.raises(Retry, match=r"absent\.p12: No such file"):
        source.open()
    source.close()
    assert "absent.p12" in " ".join(source.check_connectivity())
    source = make(certificates, truststore=tmp_path / "absent.crt")
    with pytest.raises(Retry, match=r"truststore .*absent\.crt: No such file"):
        source.open()


@pytest.mark.parametrize(
    ("options", "reason"),
    [({"ssl": "true"}, "needs a keystore"), ({"truststore": "x"}, "needs ssl = true")],
)
def test_half_a_configuration_is_an_error(options, reason, monkeypatch):
    monkeypatch.delenv("FLUME_SSL_KEYSTORE_PATH", raising=False)
    config, (problem,) = SyslogTcp.config_class.parse({"host": "127.0.0.1", "port": "0"} | options)
    assert config is None
    assert reason in problem.message
