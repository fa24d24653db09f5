"""Connections to syslogtcp: senders that stall, break off or are too many, and start and stop of the source."""

import resource
import socket
import struct
import threading
import time

import pytest

from flafka.agent.services.running import until
from flafka.plugins import Retry
from tests.sources.syslog_running import Running
from tests.sources.syslog_tcp_running import connect, make


def test_500_stalled_senders_do_not_block_a_healthy_one():
    lines = [b"<13>Oct 11 22:14:15 h %d" % i for i in range(10_000)]
    with Running(make()) as running:
        stalled = [connect(running.source) for _ in range(500)]
        for i, sender in enumerate(stalled):
            sender.send(b"<1"[i % 2 :][:1])
        until(lambda: running.source.metrics.get("OpenConnectionCount") == 500)
        with connect(running.source) as healthy:
            healthy.sendall(b"\n".join(lines) + b"\n")
            events = running.wait_for(len(lines))
        assert [int(event.body) for event in events] == list(range(len(lines)))
        for sender in stalled:
            sender.close()
        # Their unfinished messages are kept, and marked as invalid.
        unfinished = running.wait_for(len(lines) + 500)[len(lines) :]
        assert {event.headers["flume.syslog.status"] for event in unfinished} == {"Invalid"}
        until(lambda: running.source.metrics.get("OpenConnectionCount") == 0)


def test_a_reset_connection_loses_nothing_that_was_read():
    with Running(make()) as running:
        sender = connect(running.source)
        sender.sendall(b"<13>one\n<13>two")
        running.wait_for(1)
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sender.close()
        events = running.wait_for(2)
    assert [event.body for event in events] == [b"<13>one", b"<13>two"]


def test_an_unfinished_message_has_a_timeout():
    source = make(frameTimeout=0.5)
    with Running(source) as running, connect(source) as silent, connect(source) as stalled:
        stalled.sendall(b"<13>begun")
        assert stalled.recv(1) == b""
        silent.sendall(b"<13>an idle connection is kept\n")
        events = running.wait_for(2)
    assert events[0].body == b"<13>begun"
    assert events[0].headers["flume.syslog.status"] == "Incomplete"


def test_a_slow_sender_may_take_its_time():
    source = make()
    with Running(source) as running, connect(source) as sender:
        sender.sendall(b"<13>begun and ")
        until(lambda: running.source.metrics.get("OpenConnectionCount") == 1)
        checked = source._timeouts_checked
        until(lambda: source._timeouts_checked > checked)
        sender.sendall(b"finished\n")
        (event,) = running.wait_for(1)
    assert event.body == b"<13>begun and finished"


def test_connections_of_one_address_are_limited(caplog):
    with Running(make(maxConnectionsPerAddress=2)) as running:
        first, second = connect(running.source), connect(running.source)
        until(lambda: running.source.metrics.get("OpenConnectionCount") == 2)
        with pytest.raises(ConnectionResetError), connect(running.source) as third:
            third.recv(1)
        until(lambda: running.source.metrics.get("ConnectionRefusedCount") == 1)
        with socket.socket() as other:
            other.bind(("127.0.0.2", 0))
            other.connect(("127.0.0.1", running.source.port))
            other.sendall(b"<13>another address\n")
            running.wait_for(1)
        first.close()
        until(lambda: running.source.metrics.get("OpenConnectionCount") == 1)
        with connect(running.source) as new:
            new.sendall(b"<13>room again\n")
            running.wait_for(2)
        second.close()
        until(lambda: not running.source._listener.connections._by_address)
    assert "127.0.0.1 has 2 connections already" in caplog.text


def test_an_idle_connection_ends_if_so_configured():
    with Running(make(idleTimeout=0.3)) as running, connect(running.source) as silent:
        with connect(running.source) as sender:
            sender.sendall(b"<13>- h one\n")
            assert sender.recv(1) == b""
        assert silent.recv(1) == b""
        (event,) = running.wait_for(1)
    assert event.headers.get("flume.syslog.status") is None


def test_accepting_resumes_after_a_lack_of_file_descriptors(caplog):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with Running(make()) as running, socket.socket() as first, socket.socket() as second:
        where = "127.0.0.1", running.source.port
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            first.connect(where)
            second.connect(where)
            until(lambda: "cannot accept" in caplog.text)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        first.sendall(b"<13>one\n")
        second.sendall(b"<13>two\n")
        running.wait_for(2)


def test_nothing_is_read_while_batches_are_not_taken():
    """A sender is blocked instead of its events dropped."""
    hold = threading.Event()
    line = b"<13>" + b"x" * 1000 + b"\n"
    sent = 0
    with Running(make(), hold) as running, connect(running.source) as sender:
        sender.setblocking(False)
        quiet_since = time.monotonic()
        while time.monotonic() < quiet_since + 0.5:
            try:
                sent += sender.send((line * 100)[sent % len(line) :])
                quiet_since = time.monotonic()
            except BlockingIOError:
                time.sleep(0.01)
        assert len(running.batches) == 1
        hold.set()
        sender.setblocking(True)
        sender.sendall(line[sent % len(line) :] if sent % len(line) else b"")
        lines = -(-sent // len(line))
        assert {event.body for event in running.wait_for(lines)} == {line[:-1]}


def test_arrived_messages_are_delivered_at_a_stop():
    hold = threading.Event()
    with Running(make(), hold) as running:
        early, port = connect(running.source), running.source.port
        early.sendall(b"<13>first\n")
        until(lambda: running.count == 1)  # the source now waits for its batch to be stored
        early.sendall(b"<13>second\n<13>third, unfinished")
        late = connect(running.source)
        late.sendall(b"<13>fourth\n")
        running.source.stopping.set()
        hold.set()
        running.stop()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))
        bodies = [event.body for event in running.events]
    assert sorted(bodies) == [b"<13>first", b"<13>fourth", b"<13>second", b"<13>third, unfinished"]


def test_a_stop_wakes_it(monkeypatch):
    monkeypatch.setattr("flafka.sources.syslog.framing.CONNECTION_CHECK_SECONDS", 3600)
    with Running(make()) as running, connect(running.source):
        until(lambda: running.source.metrics.get("OpenConnectionCount") == 1)
        running.stop()
    assert running.source.metrics.get("OpenConnectionCount") == 0


@pytest.mark.usefixtures("lengthy")
def test_a_sender_that_never_stops_does_not_keep_it_from_stopping():
    with Running(make()) as running, connect(running.source) as sender:
        over = threading.Event()

        def send():
            try:
                while not over.is_set():
                    sender.sendall(b"<13>again\n" * 1000)
            except OSError:
                pass

        thread = threading.Thread(target=send)
        thread.start()
        until(lambda: running.count > 1000)
        running.stop()
        over.set()
        thread.join()


def test_a_busy_port_is_a_clear_error():
    with socket.create_server(("127.0.0.1", 0)) as busy:
        source = make(port=busy.getsockname()[1])
        where = f"127.0.0.1:{source.port}"
        with pytest.raises(Retry, match=f"cannot listen on {where} .*another program"):
            source.open()
        source.close()
        (problem,) = source.check_connectivity()
        assert where in problem
    assert list(source.check_connectivity()) == []
    source.open()
    source.close()
    source.close()


def test_an_address_of_another_machine_is_a_clear_error():
    source = make(host="192.0.2.1")
    with pytest.raises(Retry, match="this machine has no such address"):
        source.open()
    (problem,) = make(host="no-such-host.invalid").check_connectivity()
    assert problem.startswith("cannot listen on no-such-host.invalid:0 (TCP): ")


def test_it_listens_on_ipv6():
    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no IPv6 here")
    with Running(make(host="::1")) as running:
        with socket.create_connection(("::1", running.source.port)) as sender:
            sender.sendall(b"<13>six\n")
        running.wait_for(1)


def test_it_can_be_opened_again():
    source = make()
    for text in b"one", b"two":
        source.stopping.clear()
        with Running(source) as running, connect(source) as sender:
            sender.sendall(b"<13>%s\n" % text)
            assert running.wait_for(1)[0].body == b"<13>" + text
