"""Frames of syslog, good and bad ones, and the results of the columnar parser."""

from datetime import UTC, datetime
from unittest import mock
from zoneinfo import ZoneInfo

import pyarrow as pa
from hypothesis import strategies as st

from flafka.sources.syslog import rowwise
from flafka.sources.syslog.dialects import ParserOptions
from flafka.sources.syslog.parser import parse

NOW = datetime(2024, 6, 15, 12, tzinfo=UTC).timestamp()
UTC_OPTIONS = ParserOptions.from_keep_fields("none", ZoneInfo("UTC"))

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
        position = draw(st.integers(0, len(line)))
        line[position : position + draw(st.integers(0, 2))] = draw(
            st.sampled_from(
                [b"", b" ", b"-", b":", b"<", b">", b"0", b"9", b"\n", b"\x00", b"\xff", b"Z", b".", b"A"]
            )
        )
    return bytes(line)


def by_columns(frames, now, options, marks=None):
    """Return the result of `parse` for many frames; it may read a few one by one."""
    with mock.patch.object(rowwise, "MAX_EVENTS", -1):
        return parse(frames, now, options, marks)


def events(frames, now=NOW, options=UTC_OPTIONS, marks=None):
    array = pa.array(frames, pa.binary())
    parsed = list(parse(array, now, options, marks))
    assert parsed == list(by_columns(array, now, options, marks))
    return parsed
