"""Headers beyond Flume's usual ones: who sent it, the timestamp as sent, RFC 5424's fields, formats of one's own."""

import socket
import threading
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flafka.sources.connections import plain
from flafka.sources.syslog import MultiportSyslogTcp, SyslogTcp, SyslogUdp
from flafka.sources.syslog import names as names_module
from flafka.sources.syslog.framing import SyslogFramer
from flafka.sources.syslog.names import HostNames
from flafka.sources.syslog.parser import parse
from flafka.sources.syslog.reading import Reading
from tests.fixtures.examples import examples
from tests.sources.syslog_running import Running

NOW = datetime(2024, 6, 15, 12, tzinfo=UTC).timestamp()


def make(cls=SyslogTcp, **options):
    given = {name.replace("__", "."): str(value) for name, value in options.items()}
    given |= {"ports" if cls is MultiportSyslogTcp else "port": "0", "host": "127.0.0.1", "timeZone": "UTC"}
    config, problems = cls.config_class.parse(given)
    assert not problems, problems
    source = cls(config, "s1")
    source._decoder.clock = lambda: NOW
    return source


def events_of(source, *frames):
    """What the source makes of these frames, without sockets."""
    data = b"".join(frame + b"\n" for frame in frames)
    source._intake.room[: len(data)] = data
    source._intake.add(*SyslogFramer(2500).cut(source._intake.room[: len(data)]))
    return [event for batch in source._flush() for event in batch]


# --- the sender


@pytest.mark.parametrize("cls", [SyslogTcp, SyslogUdp])
def test_the_sender_in_headers(cls):
    source = make(cls, clientIPHeader="ip", clientHostnameHeader="name")
    kind = socket.SOCK_STREAM if cls is SyslogTcp else socket.SOCK_DGRAM
    with Running(source) as running, socket.socket(socket.AF_INET, kind) as one:
        with socket.socket(socket.AF_INET, kind) as other:
            other.bind(("127.0.0.2", 0))
            for n, sender in enumerate((one, other)):
                sender.connect(("127.0.0.1", source.port))
                sender.sendall(b"<13>%d, begun" % n if n else b"<13>0\n\n")
        events = running.wait_for(2)
    by_body = {event.body[4:5]: event.headers for event in events}
    assert by_body[b"0"]["ip"] == "127.0.0.1"
    assert by_body[b"1"]["ip"] == "127.0.0.2"
    assert by_body[b"0"]["name"] == socket.getnameinfo(("127.0.0.1", 0), 0)[0]


def test_an_address_without_a_name_stands_for_itself(monkeypatch):
    def lookup(address, flags):
        raise socket.gaierror("no name")

    monkeypatch.setattr(names_module.socket, "getnameinfo", lookup)
    assert HostNames().of(["192.0.2.1", "192.0.2.1"]) == {"192.0.2.1": "192.0.2.1"}


def test_slow_lookups_hold_up_nothing_for_long_and_are_bounded(monkeypatch):
    answer, asked = threading.Event(), []

    def lookup(address, flags):
        asked.append(address)
        answer.wait(20)
        return f"name-of-{address[0]}", ""

    monkeypatch.setattr(names_module.socket, "getnameinfo", lookup)
    monkeypatch.setattr(HostNames, "_PATIENCE", 0.05)
    names = HostNames()
    addresses = [f"10.0.{i // 256}.{i % 256}" for i in range(5000)]
    assert names.of(addresses) == {address: address for address in addresses}
    assert len(names._known) <= HostNames._KEPT // 16
    assert len(asked) <= HostNames._AT_ONCE
    answer.set()
    monkeypatch.setattr(HostNames, "_PATIENCE", 20)
    assert names.of(addresses[:10]) == {address: f"name-of-{address}" for address in addresses[:10]}
    names.forget()


def test_ipv4_by_way_of_ipv6_is_ipv4():
    assert [plain(address) for address in ("::ffff:10.1.2.3", "10.1.2.3", "fe80::1", "::1")] == [
        "10.1.2.3", "10.1.2.3", "fe80::1", "::1",
    ]  # fmt: skip


# --- the timestamp as sent


def test_the_timestamp_as_sent():
    source = make(rawTimestampHeader="sent")
    frames = [
        b"<13>1 2024-05-01T10:00:00.123456+05:30 h x",
        b"<13>Jun  1 10:00:00 h x",
        b"<13>1 - h x",
        b"<13>x",
        b"x",
    ]
    sent = [event.headers.get("sent") for event in events_of(source, *frames)]
    assert sent == ["2024-05-01T10:00:00.123456+05:30", "Jun  1 10:00:00", None, None, None]


# --- RFC 5424


def test_the_examples_of_rfc_5424():
    frames = [
        b"<34>1 2003-10-11T22:14:15.003Z mymachine.example.com su - ID47 - \xef\xbb\xbf'su root' failed",
        b'<165>1 2003-10-11T22:14:15.003Z h evntslog - ID47 [exampleSDID@32473 iut="3" eventSource="App"'
        b' eventID="1011"][examplePriority@32473 class="high"]',
        b'<165>1 2003-10-11T22:14:15Z h app 1 - [a x="q\\"b\\\\s\\]c" x="2"][b] text',
    ]
    first, second, third = events_of(make(rfc5424Headers="true"), *frames)
    standard = {"Facility", "Severity", "priority", "version", "timestamp", "host"}
    more = [{k: v for k, v in event.headers.items() if k not in standard} for event in (first, second, third)]
    assert more[0] == {"appName": "su", "msgId": "ID47"}
    assert first.body == b"'su root' failed"
    assert more[1] == {
        "appName": "evntslog",
        "msgId": "ID47",
        "sd.exampleSDID@32473.iut": "3",
        "sd.exampleSDID@32473.eventSource": "App",
        "sd.exampleSDID@32473.eventID": "1011",
        "sd.examplePriority@32473.class": "high",
    }
    assert second.body == b""
    assert more[2] == {"appName": "app", "procId": "1", "sd.a.x": 'q"b\\s]c,2', "sd.b": ""}
    assert third.body == b"text"


@pytest.mark.parametrize("cls", [SyslogTcp, SyslogUdp, MultiportSyslogTcp])
@pytest.mark.parametrize("end", [b"", b" ", b" \xef\xbb\xbf"])
@pytest.mark.parametrize("fields", [b"app 1 id -", b'app 1 id [a x="1"]', b"- - - -"])
def test_an_empty_message_has_an_empty_body(cls, end, fields):
    head = b"<13>1 2024-05-01T10:00:00Z h "
    (event,) = events_of(make(cls, rfc5424Headers="true"), head + fields + end)
    assert event.body == b""
    assert event.headers["host"] == "h"
    (event,) = events_of(make(cls, rfc5424Headers="true", keepFields="hostname"), head + fields + end)
    assert event.body == b"h "
    (event,) = events_of(make(cls, rfc5424Headers="true", keepFields="all"), head + fields + end)
    assert event.body == head + fields + end
    # Without the option, and where the fields are not there, Flume's way: a body that would be empty is the frame.
    (event,) = events_of(make(cls), head + fields + end)
    assert event.body == fields + end
    for keep in ({}, {"rfc5424Headers": "true"}):
        (event,) = events_of(make(cls, **keep), head)
        assert event.body == head


def test_without_the_option_the_body_is_as_flume_has_it():
    (event,) = events_of(make(), b'<165>1 2003-10-11T22:14:15.003Z h app - ID47 [a@1 b="3"] text')
    assert event.body == b'app - ID47 [a@1 b="3"] text'
    assert not any(name.startswith("sd.") or name == "appName" for name in event.headers)


@pytest.mark.parametrize(
    "rest",
    [b"app", b"app 1 -", b'app 1 - [a b="c" text', b"app 1 - [a b=c] text", b'app 1 - [a b="c"]x', b"a b c [] x"],
)
def test_what_is_not_as_rfc_5424_has_it_stays(rest):
    (event,) = events_of(make(rfc5424Headers="true"), b"<13>1 2003-10-11T22:14:15Z h " + rest)
    assert event.body == rest
    assert "appName" not in event.headers


def test_what_is_kept_comes_before_the_message():
    source = make(rfc5424Headers="true", keepFields="hostname")
    (event,) = events_of(source, b"<13>1 2003-10-11T22:14:15Z h app 1 - - text")
    assert event.body == b"h text"


NAME = st.text("abcXYZ019@._-", min_size=1, max_size=12)
VALUE = st.text(max_size=20).filter(lambda text: "\n" not in text)
ELEMENTS = st.dictionaries(NAME, st.dictionaries(NAME, VALUE, max_size=4), max_size=4)


@settings(max_examples=examples(80))
@given(st.lists(st.tuples(NAME, ELEMENTS, VALUE), min_size=1, max_size=20))
def test_structured_data_there_and_back(messages):
    frames = []
    for app, elements, text in messages:
        data = "-"
        if elements:
            data = "".join(
                f"[{name}{''.join(f' {key}={quoted(value)}' for key, value in parameters.items())}]"
                for name, parameters in elements.items()
            )
        frames.append(f"<13>1 - h {app} - - {data} m{text}".encode())
    batch = parse(pa.array(frames, pa.binary()), NOW, Reading(structured=True))
    batch.records.validate(full=True)
    for event, (app, elements, text) in zip(batch, messages, strict=True):
        assert event.body == f"m{text}".encode().rstrip(b"\0")  # NULs end a message
        assert event.headers["appName"] == app if app != "-" else "appName" not in event.headers
        expected = {f"sd.{name}": "" for name, parameters in elements.items() if not parameters}
        for name, parameters in elements.items():
            for key, value in parameters.items():
                header = f"sd.{name}.{key}"  # names with dots in them may meet
                expected[header] = f"{expected[header]},{value}" if header in expected else value
        if len(expected) == sum(max(1, len(parameters)) for parameters in elements.values()):
            assert {k: v for k, v in event.headers.items() if k.startswith("sd.")} == expected


def quoted(value):
    for special in '\\"]':
        value = value.replace(special, "\\" + special)
    return f'"{value}"'


def test_senders_choose_many_names():
    frames = [b'<13>1 - h app - - [e%d a="%d"] text' % (i, i) for i in range(500)]
    events = events_of(make(rfc5424Headers="true"), *frames)
    for i, event in enumerate(events):
        assert {k: v for k, v in event.headers.items() if k.startswith("sd.")} == {f"sd.e{i}.a": str(i)}


# --- formats

CISCO = r"<(\d+)>(\d*): ?(\w{3} +\d+ \d{4} [\d:.]+): (\S+) (.*)"


def test_a_format_of_ones_own_comes_first():
    source = make(
        format__regex=CISCO, format__search=" +", format__replace=" ", format__dateFormat="MMM d yyyy HH:mm:ss.SSS"
    )
    frames = [
        b"<34>12: Jun  1 2024 10:00:00.250: router %SYS-5-CONFIG_I: \xff done",
        b"<13>Jun 14 10:00:00 h of the usual kind",
        b"<999>12: Jun  1 2024 10:00:00.250: router no priority",
        b"<34>: Jun  1 2024 10:00:00.250: router x",
        b"<34>7: Jun 99 2024 10:00:00.250: router a day that carries over",
        b"<34>7: Jux 1 2024 10:00:00.250: router no such month",
    ]
    events = events_of(source, *frames)
    millis = int(datetime(2024, 6, 1, 10, tzinfo=UTC).timestamp() * 1000) + 250
    assert events[0].body == b"%SYS-5-CONFIG_I: \xff done"
    assert events[0].headers == {
        "Facility": "4",
        "Severity": "2",
        "priority": "34",
        "version": "12",
        "timestamp": str(millis),
        "host": "router",
    }
    assert events[1].body == b"of the usual kind"
    assert events[1].headers["host"] == "h"
    assert events[2].headers["flume.syslog.status"] == "Invalid"
    assert "version" not in events[3].headers
    assert events[4].headers["timestamp"] == str(millis + (99 - 1) * 86_400_000)
    assert "timestamp" not in events[5].headers
    assert [event.body for event in events[2:]] == [frames[2], b"x", b"a day that carries over", b"no such month"]


def test_a_date_format_is_read_as_by_simple_date_format():
    source = make(format__regex=r"<(\d+)>()(.+) - (\S+) (.*)", format__dateFormat="MMM d yyyy HH:mm:ss")
    stamps = [
        "Nov 27 2026 10:00:00",
        "Nov  7 2026 10:00:00",
        "Nov 7 2026 10:00:00.5 CET",
        "Nov 7 2026 10:00:00+05:00",
    ]
    events = events_of(source, *(f"<34>{stamp} - h text".encode() for stamp in stamps))
    days = [datetime.fromtimestamp(int(event.headers["timestamp"]) / 1000, UTC) for event in events]
    assert days == [datetime(2026, 11, day, 10, tzinfo=UTC) for day in (27, 7, 7, 7)]


@pytest.mark.parametrize(
    ("keep", "body"),
    [
        ("all", b"<34>12: Jun 1 2024 10:00:00: router text"),
        ("priority version timestamp hostname", b"<34>12 Jun 1 2024 10:00:00 router text"),
        ("hostname", b"router text"),
    ],
)
def test_keep_fields_with_a_format(keep, body):
    source = make(keepFields=keep, format__regex=CISCO, format__dateFormat="MMM d yyyy HH:mm:ss")
    (event,) = events_of(source, b"<34>12: Jun 1 2024 10:00:00: router text")
    assert event.body == body


def test_a_date_format_without_a_year_gets_the_one_that_is_near():
    source = make(format__regex=r"<(\d+)>()(\d\d\.\d\d\. \d\d:\d\d) (\S+) (.*)", format__dateFormat="dd.MM. HH:mm")
    (event,) = events_of(source, b"<34>31.12. 10:00 h text")
    assert event.headers["timestamp"] == str(int(datetime(2023, 12, 31, 10, tzinfo=UTC).timestamp() * 1000))


def test_a_cut_line_is_in_no_format():
    source = make(format__regex=r"(?s)<(\d+)>()(x*)(y)(.*)", eventSize=20)
    data = b"<34>xxy" + b"." * 30 + b"<34>xxy forged\n"
    source._intake.room[: len(data)] = data
    source._intake.add(*SyslogFramer(20).cut(source._intake.room[: len(data)]))
    events = [event for batch in source._flush() for event in batch]
    statuses = [event.headers["flume.syslog.status"] for event in events]
    assert statuses == ["Incomplete"] + ["Invalid"] * (len(events) - 1)
    assert events[0].headers["host"] == "y"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"format.regex": "(a"}, "cannot be read"),
        ({"format.regex": "(a)(b)"}, "needs 5 groups"),
        ({"format.search": "a"}, "regex: is required"),
        ({"format.regex": "()()()()()", "format.dateFromat": "yyyy"}, "did you mean 'dateFormat'"),
        ({"format.regex": "()()()()()", "format.dateFormat": "QQ"}, "not built"),
        ({"keepFields": "hostnam"}, "not 'hostnam'"),
        ({"clientIPHeader": ""}, "at least 1"),
    ],
)
@pytest.mark.parametrize("cls", [SyslogTcp, SyslogUdp])
def test_wrong_options_say_what_would_do(cls, options, why):
    config, problems = cls.config_class.parse({"host": "127.0.0.1", "port": "0"} | options)
    assert config is None
    assert why in " ".join(f"{p.option}: {p.message}" for p in problems)


# --- any split of the stream


@settings(max_examples=examples(60))
@given(st.data())
def test_however_a_stream_arrives_its_events_are_the_same(data):
    counted = data.draw(st.booleans())
    texts = data.draw(
        st.lists(st.binary(max_size=60).map(lambda b: b"<13>1 - h a p m - " + b), min_size=1, max_size=15)
    )
    if counted:
        stream = b"".join(b"%d %s" % (len(text), text) for text in texts)
    else:
        stream = b"".join(text.replace(b"\n", b"") + b"\n" for text in texts)
    places = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=10)))
    cuts = list(zip([0, *places], [*places, len(stream)], strict=True))

    def events(pieces):
        source, framer, held = make(rfc5424Headers="true", rawTimestampHeader="sent"), SyslogFramer(50), b""
        for piece in pieces:
            arrived = held + piece
            source._intake.room[: len(arrived)] = arrived
            held = arrived[source._intake.add(*framer.cut(source._intake.room[: len(arrived)])) :]
        if held:
            source._intake.room[: len(held)] = held
            source._intake.add(np.array([len(held)]), np.array([framer.end()], np.uint8))
        return [event for batch in source._flush() for event in batch]

    assert events([stream[a:b] for a, b in cuts]) == events([stream])
