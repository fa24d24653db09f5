"""Source `avro`, driven over real sockets."""

import asyncio
import contextlib
import hashlib
import json
import random
import struct
import threading
import zlib

import pytest

from flafka.agent.services.running import until
from flafka.plugins import Batch, Event, Retry
from flafka.plugins.wire import avrorpc
from flafka.plugins.wire.avrorpc import (
    PROTOCOL_HASH,
    AvroStatus,
    encode_array,
    encode_frame,
    encode_request_head,
    read_response,
)
from flafka.plugins.wire.flumeevent import encode_long
from tests.sources.calling import HELLO, Client, Running, encoded

# --- clients


@pytest.mark.parametrize("deflate", [False, True])
def test_ok_comes_after_the_events_are_stored(deflate):
    with Running(store=False, **{"compression-type": "DEFLATE"} if deflate else {}) as running:
        with Client(running, deflate) as client:
            client.request(HELLO, Event(b"\xff\0"))
            until(lambda: running.batches)
            client.socket.settimeout(0.05)
            with pytest.raises(TimeoutError):
                client.receive()
            client.socket.settimeout(20)
            running.source.stored(running.batches[0])
            assert read_response(client.receive()[1], first=True) == AvroStatus.OK
            running.store = True
            assert client.append(HELLO) == AvroStatus.OK
            assert client.append() == AvroStatus.OK
        assert running.events == [HELLO, Event(b"\xff\0"), HELLO]
        until(lambda: running.count("OpenConnectionCount") == 0)


def test_single_appends_travel_together():
    with Running(store=False) as running, Client(running) as client:
        running.source.in_flight = 1
        for number in range(500):
            client.send(
                encode_request_head(first=number == 0, message="append"),
                encoded(Batch.of([Event(b"%d" % number)]))[0],
            )
        until(lambda: len(running.events) == 500)
        assert [event.body for event in running.events] == [b"%d" % number for number in range(500)]
        for batch in running.batches:
            running.source.stored(batch)
        for number in range(500):
            serial, content = client.receive()
            assert (serial, read_response(content, first=number == 0)) == (number + 1, AvroStatus.OK)
        assert running.count("AppendReceivedCount") == running.count("AppendAcceptedCount") == 500


def test_events_that_are_not_stored_in_time_are_answered_failed():
    with Running(store=False, **{"request-timeout": "200"}) as running, Client(running) as client:
        assert client.append(HELLO) == AvroStatus.FAILED
        assert running.count("RequestTimeoutCount") == 1
        running.source.stored(running.batches[0])  # too late: the answer is sent
        running.store = True
        assert client.append(HELLO) == AvroStatus.OK
        assert running.events == [HELLO, HELLO]


def test_waiting_events_are_bounded(monkeypatch):
    monkeypatch.setattr("flafka.sources.rpc.MAX_PENDING_BYTES", 1 << 20)
    properties = {"maxRequestBytes": str(1 << 20), "request-timeout": "60000"}
    big = Event(bytes(100_000))
    with Running(store=False, **properties) as running, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(Client(running)) for _ in range(40)]
        for client in clients:
            threading.Thread(target=client.request, args=[big], daemon=True).start()
        until(lambda: running.source._server.is_full)
        pending = running.source._server._pending_bytes
        assert pending < 3 << 20
        running.store = True
        for batch in list(running.batches):
            running.source.stored(batch)
        for client in clients:
            assert read_response(client.receive()[1], first=True) == AvroStatus.OK
        assert len(running.events) == 40


def test_a_stop_answers_stored_events_and_closes_other_connections():
    with Running() as running:
        client, silent = Client(running), Client(running)
        assert client.append(HELLO) == AvroStatus.OK
        until(lambda: running.count("OpenConnectionCount") == 2)
    with client, silent:
        assert client.closed()
        assert silent.closed()


# --- handshakes


def other_protocol(change):
    protocol = json.loads(json.dumps(avrorpc.PROTOCOL))
    change(protocol)
    return json.dumps(protocol).encode()


def java_strings(protocol):
    protocol["doc"] = "other words"
    protocol["types"][1]["fields"][0]["type"] = {
        "type": "map",
        "values": {"type": "string", "avro.java.string": "String"},
        "avro.java.string": "String",
    }


def greeting(text, client_hash=None, server_hash=PROTOCOL_HASH):
    client_hash = client_hash or hashlib.md5(text or b"unknown").digest()
    encoded_text = b"\2" + encode_long(len(text)) + text if text else b"\0"
    return client_hash + encoded_text + server_hash + b"\0"


CALL = b"\0\x16appendBatch"


def test_a_client_with_another_protocol_hash_has_to_send_its_text():
    with Running() as running, Client(running) as client:
        events = encode_array(encoded(Batch.of([HELLO])))
        client.send(greeting(b"") + CALL, events)
        _, content = client.receive()
        assert content[0] == 4  # NONE
        text = content[2:]
        assert b'"AvroSourceProtocol"' in text
        assert PROTOCOL_HASH in text
        client.send(greeting(other_protocol(java_strings)) + CALL, events)
        assert client.receive()[1] == b"\0\0\0\0" + b"\0" + b"\0\0"
        client.send(CALL, events)
        assert client.receive()[1] == b"\0" + b"\0\0"
        assert running.events == [HELLO, HELLO]


def test_a_client_with_a_wrong_server_hash_gets_the_right_one():
    with Running() as running, Client(running) as client:
        client.send(greeting(b"", PROTOCOL_HASH, bytes(16)) + CALL, encode_array(encoded(Batch.of([HELLO]))))
        _, content = client.receive()
        assert content[0] == 2  # CLIENT
        assert PROTOCOL_HASH in content
        assert content.endswith(b"\0\0\0")
        assert running.events == [HELLO]


@pytest.mark.parametrize(
    "text",
    [
        b"no json",
        b"[]",
        b"[" * 100_000,
        json.dumps({"types": [], "messages": {}}).encode(),
        other_protocol(lambda p: p["types"][1]["fields"].reverse()),
        other_protocol(lambda p: p["messages"].update(other=p["messages"]["append"])),
    ],
)
def test_another_protocol_is_not_spoken(text):
    with Running() as running, Client(running) as client:
        client.send(greeting(text) + CALL, b"\0")
        assert client.receive()[1][0] == 4
        assert not running.batches


def test_an_unknown_message_is_an_error_of_the_call_only():
    with Running() as running, Client(running) as client:
        client.send(encode_request_head(first=True, message="destroy"))
        with pytest.raises(ValueError, match="there is no message 'destroy' here"):
            read_response(client.receive()[1], first=True)
        assert client.append(HELLO) == AvroStatus.OK
        client.send(b"\0\0")  # a ping
        assert client.receive()[1] == b""
        assert running.events == [HELLO]


# --- bad input


GOOD_REQUEST_BYTES = encode_frame(
    1, [encode_request_head(first=True, message="appendBatch"), encode_array(encoded(Batch.of([HELLO])))]
)


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        bytes(64),
        b"\xff" * 64,
        struct.pack(">III", 1, 1, 2**30),
        encode_frame(1, [b"short"]),
        encode_frame(1, [PROTOCOL_HASH + b"\x09"]),
        encode_frame(1, [encode_request_head(first=True, message="appendBatch"), b"\x02\x02\x02k"]),
        encode_frame(1, [encode_request_head(first=True, message="append"), b"\0\x02ab"]),
    ],
)
def test_garbage_ends_its_connection_only(garbage):
    with Running() as running, Client(running) as healthy:
        with Client(running) as client:
            client.socket.sendall(garbage)
            assert client.closed()
        assert healthy.append(HELLO) == AvroStatus.OK
        assert running.count("EventReadFail") >= 1
        assert running.events == [HELLO]


def test_mutations_of_a_good_request_never_disturb_others(seed):
    dice = random.Random(seed)
    with Running() as running, Client(running) as healthy:
        for round in range(300):
            data = bytearray(GOOD_REQUEST_BYTES)
            for _ in range(dice.randint(1, 5)):
                data[dice.randrange(len(data))] = dice.randrange(256)
            with Client(running) as client, contextlib.suppress(OSError):
                client.socket.sendall(data[: dice.randint(1, len(data))])
            if round % 100 == 99:
                assert healthy.append(Event(b"healthy %d" % round)) == AvroStatus.OK
        bodies = [event.body for event in running.events]
        assert [body for body in bodies if body.startswith(b"healthy")] == [
            b"healthy 99",
            b"healthy 199",
            b"healthy 299",
        ]
        until(lambda: running.count("OpenConnectionCount") == 1)
        assert running.source._server.partial_bytes == 0
        until(lambda: running.source._server._pending_bytes == 0)  # a mutation may be a valid request


def test_a_deflated_bomb_is_not_unpacked():
    bomb = zlib.compress(struct.pack(">III", 1, 1, 2**30) + bytes(64 << 20), 9)
    with Running(**{"compression-type": "deflate"}) as running, Client(running) as client:
        with contextlib.suppress(OSError):
            client.socket.sendall(bomb)
        assert client.closed()
        assert running.count("EventReadFail") == 1


def test_undeflated_data_is_reported(caplog):
    with Running(**{"compression-type": "deflate"}) as running, Client(running) as client:
        client.request(HELLO)
        assert client.closed()
    assert "compression-type = deflate" in caplog.text


def test_half_a_request_is_closed_in_time_a_silent_client_is_not():
    with Running(frameTimeout="0.3") as running, Client(running) as silent, Client(running) as client:
        client.socket.sendall(GOOD_REQUEST_BYTES[:20])
        assert client.closed()
        assert silent.append(HELLO) == AvroStatus.OK


def test_a_client_that_never_reads_its_answers_is_read_no_more_and_closed_in_time():
    with Running(frameTimeout="0.5") as running, Client(running) as client, Client(running) as healthy:
        client.send(encode_request_head(first=True, message=""))
        # the answers are longer
        requests = encode_frame(2, [encode_request_head(first=False, message="x" * 100)]) * 1000

        def flood():
            while True:
                client.socket.sendall(requests)

        with pytest.raises(ConnectionError):
            flood()
        assert healthy.append(HELLO) == AvroStatus.OK


def test_a_source_whose_thread_has_ended_reports_it():
    with Running() as running:
        running.source.stopping.set()
        running.thread.join(60)
        running.source.stopping.clear()
        running.source._server.stop()
        with pytest.raises(Retry, match="has ended"):
            next(running.source.batches())


def test_a_silent_client_is_closed_if_so_configured():
    with Running(idleTimeout="0.3") as running, Client(running) as client:
        assert client.append(HELLO) == AvroStatus.OK
        assert client.closed()


def test_a_connection_counts_once_during_its_handshake():
    async def lingers(*arguments, **options):
        connection = await connect(*arguments, **options)
        await asyncio.sleep(0.5)
        return connection

    with Running(maxConnections="2") as running:
        loop = running.source._server._loop
        connect, loop.connect_accepted_socket = loop.connect_accepted_socket, lingers
        with Client(running) as first:
            until(lambda: running.count("OpenConnectionCount") == 1)
            with Client(running) as second:
                assert second.append(HELLO) == AvroStatus.OK
                assert first.append(HELLO) == AvroStatus.OK
