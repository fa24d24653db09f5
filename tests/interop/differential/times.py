# ruff: noqa: E501  # a list of what is drawn, or a reason, reads best in one line
"""Times in patterns of Joda-Time, and paths with times in them."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Iterator
from typing import Any

from flafka.plugins import Batch, Event
from flafka.plugins.java.jodatime import TimePattern
from flafka.sinks.bucketpath import BucketPath, parse_zone
from tests.interop.differential.drawing import headers, mutated, sometimes
from tests.interop.differential.search import Answers, Case, Known, Operation, Settings, shrunk

ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe", "Pacific/Apia",
         "America/St_Johns", "Europe/Dublin")  # fmt: skip
PATTERNS = ("yyyy-MM-dd HH:mm:ss,SSS", "yyyy-MM-dd HH:mm", "yyyy-MM-dd'T'HH:mm:ss.SSSZ", "dd/MMM/yyyy:HH:mm:ss Z",
            "MMM d HH:mm:ss", "EEE MMM dd HH:mm:ss yyyy", "yyyyMMddHHmmss", "yyMMdd HHmmss", "HH:mm:ss", "yyyy",
            "dd.MM.yyyy hh:mm a", "yyyy-DDD", "yyyy-MM-dd kk:mm", "MM/dd/yy KK:mm:ss a", "yyyy'year'MM", "EEEE, d MMMM yyyy",
            "yyyy-M-d H:m:s.S", "yyyyMMdd'T'HHmmssSSS", "s", "SSS", "yyyy-MM-dd'T'HH:mm:ssZZ", "''yyyy''")  # fmt: skip
_ODD = (
    " ",
    "-",
    ":",
    "0",
    "9",
    "/",
    "T",
    "Z",
    "+",
    "a",
    "PM",
    ".",
    ",",
    "00",
    "31",
    "-1",
    "am",
    "Jan",
    "+0100",
    "\t",
)
NAMES = {
    "MMM": ("Jan", "feb", "MAR", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec", "June"),
    "MMMM": ("January", "February", "March", "May", "June", "Sept", "December", "Dec"),
    "EEE": ("Mon", "Tue", "wed", "Sun", "Monday"), "EEEE": ("Monday", "Sunday", "tuesday", "Fri"),
    "a": ("AM", "PM", "am", "pm"), "Z": ("+0100", "-0730", "Z", "+00:00", "+01:00", "UTC", "+1"),
    "ZZ": ("+01:00", "-07:30", "Z", "+0100"),
}  # fmt: skip
MOST = {"M": 13, "d": 32, "D": 367, "H": 25, "k": 25, "h": 13, "K": 12, "m": 60, "s": 60, "S": 1000}


def time_text(draw: random.Random, pattern: str) -> str:
    """Draw a text similar to a time of that pattern."""
    parts, begin, quoted = [], 0, False
    while begin < len(pattern):
        end = begin + 1
        while end < len(pattern) and pattern[end] == pattern[begin]:
            end += 1
        token = pattern[begin:end]
        begin = end
        if "'" in token:
            quoted ^= bool(len(token) % 2)
            parts.append("'" * (len(token) // 2))
        elif quoted or not token[0].isalpha():
            parts.append(token)
        elif token in NAMES:
            parts.append(draw.choice(NAMES[token]))
        elif token[0] == "y":
            year = draw.choice([draw.randrange(1900, 2100), 2024, 2023, 1969, 1970, 0, 9999, 24, 99])
            parts.append(f"{year:0{len(token)}}"[-4:] if len(token) != 2 else f"{year % 100:02}")
        else:
            parts.append(f"{draw.randrange(MOST.get(token[0], 10)):0{len(token)}}")
    text = "".join(parts)
    return mutated(draw, text, _ODD) if sometimes(draw, 0.25) else text


def _skipped(case: Case) -> bool:
    """Return True for a time of the night in which clocks may be set forward."""
    (as_utc,) = Time().ours({**case.settings, "tz": "UTC"}, [case.item])
    return int(as_utc) // 3_600_000 % 24 < 4


class Time(Operation):
    """`RegexExtractorInterceptorMillisSerializer`: a time in a pattern of Joda-Time."""

    name = "time"
    known = (
        Known(
            "years before 1 and after 9999 are valid",
            lambda case: case.ours == "error" and not -62_135_510_400_000 < int(case.theirs) < 253_402_214_400_000,
        ),
        Known(
            "time zones are of Joda-Time's table of 2017",
            lambda case: (
                case.ours != "error"
                and case.settings["tz"] != "UTC"
                and (
                    _skipped(case) if case.theirs == "error" else abs(int(case.theirs) - int(case.ours)) <= 7_200_000
                )
            ),
        ),
    )

    def draw(self, draw: random.Random) -> tuple[Settings, list[Any]]:
        pattern = draw.choice(PATTERNS)
        return {"pattern": pattern, "tz": draw.choice(ZONES), "now": int(time.time() * 1000)}, [
            time_text(draw, pattern) for _ in range(100)
        ]

    def ours(self, settings: Settings, items: list[Any]) -> Answers:
        pattern = TimePattern(settings["pattern"], parse_zone(settings["tz"]))
        millis = [pattern.millis(item) for item in items]
        return [{"error": "no time"} if value is None else str(value) for value in millis]


_ESCAPES = re.compile(r"%[aAbBcdeDHIjklmMnpsStyYz%]|%\{[\w.-]+\}|%\[(localhost|IP|FQDN)\]", re.ASCII)
LETTERS = "aAbBcdeDHIjklmMnpsStyYz"


class Path(Operation):
    """`BucketPath`: the escapes of paths, file names and topics."""

    name = "path"
    known = (
        Known(
            "an incomplete escape such as `%{host` becomes a directory",
            lambda case: case.ours == "error" and "%" in _ESCAPES.sub("", case.settings["pattern"]),
        ),
        Known(
            "times before 15 October 1582",
            lambda case: case.ours == "error" and int(case.item.get("timestamp", "0")) < -12_219_292_800_000,
        ),
        Known(
            "both are errors of `check`, with their line; a percent sign is `%%`, which needs no timestamp",
            lambda case: case.theirs == "error" and "%%" in case.settings["pattern"],
        ),
    )

    def draw(self, draw: random.Random) -> tuple[Settings, list[Any]]:
        settings = {
            "pattern": self.pattern(draw),
            "timeZone": draw.choice([None, *ZONES, "GMT+5:30", "PST", "EST", "GMT-8", "Nowhere/Else", "CET"]),
            "tz": draw.choice(ZONES),
            "round": sometimes(draw, 0.5),
            "roundUnit": (unit := draw.choice(["second", "minute", "hour"])),
            "roundValue": draw.choice([1, 2, 5, 7, 10, 12, 24] + [30, 60] * (unit != "hour")),
            "useLocalTimeStamp": sometimes(draw, 0.2),
            "clock": 1_700_000_000_000 + draw.randrange(10**11),
        }
        return settings, [self.headers(draw) for _ in range(50)]

    def pattern(self, draw: random.Random) -> str:
        pieces = [
            lambda: f"%{draw.choice(LETTERS)}",
            lambda: f"%{draw.choice('YmdHMS')}",
            lambda: f"%{{{draw.choice(['a', 'b', 'host', 'key', 'x.y', 'timestamp', 'none'])}}}",
            lambda: draw.choice(["/flume/", "/", "-", "events", ".log", "year=", "ä", "$", "\\"]),
            lambda: "%[localhost]",
        ]
        text = "".join(draw.choice(pieces)() for _ in range(draw.randrange(1, 7)))
        return (
            mutated(draw, text, ("%", "{", "}", "%{", "[", "%%", "x", "%E", "%q", "$1"))
            if sometimes(draw, 0.1)
            else text
        )

    def headers(self, draw: random.Random) -> dict[str, str]:
        drawn = headers(draw)
        if sometimes(draw, 0.03):
            return drawn
        millis = draw.choice([
            draw.randrange(1_600_000_000_000, 1_800_000_000_000),
            draw.randrange(1_600_000_000_000, 1_800_000_000_000),
            draw.randrange(0, 4_000_000_000_000),
            draw.choice([1_711_846_800_000, 1_729_990_800_000, 1_710_054_000_000, 1_730_613_600_000]) + draw.randrange(-7_200_000, 7_200_000),
            draw.choice([0, 1, 999, -1, 253_402_300_800_000, 10**11, 1_700_000_000]),
        ])  # fmt: skip
        text = str(millis)
        return {**drawn, "timestamp": mutated(draw, text) if sometimes(draw, 0.05) else text}

    def ours(self, settings: Settings, items: list[Any]) -> Answers:
        try:
            path = BucketPath(
                settings["pattern"],
                time_zone=settings["timeZone"] or settings["tz"],
                rounding=(settings["roundUnit"], settings["roundValue"]) if settings["round"] else None,
                local_time=settings["useLocalTimeStamp"],
                now=lambda: settings["clock"] / 1000,
            )
        except ValueError as e:
            return {"error": str(e)}
        paths, codes = path.resolve_batch(Batch.of(Event(b"", item) for item in items))
        results = [paths[code] for code in codes.tolist()]
        return [{"error": str(result)} if isinstance(result, ValueError) else result for result in results]

    def smaller(self, settings: Settings, item: Any) -> Iterator[tuple[Settings, Any]]:
        for pattern in shrunk(settings["pattern"]):
            yield {**settings, "pattern": pattern}, item
        for less in shrunk(item):
            yield settings, less
