# ruff: noqa: E501  # a list of what is drawn, or a reason, reads best in one line
"""Syslog: events of the three sources for the bytes of one sender."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from flafka.sources.syslog import MultiportSyslogTcp, SyslogTcp, SyslogUdp
from flafka.sources.syslog.framing import NO_FRAME, SyslogFramer
from tests.conformance.adapters.syslog_driven import events_of, source_of
from tests.interop.differential.drawing import line, mutated, sometimes
from tests.interop.differential.search import Answers, Case, Known, Operation, Settings

MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe", "Pacific/Apia")
KEEP = ("none", "none", "none", "false", "true", "all", "priority", "version", "timestamp", "hostname",
        "priority version", "timestamp hostname", "priority timestamp", "priority version timestamp hostname",
        "version hostname", "hostname,priority")  # fmt: skip
_ODD = (
    " ",
    "  ",
    "<",
    ">",
    "-",
    "1",
    "9",
    ":",
    "T",
    "Z",
    ".",
    "\t",
    "\r",
    "\0",
    "\xff",
    "ä",
    "<13>",
    "[",
    "]",
    "A",
    "f",
    "\x0b",
    "\xa0",
)


def stamp_3164(draw: random.Random) -> str:
    day, width = draw.randrange(1, 32), draw.choice([2, 2, 2, 1])
    text = f"{draw.choice(MONTHS)} {day:>{width}}"
    text += f" {draw.randrange(24):02}:{draw.randrange(60):02}:{draw.randrange(60):02}"
    return _spoiled(draw, text)


def stamp_5424(draw: random.Random) -> str:
    text = f"{draw.choice([1970, 1999, 2012, 2024, 2024, 2026, 2038, 2100])}-{draw.randrange(1, 13):02}-{draw.randrange(1, 32):02}"
    text += f"T{draw.randrange(24):02}:{draw.randrange(60):02}:{draw.randrange(60):02}"
    text += draw.choice(["", "", ".1", ".12", ".123", ".003", ".123456", ".999999", ".1234567", ".0", ".000"])
    text += draw.choice(["Z", "Z", "", "+00:00", "+01:00", "-07:00", "+05:30", "-00:00", "+0100", "+14:00"])
    return _spoiled(draw, text)


def _spoiled(draw: random.Random, text: str) -> str:
    """Draw the text, or one with other digits."""
    if sometimes(draw, 0.15):
        index = draw.randrange(len(text))
        return text[:index] + draw.choice("0123456789 -:T") + text[index + 1 :]
    return text


def message(draw: random.Random) -> str:
    priority = draw.choice([draw.randrange(192), draw.randrange(192), draw.randrange(192), "013", "00", 192, 999, 0])
    version = draw.choice(["", "", "", "1 ", "1 ", "1", "2 ", "1  ", "0 "])
    stamp = draw.choice([stamp_3164, stamp_5424, stamp_5424, lambda draw: "-"])(draw)
    host = draw.choice(
        [
            "host",
            "web-01",
            "10.0.0.1",
            "a.b.c",
            "-",
            "h@x",
            "fe80::1",
            "h\xf4te",
            "su:",
            "x_y",
            "[::1]",
            "_",
            "2024",
            "a",
        ]
    )
    text = draw.choice(
        [line(draw, 60), line(draw, 60), "", " ", "app 1 id - text", "su: 'su root' failed", "-", "\xef\xbb\xbftext"]
    )
    frame = f"<{priority}>{version}{stamp} {host} {text}"
    return mutated(draw, frame, _ODD) if sometimes(draw, 0.3) else frame


def stream(draw: random.Random, datagram: bool) -> str:
    """Draw a line, or several."""
    messages = [message(draw) for _ in range(draw.choice([1, 1, 1, 1, 1, 2, 3]))]
    text = "".join(frame.replace("\n", "") + "\n" for frame in messages)
    return text.removesuffix("\n") if datagram and sometimes(draw, 0.5) else text


def by_line(settings: Settings, data: bytes) -> list[bytes]:
    """Return the frames that we make of the bytes."""
    if settings.get("udp"):
        return [data] if data else []
    ends, marks = SyslogFramer(settings["eventSize"]).cut(memoryview(data))
    starts = [0, *ends.tolist()]
    return [data[a:b] for a, b, mark in zip(starts, starts[1:], marks, strict=False) if mark != NO_FRAME]


_STATUS = "flume.syslog.status"
_HOST = re.compile(r"[\w][\w.@-]*|-", re.ASCII)
_NO_ZONE = rb"<\d{1,3}>\d?\s?\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-](\d\d:[6-9]\d|(2[4-9]|[3-9]\d):)"
_FRACTION = re.compile(rb"<\d{1,3}>\d?\s?\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.(\d+)")


def _headers_of(case: Case, side: str) -> dict[str, str]:
    """Return an event's headers; empty for no event."""
    event = getattr(case, side)
    return dict(event[0]) if event and isinstance(event[0], dict) else {}


def _more_than_priority(headers: dict[str, str]) -> bool:
    return "host" in headers or "timestamp" in headers


def _only_read_here(case: Case) -> bool:
    """Return True if only we read the head of the message; Flume reads its priority at most."""
    theirs, ours = _headers_of(case, "theirs"), _headers_of(case, "ours")
    return "priority" in ours and not _more_than_priority(theirs)


def _timestamp_alone(case: Case) -> bool:
    theirs, ours = ({**_headers_of(case, side), "timestamp": ""} for side in ("theirs", "ours"))
    return theirs == ours and case.theirs[1] == case.ours[1] and "timestamp" in _headers_of(case, "ours")


def _invalid_here(case: Case) -> bool:
    """Return True if Flume's event has no status, or headers of the message before."""
    theirs, ours = _headers_of(case, "theirs"), _headers_of(case, "ours")
    stale = {name: value for name, value in theirs.items() if name not in ("priority", "version", _STATUS)}
    return ours.pop(_STATUS, "") == "Invalid" and stale == ours and case.theirs[1] == case.ours[1]


def _stale(case: Case) -> bool:
    theirs, ours = _headers_of(case, "theirs"), _headers_of(case, "ours")
    return {**theirs, **ours} == theirs and not _more_than_priority(ours) and case.theirs[1] == case.ours[1]


_NUL = "a NUL that ends a message, as Python's `SysLogHandler` sends it"
STREAMS = (
    Known(_NUL, lambda case: not case.settings.get("udp") and b"\0" in case.item),
    Known("after a line that ends within `<13`, TCP waits", lambda case: re.search(rb"<\d{0,3}(\n|$)", case.item)),
    Known(
        "a datagram that ends within `<13` is dropped",
        lambda case: (
            case.settings.get("udp") and case.theirs == "error" and re.fullmatch(rb"\n*(<\d*)?\n?", case.item)
        ),
    ),
)
"""Differences in the number of events."""
SINGLE = (
    Known(_NUL, lambda case: re.search(rb"\0\n?$", case.item)),
    Known(
        "only the first line of a datagram is read",
        lambda case: case.settings.get("udp") and b"\n" in case.item.removesuffix(b"\n"),
    ),
    Known(
        "a priority above 191 is accepted",
        lambda case: re.match(rb"<(19[2-9]|[2-9]\d\d)>", case.item) and _STATUS in _headers_of(case, "ours"),
    ),
    Known(
        "the zone of a timestamp with a fraction is ignored",
        lambda case: (_FRACTION.match(case.item) or re.match(_NO_ZONE, case.item)) and _timestamp_alone(case),
    ),
    Known("a line that ends in CR LF matches no pattern", lambda case: b"\r" in case.item and _only_read_here(case)),
    Known(
        "with an IPv6 address, a host name outside ASCII",
        lambda case: (
            _only_read_here(case)
            and (
                not _HOST.fullmatch(_headers_of(case, "ours").get("host", "-"))
                or ((match := _FRACTION.match(case.item)) and len(match[1]) > 6)
            )
        ),
    ),
    Known(
        "a host or a timestamp `-` that `keepFields` keeps is `null`",
        lambda case: (
            case.settings["keepFields"] not in ("none", "false")
            and "null " in case.theirs[1]
            and len(case.theirs[1]) - case.theirs[1].count("null ") * 3 == len(case.ours[1])
            and case.theirs[1].replace("null ", "- ") == case.ours[1]
        ),
    ),
    Known(
        "a date without a year gets one by month arithmetic",
        lambda case: re.match(rb"<\d+>\d?\s?[A-Z][a-z]{2}\s+(0|29|[3-9]\d)", case.item) and _timestamp_alone(case),
    ),
    Known(
        "a date with other whitespace than spaces",
        lambda case: (
            re.match(rb"<\d+>\d?\s?(?=.{0,10}[\t\x0b\f\r])[A-Z][a-z]{2}\s", case.item)
            and "timestamp" not in _headers_of(case, "theirs")
        ),
    ),
    Known(
        "years before 1583 follow the Julian calendar",
        lambda case: (
            re.match(rb"<\d+>\d?\s?(0\d\d\d|1[0-4]\d\d|15[0-7]\d|158[0-2])-", case.item) and _timestamp_alone(case)
        ),
    ),
    Known("a message whose head is unreadable but for the priority has no status", _invalid_here),
    Known("an Invalid event has the headers of the previous event", _stale),
    Known("after a line that ends within `<13`, TCP waits", lambda case: re.fullmatch(rb"<\d{0,3}\n?", case.item)),
    Known(
        "What follows a cut line is Invalid and has no headers",
        lambda case: (
            case.settings["eventSize"] < 100
            and re.match(rb"<\d{1,3}>", case.item)
            and _headers_of(case, "ours") == {"Facility": "0", "Severity": "0", _STATUS: "Invalid"}
        ),
    ),
)


class Syslog(Operation):
    """`syslogtcp` and `syslogudp`."""

    name = "syslog"
    known = SINGLE
    streams: Sequence[Known] = STREAMS

    def draw(self, draw: random.Random) -> tuple[Settings, list[Any]]:
        settings = self.settings(draw)
        return settings, [
            stream(draw, settings.get("udp", False)).encode("latin-1", "replace").decode("latin-1")
            for _ in range(200)
        ]

    def explained(self, case: Case) -> str | None:
        """Return the last reason, if each differing event has one."""
        lines = by_line(case.settings, case.item.encode("latin-1"))
        otherwise_cut = "\0" in case.item and not case.settings.get("udp")
        if isinstance(case.theirs, str) or otherwise_cut or not len(lines) == len(case.theirs) == len(case.ours):
            encoded = case._replace(item=case.item.encode("latin-1"))
            return next((known.sentence for known in self.streams if known.holds(encoded)), None)
        reason = None
        for frame, theirs, ours in zip(lines, case.theirs, case.ours, strict=True):
            if theirs != ours:
                reason, ours = self.as_text(theirs, ours)
                if theirs != ours:
                    reason = super().explained(Case(case.settings, frame, theirs, ours))
                if reason is None:
                    return None
        return reason

    def as_text(self, theirs: Any, ours: Any) -> tuple[str, Any]:
        """Return our event with a text as body, as Flume's is where it could read the message."""
        if "\xef\xbf\xbd" not in theirs[1]:
            return "", ours
        text = ours[1].encode("latin-1").decode("utf-8", "replace").encode().decode("latin-1")
        return "bytes that are not UTF-8 become U+FFFD in a well-formed message", [ours[0], text]

    def settings(self, draw: random.Random) -> Settings:
        udp = sometimes(draw, 0.4)
        return {
            "udp": udp,
            "keepFields": draw.choice(KEEP),
            "eventSize": 65536 if udp else draw.choice([2500, 2500, 2500, 60, 30]),
            "tz": draw.choice(ZONES),
            "now": draw.choice([1_718_452_800_000, 1_704_067_200_500, 1_709_164_800_000, 1_735_689_599_000]),
        }

    def source(self, settings: Settings) -> Any:
        if settings["udp"]:
            own = {name: value for name, value in settings.items() if name != "eventSize"}
            return source_of(SyslogUdp, own, port="0")
        return source_of(SyslogTcp, settings, port="0")

    def ours(self, settings: Settings, items: list[Any]) -> Answers:
        source = self.source(settings)
        counts, accumulator = [], source._accumulator
        for item in items:
            data = item.encode("latin-1")
            accumulator.free_space[: len(data)] = data
            if settings.get("udp"):
                ends, marks = np.array([len(data)] if data else [], np.int64), np.zeros(int(bool(data)), np.uint8)
            else:
                ends, marks = SyslogFramer(settings["eventSize"]).cut(accumulator.free_space[: len(data)])
            accumulator.add(ends, marks)
            counts.append(int((marks != NO_FRAME).sum()))
        events = iter(events_of(source))
        return [
            [[event.headers, event.body.decode("latin-1")] for event in _next_events(events, count)]
            for count in counts
        ]


def _next_events(events: Any, count: int) -> list[Any]:
    return [next(events) for _ in range(count)]


_WELL_FORMED = re.compile(
    rb"<(\d{1,2}|0\d\d|1[0-8]\d|19[01])>(1 )?(-|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)"
    rb"|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d) [!-~]+ "
)
"""Head that both read."""
_WITHOUT_ZONE = rb"<\d+>(1 )?\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)? "
MULTIPORT_STREAMS = (
    Known("a message ends at a NUL", lambda case: b"\0" in case.item),
    Known(
        "an empty line, a line that begins with a NUL, or an invalid timestamp",
        lambda case: (
            case.theirs == "error"
            and (re.search(rb"(^|\n)(\n|\0)", case.item) or any(_STATUS in headers for headers, _ in case.ours))
        ),
    ),
    Known(
        "a timestamp without a zone makes the event Invalid",
        lambda case: case.theirs == "error" and re.search(_WITHOUT_ZONE, case.item),
    ),
)
MULTIPORT = (
    Known(
        "a priority above 191 is accepted",
        lambda case: (
            re.match(rb"<(19[2-9]|[2-9]\d\d)>", case.item) and _headers_of(case, "ours") == {_STATUS: "Invalid"}
        ),
    ),
    Known("a message ends at a NUL", lambda case: b"\0" in case.item and len(case.theirs[1]) < len(case.item)),
    Known(
        "any letter counts as a zone",
        lambda case: _headers_of(case, "ours") == {_STATUS: "Invalid"} and not _WELL_FORMED.match(case.item),
    ),
    Known(
        "dates without a year get the year 1999 or 2001",
        lambda case: re.match(rb"<\d+>(1 )?[A-Z][a-z]{2} ", case.item) and _timestamp_alone(case),
    ),
    Known(
        "a timestamp without a zone makes the event Invalid",
        lambda case: _headers_of(case, "theirs") == {_STATUS: "Invalid"} and re.match(_WITHOUT_ZONE, case.item),
    ),
    Known(
        "any letter counts as a zone",  # and a day with one blank and digit, or two and two
        lambda case: (
            re.match(rb"<\d+>(1 )?[A-Z][a-z]{2}\s(\d\s|\s?\d\d\s)", case.item) and not _WELL_FORMED.match(case.item)
        ),
    ),
)


class Multiport(Syslog):
    """`multiport_syslogtcp`."""

    name = "multiport"
    known = MULTIPORT
    streams = MULTIPORT_STREAMS

    def comparable(self, settings: Settings, item: Any, answer: Any) -> Any:
        """Return the answer with a placeholder for the time of reading: Flume takes it from the machine's clock."""
        if isinstance(answer, dict):
            return "error"
        now = str(settings["now"])
        for headers, _ in answer:
            stamp = headers.get("timestamp", "")
            if stamp == now or (stamp.isdigit() and abs(int(stamp) / 1000 - time.time()) < 3600):
                headers["timestamp"] = "now"
        return answer

    def settings(self, draw: random.Random) -> Settings:
        return {
            "keepFields": draw.choice(KEEP),
            "eventSize": draw.choice([2500, 2500, 2500, 60, 30]),
            "tz": draw.choice(ZONES),
            "now": draw.choice([1_718_452_800_000, 1_704_067_200_500, 1_709_164_800_000, 1_735_689_599_000]),
            "charset": draw.choice(["UTF-8", "UTF-8", "ISO-8859-1", "US-ASCII", "windows-1252"]),
        }

    def source(self, settings: Settings) -> Any:
        return source_of(MultiportSyslogTcp, settings, ports="0", **{"charset.default": settings["charset"]})
