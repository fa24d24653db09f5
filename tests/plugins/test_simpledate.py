"""Times in patterns of SimpleDateFormat, compared with Java's."""

import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from flafka.agent.jvm.java import find_java
from flafka.plugins.java.simpledate import SimpleDateFormat

ZONE = "Europe/Berlin"
PAIRS = [
    "MMM d yyyy HH:mm:ss|Nov 27 2026 10:00:00",
    "MMM d yyyy HH:mm:ss|Nov  7 2026 10:00:00",
    "MMM d yyyy HH:mm:ss|Nov   7   2026 10:00:00",
    "MMM d yyyy HH:mm:ss|Nov 07 2026 10:00:00.123",
    "MMM d yyyy HH:mm:ss|Nov 7 2026 10:00:00 CET",
    "MMM d yyyy HH:mm:ss|nov 31 2026 25:61:61",
    "MMM d yyyy HH:mm:ss|November 7 2026 1:2:3: %SYS-5",
    "MMM  d yyyy HH:mm:ss|Nov  7 2026 10:00:00",
    "MMM  d yyyy HH:mm:ss|Nov 17 2026 10:00:00",
    "MMM d yyyy HH:mm:ss| Nov 7 2026 10:00:00",
    "MMM d yyyy HH:mm:ss|Nev 7 2026 10:00:00",
    "MMM d yyyy HH:mm:ss|Nov 7 2026 10:00",
    "yyyy-MM-dd'T'HH:mm:ss|2026-11-07T10:00:00+05:00",
    "yyyy-MM-dd'T'HH:mm:ssZ|2026-11-07T10:00:00+0500",
    "yyyy-MM-dd'T'HH:mm:ssZ|2026-11-07T10:00:00+05:00",
    "yyyy-MM-dd'T'HH:mm:ssXXX|2026-11-07T10:00:00+05:00",
    "yyyy-MM-dd'T'HH:mm:ssX|2026-11-07T10:00:00Z",
    "yyyy-MM-dd'T'HH:mm:ss.S|2026-11-07T10:00:00.1",
    "yyyy-MM-dd'T'HH:mm:ss.SSS|2026-11-07T10:00:00.123456",
    "yyyy-MM-dd HH:mm:ss z|2026-07-07 10:00:00 CET",
    "yyyy-MM-dd HH:mm:ss z|2026-07-07 10:00:00 CEST",
    "yyyy-MM-dd HH:mm:ss z|2026-07-07 10:00:00 GMT+2:00",
    "yyyy-MM-dd HH:mm:ss z|2026-07-07 10:00:00 GMT+2",
    "yyyy-MM-dd HH:mm:ss z|2026-07-07 10:00:00 IST",
    "yyyy-MM-dd HH:mm:ss z|2026-07-07 10:00:00 nowhere",
    "yy-M-d H:m|26-2-29 1:1",
    "yy-M-d H:m|99-2-29 1:1",
    "yyyyMMddHHmmssX|20261107100000Z",
    "EEE MMM d HH:mm:ss yyyy|Mon Nov 7 10:00:00 2026",
    "d/MMM/yyyy:hh:mm a|7/Nov/2026:12:30 PM",
    "yyyy-MM-dd HH:mm|2026-03-29 02:30",
    "yyyy-MM-dd HH:mm|2026-10-25 02:30",
]
"""Pattern and text. In the last two the clock skips the time, and shows it twice."""
TIMES = """
1795770000000 1794042000000 1794042000000 1794042000000 1794042000000 1796173321000 1794009723000
1794042000000 null null null null 1794042000000 1794027600000 null 1794027600000 1794045600000 1794042000001
1794042123456 1783414800000 1783411200000 1783411200000 null 1783411200000 null 1772323260000 920246460000
1794045600000 1794042000000 1794051000000 1774747800000 1792891800000
"""
"""Answers of OpenJDK 17; `test_java_reads_the_same` compares them with the Java of this machine."""


def test_times_agree_with_java():
    century = datetime.now(UTC) - timedelta(days=80 * 365.25)
    for pair, expected in zip(PAIRS, TIMES.split(), strict=True):
        pattern, text = pair.split("|")
        millis = SimpleDateFormat(pattern, ZoneInfo(ZONE), century=century).parse(text, whole=False)
        assert (pair, millis) == (pair, None if expected == "null" else int(expected))


def test_java_reads_the_same():
    program = Path(__file__).parent.parent / "interop" / "java" / "SimpleDates.java"
    ran = subprocess.run(
        [find_java().path, program, ZONE], input="\n".join(PAIRS), capture_output=True, text=True, check=False
    )
    if "jdk.compiler" in ran.stderr:
        pytest.skip("this Java cannot compile")
    assert ran.stdout.split() == TIMES.split(), ran.stderr


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("YYYY-MM-dd", "y is the year of a date"),
        ("GGG yyyy", "not supported"),
        ("yyyy 'T", "quote that is not closed"),
        ("EEE HH:mm", "no day"),
    ],
)
def test_an_unsupported_pattern_is_refused(pattern, reason):
    with pytest.raises(ValueError, match=reason):
        SimpleDateFormat(pattern, UTC)
