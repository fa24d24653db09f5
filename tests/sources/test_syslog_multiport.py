"""Source `multiport_syslogtcp` with real sockets, and its parser compared with a plain one."""

import contextlib
import re
import socket
import threading
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flafka.agent.services.running import until
from flafka.plugins import Event, Retry
from flafka.sources.syslog import MultiportSyslogTcp
from flafka.sources.syslog.dialects import MULTIPORT, ParserOptions
from flafka.sources.syslog.parser import parse
from tests.fixtures.examples import examples
from tests.sources.syslog_frames import NOW, by_columns, mutated
from tests.sources.syslog_plain import reference_time
from tests.sources.syslog_running import Running

STATUS = "flume.syslog.status"


def make(ports="0 0", **options):
    properties = {name: str(value) for name, value in options.items()}
    config, problems = MultiportSyslogTcp.config_class.parse({"host": "127.0.0.1", "ports": ports} | properties)
    assert not problems, problems
    return MultiportSyslogTcp(config, "s1")


def test_without_a_host_it_listens_on_all_addresses():
    config, problems = MultiportSyslogTcp.config_class.parse({"ports": "0"})
    assert not problems
    with Running(MultiportSyslogTcp(config, "s1")) as running:
        with socket.create_connection(("127.0.0.2", running.source.ports[0]), timeout=10) as sender:
            sender.sendall(b"<13>hello\n")
        assert [event.body for event in running.wait_for(1)] == [b"<13>hello"]


def problems_of(**options):
    return " ".join(str(p) for p in MultiportSyslogTcp.config_class.parse({"host": "127.0.0.1"} | options)[1])


def send(port, data):
    with socket.create_connection(("127.0.0.1", port), timeout=10) as sender:
        sender.sendall(data)


def test_events_have_their_port_and_sender():
    source = make(portHeader="port", clientIPHeader="ip", clientHostnameHeader="name")
    with Running(source) as running:
        first_port, second_port = source.ports
        assert first_port != second_port
        send(first_port, b"<34>1 2003-10-11T22:14:15.003Z h first\n")
        running.wait_for(1)
        send(second_port, b"<13>second\n")
        first, second = running.wait_for(2)
    assert first.body == b"first"
    assert first.headers == {
        "Facility": "4",
        "Severity": "2",
        "Priority": "34",
        "Version": "1",
        "timestamp": "1065910455003",
        "host": "h",
        "port": str(first_port),
        "ip": "127.0.0.1",
        "name": socket.getnameinfo(("127.0.0.1", 0), 0)[0],
    }
    assert second.body == b"<13>second"
    assert {name: second.headers.get(name) for name in (STATUS, "port", "Facility")} == {
        STATUS: "Invalid",
        "port": str(second_port),
        "Facility": None,
    }


def test_concurrent_senders_are_not_mixed_up():
    source, read = make("0 0 0", portHeader="port"), threading.Event()
    with Running(source, hold=read) as running, contextlib.ExitStack() as stack:
        send(source.ports[0], b"<13>0 0\n")
        running.wait_for(1)  # from here on it does not read
        tails, expected = [], [("0 0", source.ports[0])]
        for number in range(60):
            port = source.ports[number % 3]
            sender = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10))
            message = b"<13>%d %s" % (number, b"x" * (number % 7))
            sent = b"%d %s" % (len(message), message) if number % 10 == 0 else message + b"\n"
            data, cut = sent * 2, number % len(sent)
            sender.sendall(data[: len(sent) + cut])
            tails.append((sender, data[len(sent) + cut :]))
            expected += [(message.removeprefix(b"<13>").decode(), port)] * 2
        read.set()
        until(lambda: running.count >= 61, "what is whole")
        for sender, tail in tails:
            sender.sendall(tail)
        events = running.wait_for(121)
    assert sorted((e.body.removeprefix(b"<13>").decode(), int(e.headers["port"])) for e in events) == sorted(expected)


def test_each_port_has_its_character_set():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    source = make(f"{port} 0", **{f"charset.port.{port}": "ISO-8859-1"})
    with Running(source) as running:
        for to in source.ports:
            send(to, "<13>1 2003-10-11T22:14:15Z hôte déjà\n".encode("latin-1"))
        first, second = sorted(running.wait_for(2), key=lambda event: STATUS in event.headers)
    assert first.headers["host"] == "hôte"
    assert first.body == "déjà".encode("latin-1")
    # Elsewhere it is UTF-8, which this is not: no byte of it is lost.
    assert second.headers == {STATUS: "Invalid"}
    assert second.body == "<13>1 2003-10-11T22:14:15Z hôte déjà".encode("latin-1")


def test_the_order_of_a_connection_holds_with_two_character_sets():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    source = make(f"{port} 0", portHeader="port", **{f"charset.port.{port}": "windows-1252"})
    with Running(source) as running:
        senders = [socket.create_connection(("127.0.0.1", to)) for to in source.ports]
        for i in range(2000):
            senders[i % 2].sendall(b"<13>- h %d\n" % i)
        events = running.wait_for(2000)
        for sender in senders:
            sender.close()
    for n, to in enumerate(source.ports or []):
        numbers = [int(event.body) for event in events if event.headers["port"] == str(to)]
        assert numbers == sorted(numbers) == [i for i in range(2000) if i % 2 == n][: len(numbers)]
    assert sorted(int(event.body) for event in events) == list(range(2000))


def test_flumes_other_options_are_accepted():
    make(batchSize=5, numProcessors=4, readBufferBytes=2048, readBufferSize=1024, eventSize=100, keepFields="all")


def test_wrong_options_are_refused_with_advice():
    assert "not '70000'" in problems_of(ports="514 70000")
    assert "names a port twice" in problems_of(ports="514 514")
    assert "is required" in problems_of()
    assert "has ASCII in it" in problems_of(ports="514", **{"charset.default": "UTF-16"})
    assert "has ASCII in it" in problems_of(ports="514", **{"charset.port.514": "rot13"})
    assert "not one of ports" in problems_of(ports="514", **{"charset.port.515": "UTF-8"})


def test_one_busy_port_is_a_clear_error_and_leaves_no_port_open():
    with socket.create_server(("127.0.0.1", 0)) as busy:
        source = make(f"0 {busy.getsockname()[1]}")
        with pytest.raises(Retry, match="another program"):
            source.open()
        source.close()
        assert source._listener.endpoint.sockets == []
        assert len(list(source.check_connectivity())) == 1


# --- the parser

DAY = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)"
HEAD = re.compile(
    rb"<(\d{1,3})>(?:(1) )?"
    rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:[+-]\d\d:\d\d|Z)?|-"
    rb"|[A-Z][a-z][a-z][ \t\n\f\r]{1,2}\d{1,2}[ \t\n\f\r]\d\d:\d\d:\d\d)"
    rb" ([^\x00- ]{1,255}) (.*)\Z",
    re.DOTALL | re.ASCII,
)


def real(stamp):
    """Return True for an existing day and time."""
    try:
        datetime.fromisoformat(stamp[:19])
    except ValueError:
        return False
    return int(stamp[:4]) > 0


def plain(frame, options):
    frame = frame.removesuffix(b"\0").removesuffix(b"\n")
    invalid = Event(frame, {STATUS: "Invalid"})
    head = HEAD.match(frame)
    try:
        frame.decode()
    except UnicodeDecodeError:
        return invalid
    if head is None or int(head[1]) > 191:
        return invalid
    priority, version, stamp, host, body = head.groups()
    text = stamp.decode()
    if text == "-":
        millis = round(NOW * 1000)
    elif text[0].isdigit():
        if not real(text):
            return invalid
        millis = reference_time(stamp, NOW, options.zone)
    else:
        month, day, clock = re.split(r"\s+", text)
        try:
            datetime.strptime(f"2024 {month} {day} {clock}", "%Y %b %d %H:%M:%S")
            millis = reference_time(stamp, NOW, options.zone)
        except ValueError:
            millis = round(NOW * 1000)
    headers = {"Facility": str(int(priority) // 8), "Severity": str(int(priority) % 8), "Priority": priority.decode()}
    headers |= {"Version": "1"} if version else {}
    headers |= {"timestamp": str(millis), "host": host.decode()}
    prefix = b""
    if "priority" in options.keep:
        prefix += b"<%s>" % priority
    if "version" in options.keep and version:
        prefix += b"1 "
    if "timestamp" in options.keep:
        prefix += stamp + b" "
    if "hostname" in options.keep:
        prefix += host + b" "
    return Event(frame if options.keep_all or not body else prefix + body, headers)


LINES = [
    b"<34>1 2003-10-11T22:14:15.003Z h x",
    b"<34>1 2023-02-29T22:14:15.003Z h x",
    b"<34>1 2024-02-29T22:14:15.003456789-23:59 h x",
    b"<34>1 2024-02-29T22:14:15 h x",
    b"<34>2024-07-29T22:14:15.5 h x",
    b"<34>1 2024-02-29T22:14:15." + b"9" * 60 + b"+05:30 h x",
    b"<34>1 2024-02-29T22:14:15Z 2001:db8::1 x",
    b"<34>1 1900-02-29T22:14:15Z h x",
    b"<34>1 2000-02-29T22:14:15Z h x",
    b"<34>1 2024-04-31T22:14:15Z h x",
    b"<34>1 2024-12-31T24:00:00Z h x",
    b"<34>1 2024-12-31T23:59:60Z h x",
    b"<34>2 2024-12-31T23:59:00Z h x",
    b"<13>Foo 99 99:99:99 h x",
    b"<13>Feb 30 10:00:00 h x",
    b"<13>Feb 29 10:00:00 fe80::1%eth0 x",
    b"<13>Oct  1 10:00:00 - ",
    b"<1>- - x",
    b"<013>Oct 11 22:14:15 h x",
    b"<000>1 2024-02-29T22:14:15Z h x",
    b"<1>1 - - x",
    "<13>1 2003-10-11T22:14:15Z hôte déjà".encode(),
    b"<13>Hello, this is a text of more than sixteen bytes",
]
ZONES = st.sampled_from(["UTC", "America/New_York"])
KEPT = st.sampled_from(["none", "all", "hostname", "priority version timestamp hostname", "timestamp"])


@settings(max_examples=examples(150))
@given(st.lists(st.one_of(mutated(), mutated(LINES), st.sampled_from(LINES)), max_size=30), KEPT, ZONES)
def test_the_parser_agrees_with_the_plain_one(frames, keep, zone):
    options = ParserOptions.from_keep_fields(keep, ZoneInfo(zone), dialect=MULTIPORT, charset="utf-8")
    batch = by_columns(pa.array(frames, pa.binary()), NOW, options)
    batch.records.validate(full=True)
    assert list(batch) == [plain(frame, options) for frame in frames]


def test_dates_without_a_year_get_the_nearest_one():
    options = ParserOptions.from_keep_fields("none", ZoneInfo("UTC"), dialect=MULTIPORT)
    (event,) = parse(pa.array([b"<13>Oct 11 22:14:15 h x"], pa.binary()), NOW, options)
    assert datetime.fromtimestamp(int(event.headers["timestamp"]) / 1000, UTC).year == 2023
