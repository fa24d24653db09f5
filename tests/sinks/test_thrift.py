"""Sink `thrift` with our own thrift source; a real Flume is in tests/interop."""

import contextlib

import pytest

from flafka.plugins import Event, Retry
from flafka.plugins.wire.thriftrpc import PROTOCOLS, ThriftStatus, encode_frame
from flafka.sinks.thrift import ThriftSink
from tests.plugins.certificates import certificate
from tests.sinks.test_avro import EVENTS, batch, impostor
from tests.sources.test_thrift import Running, each_protocol


def open_sink(port, **properties):
    config, problems = ThriftSink.config_class.parse({"hostname": "127.0.0.1", "port": str(port)} | properties)
    assert not problems
    sink = ThriftSink(config)
    sink.open()
    return sink


@each_protocol
def test_everything_arrives_in_order(name):
    with Running(protocol=name) as running, contextlib.closing(open_sink(running.source.port, protocol=name)) as sink:
        sink.write(batch(EVENTS[:1000]))
        sink.write(batch(EVENTS[1000:]))
        sink.flush()
        sink.flush()
        assert running.events == EVENTS
        assert sink.metrics.get("ConnectionCreatedCount") == 1
        odd = [Event(b"x", {f"h{i}": str(i) for i in range(70)}), Event(b"", {"k": "v" * 300})]
        sink.write(batch(odd))
        sink.flush()
        assert running.events[len(EVENTS) :] == odd


def test_tls(tmp_path):
    files = certificate(tmp_path)
    server = {"ssl": "true", "keystore": str(files / "server.pem")}
    client = {"ssl": "true", "truststore": str(files / "server.crt")}
    with Running(**server) as running, contextlib.closing(open_sink(running.source.port, **client)) as sink:
        assert list(sink.check_connectivity()) == []
        sink.write(batch(EVENTS))
        sink.flush()
        assert running.events == EVENTS


def test_a_source_whose_channel_is_unavailable():
    with Running(store=False, **{"request-timeout": "100"}) as running:
        sink = open_sink(running.source.port)
        sink.write(batch(EVENTS))
        with pytest.raises(Retry, match="answers FAILED: its channel may be full or unavailable"):
            sink.flush()
        sink.close()


COMPACT = PROTOCOLS["compact"]


@each_protocol
@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (lambda protocol: b"HTTP/1.1 400 Bad Request\r\n\r\n", "it begins with b'HTTP'"),
        (lambda protocol: encode_frame(b"x"), "what it answers is not Thrift's protocol"),
        (
            lambda protocol: encode_frame(protocol.encode_response("appendBatch", 2, ThriftStatus.OK)),
            "answer to request 2, which is not",
        ),
        (
            lambda protocol: encode_frame(protocol.encode_response("appendBatch", 1, ThriftStatus.UNKNOWN)),
            "answers UNKNOWN",
        ),
        (
            lambda protocol: encode_frame(protocol.encode_error("appendBatch", 1, "out of order")),
            "reports: out of order",
        ),
        (
            lambda protocol: encode_frame(protocol.encode_response("appendBatch", 1, ThriftStatus.OK)[:-2]),
            "ends too early|is not|b''",
        ),
        (lambda protocol: bytes(3), "no answer in time"),
        (lambda protocol: b"\xff" * 8, "at most 1048576 are accepted"),
    ],
)
def test_an_answer_of_another_protocol_is_reported(name, reply, message):
    with impostor(reply(PROTOCOLS[name])) as port:
        sink = open_sink(port, protocol=name, **{"connect-timeout": "1000"})
        sink.write(batch(EVENTS[:1]))
        with pytest.raises(Retry, match=message):
            sink.flush()
        sink.close()


def test_protocols_that_differ():
    with Running(protocol="binary") as running:
        sink = open_sink(running.source.port)
        sink.write(batch(EVENTS[:1]))
        with pytest.raises(Retry, match="closed the connection"):
            sink.flush()
        sink.close()
