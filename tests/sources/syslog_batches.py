"""Random batches of syslog frames: usual ones, which are read one by one, and others that differ in details."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC, datetime, tzinfo
from typing import NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa

from flafka.sources.syslog import rowwise
from flafka.sources.syslog.dialects import FIELDS, MULTIPORT, ParserOptions
from flafka.sources.syslog.parser import parse
from tests.sources.syslog_frames import LINES, by_columns

_ZONES: list[tzinfo | None] = [
    None,
    *(ZoneInfo(name) for name in ("UTC", "America/New_York", "Asia/Kolkata", "Pacific/Auckland")),
]
_MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
_HOSTS = ["web-1", "10.0.0.99", "host.example.com", "fe80::1%eth0", "[2001:db8::1]", "a_b", "h", "x" * 255]
_ODD_HOSTS = ["-", "nginx[12]:", "hôte", "x" * 256, "web/relay:514", "a:b", "-host-", "@"]
_TEXTS = [
    b"sshd[4721]: Failed password for invalid user admin",
    b"x",
    b" ",
    b'app - ID47 [exampleSDID@32473 iut="3"] text',
    b"app 8710 - - %% It",
]
_ODD_TEXTS = [
    "grün 世界".encode(),
    b"latin \xe9\xff",
    b"a line\nand another",
    b"\nand another",
    b"nul \0 inside",
    b"CRLF\r",
    b"\r",
    b"",
]
_ENDS = [b"", b"", b"\n", b"\n", b"\0", b"\n\0", b"\0\n", b"\n\n"]
_DETAILS = ("line", "priority", "version", "stamp", "stamp", "host", "text", "text", "octet")
_OCTETS = b"\0\t\n\r !-./019:;<>@AZ[]az{\x7f\x80\xc3\xff"


class Drawn(NamedTuple):
    """Arguments of `parse`."""

    frames: list[bytes]
    marks: list[int]
    now: float
    options: ParserOptions


def draw(chance: random.Random) -> Drawn:
    """Return frames of one batch, mostly all usual, and the options to read them with."""
    now = datetime(chance.randrange(1995, 2040), chance.randrange(1, 13), chance.randrange(1, 29), tzinfo=UTC)
    count = chance.choice((1, 1, 1, 1, 2, 2, 3, 4, 5, 8, chance.randrange(9, 64), 64, 65))
    oddity = chance.choice((0, 0, 1 / (2 * count), 1 / count, 0.3))
    kinds = chance.choice(("old", "old", "new", "new", "both"))
    stamps = [_old_stamp(chance, is_odd=False) for _ in range(chance.choice((1, 2, 4, 5)))]
    frames = [_frame(chance, kinds, stamps, oddity) for _ in range(count)]
    marks = [chance.choice((0, 0, 0, 1, 2, 3)) if oddity and chance.random() < 0.1 else 0 for _ in frames]
    options = ParserOptions(zone=chance.choice(_ZONES))
    if chance.random() < 0.5:  # that source always has a character set
        charset = chance.choice(("utf-8", "utf-8", "latin-1", "ascii", "euc_jp"))
        options = replace(options, dialect=MULTIPORT, charset=charset)
    if chance.random() < 0.1:
        kept = frozenset(chance.sample(FIELDS, chance.randrange(1, 4)))
        changes = ({"keep": kept}, {"keep_all": True}, {"raw_timestamp": "raw"}, {"structured": True})
        options = replace(options, **chance.choice(changes))
    return Drawn(frames, marks, now.timestamp() + chance.randrange(86_400), options)


def _frame(chance: random.Random, kinds: str, stamps: list[str], oddity: float) -> bytes:
    """Return a usual frame, or with the probability `oddity` one with an odd detail."""
    odd = chance.choice(_DETAILS) if chance.random() < oddity else ""
    if odd == "line":
        return chance.choice(LINES)
    priority = str(chance.randrange(192)).zfill(chance.choice((1, 1, 1, 2, 3)))
    if odd == "priority":
        priority = chance.choice(("", "0000", "1234", *(str(chance.randrange(192, 1000)) for _ in range(3))))
    version = chance.choice(("", "0", "2", "9", "10")) if odd == "version" else "1"
    kind = chance.choice(("old", "new")) if kinds == "both" else kinds
    stamp = chance.choice(stamps) if kind == "old" else _new_stamp(chance, is_odd=False)
    if odd == "stamp":
        stamp = (_old_stamp if kind == "old" else _new_stamp)(chance, is_odd=True)
    host = chance.choice(_ODD_HOSTS if odd == "host" else _HOSTS)
    text = chance.choice(_ODD_TEXTS if odd == "text" else _TEXTS) + chance.choice(_ENDS)
    frame = bytearray(f"<{priority}>{'' if kind == 'old' else f'{version} '}{stamp} {host} ".encode() + text)
    if odd == "octet":
        position = chance.randrange(min(60, len(frame)) + 1)
        frame[position : position + chance.randrange(2)] = bytes((chance.choice(_OCTETS),))
    return bytes(frame)


def _old_stamp(chance: random.Random, *, is_odd: bool) -> str:
    month = "Xyz" if is_odd and chance.random() < 0.2 else chance.choice(_MONTHS)
    day, hour, minute = chance.randrange(1, 29 + 4 * is_odd), chance.randrange(24 + is_odd), chance.randrange(60)
    second = chance.randrange(60 + 2 * is_odd)
    return f"{month} {day:{'02' if is_odd and chance.random() < 0.3 else '2'}} {hour:02}:{minute:02}:{second:02}"


def _new_stamp(chance: random.Random, *, is_odd: bool) -> str:
    if is_odd and chance.random() < 0.2:
        return "-"
    year = chance.choice(("0000", "1969", "9999", "2024")) if is_odd else str(chance.randrange(1990, 2040))
    day = f"{chance.randrange(1, 13):02}-{chance.randrange(1, 29 + 4 * is_odd):02}"
    time = f"{chance.randrange(24 + is_odd):02}:{chance.randrange(60):02}:{chance.randrange(60 + 2 * is_odd):02}"
    digits = chance.choice((0, 0, 1, 3, 6, 9))
    fraction = f".{chance.randrange(10**digits):0{digits}}" if digits else ""
    zones = ["Z", "Z", "+00:00", "+05:30", "-07:00", "-00:00", *(["", "+24:00", "+99:99", "z"] if is_odd else [])]
    return f"{year}-{day}T{time}{fraction}{chance.choice(zones)}"


def check_views(chance: random.Random, messages: int) -> float:
    """Read random batches of that many messages in total, row by row and by columns, and compare the results.

    Return the share of the batches that are read row by row.
    """
    batches = rowwise_batches = read = 0
    while read < messages:
        drawn = draw(chance)
        frames, marks = pa.array(drawn.frames, pa.binary()), np.array(drawn.marks, np.uint8)
        given = marks if chance.random() < 0.5 or marks.any() else None
        batch = parse(frames, drawn.now, drawn.options, given)
        expected = by_columns(frames, drawn.now, drawn.options, given)
        assert batch.header_names == expected.header_names, drawn
        rows, wanted = list(batch), list(expected)
        assert rows == wanted, drawn
        assert [list(event.headers) for event in rows] == [list(event.headers) for event in wanted], drawn
        batches, read = batches + 1, read + len(drawn.frames)
        rowwise_batches += rowwise.parse(frames, drawn.now, drawn.options, given) is not None
    return rowwise_batches / batches
