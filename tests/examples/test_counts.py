"""Example of counts: each message in its minute, growing counts, late and incomplete messages."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from conf.examples.counts.counts import per_minute
from flafka.agent.testing import run_processor
from flafka.plugins import Event

pytestmark = pytest.mark.usefixtures("spark_session")

START = int(datetime(2026, 1, 31, 12, tzinfo=UTC).timestamp() * 1000)


def message(second: int, host: str = "web1", severity: int = 3) -> Event:
    return Event(b"x", {"timestamp": str(START + second * 1000), "host": host, "Severity": str(severity)})


def test_counts_by_host_severity_and_minute() -> None:
    bare = Event(b"x", {"timestamp": "no number", "Severity": "6"})
    batches = (
        [message(1), message(59), message(60), message(2, "web2"), message(2, severity=6)],
        [message(30), message(665)],  # ten minutes later: 12:00 is closed, once the next micro-batch is over
        [message(666)],
        [message(31), message(61)],
        [bare, *(message(700, "odd", severity) for severity in (-1, 8, 2**31 - 1))],  # outside the values of syslog
    )
    rows = run_processor(per_minute, *batches, mode="update")
    first, then, late, last = (
        rows[:4],
        rows[4:6],
        rows[7:8],
        [row for row in rows[8:] if row.headers["host"] != "odd"],
    )
    assert sorted((row.key, row.headers["count"]) for row in first) == [
        ("web1 err 2026-01-31T12:00:00Z", "2"),
        ("web1 err 2026-01-31T12:01:00Z", "1"),
        ("web1 info 2026-01-31T12:00:00Z", "1"),
        ("web2 err 2026-01-31T12:00:00Z", "1"),
    ]
    assert sorted((row.key, row.headers["count"]) for row in then) == [
        ("web1 err 2026-01-31T12:00:00Z", "3"),
        ("web1 err 2026-01-31T12:11:00Z", "1"),
    ]
    assert [row.headers for row in late] == [
        {"host": "web1", "severity": "err", "minute": "2026-01-31T12:01:00Z", "count": "2"}
    ]
    assert [(row.headers["host"], row.headers["severity"], row.body) for row in last] == [("unknown", "info", "")]
    (odd,) = (row for row in rows[8:] if row.headers["host"] == "odd")
    assert (odd.headers["severity"], odd.headers["count"]) == (None, "3")
