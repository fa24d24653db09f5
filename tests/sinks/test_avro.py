"""Sink `avro` with our own avro source; a real Flume is in tests/interop."""

import contextlib
import socket
import ssl
import threading
import time

import pytest

from flafka.plugins import Batch, Event, Origin, Retry
from flafka.plugins.wire.avrorpc import AvroStatus, encode_error, encode_frame, encode_response
from flafka.sinks.avro import AvroSink, AvroSinkConfig
from tests.plugins.certificates import certificate
from tests.sources.calling import Running

EVENTS = [Event(b"line %d" % i, {"host": f"web-{i % 3}", "ü": "é"} if i % 2 else {}) for i in range(1050)]


def open_sink(port, **properties):
    config, problems = AvroSinkConfig.parse({"hostname": "127.0.0.1", "port": str(port)} | properties)
    assert not problems
    sink = AvroSink(config)
    sink.open()
    return sink


def batch(events):
    return Batch.of(events, Origin.of_record("t", 0, 0, 0, len(events)))


@pytest.fixture(scope="module")
def tls(tmp_path_factory):
    return certificate(tmp_path_factory.mktemp("tls"))


@pytest.mark.parametrize("deflate", [False, True])
@pytest.mark.parametrize("encrypted", [False, True])
def test_everything_arrives_in_order(deflate, encrypted, tls):
    compression = {"compression-type": "deflate"} if deflate else {}
    server = (
        {"ssl": "true", "keystore": str(tls / "server.p12"), "keystore-password": "changeit"} if encrypted else {}
    )
    client = {"ssl": "true", "truststore": str(tls / "server.crt")} if encrypted else {}
    with (
        Running(**compression, **server) as running,
        contextlib.closing(open_sink(running.source.port, **compression, **client)) as sink,
    ):
        sink.write(batch(EVENTS[:1000]))
        sink.write(batch(EVENTS[1000:]))
        sink.flush()
        sink.flush()
        assert running.events == EVENTS
        assert sink.metrics.get("ConnectionCreatedCount") == 1


def test_reset_events_are_not_sent():
    with Running() as running, contextlib.closing(open_sink(running.source.port)) as sink:
        sink.write(batch(EVENTS[:10]))
        sink.reset()
        sink.write(batch(EVENTS[10:20]))
        sink.flush()
        assert running.events == EVENTS[10:20]


def test_a_source_whose_channel_is_unavailable():
    with Running(store=False, **{"request-timeout": "100"}) as running:
        sink = open_sink(running.source.port)
        sink.write(batch(EVENTS))
        with pytest.raises(Retry, match="answers FAILED: its channel may be full or unavailable"):
            sink.flush()
        sink.close()


def test_connecting_anew():
    with Running() as running:
        sink = open_sink(running.source.port, **{"reset-connection-interval": "1"})
        for _ in range(2):
            sink.write(batch(EVENTS[:1]))
            sink.flush()
            sink._connection.since -= 2
        sink.close()
        assert sink.metrics.get("ConnectionCreatedCount") == sink.metrics.get("ConnectionClosedCount") == 2


@contextlib.contextmanager
def impostor(reply):
    """Yield a server that answers the first bytes with these."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve():
            with contextlib.suppress(OSError):
                connection, _ = listener.accept()
                with connection:
                    connection.recv(65536)
                    connection.sendall(reply)
                    connection.recv(65536)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
    thread.join(5)


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "does not speak Avro RPC"),
        (encode_frame(2, encode_response(bytes(4), AvroStatus.OK)), "answer to request 2, which is not pending"),
        (encode_frame(1, encode_response(bytes(4), AvroStatus.UNKNOWN)), "answers UNKNOWN"),
        (encode_frame(1, encode_error(bytes(4), "out of order")), "reports: out of order"),
        (encode_frame(1, [b"\4\2\x06abc\0\0"]), "speaks another protocol: b'abc'"),
        (encode_frame(1, [b""]), "ends within a number"),
        (bytes(3), "no answer in time"),
        (b"\0\0\0\1\0\1\0\0" + b"\xff" * 8, "at most 1048576 are accepted"),
    ],
)
def test_an_answer_of_another_server_is_reported(reply, message):
    with impostor(reply) as port:
        sink = open_sink(port, **{"connect-timeout": "1000"})
        sink.write(batch(EVENTS[:1]))
        with pytest.raises(Retry, match=message):
            sink.flush()
        sink.close()


def test_a_silent_source():
    """`request-timeout` applies to each request after the first, and too short a time is Flume's default."""
    with Running(store=False) as running:
        sink = open_sink(running.source.port, **{"request-timeout": "1000"})
        running.store = True
        sink.write(batch(EVENTS[:1]))
        sink.flush()
        running.store = False
        sink.write(batch(EVENTS[:1]))
        begin = time.monotonic()
        with pytest.raises(Retry, match="no answer in time"):
            sink.flush()
        assert 0.9 < time.monotonic() - begin < 10
        sink.close()
    config, problems = AvroSinkConfig.parse(
        {
            "hostname": "x",
            "port": "1",
            "connect-timeout": "20",
            "request-timeout": "0",
            "reset-connection-interval": "-1",
        }
    )
    assert not problems
    assert config.timeout_seconds(config.connect_timeout) == config.timeout_seconds(config.request_timeout) == 20
    assert [caution.option for caution in config.warnings()] == ["connect-timeout", "request-timeout"]


def test_nobody_listens():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    sink = open_sink(port)
    sink.write(batch(EVENTS[:1]))
    with pytest.raises(Retry, match=f"127.0.0.1:{port}: Connection refused"):
        sink.flush()
    assert list(sink.check_connectivity()) == [f"127.0.0.1:{port}: Connection refused"]


def test_deflate_on_one_side_only():
    with Running() as running:
        sink = open_sink(running.source.port, **{"compression-type": "deflate"})
        sink.write(batch(EVENTS[:1]))
        with pytest.raises(Retry, match="closed the connection"):
            sink.flush()
        sink.close()


def test_certificates(tls, tmp_path):
    stranger = certificate(tmp_path, whose="stranger")
    server = {"ssl": "true", "keystore": str(tls / "server.p12"), "keystore-password": "changeit"}
    with Running(**server) as running:
        port = running.source.port
        assert list(open_sink(port, ssl="true", truststore=str(tls / "server.crt")).check_connectivity()) == []
        assert list(open_sink(port, ssl="true", **{"trust-all-certs": "true"}).check_connectivity()) == []
        for client in ({"truststore": str(stranger / "server.crt")}, {}):
            (problem,) = open_sink(port, ssl="true", **client).check_connectivity()
            assert "its certificate is not accepted" in problem
    wrong = {"ssl": "true", "keystore-password": "changeit"}
    for keystore, reason in ((tls / "server.crt", "no private key"), (tls / "none", "No such file")):
        with pytest.raises(Retry, match=reason):
            Running(**wrong, keystore=str(keystore)).source.open()
    with pytest.raises(Retry, match="the password is wrong"):
        Running(**server | {"keystore-password": "secret"}).source.open()


def test_the_name_in_the_certificate(tmp_path):
    elsewhere = certificate(tmp_path, "subjectAltName=DNS:elsewhere.example.com")
    server = {"ssl": "true", "keystore": str(elsewhere / "server.pem")}
    client = {"ssl": "true", "truststore": str(elsewhere / "server.crt")}
    with Running(**server) as running:
        (problem,) = open_sink(running.source.port, **client).check_connectivity()
        assert "check-hostname" in problem
        assert (
            list(open_sink(running.source.port, **client, **{"check-hostname": "false"}).check_connectivity()) == []
        )


def test_contexts_speak_no_old_versions():
    config, _ = AvroSinkConfig.parse({"hostname": "x", "port": "1", "ssl": "true"})
    assert config.context().minimum_version == ssl.TLSVersion.TLSv1_2
