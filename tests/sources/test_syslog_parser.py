"""The columnar parser against a plain one that reads frame by frame, and against what Flume did."""

import calendar
import re
import time
from datetime import UTC, datetime, timedelta
from unittest import mock
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plugins import Event
from sources.syslog import few
from sources.syslog.columns import LOOK_AHEAD
from sources.syslog.parser import CUT, REST, STATUS, parse
from sources.syslog.reading import FIELDS, MULTIPORT, SINGLE, Reading
from tests.fixtures.examples import examples

NOW = datetime(2024, 6, 15, 12, tzinfo=UTC).timestamp()
UTC_READING = Reading.of("none", ZoneInfo("UTC"))

# --- the plain parser, from the grammar as Flume documents it

SPACE = rb"[ \t\n\x0b\f\r]"
PRIORITY = re.compile(rb"<(\d{1,3})>")
ISO = rb"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(?:\.\d+)?(?:[+-]\d{2}:\d{2}|Z)?"
RFC5424 = re.compile(
    rb"<(\d{1,3})>(\d?)"
    + SPACE
    + rb"?(?:("
    + ISO
    + rb")|-)"
    + SPACE
    + rb"([^\x00-\x20]{1,255})"
    + SPACE
    + rb"(.*)\Z",
    re.DOTALL | re.ASCII,
)
RFC3164 = re.compile(
    rb"<(\d{1,3})>(\d?)" + SPACE + rb"?"
    rb"([A-Z][a-z][a-z]" + SPACE + rb"{1,2}\d{1,2}" + SPACE + rb"\d{2}:\d{2}:\d{2})"
    + SPACE + rb"([^\x00-\x20]{1,255})" + SPACE + rb"(.*)\Z",
    re.DOTALL | re.ASCII,
)  # fmt: skip


def is_host(host, sure):
    """Whether that is a host; `sure` where RFC 5424 has one there, whatever it looks like."""
    try:
        text = host.decode()
    except UnicodeDecodeError:
        return False
    if sure:
        return all(c > "\x7f" or "!" <= c <= "~" for c in text)
    if re.fullmatch(r"(?:[\w]|[^\x00-\x7f])(?:[\w.@-]|[^\x00-\x7f])*", text, re.ASCII):
        return True
    address = re.fullmatch(r"\[?([\da-fA-F:.]+)(?:%[\w.-]+)?\]?", text, re.ASCII)
    if address is None:
        return False
    before, short, _ = address[1].partition("::")
    return (bool(short) and "." not in before) or bool(re.match(r"([\da-fA-F]{1,4}:){6}.", address[1]))


EPOCH = datetime(1970, 1, 1)


def lenient(year, month, day, hour, minute, second):
    year, month = year + (month - 1) // 12, (month - 1) % 12 + 1
    days = (datetime(year % 400 + 400, month, 1) - EPOCH).days + (year // 400 - 1) * 146097 + day - 1
    return ((days * 24 + hour) * 60 + minute) * 60 + second


def to_utc(seconds, zone):
    first, last = (int((datetime(year, 1, 1) - EPOCH).total_seconds()) for year in (1900, 2200))
    minute = min(max(seconds // 60 * 60, first), last)
    wall = (EPOCH + timedelta(seconds=minute)).replace(tzinfo=zone)
    return seconds - minute + max(int(wall.replace(fold=fold).timestamp()) for fold in (0, 1))


def month_later(moment, months):
    index = moment.year * 12 + moment.month - 1 + months
    year, month = index // 12, index % 12 + 1
    return moment.replace(year=year, month=month, day=min(moment.day, calendar.monthrange(year, month)[1]))


def reference_time(stamp, now, zone):
    text = stamp.decode("ascii")
    if text[0].isdigit():
        fields = [int(n) for n in re.findall(r"\d+", text[:19])]
        fraction, sign, hours, minutes = re.fullmatch(r"(?:\.(\d+))?(?:([+-])(\d\d):(\d\d)|Z)?", text[19:]).groups(
            default=""
        )
        seconds = lenient(*fields)
        if sign:
            seconds -= int(sign + "1") * (int(hours) * 3600 + int(minutes) * 60)
        elif not text.endswith("Z"):
            seconds = to_utc(seconds, zone)
        return seconds * 1000 + int((fraction + "000")[:3])
    month, day, clock = re.split(r"\s+", text)
    if month not in calendar.month_abbr[1:]:
        return None
    here = datetime.fromtimestamp(now, zone).replace(tzinfo=None)
    fields = list(calendar.month_abbr).index(month), int(day), *map(int, clock.split(":"))
    seconds = lenient(here.year, *fields)
    if seconds > (month_later(here, 1) - EPOCH).total_seconds():
        seconds = lenient(here.year - 1, *fields)
    elif seconds < (month_later(here, -11) - EPOCH).total_seconds():
        seconds = lenient(here.year + 1, *fields)
    return to_utc(seconds, zone) * 1000


def reference(frame, mark, now, reading):
    if not mark & CUT:
        frame = frame.removesuffix(b"\n")
    priority = PRIORITY.match(frame)
    if priority is None or int(priority[1]) > 191 or mark & REST:
        return Event(frame, {"Facility": "0", "Severity": "0", STATUS: "Invalid"})
    number = int(priority[1])
    headers = {"Facility": str(number // 8), "Severity": str(number % 8)}
    if mark & CUT:
        headers[STATUS] = "Incomplete"
    old = RFC3164.match(frame)
    head = old or RFC5424.match(frame)
    if head is not None:
        _, version, stamp, host, body = head.groups()
        sure = old is None and version and frame[head.end(2) : head.end(2) + 1].isspace()
        if not is_host(host, sure) and (old or host != b"-"):
            head = None
        elif host == b"-":
            host = b""
    if head is None:
        headers.setdefault(STATUS, "Invalid")
        return Event(frame, headers)
    headers["priority"] = priority[1].decode()
    if version:
        headers["version"] = version.decode()
    if stamp and (time := reference_time(stamp, now, reading.zone)) is not None:
        headers["timestamp"] = str(time)
    if host:
        headers["host"] = host.decode()
    kept = b""
    if "priority" in reading.keep:
        kept += b"<%s>" % priority[1]
    if "version" in reading.keep and version:
        kept += version + b" "
    if "timestamp" in reading.keep:
        kept += (stamp or b"-") + b" "
    if "hostname" in reading.keep:
        kept += (host or b"-") + b" "
    whole = reading.keep_all or not kept + body
    return Event(frame if whole else kept + body, headers)


# --- what comes in

LINES = [
    b"<134>Oct 11 22:14:15 web-1 sshd[4721]: Failed password for invalid user admin",
    b"<34>Oct  1 22:14:15 mymachine su: 'su root' failed",
    b"<0>Jan 31 00:00:00 h x",
    b"<7>Jun 7 01:02:03 h x",
    b"<191>Feb 29 23:59:59 10.0.0.99 Use the BFG!",
    b"<13>1Oct  11 22:14:15 h x",
    b"<13>Xyz 11 22:14:15 h x",
    b"<13>Oct 11 22:14:15 - x",
    b"<10>1 2012-04-13T11:11:11.999 ubuntu-11.cloudera.com some msg",
    b"<165>1 2003-10-11T22:14:15.003Z mymachine.example.com evntslog - ID47 [exampleSDID@32473 iut=\"3\"] app",
    b"<13>1 2003-08-24T05:14:15.000003-07:00 192.0.2.1 myproc 8710 - - %% It",
    b"<13>1 2012-04-13T11:11:11+08:00 - x",
    b"<13>1 - - x",
    b"<13>- h x",
    b"<13>- h ",
    b"<13>\x0b-\x0bh\x0bx",
    b"<13>Oct\x0b11\x0b22:14:15\x0bh x",
    b"<13>1- h x",
    b"<13>2024-02-29T12:34:56.789Z localhost.localdomain test",
    b"<13>12024-02-29T12:34:56.78 h test",
    b"<13> 2024-02-29T12:34:56 h test",
    b"<10>1 2012-13-45T99:99:99Z host m",
    b"<10>1 0000-00-00T00:00:00Z host m",
    b"<10>1 9999-12-31T23:59:59.999999-23:59 host m",
    b"<10>1 2012-04-13T11:11:11Z host ",
    b"<10>1 2012-04-13T11:11:11Z host",
    b"<10>1 2012-04-13T11:11:11Z host\n",
    b"<14>May  1 10:00:00 fe80::1 nginx: x",
    b"<14>May  1 10:00:00 2001:db8:0:0:0:0:0:1 nginx: x",
    b"<14>May  1 10:00:00 ::ffff:10.1.2.3 nginx: x",
    b"<14>May  1 10:00:00 [fe80::1%eth0] nginx: x",
    b"<14>May  1 10:00:00 10:00:00 nginx: x",
    b"<14>May  1 10:00:00 nginx: x y",
    b"<14>May  1 10:00:00 nginx[12]: x y",
    "<14>May  1 10:00:00 hôte-世界 nginx: x".encode(),
    b"<14>May  1 10:00:00 h\xf4te nginx: x",
    b"<14>May  1 10:00:00 h\xed\xa0\x80 nginx: x",
    b"<13>1 2026-11-22T10:00:00Z 2001:db8::1 a - - - x",
    b"<13>1 2026-11-22T10:00:00Z -host- a - - - x",
    b"<13>1 2026-11-22T10:00:00Z web/relay:514 a - - - x",
    "<13>1 2026-11-22T10:00:00Z hôte a - - - x".encode(),
    b"<13>1 2026-11-22T10:00:00Z h\xf4te a - - - x",
    b"<13>2026-11-22T10:00:00Z fe80::1%eth0 a: x",
    b"<13>2026-11-22T10:00:00Z nginx[12]: a x",
    b"<13>1 2026-11-22T10:00:00.123456789Z h x",
    b"<13>1 2026-11-22T10:00:00.9999999999999999999999999999999999999999+01:00 h x",
    b"<13>1 2026-11-22T10:00:00." + b"5" * 1000 + b" h x",
    b"<10>only a priority",
    b"<192>Oct 11 22:14:15 h x",
    b"<999>x",
    b"<013>Oct 11 22:14:15 h x",
    b"<00>x",
    b"<>x",
    b"<1234>x",
    b"<13",
    b"<13>",
    b"<",
    b"",
    b"\n",
    b"",
    b"garbage",
    b"<13>Oct 11 22:14:15 h nul \x00 and latin \xe9\xff and CRLF\r",
    b"<13>Oct 11 22:14:15 h a line\nand another",
    b"<13>Oct 11 22:14:15 " + b"h" * 255 + b" x",
    b"<13>Oct 11 22:14:15 " + b"h" * 256 + b" x",
    b"<13>1 2024-05-01T10:00:00.123456+05:30 " + b"long-name." * 12 + b" x",
    b"<13>1 2024-03-10T02:30:00 dst-gap x",
    b"<13>1 2024-11-03T01:30:00 dst-overlap x",
]  # fmt: skip


@st.composite
def mutated(draw, lines=None):
    line = bytearray(draw(st.sampled_from(lines or LINES)))
    for _ in range(draw(st.integers(0, 3))):
        place = draw(st.integers(0, len(line)))
        line[place : place + draw(st.integers(0, 2))] = draw(
            st.sampled_from(
                [b"", b" ", b"-", b":", b"<", b">", b"0", b"9", b"\n", b"\x00", b"\xff", b"Z", b".", b"A"]
            )
        )
    return bytes(line)


FRAMES = st.lists(st.tuples(st.one_of(mutated(), mutated(), st.binary(max_size=40)), st.integers(0, 3)), max_size=30)
READINGS = st.builds(
    lambda keep, zone: Reading.of(keep, ZoneInfo(zone)),
    st.one_of(st.sampled_from(["none", "all"]), st.sets(st.sampled_from(FIELDS), min_size=1).map(" ".join)),
    st.sampled_from(["UTC", "America/New_York", "Asia/Kolkata"]),
)
MOMENTS = st.datetimes(datetime(1995, 1, 1), datetime(2040, 1, 1)).map(lambda d: float(int(d.timestamp())))


def by_columns(frames, now, reading, marks=None):
    """What `parse` does with many frames; with a few it may do the same one by one."""
    with mock.patch.object(few, "FEW", -1):
        return parse(frames, now, reading, marks)


def events(frames, now=NOW, reading=UTC_READING, marks=None):
    array = pa.array(frames, pa.binary())
    found = list(parse(array, now, reading, marks))
    assert found == list(by_columns(array, now, reading, marks))
    return found


@settings(max_examples=examples(200))
@given(FRAMES, READINGS, MOMENTS, st.booleans())
def test_it_reads_as_the_plain_parser_does(frames, reading, now, room_behind):
    expected = [reference(frame, mark, now, reading) for frame, mark in frames]
    array = pa.array([b"before", *(frame for frame, _ in frames), *[b"<1>" * LOOK_AHEAD] * room_behind], pa.binary())
    marks = np.array([mark for _, mark in frames], np.uint8)
    batch = by_columns(array[1 : 1 + len(frames)], now, reading, marks)
    batch.records.validate(full=True)
    assert list(batch) == expected


USUAL = [
    b"<13>Oct 11 22:14:15 web-1 sshd[1]: text\n",
    b"<165>1 2003-10-11T22:14:15.003Z host.example.com app - ID47 - text",
    b"<034>Feb  5 07:32:18 10.0.0.99 app: text",
    b"<0>1 2024-02-29T10:00:00.1234567+05:30 fe80::1%eth0 - - - - text\n\n",
    b"<191>Jan 31 23:59:59 h \n\n",
]


@settings(max_examples=examples(300))
@given(
    st.lists(st.sampled_from(USUAL) | mutated(USUAL), min_size=1, max_size=4),
    st.sampled_from(["UTC", "America/New_York"]),
    MOMENTS,
    st.sampled_from([(SINGLE, None), (MULTIPORT, "utf-8"), (MULTIPORT, "latin-1")]),
)
def test_a_few_are_read_one_by_one_as_they_are_by_columns(frames, zone, now, kind):
    dialect, charset = kind
    reading = Reading.of("none", ZoneInfo(zone), dialect=dialect, charset=charset)
    batch = parse(pa.array(frames, pa.binary()), now, reading)
    batch.records.validate(full=True)
    others = by_columns(pa.array(frames, pa.binary()), now, reading)
    assert list(batch) == list(others)
    assert batch.header_names == others.header_names


@pytest.mark.parametrize("mark", [0, CUT, REST])
@pytest.mark.parametrize(("dialect", "charset"), [(SINGLE, None), (MULTIPORT, "utf-8")])
@pytest.mark.parametrize(
    "line",
    [
        b"<13>Oct 11 22:14:15 h text \xe9",
        b"<13>Oct 32 22:14:15 h text",
        b"<13>Oct 11 24:14:60 h text",
        b"<13>Xyz 11 22:14:15 h text",
        b"<13>2 2024-05-01T10:00:00Z h text",
        b"<13>1 2024-05-01T10:00:00,5Z h text",
        b"<13>1 2024-02-30T10:00:00Z h text",
        b"<13>1 2024-05-01T10:00:00+99:00 h text",
        b"<13>1 2024-05-01T10:00:00Z - text",
        USUAL[0],
    ],
)
def test_a_message_that_is_nearly_usual(line, dialect, charset, mark):
    reading = Reading.of("none", ZoneInfo("UTC"), dialect=dialect, charset=charset)
    events([line, USUAL[0]], reading=reading, marks=np.array([mark, 0], np.uint8))


@pytest.mark.parametrize("dialect", [SINGLE, MULTIPORT])
@pytest.mark.parametrize("line", USUAL)
def test_usual_messages_are_read_one_by_one(line, dialect):
    reading = Reading.of("none", ZoneInfo("UTC"), dialect=dialect)
    assert few.read(pa.array([line]), NOW, reading, None) is not None


def test_each_line_alone_and_all_together():
    expected = [reference(line, 0, NOW, UTC_READING) for line in LINES]
    assert events(LINES) == expected
    assert [event for line in LINES for event in events([line])] == expected


@pytest.mark.parametrize("line", [b"<13>Oct 11 22:14:15 web-1 text\n", b"<191>Feb  5 17:32:18 10.0.0.99 \n"])
def test_a_usual_head_with_any_one_byte_changed(line):
    others = b"\t\n\x0b\r\x1f !-./09:;@AZ[]_az{\x7f\x80\xc3\xff"
    lines = [line[:at] + bytes((byte,)) + line[at + 1 :] for at in range(len(line)) for byte in others]
    assert events(lines) == [reference(frame, 0, NOW, UTC_READING) for frame in lines]


def test_what_a_line_becomes():
    (event,) = events([b"<165>1 2003-10-11T22:14:15.003Z mymachine.example.com evntslog - ID47 - text\n"])
    assert event.body == b"evntslog - ID47 - text"
    assert event.headers == {
        "Facility": "20",
        "Severity": "5",
        "priority": "165",
        "version": "1",
        "timestamp": "1065910455003",
        "host": "mymachine.example.com",
    }


def test_unique_microseconds():
    stamps = [f"2024-05-01T10:{i // 60 % 60:02}:{i % 60:02}.{i * 7919 % 1000000:06}" for i in range(3000)]
    batch = parse(pa.array([f"<13>1 {stamp}Z h x".encode() for stamp in stamps]), NOW, UTC_READING)
    millis = [(datetime.fromisoformat(stamp) - EPOCH) // timedelta(milliseconds=1) for stamp in stamps]
    assert batch.header("timestamp").cast(pa.string()).to_pylist() == [str(m) for m in millis]


def test_whole_seconds_that_change_now_and_then():
    moments = [datetime(2024, 5, 1, tzinfo=UTC) + timedelta(seconds=(i // 3) * 61 + i * i % 2) for i in range(2000)]
    batch = parse(pa.array([f"<13>{m:%b %e %H:%M:%S} h x".encode() for m in moments]), NOW, UTC_READING)
    assert batch.header("timestamp").cast(pa.string()).to_pylist() == [f"{int(m.timestamp())}000" for m in moments]


@pytest.mark.parametrize(
    ("now", "stamp", "year"),
    [
        ("2024-01-01T00:01:00", "Dec 31 23:59:30", 2023),
        ("2023-12-31T23:59:00", "Jan  1 00:00:30", 2024),
        ("2024-03-01T00:00:00", "Feb 29 12:00:00", 2024),
        ("2025-01-10T00:00:00", "Feb 29 12:00:00", 2024),
        ("2024-06-15T12:00:00", "Jul 15 12:00:00", 2024),
        ("2024-06-15T12:00:00", "Jul 15 12:00:01", 2023),
        ("2024-01-31T12:00:00", "Feb 29 12:00:00", 2024),
    ],
)
def test_a_date_without_a_year_gets_the_one_that_is_near(now, stamp, year):
    clock = datetime.fromisoformat(now).replace(tzinfo=UTC).timestamp()
    (event,) = events([f"<13>{stamp} h x".encode()], now=clock)
    expected = datetime.strptime(f"{year} {stamp}", "%Y %b %d %H:%M:%S").replace(tzinfo=UTC)
    assert event.headers["timestamp"] == f"{int(expected.timestamp())}000"


def test_without_a_zone_it_is_the_one_of_this_machine(monkeypatch):
    monkeypatch.setenv("TZ", "XYZ-3")
    time.tzset()
    try:
        (event,) = events([b"<13>1 2031-05-01T10:00:00 h x"], reading=Reading.of("none"))
    finally:
        monkeypatch.undo()
        time.tzset()
    assert event.headers["timestamp"] == str(int(datetime(2031, 5, 1, 7, tzinfo=UTC).timestamp() * 1000))


def test_headers_that_no_event_has_are_no_columns():
    assert parse(pa.array([b"<13>x"]), NOW, UTC_READING).header_names == ["Facility", "Severity", STATUS]
    assert parse(pa.array([b"<13>- h x"]), NOW, UTC_READING).header_names == [
        "Facility",
        "Severity",
        "priority",
        "host",
    ]
    assert parse(pa.array([], pa.binary()), NOW, UTC_READING).header_names == []


@pytest.mark.parametrize(
    ("text", "keep"),
    [
        ("none", set()),
        ("NONE", set()),
        ("false", set()),
        ("", set()),
        ("hostname", {"hostname"}),
        ("priority,hostname", {"hostname", "priority"}),
        ("priority version timestamp hostname", set(FIELDS)),
    ],
)
def test_keep_fields(text, keep):
    assert Reading.of(text).keep == keep
    assert not Reading.of(text).keep_all


def test_keep_fields_all_and_unknown():
    assert Reading.of("ALL").keep_all
    assert Reading.of("true").keep_all
    with pytest.raises(ValueError, match="not 'hots'"):
        Reading.of("priority hots")
