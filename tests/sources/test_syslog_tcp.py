"""Messages to syslogtcp over real sockets: their order, their cuts, and invalid ones."""

import contextlib
import logging
import logging.handlers
import shutil
import socket
import subprocess
import time

import pytest

from flafka.agent.services.running import until
from flafka.plugins import Components, hookimpl
from flafka.sources.syslog import SyslogTcp
from flafka.sources.syslog.framing import MAX_BATCH_EVENTS
from tests.sources.syslog_running import Running
from tests.sources.syslog_tcp_running import connect, make

needs_logger = pytest.mark.skipif(shutil.which("logger") is None, reason="logger of util-linux is not installed")


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


def test_pythons_handler_ends_messages_with_nul():
    with Running(make()) as running:
        handler = logging.handlers.SysLogHandler(("127.0.0.1", running.source.port), socktype=socket.SOCK_STREAM)
        handler.setFormatter(logging.Formatter("%(asctime)s h %(message)s", "%b %d %H:%M:%S"))
        with contextlib.closing(handler):
            for number in range(200):
                handler.emit(logging.makeLogRecord({"msg": f"message {number}"}))
            events = running.wait_for(200)
    assert [event.body for event in events] == [b"message %d" % number for number in range(200)]
    assert not any("flume.syslog.status" in event.headers for event in events)


def test_dates_without_year_and_zone_go_by_the_clock_and_time_zone_given():
    source = make(timeZone="America/New_York", keepFields="hostname")
    source._decoder.clock = lambda: 1704067260.0  # the first minute of 2024, UTC
    with Running(source) as running, connect(source) as sender:
        sender.sendall(b"<13>Dec 31 18:59:30 h x\n")
        (event,) = running.wait_for(1)
    assert event.headers["timestamp"] == "1704067170000"
    assert event.body == b"h x"


def test_order_and_content_of_many_lines():
    lines = [b"<13>Oct 11 22:14:15 h message %d \xff\x01 end\r" % i for i in range(50_000)]
    with Running(make()) as running:
        with connect(running.source) as sender:
            sender.sendall(b"\n".join(lines) + b"\n")
        events = running.wait_for(len(lines))
    assert [event.body for event in events] == [b"message %d \xff\x01 end\r" % i for i in range(len(lines))]
    assert max(len(batch) for batch in running.batches) <= MAX_BATCH_EVENTS


def test_a_stream_in_single_bytes():
    stream = b"<13>Oct 11 22:14:15 h one\n<34>1 2003-10-11T22:14:15.003Z h two\nthree\n"
    with Running(make()) as running:
        with connect(running.source) as sender:
            sender.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for byte in stream:
                sender.send(bytes([byte]))
        events = running.wait_for(3)
    assert [event.body for event in events] == [b"one", b"two", b"three"]


def test_bad_frames_are_logged_once_a_batch(caplog):
    with Running(make()) as running:
        with connect(running.source) as sender:
            sender.sendall(b"<999>x\nno priority\n<13>- h good\n")
        running.wait_for(3)
    (record,) = [record for record in caplog.records if "Invalid" in record.getMessage()]
    assert record.getMessage().endswith(
        "messages are marked Invalid; the first one has a priority above 191: b'<999>x'"
    )


def test_a_long_line_is_logged_with_the_option(caplog):
    with Running(make(eventSize=100)) as running:
        with connect(running.source) as sender:
            sender.sendall(b"<13>" + b"x" * 250 + b"\n")
        running.wait_for(3)
    assert "eventSize = 100" in caplog.text


def test_wrong_octet_counts_without_a_newline_end_the_connection(caplog):
    caplog.set_level(logging.WARNING)
    tail = b"<13>Oct 11 22:14:15 h " + b"x" * 2500
    with Running(make()) as running:
        for _ in range(3):
            with connect(running.source) as sender:
                sender.sendall(b"8 <13>- h " + tail)
                assert sender.recv(10) == b""
        until(lambda: running.count == 9)
        with connect(running.source) as other:
            other.sendall(b"<13>fine\n")
            until(lambda: b"<13>fine" in [event.body for event in running.events])
    assert b"".join(event.body for event in running.events[1:3]) == tail[22:], "nothing that was read is lost"
    (record,) = [record for record in caplog.records if "is closed" in record.getMessage()]
    assert "127.0.0.1:" in record.getMessage()
    assert "octet count" in record.getMessage()


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
