"""syslogtcp with real sockets: nothing that was read is lost, whatever senders do."""

import logging
import resource
import shutil
import socket
import struct
import subprocess
import threading
import time

import pytest

from agent.services.running import until
from plugins import Components, Retry, hookimpl
from sources.syslog import SyslogTcp
from sources.syslog.framing import MAX_EVENTS
from tests.sources.syslog_running import Running

needs_logger = pytest.mark.skipif(shutil.which("logger") is None, reason="logger of util-linux is not installed")


def make(**options):
    properties = {"host": "127.0.0.1", "port": "0"} | {name: str(value) for name, value in options.items()}
    config, problems = SyslogTcp.config_class.parse(properties)
    assert not problems, problems
    return SyslogTcp(config, "s1")


def connect(source):
    return socket.create_connection(("127.0.0.1", source.port), timeout=60)


def logger(source, *options):
    command = ["logger", "--server", "127.0.0.1", "--port", str(source.port), "--tcp", *options]
    subprocess.run(command, check=True, timeout=60)


@needs_logger
@pytest.mark.parametrize("counted", [[], ["--octet-count"]])
def test_logger_rfc3164(counted):
    with Running(make()) as running:
        logger(running.source, "--rfc3164", "--priority", "local0.err", "--tag", "t", *counted, "hello wörld")
        (event,) = running.wait_for(1)
    assert event.body == "t: hello wörld".encode()
    headers = event.headers
    assert (headers["Facility"], headers["Severity"], headers["priority"]) == ("16", "3", "131")
    assert abs(int(headers["timestamp"]) / 1000 - time.time()) < 60
    assert headers["host"] == socket.gethostname().partition(".")[0]
    assert "version" not in headers


@needs_logger
@pytest.mark.parametrize("counted", [[], ["--octet-count"]])
def test_logger_rfc5424(counted):
    with Running(make()) as running:
        logger(running.source, "--rfc5424", "--priority", "user.info", "--tag", "t", *counted, "hello")
        (event,) = running.wait_for(1)
    assert event.body.startswith(b"t - - [timeQuality ")
    assert event.body.endswith(b"] hello")
    assert event.headers["version"] == "1"
    assert event.headers["priority"] == "14"
    assert abs(int(event.headers["timestamp"]) / 1000 - time.time()) < 60


@needs_logger
def test_logger_sends_a_file(tmp_path):
    lines = [f"line {i}" for i in range(3000)]
    (tmp_path / "log").write_text("\n".join(lines) + "\n")
    with Running(make()) as running:
        logger(running.source, "--rfc3164", "--tag", "t", "--octet-count", "--file", str(tmp_path / "log"))
        events = running.wait_for(3000)
    assert [event.body.decode() for event in events] == [f"t: {line}" for line in lines]


def test_dates_without_year_and_zone_go_by_the_clock_and_time_zone_given():
    source = make(timeZone="America/New_York", keepFields="hostname")
    source._decoder.clock = lambda: 1704067260.0  # the first minute of 2024, UTC
    with Running(source) as running, connect(source) as sender:
        sender.sendall(b"<13>Dec 31 18:59:30 h x\n")
        (event,) = running.wait_for(1)
    assert event.headers["timestamp"] == "1704067170000"
    assert event.body == b"h x"


def test_order_and_content_of_many_lines():
    lines = [b"<13>Oct 11 22:14:15 h message %d \xff\x00 end\r" % i for i in range(50_000)]
    with Running(make()) as running:
        with connect(running.source) as sender:
            sender.sendall(b"\n".join(lines) + b"\n")
        events = running.wait_for(len(lines))
    assert [event.body for event in events] == [b"message %d \xff\x00 end\r" % i for i in range(len(lines))]
    assert max(len(batch) for batch in running.batches) <= MAX_EVENTS


def test_a_stream_in_single_bytes():
    stream = b"<13>Oct 11 22:14:15 h one\n<34>1 2003-10-11T22:14:15.003Z h two\nthree\n"
    with Running(make()) as running:
        with connect(running.source) as sender:
            sender.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for byte in stream:
                sender.send(bytes([byte]))
        events = running.wait_for(3)
    assert [event.body for event in events] == [b"one", b"two", b"three"]


def test_500_senders_that_stall_do_not_hold_up_a_healthy_one():
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
        # What they left unfinished is not lost, and says that it is no message.
        rest = running.wait_for(len(lines) + 500)[len(lines) :]
        assert {event.headers["flume.syslog.status"] for event in rest} == {"Invalid"}
        until(lambda: running.source.metrics.get("OpenConnectionCount") == 0)


def test_bad_frames_are_kept_and_counted():
    frames = [b"<999>x", b"<192>x", b"<0013>x", b"no priority", b"<>", b"nul \x00\xff", b"<13>no more of a head"]
    with Running(make()) as running:
        with connect(running.source) as sender:
            sender.sendall(b"\n".join(frames) + b"\n<13>- h good\n")
        events = running.wait_for(8)
        assert running.source.metrics.get("EventReadFail") == 7
    assert [event.body for event in events] == [*frames, b"good"]
    assert [event.headers.get("flume.syslog.status") for event in events] == ["Invalid"] * 7 + [None]
    assert [event.headers["Facility"] for event in events] == ["0"] * 6 + ["1"] * 2, "a priority that is one counts"


def test_long_lines_are_cut(caplog):
    with Running(make(eventSize=100)) as running:
        with connect(running.source) as sender:
            sender.sendall(b"<13>" + b"x" * 250 + b"\n<13>- h next\n")
        events = running.wait_for(4)
        assert running.source.metrics.get("EventIncompleteCount") == 1
    assert [len(event.body) for event in events] == [100, 100, 54, 4]
    assert b"".join(event.body for event in events[:3]) == b"<13>" + b"x" * 250
    statuses = [event.headers.get("flume.syslog.status") for event in events]
    assert statuses == ["Incomplete", "Invalid", "Invalid", None]
    assert "eventSize = 100" in caplog.text


def test_a_rest_that_looks_like_a_message_is_none():
    forged = b"<0>Oct 11 22:14:15 victim forged"
    with Running(make(eventSize=50)) as running:
        with connect(running.source) as sender:
            sender.sendall(b"<13>" + b"x" * 46 + forged + b"\n")
        _, rest = running.wait_for(2)
    assert rest.body == forged
    assert rest.headers == {"Facility": "0", "Severity": "0", "flume.syslog.status": "Invalid"}


@pytest.mark.parametrize(
    ("stream", "body"),
    [(b"<13>Oct 11 22:14:15 h cut off he", b"cut off he"), (b"90 <13>Oct 11 22:14:15 h cut off", b"cut off")],
)
def test_a_message_cut_off_by_the_end_of_the_connection_is_incomplete(stream, body):
    with Running(make()) as running:
        with connect(running.source) as sender:
            sender.sendall(stream)
        (event,) = running.wait_for(1)
    assert event.body == body
    assert event.headers["flume.syslog.status"] == "Incomplete"
    assert event.headers["host"] == "h"


def test_a_reset_connection_loses_nothing_that_was_read():
    with Running(make()) as running:
        sender = connect(running.source)
        sender.sendall(b"<13>one\n<13>two")
        running.wait_for(1)
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sender.close()
        events = running.wait_for(2)
    assert [event.body for event in events] == [b"<13>one", b"<13>two"]


def test_lines_that_begin_with_a_number_are_no_octet_counts():
    lines = [b"22 Nov 2026 10:00:0%d plain text" % second for second in range(10)] + [b"1 message", b"2026 <b>"]
    with Running(make()) as running, connect(running.source) as sender:
        sender.sendall(b"\n".join(lines) + b"\n22 <13>- h octet-\ncounted<13>- h a line\n")
        events = running.wait_for(14)
        sender.sendall(b"23 <13>- h still connected")
        events = running.wait_for(15)
    bodies = [event.body for event in events]
    assert bodies == [*lines, b"octet-\ncounted", b"a line", b"still connected"]
    assert [event.headers.get("flume.syslog.status") for event in events] == ["Invalid"] * 12 + [None] * 3


def test_octet_counts_that_lie_end_the_connection_where_no_newline_follows(caplog):
    caplog.set_level(logging.WARNING)
    rest = b"<13>Oct 11 22:14:15 h " + b"x" * 2500
    with Running(make()) as running:
        for _ in range(3):
            with connect(running.source) as sender:
                sender.sendall(b"8 <13>- h " + rest)
                assert sender.recv(10) == b""
        until(lambda: running.count == 9)
        with connect(running.source) as other:
            other.sendall(b"<13>fine\n")
            until(lambda: b"<13>fine" in [event.body for event in running.events])
    assert b"".join(event.body for event in running.events[1:3]) == rest[22:], "nothing that was read is lost"
    (record,) = [record for record in caplog.records if "is closed" in record.getMessage()]
    assert "127.0.0.1:" in record.getMessage()
    assert "octet count" in record.getMessage()


def test_an_unfinished_message_is_not_waited_for_for_ever():
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
        looked = source._inspected
        until(lambda: source._inspected > looked)  # it has looked for overdue ones
        sender.sendall(b"finished\n")
        (event,) = running.wait_for(1)
    assert event.body == b"<13>begun and finished"


def test_one_address_has_so_many_connections_and_no_more(caplog):
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
        with connect(running.source) as again:
            again.sendall(b"<13>room again\n")
            running.wait_for(2)
        second.close()
        until(lambda: not running.source._listener.connections._by_address)
    assert "127.0.0.1 has 2 connections already" in caplog.text


def test_an_idle_connection_ends_where_that_is_wanted():
    with Running(make(idleTimeout=0.3)) as running, connect(running.source) as silent:
        with connect(running.source) as sender:
            sender.sendall(b"<13>- h one\n")
            assert sender.recv(1) == b""
        assert silent.recv(1) == b""
        (event,) = running.wait_for(1)
    assert event.headers.get("flume.syslog.status") is None


def test_out_of_file_descriptors_it_goes_on_later(caplog):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with Running(make()) as running, socket.socket() as one, socket.socket() as two:
        where = "127.0.0.1", running.source.port
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            one.connect(where)
            two.connect(where)
            until(lambda: "cannot accept" in caplog.text)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        one.sendall(b"<13>one\n")
        two.sendall(b"<13>two\n")
        running.wait_for(2)


def test_while_nobody_takes_batches_it_does_not_read():
    """A sender is held up rather than its events dropped."""
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


def test_what_had_arrived_is_delivered_when_it_stops():
    hold = threading.Event()
    with Running(make(), hold) as running:
        known, port = connect(running.source), running.source.port
        known.sendall(b"<13>first\n")
        until(lambda: running.count == 1)  # the source now waits for its batch to be stored
        known.sendall(b"<13>second\n<13>third, unfinished")
        late = connect(running.source)
        late.sendall(b"<13>fourth\n")
        running.source.stopping.set()
        hold.set()
        running.stop()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))
        bodies = [event.body for event in running.events]
    assert sorted(bodies) == [b"<13>first", b"<13>fourth", b"<13>second", b"<13>third, unfinished"]


def test_it_stops_soon_when_idle():
    with Running(make()) as running, connect(running.source):
        until(lambda: running.source.metrics.get("OpenConnectionCount") == 1)
        running.stop()
    assert running.source.metrics.get("OpenConnectionCount") == 0


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
    with socket.create_server(("127.0.0.1", 0)) as taken:
        source = make(port=taken.getsockname()[1])
        where = f"127.0.0.1:{source.port}"
        with pytest.raises(Retry, match=f"cannot listen on {where} .*another program"):
            source.open()
        source.close()
        (problem,) = source.probe()
        assert where in problem
    assert list(source.probe()) == []
    source.open()
    source.close()
    source.close()


def test_an_address_of_another_machine_is_a_clear_error():
    source = make(host="192.0.2.1")
    with pytest.raises(Retry, match="this machine has no such address"):
        source.open()
    (problem,) = make(host="no-such-host.invalid").probe()
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


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"host": "h"}, "port: is required"),
        ({"host": "h", "port": "70000"}, "port: must be at most 65535, not '70000'"),
        ({"host": "h", "port": "1", "keepFields": "hots"}, "keepFields: must be none, all, or some of"),
        ({"host": "h", "port": "1", "timeZone": "Mars/Base"}, "timeZone: must be a time zone"),
        ({"host": "h", "port": "1", "timeZone": "../etc"}, "timeZone: must be a time zone"),
    ],
)
def test_wrong_options(options, problem):
    _, problems = SyslogTcp.config_class.parse(options)
    assert problem in "\n".join(f"{p.option}: {p.message}" for p in problems)


def test_its_names():
    class Module:
        @hookimpl
        def components(self):
            return [SyslogTcp]

    components = Components([Module()], entry_points=False)
    for name in "syslogtcp", "org.apache.flume.source.SyslogTcpSource":
        assert components.get("source", name) is SyslogTcp
