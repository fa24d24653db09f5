"""Columnar parser compared with a plain one that reads frame by frame, and with Flume's results."""

import random
from datetime import datetime
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flafka.sources.syslog import rowwise
from flafka.sources.syslog.columns import LOOK_AHEAD_BYTES
from flafka.sources.syslog.dialects import FIELDS, MULTIPORT, SINGLE, ParserOptions
from flafka.sources.syslog.parser import CONTINUATION, CUT, STATUS, parse
from tests.fixtures.examples import examples
from tests.sources.syslog_batches import check_views
from tests.sources.syslog_frames import LINES, NOW, UTC_OPTIONS, by_columns, events, mutated
from tests.sources.syslog_plain import reference

FRAMES = st.lists(st.tuples(st.one_of(mutated(), mutated(), st.binary(max_size=40)), st.integers(0, 3)), max_size=30)
READINGS = st.builds(
    lambda keep, zone: ParserOptions.from_keep_fields(keep, ZoneInfo(zone)),
    st.one_of(st.sampled_from(["none", "all"]), st.sets(st.sampled_from(FIELDS), min_size=1).map(" ".join)),
    st.sampled_from(["UTC", "America/New_York", "Asia/Kolkata"]),
)
MOMENTS = st.datetimes(datetime(1995, 1, 1), datetime(2040, 1, 1)).map(lambda d: float(int(d.timestamp())))


@settings(max_examples=examples(200))
@given(FRAMES, READINGS, MOMENTS, st.booleans())
def test_the_parser_agrees_with_the_plain_one(frames, options, now, room_behind):
    expected = [reference(frame, mark, now, options) for frame, mark in frames]
    array = pa.array(
        [b"before", *(frame for frame, _ in frames), *[b"<1>" * LOOK_AHEAD_BYTES] * room_behind], pa.binary()
    )
    marks = np.array([mark for _, mark in frames], np.uint8)
    batch = by_columns(array[1 : 1 + len(frames)], now, options, marks)
    batch.records.validate(full=True)
    assert list(batch) == expected


USUAL = [
    b"<13>Oct 11 22:14:15 web-1 sshd[1]: text\n",
    b"<165>1 2003-10-11T22:14:15.003Z host.example.com app - ID47 - text",
    b"<034>Feb  5 07:32:18 10.0.0.99 app: text",
    b"<0>1 2024-02-29T10:00:00.1234567+05:30 fe80::1%eth0 - - - - text\n\n",
    b"<191>Jan 31 23:59:59 h \n\n",
]


@pytest.mark.parametrize("mark", [0, CUT, CONTINUATION])
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
    options = ParserOptions.from_keep_fields("none", ZoneInfo("UTC"), dialect=dialect, charset=charset)
    events([line, USUAL[0]], options=options, marks=np.array([mark, 0], np.uint8))


@pytest.mark.parametrize("dialect", [SINGLE, MULTIPORT])
@pytest.mark.parametrize("line", USUAL)
def test_usual_messages_are_read_one_by_one(line, dialect):
    options = ParserOptions.from_keep_fields("none", ZoneInfo("UTC"), dialect=dialect)
    assert rowwise.parse(pa.array([line]), NOW, options, None) is not None


def test_random_batches_are_read_row_by_row_as_by_columns(seed):
    assert check_views(random.Random(seed), examples(3000))


def test_each_line_alone_and_all_together():
    expected = [reference(line, 0, NOW, UTC_OPTIONS) for line in LINES]
    assert events(LINES) == expected
    assert [event for line in LINES for event in events([line])] == expected


@pytest.mark.parametrize(
    "line",
    [
        b"<13>Oct 11 22:14:15 web-1 text\n",
        b"<191>Feb  5 17:32:18 10.0.0.99 \n",
        b"<165>1 2003-10-11T22:14:15.003Z web-1 - - - - text\n",
        b"<13>2024-02-29T10:00:00.1234567+05:30 web-1 text\n",
    ],
)
def test_a_usual_head_with_any_one_byte_changed(line):
    octets = b"\0\x01\x08\t\n\x0b\r\x0e\x1f !-./09:;@AZ[]_az{\x7f\x80\xc3\xff"
    lines = [
        line[:position] + bytes((byte,)) + line[position + 1 :] for position in range(len(line)) for byte in octets
    ]
    assert events(lines) == [reference(frame, 0, NOW, UTC_OPTIONS) for frame in lines]


def test_headers_without_events_are_no_columns():
    assert parse(pa.array([b"<13>x"]), NOW, UTC_OPTIONS).header_names == ["Facility", "Severity", STATUS]
    assert parse(pa.array([b"<13>- h x"]), NOW, UTC_OPTIONS).header_names == [
        "Facility",
        "Severity",
        "priority",
        "host",
    ]
    assert parse(pa.array([], pa.binary()), NOW, UTC_OPTIONS).header_names == []


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
    assert ParserOptions.from_keep_fields(text).keep == keep
    assert not ParserOptions.from_keep_fields(text).keep_all


def test_keep_fields_all_and_unknown():
    assert ParserOptions.from_keep_fields("ALL").keep_all
    assert ParserOptions.from_keep_fields("true").keep_all
    with pytest.raises(ValueError, match="not 'hots'"):
        ParserOptions.from_keep_fields("priority hots")
