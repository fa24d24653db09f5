"""Times of syslog's columnar parser: without a year, without a zone, and in fractions."""

import time
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from flafka.sources.syslog.dialects import ParserOptions
from flafka.sources.syslog.parser import parse
from tests.sources.syslog_frames import NOW, UTC_OPTIONS, events
from tests.sources.syslog_plain import EPOCH


def test_unique_microseconds():
    stamps = [f"2024-05-01T10:{i // 60 % 60:02}:{i % 60:02}.{i * 7919 % 1000000:06}" for i in range(3000)]
    batch = parse(pa.array([f"<13>1 {stamp}Z h x".encode() for stamp in stamps]), NOW, UTC_OPTIONS)
    millis = [(datetime.fromisoformat(stamp) - EPOCH) // timedelta(milliseconds=1) for stamp in stamps]
    assert batch.header("timestamp").cast(pa.string()).to_pylist() == [str(m) for m in millis]


def test_whole_seconds_that_change_now_and_then():
    moments = [datetime(2024, 5, 1, tzinfo=UTC) + timedelta(seconds=(i // 3) * 61 + i * i % 2) for i in range(2000)]
    batch = parse(pa.array([f"<13>{m:%b %e %H:%M:%S} h x".encode() for m in moments]), NOW, UTC_OPTIONS)
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
def test_a_date_without_a_year_gets_the_nearest_one(now, stamp, year):
    clock = datetime.fromisoformat(now).replace(tzinfo=UTC).timestamp()
    (event,) = events([f"<13>{stamp} h x".encode()], now=clock)
    expected = datetime.strptime(f"{year} {stamp}", "%Y %b %d %H:%M:%S").replace(tzinfo=UTC)
    assert event.headers["timestamp"] == f"{int(expected.timestamp())}000"


def test_a_time_without_a_zone_is_in_the_zone_of_this_machine(monkeypatch):
    monkeypatch.setenv("TZ", "XYZ-3")
    time.tzset()
    try:
        (event,) = events([b"<13>1 2031-05-01T10:00:00 h x"], options=ParserOptions.from_keep_fields("none"))
    finally:
        monkeypatch.undo()
        time.tzset()
    assert event.headers["timestamp"] == str(int(datetime(2031, 5, 1, 7, tzinfo=UTC).timestamp() * 1000))
