"""Source `thrift`, driven over real sockets; thriftpy2 is the reference for clients and servers."""

import contextlib
import io
import random
import socket
import ssl
import struct

import pytest
import thriftpy2
from hypothesis import given
from hypothesis import strategies as st
from thriftpy2.protocol import TBinaryProtocol
from thriftpy2.protocol.compact import TCompactProtocol
from thriftpy2.thrift import TApplicationException, TClient
from thriftpy2.transport import TFramedTransport, TMemoryBuffer, TSocket

from flafka.agent.services.running import until
from flafka.plugins import Batch, Event
from flafka.plugins.wire.flumeevent import encode
from flafka.plugins.wire.rpcevents import RpcBatchBuilder
from flafka.plugins.wire.thriftrpc import PROTOCOLS, MessageKind, ThriftFrameDecoder, ThriftStatus, encode_frame
from flafka.sources.thrift import ThriftSource, ThriftSourceConfig
from tests.plugins.certificates import certificate
from tests.sources import calling
from tests.sources.calling import EVENTS, HELLO

IDL = """
struct ThriftFlumeEvent { 1: required map<string, string> headers, 2: required binary body }
enum Status { OK, FAILED, ERROR, UNKNOWN }
service ThriftSourceProtocol {
  Status append(1: ThriftFlumeEvent event),
  Status appendBatch(1: list<ThriftFlumeEvent> events),
  Status destroy(1: i32 all),
}
"""
FLUME = thriftpy2.load_fp(io.StringIO(IDL), "flume_thrift")
LIBRARY = {"compact": TCompactProtocol, "binary": TBinaryProtocol}
each_protocol = pytest.mark.parametrize("name", sorted(PROTOCOLS))


class Running(calling.Running):
    kind = ThriftSource


def request(name, *events, serial=1):
    protocol = PROTOCOLS[name]
    return encode_frame(protocol.encode_call(serial, encode(Batch.of(events), protocol.layout).to_pylist()))


class Client:
    """Client like flume-ng-sdk."""

    def __init__(self, running, name="compact", tls=None):
        self.socket = socket.create_connection(("127.0.0.1", running.source.port), 20)
        if tls:
            self.socket = tls.wrap_socket(self.socket, server_hostname="localhost")
        self.name, self.protocol, self.frames = name, PROTOCOLS[name], ThriftFrameDecoder(1 << 20)
        self.arrived = []
        self.serial = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def request(self, *events):
        self.serial += 1
        self.socket.sendall(request(self.name, *events, serial=self.serial))

    def receive(self):
        while not self.arrived:
            data = self.socket.recv(65536)
            assert data, "closed"
            self.arrived += self.frames.feed(data)
        content = self.arrived.pop(0)
        answer = self.protocol.read_response(content)
        return answer.serial, self.protocol.read_status(content, answer)

    def append(self, *events):
        self.request(*events)
        serial, status = self.receive()
        assert serial == self.serial
        return status

    closed = calling.Client.closed


@contextlib.contextmanager
def library(running, name):
    """Return thriftpy2's client."""
    transport = TFramedTransport(TSocket("127.0.0.1", running.source.port))
    transport.open()
    try:
        yield TClient(FLUME.ThriftSourceProtocol, LIBRARY[name](transport))
    finally:
        transport.close()


def flume_event(event):
    return FLUME.ThriftFlumeEvent(headers=dict(event.headers), body=event.body)


# --- events


@each_protocol
@given(EVENTS, EVENTS)
def test_events_come_back_as_they_were(name, first, second):
    protocol = PROTOCOLS[name]
    events = RpcBatchBuilder(protocol.scan)
    for group in (first, second):
        content = protocol.encode_call(1, encode(Batch.of(group), protocol.layout).to_pylist())
        message = protocol.read_call(content)
        assert (message.kind, message.name, message.serial) == (MessageKind.CALL, "appendBatch", 1)
        events.add(content, message.offset, is_batch=True)
    assert list(events.batch()) == first + second


@each_protocol
@given(EVENTS)
def test_the_library_writes_and_reads_the_same(name, events):
    protocol = PROTOCOLS[name]
    buffer = TMemoryBuffer()
    arguments = FLUME.ThriftSourceProtocol.appendBatch_args(events=[flume_event(event) for event in events])
    LIBRARY[name](buffer).write_struct(arguments)
    gathered = RpcBatchBuilder(protocol.scan)
    gathered.add(buffer.getvalue(), 0, is_batch=True)
    assert list(gathered.batch()) == events
    content = protocol.encode_call(7, encode(Batch.of(events), protocol.layout).to_pylist())
    read = FLUME.ThriftSourceProtocol.appendBatch_args()
    LIBRARY[name](TMemoryBuffer(content[protocol.read_call(content).offset :])).read_struct(read)
    assert [(event.headers, as_bytes(event.body)) for event in read.events] == [(e.headers, e.body) for e in events]


def as_bytes(body):
    return body.encode() if isinstance(body, str) else body  # thriftpy2 gives text where it can


@each_protocol
@given(st.binary(max_size=200), st.booleans())
def test_garbage_is_a_value_error(name, data, is_batch):
    with contextlib.suppress(ValueError):
        RpcBatchBuilder(PROTOCOLS[name].scan).add(data, 0, is_batch=is_batch)
    with contextlib.suppress(ValueError):
        PROTOCOLS[name].read_call(data)


@each_protocol
@given(EVENTS, st.data())
def test_damage_is_reported_and_adds_nothing(name, events, data):
    protocol = PROTOCOLS[name]
    content = protocol.encode_call(1, encode(Batch.of(events), protocol.layout).to_pylist())
    start = protocol.read_call(content).offset
    gathered = RpcBatchBuilder(protocol.scan)
    with pytest.raises(ValueError):
        gathered.add(content[: data.draw(st.integers(start, len(content) - 1))], start, is_batch=True)
    assert len(gathered.batch()) == 0


@each_protocol
def test_more_headers_than_columns(name):
    protocol = PROTOCOLS[name]
    events = [Event(b"x", {f"h{i}": str(i) for i in range(70)}), Event(b"", {})]
    content = protocol.encode_call(1, encode(Batch.of(events), protocol.layout).to_pylist())
    gathered = RpcBatchBuilder(protocol.scan)
    gathered.add(content, protocol.read_call(content).offset, is_batch=True)
    assert list(gathered.batch()) == events


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("compact", b"\x19\xfc\xff\xff\xff\xff\x0f" + bytes(100_000)),  # 2^32 events, and none there
        ("compact", b"\x19\xfc\xff\xff\xff\xff\xff\xff\x0f"),
        ("compact", b"\x19\x1c\x1b\xff\xff\xff\xff\x0f\x88" + bytes(100_000)),  # 2^32 headers
        ("compact", b"\x19\x1c\x1b\0\x18\xff\xff\xff\xff\x0f"),  # a body of 4 GiB
        ("compact", b"\x19\x15\2\0"),  # a list of numbers
        ("compact", b"\x19\x1c\x18\1b\0\0"),  # no headers
        ("compact", b"\x19\x1c\x1b\0\x18\1b\x18\1c\0\0"),  # an additional field
        ("compact", b"\x19\x1c\x1b\0\x18\1b\0\0\0"),  # an additional byte
        ("compact", b"\x2c" * 100_000),  # structs in structs
        ("binary", b"\x0f\0\1\x0c\xff\xff\xff\xff" + bytes(100_000)),
        ("binary", b"\x0f\0\1\x0c\0\0\0\1\x0d\0\1\x0b\x0b\x7f\xff\xff\xff" + bytes(100_000)),
        ("binary", b"\x0f\0\1\x0c\0\0\0\1\x0d\0\1\x0b\x0b\0\0\0\0\x0b\0\2\xff\xff\xff\xff"),
        ("binary", b"\x0c\0\2" * 100_000),
    ],
)
def test_impossible_lengths_are_refused(name, content):
    with pytest.raises(ValueError):
        RpcBatchBuilder(PROTOCOLS[name].scan).add(content, 0, is_batch=True)


# --- clients


@each_protocol
def test_the_librarys_client_is_answered(name):
    with Running(protocol=name.upper()) as running, library(running, name) as client:
        assert client.append(flume_event(HELLO)) == ThriftStatus.OK
        assert (
            client.appendBatch([flume_event(Event(b"%d" % n, {"grüße": "世界"})) for n in range(20)])
            == ThriftStatus.OK
        )
        with pytest.raises(TApplicationException, match="there is no call 'destroy' here"):
            client.destroy(1)
        assert client.appendBatch([]) == ThriftStatus.OK
        assert running.events == [HELLO, *(Event(b"%d" % n, {"grüße": "世界"}) for n in range(20))]
        assert running.count("AppendReceivedCount") == running.count("AppendAcceptedCount") == 1


@each_protocol
def test_ok_comes_after_the_events_are_stored(name):
    with Running(store=False, protocol=name) as running, Client(running, name) as client:
        client.request(HELLO, Event(b"\xff\0"))
        until(lambda: running.batches)
        client.socket.settimeout(0.05)
        with pytest.raises(TimeoutError):
            client.receive()
        client.socket.settimeout(20)
        running.source.stored(running.batches[0])
        assert client.receive() == (1, ThriftStatus.OK)
        assert running.events == [HELLO, Event(b"\xff\0")]


def test_a_message_as_before_thrift_0_2():
    old = struct.pack(">I6sBI", 6, b"append", 1, 5)
    event = b"\x0c\0\1\x0d\0\1\x0b\x0b\0\0\0\0\x0b\0\2\0\0\0\1b\0\0"
    with Running(protocol="binary") as running, Client(running, "binary") as client:
        client.socket.sendall(encode_frame(old + event))
        assert client.receive() == (5, ThriftStatus.OK)
        assert running.events == [Event(b"b")]


def test_events_that_are_not_stored_in_time_are_answered_failed():
    with Running(store=False, **{"request-timeout": "200"}) as running, Client(running) as client:
        assert client.append(HELLO) == ThriftStatus.FAILED
        assert running.count("RequestTimeoutCount") == 1


# --- bad input


@pytest.mark.parametrize(
    ("garbage", "reason"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "something that is not Thrift: it begins with b'GET '"),
        (bytes(64), "sends b''"),
        (b"\xff" * 64, "a frame of 4294967295 bytes; at most 33554432 are accepted"),
        (struct.pack(">I", 1 << 26), "at most 33554432 are accepted"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01", "set ssl = true"),
        (request("binary", HELLO), "it speaks the protocol binary: set protocol = binary"),
        (request("compact", HELLO)[4:], "without frames"),
        (b"\1\0\0\0\6GSSAPI", "Kerberos"),
        (encode_frame(b"\x82\x41\1\6append"), "a message of kind 2 is no call"),
        (encode_frame(b"\x82\x21\1\x70append"), "a message ends within its name"),
        (encode_frame(b"\x82\x21"), "a message ends within its head"),
        (encode_frame(b"\x82\x21\1\6append\x1c\x1b\0\x18\1x\0"), "cannot be read: 0 bytes follow the events"),
        (encode_frame(b"\x82\x21\1\x0bappendBatch\x19\x1c\x1b"), "cannot be read: the request ends within an event"),
    ],
)
def test_garbage_ends_its_connection_only(garbage, reason, caplog):
    with Running() as running, Client(running) as healthy:
        with Client(running) as client:
            client.socket.sendall(garbage)
            assert client.closed()
        assert healthy.append(HELLO) == ThriftStatus.OK
        assert running.count("EventReadFail") >= 1
        assert running.events == [HELLO]
    assert reason in caplog.text


@each_protocol
def test_mutations_of_a_good_request_never_disturb_others(name, seed):
    dice = random.Random(seed)
    good = request(name, HELLO, Event(b"other", {"a": "b", "c": ""}))
    with Running(protocol=name) as running, Client(running, name) as healthy:
        for round in range(150):
            data = bytearray(good)
            for _ in range(dice.randint(1, 5)):
                data[dice.randrange(len(data))] = dice.randrange(256)
            with Client(running, name) as client, contextlib.suppress(OSError):
                client.socket.sendall(data[: dice.randint(1, len(data))])
            if round % 50 == 49:
                assert healthy.append(Event(b"healthy %d" % round)) == ThriftStatus.OK
        bodies = [event.body for event in running.events if event.body.startswith(b"healthy")]
        assert bodies == [b"healthy 49", b"healthy 99", b"healthy 149"]
        until(lambda: running.count("OpenConnectionCount") == 1)
        assert running.source._server.partial_bytes == 0
        until(lambda: running.source._server._pending_bytes == 0)  # a mutation may be a valid request


def test_slow_and_crowding_clients_are_bounded(monkeypatch, caplog):
    """Frames that begin and do not end, more of them than there is room for, beside a client that works."""
    monkeypatch.setattr("flafka.sources.rpc.MAX_PENDING_BYTES", 1 << 20)
    properties = {"maxRequestBytes": str(1 << 20), "frameTimeout": "2"}
    with Running(**properties) as running, Client(running) as healthy, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(Client(running)) for _ in range(50)]
        for client in clients:
            with contextlib.suppress(OSError):
                client.socket.sendall(struct.pack(">I", 1 << 20) + bytes(100_000))
        until(lambda: running.count("EventReadFail") > 10)  # those that began without room
        assert healthy.append(HELLO) == ThriftStatus.OK
        # Concurrent ones may be more, until those are closed.
        until(lambda: running.source._server.partial_bytes <= (1 << 20) + 256 * 1024)
        for client in clients:
            assert client.closed()
        running.source._warned.clear()  # each kind is reported once a minute
        slow = stack.enter_context(Client(running))
        slow.socket.sendall(struct.pack(">I", 1 << 20) + bytes(100))
        assert slow.closed()
        assert running.source._server.partial_bytes == 0
        assert healthy.append(HELLO) == ThriftStatus.OK
    assert "too many large requests have begun at once" in caplog.text
    assert "left a request unfinished for 2 s" in caplog.text


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({"protocol": "json"}, "must be 'compact' or 'binary'"),
        ({"kerberos": "true"}, "is not built yet"),
        ({"ssl": "true"}, "needs a keystore"),
    ],
)
def test_wrong_options(properties, message):
    config, problems = ThriftSourceConfig.parse({"bind": "127.0.0.1", "port": "0"} | properties)
    assert config is None
    assert len(problems) == 1
    assert message in problems[0].message


def test_options_of_flumes_that_have_no_effect():
    flumes = {"threads": "8", "kerberos": "false", "keystore-type": "JKS", "keymanager-type": "SunX509"}
    config, problems = ThriftSourceConfig.parse({"bind": "127.0.0.1", "port": "0"} | flumes)
    assert config is not None
    assert not [problem for problem in problems if problem.is_unknown_option]


def test_tls(tmp_path):
    files = certificate(tmp_path)
    properties = {"ssl": "true", "keystore": str(files / "server.p12"), "keystore-password": "changeit"}
    context = ssl.create_default_context(cafile=files / "server.crt")
    with Running(**properties) as running, Client(running, tls=context) as client:
        assert client.append(HELLO) == ThriftStatus.OK
        assert client.append(*[Event(bytes(1000))] * 2000) == ThriftStatus.OK
        assert len(running.events) == 2001
